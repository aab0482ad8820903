//! [`Stream::run_borrowed`]: work on memory that the caller has borrowed. Also calls that queue work on a stream that
//! another thread may retire or capture.
//!
//! A call first checks the stream (is it retired, does it capture?) and then queues its work. Operations that change
//! the result of the check must come before the check or after the work: the beginning and the end of a capture, a wait
//! that makes the stream join one, and the stream's retirement. A call counts itself, which is cheap on the thread that
//! uses the stream first. The other operations take the lock, close the stream, make a fence, and read the count.

use super::Stream;
use crate::device::{MemoryRange, OrderEvent, Patience, Work};
use crate::error::{CaptureError, PoolError, is_of_capture};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use gpumem_heap::sync::{BiasedCount, CountSide};
use gpumem_sys::types::CUstream;
use gpumem_sys::{DriverError, fork};
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

/// The calls on a stream. Retirement waits for them, and no capture begins or ends during them.
#[derive(Default)]
pub(super) struct Borrows {
    /// Calls that are queueing work, a marker or a wait.
    calls: BiasedCount,
    /// True if new calls wait for the lock. Set by the thread that holds it. Each call counts itself before it reads
    /// this flag, and each closer sets the flag and makes a fence before it reads the count: at least one of the two sees the
    /// other.
    is_closed: AtomicBool,
    /// True if a thread waits for `ended`. Each call ends before it reads this flag, with the order of `is_closed`.
    is_awaited: AtomicBool,
    counts: Mutex<Counts>,
    ended: Condvar,
}

#[derive(Default)]
struct Counts {
    /// The threads whose calls have queued work on their callers' memory, once per call. Until they have waited for it, the stream neither
    /// captures nor retires: otherwise the work would run after the wait, or the wait would be impossible.
    borrowers: Vec<ThreadId>,
    /// The counted calls that wait to make the stream join a capture. None of them has checked the stream yet.
    joiners: usize,
}

/// A call that names a stream. While it is alive, the stream is not retired, and neither begins nor ends a capture.
#[must_use = "the stream may be retired or captured as soon as this is dropped"]
pub(crate) struct Call<'a> {
    borrows: &'a Borrows,
    side: CountSide,
    /// A call ends on the thread on which it began.
    _thread: PhantomData<*const ()>,
}

/// A stream without calls. Calls that begin wait until this is dropped.
#[must_use = "calls begin as soon as this is dropped"]
pub(crate) struct Closed<'a> {
    borrows: &'a Borrows,
    counts: MutexGuard<'a, Counts>,
}

/// A call that has queued work on borrowed memory. Its drop waits until the stream's work is done.
struct Borrow<'a> {
    stream: &'a Stream,
    is_over: bool,
}

impl Stream {
    /// Calls `queue`, which queues work on this stream that uses memory of the caller, and the device memory in `memory`: all that the work
    /// reads or writes, or [`MemoryRange::NONE`]. Waits until that work is complete, even if `queue` panics, but not for later work of
    /// other threads. During the call the stream stays alive and does not begin a capture, and the memory does not go to sleep. In `queue`,
    /// [`Stream::begin_capture`] and [`Stream::retire`] of the stream are errors for any owner, and so is
    /// [`Pool::sleep`](crate::Pool::sleep); `queue` must not wait for another thread that retires it, or that puts a pool of the device to
    /// sleep.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let (block, source) = (pool.alloc(5, &stream)?, *b"bytes");
    ///
    /// let _bound = device.bind()?;
    /// stream.run_borrowed("an upload", [&block], |raw| {
    ///     // SAFETY: both have five bytes, and the call returns when the copy is done.
    ///     unsafe { device.driver().cuMemcpyHtoDAsync_v2(block.address(), source.as_ptr().cast(), 5, raw) }
    /// })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Before `queue` runs:
    ///
    /// - [`PoolError::Capture`] if the stream is capturing; the text names `operation`.
    /// - [`PoolError::Stream`] if the stream was retired, or is another thread's default stream.
    /// - [`PoolError::Asleep`] if a part of the memory sleeps ([`Pool::sleep`](crate::Pool::sleep)).
    ///
    /// After `queue` has run:
    ///
    /// - [`PoolError::DeviceLost`] if the context is lost.
    /// - [`PoolError::Capture`] if a capture that was begun without this crate has captured the work; that capture
    ///   is broken.
    ///
    /// # Aborts
    ///
    /// If the context is not lost and the driver refuses every way to wait for half a minute. Returning would give the
    /// caller memory that the device may still use.
    pub fn run_borrowed<R>(
        &self,
        operation: &'static str,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
        queue: impl FnOnce(CUstream) -> R,
    ) -> Result<R, PoolError> {
        let borrow = self.borrow_for(operation)?;
        let queued = {
            let _call = self.hold();
            self.device().check_work(memory)?;
            queue(self.raw())
        };
        borrow.end(operation)?;
        Ok(queued)
    }

    fn borrow_for(&self, operation: &'static str) -> Result<Borrow<'_>, PoolError> {
        self.device().check_open()?;
        let mut counts = self.0.borrows.lock();
        // Under the lock: no capture and no retirement can come in between.
        self.check_usable()?;
        self.check_runs(operation)?;
        counts.borrowers.push(std::thread::current().id());
        Ok(Borrow { stream: self, is_over: false })
    }

    /// Calls `queue`, which queues work on this stream that uses `memory`: all that the work reads or writes, or
    /// [`MemoryRange::NONE`]. Until it returns, the memory does not go to sleep, the stream is not retired, and its capture
    /// state does not change: [`Pool::sleep`](crate::Pool::sleep), [`Stream::retire`], [`Stream::begin_capture`], [`Capture::end`](crate::Capture::end) and
    /// waits that make the stream join a capture block on other threads (captures for at most a quarter of a second).
    /// `queue` must neither make these calls nor wait for a thread that does.
    ///
    /// # Errors
    ///
    /// [`PoolError::Stream`] if the stream was retired or is another thread's default stream, [`PoolError::Asleep`] if a part of the memory sleeps.
    #[doc(hidden)]
    #[inline(always)]
    pub fn queue_work<R>(
        &self,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
        queue: impl FnOnce(CUstream) -> R,
    ) -> Result<R, PoolError> {
        let _call = self.call()?;
        self.device().check_work(memory)?;
        Ok(queue(self.raw()))
    }

    /// Records that the latest work on the stream writes the memory at an address, or unknown memory if it is 0.
    #[doc(hidden)]
    #[inline]
    pub fn note_write(&self, address: u64) {
        let last = &self.0.last_written;
        if last.load(Ordering::Relaxed) != address {
            last.store(address, Ordering::Relaxed);
        }
    }

    /// True if no work is known to be queued after the write of the memory at an address.
    #[doc(hidden)]
    #[inline]
    pub fn wrote_last(&self, address: u64) -> bool {
        self.0.last_written.load(Ordering::Relaxed) == address
    }

    /// Like [`Stream::check_usable`]. The result, and whether the stream captures, stay valid until the call is
    /// dropped.
    #[inline(always)]
    pub(crate) fn call(&self) -> Result<Call<'_>, PoolError> {
        let call = self.hold();
        self.check_usable()?;
        Ok(call)
    }

    /// Begins a call on a stream that the caller has checked.
    #[inline]
    pub(crate) fn hold(&self) -> Call<'_> {
        self.0.borrows.begin_call()
    }

    /// True if this thread is inside [`Stream::run_borrowed`] on this stream.
    pub(crate) fn is_borrowed_here(&self) -> bool {
        self.0.borrows.is_held_here()
    }

    /// Waits until each earlier call on the streams has ended.
    pub(crate) fn let_calls_end(streams: &[Self]) {
        BiasedCount::fence_all(streams.iter().map(|stream| &stream.0.borrows.calls));
        streams.iter().for_each(|stream| stream.0.borrows.let_calls_end());
    }

    /// Closes the stream for a capture that is about to begin. Waits for calls on other threads, but at most [`CALLS_END_WITHIN`]: this
    /// thread may be inside one.
    pub(crate) fn close_for_capture(&self) -> Result<Closed<'_>, PoolError> {
        self.0.borrows.close(0)
    }

    /// Like [`Stream::close_for_capture`], for a wait that `joins` a capture; the caller holds one [`Call`].
    pub(crate) fn close_to_join(&self, joins: bool) -> Result<Option<Closed<'_>>, PoolError> {
        if joins { self.0.borrows.close(1).map(Some) } else { Ok(None) }
    }

    /// Closes streams for the end of their capture. If a call takes longer than [`CALLS_END_WITHIN`], none is closed,
    /// and the capture ends during that call: no later operation would end it. The streams must be distinct.
    pub(crate) fn close_for_end(streams: &[Stream]) -> Vec<Closed<'_>> {
        let start = Instant::now();
        loop {
            // All or none: a call on one stream may be about to begin another call on the next.
            let closing: Vec<_> = streams
                .iter()
                .map(|stream| stream.0.borrows.begin_closing(stream.0.borrows.lock()))
                .collect();
            BiasedCount::fence_all(streams.iter().map(|stream| &stream.0.borrows.calls));
            let closed: Option<Vec<_>> = closing.into_iter().map(Closed::once_idle).collect();
            match closed {
                Some(closed) => return closed,
                None if start.elapsed() >= CALLS_END_WITHIN => return Vec::new(),
                None => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Borrows {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn begin_call(&self) -> Call<'_> {
        let call = self.count();
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
        let _open = self.lock();
        self.count()
    }

    #[inline(always)]
    fn count(&self) -> Call<'_> {
        Call { borrows: self, side: self.calls.enter(), _thread: PhantomData }
    }

    /// Closes the stream to all calls except the caller's `joiners`.
    fn close(&self, joiners: usize) -> Result<Closed<'_>, PoolError> {
        let start = Instant::now();
        let mut counts = self.lock();
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
            counts = self.lock();
            if is_late {
                break "work that another call is queueing on the stream";
            }
        };
        counts.joiners -= joiners;
        Err(PoolError::Capture(CaptureError::NotCapturable { operation }))
    }

    /// `None` if a call is active; the stream stays open.
    fn try_close<'a>(&'a self, counts: MutexGuard<'a, Counts>) -> Option<Closed<'a>> {
        let closing = self.begin_closing(counts);
        BiasedCount::fence_all([&self.calls]);
        closing.once_idle()
    }

    /// Makes new calls wait. A fence must follow, and then [`Closed::once_idle`].
    fn begin_closing<'a>(&'a self, counts: MutexGuard<'a, Counts>) -> Closed<'a> {
        self.is_closed.store(true, Ordering::SeqCst);
        Closed { borrows: self, counts }
    }

    /// Waits until each call that began before the last fence has ended.
    fn let_calls_end(&self) {
        while self.calls.total() > 0 && self.try_close(self.lock()).is_none() {
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
        let _counts = self.lock();
        self.ended.notify_all();
    }

    /// True if this thread is inside [`Stream::run_borrowed`].
    pub(super) fn is_held_here(&self) -> bool {
        self.lock().borrowers.contains(&std::thread::current().id())
    }

    /// Waits until no call is left, none of which may be this thread's. New calls stop at the check, because the stream is retired.
    pub(super) fn wait_for_all(&self) {
        let mut counts = self.lock();
        self.is_awaited.store(true, Ordering::SeqCst);
        BiasedCount::fence_all([&self.calls]);
        while counts.borrowers.len() + self.calls.total() > 0 {
            counts = self.ended.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.borrows.calls.leave(self.side);
        if self.borrows.is_awaited.load(Ordering::SeqCst) {
            self.borrows.notify_end();
        }
    }
}

impl Closed<'_> {
    /// Waits until no call is active. `None` if one takes long; the stream is open again.
    fn once_idle(self) -> Option<Self> {
        let start = Instant::now();
        // New calls wait: otherwise threads that queue work constantly would leave no gap.
        while self.borrows.calls.total() > self.counts.joiners {
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
        self.borrows.is_closed.store(false, Ordering::SeqCst);
    }
}

impl Borrow<'_> {
    fn end(mut self, operation: &'static str) -> Result<(), PoolError> {
        let device = self.stream.device();
        device.maintenance().before_wait();
        self.wait().map_err(|error| match error.code() {
            code if is_of_capture(code) => PoolError::Capture(CaptureError::NotCapturable { operation }),
            _ => error.into(),
        })?;
        let _bound = device.enter()?;
        device.after_wait();
        device.watch().note(OrderEvent::StreamDone(self.stream.id()));
        device.check_awaited()
    }

    /// Returns once no work queued on the stream runs. An error states why the work was not done, or that it was
    /// captured.
    fn wait(&mut self) -> Result<(), DriverError> {
        let device = self.stream.device();
        let mut waited = self.stream.finish_so_far();
        for _ in 0..TRIES {
            if waited.is_ok() {
                break;
            }
            waited = self.stream.finish();
        }
        if let Err(error) = waited {
            // The state of the stream is unknown. The device can be queried, and waited for in other ways.
            if let Err(cause) = device.settle(Work::OfKnownStreams, Patience::Borrowed) {
                give_up(self.stream, cause);
            }
            let is_done = !device.is_context_gone() && !is_of_capture(error.code());
            waited = if is_done { Ok(()) } else { Err(error) };
        }
        self.is_over = true;
        waited
    }
}

impl Drop for Borrow<'_> {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if !self.is_over {
            // The caller returns another error or panics: only the wait matters.
            let _ = self.wait();
        }
        // A borrow ends on the thread on which it began.
        let (own, mut counts) = (std::thread::current().id(), self.stream.0.borrows.lock());
        if let Some(index) = counts.borrowers.iter().rposition(|thread| *thread == own) {
            counts.borrowers.swap_remove(index);
        }
        drop(counts);
        self.stream.0.borrows.ended.notify_all();
    }
}

/// Aborts: the caller would get memory back that the device may still use, and a panic cannot prevent that.
fn give_up(stream: &Stream, cause: DriverError) -> ! {
    let _ = writeln!(
        std::io::stderr(),
        "gpumem: {} may still use borrowed memory, and the driver refuses to wait for it ({cause}); aborting, because \
         returning would release the memory during that use",
        stream.id()
    );
    std::process::abort()
}

/// The number of times that a refused wait for the stream is repeated before a wait for the device.
const TRIES: usize = 3;
/// The maximum time that the beginning or the end of a capture waits for a call that queues work. Such a call takes microseconds, or longer
/// if the driver's queue is full.
const CALLS_END_WITHIN: Duration = Duration::from_millis(250);
/// The time for which new calls are held back while active ones may end.
const CLOSING_MAX: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_micros(20);
