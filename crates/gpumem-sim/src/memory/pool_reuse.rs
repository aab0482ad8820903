//! Who may have a block that was freed, and when: the three policies of a pool, each a switch.
//!
//! A stream may always have again what it freed itself: what it queues comes after the free. To any other stream a
//! block goes
//! - *following events*, if an event or the legacy stream's order puts that stream's next operation behind the free,
//!   run or not;
//! - *opportunistically*, if the free has run;
//! - by *internal dependencies*, if the pool can't grow: the stream is made to wait for the free.
//!
//! With all three off there is one way left: the host has synchronised with the free.
//!
//! The opportunistic switch counts at the moment when a free runs. What it finds off stays [`Pool::pending`], whose
//! blocks go to those who are behind them; what it finds on is anybody's from then on.

use crate::base::codes::{Answer, INVALID_VALUE};
use gpumem_sys::types::CUmemPool_attribute as Attribute;

/// The switches of a pool; all are on unless the program says otherwise.
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
    /// The switch that an attribute is, if it is one.
    pub(crate) fn switch(&mut self, attribute: Attribute) -> Answer<&mut bool> {
        match attribute {
            Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Ok(&mut self.follows_events),
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Ok(&mut self.is_opportunistic),
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(&mut self.may_wait),
            _ => Err(INVALID_VALUE),
        }
    }
}
