//! A function of a field that returns another type than the field has.

use gpumem_adapt::{Adapt, AdaptError, Context};

fn doubled<To>(rate: &f32, _: &mut Context<'_, To>) -> Result<f64, AdaptError> {
    Ok(f64::from(*rate) * 2.0)
}

#[derive(Adapt)]
struct Settings {
    #[adapt(with = doubled)]
    rate: f32,
}

fn main() {}
