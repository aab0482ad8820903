//! [`StreamBuilder`]: creates owned streams with options.

use super::{HandleKind, Stream, StreamInner};
use crate::device::any_stream::AnyStream;
use crate::device::order::{Life, StreamParts};
use crate::device::{Device, Object};
use crate::error::DeviceError;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUresult, CUstream, CUstream_flags};
use std::sync::{Arc, Weak};

/// Sets up a [`Stream`]; see [`Stream::builder`].
///
/// ```
/// use gpumem_device::{Device, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let urgent = Stream::builder(&device).priority(-1).no_waits().build()?;
/// assert!(urgent.is_complete()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `build`"]
pub struct StreamBuilder {
    pub(super) device: Device,
    priority: i32,
    pub(super) no_waits: bool,
}

impl Stream {
    /// Creates a stream, independent of the legacy default stream.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::TooManyStreams`] if the maximum number of streams are alive or have unfinished work.
    /// - [`DeviceError::Driver`] if a call fails.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        Self::builder(device).build()
    }

    /// Starts from the defaults of [`Stream::new`].
    pub fn builder(device: &Device) -> StreamBuilder {
        StreamBuilder::new(device)
    }
}

impl Stream {
    /// Adds the stream to those whose calls may queue work.
    pub(super) fn list(&self) {
        let shared: Weak<dyn AnyStream> = Arc::<StreamInner>::downgrade(&self.0);
        self.device().sleepers().add_stream(shared);
    }
}

impl StreamBuilder {
    fn new(device: &Device) -> Self {
        Self { device: device.clone(), priority: 0, no_waits: false }
    }

    /// The priority: smaller numbers are more urgent, and 0, the default, is the least urgent. The driver uses the
    /// nearest priority that it supports.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Prevents the pool from inserting waits into this stream, or waits for it into other streams. Use it for streams that run a kernel
    /// which waits for other work, where an inserted wait could deadlock. The cost is less reuse when memory is short.
    pub fn no_waits(mut self) -> Self {
        self.no_waits = true;
        self
    }

    /// Creates the stream, independent of the legacy default stream.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::TooManyStreams`] if the maximum number of streams are alive or have unfinished work.
    /// - [`DeviceError::Driver`] if a call fails.
    pub fn build(self) -> Result<Stream, DeviceError> {
        let Self { device, priority, no_waits } = self;
        let _bound = device.enter()?;
        let (mut raw, flags) = (core::ptr::null_mut(), CUstream_flags::CU_STREAM_NON_BLOCKING.0);
        // SAFETY: `raw` outlives the call, and the context is current.
        unsafe { device.driver().cuStreamCreateWithPriority(&mut raw, flags, priority)? };
        let opened = driver_id(&device, raw).and_then(|driver_id| {
            let parts = StreamParts { raw, life: Life::Owned, no_waits, is_blocking: false, thread: None };
            Ok((driver_id, device.clocks().open(device.primary(), &parts)?))
        });
        let (driver_id, id) = opened.inspect_err(|_| device.destroy(Object::Stream(raw)))?;
        let stream = Stream(Arc::new(StreamInner::new(&device, raw, id, driver_id, HandleKind::Owned)));
        device.clocks().name(driver_id, &stream.0);
        stream.list();
        Ok(stream)
    }
}

/// The driver's unique id of a stream, if available: the driver refuses the query while the stream captures. The device's context is
/// current.
pub(super) fn driver_id(device: &Device, raw: CUstream) -> Result<Option<u64>, DeviceError> {
    let mut id = 0;
    // SAFETY: `id` outlives the call, and the caller has an alive stream or a special handle.
    match unsafe { device.driver().cuStreamGetId(raw, &mut id) } {
        Ok(()) => Ok(Some(id)),
        Err(DriverError::Missing { .. }) => Ok(None),
        Err(error) if error.code() == CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => Ok(None),
        Err(error) => Err(error.into()),
    }
}
