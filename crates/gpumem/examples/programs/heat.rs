//! Heat that spreads over a plate with cold edges, by explicit steps.
//!
//! In CuPy:
//!
//! ```python
//! for _ in range(200):
//!     new[1:-1, 1:-1] = u[1:-1, 1:-1] + r * (
//!         u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
//!     u, new = new, u
//! ```

use crate::check;
use gpumem::ndarray::{Array2, s};
use gpumem::{Gpu, GpuArray};
use std::error::Error;
use std::f64::consts::PI;

const SIDE: usize = 129;
const STEPS: i32 = 200;
const R: f64 = 0.2;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let wave = |i: usize| (PI * i as f64 / (SIDE - 1) as f64).sin();
    let mut u = GpuArray::from_array(gpu, &Array2::from_shape_fn((SIDE, SIDE), |(i, j)| wave(i) * wave(j)))?;
    let mut next = GpuArray::zeros(gpu, (SIDE, SIDE))?;
    for _ in 0..STEPS {
        let centre = u.slice(s![1..-1, 1..-1])?;
        let sides = u.slice(s![..-2, 1..-1])?.lazy()
            + u.slice(s![2.., 1..-1])?
            + u.slice(s![1..-1, ..-2])?
            + u.slice(s![1..-1, 2..])?;
        next.slice_mut(s![1..-1, 1..-1])?.assign_expr(centre.lazy() + (sides - centre.lazy() * 4.0) * R)?;
        std::mem::swap(&mut u, &mut next);
    }
    // This wave keeps its shape: each step multiplies it by the same number.
    let factor = 1.0 - 8.0 * R * (PI / (2 * (SIDE - 1)) as f64).sin().powi(2);
    let middle = u.slice(s![SIDE / 2..=SIDE / 2, SIDE / 2..=SIDE / 2])?.sum()?.into_scalar()?;
    check("the temperature in the middle", middle, factor.powi(STEPS), 1e-12)?;
    Ok(format!("{middle:.6} in the middle of a {SIDE} × {SIDE} plate after {STEPS} steps"))
}
