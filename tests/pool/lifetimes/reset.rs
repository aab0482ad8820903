//! A device that the program resets under its pools (`cudaDeviceReset`): every call says so, drops are silent, and a new `Device` works.

use gpumem_sim::{Schedule, Sim, SimConfig};
use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::{Setting, settings};
use gpumem_tests::pool::{
    BackendKind, Block, Capture, CaptureMode, Device, DeviceError, Event, GraphExec, MemoryKind, Pool,
    PoolError, Stream,
};
use gpumem_tests::sys::types::{
    CUcontext, CUdevice, CUevent, CUgraphExec, CUmemoryPool, CUmodule, CUresult, CUstream,
};
use gpumem_tests::sys::{Driver, DriverKind, Table};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

cases! {
    /// On a GPU in a process of its own: a reset ends the context of all other cases.
    fn a_reset_device_is_lost_and_a_new_one_works(driver: &Driver) {
        match driver.kind() {
            DriverKind::Sim => resets(driver, NextContext::OfNewDevice, false),
            _ => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let case = "lifetimes::reset::cuda::resets_in_its_own_process";
                let output = command.args([case, "--exact", "--ignored", "--nocapture"]).output().unwrap();
                let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
            }
        }
    }

    #[ignore = "run by the case above, as a process of its own"]
    fn resets_in_its_own_process(driver: &Driver) {
        resets(driver, NextContext::OfNewDevice, true);
    }
}

/// With the next context under another handle or the same one, made by the new device or by another library before it.
#[test]
fn contexts_may_have_one_handle() {
    for is_one_handle in [false, true] {
        // Work that is queued as a pool ends is queued as its device ends.
        let driver = gpumem_sim::driver(SimConfig::new().schedule(Schedule::Late)).unwrap();
        let driver = if is_one_handle { with_one_handle(&driver) } else { driver };
        resets(&driver, NextContext::OfNewDevice, false);
        let findings = Sim::of(&driver).unwrap().report().silent_findings();
        assert!(findings.is_empty(), "with one handle {is_one_handle}: {}", findings[0]);
        for who in [NextContext::OfNewDevice, NextContext::OfAnotherLibrary] {
            resets(&driver, who, true);
        }
    }
    assert_eq!(STALE_COUNT.load(Ordering::Relaxed), 0, "objects were destroyed after the reset");
}

/// A process has one default pool for a device, and one that was reset gives way.
#[test]
fn the_default_pool_of_a_reset_device_is_replaced() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let made = || Pool::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let former = made();
    former.set_default().unwrap();
    assert!(made().set_default().is_err());
    // SAFETY: nothing is assumed about the context afterwards.
    unsafe { driver.cuDevicePrimaryCtxReset_v2(former.device().raw()).unwrap() };
    let next = made();
    assert!(Pool::default_of(0).is_none());
    next.set_default().unwrap();
    assert_eq!(Pool::for_device(0).unwrap().id(), next.id());
}

/// The maker of the next context.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NextContext {
    OfNewDevice,
    OfAnotherLibrary,
}

/// With every setting, every call that may be the first to find the reset, no call at all, and both orders of the end and the new
/// beginning. With `is_overlapping`, former objects end while new ones live; then mapped memory of the former is left, for others may have its addresses.
fn resets(driver: &Driver, next_context: NextContext, is_overlapping: bool) {
    let settings = settings(&Device::new(driver, 0).unwrap());
    for setting in settings {
        for (index, (name, first)) in FIRST.iter().enumerate() {
            let Some(old) = Old::new(driver, setting) else { continue };
            let another = reset(&old.device, next_context);
            let context = format!("{setting}, {name}, {next_context:?}");
            is_lost(&context, first(&old));
            old.is_all_lost(&context);
            if index % 2 == 0 {
                drop(old);
                Next::new(driver, setting).works(&context);
            } else {
                let new = Next::new(driver, setting);
                old.is_all_lost(&context);
                let old = (!is_overlapping).then_some(old);
                // What has ended is nothing that has the address or the handle of what it had.
                new.works(&context);
                drop(old);
            }
            is_fast(driver, setting, &context);
            drop(another);
        }
        if let Some(old) = Old::new(driver, setting) {
            let another = reset(&old.device, next_context);
            let context = format!("{setting}, dropped, {next_context:?}");
            drop(old);
            Next::new(driver, setting).works(&context);
            is_fast(driver, setting, &context);
            drop(another);
        }
    }
    if let Some(sim) = Sim::of(driver) {
        let findings = sim.report().findings;
        let stale = findings.iter().find(|finding| finding.name() == "use of a stream whose context is gone");
        assert!(stale.is_none(), "{stale:?}");
    }
}

/// Resets the device. Returns the reference to the next context if another library makes it.
fn reset(device: &Device, next_context: NextContext) -> Option<Another> {
    let (driver, raw) = (device.driver().clone(), device.raw());
    // SAFETY: nothing is assumed about the context afterwards.
    unsafe { driver.cuDevicePrimaryCtxReset_v2(raw).unwrap() };
    (next_context == NextContext::OfAnotherLibrary).then(|| {
        let mut context = core::ptr::null_mut();
        // SAFETY: a local outlives the call. The context is released by the drop.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, raw).unwrap() };
        Another { driver, raw }
    })
}

/// A reference to the primary context.
struct Another {
    driver: Driver,
    raw: CUdevice,
}

impl Drop for Another {
    fn drop(&mut self) {
        // SAFETY: it was retained by the maker of this value.
        unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.raw).unwrap() };
    }
}

type First = fn(&Old) -> Result<(), PoolError>;

const FIRST: &[(&str, First)] = &[
    ("a wait", |old| old.stream.synchronize().map_err(Into::into)),
    ("a large request", |old| {
        // Physical memory may belong to no context.
        old.pool.alloc(48 << 20, &old.stream).map_or_else(drop, drop);
        old.device.synchronize().map_err(Into::into)
    }),
    ("a new stream", |old| Stream::new(&old.device).map(drop).map_err(Into::into)),
    ("status", |old| old.pool.status().map(drop)),
    ("an event", |old| old.event.record(&old.stream).map_err(Into::into)),
    ("a new device", |old| {
        drop(Device::new(old.device.driver(), 0)?);
        old.device.synchronize().map_err(Into::into)
    }),
];

/// Objects on the context that is reset.
struct Old {
    device: Device,
    pool: Pool,
    stream: Stream,
    event: Event,
    exec: GraphExec,
    array: GpuArray<f32, gpumem_tests::array::ndarray::Ix1>,
    gpu: Gpu,
    block: Block,
}

impl Old {
    fn new(driver: &Driver, setting: Setting) -> Option<Self> {
        let device = Device::new(driver, 0).unwrap();
        let pool = setting.builder(&device).build().ok()?;
        let (stream, event) = (Stream::new(&device).unwrap(), Event::new(&device).unwrap());
        event.record(&stream).unwrap();
        let block = pool.alloc(CACHED_BYTES, &stream).unwrap();
        drop([CACHED_BYTES, 3 << 20].map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap()));
        let exec =
            Capture::begin(&stream, CaptureMode::Relaxed).unwrap().end().unwrap().instantiate().unwrap();
        let gpu = Gpu::with_stream(&Pool::new(&device).unwrap(), &stream).unwrap();
        let array = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
        Some(Self { device, pool, stream, event, exec, array, gpu, block })
    }

    /// Once one call has found the reset.
    fn is_all_lost(&self, context: &str) {
        let calls: [(&str, Result<(), PoolError>); 12] = [
            ("a cached size", self.pool.alloc(CACHED_BYTES, &self.stream).map(drop)),
            ("a cached large size", self.pool.alloc(3 << 20, &self.stream).map(drop)),
            ("status", self.pool.status().map(drop)),
            ("reclaim", self.pool.reclaim().map(drop)),
            ("Pool::new", Pool::new(&self.device).map(drop)),
            ("Stream::new", Stream::new(&self.device).map(drop).map_err(Into::into)),
            ("Stream::synchronize", self.stream.synchronize().map_err(Into::into)),
            ("Device::synchronize", self.device.synchronize().map_err(Into::into)),
            ("Event::record", self.event.record(&self.stream).map_err(Into::into)),
            ("Event::is_complete", self.event.is_complete().map(drop).map_err(Into::into)),
            ("begin_capture", Capture::begin(&self.stream, CaptureMode::Relaxed).map(drop)),
            // SAFETY: the graph does not access memory.
            ("launch", unsafe { self.exec.launch(&self.stream) }),
        ];
        for (name, outcome) in calls {
            is_lost(&format!("{context}: {name}"), outcome);
        }
        let arrays = [
            self.array.to_vec().map(drop),
            self.array.try_add(1.0).map(drop),
            GpuArray::from_slice(&self.gpu, &[1.0_f32]).map(drop),
            self.gpu.synchronize(),
        ];
        for (index, outcome) in arrays.into_iter().enumerate() {
            let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("was reset"), "{context}: array operation {index}: {text}");
        }
        self.block.record_use(&self.stream);
    }
}

fn is_lost(context: &str, outcome: Result<(), PoolError>) {
    match outcome {
        Err(error @ PoolError::Device(DeviceError::DeviceLost(_))) => {
            let text = error.to_string();
            assert!(
                text.contains("the device was reset") && text.contains("new devices, streams and pools work"),
                "{context}: {text}"
            );
        }
        other => panic!("{context}: {other:?}"),
    }
}

/// Objects on the next context, of all sizes that differ in how they are served.
struct Next {
    device: Device,
    stream: Stream,
    event: Event,
    blocks: Vec<Block>,
}

impl Next {
    fn new(driver: &Driver, setting: Setting) -> Self {
        let device = Device::new(driver, 0).unwrap();
        let (pool, stream) = (setting.builder(&device).build().unwrap(), Stream::new(&device).unwrap());
        let event = Event::new(&device).unwrap();
        let sizes = [CACHED_BYTES, CACHED_BYTES, 3 << 20, 48 << 20];
        let blocks = sizes.map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap()).into();
        Self { device, stream, event, blocks }
    }

    fn works(mut self, context: &str) {
        for block in &mut self.blocks {
            let mut read = [0_u32; 4];
            let filled = block.fill(0..16, 7_u32, &self.stream);
            let copied = filled.and_then(|()| block.copy_to_host(0, &mut read, &self.stream));
            copied.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(read, [7; 4], "{context}");
        }
        self.event.record(&self.stream).unwrap_or_else(|error| panic!("{context}: {error}"));
        self.device.synchronize().unwrap_or_else(|error| panic!("{context}: {error}"));
        // It ends with queued work.
        self.blocks[0].fill(0..16, 7_u32, &self.stream).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
}

/// Once nothing of the device that was reset is left, the thread's cache serves requests without a check.
fn is_fast(driver: &Driver, setting: Setting, context: &str) {
    if setting.backend != BackendKind::Caching || setting.kind != MemoryKind::Device {
        return;
    }
    let device = Device::new(driver, 0).unwrap();
    let (pool, stream) = (setting.builder(&device).build().unwrap(), Stream::new(&device).unwrap());
    (0..3).for_each(|_| drop(pool.alloc(CACHED_BYTES, &stream).unwrap()));
    let slow_count = pool.status().unwrap().counters.slow_allocation_count;
    assert!(slow_count < 3, "{context}: {slow_count} of 3 allocations took the slow path");
}

/// A simulator whose primary context of device 0 always has the same handle, as the vendor's may.
fn with_one_handle(driver: &Driver) -> Driver {
    assert!(TABLE.set(*driver.table()).is_ok(), "called once");
    // SAFETY: the wrappers call the functions that they replace, with the handle of the latest context.
    unsafe {
        driver.with_table(|table| {
            table.cuDevicePrimaryCtxRetain = Some(retain);
            table.cuCtxGetCurrent = Some(current);
            table.cuCtxPushCurrent_v2 = Some(push);
            table.cuCtxPopCurrent_v2 = Some(pop);
            table.cuCtxGetId = Some(id);
            table.cuCtxRecordEvent = Some(record);
            table.cuStreamDestroy_v2 = Some(cuStreamDestroy_v2);
            table.cuEventDestroy_v2 = Some(cuEventDestroy_v2);
            table.cuMemPoolDestroy = Some(cuMemPoolDestroy);
            table.cuGraphExecDestroy = Some(cuGraphExecDestroy);
            table.cuModuleUnload = Some(cuModuleUnload);
        })
    }
}

/// The functions of the simulator.
static TABLE: OnceLock<Table> = OnceLock::new();
/// The simulator's handle of the latest context.
static LATEST: AtomicUsize = AtomicUsize::new(0);

/// The handle that all contexts have.
const HANDLE: CUcontext = core::ptr::without_provenance_mut(0x7000);

fn table() -> &'static Table {
    TABLE.get().unwrap()
}

fn latest() -> CUcontext {
    core::ptr::without_provenance_mut(LATEST.load(Ordering::Relaxed))
}

/// # Safety
///
/// The contract of the function in each of these is that of the driver.
unsafe extern "C" fn retain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: the caller's.
    unsafe {
        let code = table().cuDevicePrimaryCtxRetain.unwrap()(context, device);
        if code == CUresult::CUDA_SUCCESS {
            LATEST.store(context.read().addr(), Ordering::Relaxed);
            context.write(HANDLE);
        }
        code
    }
}

/// See [`retain`].
unsafe extern "C" fn current(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's.
    unsafe {
        let code = table().cuCtxGetCurrent.unwrap()(context);
        if code == CUresult::CUDA_SUCCESS && !context.read().is_null() {
            context.write(HANDLE);
        }
        code
    }
}

/// See [`retain`].
unsafe extern "C" fn push(_context: CUcontext) -> CUresult {
    // SAFETY: the caller's.
    unsafe { table().cuCtxPushCurrent_v2.unwrap()(latest()) }
}

/// See [`retain`].
unsafe extern "C" fn pop(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's.
    unsafe { table().cuCtxPopCurrent_v2.unwrap()(context) }
}

/// See [`retain`].
unsafe extern "C" fn id(_context: CUcontext, id: *mut u64) -> CUresult {
    // SAFETY: the caller's.
    unsafe { table().cuCtxGetId.unwrap()(latest(), id) }
}

/// See [`retain`].
unsafe extern "C" fn record(_context: CUcontext, event: CUevent) -> CUresult {
    // SAFETY: the caller's.
    unsafe { table().cuCtxRecordEvent.unwrap()(latest(), event) }
}

macro_rules! destroys {
    ($($name:ident($kind:ty);)*) => {
        $(
            /// See [`retain`].
            #[expect(non_snake_case, reason = "the driver's name")]
            unsafe extern "C" fn $name(handle: $kind) -> CUresult {
                // SAFETY: the caller's.
                let code = unsafe { table().$name.unwrap()(handle) };
                STALE_COUNT.fetch_add(usize::from(code != CUresult::CUDA_SUCCESS), Ordering::Relaxed);
                code
            }
        )*
    };
}

destroys! {
    cuStreamDestroy_v2(CUstream);
    cuEventDestroy_v2(CUevent);
    cuMemPoolDestroy(CUmemoryPool);
    cuGraphExecDestroy(CUgraphExec);
    cuModuleUnload(CUmodule);
}

/// Counts handles of objects that were gone. The vendor's driver would dereference them.
static STALE_COUNT: AtomicUsize = AtomicUsize::new(0);

const CACHED_BYTES: u64 = 4096;
