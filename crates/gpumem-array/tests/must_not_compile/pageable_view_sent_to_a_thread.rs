//! A view of pageable memory cannot be sent to a thread that outlives the closure.

use gpumem_array::Gpu;

fn send(gpu: &'static Gpu, table: &mut [f32]) {
    let _ = gpu.with_pageable(table, |view| {
        std::thread::spawn(move || view.shape().len());
    });
}

fn main() {}
