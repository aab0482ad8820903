//! A driver that counts its calls, and makes one of them fail: every function of its table is wrapped.
//!
//! C function pointers carry no state, and tests run in parallel, so the counts are thread-local: only the thread that wrapped a
//! driver can use it.

use gpumem_pool::sys::types::*;
use gpumem_pool::sys::{CUresult, Driver, Table};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The calls of a driver.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    counts: BTreeMap<&'static str, u64>,
    /// The function whose call failed by injection.
    pub(crate) failed: Option<&'static str>,
}

impl Calls {
    pub(crate) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(crate) fn count(&self, function: &str) -> u64 {
        self.counts.get(function).copied().unwrap_or(0)
    }
}

/// Asked before each call that names a stream. It changes nothing, so it is neither counted nor failed with the others, which would
/// double them; `failing_calls` fails it apart.
const ASKED_OFTEN: &str = "cuCtxGetId";

/// Returns the driver with all calls counted, but [`ASKED_OFTEN`]. The `nth` call from now on, counted from 1, returns the code and does nothing.
pub(crate) fn count_calls(driver: &Driver, failure: Option<(u64, CUresult)>) -> Driver {
    let calls = Calls::default();
    let counter = Counter { real: *driver.table(), calls, failure, asked_count: 0, failing_question: None };
    COUNTER.set(Some(Box::new(counter)));
    // SAFETY: each function calls the one that it replaces with the same arguments, or fails.
    unsafe { driver.with_table(wrap) }
}

/// The calls of this thread's counted driver so far.
pub(crate) fn calls() -> Calls {
    COUNTER.with_borrow(|counter| counter.as_ref().map(|counter| counter.calls.clone()).unwrap_or_default())
}

/// The `nth` call from now on, counted from 1, returns the code and does nothing.
pub(crate) fn fail_call(nth: u64, code: CUresult) {
    COUNTER.with_borrow_mut(|counter| {
        if let Some(counter) = counter {
            counter.failure = Some((counter.calls.total() + nth, code));
        }
    });
}

/// The `nth` call of [`ASKED_OFTEN`] since the driver was wrapped returns the code and does nothing.
pub(crate) fn fail_question(nth: u64, code: CUresult) {
    COUNTER.with_borrow_mut(|counter| {
        if let Some(counter) = counter {
            counter.failing_question = Some((nth, code));
        }
    });
}

/// The calls of [`ASKED_OFTEN`] so far.
pub(crate) fn asked_count() -> u64 {
    COUNTER.with_borrow(|counter| counter.as_ref().map_or(0, |counter| counter.asked_count))
}

struct Counter {
    real: Table,
    calls: Calls,
    failure: Option<(u64, CUresult)>,
    /// The calls of [`ASKED_OFTEN`], and the one that fails.
    asked_count: u64,
    failing_question: Option<(u64, CUresult)>,
}

impl Counter {
    /// Counts a call. Returns its code if it is the one that fails.
    fn count(&mut self, function: &'static str) -> Option<CUresult> {
        if function == ASKED_OFTEN {
            self.asked_count += 1;
            let (_, code) = self.failing_question.filter(|(nth, _)| *nth == self.asked_count)?;
            self.calls.failed = Some(function);
            return Some(code);
        }
        *self.calls.counts.entry(function).or_default() += 1;
        let (_, code) = self.failure.filter(|(nth, _)| *nth == self.calls.total())?;
        self.calls.failed = Some(function);
        Some(code)
    }
}

thread_local!(static COUNTER: RefCell<Option<Box<Counter>>> = const { RefCell::new(None) });

macro_rules! wrap_functions {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        fn wrap(table: &mut Table) {
            $(
                #[allow(non_snake_case, clippy::too_many_arguments)]
                unsafe extern "C" fn $name($($arg: $kind),*) -> CUresult {
                    let real = COUNTER.try_with(|counter| {
                        let mut counter = counter.borrow_mut();
                        let counter = counter.as_mut()?;
                        Some(counter.count(stringify!($name)).map_or(Ok(counter.real.$name?), Err))
                    });
                    match real {
                        // SAFETY: the caller guarantees what the wrapped function requires.
                        Ok(Some(Ok(real))) => unsafe { real($($arg),*) },
                        Ok(Some(Err(code))) => code,
                        _ => CUresult::CUDA_ERROR_NOT_INITIALIZED,
                    }
                }
                table.$name = table.$name.map(|_| $name as _);
            )*
        }
    };
}

gpumem_pool::sys::for_each_driver_fn!(wrap_functions!);
