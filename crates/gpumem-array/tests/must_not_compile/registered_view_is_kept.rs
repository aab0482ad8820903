//! A view of registered memory cannot be stored outside the closure.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{Gpu, GpuView};

fn keep<'a>(gpu: &Gpu, table: &'a [f32], kept: &mut Option<GpuView<'a, f32, Ix1>>) {
    let _ = gpu.with_registered_read_only(table, |view| *kept = Some(view));
}

fn main() {}
