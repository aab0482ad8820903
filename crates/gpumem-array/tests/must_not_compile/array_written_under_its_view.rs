//! An array is not written through its owner while a view reads it.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, GpuArray};

fn write_under_a_reader(array: &mut GpuArray<f32, Ix1>) -> Result<Vec<f32>, ArrayError> {
    let view = array.view();
    array.fill(0.0)?;
    view.sum()?.to_vec()
}

fn main() {}
