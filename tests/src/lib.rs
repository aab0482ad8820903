//! Support for the tests across layers: one module for each kind of helper.

/// Helpers for tests of the driver itself, and drivers that count, fail or wait.
pub mod driver {
    /// Returns the driver with all calls counted. For one driver of a case, and a thread that makes no other case's calls afterwards.
    #[must_use]
    pub fn count_calls(driver: &crate::sys::Driver) -> crate::sys::Driver {
        // SAFETY: a case drops what it has made with its counted driver before another one is counted.
        unsafe { gpumem_trace::calls::count_calls(driver) }
    }

    /// The time on the simulator's clock; `None` for a GPU. Replays measure the time of the driver by it.
    pub fn virtual_time(driver: &crate::sys::Driver) -> Option<core::time::Duration> {
        gpumem_sim::Sim::of(driver).map(gpumem_sim::Sim::host_time)
    }

    pub mod memory_counter;
    pub mod raw;
    pub mod stream_gate;
    pub mod vmm;
    pub mod wait_after_query;
}

/// Pools on every backend, blocks with known contents, all entry points of the pool, programs in PTX and their results.
pub mod fixtures {
    pub mod backends;
    pub mod entry_points;
    pub mod gpu_results;
    pub mod mistakes;
    pub mod pattern;
    pub mod pool_fixture;
    pub mod random_ptx;
    pub mod two_devices;
}

/// Runs of a test: on both drivers, under many seeds, or in every order.
pub mod harness {
    /// True if `THOROUGH` is set, as in `.ci/run --full`: tests then run every case of long series, not a part of them.
    #[must_use]
    pub fn is_thorough() -> bool {
        std::env::var_os("THOROUGH").is_some()
    }

    pub mod cases;
    #[cfg(unix)]
    pub mod fork;
    pub mod schedules;
    pub mod seeds;
}

pub mod model;
pub mod profiles;
pub mod programs;
mod random;
pub mod stress;

pub use gpumem_adapt as adapt;
pub use gpumem_adapt::array;
pub use gpumem_adapt::array::pool;
pub use gpumem_adapt::array::pool::sys;

/// The folder of this package, as named by cargo at run time: a test program may have been copied to another machine after it was
/// built.
pub fn folder() -> std::path::PathBuf {
    let named = std::env::var_os("CARGO_MANIFEST_DIR");
    named.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), Into::into)
}

/// The README, and the pages of `docs/` with Rust examples, as doctests.
macro_rules! pages {
    ($($name:ident = $page:literal;)+) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($page)]
            pub struct $name;
        )+
    };
}

// `cargo xtask tidy` checks that no page is missing.
pages! {
    Readme = "../../README.md";
    TenMinutes = "../../docs/learn/ten-minutes.md";
    Service = "../../docs/learn/service.md";
    LargerThanMemory = "../../docs/learn/larger-than-memory.md";
    Arrays = "../../docs/how-to/arrays.md";
    LargerThanTheDevice = "../../docs/how-to/larger-than-the-device.md";
    OutOfMemory = "../../docs/how-to/out-of-memory.md";
    Operate = "../../docs/how-to/operate.md";
    TestWithoutAGpu = "../../docs/how-to/test-without-a-gpu.md";
    CheckKernels = "../../docs/how-to/check-kernels.md";
    Adaptors = "../../docs/how-to/adaptors.md";
    FromCudarc = "../../docs/how-to/from-cudarc.md";
    FromCandle = "../../docs/how-to/from-candle.md";
    FromCudaJl = "../../docs/how-to/from-cuda-jl.md";
    Nccl = "../../docs/how-to/nccl.md";
    Dlpack = "../../docs/how-to/dlpack.md";
    Options = "../../docs/reference/options.md";
    Errors = "../../docs/reference/errors.md";
}
