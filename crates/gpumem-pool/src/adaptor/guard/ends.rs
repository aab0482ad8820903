//! [`Ends`]: the guard bytes after growable blocks.
//!
//! They need no memory of their own: they lie in the last page of the block's memory, after its usable part.

use super::{BACK_BYTES_MAX, Edges, Guard, PATTERN};
use crate::adaptor::{Change, fill::set};
use crate::error::PoolError;
use crate::pool::After;
use core::ops::Range;
use gpumem_sys::types::CUdeviceptr;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By the block's address: the size at which it has guard bytes.
#[derive(Default)]
pub(super) struct Ends(Mutex<BTreeMap<CUdeviceptr, u64>>);

impl Ends {
    /// Stores the size at which the block has guard bytes; `None` for none.
    fn set(&self, change: &Change<'_>, size_bytes: Option<u64>) {
        match size_bytes {
            Some(size_bytes) => self.lock().insert(change.address(), size_bytes),
            None => self.lock().remove(&change.address()),
        };
    }

    fn has(&self, change: &Change<'_>, size_bytes: u64) -> bool {
        self.lock().get(&change.address()) == Some(&size_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<CUdeviceptr, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guard {
    /// Before a growth: checks the guard bytes at the present end, once all queued work is done.
    pub(super) fn leave_end(&self, change: &Change<'_>) -> Result<(), PoolError> {
        if self.ends.has(change, change.from_bytes()) {
            let edge = edge(change, change.from_bytes());
            self.look_at_end(change);
            // Set again for the case that the growth fails: the block then keeps its end.
            change.do_now(After::Uses, |driver, stream| {
                set(driver, edge.start, PATTERN, edge.end - edge.start, stream)
            })?;
        }
        self.look();
        match self.found().pop() {
            Some(damage) => Err(PoolError::Damaged(damage)),
            None => Ok(()),
        }
    }

    /// After a growth: sets the guard bytes at the new end.
    pub(super) fn guard_end(&self, change: &Change<'_>) -> Result<(), PoolError> {
        let edge = edge(change, change.to_bytes());
        self.ends.set(change, None);
        if !edge.is_empty() {
            change.do_now(After::Cut, |driver, stream| {
                set(driver, edge.start, PATTERN, edge.end - edge.start, stream)
            })?;
            self.ends.set(change, Some(change.to_bytes()));
        }
        Ok(())
    }

    /// At a shrink, which must not wait: queues the check of the present end, and sets the guard bytes at the new one.
    pub(super) fn move_end(&self, change: &Change<'_>) {
        if !change.is_undone() && self.ends.has(change, change.from_bytes()) {
            self.look_at_end(change);
        }
        let edge = edge(change, change.to_bytes());
        let is_set = !edge.is_empty()
            && change.queue(|driver, owner_stream| {
                set(driver, edge.start, PATTERN, edge.end - edge.start, owner_stream)
            });
        self.ends.set(change, is_set.then_some(change.to_bytes()));
    }

    fn look_at_end(&self, change: &Change<'_>) {
        let (address, size_bytes) = (change.address(), change.from_bytes());
        let (stream, pool) = (change.stream_id(), change.pool());
        let edge = edge(change, size_bytes);
        let (front_bytes, back_bytes) = (0, edge.end - edge.start);
        let edges = Edges { address, size_bytes, front_bytes, back_bytes, stream, pool };
        self.look_later(change.device(), edges, |copies| change.queue(copies));
    }
}

/// The guard bytes after the end of a block of this size.
fn edge(change: &Change<'_>, size_bytes: u64) -> Range<CUdeviceptr> {
    let Range { start, end } = change.slack(size_bytes);
    start..end.min(start + BACK_BYTES_MAX)
}
