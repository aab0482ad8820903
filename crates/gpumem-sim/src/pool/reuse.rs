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

use super::{Pool, Segment};
use crate::behind::Behind;
use crate::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::handle::Handle;
use crate::machine::Machine;
use crate::operation::Operation;
use crate::plain::ALIGNMENT_BYTES;
use crate::stream::{Point, Stream};
use gpumem_sys::types::CUmemPool_attribute as Attribute;

/// The switches of a pool; all are on unless the program says otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policies {
    follows_events: bool,
    is_opportunistic: bool,
    may_wait: bool,
}

impl Default for Policies {
    fn default() -> Self {
        Self { follows_events: true, is_opportunistic: true, may_wait: true }
    }
}

impl Policies {
    /// The switch that an attribute is, if it is one.
    pub(super) fn switch(&mut self, attribute: Attribute) -> Answer<&mut bool> {
        match attribute {
            Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Ok(&mut self.follows_events),
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Ok(&mut self.is_opportunistic),
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(&mut self.may_wait),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl Machine {
    /// The ladder: this stream's own frees, those that it is behind, what is free for all, new memory, another
    /// stream's free with a wait.
    pub(super) fn pool_take(&mut self, handle: Handle, size_bytes: u64, stream: Handle) -> Answer<u64> {
        if let Some(base) = self.pool_take_own(handle, size_bytes, stream) {
            return Ok(base);
        }
        if let Some(base) = self.pool_take_behind(handle, size_bytes, stream) {
            return Ok(base);
        }
        if let Some(base) = self.pool_take_free(handle, size_bytes) {
            return Ok(base);
        }
        match self.pool_grow(handle, size_bytes) {
            Ok(()) => self.pool_take_free(handle, size_bytes).ok_or(OUT_OF_MEMORY),
            Err(error) => self.pool_take_waiting(handle, size_bytes, stream).ok_or(error),
        }
    }

    fn pool_take_own(&mut self, handle: Handle, size_bytes: u64, stream: Handle) -> Option<u64> {
        let pending = &mut self.pools.get_mut(handle)?.pending;
        let base = pending.of_stream(stream, size_bytes)?;
        pending.split(base, size_bytes)?;
        Some(base)
    }

    fn pool_take_behind(&mut self, handle: Handle, size_bytes: u64, stream: Handle) -> Option<u64> {
        let pool = self.pools.get(handle).filter(|pool| pool.policies.follows_events)?;
        if pool.pending.is_empty() {
            return None;
        }
        // What the legacy stream's order puts before the allocation, which is about to be queued.
        self.order_with_legacy(stream);
        let pool = self.pools.get(handle)?;
        let base = pool.pending.of_known(size_bytes, |other| self.behind_of(stream, other))?;
        self.pools.get_mut(handle)?.pending.split(base, size_bytes)?;
        Some(base)
    }

    fn pool_take_free(&mut self, handle: Handle, size_bytes: u64) -> Option<u64> {
        self.pools.get_mut(handle)?.free.take(size_bytes)
    }

    fn pool_take_waiting(&mut self, handle: Handle, size_bytes: u64, stream: Handle) -> Option<u64> {
        let pool = self.pools.get_mut(handle).filter(|pool| pool.policies.may_wait)?;
        let base = pool.pending.of_any(size_bytes)?;
        let point = pool.pending.split(base, size_bytes)?;
        self.enqueue(stream, Operation::Wait { point, event: None });
        Some(base)
    }

    /// A free has run: what no stream has taken again meanwhile is free for all, if the pool is opportunistic.
    pub(crate) fn pool_release(&mut self, handle: Handle, base: u64, size_bytes: u64, at: Option<Point>) {
        let Some(pool) = self.pools.get_mut(handle) else { return };
        let size_bytes = size_bytes.next_multiple_of(ALIGNMENT_BYTES);
        match at {
            None => pool.free.give(base, size_bytes),
            // A pool that closes hands nothing out.
            Some(at) if pool.policies.is_opportunistic || pool.is_closing => {
                for (piece, piece_bytes) in pool.pending.take_freed(base, size_bytes, at) {
                    pool.free.give(piece, piece_bytes);
                }
            }
            Some(_) => {}
        }
        self.pool_close_if_empty(handle);
    }

    /// The host knows that all of some streams has run that was queued, and so what they were behind.
    pub(crate) fn pools_seen(&mut self, is_meant: impl Fn(Handle, &Stream) -> bool) {
        if !self.has_hesitant_pools() {
            return;
        }
        let mut seen = Behind::default();
        for (handle, stream) in self.streams.iter().filter(|(handle, stream)| is_meant(*handle, stream)) {
            if stream.is_idle() {
                seen.learn_all(&stream.behind);
            }
            seen.learn(Point { stream: handle, position: stream.done_count });
        }
        self.pools_learn(&seen);
    }

    /// The host knows that an event is done.
    pub(crate) fn pools_seen_event(&mut self, event: Handle) {
        if let Some(event) = self.events.get(event).filter(|_| self.has_hesitant_pools())
            && let Some(point) = event.point
        {
            let mut seen = event.behind.clone();
            seen.learn(point);
            self.pools_learn(&seen);
        }
    }

    /// Whether a pool keeps blocks back whose free has run.
    fn has_hesitant_pools(&self) -> bool {
        let is_hesitant = |pool: &Pool| !pool.policies.is_opportunistic && !pool.pending.is_empty();
        self.pools.iter().any(|(_, pool)| is_hesitant(pool))
    }

    /// What the host knows to be free is free for all. Nobody waits for a stream that is gone, so that counts as known.
    fn pools_learn(&mut self, seen: &Behind) {
        let streams = &self.streams;
        for pool in self.pools.values_mut() {
            let is_known = |_, freed: Point| seen.covers(freed) || streams.get(freed.stream).is_none();
            for (base, size_bytes) in pool.pending.take_where(is_known) {
                pool.free.give(base, size_bytes);
            }
        }
    }

    /// Turns a switch.
    pub(super) fn pool_set_policy(&mut self, handle: Handle, policy: Attribute, is_on: bool) -> Answer<()> {
        let pool = self.pools.get_mut(handle).ok_or(INVALID_VALUE)?;
        *pool.policies.switch(policy)? = is_on;
        if pool.policies.is_opportunistic {
            self.pool_free_passed(handle, |_| true);
        }
        Ok(())
    }

    /// Where memory is to leave the pool, blocks whose free has run don't keep a segment that is free but for them.
    pub(super) fn pool_clear_segments(&mut self, handle: Handle) {
        let Some(pool) = self.pools.get(handle).filter(|pool| !pool.policies.is_opportunistic) else {
            return;
        };
        let is_clear = |&(&base, segment): &(&u64, &Segment)| {
            let passed_bytes = pool.pending.bytes_within(base, segment.size_bytes, |at| self.is_done(at));
            pool.free.bytes_within(base, segment.size_bytes) + passed_bytes == segment.size_bytes
        };
        let clear = pool.segments.iter().filter(is_clear).map(|(&base, found)| base..base + found.size_bytes);
        for segment in clear.collect::<Vec<_>>() {
            self.pool_free_passed(handle, |base| segment.contains(&base));
        }
    }

    /// Blocks whose free has run are free for all.
    fn pool_free_passed(&mut self, handle: Handle, is_meant: impl Fn(u64) -> bool) {
        let Some(pool) = self.pools.get_mut(handle) else { return };
        let mut pending = core::mem::take(&mut pool.pending);
        let passed = pending.take_where(|base, freed| is_meant(base) && self.is_done(freed));
        if let Some(pool) = self.pools.get_mut(handle) {
            passed.into_iter().for_each(|(base, size_bytes)| pool.free.give(base, size_bytes));
            pool.pending = pending;
        }
    }
}
