//! Each driver call of a drop fails once. A drop cannot return an error, so what the driver refuses is given back later: once the host has
//! waited, or with the device, the simulator has nothing left.

use crate::call_counter::{calls, count_calls, fail_call};
use crate::fixture::{built_backends, host_backends};
use gpumem_pool::sys::{CUresult, Driver};
use gpumem_pool::{
    BackendKind, Block, Capture, CaptureMode, Completion, Device, Event, Graph, GraphExec, GrowableBlock,
    HostMemory, MemoryKind, Pool, PoolError, Stream,
};
use gpumem_sim::{Report, Schedule, Sim, SimConfig};

const MIB: u64 = 1 << 20;
const CODES: [CUresult; 3] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN, CUresult::CUDA_ERROR_INVALID_VALUE];

/// Objects of each type, with work that has not run. Dropped in this order.
#[expect(dead_code, reason = "what counts is that they are dropped")]
struct Things {
    event: Event,
    completion: Completion,
    blocks: Vec<Block>,
    #[cfg(all(unix, feature = "backend-caching"))]
    imported: Option<gpumem_pool::ImportedBlock>,
    growable: Option<GrowableBlock>,
    exec: GraphExec,
    graph: Graph,
    host: HostMemory<Vec<u8>>,
    pool: Pool,
    streams: [Stream; 2],
}

impl Things {
    fn new(device: &Device, (backend, kind): (BackendKind, MemoryKind)) -> Result<Self, PoolError> {
        let pool = Pool::builder(device).backend(backend).kind(kind).build()?;
        let streams = [Stream::new(device)?, Stream::new(device)?];
        let blocks: Vec<_> =
            [1000, 3 * MIB].iter().map(|size| pool.alloc(*size, &streams[0])).collect::<Result<_, _>>()?;
        let capture = Capture::begin(&streams[0], CaptureMode::Relaxed)?;
        drop(pool.alloc(MIB, &streams[0])?);
        let graph = capture.end()?;
        let exec = graph.instantiate()?;
        // SAFETY: the graph has no work.
        unsafe { exec.launch(&streams[0])? };
        blocks.iter().for_each(|block| block.record_use(&streams[1]));
        let event = Event::new(device)?;
        event.record(&streams[1])?;
        streams[0].wait(&event)?;
        Ok(Self {
            event,
            completion: streams[1].completion(),
            #[cfg(all(unix, feature = "backend-caching"))]
            imported: imported(device, &streams[0]),
            growable: pool.growable(32 * MIB, &streams[0]).ok(),
            exec,
            graph,
            host: HostMemory::register(device, vec![1_u8; 4096])?,
            pool,
            blocks,
            streams,
        })
    }
}

#[cfg(all(unix, feature = "backend-caching"))]
fn imported(device: &Device, stream: &Stream) -> Option<gpumem_pool::ImportedBlock> {
    let pool =
        Pool::builder(device).backend(BackendKind::Caching).conf("exportable:true").ok()?.build().ok()?;
    let block = pool.alloc(3 * MIB, stream).ok()?;
    gpumem_pool::ImportedBlock::new(device, block.export().ok()?).ok()
}

fn new_driver() -> Driver {
    // Work is queued until someone waits.
    gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30).schedule(Schedule::Late)).unwrap()
}

fn settings() -> impl Iterator<Item = (BackendKind, MemoryKind)> {
    let on_host = |backend| [MemoryKind::Unified, MemoryKind::Host].map(|kind| (backend, kind));
    let of_devices = built_backends().into_iter().map(|backend| (backend, MemoryKind::Device));
    of_devices.chain(host_backends().into_iter().flat_map(on_host))
}

/// Calls `drops` with the things and their device, and makes each of its driver calls fail, one in each run. Returns the device if that is
/// used on.
fn each_call_fails(drops: fn(Things, Device) -> Option<Device>) {
    // The counts belong to a thread.
    let threads: Vec<_> =
        settings().map(|setting| std::thread::spawn(move || left_behind(setting, drops))).collect();
    let left: Vec<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

/// Lists what is left after each of the calls failed.
fn left_behind(
    setting: (BackendKind, MemoryKind),
    drops: fn(Things, Device) -> Option<Device>,
) -> Vec<String> {
    let mut left = Vec::new();
    for nth in 1.. {
        let (plain, code) = (new_driver(), CODES[nth as usize % CODES.len()]);
        let device = Device::new(&count_calls(&plain, None), 0).unwrap();
        let Ok(things) = Things::new(&device, setting) else { break };
        fail_call(nth, code);
        let device = drops(things, device);
        let Some(failed) = calls().failed else {
            assert!(nth > 10, "{setting:?}: {nth}");
            break;
        };
        let report = Sim::of(&plain).unwrap().report();
        let Report { allocations, handle_count, reservation_count, stream_count, event_count, .. } = &report;
        let counts = [
            (allocations.len(), "allocations"),
            (*handle_count, "handles"),
            (*reservation_count, "reservations"),
            (*stream_count, "streams"),
            (*event_count, "events"),
            (report.graph_count, "graphs"),
            (report.executable_graph_count, "executables"),
            (report.silent_findings().len(), "findings"),
            (usize::from(is_active(&plain) && device.is_none()), "contexts"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            left.push(format!(
                "{setting:?}: {count} {what} after call {nth} ({failed}) failed with {code:?}"
            ));
        }
    }
    left
}

/// True if the device has a context.
fn is_active(driver: &Driver) -> bool {
    let (mut flags, mut is_active) = (0, 1);
    // SAFETY: both outlive the call.
    unsafe { driver.cuDevicePrimaryCtxGetState(0, &mut flags, &mut is_active).unwrap() };
    is_active != 0
}

/// The device is used on: the next waits give the rest back.
#[test]
fn a_wait_gives_back_what_a_drop_could_not() {
    each_call_fails(|things, device| {
        drop(things);
        // The call may fail here.
        let waits = [device.synchronize(), device.synchronize()];
        assert!(waits.iter().any(Result::is_ok), "{waits:?}");
        Some(device)
    });
}

/// Nothing uses the device any more, so its own drop gives the rest back, and its context.
#[test]
fn a_device_takes_everything_with_it() {
    each_call_fails(|things, device| {
        drop((things, device));
        None
    });
}
