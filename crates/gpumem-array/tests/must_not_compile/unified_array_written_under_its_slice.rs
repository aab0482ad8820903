//! No work that writes an array is queued while the host has a slice of it.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, UnifiedArray};

fn fill(array: &mut UnifiedArray<f32, Ix1>) -> Result<f32, ArrayError> {
    let slice = array.as_slice()?;
    array.fill(1.0)?;
    Ok(slice[0])
}

fn main() {}
