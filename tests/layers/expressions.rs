//! Expressions against `ndarray` on both drivers: the kernels that are written at run time, as the driver compiles them.

#[path = "../../crates/gpumem-array/tests/array/expressions/differential.rs"]
mod differential;

use gpumem_array::Gpu;
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::{Device, Pool};
use gpumem_tests::cases;

fn gpu(driver: &Driver) -> Gpu {
    Gpu::new(&Pool::from_env(&Device::new(driver, 0).unwrap()).unwrap()).unwrap()
}

cases! {
    fn floats(driver: &Driver) { differential::floats(&gpu(driver)) }
    fn functions(driver: &Driver) { differential::functions(&gpu(driver)) }
    fn halves(driver: &Driver) { differential::halves(&gpu(driver)) }
    fn complex(driver: &Driver) { differential::complex(&gpu(driver)) }
    fn integers(driver: &Driver) { differential::integers(&gpu(driver)) }
    fn truths(driver: &Driver) { differential::truths(&gpu(driver)) }
    fn reductions(driver: &Driver) { differential::reductions(&gpu(driver)) }
}
