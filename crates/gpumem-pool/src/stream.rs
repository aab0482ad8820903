//! [`Stream`]: a queue of the device's, in whose order memory is allocated, used and freed.
//!
//! A stream is destroyed with its last clone. Blocks hold clones, so dropping "the" stream while blocks live on it is
//! safe, and destroying one with work queued does not lose the work: the driver finishes it first.

use crate::clock::{Clocks, Slot, StreamParts};
use crate::context::Handle;
use crate::device::Device;
use crate::error::PoolError;
use crate::event::Event;
use core::fmt;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUresult, CUstream, CUstream_flags, CUstream_st};
use std::sync::Arc;

/// A queue of work on a device. Clones share it.
///
/// ```
/// use gpumem_pool::{Device, Event, Stream, sys::{Driver, SimConfig}};
///
/// let device = Device::new(&Driver::sim(SimConfig::new())?, 0)?;
/// let (compute, copy) = (Stream::new(&device)?, Stream::new(&device)?);
/// let uploaded = Event::new(&device)?;
/// uploaded.record(&copy)?;
/// compute.wait(&uploaded)?; // on the device: the host goes on
/// compute.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    raw: Handle<CUstream_st>,
    id: StreamId,
}

/// Names a stream: unique in the process and never used again, unlike the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// The generation is never used again; the slot is, by another stream.
    pub(crate) fn new(generation: u64, slot: Slot) -> Self {
        Self(generation << SLOT_BITS | u64::from(slot.0))
    }

    /// Where the clocks keep what they know of it.
    #[inline]
    pub(crate) fn slot(self) -> Slot {
        Slot(self.0 as u16)
    }
}

impl Stream {
    /// A new stream, independent of the legacy default stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        let _bound = device.enter()?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` outlives the call, and the context is current.
        unsafe { device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)? };
        let parts = StreamParts { raw, is_ours: true, no_waits: false };
        match device.clocks().open(device, &parts) {
            Ok(id) => Ok(Self(Arc::new(Inner { device: device.clone(), raw: Handle(raw), id }))),
            Err(error) => {
                destroy(device, raw);
                Err(error)
            }
        }
    }

    /// The device whose work it queues.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The driver's handle, alive for as long as a clone of this stream is.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.0.raw.0
    }

    /// Its name, unique in the process.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.0.id
    }

    /// Waits on the host until everything queued on this stream so far is done.
    ///
    /// # Errors
    ///
    /// What the driver says, the failure of earlier work included.
    pub fn synchronize(&self) -> Result<(), PoolError> {
        Ok(self.finish()?)
    }

    /// Whether everything queued on this stream so far is done. Never waits.
    ///
    /// # Errors
    ///
    /// What the driver says, the failure of earlier work included.
    pub fn is_complete(&self) -> Result<bool, PoolError> {
        let _bound = self.device().enter()?;
        let observation = self.clocks().observe(self.slot())?;
        // SAFETY: the stream is alive, and its context current.
        let is_complete = complete(unsafe { self.device().driver().cuStreamQuery(self.raw()) })?;
        if is_complete {
            self.clocks().saw(observation);
        }
        Ok(is_complete)
    }

    /// Makes work queued on this stream from now on wait, on the device, for what the event marks. The host goes on.
    ///
    /// The event may be another device's. One that was never recorded is waited for by nobody.
    ///
    /// # Errors
    ///
    /// [`PoolError::WrongDevice`] when the event belongs to another driver, or what the driver says.
    pub fn wait(&self, event: &Event) -> Result<(), PoolError> {
        check_driver(self.device(), event.device())?;
        Ok(event.make_wait(self)?)
    }

    /// Makes work queued on this stream from now on wait, on the device, for everything queued on the other so far.
    ///
    /// # Errors
    ///
    /// As [`Stream::wait`].
    pub fn wait_for(&self, other: &Stream) -> Result<(), PoolError> {
        check_driver(self.device(), other.device())?;
        Ok(self.queue_wait_for(other)?)
    }

    pub(crate) fn finish(&self) -> Result<(), DriverError> {
        let _bound = self.device().enter()?;
        let observation = self.clocks().observe(self.slot())?;
        // SAFETY: the stream is alive, and its context current.
        unsafe { self.device().driver().cuStreamSynchronize(self.raw())? };
        self.clocks().saw(observation);
        Ok(())
    }

    pub(crate) fn queue_wait_for(&self, other: &Stream) -> Result<(), DriverError> {
        if self.id() != other.id() {
            self.clocks().queue_wait_for(self.slot(), other.slot())?;
        }
        Ok(())
    }

    pub(crate) fn slot(&self) -> Slot {
        self.id().slot()
    }

    pub(crate) fn clocks(&self) -> &Clocks {
        self.device().clocks()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.clocks().retire(self.id);
        destroy(&self.device, self.raw.0);
    }
}

/// Destroys a stream whose handle nobody passes again.
fn destroy(device: &Device, raw: CUstream) {
    // Without its context the stream is gone already.
    let Ok(_bound) = device.enter() else { return };
    let _guard = device.driver().teardown();
    // SAFETY: the caller's promise. There is nobody to tell of a failure.
    let _ = unsafe { device.driver().cuStreamDestroy_v2(raw) };
}

/// Whether both are clones of one stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id().0)
            .field("device", &self.device().ordinal())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// A query's answer: "not ready" is an answer, anything else that failed is an error.
pub(crate) fn complete(answer: Result<(), DriverError>) -> Result<bool, PoolError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A handle of the simulator's must never reach the vendor's driver, which would follow it.
fn check_driver(device: &Device, other: &Device) -> Result<(), PoolError> {
    if device.driver().is_same_machine(other.driver()) {
        Ok(())
    } else {
        Err(PoolError::wrong_device(device, other))
    }
}

const SLOT_BITS: u32 = 16;
