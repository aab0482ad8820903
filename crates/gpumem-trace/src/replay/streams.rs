//! [`Streams`]: the streams of a replay, as its pool's or as another library's.

use super::setup::{Setup, StreamKind, Waits};
use gpumem_pool::sys::types::{CUstream, CUstream_flags};
use gpumem_pool::{Device, PoolError, Stream};

/// The streams of a replay. Streams of another library are destroyed when this is dropped.
pub(super) struct Streams {
    device: Device,
    pub(super) wrapped: Vec<Stream>,
    /// The streams that the pool's crate did not create.
    pub(super) raw: Vec<CUstream>,
}

impl Streams {
    pub(super) fn new(device: &Device, setup: &Setup, count: u16) -> Result<Self, PoolError> {
        let mut streams = Self { device: device.clone(), wrapped: Vec::new(), raw: Vec::new() };
        for _ in 0..count {
            let builder = Stream::builder(device);
            let builder = if setup.waits == Waits::Off { builder.no_waits() } else { builder };
            let stream = match setup.streams {
                StreamKind::Own => builder.build()?,
                // SAFETY: the stream is destroyed after its last handle is dropped.
                StreamKind::Foreign => unsafe { builder.wrap(streams.make()?)? },
                // SAFETY: the stream is destroyed after it was retired.
                StreamKind::LongLived => unsafe { builder.wrap_long_lived(streams.make()?)? },
            };
            streams.wrapped.push(stream);
        }
        Ok(streams)
    }

    /// Creates a stream like another library does.
    fn make(&mut self) -> Result<CUstream, PoolError> {
        let _bound = self.device.bind()?;
        let (mut raw, flags) = (core::ptr::null_mut(), CUstream_flags::CU_STREAM_NON_BLOCKING.0);
        // SAFETY: `raw` outlives the call, and the context is current.
        unsafe { self.device.driver().cuStreamCreate(&mut raw, flags)? };
        self.raw.push(raw);
        Ok(raw)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        // Retiring fails if another replay's handle has retired the stream already.
        self.wrapped.drain(..).filter(|_| !self.raw.is_empty()).for_each(|stream| drop(stream.retire()));
        for raw in self.raw.drain(..) {
            // SAFETY: the stream was created in `make` and retired, and no handle to it is left.
            let _ = unsafe { self.device.driver().cuStreamDestroy_v2(raw) };
        }
    }
}
