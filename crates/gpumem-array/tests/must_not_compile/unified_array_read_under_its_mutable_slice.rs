//! No work that reads an array is queued while the host has a mutable slice of it.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, UnifiedArray};

fn sum(array: &mut UnifiedArray<f32, Ix1>) -> Result<(), ArrayError> {
    let slice = array.as_mut_slice()?;
    let _sum = array.sum()?;
    slice[0] = 1.0;
    Ok(())
}

fn main() {}
