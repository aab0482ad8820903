//! [`Opening`]: a pool that is built with an adaptor.

use super::settings::PoolSettings;
use crate::config::PoolId;
use crate::pool::hub::Hub;
use crate::pool::listing::Listing;
use crate::pool::observer::Witness;
use crate::stats::Names;
use gpumem_device::Device;
use gpumem_sys::text::debug_fields;
use std::sync::{Arc, Weak};

/// A pool that is built with an adaptor.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) settings: &'a PoolSettings,
}

impl<'a> Opening<'a> {
    /// The pool, for its figures while it exists.
    pub(crate) fn listing(&self) -> Weak<Listing> {
        Arc::downgrade(&self.hub.listing)
    }

    /// Returns the pool's identifier, which is constant for the pool's lifetime.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.hub.id()
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.hub.device()
    }

    pub(crate) fn add_witness(&self, witness: Arc<dyn Witness>) {
        self.hub.add_witness(witness);
    }

    pub(crate) fn names(&self) -> &'a Arc<Names> {
        &self.hub.tags.names
    }
}

debug_fields!(Opening<'_>, it, pool: it.pool(), device: it.device());
