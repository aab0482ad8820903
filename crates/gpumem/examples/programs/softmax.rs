//! Softmax regression: which digit is it?
//!
//! In CuPy:
//!
//! ```python
//! for _ in range(15):
//!     z = x @ w
//!     e = cupy.exp(z - z.max(1, keepdims=True))
//!     w -= 2 / len(x) * (x.T @ (e / e.sum(1, keepdims=True) - one_hot))
//! ```

use crate::{check, data};
use gpumem::ndarray::{Axis, s};
use gpumem::{Gpu, GpuArray};
use std::error::Error;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let (images, shown) = data::digits()?;
    let x = GpuArray::from_array(gpu, &(images / 16.0))?;
    let digits = GpuArray::from_array(gpu, &shown)?;
    let (known, unknown) = (x.slice(s![..1500, ..])?, x.slice(s![1500.., ..])?);
    let classes = GpuArray::from_slice(gpu, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])?;
    let one_hot =
        digits.slice(s![..1500])?.lazy().insert_axis(Axis(1)).equals(&classes).cast::<f32>().eval()?;
    let mut w = GpuArray::<f32, _>::zeros(gpu, (64, 10))?;
    let mut p = one_hot.try_clone()?;
    for _ in 0..15 {
        p = known.dot(&w)?.softmax_axis(Axis(1))?;
        let gradient = known.t().dot(&(&p - &one_hot))?;
        w -= gradient.lazy() * (2.0 / 1500.0);
    }
    let loss = -(p.lazy().ln() * &one_hot).sum()?.into_scalar()? / 1500.0;
    // From the same steps in NumPy.
    check("the loss", loss.into(), 0.546_976, 1e-3)?;
    let found = unknown.dot(&w)?.argmax_axis(Axis(1))?;
    let is_right = found.lazy().equals(digits.slice(s![1500..])?.lazy().cast::<i64>());
    let right = is_right.count()?.into_scalar()? as f64 / found.len() as f64;
    check("the share of right answers", right, 0.865, 1e-2)?;
    Ok(format!("loss {loss:.4}; {:.1} % of unknown digits right", right * 100.0))
}
