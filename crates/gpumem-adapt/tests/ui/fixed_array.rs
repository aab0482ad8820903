//! A field that cannot hold device memory.

use gpumem_adapt::Adapt;
use gpumem_adapt::array::ndarray::Array2;

#[derive(Adapt)]
struct Model {
    rate: f32,
    weight: Array2<f32>,
}

fn main() {}
