//! A view of registered memory ends with the closure that it was made for.

use gpumem_array::Gpu;

fn escape(gpu: &Gpu, table: &mut [f32]) {
    let _ = gpu.with_registered(table, |view| view);
}

fn main() {}
