//! [`Failures`]: injected allocation failures, for testing a program's error handling.

use super::{Adaptor, Grant, Next, Request};
use crate::error::{OutOfMemory, PoolError, RefusedBy};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_device::Device;

/// Makes some allocations fail as if the device were full; [`Failures::with_error`] chooses another error.
///
/// ```
/// use gpumem_pool::{Device, Pool, PoolError, Stream, adaptor::Failures};
/// use gpumem_sim::SimConfig;
/// use std::sync::Arc;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).adaptor(Arc::new(Failures::nth(2))).build()?;
/// let stream = Stream::new(&device)?;
/// let first = pool.alloc(4096, &stream)?;
/// assert!(matches!(pool.alloc(4096, &stream), Err(PoolError::OutOfMemory(_))));
/// let third = pool.alloc(4096, &stream)?;
/// # drop((first, third));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Failures {
    rule: Rule,
    error: Option<Box<dyn Fn(u64) -> PoolError + Send + Sync>>,
    seen_count: AtomicU64,
    failed_count: AtomicU64,
}

enum Rule {
    Nth(u64),
    Every(u64),
    Share { share: f64, seed: u64 },
    Above(u64),
    When(Box<dyn Fn(&Request<'_>) -> bool + Send + Sync>),
}

impl Failures {
    /// Fails only allocation `number`, counted from 1.
    #[must_use]
    pub fn nth(number: u64) -> Self {
        Self::new(Rule::Nth(number))
    }

    /// Fails every `count`th allocation: all for 1, none for 0.
    #[must_use]
    pub fn every(count: u64) -> Self {
        Self::new(Rule::Every(count))
    }

    /// Fails this fraction of the allocations, from 0 to 1. The choice depends only on the seed and the number of the allocation.
    #[must_use]
    pub fn share(share: f64, seed: u64) -> Self {
        Self::new(Rule::Share { share, seed })
    }

    /// Fails allocations of more than this many bytes.
    #[must_use]
    pub fn above(size_bytes: u64) -> Self {
        Self::new(Rule::Above(size_bytes))
    }

    /// Fails the allocations for which `fails` returns true.
    #[must_use]
    pub fn when(fails: impl Fn(&Request<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self::new(Rule::When(Box::new(fails)))
    }

    /// Sets the error of failed allocations: `error` receives the requested size.
    #[must_use]
    pub fn with_error(mut self, error: impl Fn(u64) -> PoolError + Send + Sync + 'static) -> Self {
        self.error = Some(Box::new(error));
        self
    }

    /// The number of allocations seen.
    #[must_use]
    pub fn seen_count(&self) -> u64 {
        self.seen_count.load(Ordering::Relaxed)
    }

    /// The number of allocations failed by this adaptor.
    #[must_use]
    pub fn failed_count(&self) -> u64 {
        self.failed_count.load(Ordering::Relaxed)
    }

    fn new(rule: Rule) -> Self {
        Self { rule, error: None, seen_count: AtomicU64::new(0), failed_count: AtomicU64::new(0) }
    }

    fn look(&self, request: &Request<'_>) -> Result<(), PoolError> {
        let size_bytes = request.size_bytes();
        let number = self.seen_count.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = match &self.rule {
            Rule::Nth(nth) => number == *nth,
            Rule::Every(count) => *count != 0 && number.is_multiple_of(*count),
            Rule::Share { share, seed } => die(*seed, number) < *share,
            Rule::Above(limit_bytes) => size_bytes > *limit_bytes,
            Rule::When(fails) => fails(request),
        };
        if !fails {
            return Ok(());
        }
        self.failed_count.fetch_add(1, Ordering::Relaxed);
        Err(match &self.error {
            Some(make) => make(size_bytes),
            None => device_full(size_bytes, request.device()),
        })
    }
}

impl Adaptor for Failures {
    fn name(&self) -> &str {
        "failures"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.look(request)?;
        next.alloc(request)
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = match &self.rule {
            Rule::Nth(number) => format!("number {number}"),
            Rule::Every(count) => format!("every {count}"),
            Rule::Share { share, seed } => format!("a share of {share}, seed {seed}"),
            Rule::Above(size_bytes) => format!("above {size_bytes} bytes"),
            Rule::When(_) => "when a function returns true".into(),
        };
        f.debug_struct("Failures")
            .field("rule", &format_args!("{rule}"))
            .field("seen_count", &self.seen_count())
            .field("failed_count", &self.failed_count())
            .finish_non_exhaustive()
    }
}

/// A number from 0 to 1 that depends only on the arguments (splitmix64).
fn die(seed: u64, number: u64) -> f64 {
    let mut bits = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ bits >> 31) as f64 / u64::MAX as f64
}

fn device_full(requested_bytes: u64, device: &Device) -> PoolError {
    let device_total_bytes = device.total_bytes();
    PoolError::OutOfMemory(Box::new(OutOfMemory {
        requested_bytes,
        device_total_bytes,
        refused_by: RefusedBy::OnPurpose,
        ..OutOfMemory::default()
    }))
}
