//! A field that borrows what becomes a value of its own.

use gpumem_adapt::Adapt;
use gpumem_adapt::array::ndarray::Array1;

#[derive(Adapt)]
struct Row<'a> {
    name: &'a str,
    values: &'a Array1<f32>,
}

fn main() {}
