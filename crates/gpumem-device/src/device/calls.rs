//! [`Calls`]: the calls that queue work on a stream, which another thread may retire or capture.
//!
//! A call first checks the stream (is it retired, does it capture?) and then queues its work. Operations that change
//! the result of the check must come before the check or after the work: the beginning and the end of a capture, a wait
//! that makes the stream join one, and the stream's retirement. A call counts itself, which is cheap on the thread that
//! uses the stream first. The other operations take the lock, close the stream, make a fence, and read the count.

use crate::device::thread::ThreadNumber;
use crate::error::{CaptureError, DeviceError};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use gpumem_base::sync::{BiasedCount, CountSide, Lock};
use gpumem_sys::fork;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Instant;

/// The calls on a stream. Retirement waits for them, and no capture begins or ends during them.
#[derive(Default)]
pub struct Calls {
    /// Calls that are queueing work, a marker or a wait.
    count: BiasedCount,
    /// True if new calls wait for the lock. Set by the thread that holds it. Each call counts itself before it reads
    /// this flag, and each closer sets the flag and makes a fence before it reads the count: at least one of the two sees the
    /// other.
    is_closed: AtomicBool,
    /// True if a thread waits for `ended`. Each call ends before it reads this flag, with the order of `is_closed`.
    is_awaited: AtomicBool,
    counts: Lock<CallCounts>,
    ended: Condvar,
}

#[derive(Default)]
struct CallCounts {
    /// The threads whose calls have queued work on their callers' memory, once per call. Until they have waited for it, the stream neither
    /// captures nor retires: otherwise the work would run after the wait, or the wait would be impossible.
    borrowers: Vec<ThreadNumber>,
    /// The counted calls that wait to make the stream join a capture. None of them has checked the stream yet.
    joiners: usize,
}

/// A call that names a stream. While it is alive, the stream is not retired, and neither begins nor ends a capture.
#[must_use = "the stream may be retired or captured as soon as this is dropped"]
pub struct Call<'a> {
    calls: &'a Calls,
    side: CountSide,
    /// A call ends on the thread on which it began.
    _thread: PhantomData<*const ()>,
}

/// A stream without calls. Calls that begin wait until this is dropped.
#[must_use = "calls begin as soon as this is dropped"]
pub struct Closed<'a> {
    calls: &'a Calls,
    counts: MutexGuard<'a, CallCounts>,
}

impl Calls {
    /// Closes streams for the end of their capture. If a call takes longer than [`CALLS_END_WITHIN`], none is closed,
    /// and the capture ends during that call: no later operation would end it. The streams must be distinct.
    pub(super) fn close_all<'a>(streams: &[&'a Self]) -> Vec<Closed<'a>> {
        let start = Instant::now();
        loop {
            // All or none: a call on one stream may be about to begin another call on the next.
            let closing: Vec<_> =
                streams.iter().map(|calls| calls.begin_closing(calls.counts.lock())).collect();
            BiasedCount::fence_all(streams.iter().map(|calls| &calls.count));
            let closed: Option<Vec<_>> = closing.into_iter().map(Closed::once_idle).collect();
            match closed {
                Some(closed) => return closed,
                None if start.elapsed() >= CALLS_END_WITHIN => return Vec::new(),
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Waits until each earlier call on the streams has ended.
    pub(super) fn let_all_end(streams: &[&Self]) {
        BiasedCount::fence_all(streams.iter().map(|calls| &calls.count));
        streams.iter().for_each(|calls| calls.let_end());
    }

    /// Begins a call whose work uses memory of the caller, and for which `check` allows the stream. [`Calls::end_borrow`] ends it, on the
    /// same thread.
    pub(super) fn borrow(&self, check: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        // Locked for the check: no capture and no retirement can come in between.
        let mut counts = self.counts.lock();
        check()?;
        counts.borrowers.push(ThreadNumber::current());
        Ok(())
    }

    pub(super) fn end_borrow(&self) {
        let (own, mut counts) = (ThreadNumber::current(), self.counts.lock());
        if let Some(index) = counts.borrowers.iter().rposition(|thread| *thread == own) {
            counts.borrowers.swap_remove(index);
        }
        drop(counts);
        self.ended.notify_all();
    }

    #[inline]
    pub(super) fn begin_call(&self) -> Call<'_> {
        let call = self.counted();
        if self.is_closed.load(Ordering::SeqCst) { self.begin_behind(call) } else { call }
    }

    /// Begins the call once the stream is open: it cannot be closed again while the lock is held here.
    #[cold]
    fn begin_behind<'a>(&'a self, call: Call<'a>) -> Call<'a> {
        if fork::is_child() {
            // The thread that has closed the stream does not exist. The driver refuses the call.
            return call;
        }
        drop(call);
        let _open = self.counts.lock();
        self.counted()
    }

    #[inline(always)]
    fn counted(&self) -> Call<'_> {
        Call { calls: self, side: self.count.enter(), _thread: PhantomData }
    }

    /// Closes the stream to all calls except the caller's `joiners`.
    pub(super) fn close(&self, joiners: usize) -> Result<Closed<'_>, DeviceError> {
        let start = Instant::now();
        let mut counts = self.counts.lock();
        counts.joiners += joiners;
        let operation = loop {
            if !counts.borrowers.is_empty() {
                break "an unfinished copy to or from borrowed memory";
            }
            if let Some(mut closed) = self.try_close(counts) {
                closed.counts.joiners -= joiners;
                return Ok(closed);
            }
            let is_late = start.elapsed() >= CALLS_END_WITHIN;
            if !is_late {
                std::thread::sleep(PAUSE);
            }
            counts = self.counts.lock();
            if is_late {
                break "work that another call is queueing on the stream";
            }
        };
        counts.joiners -= joiners;
        Err(DeviceError::Capture(CaptureError::NotCapturable { operation }))
    }

    /// `None` if a call is active; the stream stays open.
    fn try_close<'a>(&'a self, counts: MutexGuard<'a, CallCounts>) -> Option<Closed<'a>> {
        let closing = self.begin_closing(counts);
        BiasedCount::fence_all([&self.count]);
        closing.once_idle()
    }

    /// Makes new calls wait. A fence must follow, and then [`Closed::once_idle`].
    fn begin_closing<'a>(&'a self, counts: MutexGuard<'a, CallCounts>) -> Closed<'a> {
        self.is_closed.store(true, Ordering::SeqCst);
        Closed { calls: self, counts }
    }

    /// Waits until each call that began before the last fence has ended.
    fn let_end(&self) {
        while self.count.total() > 0 && self.try_close(self.counts.lock()).is_none() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Wakes the thread that waits for the end of all calls. Under the lock: otherwise the notification could be missed between that
    /// thread's read of the count and its sleep.
    #[cold]
    fn notify_end(&self) {
        if fork::is_child() {
            return;
        }
        let _counts = self.counts.lock();
        self.ended.notify_all();
    }

    /// True if this thread is inside [`Stream::run_borrowed`].
    pub(super) fn is_held_here(&self) -> bool {
        self.counts.lock().borrowers.contains(&ThreadNumber::current())
    }

    /// Waits until no call is left, none of which may be this thread's. New calls stop at the check, because the stream is retired.
    pub(super) fn wait_for_all(&self) {
        let mut counts = self.counts.lock();
        self.is_awaited.store(true, Ordering::SeqCst);
        BiasedCount::fence_all([&self.count]);
        while counts.borrowers.len() + self.count.total() > 0 {
            counts = self.ended.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.calls.count.leave(self.side);
        if self.calls.is_awaited.load(Ordering::SeqCst) {
            self.calls.notify_end();
        }
    }
}

impl Closed<'_> {
    /// Waits until no call is active. `None` if one takes long; the stream is open again.
    fn once_idle(self) -> Option<Self> {
        let start = Instant::now();
        // New calls wait: otherwise threads that queue work constantly would leave no gap.
        while self.calls.count.total() > self.counts.joiners {
            if start.elapsed() >= CLOSING_MAX {
                return None;
            }
            std::thread::yield_now();
        }
        Some(self)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.calls.is_closed.store(false, Ordering::SeqCst);
    }
}

/// The maximum time that the beginning or the end of a capture waits for a call that queues work. Such a call takes microseconds, or longer
/// if the driver's queue is full.
const CALLS_END_WITHIN: Duration = Duration::from_millis(250);
/// The time for which new calls are held back while active ones may end.
const CLOSING_MAX: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_micros(20);
