//! A stream that stands still until the test lets it go on: work behind it is pending for as long as a test wants.

use crate::sys::types::CUstream;
use crate::sys::{Driver, DriverError};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Holds a stream back. A driver runs host functions one after another: of two gates, the one that is closed first has to be
/// opened first. Opened by [`Gate::open`] or by its drop; by itself after [`Gate::PATIENCE`], so that what waits
/// for the stream without opening the gate is a failed test and not one that hangs.
#[must_use = "a dropped gate is open"]
pub struct Gate(Sender<()>);

impl Gate {
    /// After this time it opens by itself.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// Queues it: nothing queued on the stream from now on runs before it is opened.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    ///
    /// # Safety
    ///
    /// The stream is alive and of the current context.
    pub unsafe fn close(driver: &Driver, stream: CUstream) -> Result<Self, DriverError> {
        let (opener, opened) = channel();
        let opened: *mut Receiver<()> = Box::into_raw(Box::new(opened));
        // SAFETY: the function owns what it is given; the rest is the caller's promise.
        unsafe { driver.cuLaunchHostFunc(stream, Some(wait), opened.cast())? };
        Ok(Self(opener))
    }

    /// Lets the stream go on. False when it already went: somebody waited for it, or it took too long.
    #[must_use]
    pub fn open(self) -> bool {
        self.0.send(()).is_ok()
    }
}

unsafe extern "C" fn wait(opened: *mut c_void) {
    // SAFETY: it was made from a box of this type, for this call alone.
    let opened = unsafe { Box::from_raw(opened.cast::<Receiver<()>>()) };
    let _ = opened.recv_timeout(Gate::PATIENCE);
}
