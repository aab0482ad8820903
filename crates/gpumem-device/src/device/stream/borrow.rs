//! [`Stream::run_borrowed`]: work on memory that the caller has borrowed, and calls that queue work on a stream.

use super::Stream;
use crate::device::calls::{Call, Closed};
use crate::device::{MemoryRange, OrderEvent, Patience, Work};
use crate::error::{CaptureError, DeviceError, is_of_capture};
use core::sync::atomic::Ordering;
use gpumem_sys::types::CUstream;
use gpumem_sys::{DriverError, fork};
use std::io::Write;

/// A call that has queued work on borrowed memory. Its drop waits until the stream's work is done.
struct Borrow<'a> {
    stream: &'a Stream,
    is_over: bool,
}

impl Stream {
    /// Calls `queue`, which queues work on this stream that uses memory of the caller, and the device memory in `memory`: all that the work
    /// reads or writes, or [`MemoryRange::NONE`]. Waits until that work is complete, even if `queue` panics, but not for later work of
    /// other threads. During the call the stream stays alive and does not begin a capture, and the memory does not go to sleep. In `queue`,
    /// `Capture::begin` and [`Stream::retire`] of the stream are errors for any owner, and so is
    /// `Pool::sleep`; `queue` must not wait for another thread that retires it, or that puts a pool of the device to
    /// sleep.
    ///
    /// ```
    /// use gpumem_device::{Device, MemoryRange, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let stream = Stream::new(&device)?;
    /// let _bound = device.bind()?;
    /// let (mut address, source) = (0, *b"bytes");
    /// // SAFETY: `address` outlives the call.
    /// unsafe { device.driver().cuMemAlloc_v2(&mut address, 5)? };
    ///
    /// stream.run_borrowed("an upload", [MemoryRange::new(address, 5)], |raw| {
    ///     // SAFETY: both have five bytes, and the call returns when the copy is done.
    ///     unsafe { device.driver().cuMemcpyHtoDAsync_v2(address, source.as_ptr().cast(), 5, raw) }
    /// })??;
    /// // SAFETY: no work uses the memory.
    /// unsafe { device.driver().cuMemFree_v2(address)? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Before `queue` runs:
    ///
    /// - [`DeviceError::Capture`] if the stream is capturing; the text names `operation`.
    /// - [`DeviceError::Stream`] if the stream was retired, or is another thread's default stream.
    /// - [`DeviceError::Asleep`] if a part of the memory sleeps (`Pool::sleep`).
    ///
    /// After `queue` has run:
    ///
    /// - [`DeviceError::DeviceLost`] if the context is lost.
    /// - [`DeviceError::Capture`] if a capture that was begun without this crate has captured the work; that capture
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
    ) -> Result<R, DeviceError> {
        let borrow = self.borrow_for(operation)?;
        let queued = {
            let _call = self.hold();
            self.device().check_work(memory)?;
            queue(self.raw())
        };
        borrow.end(operation)?;
        Ok(queued)
    }

    fn borrow_for(&self, operation: &'static str) -> Result<Borrow<'_>, DeviceError> {
        self.device().check_open()?;
        self.0.calls.borrow(|| {
            self.check_usable()?;
            self.check_runs(operation)
        })?;
        Ok(Borrow { stream: self, is_over: false })
    }

    /// Calls `queue`, which queues work on this stream that uses `memory`: all that the work reads or writes, or
    /// [`MemoryRange::NONE`]. Until it returns, the memory does not go to sleep, the stream is not retired, and its capture
    /// state does not change: `Pool::sleep`, [`Stream::retire`], `Capture::begin`, `Capture::end` and
    /// waits that make the stream join a capture block on other threads (captures for at most a quarter of a second).
    /// `queue` must neither make these calls nor wait for a thread that does.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Stream`] if the stream was retired or is another thread's default stream, [`DeviceError::Asleep`] if a part of the memory sleeps.
    #[doc(hidden)]
    #[inline(always)]
    pub fn queue_work<R>(
        &self,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
        queue: impl FnOnce(CUstream) -> R,
    ) -> Result<R, DeviceError> {
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
    #[doc(hidden)]
    #[inline(always)]
    pub fn call(&self) -> Result<Call<'_>, DeviceError> {
        let call = self.hold();
        self.check_usable()?;
        Ok(call)
    }

    /// Begins a call on a stream that the caller has checked.
    #[inline]
    pub(crate) fn hold(&self) -> Call<'_> {
        self.0.calls.begin_call()
    }

    /// Closes the stream for a capture that is about to begin. Waits for calls on other threads, but at most a quarter of a second: this
    /// thread may be inside one.
    #[doc(hidden)]
    #[inline]
    pub fn close_for_capture(&self) -> Result<Closed<'_>, DeviceError> {
        self.0.calls.close(0)
    }

    /// Like [`Stream::close_for_capture`], for a wait that `joins` a capture; the caller holds one [`Call`].
    pub(crate) fn close_to_join(&self, joins: bool) -> Result<Option<Closed<'_>>, DeviceError> {
        if joins { self.0.calls.close(1).map(Some) } else { Ok(None) }
    }
}

impl Borrow<'_> {
    fn end(mut self, operation: &'static str) -> Result<(), DeviceError> {
        let device = self.stream.device();
        device.maintenance().before_wait();
        self.wait().map_err(|error| match error.code() {
            code if is_of_capture(code) => DeviceError::Capture(CaptureError::NotCapturable { operation }),
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
            let is_done = !device.primary().is_context_gone() && !is_of_capture(error.code());
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
        // On the thread on which it began.
        self.stream.0.calls.end_borrow();
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
