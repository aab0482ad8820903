//! Helpers: a simulated machine with one backend under test, and driver functions that count their calls or fail.

use gpumem_pool::sys::{Driver, Table};
use gpumem_pool::{BackendKind, Block, Device, MemoryKind, Pool, PoolBuilder, Stream};
use gpumem_sim::SimConfig;

/// One simulated machine, its first device, and the backend under test.
pub(crate) struct Fixture {
    pub(crate) driver: Driver,
    pub(crate) device: Device,
    pub(crate) backend: BackendKind,
    /// True if the backend uses plain segments.
    pub(crate) plain_segments: bool,
    pub(crate) kind: MemoryKind,
    pub(crate) seed: u64,
}

/// Runs a body for each backend and each of its kinds of memory, under several seeds. A failure prints them.
pub(crate) fn on_each_backend(config: &SimConfig, body: impl Fn(&Fixture)) {
    on_each_of(subjects(), config, |_| (), body);
}

/// Like [`on_each_backend`], for device memory only.
pub(crate) fn on_device_memory(config: &SimConfig, body: impl Fn(&Fixture)) {
    on_each_backend_with(config, |_| (), body);
}

/// Like [`on_device_memory`], with driver functions replaced by `change`, which is called once for each machine.
pub(crate) fn on_each_backend_with(config: &SimConfig, change: impl Fn(&mut Table), body: impl Fn(&Fixture)) {
    let subjects = subjects().into_iter().filter(|(.., kind)| *kind == MemoryKind::Device).collect();
    on_each_of(subjects, config, change, body);
}

fn on_each_of(
    subjects: Vec<(BackendKind, bool, MemoryKind)>,
    config: &SimConfig,
    change: impl Fn(&mut Table),
    body: impl Fn(&Fixture),
) {
    for (backend, plain_segments, kind) in subjects {
        // All kinds run the same code: one schedule shows the differences.
        for seed in 0..if kind == MemoryKind::Device { SEED_COUNT } else { 1 } {
            let driver = gpumem_sim::driver(config.clone().seed(seed)).unwrap();
            // SAFETY: a replacement calls the function that it replaces, or fails without effect.
            let driver = unsafe { driver.with_table(&change) };
            let device = Device::new(&driver, 0).unwrap();
            let fixture = Fixture { driver, device, backend, plain_segments, kind, seed };
            let printed = PrintOnPanic(&fixture);
            body(&fixture);
            drop(printed);
        }
    }
}

/// Each backend, also over plain segments if it supports them, and with each other kind of memory that it supports.
fn subjects() -> Vec<(BackendKind, bool, MemoryKind)> {
    let of = |backend| {
        let kinds: &[_] = match host_backends().contains(&backend) {
            true => &[MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host],
            false => &[MemoryKind::Device],
        };
        let plain = (backend == BackendKind::Caching).then_some((backend, true, MemoryKind::Device));
        kinds.iter().map(move |kind| (backend, false, *kind)).chain(plain).collect::<Vec<_>>()
    };
    built_backends().into_iter().flat_map(of).collect()
}

pub(crate) fn built_backends() -> Vec<BackendKind> {
    let caching = cfg!(feature = "backend-caching").then_some(BackendKind::Caching);
    let native = cfg!(feature = "backend-native").then_some(BackendKind::Native);
    [Some(BackendKind::None), native, caching].into_iter().flatten().collect()
}

/// The backends that have host-accessible memory.
pub(crate) fn host_backends() -> Vec<BackendKind> {
    built_backends().into_iter().filter(|backend| *backend != BackendKind::Native).collect()
}

/// The step of a long series of cases: 1 if `THOROUGH` is set, as in `.ci/run --full`.
pub(crate) fn stride(step: u64) -> u64 {
    if std::env::var_os("THOROUGH").is_some() { 1 } else { step }
}

/// One device of 1 GiB.
pub(crate) fn small() -> SimConfig {
    SimConfig::new().memory_bytes(1 << 30)
}

const SEED_COUNT: u64 = 6;

impl Fixture {
    pub(crate) fn builder(&self) -> PoolBuilder {
        let builder = Pool::builder(&self.device).backend(self.backend).kind(self.kind);
        if self.plain_segments { builder.conf("expandable_segments:false").unwrap() } else { builder }
    }

    /// True if pools use virtual memory.
    pub(crate) fn maps(&self) -> bool {
        self.backend == BackendKind::Caching && !self.plain_segments && self.kind == MemoryKind::Device
    }

    pub(crate) fn pool(&self) -> Pool {
        self.builder().build().unwrap()
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::new(&self.device).unwrap()
    }

    /// Queues a fill of the whole block on a stream.
    pub(crate) fn fill(&self, block: &Block, value: u8, stream: &Stream) {
        let _bound = stream.device().bind().unwrap();
        // SAFETY: the block is alive, and its free waits for the stream if the test is right.
        unsafe {
            self.driver
                .cuMemsetD8Async(block.address(), value, block.size_bytes() as usize, stream.raw())
                .unwrap();
        }
    }

    /// The contents of the block once `stream` is complete.
    pub(crate) fn read(&self, block: &Block, stream: &Stream) -> Vec<u8> {
        stream.synchronize().unwrap();
        let _bound = stream.device().bind().unwrap();
        let mut bytes = vec![0_u8; block.size_bytes() as usize];
        // SAFETY: the buffer is as long as the block.
        unsafe {
            let target = bytes.as_mut_ptr().expose_provenance() as u64;
            self.driver.cuMemcpy(target, block.address(), bytes.len()).unwrap();
        };
        bytes
    }

    pub(crate) fn holds(&self, block: &Block, value: u8, stream: &Stream) -> bool {
        self.read(block, stream).iter().all(|byte| *byte == value)
    }
}

/// Prints the machine if a body panics.
struct PrintOnPanic<'a>(&'a Fixture);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Fixture { backend, plain_segments, kind, seed, .. } = self.0;
            eprintln!("backend {backend}, plain segments {plain_segments}, {kind} memory, seed {seed}");
        }
    }
}

/// Makes a module with a stand-in for one driver function: `CALLS` counts, and `FAIL_WITH` (unless 0) is returned instead of
/// calling the driver. One test at a time may use it.
macro_rules! stand_in {
    ($module:ident, $function:ident($($arg:ident: $kind:ty),*)) => {
        mod $module {
            #[allow(unused_imports, reason = "not every function takes types of the driver's")]
            use gpumem_pool::sys::types::*;
            use gpumem_pool::sys::{CUresult, Table};
            use std::sync::Mutex;
            use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

            pub(super) static CALLS: AtomicU64 = AtomicU64::new(0);
            pub(super) static FAIL_WITH: AtomicU32 = AtomicU32::new(0);
            type Function = unsafe extern "C" fn($($kind),*) -> CUresult;
            static REAL: Mutex<Option<Function>> = Mutex::new(None);

            pub(super) fn install(table: &mut Table) {
                *REAL.lock().unwrap() = table.$function;
                table.$function = Some(call);
                CALLS.store(0, Ordering::SeqCst);
                FAIL_WITH.store(0, Ordering::SeqCst);
            }

            extern "C" fn call($($arg: $kind),*) -> CUresult {
                CALLS.fetch_add(1, Ordering::SeqCst);
                let code = FAIL_WITH.load(Ordering::SeqCst);
                let real = *REAL.lock().unwrap();
                match real {
                    // SAFETY: the caller guarantees what the replaced function requires.
                    Some(real) if code == 0 => unsafe { real($($arg),*) },
                    _ => CUresult(code),
                }
            }
        }
    };
}
pub(crate) use stand_in;
