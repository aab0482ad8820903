//! A field that contains a type without the derive.

use gpumem_adapt::array::ndarray::Ix1;
use gpumem_adapt::{Adapt, Storage};

struct Layer<S: Storage> {
    weight: S::Array<f32, Ix1>,
}

#[derive(Adapt)]
struct Model<S: Storage>(Vec<Layer<S>>, f32);

fn main() {}
