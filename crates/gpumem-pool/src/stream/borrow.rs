//! [`Stream::run_borrowed`]: work on memory that its caller has only borrowed; and calls that queue work on a stream that
//! another thread may retire.

use super::Stream;
use crate::device::Patience;
use crate::error::{PoolError, is_of_capture};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUstream;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Calls on a stream that its retirement waits for.
#[derive(Default)]
pub(super) struct Borrows {
    counts: Mutex<Counts>,
    ended: Condvar,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// Calls that have queued work which uses memory of their callers'. Until they have waited for it, the stream neither
    /// captures nor retires: the work would run when nobody waits any more, or could not be waited for.
    borrows: usize,
    /// Calls that are queueing work on a stream of another library's, or a mark. The last mark comes after it.
    calls: usize,
}

/// A call that names a stream, which is not retired meanwhile.
#[must_use = "the stream may be retired as soon as this is dropped"]
pub(crate) struct Call<'a>(Option<&'a Borrows>);

/// One such call. Dropped, it waits until the stream's work is done.
struct Borrow<'a> {
    stream: &'a Stream,
    is_over: bool,
}

impl Stream {
    /// Has `queue` queue work on this stream that uses memory of the caller's, and waits until that work is done, also if
    /// `queue` panics. The stream is alive and captures nothing meanwhile; `queue` must not retire it or begin a capture on it.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream, sys::{Driver, SimConfig}};
    ///
    /// let device = Device::new(&Driver::sim(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let (block, source) = (pool.alloc(5, &stream)?, *b"bytes");
    ///
    /// let _bound = device.bind()?;
    /// stream.run_borrowed("an upload", |raw| {
    ///     // SAFETY: both have five bytes, and the call returns when the copy is done.
    ///     unsafe { device.driver().cuMemcpyHtoDAsync_v2(block.address(), source.as_ptr().cast(), 5, raw) }
    /// })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Before `queue` runs: [`PoolError::NotInCapture`], which names `operation`, and [`PoolError::CaptureBroken`] while the
    /// stream captures; [`PoolError::StreamRetired`], [`PoolError::WrongThread`]. After it: [`PoolError::DeviceLost`], or
    /// [`PoolError::NotInCapture`] if a capture that was begun without this crate has taken the work: it is broken.
    ///
    /// # Aborts
    ///
    /// If the driver, whose context is not lost, refuses every way to wait for half a minute. The caller would get back memory
    /// that the device may still use.
    pub fn run_borrowed<R>(
        &self,
        operation: &'static str,
        queue: impl FnOnce(CUstream) -> R,
    ) -> Result<R, PoolError> {
        let borrow = self.borrow_for(operation)?;
        let queued = queue(self.raw());
        borrow.end(operation)?;
        Ok(queued)
    }

    fn borrow_for(&self, operation: &'static str) -> Result<Borrow<'_>, PoolError> {
        let mut counts = self.0.borrows.lock();
        // Under the lock: neither a capture nor the end of the stream comes in between.
        self.check_usable()?;
        self.check_runs(operation)?;
        counts.borrows += 1;
        Ok(Borrow { stream: self, is_over: false })
    }

    /// Has `queue` queue work on this stream. One of another library's is not retired meanwhile: [`Stream::retire`] on another
    /// thread waits, so that its last mark covers the work. `queue` must not retire it itself.
    #[doc(hidden)]
    pub fn queue_work<R>(&self, queue: impl FnOnce(CUstream) -> R) -> Result<R, PoolError> {
        let _call = self.call()?;
        Ok(queue(self.raw()))
    }

    /// As [`Stream::check_usable`], and it stays so until this is dropped.
    pub(crate) fn call(&self) -> Result<Call<'_>, PoolError> {
        // It lives as long as a clone does.
        if self.is_owned() {
            return Ok(Call(None));
        }
        let mut counts = self.0.borrows.lock();
        self.check_usable()?;
        counts.calls += 1;
        Ok(Call(Some(&self.0.borrows)))
    }

    /// Keeps [`Stream::run_borrowed`] from beginning while the guard lives, for a call that makes the stream capture.
    pub(crate) fn stay_out_of_capture(
        &self,
        joins: bool,
    ) -> Result<Option<MutexGuard<'_, Counts>>, PoolError> {
        if !joins || !self.clocks().holds().is_open() {
            return Ok(None);
        }
        let counts = self.0.borrows.lock();
        match counts.borrows {
            0 => Ok(Some(counts)),
            _ => Err(PoolError::NotInCapture {
                operation: "a copy to or from borrowed memory that has yet to end",
            }),
        }
    }
}

impl Borrows {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no call is left. No new one begins: the stream is retired.
    pub(super) fn wait_for_all(&self) {
        let mut counts = self.lock();
        while counts.borrows + counts.calls > 0 {
            counts = self.ended.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(borrows) = self.0 {
            borrows.lock().calls -= 1;
            borrows.ended.notify_all();
        }
    }
}

impl Borrow<'_> {
    fn end(mut self, operation: &'static str) -> Result<(), PoolError> {
        let device = self.stream.device();
        device.upkeep().before_wait();
        self.wait().map_err(|error| match error.code() {
            code if is_of_capture(code) => PoolError::NotInCapture { operation },
            _ => error.into(),
        })?;
        let _bound = device.enter()?;
        device.after_wait();
        device.watch().stream_done(self.stream.id());
        Ok(())
    }

    /// Returns when nothing that was queued on the stream runs any more: an error tells why it was not done, or that the work
    /// was captured.
    fn wait(&mut self) -> Result<(), DriverError> {
        let device = self.stream.device();
        let mut waited = self.stream.finish();
        for _ in 0..TRIES {
            if waited.is_ok() {
                break;
            }
            waited = self.stream.finish();
        }
        if let Err(error) = waited {
            // The driver does not say what the stream does. The device can be asked, and be waited for by other ways.
            if let Err(cause) = device.settle(Patience::Borrowed) {
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
        if !self.is_over {
            // The caller has another error, or panics: only the wait counts.
            let _ = self.wait();
        }
        self.stream.0.borrows.lock().borrows -= 1;
        self.stream.0.borrows.ended.notify_all();
    }
}

/// The caller would get back memory that the device may still use, and no panic can prevent that.
fn give_up(stream: &Stream, cause: DriverError) -> ! {
    let _ = writeln!(
        std::io::stderr(),
        "gpumem: {} may still use borrowed memory, and the driver refuses to wait ({cause}); aborting, because returning would \
         give the memory back under use",
        stream.id()
    );
    std::process::abort()
}

/// How often a refused wait for the stream is repeated before the device is waited for.
const TRIES: usize = 3;
