//! An array has one view that writes at a time.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, GpuArray};

fn write_twice(array: &mut GpuArray<f32, Ix1>) -> Result<(), ArrayError> {
    let mut first = array.view_mut();
    let mut second = array.view_mut();
    first.fill(1.0)?;
    second.fill(2.0)
}

fn main() {}
