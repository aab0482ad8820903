//! A simulated GPU for each test.

use gpumem_array::Gpu;
use gpumem_array::pool::{Device, Pool};
use gpumem_sim::SimConfig;

/// Creates a `Gpu` on a new machine, whose work runs in the order of the seed.
pub(crate) fn gpu_with(config: SimConfig) -> Gpu {
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

/// Like [`gpu_with`], with the defaults.
pub(crate) fn gpu() -> Gpu {
    gpu_with(SimConfig::new())
}
