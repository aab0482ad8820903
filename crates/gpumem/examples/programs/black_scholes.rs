//! Prices of 100,000 options by the formula of Black and Scholes: one kernel for calls and puts.
//!
//! In CuPy:
//!
//! ```python
//! @cupy.fuse()
//! def price(s, k, t):
//!     d1 = (cupy.log(s / k) + (R + V * V / 2) * t) / (V * cupy.sqrt(t))
//!     d2 = d1 - V * cupy.sqrt(t)
//!     cdf = lambda x: 0.5 * (1 + cupyx.scipy.special.erf(x / 2 ** 0.5))
//!     call = s * cdf(d1) - k * cupy.exp(-R * t) * cdf(d2)
//!     return call, call - s + k * cupy.exp(-R * t)
//! ```

use crate::check;
use gpumem::array::{Expression, Lazy, update};
use gpumem::ndarray::Array1;
use gpumem::{Gpu, GpuArray};
use std::error::Error;
use std::f64::consts::FRAC_1_SQRT_2;

const OPTIONS: usize = 100_000;
/// The riskless rate, and the volatility, of a year.
const RATE: f64 = 0.05;
const VOLATILITY: f64 = 0.2;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    // The first one has a price that is well known; the others lie around it.
    let around = |middle: f64, width: f64, turn: f64| {
        Array1::from_shape_fn(OPTIONS, |i| middle + width * (i as f64 * turn).sin())
    };
    let spot = GpuArray::from_array(gpu, &around(100.0, 30.0, 0.1))?;
    let strike = GpuArray::from_array(gpu, &around(100.0, 30.0, 0.23))?;
    let years = GpuArray::from_array(gpu, &around(1.0, 0.9, 0.37))?;
    let (mut calls, mut puts) = (GpuArray::zeros(gpu, OPTIONS)?, GpuArray::zeros(gpu, OPTIONS)?);
    update((&mut calls, &mut puts), |_| {
        let root = years.lazy().sqrt() * VOLATILITY;
        let d1 =
            ((spot.lazy() / &strike).ln() + years.lazy() * (RATE + VOLATILITY * VOLATILITY / 2.0)) / root;
        let discounted = (years.lazy() * -RATE).exp() * &strike;
        let call = spot.lazy() * normal(d1) - discounted * normal(d1 - root);
        (call, call - &spot + discounted)
    })?;
    let call = calls.slice(gpumem::ndarray::s![..1])?.sum()?.into_scalar()?;
    check("the price of the first call", call, 10.450_583_572, 1e-9)?;
    let least = puts.lazy().min_element()?.into_scalar()?;
    if least < -1e-12 {
        return Err(format!("a put costs {least}").into());
    }
    let mean = calls.lazy().mean()?.into_scalar()?;
    Ok(format!("first call {call:.6}, mean of {OPTIONS} calls {mean:.4}"))
}

/// The distribution function of the normal distribution.
fn normal<E: Expression<Elem = f64> + Copy>(
    x: Lazy<E>,
) -> Lazy<impl Expression<Elem = f64, Dim = E::Dim> + Copy> {
    ((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}
