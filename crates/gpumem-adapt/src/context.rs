//! [`Context`]: the state that the parts of one value share while the value is moved.

use core::any::{Any, TypeId};
use std::collections::HashMap;

/// One call of [`Adapt::adapt`](crate::Adapt::adapt) or [`Adapt::into_adapted`](crate::Adapt::into_adapted): the target, and what
/// several parts of the value share.
pub struct Context<'t, To> {
    to: &'t To,
    /// By address and new type: what a shared part became.
    shared: HashMap<(usize, TypeId), Box<dyn Any>>,
}

impl<'t, To> Context<'t, To> {
    pub(crate) fn new(to: &'t To) -> Self {
        Self { to, shared: HashMap::new() }
    }

    /// The target.
    #[must_use]
    pub fn to(&self) -> &'t To {
        self.to
    }

    /// Returns the moved form of the shared part at `address`, if it was moved before.
    pub(crate) fn shared<R: Clone + 'static>(&self, address: usize) -> Option<R> {
        let entry = self.shared.get(&(address, TypeId::of::<R>()))?;
        entry.downcast_ref::<Entry<R>>().map(|entry| entry.moved.clone())
    }

    /// Records what the shared part at `address` became. While the context exists, `source` keeps the address from being used
    /// again.
    pub(crate) fn share<R: Clone + 'static>(&mut self, address: usize, moved: &R, source: impl Any) {
        let entry = Entry { moved: moved.clone(), _source: Box::new(source) };
        self.shared.insert((address, TypeId::of::<R>()), Box::new(entry));
    }
}

/// A shared part after the move, and its owner before.
struct Entry<R> {
    moved: R,
    _source: Box<dyn Any>,
}
