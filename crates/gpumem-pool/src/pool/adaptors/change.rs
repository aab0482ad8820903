//! [`Change`]: a growable block grows or shrinks.

use crate::config::PoolId;
use crate::error::PoolError;
use crate::pool::hub::Hub;
use core::fmt;
use gpumem_device::{Device, StreamId};
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

/// A change of the memory of a [`GrowableBlock`](crate::GrowableBlock).
#[derive(Clone, Copy)]
pub struct Change<'a> {
    from_bytes: u64,
    to_bytes: u64,
    subject: &'a Subject<'a>,
    hub: &'a Hub,
    is_undone: bool,
}

/// The block that changes.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) address: CUdeviceptr,
    pub(crate) device: &'a Device,
    pub(crate) tag: u16,
    pub(crate) owner_stream: StreamId,
    /// The other streams that used the block.
    pub(crate) uses: u64,
}

impl<'a> Change<'a> {
    /// Returns the block's start address, which is constant for its lifetime.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.subject.address
    }

    /// Returns the block's size before the change.
    #[must_use]
    pub fn from_bytes(&self) -> u64 {
        self.from_bytes
    }

    /// Returns the block's size after the change.
    #[must_use]
    pub fn to_bytes(&self) -> u64 {
        self.to_bytes
    }

    /// True if this change undoes a failed growth. The new memory was never used.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// Returns the block's owner stream. The stream itself may no longer exist.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.subject.owner_stream
    }

    /// Returns the other streams that have used the block.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.subject.device.clocks().users(self.subject.uses)
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.subject.device
    }

    /// Returns the identifier of the block's pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.hub.id()
    }

    /// Returns the name of the block's pool ([`Pool::name`](crate::Pool::name)).
    #[must_use]
    pub fn pool_name(&self) -> Arc<str> {
        Arc::clone(self.hub.name().shared())
    }

    /// Returns the block's tag: the name of the scope that the block was created in.
    #[must_use]
    pub fn tag(&self) -> Option<Arc<str>> {
        self.hub.tags().names().get(self.subject.tag)
    }

    /// Returns the number of the block's tag; 0 means no tag.
    pub(crate) fn tag_number(&self) -> u16 {
        self.subject.tag
    }

    /// Returns the refusal of an adaptor that does not support growable blocks.
    pub(crate) fn refused(&self, adaptor: &str, reason: &str) -> PoolError {
        let (adaptor, requested_bytes) = (adaptor.into(), self.to_bytes);
        PoolError::Refused { adaptor, requested_bytes, reason: reason.into(), origin: None }
    }

    pub(super) fn new(subject: &'a Subject<'a>, hub: &'a Hub, from_bytes: u64, to_bytes: u64) -> Self {
        Self { from_bytes, to_bytes, subject, hub, is_undone: false }
    }

    /// Returns the opposite change.
    pub(super) fn backwards(self, is_undone: bool) -> Self {
        Self { from_bytes: self.to_bytes, to_bytes: self.from_bytes, is_undone, ..self }
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("from_bytes", &self.from_bytes)
            .field("to_bytes", &self.to_bytes)
            .field("is_undone", &self.is_undone)
            .finish_non_exhaustive()
    }
}
