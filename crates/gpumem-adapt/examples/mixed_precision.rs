//! Trains a model in half precision, with a master copy of its weights in single precision.
//!
//! The model's weights are half as large, and so are the bytes that every step reads. A step changes them by less than half precision can
//! tell, so the steps are added to a master copy in single precision, which then becomes the model again. Both conversions run on the
//! device.
//!
//! ```text
//! cargo run --example mixed_precision
//! ```

#![allow(clippy::print_stdout, reason = "an example")]

use gpumem_adapt::array::kind::DeviceLocal;
use gpumem_adapt::array::ndarray::{Array1, Array2, Ix1, Ix2};
use gpumem_adapt::array::pool::{self, Pool};
use gpumem_adapt::array::{ArrayError, Element, Gpu, GpuArray};
use gpumem_adapt::{Adapt, AdaptError, Destination, F16, F32, Host, Storage};
use half::f16;

/// A linear model, of any element type.
#[derive(Adapt)]
struct Linear<S: Storage, T: Element> {
    weights: S::Array<T, Ix1>,
    bias: S::Array<T, Ix1>,
}

/// The derivatives of the mean squared error. Single precision calculates with what half precision stores.
fn gradient(
    model: &Linear<DeviceLocal, f16>,
    inputs: &GpuArray<f32, Ix2>,
    targets: &GpuArray<f32, Ix1>,
) -> Result<Linear<DeviceLocal, f32>, ArrayError> {
    let (weights, bias) = (model.weights.cast::<f32>()?, model.bias.cast::<f32>()?);
    let errors = inputs.dot(&weights)?.try_add(&bias)?.try_sub(targets)?;
    let scale = 2.0 / targets.len() as f32;
    Ok(Linear {
        weights: inputs.t().dot(&errors)?.try_mul(scale)?,
        bias: errors.sum()?.try_mul(scale)?.into_shape(1)?,
    })
}

/// Moves the master by the gradient, and returns it as the next model.
fn step(
    master: &mut Linear<DeviceLocal, f32>,
    gradient: &Linear<DeviceLocal, f32>,
    gpu: &Gpu,
) -> Result<Linear<DeviceLocal, f16>, AdaptError> {
    master.weights.try_sub_assign(gradient.weights.try_mul(RATE)?)?;
    master.bias.try_sub_assign(gradient.bias.try_mul(RATE)?)?;
    master.adapt(&Destination::new(gpu).elements::<F16>())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let gpu = Gpu::new(&Pool::new(&pool::Device::new(&driver, 0)?)?)?;

    // Points of a plane.
    let inputs =
        Array2::from_shape_fn((ROWS, COLUMNS), |(i, j)| ((i * (2 * j + 7)) % 101) as f32 / 50.0 - 1.0);
    let expected = Array1::from_shape_fn(COLUMNS, |j| 0.25 * j as f32 - 1.0);
    let targets = inputs.dot(&expected) + 0.5;
    let (inputs, targets) = (&inputs, &targets).adapt(&gpu)?;

    // A model in half precision on the host: uploaded as it is, and once more as the master.
    let zeros = |len| Array1::from_elem(len, f16::ZERO);
    let start: Linear<Host, f16> = Linear { weights: zeros(COLUMNS), bias: zeros(1) };
    let mut model: Linear<DeviceLocal, f16> = start.adapt(&gpu)?;
    let mut master: Linear<DeviceLocal, f32> = model.adapt(&Destination::new(&gpu).elements::<F32>())?;
    let mut without_master: Linear<DeviceLocal, f16> = start.adapt(&gpu)?;
    for _ in 0..STEPS {
        model = step(&mut master, &gradient(&model, &inputs, &targets)?, &gpu)?;
        // The same without a master: each step is rounded to half precision.
        let mut single = without_master.adapt(&Destination::new(&gpu).elements::<F32>())?;
        without_master = step(&mut single, &gradient(&without_master, &inputs, &targets)?, &gpu)?;
    }

    let error = |model: &Linear<DeviceLocal, f16>| -> Result<f32, AdaptError> {
        let found: Linear<Host, f32> = model.adapt(&Host::elements::<F32>())?;
        let off = (&found.weights - &expected).mapv(f32::abs);
        Ok(off.into_iter().fold((found.bias[0] - 0.5).abs(), f32::max))
    };
    let (with, without) = (error(&model)?, error(&without_master)?);
    println!("largest error of a weight: {with:.5} with a master in single precision, {without:.5} without");
    assert!(with < 1e-3 && without > 4.0 * with, "{with} {without}");
    Ok(())
}

const ROWS: usize = 512;
const COLUMNS: usize = 8;
const STEPS: usize = 2000;
const RATE: f32 = 0.01;
