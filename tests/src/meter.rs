//! Counts and times the calls that reach a driver: every function of its table is wrapped.
//!
//! What is metered belongs to the thread that wrapped the driver: there the counts are kept, and only there may the
//! wrapped driver be used. (What a C function pointer may know of is a thread's or everybody's, and tests run side by side.)

use crate::sys::types::*;
use crate::sys::{CUresult, Driver, Table};
use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// The same driver with all calls counted and timed. One a thread: another takes its place.
///
/// A call from another thread than this one is refused as `NOT_INITIALIZED`.
#[must_use]
pub fn metered(driver: &Driver) -> Driver {
    install(driver, false, None)
}

/// The same, and one call, whichever it is, fails with a code and does nothing: the `nth` from now, from 1.
#[must_use]
pub fn metered_and_failing(driver: &Driver, nth: u64, code: CUresult) -> Driver {
    install(driver, false, Some((nth, code)))
}

/// The same, and whoever asks whether work is over is told that it is not, as beside a device that is always behind. Only an
/// event behind all work of a context is waited for: to ask about it is how a pool waits for a device.
#[must_use]
pub fn metered_and_busy(driver: &Driver) -> Driver {
    let busy = install(driver, true, None);
    let Table { cuCtxRecordEvent, cuEventQuery, cuEventSynchronize, cuEventDestroy_v2, .. } = *busy.table();
    let calls = BehindAll {
        record: cuCtxRecordEvent,
        query: cuEventQuery,
        wait: cuEventSynchronize,
        destroy: cuEventDestroy_v2,
        event: core::ptr::null_mut(),
    };
    BEHIND_ALL.set(Some(calls));
    // SAFETY: each function calls the one that it replaces, or waits for what it would ask about.
    unsafe {
        busy.with_table(|table| {
            table.cuCtxRecordEvent = table.cuCtxRecordEvent.map(|_| record_behind_all as _);
            table.cuEventQuery = table.cuEventQuery.map(|_| query as _);
            table.cuEventDestroy_v2 = table.cuEventDestroy_v2.map(|_| destroy as _);
        })
    }
}

/// The functions that are replaced once more, and the event that was last recorded behind all work.
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
    // SAFETY: the caller's promises are those of this function.
    calls.record.map_or(CUresult::CUDA_ERROR_NOT_INITIALIZED, |record| unsafe { record(context, event) })
}

unsafe extern "C" fn query(event: CUevent) -> CUresult {
    let Some(calls) = BEHIND_ALL.get() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    let ask = if event == calls.event { calls.wait } else { calls.query };
    // SAFETY: the caller's promises are those of both functions.
    ask.map_or(CUresult::CUDA_ERROR_NOT_INITIALIZED, |ask| unsafe { ask(event) })
}

unsafe extern "C" fn destroy(event: CUevent) -> CUresult {
    let Some(calls) = BEHIND_ALL.get() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    if event == calls.event {
        BEHIND_ALL.set(Some(BehindAll { event: core::ptr::null_mut(), ..calls }));
    }
    // SAFETY: the caller's promises are those of this function.
    calls.destroy.map_or(CUresult::CUDA_ERROR_NOT_INITIALIZED, |destroy| unsafe { destroy(event) })
}

fn install(driver: &Driver, hides_completion: bool, fault: Option<(u64, CUresult)>) -> Driver {
    let (real, calls, took) = (*driver.table(), Calls::default(), Duration::ZERO);
    let meter = Meter { real, calls, took, hides_completion, fault, refused: None };
    METER.set(Some(Box::new(meter)));
    // SAFETY: each function calls the one that it replaces, with the same arguments; and work may take as long as it likes.
    unsafe { driver.with_table(wrap) }
}

/// What has reached this thread's metered driver so far; nothing where there is none.
#[must_use]
pub fn reading() -> Reading {
    METER.with_borrow(|meter| match meter {
        Some(meter) => Reading { calls: meter.calls, took: meter.took, refused: meter.refused },
        None => Reading::default(),
    })
}

/// Calls of a driver, and the time that they took on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// How often each function was called.
    pub calls: Calls,
    /// How long the calls took, by the host's clock.
    pub took: Duration,
    /// The call that failed on purpose.
    pub refused: Option<&'static str>,
}

impl Reading {
    /// What came after an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let refused = self.refused.filter(|_| earlier.refused.is_none());
        Self { calls: self.calls.since(&earlier.calls), took: self.took - earlier.took, refused }
    }
}

struct Meter {
    real: Table,
    calls: Calls,
    took: Duration,
    hides_completion: bool,
    /// How many calls it is to the one that fails, and how.
    fault: Option<(u64, CUresult)>,
    refused: Option<&'static str>,
}

impl Meter {
    /// Whether this call is the one that fails.
    fn refuses(&mut self, call: &'static str) -> Option<CUresult> {
        let (left, code) = self.fault.as_mut()?;
        *left -= 1;
        let (is_now, code) = (*left == 0, *code);
        if is_now {
            self.fault = None;
            self.refused = Some(call);
        }
        is_now.then_some(code)
    }
}

/// The functions that ask whether work is over.
const QUERIES: [&str; 2] = ["cuEventQuery", "cuStreamQuery"];

thread_local!(static METER: RefCell<Option<Box<Meter>>> = const { RefCell::new(None) });

macro_rules! meter {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        /// How often each function of a driver was called.
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(missing_docs, non_snake_case)]
        pub struct Calls {
            $(pub $name: u64,)*
        }

        impl Calls {
            /// All calls.
            #[must_use]
            pub fn total(&self) -> u64 {
                0 $(+ self.$name)*
            }

            /// The functions that were called, by name.
            #[must_use]
            pub fn by_name(&self) -> Vec<(&'static str, u64)> {
                let all = [$((stringify!($name), self.$name)),*];
                all.into_iter().filter(|(_, count)| *count > 0).collect()
            }

            fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }

        fn wrap(table: &mut Table) {
            $(
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn $name($($arg: $kind),*) -> CUresult {
                    let real = METER.try_with(|meter| {
                        let mut meter = meter.borrow_mut();
                        let meter = meter.as_mut()?;
                        Some(match meter.refuses(stringify!($name)) {
                            Some(code) => Err(code),
                            None => Ok(meter.real.$name?),
                        })
                    });
                    let real = match real {
                        Ok(Some(Ok(real))) => real,
                        Ok(Some(Err(code))) => return code,
                        _ => return CUresult::CUDA_ERROR_NOT_INITIALIZED,
                    };
                    let start = Instant::now();
                    // SAFETY: the caller's promises are those of the function that this stands in for.
                    let code = unsafe { real($($arg),*) };
                    let took = start.elapsed();
                    METER.with_borrow_mut(|meter| {
                        let Some(meter) = meter else { return code };
                        meter.calls.$name += 1;
                        meter.took += took;
                        let is_hidden = meter.hides_completion && QUERIES.contains(&stringify!($name));
                        if is_hidden && code == CUresult::CUDA_SUCCESS { CUresult::CUDA_ERROR_NOT_READY } else { code }
                    })
                }
                table.$name = table.$name.map(|_| $name as _);
            )*
        }
    };
}

crate::sys::for_each_driver_fn!(meter!);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Device, Pool, Stream};
    use gpumem_sim::SimConfig;

    #[test]
    fn every_call_is_counted_and_each_thread_has_its_own() {
        let driver = metered(&gpumem_sim::driver(SimConfig::new()).unwrap());
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
    fn a_busy_driver_never_says_that_work_is_over_and_still_waits_for_it() {
        let driver = metered_and_busy(&gpumem_sim::driver(SimConfig::new()).unwrap());
        let stream = Stream::new(&Device::new(&driver, 0).unwrap()).unwrap();
        assert_eq!((stream.is_complete().unwrap(), reading().calls.cuStreamQuery), (false, 1));
        stream.synchronize().unwrap();
    }
}
