//! Batch sizes that fit into memory: [`fit_batch_size`] finds the largest, [`halve_on_out_of_memory`] continues with a smaller one.

use crate::error::ran_out_of_memory;
use core::error::Error;
use core::fmt;
use core::ops::{Range, RangeInclusive};
use gpumem_array::Gpu;

/// The largest batch size that fits, and the attempts that found it; see [`fit_batch_size`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The largest size that succeeded; `None` if the smallest did not.
    pub batch_size: Option<usize>,
    /// All attempts, in their order.
    pub attempts: Vec<FitAttempt>,
}

/// One attempt of [`fit_batch_size`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitAttempt {
    /// The batch size.
    pub batch_size: usize,
    /// True if the batch fitted.
    pub fits: bool,
    /// The peak of the pool's memory in use during the attempt, in bytes.
    pub peak_bytes: u64,
}

/// Finds the largest batch size in a range with which `step` succeeds: doubles the size until memory runs out, then bisects.
///
/// Each attempt first waits for the device, releases unused memory, so that everything except the program's own values is free, and resets
/// the peaks in the pool's status. Let `step` run everything, including the backward pass and the update, because that decides how much
/// memory is needed.
///
/// ```
/// use gpumem_adapt::array::pool::{Device, Limit, Pool};
/// use gpumem_adapt::array::{Gpu, GpuArray};
/// use gpumem_adapt::fit_batch_size;
///
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(64 << 20)).build()?)?;
/// let fit = fit_batch_size(&gpu, 1..=1024, |size| GpuArray::<f32, _>::zeros(&gpu, (size, 1 << 18)).map(drop))?;
/// assert_eq!(fit.batch_size, Some(64));
/// println!("{fit}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The first error of `step` that does not report that memory or a limit ran out. The report is found if the error is a gpumem error or has
/// one among its [sources](Error::source). With `thiserror`, wrap it with `#[from]`; `#[error(transparent)]` hides it.
pub fn fit_batch_size<E: Error + 'static>(
    gpu: &Gpu,
    range: RangeInclusive<usize>,
    mut step: impl FnMut(usize) -> Result<(), E>,
) -> Result<Fit, E> {
    let (mut size, last) = (*range.start(), *range.end());
    let mut fit = Fit { batch_size: None, attempts: Vec::new() };
    // The smallest size that did not fit.
    let mut too_large: Option<usize> = None;
    while !range.is_empty() {
        release(gpu);
        let outcome = step(size);
        let fits = match outcome {
            Ok(()) => true,
            Err(error) if ran_out_of_memory(&error) => false,
            Err(error) => return Err(error),
        };
        let peak_bytes = gpu.pool().status().map_or(0, |status| status.in_use_peak_bytes);
        fit.attempts.push(FitAttempt { batch_size: size, fits, peak_bytes });
        if fits {
            fit.batch_size = Some(size)
        } else {
            too_large = Some(size)
        }
        size = match (fit.batch_size, too_large) {
            (Some(largest), None) if largest < last => largest.saturating_mul(2).clamp(largest + 1, last),
            (Some(largest), Some(too_large)) if too_large - largest > 1 => {
                largest + (too_large - largest) / 2
            }
            _ => break,
        };
    }
    release(gpu);
    Ok(fit)
}

/// Releases the memory of the last attempt. The next attempt reports a failure.
fn release(gpu: &Gpu) {
    let _ = gpu.device().synchronize();
    let _ = gpu.pool().trim_to(0);
    let _ = gpu.pool().reset_peaks();
}

/// Calls `step` with the items `0..item_count` in batches. When memory or a limit runs out, unused memory is released and the batch is
/// repeated in halves; later batches stay that small. Returns the results, with the items of each.
///
/// A server can use this to keep running when a batch is too large at the moment.
///
/// ```
/// use gpumem_adapt::array::pool::{Device, Limit, Pool};
/// use gpumem_adapt::array::{Gpu, GpuArray};
/// use gpumem_adapt::halve_on_out_of_memory;
///
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(64 << 20)).build()?)?;
/// let host = vec![1.0_f32; 100 << 18]; // 100 MiB
/// let sums = halve_on_out_of_memory(&gpu, 100, 100, |items| {
///     GpuArray::from_slice(&gpu, &host[items.start << 18..items.end << 18])?.sum()?.into_scalar()
/// })?;
/// let ranges: Vec<_> = sums.iter().map(|(items, _)| items.clone()).collect();
/// assert_eq!(ranges, [0..50, 50..100]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The error of `step` if a batch of one item does not fit, or if the cause is not memory; see [`fit_batch_size`]. The results so far are
/// dropped.
pub fn halve_on_out_of_memory<R, E: Error + 'static>(
    gpu: &Gpu,
    item_count: usize,
    batch_size: usize,
    mut step: impl FnMut(Range<usize>) -> Result<R, E>,
) -> Result<Vec<(Range<usize>, R)>, E> {
    let (mut results, mut start, mut size) = (Vec::new(), 0, batch_size.max(1));
    while start < item_count {
        let items = start..start.saturating_add(size).min(item_count);
        match step(items.clone()) {
            Ok(result) => {
                start = items.end;
                results.push((items, result));
            }
            Err(error) if items.len() > 1 && ran_out_of_memory(&error) => {
                size = items.len().div_ceil(2);
                let _ = gpu.device().synchronize();
                let _ = gpu.pool().trim_to(0);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(results)
}

/// One line for each attempt, and the result.
impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FitAttempt { batch_size, fits, peak_bytes } in &self.attempts {
            let outcome = if *fits { "fits" } else { "does not fit" };
            let peak_mib = *peak_bytes as f64 / f64::from(1 << 20);
            writeln!(f, "batch size {batch_size}: {outcome}, peak {peak_mib:.1} MiB")?;
        }
        match self.batch_size {
            Some(size) => write!(f, "largest batch size: {size}"),
            None => write!(f, "no batch size fits"),
        }
    }
}
