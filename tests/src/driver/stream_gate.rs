//! A gate that keeps the work queued behind it on a stream pending until the test opens it.

use crate::pool::{PoolError, Stream};
use crate::sys::types::CUstream;
use crate::sys::{Driver, DriverError};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A host function on a stream that waits until [`StreamGate::open`] or the drop of the gate. After [`StreamGate::TIMEOUT`] the gate
/// opens by itself, so that a test that waits for the stream with the gate closed fails instead of hanging.
///
/// A driver runs host functions one after another: of two gates, open the one first that was closed first.
#[must_use = "a dropped gate is open"]
pub struct StreamGate(Sender<()>);

impl StreamGate {
    /// The gate opens by itself after this time.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// Queues the gate on a stream of the pool. Work queued on the stream after it runs once the gate is open.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`](crate::pool::DeviceError::Driver) if a driver call fails.
    pub fn on(stream: &Stream) -> Result<Self, PoolError> {
        let _bound = stream.device().bind()?;
        // SAFETY: the stream is alive, and its context is current.
        Ok(unsafe { Self::close(stream.device().driver(), stream.raw())? })
    }

    /// Queues the gate on a stream. Work queued on the stream after it runs once the gate is open.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if `cuLaunchHostFunc` fails.
    ///
    /// # Safety
    ///
    /// The stream is alive and belongs to the current context.
    pub unsafe fn close(driver: &Driver, stream: CUstream) -> Result<Self, DriverError> {
        let (opener, opened) = channel();
        let opened: *mut Receiver<()> = Box::into_raw(Box::new(opened));
        // SAFETY: the function owns its argument; the caller guarantees the stream.
        unsafe { driver.cuLaunchHostFunc(stream, Some(wait), opened.cast())? };
        Ok(Self(opener))
    }

    /// Opens the gate. Returns false if the timeout had opened it before.
    #[must_use]
    pub fn open(self) -> bool {
        self.0.send(()).is_ok()
    }
}

unsafe extern "C" fn wait(opened: *mut c_void) {
    // SAFETY: the pointer comes from a box of this type, and this call alone has it.
    let opened = unsafe { Box::from_raw(opened.cast::<Receiver<()>>()) };
    let _ = opened.recv_timeout(StreamGate::TIMEOUT);
}
