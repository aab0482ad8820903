//! `dot` multiplies vectors and matrices; `matmul` multiplies arrays of more axes.

use gpumem_array::{ArrayError, GpuArray, ndarray::Ix3};

fn product(a: &GpuArray<f32, Ix3>, b: &GpuArray<f32, Ix3>) -> Result<GpuArray<f32, Ix3>, ArrayError> {
    a.dot(b)
}

fn main() {
    let _ = product;
}
