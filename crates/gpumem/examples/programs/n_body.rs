//! 128 bodies that attract each other, by leapfrog steps. Distances are never stored: each sum is one kernel over all pairs.
//!
//! In CuPy:
//!
//! ```python
//! def acceleration(p):
//!     d = p[None, :, :] - p[:, None, :]
//!     r = (d * d).sum(2) + SOFT
//!     return (d * r[:, :, None] ** -1.5).sum(1)
//! ```

use crate::check;
use gpumem::array::Rng;
use gpumem::ndarray::{Axis, Ix1};
use gpumem::{ArrayError, Gpu, GpuArray};
use std::error::Error;

const BODIES: usize = 128;
const STEPS: usize = 20;
const STEP: f64 = 1e-3;
/// Added to squared distances, so that forces are finite.
const SOFT: f64 = 1e-2;

type Vector = GpuArray<f64, Ix1>;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let mut rng = Rng::new(11);
    let mut random = || GpuArray::random_normal(gpu, BODIES, &mut rng);
    let mut places = [random()?, random()?, random()?];
    let mut speeds =
        [GpuArray::zeros(gpu, BODIES)?, GpuArray::zeros(gpu, BODIES)?, GpuArray::zeros(gpu, BODIES)?];
    let before = energy(&places, &speeds)?;
    let mut forces = acceleration(&places)?;
    for _ in 0..STEPS {
        for axis in 0..3 {
            speeds[axis] += forces[axis].lazy() * (STEP / 2.0);
            places[axis] += speeds[axis].lazy() * STEP;
        }
        forces = acceleration(&places)?;
        for axis in 0..3 {
            speeds[axis] += forces[axis].lazy() * (STEP / 2.0);
        }
    }
    let after = energy(&places, &speeds)?;
    check("the energy", after, before, 1e-5)?;
    for speed in &speeds {
        let momentum = speed.sum()?.into_scalar()?;
        if momentum.abs() > 1e-9 {
            return Err(format!("the bodies drift with {momentum}").into());
        }
    }
    let change = (after / before - 1.0).abs();
    Ok(format!("energy {before:.3} of {BODIES} bodies, changed by {change:.1e} of it in {STEPS} steps"))
}

/// The squared distances of all pairs, as an expression.
macro_rules! squares {
    ([$x:expr, $y:expr, $z:expr]) => {{
        let [x, y, z] = [$x, $y, $z].map(|axis| axis.lazy().insert_axis(Axis(0)) - axis.lazy().insert_axis(Axis(1)));
        x * x + y * y + z * z + SOFT
    }};
}

fn acceleration([x, y, z]: &[Vector; 3]) -> Result<[Vector; 3], ArrayError> {
    let along = |axis: &Vector| {
        let pull = squares!([x, y, z]).pow(-1.5);
        ((axis.lazy().insert_axis(Axis(0)) - axis.lazy().insert_axis(Axis(1))) * pull).sum_axis(Axis(1))
    };
    Ok([along(x)?, along(y)?, along(z)?])
}

/// Of the motions and of all pairs.
fn energy([x, y, z]: &[Vector; 3], [u, v, w]: &[Vector; 3]) -> Result<f64, ArrayError> {
    let motion = (u.lazy() * u + v.lazy() * v + w.lazy() * w).sum()?.into_scalar()? / 2.0;
    // Each pair twice, and each body with itself.
    let pairs = squares!([x, y, z]).pow(-0.5).sum()?.into_scalar()? - BODIES as f64 * SOFT.powf(-0.5);
    Ok(motion - pairs / 2.0)
}
