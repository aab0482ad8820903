//! A parameter that is used as a family of arrays, without the bound.

use gpumem_adapt::Adapt;
use gpumem_adapt::array::ndarray::Ix2;

#[derive(Adapt)]
struct Layer<S> {
    weight: S::Array<f32, Ix2>,
}

fn main() {}
