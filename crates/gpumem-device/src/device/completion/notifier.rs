//! The notifier: the thread that queries pending completions and wakes their tasks.
//!
//! It starts with the first pending completion, and sleeps without one. It is never joined, so the process does not wait for it. Host
//! functions take its lock, and must not wait for the driver: no driver call and no waker runs under the lock.

use super::Pending;
use crate::device::catch_panic::catch_panic;
use crate::device::primary::{PrimaryContext, when_lost};
use core::ffi::c_void;
use core::task::Waker;
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUstream;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Instant;

static LIST: Lock<List> = Lock::new(List {
    pending: BTreeMap::new(),
    reported: Vec::new(),
    checks_all: false,
    has_thread: false,
    sleeps_long: false,
    changed_at: None,
});
static CHANGED: Condvar = Condvar::new();

struct List {
    pending: BTreeMap<u64, Arc<Pending>>,
    /// The numbers that host functions have reported.
    reported: Vec<u64>,
    /// True if everything must be queried immediately.
    checks_all: bool,
    has_thread: bool,
    /// True if the thread sleeps longer than a new entry should wait.
    sleeps_long: bool,
    /// The last time that an entry was added or resolved.
    changed_at: Option<Instant>,
}

/// Adds an incomplete completion. False if no thread runs and none can be started.
pub(super) fn add(pending: &Arc<Pending>) -> bool {
    let mut list = lock();
    if !list.has_thread {
        when_lost(check_all);
        let thread = std::thread::Builder::new().name("gpumem notifier".into());
        // Detached: nothing waits for it.
        list.has_thread = thread.spawn(run).is_ok();
    }
    if list.has_thread {
        list.pending.insert(pending.id, pending.clone());
        list.changed_at = Some(Instant::now());
        if list.sleeps_long {
            CHANGED.notify_one();
        }
    }
    list.has_thread
}

pub(super) fn remove(id: u64) {
    let removed = lock().pending.remove(&id);
    // Dropped outside the lock: it may be the last user of its device.
    drop(removed);
}

/// Queues the host function that reports a number to the notifier. The lane is alive, and its context current.
pub(super) fn notify(device: &PrimaryContext, lane: CUstream, id: u64) -> Result<(), DriverError> {
    // SAFETY: the function may be called at any time, with any argument, once or never.
    unsafe {
        device.driver().cuLaunchHostFunc(lane, Some(reached), core::ptr::without_provenance_mut(id as usize))
    }
}

unsafe extern "C" fn reached(id: *mut c_void) {
    report(id.addr() as u64);
}

fn report(id: u64) {
    lock().reported.push(id);
    CHANGED.notify_one();
}

/// Queries all pending completions soon: a context is lost.
fn check_all() {
    let mut list = lock();
    if !list.pending.is_empty() {
        list.checks_all = true;
        CHANGED.notify_one();
    }
}

fn lock() -> MutexGuard<'static, List> {
    LIST.lock()
}

fn run() {
    let (mut checked_at, mut cost) = (Instant::now(), Duration::ZERO);
    loop {
        let (due, is_all) = next_due(checked_at, cost);
        let start = Instant::now();
        for id in due {
            // One at a time: a completion that a waker drops is not kept alive here.
            let pending = lock().pending.get(&id).cloned();
            // A waker, or code that maintenance calls, may panic. The other completions still need this thread.
            let _ = catch_panic(|| pending.and_then(settle).into_iter().for_each(Waker::wake));
        }
        if is_all {
            (checked_at, cost) = (Instant::now(), start.elapsed());
        }
    }
}

/// Queries a completion. Returns the waker if it is resolved.
fn settle(pending: Arc<Pending>) -> Option<Waker> {
    let _outcome = pending.query()?;
    let mut list = lock();
    list.changed_at = Some(Instant::now());
    let removed = list.pending.remove(&pending.id);
    drop(list);
    drop(removed);
    pending.progress.lock().waker.take()
}

/// Sleeps until there are completions to query: those that were reported, or all.
fn next_due(checked_at: Instant, cost: Duration) -> (Vec<u64>, bool) {
    let mut list = lock();
    loop {
        if !list.reported.is_empty() {
            return (core::mem::take(&mut list.reported), false);
        }
        if list.pending.is_empty() {
            (list.sleeps_long, list.checks_all) = (true, false);
            list = CHANGED.wait(list).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let now = Instant::now();
        let unchanged_for = list.changed_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let pause = (unchanged_for / QUERY_SHARE).clamp(PAUSE_MIN, PAUSE_MAX).max(cost * QUERY_SHARE);
        let left = (checked_at + pause).saturating_duration_since(now);
        if left.is_zero() || core::mem::take(&mut list.checks_all) {
            return (list.pending.keys().copied().collect(), true);
        }
        list.sleeps_long = pause > 2 * PAUSE_MIN;
        list = CHANGED.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Queries without a report take at most this fraction (1/n) of the thread's time, and detect a completion late by at most this fraction of
/// the time waited so far.
const QUERY_SHARE: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_micros(500);
/// The longest pause while queries are cheap, and thus the delay until a lost context is detected that no other call has reported.
const PAUSE_MAX: Duration = Duration::from_millis(10);
