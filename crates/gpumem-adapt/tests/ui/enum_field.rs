//! Variants whose fields cannot hold device memory, or have no rule.

use gpumem_adapt::array::ndarray::Array1;
use gpumem_adapt::{Adapt, Storage};
use std::marker::PhantomData;
use std::sync::Mutex;

#[derive(Adapt)]
enum Activation<S: Storage> {
    None(PhantomData<S>),
    Slopes { slopes: Array1<f32> },
    Locked(Mutex<f32>),
}

fn main() {}
