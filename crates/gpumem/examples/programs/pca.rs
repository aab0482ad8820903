//! The three directions in which digits differ most, by power iterations.
//!
//! In CuPy:
//!
//! ```python
//! c = x - x.mean(0)
//! covariance = c.T @ c / (len(x) - 1)
//! for _ in range(3):
//!     v = cupy.ones(64)
//!     for _ in range(100):
//!         v = covariance @ v
//!         v /= cupy.linalg.norm(v)
//!     variance = v @ covariance @ v
//!     covariance -= variance * cupy.outer(v, v)
//! ```

use crate::{check, data};
use gpumem::ndarray::Axis;
use gpumem::{Gpu, GpuArray};
use std::error::Error;

/// The shares of the variance, from NumPy's `linalg.eigvalsh`.
const SHARES: [f64; 3] = [0.148_906, 0.136_188, 0.117_946];

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let (images, _) = data::digits()?;
    let x = GpuArray::from_array(gpu, &images.mapv(f64::from))?;
    let centred = &x - x.lazy().mean_axis(Axis(0))?;
    let mut covariance = centred.t().dot(&centred)? / (x.nrows() as f64 - 1.0);
    let whole = covariance.diag().sum()?.into_scalar()?;
    let mut found = Vec::new();
    for known in SHARES {
        let mut v = GpuArray::from_elem(gpu, 64, 1.0)?;
        for _ in 0..100 {
            let next = covariance.dot(&v)?;
            v = (next.lazy() / next.norm()?.lazy()).eval()?;
        }
        let variance = v.dot(&covariance.dot(&v)?)?;
        covariance -= variance.lazy() * v.lazy().insert_axis(Axis(1)) * &v;
        let share = variance.into_scalar()? / whole;
        check("a share of the variance", share, known, 1e-3)?;
        found.push(format!("{:.2} %", share * 100.0));
    }
    Ok(format!("shares of the variance: {}", found.join(", ")))
}
