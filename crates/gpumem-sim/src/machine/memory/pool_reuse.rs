//! Reuse of freed blocks, as the policies of a pool allow.

use crate::base::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::pool::{Pool, Segment};
use crate::order::Point;
use crate::order::happens_before::HappensBefore;
use crate::stream::Stream;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUmemPool_attribute as Attribute;

impl Machine {
    /// Finds memory in this order: frees of this stream, frees that happen before its next operation, memory that is free for all
    /// streams, new memory, another stream's free with a wait.
    pub(crate) fn pool_take(&mut self, handle: Handle, size_bytes: u64, stream: Handle) -> Answer<u64> {
        if let Some(base) = self.pool_take_own(handle, size_bytes, stream) {
            return Ok(base);
        }
        if let Some(base) = self.pool_take_happens_before(handle, size_bytes, stream) {
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

    fn pool_take_happens_before(&mut self, handle: Handle, size_bytes: u64, stream: Handle) -> Option<u64> {
        let pool = self.pools.get(handle).filter(|pool| pool.policies.follows_events)?;
        if pool.pending.is_empty() {
            return None;
        }
        // The work that the legacy stream orders before the allocation, which is queued next.
        self.order_with_legacy(stream);
        let pool = self.pools.get(handle)?;
        let base = pool.pending.of_known(size_bytes, |other| self.happens_before_of(stream, other))?;
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

    /// Notes that a free has run. If the pool is opportunistic, memory that its stream has not reused becomes free for all
    /// streams.
    pub(crate) fn pool_release(&mut self, handle: Handle, base: u64, size_bytes: u64, at: Option<Point>) {
        let Some(pool) = self.pools.get_mut(handle) else { return };
        let Ok(size_bytes) = pool.room_bytes(size_bytes) else { return };
        match at {
            None => pool.free.give(base, size_bytes),
            // A destroyed pool reuses nothing.
            Some(at) if pool.policies.is_opportunistic || pool.is_closing => {
                for (piece, piece_bytes) in pool.pending.take_freed(base, size_bytes, at) {
                    pool.free.give(piece, piece_bytes);
                }
            }
            Some(_) => {}
        }
        self.pool_close_if_empty(handle);
    }

    /// Notes that the host has observed the completion of all work of some streams, and so of the points that happen before it.
    pub(crate) fn pools_seen(&mut self, is_meant: impl Fn(Handle, &Stream) -> bool) {
        if !self.has_hesitant_pools() {
            return;
        }
        let mut seen = HappensBefore::default();
        for (handle, stream) in self.streams.iter().filter(|(handle, stream)| is_meant(*handle, stream)) {
            if stream.is_idle() {
                seen.merge(&stream.happens_before);
            }
            seen.add(Point { stream: handle, position: stream.done_count });
        }
        self.pools_free_seen(&seen);
    }

    /// Notes that the host has observed the completion of an event.
    pub(crate) fn pools_seen_event(&mut self, event: Handle) {
        if let Some(event) = self.events.get(event).filter(|_| self.has_hesitant_pools())
            && let Some(point) = event.point
        {
            let mut seen = event.happens_before.clone();
            seen.add(point);
            self.pools_free_seen(&seen);
        }
    }

    /// True if a pool keeps blocks whose free has run.
    fn has_hesitant_pools(&self) -> bool {
        let is_hesitant = |pool: &Pool| !pool.policies.is_opportunistic && !pool.pending.is_empty();
        self.pools.iter().any(|(_, pool)| is_hesitant(pool))
    }

    /// Makes memory whose free the host has observed free for all streams. A destroyed stream counts as observed, because nothing
    /// can wait for it.
    fn pools_free_seen(&mut self, seen: &HappensBefore) {
        let streams = &self.streams;
        for pool in self.pools.values_mut() {
            let is_known = |_, freed: Point| seen.covers(freed) || streams.get(freed.stream).is_none();
            for (base, size_bytes) in pool.pending.take_where(is_known) {
                pool.free.give(base, size_bytes);
            }
        }
    }

    /// Sets a reuse policy.
    pub(crate) fn pool_set_policy(&mut self, handle: Handle, policy: Attribute, is_on: bool) -> Answer<()> {
        let pool = self.pools.get_mut(handle).ok_or(INVALID_VALUE)?;
        *pool.policies.switch(policy)? = is_on;
        if pool.policies.is_opportunistic {
            self.pool_free_passed(handle, |_| true);
        }
        Ok(())
    }

    /// Before memory is released: in segments that have only free memory and blocks whose free has run, makes those blocks free for all
    /// streams.
    pub(crate) fn pool_clear_segments(&mut self, handle: Handle) {
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

    /// Makes blocks whose free has run free for all streams.
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
