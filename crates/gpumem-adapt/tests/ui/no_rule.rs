//! An element type that a policy has no rule for.

use gpumem_adapt::array::Gpu;
use gpumem_adapt::{Adapt, Destination, Policy};

struct Quantised;

impl Policy<f32> for Quantised {
    type Elem = i8;
    fn convert(value: f32) -> i8 {
        value as i8
    }
}

fn upload(gpu: &Gpu) {
    let _ = vec![1.0_f64].adapt(&Destination::new(gpu).elements::<Quantised>());
}

fn main() {}
