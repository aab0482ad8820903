//! Children that are forked while the parent uses the driver: every entry refuses them, drops do nothing, and they end by themselves.

use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::entry_points::{ENTRIES, Stage};
use gpumem_tests::harness::fork::{End, Report, in_child};
use gpumem_tests::pool::{
    BackendKind, Block, CaptureMode, Completion, Device, Event, ForeignCaptures, Graph, GraphExec,
    GrowableBlock, HostMemory, Keep, Limit, MemoryKind, MemoryRange, Pool, PoolError, Stream, Tag,
};
use gpumem_tests::sys::{Driver, DriverKind};
use std::cell::RefCell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

cases! {
    /// Each function that reaches the driver or takes a lock returns the error, in pools of every backend.
    fn every_entry_refuses_a_child(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let mut inherited = Inherited::new(driver, backend);
            in_child(End::AtOnce, |report| inherited.refuses_all(report)).unwrap_or_else(|error| panic!("{backend}: {error}"));
            // The parent goes on.
            drop(inherited.pool.alloc(CACHED_BYTES, &inherited.stream).unwrap());
            inherited.finish();
        }
    }

    /// New functions are in this table, by a test of the suite `contexts`. Each entry stops at its first call.
    fn every_entry_point_refuses_a_child(driver: &Driver) {
        for backend in backends(&Device::new(driver, 0).unwrap()) {
            let stage = Stage::new(driver, backend).unwrap();
            let refused = in_child(End::AtOnce, |report| {
                ENTRIES.iter().filter(|(name, _)| *name != "Device: pools").try_for_each(|(name, entry)| {
                    report.step(name);
                    is_refused(name, entry(&stage))
                })
            });
            refused.unwrap_or_else(|error| panic!("{backend}: {error}"));
        }
    }

    /// Locks that other threads hold at the fork are held forever in the child.
    fn a_child_waits_for_no_lock(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let inherited = Inherited::new(driver, backend);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (inherited, is_over) = (&inherited, &is_over);
                    scope.spawn(move || (thread..).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(|turn| inherited.work(turn)));
                }
                let forked: Result<Vec<()>, String> = (0..FORK_COUNT).map(|_| {
                    // A child has the only copy of its parent's stack, and leaves it with the process.
                    in_child(End::AtOnce, |report| inherited.refuses_most(report))
                }).collect();
                is_over.store(true, Ordering::Relaxed);
                forked.unwrap_or_else(|error| panic!("{backend}: {error}"));
            });
            inherited.finish();
        }
    }

    /// A child that never touches the device drops what it has inherited, and its threads, and ends in order and without output: in a
    /// process of its own, because the end runs the handlers of the process.
    fn a_child_ends_in_silence(driver: &Driver) {
        let child = match driver.kind() {
            DriverKind::Sim => "fork::sim::forks_and_ends",
            _ => "fork::cuda::forks_and_ends",
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args([child, "--exact", "--ignored", "--nocapture"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
        assert!(!text.contains("gpumem"), "{text}");
    }

    #[ignore = "run by the case above, as a process of its own"]
    fn forks_and_ends(driver: &Driver) {
        static KEPT: Mutex<Vec<Inherited>> = Mutex::new(Vec::new());
        thread_local!(static OWN: RefCell<Vec<Inherited>> = const { RefCell::new(Vec::new()) });
        let driver = match gpumem_sim::Sim::of(driver) {
            Some(_) => gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(),
            None => driver.clone(),
        };
        for backend in backends(&Device::new(&driver, 0).unwrap()) {
            KEPT.lock().unwrap().push(Inherited::new(&driver, backend));
            OWN.with_borrow_mut(|own| own.push(Inherited::new(&driver, backend)));
            let (dropped, sent) = (Inherited::new(&driver, backend), Inherited::new(&driver, backend));
            let forked = in_child(End::InOrder, move |report| {
                report.step("drops");
                drop(dropped);
                report.step("a thread's drops");
                std::thread::spawn(move || {
                    // Its thread-locals end with the thread.
                    assert!(sent.pool.alloc(CACHED_BYTES, &sent.stream).is_err());
                    drop(sent);
                })
                .join()
                .map_err(|_| "the thread has panicked")?;
                report.step("the end");
                Ok(())
            });
            forked.unwrap_or_else(|error| panic!("{backend}: {error}"));
        }
        // The objects of the moved closures are the parent's too; they end with the process.
    }

    /// Arrays too, and what they allocate.
    fn arrays_refuse_a_child(driver: &Driver) {
        let pool = Pool::new(&Device::new(driver, 0).unwrap()).unwrap();
        let gpu = Gpu::new(&pool).unwrap();
        let mut x = GpuArray::from_slice(&gpu, &[1.0_f32; 1000]).unwrap();
        let large = vec![1.0_f32; 1 << 20];
        let y = GpuArray::from_slice(&gpu, &large).unwrap();
        let unified = GpuArray::from_slice(&gpu.unified(), &[1.0_f32, 2.0]).unwrap();
        assert_eq!(unified.as_slice().unwrap(), [1.0, 2.0]);
        assert_eq!(x.try_add(1.0).unwrap().sum().unwrap().into_scalar().unwrap(), 2000.0);
        in_child(End::AtOnce, |report| {
            let mut refused = |name: &str, outcome: Result<(), String>| {
                report.step(name);
                match outcome {
                    Err(text) if text.contains(REFUSED) => Ok(()),
                    other => Err(format!("{name}: {other:?}")),
                }
            };
            let text = |error: gpumem_tests::array::ArrayError| error.to_string();
            refused("from_slice", GpuArray::from_slice(&gpu, &large).map(drop).map_err(text))?;
            refused("to_vec", x.to_vec().map(drop).map_err(text))?;
            refused("to_vec, staged", y.to_vec().map(drop).map_err(text))?;
            refused("add", x.try_add(1.0).map(drop).map_err(text))?;
            refused("add_assign", x.try_add_assign(1.0).map_err(text))?;
            refused("sum", x.sum().map(drop).map_err(text))?;
            refused("host access", unified.as_slice().map(drop).map_err(text))?;
            refused("here", gpu.here().map(drop).map_err(text))?;
            refused("fork", gpu.fork().map(drop).map_err(text))?;
            refused("synchronize", gpu.synchronize().map_err(text))?;
            refused("capture", gpu.capture(|gpu| GpuArray::<f32, _>::zeros(gpu, 4)).map(drop).map_err(text))?;
            Ok(())
        })
        .unwrap();
        assert_eq!(x.to_vec().unwrap()[0], 1.0);
        in_child(End::AtOnce, move |report| {
            report.step("drops");
            drop((x, y, unified, gpu, pool));
            Ok(())
        })
        .unwrap();
    }
}

/// Every destructor of the layers does nothing in a child, or is one that takes no lock and calls no driver there.
#[test]
fn every_drop_knows_of_children() {
    let crates = ["gpumem-heap", "gpumem-pool", "gpumem-array", "gpumem-adapt", "gpumem-capi"];
    let (mut missing, mut count) = (Vec::new(), 0);
    for file in crates
        .iter()
        .flat_map(|name| sources(&gpumem_tests::folder().join("../crates").join(name).join("src")))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        // Tests have types of their own, indented.
        for after in text.split("\nimpl").skip(1) {
            let (head, body) = after.split_once('{').unwrap();
            let Some((_, name)) = head.split_once("Drop for ") else { continue };
            let body = body.split("\n}").next().unwrap();
            let name = name.split(['<', ' ']).next().unwrap();
            count += 1;
            if !body.contains("fork::is_child()")
                && !PLAIN_DROPS.split([' ', '\n', ':']).any(|plain| plain == name)
            {
                missing.push(format!("{name} in {}", file.display()));
            }
        }
    }
    assert!(count > 60, "{count} destructors found");
    assert!(
        missing.is_empty(),
        "check `fork::is_child()` first, or add it to PLAIN_DROPS with its reason: {missing:#?}"
    );
}

fn sources(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false => found.push(path),
        }
    }
    found.retain(|path| path.file_stem().is_some_and(|name| name != "tests"));
    found
}

/// Destructors that a child may run as they are.
const PLAIN_DROPS: &str = "
    OwnCaches OwnShares Frames Open Owner Outer ReentrancyGuard Request OnThread Arguments TheirCurrent: of the thread alone
    Revoked Word Hint Locked Change Closed Call Using Reservation Burst Copying RingPlace Mended: guards within a call that a child is refused
    ContextGuard CaptureModeGuard SharedStream Place: a call that the driver refuses
    Block HostMemory BorrowedHostMemory Pool Registration Completion Released Chunk Capture Graph GraphExec Slot: the check is one call deeper
    CachingPool DirectBackend Complete Quiet DriverPool Ordered PlainAllocator Slots Flight: held by the state of a pool, which a child keeps
    Trace: its writer knows the process; NewFile Handle: of files and of the compiler
    OwnStreams";

/// Objects of each type, and memory in the thread's cache.
struct Inherited {
    driver: Driver,
    device: Device,
    pool: Pool,
    stream: Stream,
    foreign: Stream,
    event: Event,
    pending: Completion,
    block: Option<Block>,
    large: Option<Block>,
    growable: Option<GrowableBlock>,
    host: Option<HostMemory<Vec<u8>>>,
    graph: Graph,
    exec: GraphExec,
    captures: ForeignCaptures,
    unified: Option<Block>,
    tag: Tag,
}

type Call = fn(&mut Inherited) -> Result<(), PoolError>;
type SharedCall = fn(&Inherited) -> Result<(), PoolError>;
type Silent = fn(&mut Inherited);

/// Calls that each must return [`PoolError::Forked`].
const CALLS: &[(&str, Call)] = &[
    ("a cached size", |my| my.pool.alloc(CACHED_BYTES, &my.stream).map(drop)),
    ("a cached large size", |my| my.pool.alloc(LARGE_BYTES, &my.stream).map(drop)),
    ("a tagged block", |my| my.pool.alloc_tagged(CACHED_BYTES, &my.stream, &my.tag).map(drop)),
    ("a block in a scope", |my| {
        let _scope = my.pool.scope("inner");
        my.pool.alloc(CACHED_BYTES, &my.stream).map(drop)
    }),
    ("an empty block", |my| my.pool.alloc(0, &my.stream).map(drop)),
    ("alloc on a foreign stream", |my| my.pool.alloc(CACHED_BYTES, &my.foreign).map(drop)),
    ("alloc_aligned", |my| my.pool.alloc_aligned(CACHED_BYTES, 1 << 16, &my.stream).map(drop)),
    ("alloc_ready", |my| my.pool.alloc_ready(CACHED_BYTES, 4, &my.stream).map(drop)),
    ("alloc_zeroed", |my| my.pool.alloc_zeroed(CACHED_BYTES, &my.stream).map(drop)),
    ("alloc_up_to", |my| my.pool.alloc_up_to(CACHED_BYTES..=LARGE_BYTES, &my.stream).map(drop)),
    ("growable", |my| my.pool.growable(64 << 20, &my.stream).map(drop)),
    ("grow_to", |my| my.growable.as_mut().map_or(Err(PoolError::Forked), |block| block.grow_to(9 << 20))),
    ("shrink_to", |my| my.growable.as_mut().map_or(Err(PoolError::Forked), |block| block.shrink_to(0))),
    ("status", |my| my.pool.status().map(drop)),
    ("check", |my| {
        my.pool.check().map_err(|text| if text.contains(REFUSED) { PoolError::Forked } else { other() })
    }),
    ("reserve", |my| my.pool.reserve(1 << 20)),
    ("reclaim", |my| my.pool.reclaim().map(drop)),
    ("trim_to", |my| my.pool.trim_to(0).map(drop)),
    ("set_hard_limit", |my| my.pool.set_hard_limit(Limit::Bytes(1 << 30))),
    ("set_soft_limit", |my| my.pool.set_soft_limit(Limit::Bytes(1 << 30))),
    ("reset_peaks", |my| my.pool.reset_peaks()),
    ("private", |my| my.pool.private(64 << 20).map(drop)),
    ("part", |my| my.pool.part("weights").map(drop)),
    ("sleep_parts", |my| my.pool.sleep_parts(["weights"], Keep::OnHost).map(drop)),
    ("wake_parts", |my| my.pool.wake_parts(["weights"]).map(drop)),
    ("sleep", |my| my.pool.sleep(Keep::OnHost).map(drop)),
    ("wake", |my| my.pool.wake().map(drop)),
    ("make_current", |my| my.pool.make_current().map(drop)),
    ("set_default", |my| my.pool.set_default()),
    ("for_device", |_| Pool::for_device(0).map(drop)),
    ("Pool::new", |my| Pool::new(&my.device).map(drop)),
    ("Pool::from_env", |my| Pool::from_env(&my.device).map(drop)),
    ("enable_peer_access", |my| my.pool.enable_peer_access(&my.device)),
    ("copy_from_host", |my| {
        with(&mut my.block, |block, stream| block.copy_from_host(0, &[1_u8], stream), &my.stream)
    }),
    ("copy_to_host", |my| {
        with(&mut my.block, |block, stream| block.copy_to_host(0, &mut [1_u8], stream), &my.stream)
    }),
    ("copy_within", |my| with(&mut my.block, |block, stream| block.copy_within(0..1, 8, stream), &my.stream)),
    ("fill", |my| with(&mut my.block, |block, stream| block.fill(0..4, 0_u8, stream), &my.stream)),
    ("pin_backing", |my| with(&mut my.block, |block, _| block.pin_backing(), &my.stream)),
    ("export", |my| with(&mut my.block, |block, _| block.export().map(drop), &my.stream)),
    ("prefetch", |my| {
        let to = gpumem_tests::pool::Location::Host;
        with(&mut my.unified, |block, stream| block.prefetch(0..16, to, stream), &my.stream)
    }),
    ("advise", |my| {
        let advice = gpumem_tests::pool::MemoryAdvice::ReadMostly(true);
        with(&mut my.unified, |block, _| block.advise(0..16, advice), &my.stream)
    }),
    ("Device::new", |my| Device::new(&my.driver, 0).map(drop)),
    ("Device::count", |my| Device::count(&my.driver).map(drop)),
    ("memory_info", |my| my.device.memory_info().map(drop)),
    ("bind", |my| my.device.bind().map(drop)),
    ("relax", |my| my.device.relax().map(drop)),
    ("Device::synchronize", |my| my.device.synchronize()),
    ("synchronize_point", |my| my.device.synchronize_point(my.stream.latest_point()).map(drop)),
    ("Stream::new", |my| Stream::new(&my.device).map(drop)),
    ("legacy", |my| Stream::legacy(&my.device).map(drop)),
    ("per_thread", |my| Stream::per_thread(&my.device).map(drop)),
    ("Stream::synchronize", |my| my.stream.synchronize()),
    ("Stream::is_complete", |my| my.stream.is_complete().map(drop)),
    ("wait", |my| my.stream.wait(&my.event)),
    ("wait_for", |my| my.stream.wait_for(&my.foreign)),
    ("wait_for_point", |my| my.stream.wait_for_point(my.foreign.latest_point()).map(drop)),
    ("mark", |my| my.stream.mark().map(drop)),
    ("retire", |my| my.foreign.retire()),
    ("run_borrowed", |my| my.stream.run_borrowed("a call", MemoryRange::NONE, |_| ())),
    ("completion", |my| my.stream.completion().wait()),
    ("a completion of the parent", |my| my.pending.is_complete().map(drop)),
    ("a poll of the parent's completion", |my| {
        match std::pin::pin!(&mut my.pending).poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(outcome) => outcome,
            std::task::Poll::Pending => Err(other()),
        }
    }),
    ("Event::new", |my| Event::new(&my.device).map(drop)),
    ("record", |my| my.event.record(&my.stream)),
    ("Event::is_complete", |my| my.event.is_complete().map(drop)),
    ("Event::synchronize", |my| my.event.synchronize()),
    ("Event::completion", |my| my.event.completion().wait()),
    ("register", |my| HostMemory::register(&my.device, vec![0_u8; 4096]).map(drop).map_err(Into::into)),
    ("into_inner", |my| match my.host.take() {
        Some(host) => host.into_inner().map(drop).map_err(Into::into),
        None => Err(PoolError::Forked),
    }),
    ("with_host_memory", |my| my.device.with_host_memory(&mut [0_u8; 64], |_| ())),
    ("begin_capture", |my| my.stream.begin_capture(CaptureMode::Relaxed).map(drop)),
    ("instantiate", |my| my.graph.instantiate().map(drop)),
    ("update", |my| my.exec.update(&my.graph).map(drop)),
    // SAFETY: the graph does not access memory.
    ("launch", |my| unsafe { my.exec.launch(&my.stream) }),
    ("ForeignCaptures::add", |my| my.captures.add(&my.stream).map(drop)),
    ("ForeignCaptures::end", |my| my.captures.end()),
];

/// Calls that return no error, and must end.
const SILENT: &[(&str, Silent)] = &[
    ("record_use", |my| my.block.iter().for_each(|block| block.record_use(&my.foreign))),
    ("free_on", |my| my.block.take().into_iter().for_each(|block| block.free_on(&my.foreign))),
    ("a large block's drop", |my| drop(my.large.take())),
    ("a growable block's drop", |my| drop(my.growable.take())),
    ("host memory's drop", |my| drop(my.host.take())),
    ("scope", |my| _ = my.pool.scope("new").end()),
    ("tag", |my| drop(my.pool.tag("another"))),
    ("pools", |my| assert!(my.device.pools().is_empty())),
    ("register_reclaimable", |my| drop(my.device.register_reclaimable(&Arc::new(Nothing)))),
    ("default_of", |_| assert!(Pool::default_of(0).is_none())),
    ("Debug", |my| drop(format!("{:?} {:?} {:?}", my.pool, my.device, my.stream))),
    ("expect", |my| drop(ForeignCaptures::expect(&my.device))),
    ("clones", |my| drop((my.pool.clone(), my.stream.clone(), my.device.clone()))),
];

struct Nothing;
impl gpumem_tests::pool::Reclaimable for Nothing {
    fn purge(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

impl Inherited {
    fn new(driver: &Driver, backend: BackendKind) -> Self {
        let device = Device::new(driver, 0).unwrap();
        let pool = Pool::builder(&device).backend(backend).hard_limit(256 << 20).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let foreign = Stream::legacy(&device).unwrap();
        let event = Event::new(&device).unwrap();
        event.record(&stream).unwrap();
        for size_bytes in [CACHED_BYTES, LARGE_BYTES] {
            (0..3).for_each(|_| drop(pool.alloc(size_bytes, &stream).unwrap()));
        }
        let [block, large] =
            [CACHED_BYTES, LARGE_BYTES].map(|size_bytes| pool.alloc(size_bytes, &stream).ok());
        let mut growable = pool.growable(64 << 20, &stream).ok();
        growable.iter_mut().for_each(|block| block.grow_to(4 << 20).unwrap());
        let unified = Pool::builder(&device).kind(MemoryKind::Unified).build();
        let unified = unified.and_then(|pool| pool.alloc(1 << 20, &stream)).ok();
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        let graph = capture.end().unwrap();
        let exec = graph.instantiate().unwrap();
        // Found to be complete only once someone asks.
        let pending = stream.completion();
        let host = HostMemory::register(&device, vec![0_u8; 1 << 16]).ok();
        let captures = ForeignCaptures::expect(&device);
        captures.end().unwrap();
        let (driver, tag) = (driver.clone(), pool.tag("inherited"));
        Self {
            driver,
            device,
            pool,
            stream,
            foreign,
            event,
            pending,
            block,
            large,
            growable,
            host,
            graph,
            exec,
            captures,
            unified,
            tag,
        }
    }

    fn refuses_all(&mut self, report: &mut Report) -> Result<(), String> {
        for (name, call) in CALLS {
            report.step(name);
            is_refused(name, call(self))?;
        }
        for (name, call) in SILENT {
            report.step(name);
            call(self);
        }
        Ok(())
    }

    /// The calls that take a shared reference: other threads of the parent have some.
    fn refuses_most(&self, report: &mut Report) -> Result<(), String> {
        for size_bytes in [CACHED_BYTES, LARGE_BYTES, 100, 20 << 20] {
            report.step("alloc");
            is_refused("alloc", self.pool.alloc(size_bytes, &self.stream).map(drop))?;
        }
        let calls: [(&str, SharedCall); 16] = [
            ("status", |my| my.pool.status().map(drop)),
            ("trim_to", |my| my.pool.trim_to(0).map(drop)),
            ("set_hard_limit", |my| my.pool.set_hard_limit(Limit::Bytes(1 << 30))),
            ("Pool::new", |my| Pool::new(&my.device).map(drop)),
            ("Device::new", |my| Device::new(&my.driver, 0).map(drop)),
            ("Device::synchronize", |my| my.device.synchronize()),
            ("Stream::new", |my| Stream::new(&my.device).map(drop)),
            ("Stream::synchronize", |my| my.stream.synchronize()),
            ("wait_for", |my| my.stream.wait_for(&my.foreign)),
            ("mark", |my| my.stream.mark().map(drop)),
            ("record", |my| my.event.record(&my.stream)),
            ("completion", |my| my.stream.completion().wait()),
            ("run_borrowed", |my| my.stream.run_borrowed("a call", MemoryRange::NONE, |_| ())),
            ("begin_capture", |my| my.stream.begin_capture(CaptureMode::Relaxed).map(drop)),
            ("register", |my| HostMemory::register(&my.device, vec![0_u8; 64]).map(drop).map_err(Into::into)),
            ("alloc_tagged", |my| my.pool.alloc_tagged(CACHED_BYTES, &my.stream, &my.tag).map(drop)),
        ];
        for (name, call) in calls {
            report.step(name);
            is_refused(name, call(self))?;
        }
        report.step("drops");
        drop((self.pool.scope("x"), self.pool.tag("y"), self.pool.clone(), self.stream.clone()));
        drop(self.device.pools());
        Ok(())
    }

    /// The work of a thread of the parent. Captures of other threads may refuse it.
    fn work(&self, turn: u64) {
        let other = Stream::new(&self.device);
        match (turn % 8, other) {
            (0, _) => drop(self.pool.status()),
            (1, _) => drop(self.pool.trim_to(0)),
            (2, Ok(other)) => drop((other.wait_for(&self.stream), other.mark(), other.synchronize())),
            (3, _) => {
                drop(Pool::new(&self.device).and_then(|pool| pool.alloc(1 << 20, &self.stream).map(drop)))
            }
            (4, Ok(other)) => drop(other.completion().wait()),
            (5, _) => {
                let _scope = self.pool.scope(&format!("scope {}", turn % 50));
                drop(self.pool.alloc(CACHED_BYTES, &self.stream));
            }
            (6, _) => drop((self.device.pools(), HostMemory::register(&self.device, vec![0_u8; 4096]))),
            (_, Ok(other)) => {
                for size_bytes in [300, 5000, 70_000, LARGE_BYTES, 9 << 20] {
                    let block = self.pool.alloc(size_bytes, &self.stream);
                    block.iter().for_each(|block| block.record_use(&other));
                    drop((block, self.pool.alloc(size_bytes + turn % 4096, &other)));
                }
            }
            _ => {}
        }
    }

    /// The end in the parent.
    fn finish(self) {
        self.device.synchronize().unwrap();
    }
}

fn with<R>(
    block: &mut Option<Block>,
    work: impl FnOnce(&mut Block, &Stream) -> Result<R, PoolError>,
    stream: &Stream,
) -> Result<R, PoolError> {
    block.as_mut().map_or(Err(PoolError::Forked), |block| work(block, stream))
}

fn is_refused(name: &str, outcome: Result<(), PoolError>) -> Result<(), String> {
    match outcome {
        Err(PoolError::Forked) => Ok(()),
        other => Err(format!("{name}: {other:?}")),
    }
}

/// An error that is not the expected one.
fn other() -> PoolError {
    PoolError::NotTimed
}

/// A part of the error's text.
const REFUSED: &str = "forked: start workers with spawn";
const CACHED_BYTES: u64 = 4096;
/// Beyond the size classes.
const LARGE_BYTES: u64 = 3 << 20;
const FORK_COUNT: usize = 25;
