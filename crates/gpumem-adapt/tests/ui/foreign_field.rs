//! A field whose type has no rule.

use gpumem_adapt::array::ndarray::Ix1;
use gpumem_adapt::{Adapt, Storage};

struct Connection;

#[derive(Adapt)]
struct Model<S: Storage> {
    weight: S::Array<f32, Ix1>,
    connection: Connection,
}

fn main() {}
