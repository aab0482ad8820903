//! A network of two layers that learns digits, with Adam.
//!
//! In CuPy:
//!
//! ```python
//! h = cupy.tanh(x @ w1 + b1)
//! d = (softmax(h @ w2 + b2) - one_hot) / len(x)
//! dh = (d @ w2.T) * (1 - h * h)
//! for (p, m, v), g in zip(parameters, (x.T @ dh, dh.sum(0), h.T @ d, d.sum(0))):
//!     m += 0.1 * (g - m)
//!     v += 0.001 * (g * g - v)
//!     p -= rate * m / (cupy.sqrt(v) + 1e-8)
//! ```

use crate::{check, data};
use gpumem::array::{Rng, update};
use gpumem::ndarray::{Axis, Dimension, s};
use gpumem::{ArrayError, Gpu, GpuArray};
use std::error::Error;

/// Numbers that the network learns, with the moments of their gradients.
struct Parameter<D> {
    value: GpuArray<f32, D>,
    mean: GpuArray<f32, D>,
    square: GpuArray<f32, D>,
}

impl<D: Dimension> Parameter<D> {
    fn new(value: GpuArray<f32, D>) -> Result<Self, ArrayError> {
        let (gpu, dim) = (value.gpu(), value.raw_dim());
        let (mean, square) = (GpuArray::zeros(gpu, dim.clone())?, GpuArray::zeros(gpu, dim)?);
        Ok(Self { value, mean, square })
    }

    /// One step of Adam: three arrays in one kernel.
    fn step(&mut self, gradient: &GpuArray<f32, D>, rate: f32) -> Result<(), ArrayError> {
        update((&mut self.value, &mut self.mean, &mut self.square), |(value, mean, square)| {
            let mean = mean + (gradient.lazy() - mean) * 0.1;
            let square = square + (gradient.lazy() * gradient - square) * 0.001;
            (value - mean.clone() * rate / (square.clone().sqrt() + 1e-8), mean, square)
        })
    }
}

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let (images, shown) = data::digits()?;
    let x = GpuArray::from_array(gpu, &(images / 16.0))?;
    let digits = GpuArray::from_array(gpu, &shown)?;
    let (known, unknown) = (x.slice(s![..1500, ..])?, x.slice(s![1500.., ..])?);
    let classes = GpuArray::from_slice(gpu, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])?;
    let one_hot =
        digits.slice(s![..1500])?.lazy().insert_axis(Axis(1)).equals(&classes).cast::<f32>().eval()?;
    let mut rng = Rng::new(7);
    let mut w1 = Parameter::new(GpuArray::random_normal(gpu, (64, 32), &mut rng)? * 0.125)?;
    let mut b1 = Parameter::new(GpuArray::zeros(gpu, 32)?)?;
    let mut w2 = Parameter::new(GpuArray::random_normal(gpu, (32, 10), &mut rng)? * 0.18)?;
    let mut b2 = Parameter::new(GpuArray::zeros(gpu, 10)?)?;
    for step in 1..=20 {
        let h = (known.dot(&w1.value)?.lazy() + &b1.value).tanh().eval()?;
        let p = (h.dot(&w2.value)?.lazy() + &b2.value).softmax_axis(Axis(1))?;
        let d = ((p.lazy() - &one_hot) * (1.0 / 1500.0)).eval()?;
        let dh = (d.dot(&w2.value.t())?.lazy() * (1.0 - h.lazy() * &h)).eval()?;
        // Adam's correction of moments that begin at zero.
        let rate = 0.05 * (1.0 - 0.999_f32.powi(step)).sqrt() / (1.0 - 0.9_f32.powi(step));
        w1.step(&known.t().dot(&dh)?, rate)?;
        b1.step(&dh.lazy().sum_axis(Axis(0))?, rate)?;
        w2.step(&h.t().dot(&d)?, rate)?;
        b2.step(&d.lazy().sum_axis(Axis(0))?, rate)?;
    }
    let h = (unknown.dot(&w1.value)?.lazy() + &b1.value).tanh().eval()?;
    let found = (h.dot(&w2.value)?.lazy() + &b2.value).argmax_axis(Axis(1))?;
    let is_right = found.lazy().equals(digits.slice(s![1500..])?.lazy().cast::<i64>());
    let right = is_right.count()?.into_scalar()? as f64 / found.len() as f64;
    check("the share of right answers", right, 0.88, 4e-2)?;
    Ok(format!("{:.1} % of unknown digits right", right * 100.0))
}
