//! A simulated GPU for each test.

use gpumem_array::Gpu;
use gpumem_array::pool::{Device, Pool};
use gpumem_sim::SimConfig;

/// Creates a `Gpu` on a new machine, whose work runs in the order of the seed.
pub(crate) fn gpu_with(config: SimConfig) -> Gpu {
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    Gpu::new(&Pool::new(&device).unwrap()).unwrap()
}

/// Like [`gpu_with`], with the defaults.
#[allow(dead_code)] // not every test file needs both
pub(crate) fn gpu() -> Gpu {
    gpu_with(SimConfig::new())
}

/// A small generator, so that a program is a function of its seed.
#[allow(dead_code)] // not every test file needs it
pub(crate) struct Choices(pub(crate) u64);

#[allow(dead_code)]
impl Choices {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
