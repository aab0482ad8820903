//! Batch sizes that fit into memory: [`fit_batch_size`] finds the largest, [`halve_on_out_of_memory`] continues with a smaller one.

use crate::error::ran_out_of_memory;
use core::error::Error;
use core::fmt;
use core::ops::{Range, RangeInclusive};
use gpumem_array::{ArrayError, Gpu};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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
    /// The bytes that arrays moved to the host and back during the attempt, in a pool that spills.
    pub moved_bytes: u64,
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
/// In a pool that spills, sizes with which arrays move to the host in each repetition do not fit. A step that succeeds with moves is repeated a
/// few times, until arrays that it does not use have left and those that it uses are back. If arrays move even with the smallest size, moves do not count, and the largest
/// size that succeeds is the result.
///
/// # Errors
///
/// The first error of `step` that does not report that memory or a limit ran out. The report is found if the error is a gpumem error or has
/// one among its [sources](Error::source). With `thiserror`, wrap it with `#[from]`; `#[error(transparent)]` hides it.
///
/// # Panics
///
/// The panics of `step`, except those of operators that ran out of memory on this thread ([`ArrayError::of_panic`]): they count as an error,
/// if panics unwind.
pub fn fit_batch_size<E: Error + 'static>(
    gpu: &Gpu,
    range: RangeInclusive<usize>,
    mut step: impl FnMut(usize) -> Result<(), E>,
) -> Result<Fit, E> {
    let (mut size, last) = (*range.start(), *range.end());
    let mut fit = Fit { batch_size: None, attempts: Vec::new() };
    // The smallest size that did not fit.
    let mut too_large: Option<usize> = None;
    let mut moves_count = true;
    while !range.is_empty() {
        let mut attempt = attempt(gpu, size, &mut step)?;
        for _ in 0..REPETITIONS_MAX {
            if !moves_count || !attempt.fits || attempt.moved_bytes == 0 {
                break;
            }
            attempt.fits = false;
            fit.attempts.push(attempt);
            attempt = self::attempt(gpu, size, &mut step)?;
        }
        if attempt.fits && attempt.moved_bytes > 0 && moves_count {
            moves_count = size != *range.start();
            attempt.fits = !moves_count;
        }
        if attempt.fits {
            fit.batch_size = Some(size)
        } else {
            too_large = Some(size)
        }
        fit.attempts.push(attempt);
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

fn attempt<E: Error + 'static>(
    gpu: &Gpu,
    batch_size: usize,
    step: &mut impl FnMut(usize) -> Result<(), E>,
) -> Result<FitAttempt, E> {
    release(gpu);
    let moved_bytes = || {
        let counters = gpu.pool().status().map(|status| status.counters);
        counters.map_or(0, |counters| counters.spilled_down_bytes + counters.spilled_up_bytes)
    };
    let before_bytes = moved_bytes();
    let fits = match run(|| step(batch_size)) {
        Ok(()) => true,
        Err(Ended { ran_out_of_memory: true, .. }) => false,
        Err(ended) => return ended.pass_on(),
    };
    let peak_bytes = gpu.pool().status().map_or(0, |status| status.in_use_peak_bytes);
    Ok(FitAttempt { batch_size, fits, peak_bytes, moved_bytes: moved_bytes().saturating_sub(before_bytes) })
}

/// A step that did not succeed.
struct Ended<E> {
    ran_out_of_memory: bool,
    cause: EndCause<E>,
}

enum EndCause<E> {
    Error(E),
    Panic(Box<dyn Any + Send>),
}

impl<E> Ended<E> {
    fn pass_on<R>(self) -> Result<R, E> {
        match self.cause {
            EndCause::Error(error) => Err(error),
            EndCause::Panic(payload) => resume_unwind(payload),
        }
    }
}

/// Runs a step. Operators panic where other operations return an error.
fn run<R, E: Error + 'static>(step: impl FnOnce() -> Result<R, E>) -> Result<R, Ended<E>> {
    // What the step leaves behind when it unwinds, it also leaves behind when it returns an error.
    let (ran_out_of_memory, cause) = match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(result)) => return Ok(result),
        Ok(Err(error)) => (ran_out_of_memory(&error), EndCause::Error(error)),
        Err(payload) => {
            let error = ArrayError::of_panic(&*payload);
            (error.is_some_and(|error| error.is_out_of_memory()), EndCause::Panic(payload))
        }
    };
    Err(Ended { ran_out_of_memory, cause })
}

/// Repetitions of a step with moves.
const REPETITIONS_MAX: usize = 3;

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
///
/// # Panics
///
/// The panics of `step`, except those of operators that ran out of memory with more than one item; see [`fit_batch_size`].
pub fn halve_on_out_of_memory<R, E: Error + 'static>(
    gpu: &Gpu,
    item_count: usize,
    batch_size: usize,
    mut step: impl FnMut(Range<usize>) -> Result<R, E>,
) -> Result<Vec<(Range<usize>, R)>, E> {
    let (mut results, mut start, mut size) = (Vec::new(), 0, batch_size.max(1));
    while start < item_count {
        let items = start..start.saturating_add(size).min(item_count);
        match run(|| step(items.clone())) {
            Ok(result) => {
                start = items.end;
                results.push((items, result));
            }
            Err(ended) if items.len() > 1 && ended.ran_out_of_memory => {
                size = items.len().div_ceil(2);
                let _ = gpu.device().synchronize();
                let _ = gpu.pool().trim_to(0);
            }
            Err(ended) => return ended.pass_on(),
        }
    }
    Ok(results)
}

/// One line for each attempt, and the result.
impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |size_bytes: u64| size_bytes as f64 / f64::from(1 << 20);
        for FitAttempt { batch_size, fits, peak_bytes, moved_bytes } in &self.attempts {
            let outcome = if *fits { "fits" } else { "does not fit" };
            write!(f, "batch size {batch_size}: {outcome}, peak {:.1} MiB", mib(*peak_bytes))?;
            match moved_bytes {
                0 => writeln!(f)?,
                _ => writeln!(f, ", {:.1} MiB moved to the host and back", mib(*moved_bytes))?,
            }
        }
        match self.batch_size {
            Some(size) => write!(f, "largest batch size: {size}"),
            None => write!(f, "no batch size fits"),
        }
    }
}
