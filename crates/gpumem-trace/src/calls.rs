//! Counts and times the calls of a driver: every function of its table is wrapped.
//!
//! C function pointers carry no state, so the counts are thread-local: only the thread that wrapped a driver can use it.

use core::time::Duration;
use gpumem_pool::sys::types::*;
use gpumem_pool::sys::{CUresult, Driver, Table};
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// Returns the driver with all calls counted and timed.
///
/// Calls from other threads return `CUDA_ERROR_NOT_INITIALIZED`.
///
/// # Safety
///
/// A counted driver that this thread had before, and every object made with it, must not be used again, not even by a drop: its functions
/// call the driver that was counted last. [`replay`](crate::replay) counts a driver too.
///
/// ```
/// use gpumem_trace::calls::{count_calls, reading};
/// use gpumem_trace::pool::{Device, Stream};
///
/// // SAFETY: the thread's only counted driver.
/// let driver = unsafe { count_calls(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?) };
/// let stream = Stream::new(&Device::new(&driver, 0)?)?;
/// let before = reading();
/// stream.synchronize()?;
/// assert_eq!(reading().since(&before).calls.cuStreamSynchronize, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub unsafe fn count_calls(driver: &Driver) -> Driver {
    // SAFETY: the caller's promise.
    unsafe { install(driver, false) }
}

/// Like [`count_calls`]; queries report that work is pending, as on a device that is always busy. A query of an event behind all
/// work of a context waits instead, because pools wait for a device by such queries.
///
/// # Safety
///
/// The safety conditions of [`count_calls`] apply.
#[must_use]
pub(crate) unsafe fn count_calls_busy(driver: &Driver) -> Driver {
    // SAFETY: the caller's promise.
    let busy = unsafe { install(driver, true) };
    let Table { cuCtxRecordEvent, cuEventQuery, cuEventSynchronize, cuEventDestroy_v2, .. } = *busy.table();
    let calls = BehindAll {
        record: cuCtxRecordEvent,
        query: cuEventQuery,
        wait: cuEventSynchronize,
        destroy: cuEventDestroy_v2,
        event: core::ptr::null_mut(),
    };
    BEHIND_ALL.set(Some(calls));
    // SAFETY: each function calls the one that it replaces, or waits for the event of the query.
    unsafe {
        busy.with_table(|table| {
            table.cuCtxRecordEvent = table.cuCtxRecordEvent.map(|_| record_behind_all as _);
            table.cuEventQuery = table.cuEventQuery.map(|_| query as _);
            table.cuEventDestroy_v2 = table.cuEventDestroy_v2.map(|_| destroy as _);
        })
    }
}

/// Runs `work` on this thread's driver as on an idle device: its queries report what is complete.
pub(crate) fn while_idle<R>(work: impl FnOnce() -> R) -> R {
    let set = |hides| {
        COUNTER.with_borrow_mut(|counter| {
            counter.as_mut().is_some_and(|counter| core::mem::replace(&mut counter.hides_completion, hides))
        })
    };
    let before = set(false);
    let done = work();
    set(before);
    done
}

/// The functions that are wrapped a second time, and the last event recorded behind all work of a context.
#[derive(Clone, Copy)]
struct BehindAll {
    record: Option<unsafe extern "C" fn(CUcontext, CUevent) -> CUresult>,
    query: Option<unsafe extern "C" fn(CUevent) -> CUresult>,
    wait: Option<unsafe extern "C" fn(CUevent) -> CUresult>,
    destroy: Option<unsafe extern "C" fn(CUevent) -> CUresult>,
    event: CUevent,
}

thread_local!(static BEHIND_ALL: Cell<Option<BehindAll>> = const { Cell::new(None) });

unsafe extern "C" fn record_behind_all(context: CUcontext, event: CUevent) -> CUresult {
    let Some(calls) = BEHIND_ALL.get() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    BEHIND_ALL.set(Some(BehindAll { event, ..calls }));
    // SAFETY: the caller guarantees what this function requires.
    calls.record.map_or(CUresult::CUDA_ERROR_NOT_INITIALIZED, |record| unsafe { record(context, event) })
}

unsafe extern "C" fn query(event: CUevent) -> CUresult {
    let Some(calls) = BEHIND_ALL.get() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    let call = if event == calls.event { calls.wait } else { calls.query };
    // SAFETY: the caller guarantees what both functions require.
    call.map_or(CUresult::CUDA_ERROR_NOT_INITIALIZED, |call| unsafe { call(event) })
}

unsafe extern "C" fn destroy(event: CUevent) -> CUresult {
    let Some(calls) = BEHIND_ALL.get() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    if event == calls.event {
        BEHIND_ALL.set(Some(BehindAll { event: core::ptr::null_mut(), ..calls }));
    }
    // SAFETY: the caller guarantees what this function requires.
    calls.destroy.map_or(CUresult::CUDA_ERROR_NOT_INITIALIZED, |destroy| unsafe { destroy(event) })
}

/// # Safety
///
/// The safety conditions of [`count_calls`] apply.
unsafe fn install(driver: &Driver, hides_completion: bool) -> Driver {
    let (real, calls, took) = (*driver.table(), Calls::default(), Duration::ZERO);
    COUNTER.set(Some(Box::new(Counter { real, calls, took, hides_completion })));
    // SAFETY: each function calls the one that it replaces with the same arguments, or reports work as pending. The caller promises that
    // it is not called after another driver has been counted.
    unsafe { driver.with_table(wrap) }
}

/// The calls of this thread's counted driver so far; none if there is no such driver.
#[must_use]
pub fn reading() -> Reading {
    COUNTER.with_borrow(|counter| match counter {
        Some(counter) => Reading { calls: counter.calls, took: counter.took },
        None => Reading::default(),
    })
}

/// Calls of a driver, and their time on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The number of calls of each function.
    pub calls: Calls,
    /// The time of the calls, by the host's clock.
    pub took: Duration,
}

impl Reading {
    /// The difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self { calls: self.calls.since(&earlier.calls), took: self.took.saturating_sub(earlier.took) }
    }
}

struct Counter {
    real: Table,
    calls: Calls,
    took: Duration,
    hides_completion: bool,
}

/// The functions that query whether work is complete.
const QUERIES: [&str; 2] = ["cuEventQuery", "cuStreamQuery"];

thread_local!(static COUNTER: RefCell<Option<Box<Counter>>> = const { RefCell::new(None) });

macro_rules! wrap_functions {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        /// The number of calls of each function of a driver.
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(missing_docs, non_snake_case)]
        pub struct Calls {
            $(pub $name: u64,)*
        }

        impl Calls {
            /// The sum over all functions.
            #[must_use]
            pub fn total(&self) -> u64 {
                0 $(+ self.$name)*
            }

            /// The functions with at least one call, by name.
            #[must_use]
            pub fn by_name(&self) -> Vec<(&'static str, u64)> {
                let all = [$((stringify!($name), self.$name)),*];
                all.into_iter().filter(|(_, count)| *count > 0).collect()
            }

            fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }

        fn wrap(table: &mut Table) {
            $(
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn $name($($arg: $kind),*) -> CUresult {
                    let real = COUNTER.try_with(|counter| counter.borrow().as_ref()?.real.$name);
                    let Ok(Some(real)) = real else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
                    let start = Instant::now();
                    // SAFETY: the caller guarantees what the wrapped function requires.
                    let code = unsafe { real($($arg),*) };
                    let took = start.elapsed();
                    COUNTER.with_borrow_mut(|counter| {
                        let Some(counter) = counter else { return code };
                        counter.calls.$name += 1;
                        counter.took += took;
                        let is_hidden = counter.hides_completion && QUERIES.contains(&stringify!($name));
                        if is_hidden && code == CUresult::CUDA_SUCCESS { CUresult::CUDA_ERROR_NOT_READY } else { code }
                    })
                }
                table.$name = table.$name.map(|_| $name as _);
            )*
        }
    };
}

gpumem_pool::sys::for_each_driver_fn!(wrap_functions!);

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_pool::{Device, Pool, Stream};
    use gpumem_sim::SimConfig;

    #[test]
    fn calls_are_counted_on_the_thread_of_the_driver() {
        // SAFETY: the only counted driver of this thread.
        let driver = unsafe { count_calls(&gpumem_sim::driver(SimConfig::new()).unwrap()) };
        let device = Device::new(&driver, 0).unwrap();
        let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
        let before = reading();
        stream.synchronize().unwrap();
        let calls = reading().since(&before);
        assert_eq!(calls.calls.cuStreamSynchronize, 1);
        assert_eq!(calls.calls.total(), calls.calls.by_name().iter().map(|(_, count)| count).sum::<u64>());
        assert!(calls.took > Duration::ZERO && calls.took < reading().took);
        drop(pool);

        let refused = std::thread::scope(|scope| {
            scope.spawn(|| (Device::count(&driver).is_err(), reading().calls.total())).join().unwrap()
        });
        assert_eq!(refused, (true, 0));
    }

    #[test]
    fn a_busy_driver_reports_work_as_pending_and_waits_for_it() {
        // SAFETY: the only counted driver of this thread.
        let driver = unsafe { count_calls_busy(&gpumem_sim::driver(SimConfig::new()).unwrap()) };
        let stream = Stream::new(&Device::new(&driver, 0).unwrap()).unwrap();
        assert_eq!((stream.is_complete().unwrap(), reading().calls.cuStreamQuery), (false, 1));
        stream.synchronize().unwrap();
    }
}
