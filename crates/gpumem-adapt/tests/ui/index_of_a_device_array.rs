//! The host cannot index device memory; the message names what works.

use gpumem_array::GpuArray;
use gpumem_array::ndarray::{Ix1, Ix2};

fn first(array: &GpuArray<f32, Ix1>) -> f32 {
    array[0]
}

fn write(array: &mut GpuArray<f32, Ix2>) {
    array[[0, 1]] = 1.0;
}

fn main() {}
