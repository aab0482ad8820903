//! Ten clusters of handwritten digits by Lloyd's algorithm.
//!
//! In CuPy:
//!
//! ```python
//! for _ in range(20):
//!     nearest = ((centres * centres).sum(1) - 2 * x @ centres.T).argmin(1)
//!     sums = cupy.zeros((10, 64)); cupyx.scatter_add(sums, nearest, x)
//!     counts = cupy.bincount(nearest, minlength=10)
//!     centres = sums / counts[:, None]
//! ```

use crate::{check, data};
use gpumem::ndarray::Axis;
use gpumem::{Gpu, GpuArray};
use std::error::Error;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let (images, shown) = data::digits()?;
    let x = GpuArray::from_array(gpu, &images)?;
    let ones = GpuArray::from_elem(gpu, x.nrows(), 1.0_f32)?;
    // Every 179th image is the first centre of a cluster.
    let mut centres = x.select(Axis(0), &[0, 179, 358, 537, 716, 895, 1074, 1253, 1432, 1611])?;
    let mut nearest = GpuArray::zeros(gpu, x.nrows())?;
    for _ in 0..20 {
        let squares = (centres.lazy() * &centres).sum_axis(Axis(1))?;
        nearest = (squares.lazy() - x.dot(&centres.t())?.lazy() * 2.0).argmin_axis(Axis(1))?;
        let (mut sums, mut counts) = (GpuArray::zeros(gpu, (10, 64))?, GpuArray::zeros(gpu, 10)?);
        sums.scatter_add(Axis(0), &nearest, &x)?;
        counts.scatter_add(Axis(0), &nearest, &ones)?;
        centres = (sums.lazy() / counts.lazy().insert_axis(Axis(1))).eval()?;
    }
    let own = centres.select(Axis(0), &nearest)?;
    let squares = ((x.lazy() - &own) * (x.lazy() - &own)).sum()?.into_scalar()?;
    // From the same steps in NumPy.
    check("the sum of the squared distances", squares.into(), 1_236_674.97, 1e-4)?;

    let mut digits = vec![[0_usize; 10]; 10];
    for (cluster, digit) in nearest.to_vec()?.iter().zip(&shown) {
        digits[*cluster as usize][*digit as usize] += 1;
    }
    let of_cluster = |counts: &[usize; 10]| counts.iter().copied().max().unwrap_or(0);
    let right = digits.iter().map(of_cluster).sum::<usize>() as f64 / shown.len() as f64;
    check("the share of digits in a cluster of their own", right, 0.709, 1e-2)?;
    Ok(format!("squared distances {squares:.0}; {:.1} % in a cluster of their digit", right * 100.0))
}
