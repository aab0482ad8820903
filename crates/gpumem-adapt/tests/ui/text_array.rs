//! An array of values that are not plain bytes.

use gpumem_adapt::array::ndarray::Ix1;
use gpumem_adapt::{Adapt, Storage};

#[derive(Adapt)]
struct Vocabulary<S: Storage> {
    rate: f32,
    words: S::Array<String, Ix1>,
    first: Option<S::Array<char, Ix1>>,
    pairs: Option<S::Array<(u8, f32), Ix1>>,
}

fn main() {}
