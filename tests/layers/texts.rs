//! Text from outside in messages: whatever a name, a value, a path or another library's message contains, a message keeps to its lines,
//! controls nothing and has a bounded length. And the rule for errors: `Debug` prints the text of `Display`.

#![deny(unsafe_code)]

use core::fmt::{Debug, Display};
use gpumem_sim::{
    AccessKind, FaultKind, Finding, KernelFault, KernelPlace, Rule, RuleError, SimConfig, SimError,
};
use gpumem_tests::adapt::{AdaptError, Checkpoint, CheckpointError, Destination, Part, save};
use gpumem_tests::array::{ArrayError, Gpu, GraphError, KernelSource, LaunchShape, Rejected};
use gpumem_tests::pool::adaptor::{
    Adaptor, Budget, Grant, Guard, Next, Opening, Release, Request, Trace, Tracking,
};
use gpumem_tests::pool::trace::{ReadError, Recording};
use gpumem_tests::pool::{
    BackendKind, BadArgument, CaptureError, ConfigError, Device, DeviceError, FlightRecorder,
    HostMemoryError, Keep, Limit, MemoryKind, OutOfMemory, Pool, PoolError, SocketError, Spill, Stream,
    StreamError, Unsupported,
};
use gpumem_tests::sys::env::EnvError;
use gpumem_tests::sys::types::CUresult;
use gpumem_tests::sys::{DriverError, LoadError, ProcessUsage};
use gpumem_trace::fit::CANDIDATES;
use gpumem_trace::{self as trace, HolderName, Problem, Setup, TagSum, Waits, replay};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The texts of values, each with the name of its type.
#[derive(Default)]
struct Texts {
    messages: Vec<(&'static str, String)>,
    /// The types of which the texts were printed.
    types: Vec<&'static str>,
}

impl Texts {
    fn add<T: Display>(&mut self, value: &T) {
        let name = core::any::type_name::<T>();
        self.types.push(name);
        self.messages.extend([(name, value.to_string()), (name, format!("{value:#}"))]);
    }

    /// Adds the `Debug` of a handle.
    fn add_debug<T: Debug>(&mut self, value: &T) {
        let name = core::any::type_name::<T>();
        self.types.push(name);
        self.messages.extend([(name, format!("{value:?}")), (name, format!("{value:#?}"))]);
    }

    fn add_error<T: Error>(&mut self, error: &T) {
        self.add(error);
        assert_eq!(format!("{error:?}"), error.to_string(), "{}", core::any::type_name::<T>());
    }

    /// Checks the `Debug` of data, which prints all fields: it is as long as they are.
    fn check_data<T: Debug>(&mut self, value: &T, bytes_max: usize) {
        self.types.push(core::any::type_name::<T>());
        let text = format!("{value:?}");
        check_letters(core::any::type_name::<T>(), &text);
        assert!(text.len() <= bytes_max, "{}: {} bytes", core::any::type_name::<T>(), text.len());
    }

    fn check(&self) {
        for (name, text) in &self.messages {
            check_letters(name, text);
            assert!(text.len() < BYTES_MAX, "{name}: {} bytes", text.len());
            assert!(text.lines().all(|line| !line.starts_with(MARK)), "{name}: {text}");
        }
    }
}

/// Letters that control a terminal or the direction of text, and those that are not seen.
fn check_letters(name: &str, text: &str) {
    let is_hostile = |letter: &char| match letter {
        '\n' => false,
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{61c}'
        | '\u{feff}' => true,
        letter => letter.is_control(),
    };
    assert_eq!(text.chars().find(is_hostile), None, "{name}");
}

/// The start of a line in hostile text: no line of a message may begin with it, except in the logs of compilers and other errors.
const MARK: &str = "injected";

/// The longest message: the log of a compiler.
const BYTES_MAX: usize = 80 << 10;

fn hostile() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "\ninjected",
        "\r",
        "\u{1b}[31m",
        "\u{9b}2J",
        "\u{202e}",
        "\u{2066}",
        "\u{200f}",
        "\u{2028}",
        "\u{feff}",
        "\0",
        "\t",
        "\u{7f}",
        "e\u{301}",
        "\u{301}",
        "模型",
        "🚀",
        "עברית",
        "{}",
        "%s",
        "\"",
        "\\",
        "`",
        "name",
        " ",
        "",
    ]);
    let pieces = proptest::collection::vec(piece, 1..12).prop_map(|pieces| pieces.concat());
    let count = prop_oneof![3 => Just(1_usize), 1 => Just(100), 2 => Just(70_000)];
    (pieces, count).prop_map(|(text, count)| text.repeat((count / text.len().max(1)).max(1)))
}

/// An adaptor with a name and a reason of any text.
struct Refuses(String);

impl Adaptor for Refuses {
    fn name(&self) -> &str {
        &self.0
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        match request.size_bytes() {
            777 => Err(PoolError::Refused {
                adaptor: self.0.clone(),
                requested_bytes: 777,
                reason: self.0.clone(),
                origin: None,
            }),
            _ => next.alloc(request),
        }
    }
}

/// An adaptor that prints what its functions get.
struct Prints(Mutex<Texts>);

impl Prints {
    fn print<T: Debug>(&self, value: &T) {
        self.0.lock().unwrap().add_debug(value);
    }
}

impl Adaptor for Prints {
    fn open(&self, opening: &Opening<'_>) {
        self.print(opening);
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.print(&(request, &next));
        let grant = next.alloc(request)?;
        self.print(&grant);
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.print(release);
    }
}

/// Prints the arguments and findings of adaptors, in pools whose every name is the text.
fn of_adaptors(text: &str, texts: &mut Texts) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let folder = std::env::temp_dir().join(format!("gpumem-texts-{}-{}", std::process::id(), text.len()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = ["trace", "flight"].map(|name| folder.join(name));
    let trace = Trace::create(&files[0]).unwrap();
    let (prints, guard) = (Arc::new(Prints(Mutex::default())), Arc::new(Guard::new()));
    let builder = Pool::builder(&device).name(text).backend(BackendKind::Caching);
    let builder = builder.adaptor(trace.clone()).adaptor(prints.clone()).adaptor(guard.clone());
    let builder = builder.adaptor(Arc::new(Refuses(text.into())));
    texts.check_data(&builder, 60 * text.len() + BYTES_MAX);
    let pool = builder.build().unwrap();
    let block = pool.alloc_tagged(5000, &stream, &pool.tag(text)).unwrap();
    stream.synchronize().unwrap();
    write_behind(&device, block.address() + 5000);
    drop(block);
    stream.synchronize().unwrap();
    let damage = guard.settle();
    texts.add(damage.first().unwrap());
    texts.add_error(&PoolError::Damaged(Box::new(damage[0].clone())));
    texts.check_data(&damage, 60 * text.len() + BYTES_MAX);
    assert!(pool.alloc(777, &stream).is_err() && pool.alloc(1 << 40, &stream).is_err());
    let adapted = Pool::builder(&device).name(text).backend(BackendKind::Caching).adaptor(prints.clone());
    texts.add_error(&adapted.build().unwrap().growable(4 << 20, &stream).unwrap_err());
    texts.add_debug(&(&trace, &guard));
    drop(pool);
    assert!(trace.flush(Duration::from_secs(10)));
    let recorded = Recording::read(&files[0]).unwrap();
    let flight = Pool::builder(&device)
        .name(text)
        .hard_limit(8 << 20)
        .flight_recorder(FlightRecorder::File(files[1].clone()));
    assert!(flight.build().unwrap().alloc(9 << 20, &stream).is_err());
    let refused = Recording::read(&files[1]).unwrap();
    drop(trace);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(!recorded.pools.is_empty() && !refused.reports.is_empty());
    let bytes_max = 400 * text.len() + 2 * BYTES_MAX;
    texts.check_data(&recorded, bytes_max);
    texts.check_data(&(&refused, &refused.reports, &refused.pools), bytes_max);
    let printed = std::mem::take(&mut *prints.0.lock().unwrap());
    texts.types.extend(printed.types);
    texts.messages.extend(printed.messages);
}

/// Writes a byte that no block has.
#[allow(unsafe_code)]
fn write_behind(device: &Device, address: u64) {
    let _bound = device.bind().unwrap();
    // SAFETY: the byte belongs to the guard of the block before it, which finds the write.
    unsafe { device.driver().cuMemsetD8_v2(address, 0, 1).unwrap() };
}

/// Files whose path and contents have the text, as far as the system and the format take it.
fn of_files(text: &str, texts: &mut Texts) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).name(text).build().unwrap()).unwrap();
    let x = gpumem_tests::array::GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
    let name: String = text.chars().filter(|letter| !['/', '\0'].contains(letter)).take(40).collect();
    let path = std::env::temp_dir().join(format!("gpumem-texts-{}-{name}", std::process::id()));
    save(&path, [(text, &x)]).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    texts.check_data(&checkpoint, 60 * text.len() + BYTES_MAX);
    assert_eq!(checkpoint.names().next(), Some(text), "a name is as it is");
    std::fs::remove_file(&path).unwrap();
    texts.check_data(&Part::Key(text.into()), 60 * text.len() + BYTES_MAX);
    texts.add_debug(&(Destination::new(&gpu), &x));
    texts.add(&x);
}

/// Traces of other programs, and what their replay comes to: names in headers, lines that are no events, paths.
fn of_traces(text: &str, texts: &mut Texts) {
    let bytes_max = 60 * text.len() + BYTES_MAX;
    let json = serde_json::to_string(text).unwrap();
    for contents in [
        text.to_owned(),
        format!("#{{\"format\":{json}}}\n"),
        format!("#{{\"format\":1}}\n{text}\n"),
        format!("#{{\"format\":1}}\na,{text},1,1\n"),
        format!("Thread,Time,Action,Pointer,Size,Stream\n{text}\n"),
        format!("Thread,Time,Action,Pointer,Size,Stream\n1,0,{text},1,1,1\n"),
    ] {
        // Empty lines are skipped, so an empty text gives no error.
        if let Err(error) = trace::Trace::read_from(contents.as_bytes(), text) {
            texts.add_error(&error.problem);
            texts.add_error(&error);
        }
    }
    for problem in [
        Problem::Io(io_error(text)),
        Problem::Damaged(io_error(text)),
        Problem::Recording(ReadError::Io(io_error(text))),
        Problem::Garbage(text.into()),
        Problem::Number(text.into()),
        Problem::RmmLine(text.into()),
        Problem::Snapshot(text.into()),
    ] {
        texts.add_error(&problem);
    }
    texts.add_error(&text.parse::<Waits>().unwrap_err());
    let header = format!(
        "#{{\"format\":1,\"name\":{json},\"what\":{json},\"peak_reserved_bytes\":{{{json}:1}}}}\na,1,4194304,0\na,2,9437184,0\n"
    );
    let read = trace::Trace::read_from(header.as_bytes(), text).unwrap();
    // The name of a trace without one is that of its file.
    assert_eq!(read.name(), if text.is_empty() { "trace" } else { text }, "a field has the text as it is");
    texts.check_data(&(read.header(), read.header().peers().next(), read.real_run()), bytes_max);
    texts.check_data(&read, bytes_max);
    let tag = Some(text.into());
    let sum = TagSum { tag, allocation_count: 1, allocated_bytes: 1, peak_bytes: 1, left_bytes: 0 };
    texts.check_data(&sum, bytes_max);
    texts.add(&HolderName::Tag(text.into()));
    let setup = Setup { hard_limit: Some(Limit::Bytes(8 << 20)), conf: text.into(), ..Setup::default() };
    texts.check_data(&setup, bytes_max);
    let driver = gpumem_sim::driver(SimConfig::small()).unwrap();
    if let Err(error) = replay(&read, &driver, &setup, |_| ()) {
        texts.add_error(&error);
    }
    let setup = Setup { conf: String::new(), ..setup };
    texts.add_error(&replay(&read, &driver, &setup, |_| ()).unwrap_err());
    for candidate in CANDIDATES {
        let attempt = candidate.attempt(&read, &driver, &setup).unwrap();
        texts.add(&candidate);
        texts.add(&attempt);
        texts.check_data(&attempt, bytes_max);
    }
}

/// The messages of pools whose every name is the text.
fn of_pools(text: &str, texts: &mut Texts) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let (tracking, budget) = (Arc::new(Tracking::new()), Arc::new(Budget::new(40 << 20).named(text)));
    let builder = Pool::builder(&device).name(text).backend(BackendKind::Caching).hard_limit(64 << 20);
    let builder =
        builder.adaptor(tracking.clone()).adaptor(budget.clone()).adaptor(Arc::new(Refuses(text.into())));
    let pool = builder.build().unwrap();
    let (private, scope, tag) =
        (pool.private_named(text, 8 << 20).unwrap(), pool.scope(text), pool.tag(text));
    let part = pool.part(text).unwrap();
    let held =
        [pool.alloc_tagged(16 << 20, &stream, &tag).unwrap(), private.alloc(1 << 20, &stream).unwrap()];
    // Pools with adaptors have none.
    let plain = Pool::builder(&device).name(text).backend(BackendKind::Caching).build().unwrap();
    let growable = plain.growable(1 << 20, &stream).unwrap();

    for size_bytes in [777, 30 << 20, 128 << 20, 1 << 40, u64::MAX - 5] {
        for pool in [&pool, &private, &part] {
            if let Err(error) = pool.alloc(size_bytes, &stream) {
                texts.add_error(&error);
                if let PoolError::TooLarge { origin: Some(origin), .. }
                | PoolError::Refused { origin: Some(origin), .. } = &error
                {
                    texts.add(&**origin);
                    texts.check_data(&**origin, 60 * text.len() + BYTES_MAX);
                }
                if let Some(report) = error.out_of_memory() {
                    texts.add(report);
                    texts.add_debug(report);
                    texts.check_data(
                        &(&report.attempts, &report.growth, &report.holders, &report.unfinished),
                        400 * text.len() + BYTES_MAX,
                    );
                }
            }
        }
    }
    texts.add_error(&pool.sleep_parts([text, "other"], Keep::Nothing).unwrap_err());
    texts.add_error(&pool.set_hard_limit(1).unwrap_err());
    let room = pool.room(1 << 20).tag(&tag).wait().unwrap();
    texts.add_debug(&room);
    for refused in [pool.room(60 << 20).within(Duration::ZERO), pool.room(u64::MAX)] {
        let error = refused.wait().unwrap_err();
        texts.add_error(&error);
        let PoolError::NoRoom(cause) = &error else { panic!("{error}") };
        texts.add_debug(&**cause);
    }
    drop(room);
    let status = pool.status().unwrap();
    assert_eq!(status.tags.first().map(|tag| &*tag.tag), Some(text), "a field has the text as it is");
    texts.add(&status);
    texts.add(&tracking.live());
    texts.add_debug(&(&pool, &private, &scope, &tag, &device, &stream, &growable, &tracking, &budget));
    texts.check_data(&status, 60 * text.len() + BYTES_MAX);
    texts.check_data(&Pool::list(&device), 60 * text.len() + BYTES_MAX);
    texts.check_data(&status.tags, 60 * text.len() + BYTES_MAX);
    texts.check_data(&tracking.live().blocks, 60 * text.len() + BYTES_MAX);
    texts.check_data(&tracking.live(), 60 * text.len() + BYTES_MAX);
    drop(held);
}

/// The errors of options, variables and rules, by parsing the text.
fn of_options(text: &str, texts: &mut Texts) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    for (before, after) in
        [("", ""), ("", ":1"), ("profile:", ""), ("roundup_power2_divisions:", ""), ("hard_limit:", "%")]
    {
        let conf = format!("{before}{text}{after}");
        if let Err(error) = Pool::builder(&device).conf(&conf) {
            texts.add_error(&error);
        }
    }
    for error in [text.parse::<Limit>().err(), text.parse::<BackendKind>().err()] {
        error.iter().for_each(|error| texts.add_error(error));
    }
    texts.add(&FlightRecorder::File(text.into()));
    texts.add_debug(&FlightRecorder::File("flight.trace".into()));
    let spill = Spill::to_host(1 << 30).by_neighbour(1, 1 << 30).then_file(text, 1 << 30);
    texts.add(&spill);
    if let Spill::Host { neighbour: Some(neighbour), file: Some(file), .. } = &spill {
        texts.add(neighbour);
        texts.add(file);
    }
    text.parse::<Rule>().err().iter().for_each(|error| texts.add_error(error));
    let rule = Rule::new(text, gpumem_sim::Effect::Fail(CUresult::CUDA_ERROR_UNKNOWN));
    texts.add(&rule);
    gpumem_sim::driver(SimConfig::small().rule(rule)).err().iter().for_each(|error| texts.add_error(error));
    let shared: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.add(&AccessKind::KernelRead(shared.into()));
    texts.add(&AccessKind::KernelWrite(shared.into()));
    let fault = Finding::Fault {
        kind: FaultKind::Kernel,
        code: CUresult(700),
        text: text.into(),
        allocation: None,
        place: None,
    };
    texts.add(&fault);
    let (block, thread, address) = ([0; 3], [1; 3], Some(7));
    let line = gpumem_sim::SourceLine { file: text.into(), line: 7, inlined_at: None };
    let line = gpumem_sim::SourceLine { inlined_at: Some(Box::new(line.clone())), ..line };
    texts.add(&line);
    texts.add(&KernelPlace {
        kernel: shared.into(),
        line: 3,
        source_line: Some(line.clone()),
        block,
        thread,
        address,
    });
    texts.add(&Finding::Module { call: "cuModuleLoadData", code: CUresult(218), text: text.into() });
    let mut process = ProcessUsage::default();
    (process.name, process.id) = (Some(text.into()), Some(7));
    texts.add(&process);
    texts.add_debug(&KernelSource::cuda(shared, shared));
    texts.add_debug(&gpumem_sim::Kernel::new(shared, |_| Ok(())));
    let shown = gpumem_tests::sys::text::Shown::name(text);
    texts.add(&shown);
    texts.add_debug(&shown);
    let driver = gpumem_sim::driver(
        SimConfig::small().rule(Rule::new("cuInit", gpumem_sim::Effect::Fail(CUresult(1)))),
    )
    .unwrap();
    let report = gpumem_sim::Sim::of(&driver).unwrap().report();
    texts.add(&report);
    texts.add_debug(&report);
}

fn io_error(text: &str) -> std::io::Error {
    std::io::Error::other(text.to_owned())
}

/// Errors made by hand, one of each variant that has text.
fn of_errors(text: &str, texts: &mut Texts) {
    let own = || text.to_owned();
    let path = || PathBuf::from(text);
    for error in [
        LoadError::NoLibrary { reason: own() },
        LoadError::UnknownDriver(own()),
        LoadError::Env(EnvError::UnknownVariable { name: own(), nearest: None }),
        LoadError::Env(EnvError::BadValue { name: "GPUMEM_POOL", value: own(), expected: own() }),
    ] {
        texts.add_error(&error);
    }
    texts.add_error(&EnvError::UnknownVariable { name: own(), nearest: Some("GPUMEM_POOL") });
    for error in [
        RuleError::Malformed { rule: own() },
        RuleError::UnknownCall { call: own(), nearest: Some(own()) },
        RuleError::LackingCall { call: own() },
        RuleError::ZerothCall { call: own() },
        RuleError::NoFailure { call: own() },
        RuleError::BadChance { call: own() },
        RuleError::UnknownDevice { call: own(), device: 1, count: 1 },
    ] {
        texts.add_error(&SimError::Rule(error));
    }
    texts.add_error(&KernelFault::new(own()));
    for error in [
        ConfigError::LimitSyntax { value: own() },
        ConfigError::UnknownKey { key: own(), nearest: None, known: vec!["kind"] },
        ConfigError::NoValue { item: own() },
        ConfigError::BadValue { key: "profile", value: own(), place: own(), expected: "a profile" },
    ] {
        texts.add_error(&PoolError::Config(error));
    }
    let driver = DriverError::check("cuMemAlloc", CUresult::CUDA_ERROR_UNKNOWN).unwrap_err();
    texts.add_error(&driver);
    let kind = MemoryKind::Device;
    for error in [
        PoolError::TooLarge { requested_bytes: 9, device_bytes: 8, origin: None, fallbacks: vec![own(); 3] },
        PoolError::Refused { adaptor: own(), requested_bytes: 1, reason: own(), origin: None },
        PoolError::BeyondMaximum { pool: own(), requested_bytes: 2, maximum_bytes: 1 },
        PoolError::Unsupported(Unsupported::Kind { kind, reason: own() }),
        PoolError::Device(DeviceError::HostAccess { device: own(), what: "cannot", instead: "another" }),
        PoolError::Device(DeviceError::Asleep { pool: own() }),
        PoolError::CannotSleep { pool: own(), reason: "it sleeps", remedy: "wait" },
        PoolError::NotFound { pool: own(), part: own(), parts: vec![own(); 100] },
        PoolError::BadArgument(BadArgument::Overlap {
            from: u64::MAX,
            to: u64::MAX - 1,
            size_bytes: u64::MAX,
        }),
        PoolError::Unsupported(Unsupported::PeerAccess { device: own(), peer: own() }),
        PoolError::SpillFile { size_bytes: 1, reason: own() },
        PoolError::BadArgument(BadArgument::LimitTooSmall { pool: own(), limit_bytes: 1, minimum_bytes: 2 }),
        PoolError::Unsupported(Unsupported::Backend { backend: BackendKind::Native, reason: own() }),
        PoolError::Device(DeviceError::WrongDevice { expected: own(), found: own() }),
        PoolError::Poisoned { pool: own(), address: 1, size_bytes: 1, cause: driver },
        PoolError::Device(DeviceError::Stream(StreamError::Retired)),
        PoolError::Device(DeviceError::Capture(CaptureError::Broken)),
    ] {
        texts.add_error(&error);
        match &error {
            PoolError::Unsupported(cause) => texts.add_error(cause),
            PoolError::BadArgument(cause) => texts.add_error(cause),
            PoolError::Device(cause) => {
                texts.add_error(cause);
                match cause {
                    DeviceError::Stream(cause) => texts.add_error(cause),
                    DeviceError::Capture(cause) => texts.add_error(cause),
                    _ => (),
                }
            }
            _ => (),
        }
    }
    texts.add_error(&SocketError::Io(io_error(text)));
    texts.add_error(&ReadError::Io(io_error(text)));
    let parameters = own();
    for error in [
        ArrayError::Slice { slice: own(), axis: 0, shape: vec![1] },
        ArrayError::WrongDevice { expected: own(), found: own() },
        ArrayError::NoPeerAccess { operation: "dot", device: own(), owner: own(), reason: own() },
        ArrayError::NoSuchKernel { name: own() },
        ArrayError::ArgumentCount { kernel: own(), parameters, expected: 1, found: 2 },
        ArrayError::ArgumentSize {
            kernel: own(),
            index: 0,
            parameter: own(),
            expected_bytes: 4,
            found_bytes: 8,
        },
        ArrayError::Dlpack { field: "shape", problem: own() },
        ArrayError::Cudarc { object: "stream", problem: own() },
        ArrayError::LostAfterKernel {
            kernel: own(),
            error: PoolError::Device(DeviceError::Stream(StreamError::Retired)),
        },
        ArrayError::NoHostAccess { device: own() },
        ArrayError::UnsuitableBlock { size_bytes: 1, needed_bytes: 2, kind: own(), expected: "device" },
        ArrayError::PoolInUse { kind: own() },
    ] {
        texts.add_error(&error);
    }
    for error in [
        CheckpointError::Io { operation: "read", path: path(), source: io_error(text) },
        CheckpointError::Malformed { path: path(), reason: own() },
        CheckpointError::NoSuchTensor { name: text.into() },
        CheckpointError::WrongRank { name: text.into(), expected: 1, shape: vec![1, 2] },
        CheckpointError::InvalidBool { name: text.into(), index: 1, value: 2 },
        CheckpointError::InvalidName { name: text.into(), reason: "it is reserved" },
        CheckpointError::Array { name: text.into(), source: ArrayError::NoSuchKernel { name: own() } },
    ] {
        texts.add_error(&error);
    }
    texts.add_error(
        &AdaptError::Array(ArrayError::NoSuchKernel { name: own() }).within(own()).within(Part::Key(own())),
    );
    // Logs keep their line breaks.
    let mut logs = Texts::default();
    logs.add_error(&ArrayError::Compile { source_name: own(), log: own() });
    logs.add_error(&AdaptError::custom(own()));
    for (name, log) in logs.messages {
        check_letters(name, &log);
        assert!(log.len() < BYTES_MAX, "{name}: {} bytes", log.len());
    }
}

/// The errors of a kernel whose name is the text.
fn of_kernels(text: &str, texts: &mut Texts) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
    let source = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{ ret; }\n";
    if let Err(error) = gpu.compile(&KernelSource::ptx(text, source)) {
        texts.add_error(&error);
    }
    texts.add(&gpu.status().unwrap());
    texts.add_debug(&gpu);
    // What the text leaves of a name that PTX allows.
    let name: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    let name: &'static str = Box::leak(format!("k{name}").into_boxed_str());
    let kernels = Box::leak(Box::new([gpumem_sim::Kernel::new(name, |_| Ok(()))]));
    gpumem_sim::Sim::of(device.driver()).unwrap().register(kernels);
    let source = source.replace("entry k()", &format!("entry {name}()"));
    let module = gpu.compile(&KernelSource::ptx("k", &source)).unwrap();
    let function = module.function(name).unwrap();
    let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    texts.add_debug(&(&function, function.launch(shape)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn messages_keep_to_their_lines_and_bounds(text in hostile()) {
        check_messages_of(&text);
    }
}

/// Rare among the random texts.
#[test]
fn messages_with_an_empty_text() {
    check_messages_of("");
}

fn check_messages_of(text: &str) {
    let mut texts = Texts::default();
    of_pools(text, &mut texts);
    of_adaptors(text, &mut texts);
    of_files(text, &mut texts);
    of_traces(text, &mut texts);
    of_options(text, &mut texts);
    of_errors(text, &mut texts);
    of_kernels(text, &mut texts);
    texts.check();
}

/// `fn main() -> Result<(), Box<dyn Error>>` prints `Debug`: every public error has that of `Display`, and so have result codes.
#[test]
fn debug_prints_the_text_of_display() {
    fn is_display(error: &(impl Error + ?Sized)) {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    assert_eq!(format!("{code:?}"), "CUDA_ERROR_OUT_OF_MEMORY (2): not enough memory");
    let driver = DriverError::check("cuMemAlloc", code).unwrap_err();
    let pool = || PoolError::from(driver);
    is_display(&driver);
    is_display(&LoadError::NoLibrary { reason: "libcuda.so.1: cannot open".into() });
    is_display(&EnvError::UnknownVariable { name: "GPUMEM_POOLS".into(), nearest: None });
    is_display(&RuleError::Malformed { rule: "x".into() });
    is_display(&SimError::TooManyDevices { count: 100 });
    is_display(&KernelFault::new("index 9 of 4"));
    is_display(&ConfigError::LimitSyntax { value: "lots".into() });
    is_display(&pool());
    is_display(&SocketError::Closed);
    is_display(&ReadError::Foreign);
    is_display(&GraphError::CaptureEnded);
    is_display(&ArrayError::from(driver));
    is_display(&AdaptError::custom("no").within("layers").within(3));
    is_display(&CheckpointError::NoSuchTensor { name: "x".into() });
    let report = OutOfMemory::default();
    assert_eq!(format!("{report:?}"), report.to_string());
    let boxed: Box<dyn Error> = LoadError::Impostor.into();
    assert!(format!("{boxed:?}").starts_with("the library found as libcuda"));
    // Errors with a value, which only calls return.
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
    let x = gpumem_tests::array::GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap();
    let rejected: Rejected<_> = x.into_shape((2, 2)).unwrap_err();
    is_display(&rejected);
    fn has_the_rule<V>(error: HostMemoryError<V>) {
        is_display(&error);
    }
    let _: fn(HostMemoryError<Vec<u8>>) = has_the_rule;
}

/// A type that the program can return from `main`, found in the sources, has the rule; and no text of an error contains a field with text
/// from outside as it is.
#[test]
fn no_error_has_rules_of_its_own() {
    let (mut types, mut found_count) = (Vec::new(), 0);
    for file in sources(&gpumem_tests::folder().join("../crates")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let place = file.display();
        for derived in text.split("#[derive(").skip(1) {
            let derives = derived.split(")]").next().unwrap_or_default();
            if derives.contains("thiserror::Error") {
                assert!(
                    !derives.contains("Debug"),
                    "{place}: use `debug_is_display!` instead of deriving `Debug`"
                );
                types.push((place.to_string(), text.contains("debug_is_display!(")));
            }
        }
        for message in text.split("#[error(").skip(1) {
            found_count += 1;
            let Some((message, variant)) = message.split_once(")]") else { continue };
            let fields =
                variant.split_once('{').filter(|(name, _)| name.trim().chars().all(char::is_alphanumeric));
            let Some((_, fields)) = fields else { continue };
            for field in fields.split('}').next().unwrap_or_default().split(['\n', ',']).map(str::trim) {
                let Some((name, kind)) = field.split_once(": ") else { continue };
                let is_text =
                    ["String", "Box<str>", "PathBuf", "io::Error"].iter().any(|text| kind.contains(text));
                let is_raw =
                    [format!("{{{name}}}"), format!("{{{name}:")].iter().any(|form| message.contains(form));
                let is_wrapped = message.contains(&format!("{name} = Shown"));
                assert!(
                    !is_text || !is_raw || is_wrapped,
                    "{place}: show `{name}` through `Shown`: {message}"
                );
            }
        }
    }
    assert!(types.len() >= 12 && found_count > 100, "{} types, {found_count} texts", types.len());
    assert!(types.iter().all(|(_, has_rule)| *has_rule), "{types:?}");
}

/// A public type that prints itself, found in the sources, is printed with hostile text by these tests, or has none to print.
#[test]
fn every_public_type_that_prints_is_tested() {
    let text = format!("name{}", "\n\u{1b}[31m\u{202e}".repeat(3));
    let mut texts = Texts::default();
    of_pools(&text, &mut texts);
    of_adaptors(&text, &mut texts);
    of_files(&text, &mut texts);
    of_traces(&text, &mut texts);
    of_options(&text, &mut texts);
    of_errors(&text, &mut texts);
    of_kernels(&text, &mut texts);
    texts.check();
    // `&(a::b::Type<c::Other>, ..)`: the crate and the name of each type.
    let of_path = |path: &str| {
        let (root, name) = (path.split("::").next()?, path.rsplit("::").next()?);
        root.strip_prefix("gpumem_").map(|root| format!("{root}::{name}"))
    };
    let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let paths = texts.types.iter().flat_map(|name| name.split(|letter| !is_of_path(letter)));
    let printed: BTreeSet<String> = paths.filter_map(of_path).collect();
    let plain: BTreeSet<&str> = WITHOUT_TEXT.iter().flat_map(|(_, names)| names.split_whitespace()).collect();

    let crates = gpumem_tests::folder().join("../crates");
    let printing: BTreeSet<String> = PUBLIC.iter().flat_map(|name| printing_types(&crates, name)).collect();
    assert!(printing.len() > 90, "{printing:#?}");
    let missing: Vec<_> =
        printing.iter().filter(|name| !printed.contains(*name) && !plain.contains(&***name)).collect();
    assert!(missing.is_empty(), "print these with `Texts`, or name them in `WITHOUT_TEXT`: {missing:#?}");
    let stale: Vec<_> =
        plain.iter().filter(|name| !printing.contains(**name) || printed.contains(**name)).collect();
    assert!(stale.is_empty(), "no such type, or it is printed: {stale:#?}");
}

/// The crates whose types a program has.
const PUBLIC: [&str; 8] = ["sys", "sim", "heap", "device", "pool", "trace", "array", "adapt"];

/// Types that print no text of a program, after the reason.
const WITHOUT_TEXT: &[(&str, &str)] = &[
    (
        "numbers",
        "adapt::Fit array::Transfers device::Bytes pool::Limit pool::PoolId \
      device::PeerDevice device::StreamPoint pool::Registration pool::Room pool::RoomFuture pool::SpillableBlock pool::Tail sim::Origin sim::Schedule sys::CudaVersion sys::DriverKind",
    ),
    (
        "numbers and types of elements",
        "adapt::Cu adapt::Diagonal adapt::Feed adapt::FeedStream adapt::Groups adapt::HostAs \
      array::DlpackArray array::GpuCow array::GpuView array::GpuViewMut array::Number array::Out array::Pack array::PackedArray \
      array::UninitArray array::Upload array::Download",
    ),
    (
        "handles of the driver, of devices and streams",
        "array::GpuGraph array::GraphLaunch array::Launched array::LentSlice \
      array::Cublas array::Module pool::Block device::BorrowedHostMemory pool::Capture device::Completion device::Event pool::ForeignCaptures pool::Graph \
      pool::GraphExec device::HostMemory pool::ImportedBlock sim::Sim sys::Driver",
    ),
    (
        "texts of this library",
        "array::GraphError pool::Failures pool::SpillFileReport pool::IgnoredOption pool::KeptBy pool::StepCounters sys::Symbol sys::Variable trace::Frame trace::OpenEnd \
         trace::StreamKind trace::Waits",
    ),
    ("the call stack of the program", "sim::CallStack"),
    ("the kind of access, which is printed here", "sim::Access"),
    ("the kernel, which is printed here", "sim::Launch"),
    ("the error in it, which is printed here", "array::Rejected device::HostMemoryError"),
];

/// The public types of a crate with a `Display` or a `Debug` of their own, or a derived `Debug` and a field with text.
fn printing_types(crates: &std::path::Path, name: &str) -> BTreeSet<String> {
    let files = files_below(crates.join(format!("gpumem-{name}/src")));
    let library: Vec<String> =
        files.iter().map(|file| library_code(&std::fs::read_to_string(file).unwrap())).collect();
    let mut public = BTreeSet::new();
    let mut printing = BTreeSet::new();
    for text in &library {
        for keyword in ["pub struct ", "pub enum ", "pub union "] {
            public.extend(text.split(keyword).skip(1).map(first_name));
        }
        for head in text.split("\nimpl").skip(1).filter_map(|rest| rest.split('{').next()) {
            let printed = head.split_once("Display for ").or_else(|| head.split_once("Debug for "));
            printing.extend(printed.map(|(_, of)| first_name(of)));
        }
        for arguments in text.split("debug_is_display!(").skip(1).filter_map(|rest| rest.split(");").next()) {
            let own = arguments.rsplit(']').next().unwrap_or_default();
            printing.extend(own.split(',').map(first_name));
        }
        // Parameters of the type may precede its name.
        let named = text.split("debug_fields!(").skip(1).map(|rest| {
            rest.split_once(']').map_or(rest, |(parameters, rest)| {
                if parameters.trim_start().starts_with('[') { rest } else { parameters }
            })
        });
        printing.extend(named.map(first_name));
        printing.extend(text.split("named!(").skip(1).map(first_name));
        for derived in text.split("#[derive(").skip(1) {
            let Some((_, item)) = derived.split_once(")]").filter(|(derives, _)| derives.contains("Debug"))
            else {
                continue;
            };
            let mut lines = item.lines().skip_while(|line| line.trim().is_empty() || line.starts_with("#["));
            let head = lines.next().unwrap_or_default();
            let has_body = head.ends_with('{');
            let body = lines.take_while(|line| has_body && *line != "}").chain([head]);
            if body.flat_map(words).any(|word| TEXT_TYPES.contains(&word)) {
                printing.insert(first_name(
                    head.trim_start_matches("pub struct ").trim_start_matches("pub enum "),
                ));
            }
        }
    }
    printing.retain(|found| public.contains(found));
    printing.into_iter().map(|found| format!("{name}::{found}")).collect()
}

/// The types of fields with text.
const TEXT_TYPES: [&str; 6] = ["String", "str", "Path", "PathBuf", "OsStr", "OsString"];

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Code without comments and unit tests.
fn library_code(text: &str) -> String {
    let library = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    library
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The name at the start of the text, after the modules of its path.
fn first_name(text: &str) -> String {
    let path: String = text
        .trim_start()
        .chars()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_' || *letter == ':')
        .collect();
    path.rsplit("::").next().unwrap_or_default().to_owned()
}

/// The library sources below a folder of crates.
fn sources(crates: &std::path::Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src"));
    crates.filter(|path| path.is_dir()).flat_map(files_below).collect()
}

fn files_below(folder: PathBuf) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false => {
                    files.extend(entry.extension().is_some_and(|ending| ending == "rs").then_some(entry))
                }
            }
        }
    }
    files
}
