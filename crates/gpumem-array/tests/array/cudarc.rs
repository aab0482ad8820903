//! cudarc beside the simulator of this process: another driver than the one that cudarc loads, so nothing can be shared. The tests of what
//! is shared are in `interop/cudarc`, where both have one driver, and in `tests/layers/cudarc.rs` for a GPU.

use crate::support::gpu;
use gpumem_array::{ArrayError, GpuArray, cudarc};

#[test]
fn a_driver_that_cudarc_does_not_load_is_refused() {
    let gpu = gpu();
    let context = cudarc::context(gpu.device());
    match context {
        // There is no libcuda, or it is NVIDIA's.
        Err(ArrayError::Cudarc { object: "driver" | "context", .. }) => {}
        // It is NVIDIA's, without a GPU.
        Err(ArrayError::Pool(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_of_a_pool_is_no_slice() {
    let gpu = gpu();
    let array = GpuArray::from_slice(&gpu, &[1_u8, 2, 3]).unwrap();
    let rejected = array.into_cuda_slice().unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::NoCudaSlice { memory: "a block" }), "{rejected}");
    assert_eq!(rejected.into_value().to_vec().unwrap(), [1, 2, 3]);
}
