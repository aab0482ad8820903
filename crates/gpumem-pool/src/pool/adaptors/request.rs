//! [`Request`]: the parameters of an allocation that passes through the adaptors.

use super::settings::Figures;
use crate::config::{ALIGNMENT_MIN, BackendKind, PoolId};
use crate::pool::hub::Hub;
use gpumem_device::{Device, Stream};
use gpumem_sys::text::debug_fields;
use std::sync::Arc;

/// A request that an adaptor receives, and that it passes to the next adaptor.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    size_bytes: u64,
    alignment: u64,
    origin: &'a RequestedFrom<'a>,
}

pub(super) struct RequestedFrom<'a> {
    pub(super) hub: &'a Hub,
    pub(super) stream: &'a Stream,
    pub(super) tag: u16,
}

impl<'a> Request<'a> {
    /// Returns the requested number of bytes, which is greater than zero.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the requested alignment: a power of two, 256 or more.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the stream whose work may use the memory.
    #[must_use]
    pub fn stream(&self) -> &'a Stream {
        self.origin.stream
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.origin.stream.device()
    }

    /// Returns the identifier of the pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.origin.hub.id()
    }

    /// Returns the name of the pool ([`Pool::name`](crate::Pool::name)).
    #[must_use]
    pub fn pool_name(&self) -> Arc<str> {
        Arc::clone(self.origin.hub.name().shared())
    }

    /// Returns the request's tag: the name of the current scope ([`Pool::scope`](crate::Pool::scope)).
    #[must_use]
    pub fn tag(&self) -> Option<Arc<str>> {
        self.origin.hub.tags.names.get(self.origin.tag)
    }

    pub(crate) fn tag_number(&self) -> u16 {
        self.origin.tag
    }

    /// Returns the bytes that the pool and its private pools count against its limit, if those are the reserved memory: if they have not
    /// changed, neither has the reserved memory.
    #[inline]
    pub(crate) fn held_bytes(&self) -> Option<u64> {
        let hub = self.origin.hub;
        (hub.backend.kind() == BackendKind::Caching).then(|| hub.limits.node.held_bytes())
    }

    /// Returns the figures of the pool.
    pub(crate) fn figures(&self) -> Option<Figures> {
        Figures::of(&self.origin.hub.backend)
    }

    /// Returns this request with another size. A size of zero becomes one byte.
    #[must_use]
    pub fn with_size(self, size_bytes: u64) -> Self {
        Self { size_bytes: size_bytes.max(1), ..self }
    }

    /// Returns this request with another alignment; [`Next::alloc`](super::Next::alloc) refuses an invalid one.
    #[must_use]
    pub fn with_alignment(self, alignment: u64) -> Self {
        Self { alignment: alignment.max(ALIGNMENT_MIN), ..self }
    }

    #[inline]
    pub(super) fn new(size_bytes: u64, alignment: u64, origin: &'a RequestedFrom<'a>) -> Self {
        Self { size_bytes, alignment: alignment.max(ALIGNMENT_MIN), origin }
    }
}

debug_fields!(Request<'_>, it, size_bytes: it.size_bytes, alignment: it.alignment, stream: it.stream().id());
