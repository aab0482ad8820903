//! The host has no slice of device memory; the message names what works.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, GpuArray};

fn sum(array: &GpuArray<f32, Ix1>) -> Result<f32, ArrayError> {
    Ok(array.as_slice()?.iter().sum())
}

fn main() {}
