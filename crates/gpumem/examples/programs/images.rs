//! Edges of all digits, by Sobel's filter: shifted views, one kernel.
//!
//! In CuPy:
//!
//! ```python
//! @cupy.fuse()
//! def magnitude(a, b, c, d, f, g, h, i):
//!     return cupy.sqrt((c + 2 * f + i - a - 2 * d - g) ** 2 + (g + 2 * h + i - a - 2 * b - c) ** 2)
//! edges = magnitude(x[:, :-2, :-2], x[:, :-2, 1:-1], …)
//! mask = edges > edges.mean()
//! ```

use crate::data;
use gpumem::ndarray::{Array3, Axis, s};
use gpumem::{Gpu, GpuArray};
use std::error::Error;

pub(crate) fn run(gpu: &Gpu) -> Result<String, Box<dyn Error>> {
    let (images, _) = data::digits()?;
    let host = images.into_shape_with_order((1797, 8, 8))?;
    let x = GpuArray::from_array(gpu, &host)?;
    let row = |i: isize| -> Result<_, Box<dyn Error>> {
        let part = |j: isize| x.slice(s![.., i..6 + i, j..6 + j]);
        Ok([part(0)?, part(1)?, part(2)?])
    };
    let ([a, b, c], [d, _, f], [g, h, i]) = (row(0)?, row(1)?, row(2)?);
    let across = c.lazy() + f.lazy() * 2.0 + i - a - d.lazy() * 2.0 - g;
    let down = g.lazy() + h.lazy() * 2.0 + i - a - b.lazy() * 2.0 - c;
    let edges = (across * across + down * down).sqrt().eval()?;
    let mean = edges.lazy().mean()?;
    let mask = edges.lazy().gt(mean.lazy()).eval()?;

    // The same on the host.
    let wanted = Array3::from_shape_fn((1797, 6, 6), |(n, y, x)| {
        let at = |i, j| host[[n, y + i, x + j]];
        let across = at(0, 2) + 2.0 * at(1, 2) + at(2, 2) - at(0, 0) - 2.0 * at(1, 0) - at(2, 0);
        let down = at(2, 0) + 2.0 * at(2, 1) + at(2, 2) - at(0, 0) - 2.0 * at(0, 1) - at(0, 2);
        (across * across + down * down).sqrt()
    });
    if edges.to_array()? != wanted {
        return Err("the edges differ from those of the host".into());
    }
    let counts = mask.lazy().count_axis(Axis(0))?;
    let share = mask.lazy().count()?.into_scalar()? as f64 / mask.len() as f64;
    let picture = mask.slice(s![0, .., ..])?.to_array()?;
    let lines = picture
        .outer_iter()
        .map(|row| row.iter().map(|one| if *one { '#' } else { '.' }).collect::<String>());
    let lines = lines.collect::<Vec<_>>().join(" ");
    Ok(format!(
        "{:.1} % of {} pixels are edges, of the first digit {lines}",
        share * 100.0,
        counts.len() * 1797
    ))
}
