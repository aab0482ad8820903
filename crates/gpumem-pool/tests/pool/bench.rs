//! What the tests share: a simulated machine with one backend to try, and driver functions that count and fail.

use gpumem_pool::sys::{Driver, SimConfig, Table};
use gpumem_pool::{BackendKind, Block, Device, Pool, PoolBuilder, Stream};

/// One simulated machine, its first device, and the backend under test.
pub(crate) struct Bench {
    pub(crate) driver: Driver,
    pub(crate) device: Device,
    pub(crate) backend: BackendKind,
    /// Over plain segments, where the backend has the choice.
    pub(crate) plain_segments: bool,
    pub(crate) seed: u64,
}

/// Runs a body for each backend under several schedules. A failure says which.
pub(crate) fn on_each_backend(config: &SimConfig, body: impl Fn(&Bench)) {
    on_each_backend_with(config, |_| (), body);
}

/// The same with some functions of the driver changed by `change`, which is called once for each machine.
pub(crate) fn on_each_backend_with(config: &SimConfig, change: impl Fn(&mut Table), body: impl Fn(&Bench)) {
    let over_segments = built_backends().into_iter().filter(|backend| *backend == BackendKind::Caching);
    let subjects = built_backends().into_iter().map(|backend| (backend, false));
    for (backend, plain_segments) in subjects.chain(over_segments.map(|backend| (backend, true))) {
        for seed in 0..SEED_COUNT {
            let driver = Driver::sim(config.clone().seed(seed)).unwrap();
            // SAFETY: what the tests put in calls the function that it replaces, or fails without doing anything.
            let driver = unsafe { driver.with_table(&change) };
            let device = Device::new(&driver, 0).unwrap();
            let bench = Bench { driver, device, backend, plain_segments, seed };
            let told = Told(&bench);
            body(&bench);
            drop(told);
        }
    }
}

pub(crate) fn built_backends() -> Vec<BackendKind> {
    let caching = cfg!(feature = "backend-caching").then_some(BackendKind::Caching);
    let native = cfg!(feature = "backend-native").then_some(BackendKind::Native);
    [Some(BackendKind::None), native, caching].into_iter().flatten().collect()
}

/// One device of 1 GiB.
pub(crate) fn small() -> SimConfig {
    SimConfig::new().memory_bytes(1 << 30)
}

const SEED_COUNT: u64 = 6;

impl Bench {
    pub(crate) fn builder(&self) -> PoolBuilder {
        let builder = Pool::builder(&self.device).backend(self.backend);
        if self.plain_segments { builder.plain_segments() } else { builder }
    }

    /// Whether pools map handles.
    pub(crate) fn maps(&self) -> bool {
        self.backend == BackendKind::Caching && !self.plain_segments
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
        // SAFETY: the block is alive, and its free will wait for the stream if the test is right.
        unsafe {
            self.driver
                .cuMemsetD8Async(block.address(), value, block.size_bytes() as usize, stream.raw())
                .unwrap();
        }
    }

    /// What the block holds once `stream` is done.
    pub(crate) fn read(&self, block: &Block, stream: &Stream) -> Vec<u8> {
        stream.synchronize().unwrap();
        let _bound = stream.device().bind().unwrap();
        let mut bytes = vec![0_u8; block.size_bytes() as usize];
        // SAFETY: the buffer is as long as the block.
        unsafe {
            self.driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), block.address(), bytes.len()).unwrap()
        };
        bytes
    }

    pub(crate) fn holds(&self, block: &Block, value: u8, stream: &Stream) -> bool {
        self.read(block, stream).iter().all(|byte| *byte == value)
    }
}

/// Names the machine when a body panics.
struct Told<'a>(&'a Bench);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Bench { backend, plain_segments, seed, .. } = self.0;
            eprintln!("backend {backend}, plain segments {plain_segments}, seed {seed}");
        }
    }
}

/// Makes a module with a stand-in for one function of the driver: `CALLS` counts, and `FAIL_WITH` (unless 0) is
/// returned instead of calling the driver. One test at a time may use it.
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
                    // SAFETY: the caller's promises are those of the function that is replaced.
                    Some(real) if code == 0 => unsafe { real($($arg),*) },
                    _ => CUresult(code),
                }
            }
        }
    };
}
pub(crate) use stand_in;
