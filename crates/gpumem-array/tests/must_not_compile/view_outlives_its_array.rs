//! A view borrows the array: it cannot be returned without it.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{GpuArray, GpuView};

fn escape(array: GpuArray<f32, Ix1>) -> GpuView<'static, f32, Ix1> {
    array.view()
}

fn main() {}
