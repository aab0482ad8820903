//! A launch overwrites the results of the one before: it cannot happen while one is borrowed.

use gpumem_array::ndarray::Ix1;
use gpumem_array::{ArrayError, Gpu, GpuGraph, Out};

fn twice(gpu: &Gpu, graph: &mut GpuGraph, out: &Out<f32, Ix1>) -> Result<Vec<f32>, ArrayError> {
    let done = graph.launch(gpu).run()?;
    let first = done.get(out)?;
    graph.launch(gpu).run()?;
    first.to_vec()
}

fn main() {}
