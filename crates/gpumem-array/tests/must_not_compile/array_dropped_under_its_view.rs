//! The memory of an array is not freed while a view reads it.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, GpuArray};

fn read_after_free(array: GpuArray<f32, Ix1>) -> Result<Vec<f32>, ArrayError> {
    let view = array.view();
    drop(array);
    view.sum()?.to_vec()
}

fn main() {}
