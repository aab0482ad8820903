//! [`PoolCounters`]: a pool's activity since it was built. [`ActivityCounters`] counts it, only on slow paths.

use crate::config::Bytes;
#[cfg(feature = "serde")]
use crate::config::seconds;
use crate::error::Attempt;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Counters of a pool's activity since it was built. They only rise, and no call resets them.
///
/// They count only slow paths, not allocations and frees that the thread's cache handles.
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
/// let stream = Stream::new(&device)?;
/// let held = pool.alloc(48 << 20, &stream)?;
/// assert!(pool.alloc(32 << 20, &stream).is_err());
/// drop(held);
/// pool.reclaim()?;
///
/// let counters = pool.status()?.counters;
/// assert_eq!((counters.refusal_count, counters.slow_allocation_count), (1, 2));
/// assert!(counters.driver_call_count > 0 && counters.host_wait_count > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolCounters {
    /// Requests that were refused because memory, a limit, a quota or a budget ran out, or because they were larger than the
    /// device.
    pub refusal_count: u64,
    /// Allocations that no cache of the calling thread served, including those that the backend refused: with `native` and `none`, all of
    /// them. Each size that [`Pool::alloc_up_to`](crate::Pool::alloc_up_to) tries counts, and each repetition after the refusal of a budget
    /// that reaches the backend. Requests that an adaptor refuses earlier, and parts of a graph's memory, do not count.
    pub slow_allocation_count: u64,
    /// Bytes that the pool has returned to the driver. With `native`, without those that the driver releases on its own when the host
    /// waits; with `none`, 0, because it keeps no memory.
    pub trimmed_bytes: u64,
    /// Driver calls that obtain, map, trim or release memory of the pool.
    pub driver_call_count: u64,
    /// The time in those calls, over all threads. With `none`, a call that frees memory waits for the device.
    #[cfg_attr(feature = "serde", serde(rename = "driver_call_seconds", serialize_with = "seconds"))]
    pub driver_call_time: Duration,
    /// Waits that the pool has inserted into streams, on the device: a stream whose request got memory that another stream
    /// freed, and with `native` a free behind work of other streams.
    pub inserted_wait_count: u64,
    /// Waits of the host for the device: by requests that found no free memory, by [`Pool::reclaim`](crate::Pool::reclaim), and with `none`
    /// by frees.
    pub host_wait_count: u64,
    /// The time in those waits, over all threads.
    #[cfg_attr(feature = "serde", serde(rename = "host_wait_seconds", serialize_with = "seconds"))]
    pub host_wait_time: Duration,
    /// The steps of requests that found no free memory, in the order of their first use.
    pub steps: Vec<StepCounters>,
}

/// The counters of one step to make room, over all requests. [`Attempt`] lists the steps of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StepCounters {
    /// The name of the step.
    pub name: &'static str,
    /// Bytes that became free: the size of each request that the step served, and the growth of free memory if it did not suffice.
    pub gained_bytes: u64,
    /// The requests that the step served.
    pub served_count: u64,
    /// The time in the step, over all threads.
    #[cfg_attr(feature = "serde", serde(rename = "took_seconds", serialize_with = "seconds"))]
    pub took: Duration,
}

impl PoolCounters {
    /// Writes the lines of [`Status`](super::Status) without the steps.
    pub(super) fn write_lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Memory pool requests: {} refused, {} beyond the caches of threads",
            self.refusal_count, self.slow_allocation_count
        )?;
        writeln!(
            f,
            "Memory pool driver calls: {} in {:.1?} ({} returned)",
            self.driver_call_count,
            self.driver_call_time,
            Bytes(self.trimmed_bytes)
        )?;
        writeln!(
            f,
            "Memory pool waits: {} in streams, {} of the host in {:.1?}",
            self.inserted_wait_count, self.host_wait_count, self.host_wait_time
        )
    }
}

/// The counters of one pool. Shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct ActivityCounters {
    refusals: AtomicU64,
    slow_allocations: AtomicU64,
    trimmed_bytes: AtomicU64,
    driver_calls: Timed,
    inserted_waits: AtomicU64,
    host_waits: Timed,
    steps: Mutex<Vec<StepCounters>>,
}

/// A number of events, and their total time.
#[derive(Debug, Default)]
struct Timed {
    count: AtomicU64,
    /// It overflows after 584 years.
    nanoseconds: AtomicU64,
}

impl Timed {
    fn time<R>(&self, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        result
    }

    fn read(&self) -> (u64, Duration) {
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        (self.count.load(Ordering::Relaxed), Duration::from_nanos(nanoseconds))
    }
}

impl ActivityCounters {
    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_slow_allocation(&self) {
        self.slow_allocations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_trimmed(&self, bytes: u64) {
        self.trimmed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cfg(any(feature = "backend-caching", feature = "backend-native"))]
    pub(crate) fn count_inserted_waits(&self, count: u64) {
        self.inserted_waits.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts and times `call`, a call of the driver for memory.
    pub(crate) fn driver_call<R>(&self, call: impl FnOnce() -> R) -> R {
        self.driver_calls.time(call)
    }

    /// Counts and times `wait`, in which the host waits for the device.
    pub(crate) fn host_wait<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.host_waits.time(wait)
    }

    /// Adds the steps of a request. `served_by` names the step that served it, if one did.
    pub(crate) fn add_steps(&self, attempts: &[Attempt], served_by: Option<&'static str>) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        for Attempt { name, gained_bytes, took, .. } in attempts {
            let served_count = u64::from(served_by == Some(*name));
            match steps.iter_mut().find(|step| step.name == *name) {
                None => {
                    steps.push(StepCounters { name, gained_bytes: *gained_bytes, served_count, took: *took })
                }
                Some(step) => {
                    step.gained_bytes = step.gained_bytes.saturating_add(*gained_bytes);
                    step.served_count += served_count;
                    step.took = step.took.saturating_add(*took);
                }
            }
        }
    }

    /// The counters at this moment. An operation that runs at the same time may be counted in part.
    pub(crate) fn read(&self) -> PoolCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (driver_call_count, driver_call_time) = self.driver_calls.read();
        let (host_wait_count, host_wait_time) = self.host_waits.read();
        PoolCounters {
            refusal_count: load(&self.refusals),
            slow_allocation_count: load(&self.slow_allocations),
            trimmed_bytes: load(&self.trimmed_bytes),
            driver_call_count,
            driver_call_time,
            inserted_wait_count: load(&self.inserted_waits),
            host_wait_count,
            host_wait_time,
            steps: self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_requests_add_up() {
        let (counters, millisecond) = (ActivityCounters::default(), Duration::from_millis(1));
        let attempt =
            |name, gained_bytes| Attempt { name, gained_bytes, took: millisecond, failures: Vec::new() };
        counters.add_steps(&[attempt("a", 0), attempt("b", 10)], Some("b"));
        counters.add_steps(&[attempt("b", 5), attempt("c", 0)], None);
        let steps: Vec<_> = counters
            .read()
            .steps
            .into_iter()
            .map(|step| (step.name, step.gained_bytes, step.served_count, step.took.as_millis()))
            .collect();
        assert_eq!(steps, [("a", 0, 0, 1), ("b", 15, 1, 2), ("c", 0, 0, 1)]);
    }

    #[test]
    fn calls_and_waits_are_timed_apart() {
        let counters = ActivityCounters::default();
        let pause = Duration::from_millis(2);
        assert_eq!(counters.driver_call(|| 7), 7);
        counters.host_wait(|| std::thread::sleep(pause));
        let read = counters.read();
        assert_eq!((read.driver_call_count, read.host_wait_count), (1, 1));
        assert!(read.host_wait_time >= pause);
    }
}
