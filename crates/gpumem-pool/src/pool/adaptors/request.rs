//! [`Request`]: what is asked of an adaptor.

use super::PoolId;
use super::stack::Call;
use crate::config::ALIGNMENT_MIN;
use crate::device::{Device, Stream};
use core::fmt;
use std::sync::Arc;

/// What is asked of an adaptor, and what it asks of the next.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    size_bytes: u64,
    alignment: u64,
    call: &'a Call<'a>,
}

impl<'a> Request<'a> {
    /// How many bytes, more than zero.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// At a multiple of this: a power of two, 256 or more.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The stream whose work may use it.
    #[must_use]
    pub fn stream(&self) -> &'a Stream {
        self.call.stream
    }

    /// The pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.call.stream.device()
    }

    /// The pool that is asked.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.call.stack.id()
    }

    /// What it is for: the name of the scope that it is asked in ([`Pool::scope`](crate::Pool::scope)).
    #[must_use]
    pub fn tag(&self) -> Option<Arc<str>> {
        self.call.stack.names().get(self.call.tag)
    }

    /// The same by number; 0 is none.
    pub(crate) fn tag_number(&self) -> u16 {
        self.call.tag
    }

    /// The same for another size. Zero is one byte.
    #[must_use]
    pub fn with_size(self, size_bytes: u64) -> Self {
        Self { size_bytes: size_bytes.max(1), ..self }
    }

    /// The same at another alignment; [`Next::alloc`](super::Next::alloc) refuses one that is none.
    #[must_use]
    pub fn with_alignment(self, alignment: u64) -> Self {
        Self { alignment: alignment.max(ALIGNMENT_MIN), ..self }
    }

    #[inline]
    pub(super) fn new(size_bytes: u64, alignment: u64, call: &'a Call<'a>) -> Self {
        Self { size_bytes, alignment: alignment.max(ALIGNMENT_MIN), call }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("size_bytes", &self.size_bytes)
            .field("alignment", &self.alignment)
            .field("stream", &self.stream().id())
            .finish_non_exhaustive()
    }
}
