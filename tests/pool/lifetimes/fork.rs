//! Children that are forked while the parent uses the driver: every entry refuses them, drops do nothing, and they end by themselves.

use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::entry_points::{ENTRIES, Stage};
use gpumem_tests::harness::fork::{End, Report, in_child};
use gpumem_tests::pool::adaptor::{Guard, Trace, Tracking};
use gpumem_tests::pool::{
    BackendKind, Block, Capture, CaptureMode, Completion, Device, DeviceError, Event, ExportedBlock,
    ForeignCaptures, Graph, GraphExec, GrowableBlock, HostMemory, ImportedBlock, Keep, Limit, Location,
    MemoryAdvice, MemoryKind, MemoryRange, Pool, PoolError, Reclaimable, Registration, SocketError, Stream,
    Tag,
};
use gpumem_tests::sys::types::CUdevice_attribute;
use gpumem_tests::sys::{Driver, DriverKind};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

cases! {
    /// Each function that reaches the driver or takes a lock returns the error, in pools of every backend: each in a child of its own, so
    /// that no earlier call answers for it.
    fn every_entry_refuses_a_child(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let mut wrong = Vec::new();
        for backend in backends(&device) {
            let mut inherited = Inherited::new(driver, backend);
            for (name, call) in CALLS {
                let refused = in_child(End::AtOnce, |_| is_refused(name, call(&mut inherited)));
                wrong.extend(refused.err().map(|error| format!("{backend}, {name}: {error}")));
            }
            // One after another: some calls free what others name.
            let ended = in_child(End::AtOnce, |report| {
                SILENT.iter().for_each(|(name, call)| {
                    report.step(name);
                    call(&mut inherited);
                });
                Ok(())
            });
            wrong.extend(ended.err().map(|error| format!("{backend}: {error}")));
            // The parent goes on.
            drop(inherited.pool.alloc(CACHED_BYTES, &inherited.stream).unwrap());
            inherited.finish();
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// New functions are in this table, by a test of the suite `contexts`. Each entry stops at its first call; the later ones have rows in
    /// [`CALLS`] or [`SILENT`].
    fn every_entry_point_refuses_a_child(driver: &Driver) {
        let mut wrong = Vec::new();
        for backend in backends(&Device::new(driver, 0).unwrap()) {
            let stage = Stage::new(driver, backend).unwrap();
            for (name, entry) in ENTRIES.iter().filter(|(name, _)| *name != "Pool: list") {
                let refused = in_child(End::AtOnce, |_| is_refused(name, entry(&stage)));
                wrong.extend(refused.err().map(|error| format!("{backend}, {name}: {error}")));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// A child neither ends nor joins the captures of its parent.
    fn a_capture_refuses_a_child(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let mut capture = Some(Capture::begin(&stream, CaptureMode::Relaxed).unwrap());
            type Captured = fn(&Stream, &Pool, &mut Option<Capture>) -> Result<(), PoolError>;
            let calls: [(&str, Captured); 4] = [
                ("is_capturing", |stream, _, _| stream.is_capturing().map(drop).map_err(Into::into)),
                ("alloc", |stream, pool, _| pool.alloc(CACHED_BYTES, stream).map(drop)),
                ("mark", |stream, _, _| stream.mark().map(drop).map_err(Into::into)),
                ("end", |_, _, capture| capture.take().map_or(Err(other()), |capture| capture.end().map(drop))),
            ];
            for (name, call) in calls {
                let refused = in_child(End::AtOnce, |_| is_refused(name, call(&stream, &pool, &mut capture)));
                refused.unwrap_or_else(|error| panic!("{backend}, {name}: {error}"));
            }
            in_child(End::AtOnce, |_| {
                drop(capture.take());
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{backend}: {error}"));
            capture.take().unwrap().end().unwrap();
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
            DriverKind::Sim => "lifetimes::fork::sim::forks_and_ends",
            _ => "lifetimes::fork::cuda::forks_and_ends",
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
            let mut wrong = Vec::new();
            let mut refused = |name: &str, outcome: Result<(), String>| {
                report.step(name);
                if !outcome.as_ref().is_err_and(|text| text.contains(REFUSED)) {
                    wrong.push(format!("{name}: {outcome:?}"));
                }
            };
            let text = |error: gpumem_tests::array::ArrayError| error.to_string();
            refused("from_slice", GpuArray::from_slice(&gpu, &large).map(drop).map_err(text));
            refused("to_vec", x.to_vec().map(drop).map_err(text));
            refused("to_vec, staged", y.to_vec().map(drop).map_err(text));
            refused("add", x.try_add(1.0).map(drop).map_err(text));
            refused("add_assign", x.try_add_assign(1.0).map_err(text));
            refused("sum", x.sum().map(drop).map_err(text));
            refused("host access", unified.as_slice().map(drop).map_err(text));
            refused("here", gpu.here().map(drop).map_err(text));
            refused("fork", gpu.fork().map(drop).map_err(text));
            refused("synchronize", gpu.synchronize().map_err(text));
            refused("capture", gpu.capture(|gpu| GpuArray::<f32, _>::zeros(gpu, 4)).map(drop).map_err(text));
            if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
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

/// A function that an entry calls after its first call has a row of its own.
#[test]
fn every_function_of_the_entries_has_a_row() {
    let names = CALLS.iter().map(|(name, _)| *name).chain(SILENT.iter().map(|(name, _)| *name));
    let rows: Vec<&str> = names.flat_map(str::split_whitespace).collect();
    let (mut missing, mut all) = (Vec::new(), BTreeSet::new());
    for name in ENTRIES.iter().map(|(name, _)| *name).filter(|name| !name.contains(" that ")) {
        // `Block and ExportedBlock: send receive`: the types, and their functions.
        let (mut types, mut named) = (Vec::new(), Vec::new());
        for word in name.split_whitespace() {
            let is_type = word.ends_with(':') || word.starts_with(|letter: char| letter.is_ascii_uppercase());
            match word {
                "and" => {}
                _ if is_type => {
                    if !std::mem::take(&mut named).is_empty() {
                        types.clear();
                    }
                    types.push(word.trim_end_matches(':'));
                }
                function => {
                    named.push(function);
                    let forms = types.iter().map(|type_name| format!("{type_name}::{function}"));
                    forms.for_each(|form| {
                        all.insert(form.clone());
                        if !rows.contains(&&*form) && !OF_OTHERS.contains(&&*form) {
                            missing.push(form);
                        }
                    });
                }
            }
        }
    }
    assert!(all.len() > 90, "{all:?}");
    assert!(missing.is_empty(), "no row in CALLS or SILENT for {missing:#?}");
    let stale: Vec<_> =
        OF_OTHERS.iter().filter(|form| rows.contains(form) || !all.contains(**form)).collect();
    assert!(stale.is_empty(), "no such function, or it has a row: {stale:#?}");
}

/// Every destructor of the layers does nothing in a child, or is one that takes no lock and calls no driver there.
#[test]
fn every_drop_knows_of_children() {
    let crates = [
        "gpumem-base",
        "gpumem-heap",
        "gpumem-device",
        "gpumem-pool",
        "gpumem-trace",
        "gpumem-array",
        "gpumem-adapt",
        "gpumem-capi",
    ];
    let mut listed: Vec<&str> = PLAIN_DROPS.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
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
            let name = format!("{}::{name}", file.file_stem().unwrap().display());
            count += 1;
            if body.contains("fork::is_child()") {
                continue;
            }
            match listed.iter().position(|plain| *plain == name) {
                Some(place) => drop(listed.swap_remove(place)),
                None => missing.push(format!("{name} in {}", file.display())),
            }
        }
    }
    assert!(count > 60, "{count} destructors found");
    assert!(
        missing.is_empty(),
        "check `fork::is_child()` first, or add it to PLAIN_DROPS with its reason: {missing:#?}"
    );
    assert!(listed.is_empty(), "no such destructor, or it checks `fork::is_child()`: {listed:#?}");
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

/// Destructors that a child may run as they are, as `file::Type`, after the reason.
const PLAIN_DROPS: &[(&str, &str)] = &[
    (
        "of the thread alone",
        "thread_table::OwnCaches tags::OwnShares frames::Frames frames::Open foreign::OpenUse replay::Running report::Outer catch_panic::ReentrancyGuard deadline::RequestScope recording::OnThread launch::Arguments cudarc::TheirCurrent users::UserOwner",
    ),
    (
        "guards within a call that a child is refused",
        "biased_lock::Revoked biased_lock::Word spin_mutex::Hint blocks::LockedShard sleep_state::SleepChange calls::Closed calls::Call handles::Using limit::BudgetShare block::Settled turn::Turn workers::Burst workers::Copying staging::RingPlace host_memory::Mended",
    ),
    (
        "a call that the driver refuses",
        "context::ContextGuard context::CaptureModeGuard cudarc::SharedStream cudarc::SlicePlace",
    ),
    (
        "the check is one call deeper",
        "block::Block host_memory::HostMemory host_memory::BorrowedHostMemory reclaim::Registration completion::Completion graph_memory::Released graph_memory::Chunk graph::Capture graph::Graph graph::GraphExec streams::OwnStreams streams::Streams",
    ),
    (
        "held by the state of a pool, which a child keeps",
        "caching_pool::CachingPool direct::DirectBackend driver_pool::DriverPool ordered::Ordered none::PlainAllocator slots::Slots flight::Flight",
    ),
    ("an atomic number alone", "block::SpillPin spill::Restored"),
    ("its writer knows the process", "trace::Trace"),
    ("of files and of the compiler", "save::NewFile nvrtc::NvrtcProgram"),
];

/// Objects of each type, and memory in the thread's cache. The optional ones are taken by a call, except that only `caching` has blocks
/// that grow.
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
    unified: Block,
    tag: Tag,
    /// Freed by its parts.
    raw: Option<Block>,
    timed: [Event; 2],
    pinned: Pool,
    adapted: Pool,
    guard: Arc<Guard>,
    tracking: Arc<Tracking>,
}

type Call = fn(&mut Inherited) -> Result<(), PoolError>;
type SharedCall = fn(&Inherited) -> Result<(), PoolError>;
type Silent = fn(&mut Inherited);

/// Calls that each must return `DeviceError::Forked`. A name begins with the function, as `ENTRIES` names it.
const CALLS: &[(&str, Call)] = &[
    ("Pool::alloc a cached size", |my| my.pool.alloc(CACHED_BYTES, &my.stream).map(drop)),
    ("Pool::alloc a cached large size", |my| my.pool.alloc(LARGE_BYTES, &my.stream).map(drop)),
    ("Pool::alloc in a scope", |my| {
        let _scope = my.pool.scope("inner");
        my.pool.alloc(CACHED_BYTES, &my.stream).map(drop)
    }),
    ("Pool::alloc an empty block", |my| my.pool.alloc(0, &my.stream).map(drop)),
    ("Pool::alloc on a foreign stream", |my| my.pool.alloc(CACHED_BYTES, &my.foreign).map(drop)),
    ("Pool::alloc of pinned memory", |my| my.pinned.alloc(CACHED_BYTES, &my.stream).map(drop)),
    ("adaptors::alloc", |my| my.adapted.alloc(CACHED_BYTES, &my.stream).map(drop)),
    ("Pool::alloc_tagged", |my| my.pool.alloc_tagged(CACHED_BYTES, &my.stream, &my.tag).map(drop)),
    ("Pool::alloc_aligned", |my| my.pool.alloc_aligned(CACHED_BYTES, 1 << 16, &my.stream).map(drop)),
    ("Pool::alloc_ready", |my| my.pool.alloc_ready(CACHED_BYTES, 4, &my.stream).map(drop)),
    ("Pool::alloc_zeroed", |my| my.pool.alloc_zeroed(CACHED_BYTES, &my.stream).map(drop)),
    ("Pool::alloc_up_to", |my| my.pool.alloc_up_to(CACHED_BYTES..=LARGE_BYTES, &my.stream).map(drop)),
    ("GrowableBlock::growable", |my| my.pool.growable(64 << 20, &my.stream).map(drop)),
    ("GrowableBlock::grow_to", |my| my.with_growable(|block| block.grow_to(9 << 20))),
    ("GrowableBlock::shrink_to", |my| my.with_growable(|block| block.shrink_to(0))),
    ("Pool::status", |my| my.pool.status().map(drop)),
    ("Pool::reserved_ranges", |my| my.pool.reserved_ranges().map(drop)),
    ("Pool::spill", |my| my.pool.spill(LARGE_BYTES).map(drop)),
    ("Pool::without_moves", |my| my.pool.without_moves(|| my.pool.alloc(1000, &my.stream)).map(drop)),
    ("Pool::room Room::wait", |my| my.pool.room(1 << 20).wait().map(drop)),
    ("Room::within", |my| my.pool.room(1 << 20).within(Duration::ZERO).wait().map(drop)),
    ("Room::try_now", |my| my.pool.room(1 << 20).try_now().map(drop)),
    ("Pool::explain_refusal", |my| my.pool.explain_refusal(1 << 20).map(drop)),
    ("Pool::check", |my| {
        my.pool.check().map_err(|text| {
            if text.contains(REFUSED) { PoolError::Device(DeviceError::Forked) } else { other() }
        })
    }),
    ("Pool::reserve", |my| my.pool.reserve(1 << 20)),
    ("Pool::reclaim", |my| my.pool.reclaim().map(drop)),
    ("Pool::trim_to", |my| my.pool.trim_to(0).map(drop)),
    ("Pool::set_hard_limit", |my| my.pool.set_hard_limit(Limit::Bytes(1 << 30))),
    ("Pool::set_soft_limit", |my| my.pool.set_soft_limit(Limit::Bytes(1 << 30))),
    ("Pool::reset_peaks", |my| my.pool.reset_peaks()),
    ("Pool::private", |my| my.pool.private(64 << 20).map(drop)),
    ("Pool::private_named", |my| my.pool.private_named("scratch", 64 << 20).map(drop)),
    ("Pool::part", |my| my.pool.part("weights").map(drop)),
    ("Pool::sleep_parts", |my| my.pool.sleep_parts(["weights"], Keep::OnHost).map(drop)),
    ("Pool::wake_parts", |my| my.pool.wake_parts(["weights"]).map(drop)),
    ("Pool::sleep", |my| my.pool.sleep(Keep::OnHost).map(drop)),
    ("Pool::wake", |my| my.pool.wake().map(drop)),
    ("Pool::make_current", |my| my.pool.make_current().map(drop)),
    ("Pool::set_default", |my| my.pool.set_default()),
    ("Pool::for_device", |_| Pool::for_device(0).map(drop)),
    ("Pool::new", |my| Pool::new(&my.device).map(drop)),
    ("Pool::build Pool::builder", |my| Pool::builder(&my.device).build().map(drop)),
    ("Pool::conf Pool::builder", |my| Pool::builder(&my.device).conf("growth_slack:0")?.build().map(drop)),
    ("Trace::shared", |_| {
        let path = std::env::temp_dir().join("gpumem-fork-%p.trace");
        match Trace::shared(path, None) {
            Err(error) if error.to_string().contains(REFUSED) => Err(DeviceError::Forked.into()),
            _ => Err(other()),
        }
    }),
    ("Pool::from_env", |my| Pool::from_env(&my.device).map(drop)),
    ("Pool::enable_peer_access", |my| my.pool.enable_peer_access(&my.device)),
    ("Pool::peer_access", |my| {
        Pool::builder(&my.device).peer_access(std::slice::from_ref(&my.device)).build().map(drop)
    }),
    ("Block::copy_from_host", |my| my.with_block(|block, stream| block.copy_from_host(0, &[1_u8], stream))),
    ("Block::copy_to_host", |my| my.with_block(|block, stream| block.copy_to_host(0, &mut [1_u8], stream))),
    ("Block::copy_within", |my| my.with_block(|block, stream| block.copy_within(0..1, 8, stream))),
    ("Block::copy_from", |my| {
        let source = my.large.take().ok_or_else(other)?;
        my.with_block(|block, stream| block.copy_from(0, &source, 0..8, stream))
    }),
    ("Block::fill", |my| my.with_block(|block, stream| block.fill(0..4, 0_u8, stream))),
    ("Block::pin_backing", |my| my.with_block(|block, _| block.pin_backing())),
    ("Block::export", |my| my.with_block(|block, _| block.export().map(drop))),
    #[cfg(target_os = "linux")]
    ("Block::send", |my| {
        let (here, _there) = UnixStream::pair().expect("the system has sockets");
        my.with_block(|block, _| match block.send(&here) {
            Err(SocketError::Pool(error)) => Err(error),
            _ => Err(other()),
        })
    }),
    #[cfg(target_os = "linux")]
    ("ImportedBlock::new", |my| {
        ImportedBlock::new(&my.device, ExportedBlock::new(Vec::new(), 0, 0)).map(drop)
    }),
    ("Block::prefetch", |my| my.unified.prefetch(0..16, Location::Host, &my.stream)),
    ("Block::advise", |my| my.unified.advise(0..16, MemoryAdvice::ReadMostly(true))),
    ("Device::new", |my| Device::new(&my.driver, 0).map(drop).map_err(Into::into)),
    ("Device::count", |my| Device::count(&my.driver).map(drop).map_err(Into::into)),
    ("Device::attribute", |my| {
        my.device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE).map(drop).map_err(Into::into)
    }),
    ("Device::memory_info", |my| my.device.memory_info().map(drop).map_err(Into::into)),
    ("Device::bind", |my| my.device.bind().map(drop).map_err(Into::into)),
    ("Device::relax", |my| my.device.relax().map(drop).map_err(Into::into)),
    ("Device::synchronize", |my| my.device.synchronize().map_err(Into::into)),
    ("Device::synchronize_point", |my| {
        my.device.synchronize_point(my.stream.latest_point()).map(drop).map_err(Into::into)
    }),
    ("Stream::new", |my| Stream::new(&my.device).map(drop).map_err(Into::into)),
    ("Stream::build Stream::priority Stream::no_waits", |my| {
        Stream::builder(&my.device).priority(-1).no_waits().build().map(drop).map_err(Into::into)
    }),
    ("Stream::legacy", |my| Stream::legacy(&my.device).map(drop).map_err(Into::into)),
    ("Stream::per_thread", |my| Stream::per_thread(&my.device).map(drop).map_err(Into::into)),
    // SAFETY: the stream is alive as long as `Inherited`.
    ("Stream::from_raw", |my| unsafe {
        Stream::from_raw(&my.device, my.stream.raw()).map(drop).map_err(Into::into)
    }),
    // SAFETY: the default stream is alive as long as the context.
    ("Stream::from_raw_long_lived", |my| unsafe {
        Stream::from_raw_long_lived(&my.device, core::ptr::null_mut()).map(drop).map_err(Into::into)
    }),
    // SAFETY: the default stream is alive as long as the context.
    ("Stream::from_raw_with_owner", |my| unsafe {
        Stream::from_raw_with_owner(&my.device, core::ptr::null_mut(), ()).map(drop).map_err(Into::into)
    }),
    // SAFETY: the default stream is alive as long as the context.
    ("Stream::wrap", |my| unsafe {
        Stream::builder(&my.device).wrap(core::ptr::null_mut()).map(drop).map_err(Into::into)
    }),
    // SAFETY: the default stream is alive as long as the context.
    ("Stream::wrap_long_lived", |my| unsafe {
        Stream::builder(&my.device).wrap_long_lived(core::ptr::null_mut()).map(drop).map_err(Into::into)
    }),
    ("Stream::synchronize", |my| my.stream.synchronize().map_err(Into::into)),
    ("Stream::is_complete", |my| my.stream.is_complete().map(drop).map_err(Into::into)),
    ("Event::wait", |my| my.stream.wait(&my.event).map_err(Into::into)),
    ("Stream::wait_for", |my| my.stream.wait_for(&my.foreign).map_err(Into::into)),
    ("Stream::wait_for_point", |my| {
        my.stream.wait_for_point(my.foreign.latest_point()).map(drop).map_err(Into::into)
    }),
    ("Stream::wait_for_point_outside_captures", |my| {
        my.stream.wait_for_point_outside_captures(my.foreign.latest_point()).map(drop).map_err(Into::into)
    }),
    ("Stream::mark", |my| my.stream.mark().map(drop).map_err(Into::into)),
    ("Stream::retire", |my| my.foreign.retire().map_err(Into::into)),
    ("Stream::run_borrowed", |my| {
        my.stream.run_borrowed("a call", MemoryRange::NONE, |_| ()).map_err(Into::into)
    }),
    ("Stream::completion Completion::wait", |my| my.stream.completion().wait().map_err(Into::into)),
    ("Completion::is_complete of the parent", |my| my.pending.is_complete().map(drop).map_err(Into::into)),
    ("Completion::poll of the parent", |my| {
        match std::pin::pin!(&mut my.pending).poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(outcome) => outcome.map_err(Into::into),
            std::task::Poll::Pending => Err(other()),
        }
    }),
    ("Event::new", |my| Event::new(&my.device).map(drop).map_err(Into::into)),
    ("Event::with_timing", |my| Event::with_timing(&my.device).map(drop).map_err(Into::into)),
    ("Event::record", |my| my.event.record(&my.stream).map_err(Into::into)),
    ("Event::is_complete", |my| my.event.is_complete().map(drop).map_err(Into::into)),
    ("Event::synchronize", |my| my.event.synchronize().map_err(Into::into)),
    ("Event::elapsed_ms_since", |my| {
        my.timed[1].elapsed_ms_since(&my.timed[0]).map(drop).map_err(Into::into)
    }),
    ("Event::completion Completion::wait", |my| my.event.completion().wait().map_err(Into::into)),
    ("HostMemory::register", |my| {
        HostMemory::register(&my.device, vec![0_u8; 4096]).map(drop).map_err(Into::into)
    }),
    ("HostMemory::register_read_only", |my| {
        HostMemory::register_read_only(&my.device, vec![0_u8; 4096]).map(drop).map_err(Into::into)
    }),
    ("HostMemory::pageable", |my| {
        HostMemory::pageable(&my.device, vec![0_u8; 4096]).map(drop).map_err(Into::into)
    }),
    ("HostMemory::into_inner", |my| match my.host.take() {
        Some(host) => host.into_inner().map(drop).map_err(Into::into),
        None => Err(other()),
    }),
    ("Device::with_host_memory", |my| {
        my.device.with_host_memory(&mut [0_u8; 64], |_| ()).map_err(Into::into)
    }),
    ("Device::with_host_memory_read_only", |my| {
        my.device.with_host_memory_read_only(&[0_u8; 64], |_| ()).map_err(Into::into)
    }),
    ("Device::with_host_memory_pageable", |my| {
        my.device.with_host_memory_pageable(&mut [0_u8; 64], |_| ()).map_err(Into::into)
    }),
    ("Graph::begin", |my| Capture::begin(&my.stream, CaptureMode::Relaxed).map(drop)),
    ("Graph::instantiate", |my| my.graph.instantiate().map(drop)),
    ("Graph::update", |my| my.exec.update(&my.graph).map(drop)),
    // SAFETY: the graph does not access memory.
    ("Graph::launch", |my| unsafe { my.exec.launch(&my.stream) }),
    ("ForeignCaptures::add", |my| my.captures.add(&my.stream).map(drop)),
    ("ForeignCaptures::end", |my| my.captures.end()),
];

/// Calls that return no error, and must end.
const SILENT: &[(&str, Silent)] = &[
    ("Pool::record_use", |my| my.block.iter().for_each(|block| block.record_use(&my.foreign))),
    ("Block::free_on", |my| my.block.take().into_iter().for_each(|block| block.free_on(&my.foreign))),
    ("Block::into_raw Block::from_raw Block::free_completed", |my| {
        let raw = my.raw.take().map(Block::into_raw);
        // SAFETY: the raw block came from `into_raw`, and no work uses it.
        raw.into_iter().for_each(|raw| unsafe { Block::from_raw(raw).free_completed() });
    }),
    ("the drop of a large block", |my| drop(my.large.take())),
    ("the drop of a growable block", |my| drop(my.growable.take())),
    ("the drop of host memory", |my| drop(my.host.take())),
    ("Pool::scope Pool::end", |my| _ = my.pool.scope("new").end()),
    ("Pool::tag", |my| drop(my.pool.tag("another"))),
    ("Pool::is_asleep", |my| _ = my.pool.is_asleep()),
    // Without an open capture it asks nobody.
    ("Stream::is_capturing", |my| assert!(!my.stream.is_capturing().unwrap())),
    ("Stream::point Stream::latest_point", |my| _ = (my.stream.point(), my.stream.latest_point())),
    ("Pool::list", |my| assert!(Pool::list(&my.device).is_empty())),
    ("Registration::new", |my| drop(Registration::new(&my.device, &Arc::new(Nothing)))),
    ("Pool::default_of", |_| assert!(Pool::default_of(0).is_none())),
    ("adaptors::settle adaptors::live", |my| drop((my.guard.settle(), my.tracking.live()))),
    ("Debug", |my| drop(format!("{:?} {:?} {:?}", my.pool, my.device, my.stream))),
    ("ForeignCaptures::expect ForeignCaptures::expect_more", |my| {
        ForeignCaptures::expect(&my.device).expect_more();
        my.captures.expect_more();
    }),
    ("clones", |my| drop((my.pool.clone(), my.stream.clone(), my.device.clone()))),
];

/// Functions with a case of their own, and those of objects whose constructor is refused.
const OF_OTHERS: &[&str] = &[
    // `a_capture_refuses_a_child`.
    "Graph::end",
    // An accessor of the guard of `Pool::make_current`.
    "Pool::pool",
    // They only use the socket; what they take and give comes from functions with rows.
    "ExportedBlock::send",
    "ExportedBlock::receive",
    "ImportedBlock::receive",
];

struct Nothing;
impl Reclaimable for Nothing {
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
        let [block, large, raw] = [CACHED_BYTES, LARGE_BYTES, CACHED_BYTES]
            .map(|size_bytes| Some(pool.alloc(size_bytes, &stream).unwrap()));
        let growable = (backend == BackendKind::Caching).then(|| {
            let mut growable = pool.growable(64 << 20, &stream).unwrap();
            growable.grow_to(4 << 20).unwrap();
            growable
        });
        let of_kind = |kind| Pool::builder(&device).kind(kind).build().unwrap();
        let unified = of_kind(MemoryKind::Unified).alloc(1 << 20, &stream).unwrap();
        let pinned = of_kind(MemoryKind::Host);
        let (guard, tracking) = (Arc::new(Guard::new()), Arc::new(Tracking::new()));
        let adapted =
            Pool::builder(&device).backend(backend).adaptor(guard.clone()).adaptor(tracking.clone());
        let adapted = adapted.build().unwrap();
        drop(adapted.alloc(CACHED_BYTES, &stream).unwrap());
        let timed = [(); 2].map(|()| Event::with_timing(&device).unwrap());
        timed.iter().for_each(|event| event.record(&stream).unwrap());
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let graph = capture.end().unwrap();
        let exec = graph.instantiate().unwrap();
        // Found to be complete only once someone asks.
        let pending = stream.completion();
        let host = Some(HostMemory::register(&device, vec![0_u8; 1 << 16]).unwrap());
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
            raw,
            timed,
            pinned,
            adapted,
            guard,
            tracking,
        }
    }

    fn with_block(
        &mut self,
        work: impl FnOnce(&mut Block, &Stream) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        self.block.as_mut().map_or(Err(other()), |block| work(block, &self.stream))
    }

    fn with_growable(
        &mut self,
        work: impl FnOnce(&mut GrowableBlock) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        match &mut self.growable {
            Some(block) => work(block),
            None if self.pool.backend() == BackendKind::Caching => Err(other()),
            None => Err(PoolError::Device(DeviceError::Forked)),
        }
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
            ("Device::new", |my| Device::new(&my.driver, 0).map(drop).map_err(Into::into)),
            ("Device::synchronize", |my| my.device.synchronize().map_err(Into::into)),
            ("Stream::new", |my| Stream::new(&my.device).map(drop).map_err(Into::into)),
            ("Stream::synchronize", |my| my.stream.synchronize().map_err(Into::into)),
            ("wait_for", |my| my.stream.wait_for(&my.foreign).map_err(Into::into)),
            ("mark", |my| my.stream.mark().map(drop).map_err(Into::into)),
            ("record", |my| my.event.record(&my.stream).map_err(Into::into)),
            ("completion", |my| my.stream.completion().wait().map_err(Into::into)),
            ("run_borrowed", |my| {
                my.stream.run_borrowed("a call", MemoryRange::NONE, |_| ()).map_err(Into::into)
            }),
            ("begin_capture", |my| Capture::begin(&my.stream, CaptureMode::Relaxed).map(drop)),
            ("register", |my| HostMemory::register(&my.device, vec![0_u8; 64]).map(drop).map_err(Into::into)),
            ("alloc_tagged", |my| my.pool.alloc_tagged(CACHED_BYTES, &my.stream, &my.tag).map(drop)),
        ];
        for (name, call) in calls {
            report.step(name);
            is_refused(name, call(self))?;
        }
        report.step("drops");
        drop((self.pool.scope("x"), self.pool.tag("y"), self.pool.clone(), self.stream.clone()));
        drop(Pool::list(&self.device));
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
            (6, _) => drop((Pool::list(&self.device), HostMemory::register(&self.device, vec![0_u8; 4096]))),
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

fn is_refused(name: &str, outcome: Result<(), PoolError>) -> Result<(), String> {
    match outcome {
        Err(PoolError::Device(DeviceError::Forked)) => Ok(()),
        other => Err(format!("{name}: {other:?}")),
    }
}

/// An error that is not the expected one.
fn other() -> PoolError {
    PoolError::Device(DeviceError::Untimed)
}

/// A part of the error's text.
const REFUSED: &str = "forked: start workers with spawn";
const CACHED_BYTES: u64 = 4096;
/// Beyond the size classes.
const LARGE_BYTES: u64 = 3 << 20;
const FORK_COUNT: usize = 25;
