//! The three reuse policies of a pool, each a switch: which streams may reuse a freed block, and when.
//!
//! A stream may always reuse a block that it freed itself, because its next operation comes after the free. Another stream may
//! reuse the block
//! - *following events*, if the free happens before its next operation, by an event or the order of the legacy stream, even if
//!   the free has not run;
//! - *opportunistically*, if the free has run;
//! - by *internal dependencies*, if the pool cannot grow: the stream is made to wait for the free.
//!
//! With all three off, a block is reused by other streams once the host has synchronised with the free.
//!
//! The opportunistic switch is read when a free runs. If it is off, the block stays in [`Pool::pending`], for streams that the free
//! happens before; if it is on, the block is free for all streams.

use crate::base::codes::{Answer, INVALID_VALUE};
use gpumem_sys::types::CUmemPool_attribute as Attribute;

/// The reuse policies of a pool; all are on by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policies {
    pub(crate) follows_events: bool,
    pub(crate) is_opportunistic: bool,
    pub(crate) may_wait: bool,
}

impl Default for Policies {
    fn default() -> Self {
        Self { follows_events: true, is_opportunistic: true, may_wait: true }
    }
}

impl Policies {
    /// The switch of an attribute, if the attribute is a reuse policy.
    pub(crate) fn switch(&mut self, attribute: Attribute) -> Answer<&mut bool> {
        match attribute {
            Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Ok(&mut self.follows_events),
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Ok(&mut self.is_opportunistic),
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(&mut self.may_wait),
            _ => Err(INVALID_VALUE),
        }
    }
}
