//! The host does not access a slice while devices may write it.

use gpumem_array::Gpu;

fn read(gpu: &Gpu, table: &mut [f32]) {
    let _ = gpu.with_registered(table, |mut view| {
        view.fill(1.0).unwrap();
        table[0]
    });
}

fn main() {}
