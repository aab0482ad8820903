//! A product needs a vector on its right.

use gpumem_array::{ArrayError, GpuArray1, GpuArray2};

fn product(a: &GpuArray2<f32>, b: &GpuArray2<f32>) -> Result<GpuArray1<f32>, ArrayError> {
    a.dot(b)
}

fn main() {
    let _ = product;
}
