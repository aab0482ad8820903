//! Logistic regression: is a tumour benign?
//!
//! In CuPy:
//!
//! ```python
//! x = (x - x.mean(0)) / x.std(0)
//! for _ in range(100):
//!     p = 1 / (1 + cupy.exp(-(x @ w + bias)))
//!     w -= x.T @ (p - y) / len(y)
//!     bias -= (p - y).mean()
//! ```

use crate::{check, data};
use gpumem::ndarray::Axis;
use gpumem::{Gpu, GpuArray};
use std::error::Error;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let (measured, benign) = data::tumours()?;
    let (x, y) = (GpuArray::from_array(gpu, &measured)?, GpuArray::from_array(gpu, &benign)?);
    let (mean, deviation) = (x.lazy().mean_axis(Axis(0))?, x.lazy().std_axis(Axis(0), 0.0)?);
    let x = ((x.lazy() - &mean) / &deviation).eval()?;
    let (mut w, mut bias) = (GpuArray::<f64, _>::zeros(gpu, 10)?, GpuArray::<f64, _>::zeros(gpu, ())?);
    let mut p = y.try_clone()?;
    for _ in 0..100 {
        p = ((-(x.dot(&w)?.lazy() + &bias)).exp() + 1.0).recip().eval()?;
        let wrong = &p - &y;
        w -= x.t().dot(&wrong)?.lazy() / y.len() as f64;
        bias -= wrong.lazy().mean()?;
    }
    let likely = p.lazy().ln() * &y + (1.0 - p.lazy()).ln() * (1.0 - y.lazy());
    let loss = -likely.mean()?.into_scalar()?;
    let right = p.lazy().gt(0.5).equals(y.lazy().gt(0.5)).count()?.into_scalar()? as f64 / y.len() as f64;
    // From the same steps in NumPy.
    check("the loss", loss, 0.136_439, 1e-4)?;
    check("the share of right answers", right, 0.942, 1e-3)?;
    Ok(format!("loss {loss:.4}; {:.1} % right", right * 100.0))
}
