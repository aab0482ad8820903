//! [`PoolCounters`]: a pool's activity since it was built. [`ActivityCounters`] counts it, only on slow paths.

use super::figures;
#[cfg(feature = "serde")]
use crate::config::seconds;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_device::Bytes;
use std::time::Instant;

macro_rules! value {
    (time) => {
        Duration
    };
    ($unit:ident) => {
        u64
    };
    (time, $count:expr) => {
        Duration::from_nanos($count)
    };
    ($unit:ident, $count:expr) => {
        $count
    };
}

macro_rules! shown {
    (bytes, $value:expr) => {
        Bytes($value)
    };
    ($unit:ident, $value:expr) => {
        $value
    };
}

macro_rules! counters {
    (
        measured { $($_measured:tt)* }
        counted {$(
            $(#[$meta:meta])*
            $name:ident: $unit:ident $(, c $_position:literal)?;
        )+}
        text {$( $line:literal; )+}
    ) => {
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
            $(
                $(#[$meta])*
                pub $name: value!($unit),
            )+
            /// The steps of requests that found no free memory, in the order of their first use.
            pub steps: Vec<StepCounters>,
        }

        impl PoolCounters {
            /// The lines of [`Status`](crate::Status) without the steps.
            pub(crate) fn lines(&self) -> Vec<String> {
                $(let $name = shown!($unit, self.$name);)+
                vec![$(format!($line)),+]
            }
        }

        /// The counters of one pool. Shared by all threads.
        #[derive(Debug, Default)]
        pub(crate) struct ActivityCounters {
            $(pub(crate) $name: Tally,)+
            steps: Lock<Vec<StepCounters>>,
        }

        impl ActivityCounters {
            /// The counters at this moment. An operation that runs at the same time may be counted in part.
            pub(crate) fn read(&self) -> PoolCounters {
                PoolCounters {
                    $($name: value!($unit, self.$name.0.load(Ordering::Relaxed)),)+
                    steps: self.steps.lock().clone(),
                }
            }
        }
    };
}

figures!(counters);

/// The counters of one step to make room, over all requests. [`Attempt`](crate::Attempt) lists the steps of one request.
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

/// A count, or a number of nanoseconds, which overflows after 584 years.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

fn timed<R>(count: &Tally, time: &Tally, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    count.add(1);
    time.add_time(start.elapsed());
    result
}

impl ActivityCounters {
    pub(crate) fn driver_call<R>(&self, call: impl FnOnce() -> R) -> R {
        timed(&self.driver_call_count, &self.driver_call_time, call)
    }

    pub(crate) fn host_wait<R>(&self, wait: impl FnOnce() -> R) -> R {
        timed(&self.host_wait_count, &self.host_wait_time, wait)
    }

    pub(crate) fn add_steps(&self, of_request: impl Iterator<Item = StepCounters>) {
        let mut steps = self.steps.lock();
        for StepCounters { name, gained_bytes, served_count, took } in of_request {
            match steps.iter_mut().find(|step| step.name == name) {
                None => steps.push(StepCounters { name, gained_bytes, served_count, took }),
                Some(step) => {
                    step.gained_bytes = step.gained_bytes.saturating_add(gained_bytes);
                    step.served_count += served_count;
                    step.took = step.took.saturating_add(took);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_requests_add_up() {
        let (counters, millisecond) = (ActivityCounters::default(), Duration::from_millis(1));
        let step = |name, gained_bytes, served_count| StepCounters {
            name,
            gained_bytes,
            served_count,
            took: millisecond,
        };
        counters.add_steps([step("a", 0, 0), step("b", 10, 1)].into_iter());
        counters.add_steps([step("b", 5, 0), step("c", 0, 0)].into_iter());
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
