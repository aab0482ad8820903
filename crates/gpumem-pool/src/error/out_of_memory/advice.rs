//! [`Advice`]: the one thing that would help most in this case.
//!
//! | what is so | advice |
//! | --- | --- |
//! | most of what is in use is kept for graphs alone, and would do | drop graphs |
//! | use grows with every step, and an empty pool would have had room | find the leak |
//! | what is free waits for work that could not be waited for | wait for it |
//! | there is enough, of the limit or of what the pool keeps | it is in pieces |
//! | the device has as much free, and its driver does not give it | try differently |
//! | the margin of unified memory refused | oversubscribe |
//! | a limit refused, and the device has the memory, or other pools only keep it | raise it |
//! | others have what is missing, and more than a context takes | free the device |
//! | else | need less |

use super::{OutOfMemory, RefusedBy};
use crate::config::{ALIGNMENT_MIN, BackendKind, MemoryKind};

/// What would help most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// The device has the memory; our limit is lower.
    RaiseTheLimit,
    /// Somebody else has what is missing: another process, or another pool of this one.
    FreeTheDevice,
    /// Enough is free, but in pieces.
    Defragment,
    /// The device has as much free as was asked for, and its driver did not give it: in smaller blocks, or by another backend, it
    /// may.
    TryDifferently,
    /// The program keeps a little more at every step.
    FindTheLeak,
    /// Most of what is in use was dropped, and is kept for what has been captured.
    DropGraphs,
    /// The program wants more than there is.
    NeedLess,
    /// What is kept free for unified memory to work in is in the way.
    Oversubscribe,
    /// What is free waits for work on the device that this request could not wait for, because a capture goes on or because the
    /// work was not done in time.
    WaitForWork,
}

impl OutOfMemory {
    /// What would help most in this case.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self.limit_bytes {
            _ if self.refused_by == RefusedBy::OnPurpose => Advice::TryDifferently,
            Some(limit_bytes) => self.advice_below(limit_bytes),
            None => self.advice_for_device(),
        }
    }

    /// One of our limits refused.
    fn advice_below(&self, limit_bytes: u64) -> Advice {
        let own_bytes = limit_bytes.saturating_sub(self.limit_others_bytes);
        if self.would_graphs_do(own_bytes) {
            return Advice::DropGraphs;
        }
        if self.leaks_into(own_bytes) {
            return Advice::FindTheLeak;
        }
        if self.needed_bytes() <= limit_bytes {
            let at_hand_bytes = own_bytes.saturating_sub(self.held_bytes());
            let is_pending =
                self.is_pending() || at_hand_bytes.saturating_sub(self.pending_bytes) < self.wanted_bytes();
            return if is_pending { Advice::WaitForWork } else { Advice::Defragment };
        }
        match () {
            () if self.refused_by == RefusedBy::Margin => Advice::Oversubscribe,
            () if self.has_room_beyond_the_limit() => Advice::RaiseTheLimit,
            () if self.are_others_in_the_way() => Advice::FreeTheDevice,
            () => Advice::NeedLess,
        }
    }

    /// The driver refused.
    fn advice_for_device(&self) -> Advice {
        let free_bytes = if self.is_on_device() { self.device_free_bytes } else { 0 };
        let wanted_bytes = self.wanted_bytes();
        let is_withheld =
            free_bytes > 0 && wanted_bytes.saturating_add(self.driver_unit_bytes()) <= free_bytes;
        let in_pieces_bytes = self.idle_bytes().saturating_sub(self.pending_bytes);
        let is_there = in_pieces_bytes.saturating_add(free_bytes) >= wanted_bytes;
        let room_bytes = self.reserved_bytes.saturating_add(free_bytes);
        // A few percent are always idle somewhere: that is not why there is no more.
        let is_much_idle = in_pieces_bytes >= self.reserved_bytes / MUCH_IDLE;
        match () {
            () if self.would_graphs_do(room_bytes) => Advice::DropGraphs,
            () if self.leaks_into(room_bytes) => Advice::FindTheLeak,
            () if self.is_pending() => Advice::WaitForWork,
            () if in_pieces_bytes >= wanted_bytes && is_much_idle => Advice::Defragment,
            () if is_withheld => Advice::TryDifferently,
            () if self.are_others_in_the_way() => Advice::FreeTheDevice,
            () if is_there => Advice::Defragment,
            () => Advice::NeedLess,
        }
    }

    /// What the request would bring use to, of the limit that refused or of this pool alone: what is taken of the driver for it,
    /// if that is known.
    pub(super) fn needed_bytes(&self) -> u64 {
        let own_bytes = self.held_bytes().saturating_add(self.wanted_bytes());
        let taken_bytes = match self.maker.backend {
            Some(BackendKind::Caching) => own_bytes.checked_next_multiple_of(2 << 20),
            _ => None,
        };
        taken_bytes.unwrap_or(own_bytes).saturating_add(self.limit_others_bytes)
    }

    /// What blocks take, and their rounding with them.
    fn held_bytes(&self) -> u64 {
        self.in_use_bytes.saturating_add(self.rounding_bytes)
    }

    /// Reserved, and nothing's.
    fn idle_bytes(&self) -> u64 {
        self.cached_bytes().saturating_sub(self.rounding_bytes)
    }

    /// What the request takes: to have an aligned start, some more than was asked for.
    pub(super) fn wanted_bytes(&self) -> u64 {
        let had_bytes =
            if self.maker.backend == Some(BackendKind::Caching) { 2 << 20 } else { ALIGNMENT_MIN };
        self.requested_bytes.saturating_add(self.alignment.saturating_sub(had_bytes))
    }

    /// Whether it is graphs that most of what is in use is kept for, and the request would fit where that is.
    fn would_graphs_do(&self, room_bytes: u64) -> bool {
        let others_bytes = self.held_bytes().saturating_sub(self.graph_bytes);
        self.graph_bytes > others_bytes && others_bytes.saturating_add(self.wanted_bytes()) <= room_bytes
    }

    /// Whether use has grown like a leak, and that is what is in the way of a request: with nothing in use it would fit.
    fn leaks_into(&self, room_bytes: u64) -> bool {
        self.growth.as_ref().is_some_and(|growth| growth.is_leak) && self.wanted_bytes() <= room_bytes
    }

    fn is_pending(&self) -> bool {
        self.pending_bytes > 0 && self.pending_bytes >= self.wanted_bytes()
    }

    /// Whether what the device has free says anything of this memory.
    fn is_on_device(&self) -> bool {
        self.kind == MemoryKind::Device
    }

    /// With less left than this, no driver gives anything.
    fn driver_unit_bytes(&self) -> u64 {
        if self.maker.backend == Some(BackendKind::Native) { 32 << 20 } else { 2 << 20 }
    }

    fn has_room_beyond_the_limit(&self) -> bool {
        let beyond_bytes = self.wanted_bytes().saturating_sub(self.idle_bytes());
        !self.is_on_device() || beyond_bytes <= self.obtainable_bytes()
    }

    /// What the device has free, or would have if a limit did not refuse first.
    fn obtainable_bytes(&self) -> u64 {
        self.device_free_bytes.saturating_add(self.maker.others_cached_bytes)
    }

    /// Whether what others have would do, all of it if it is only pieces that are in the way. A context and libraries of our own
    /// are no others; another pool of this program always is.
    fn are_others_in_the_way(&self) -> bool {
        let room_bytes = self.idle_bytes().saturating_add(self.obtainable_bytes());
        let missing_bytes = match self.wanted_bytes().saturating_sub(room_bytes) {
            0 => self.wanted_bytes(),
            missing_bytes => missing_bytes,
        };
        let would_do = |others_bytes, least_bytes| others_bytes >= missing_bytes.max(least_bytes);
        let others_bytes = self.others_bytes();
        self.is_on_device()
            && (would_do(others_bytes, self.context_bytes()) || would_do(self.other_pools_bytes, 1))
    }

    /// What a context and libraries of our own may take, by the size of the device.
    pub(super) fn context_bytes(&self) -> u64 {
        (self.device_total_bytes / 20).max((self.device_total_bytes / 4).min(CONTEXT_BYTES))
    }
}

/// The driver takes a few hundred MiB for each context, and libraries some more.
const CONTEXT_BYTES: u64 = 1 << 30;

/// This part of what is reserved is much to be idle.
const MUCH_IDLE: u64 = 8;

#[cfg(test)]
mod tests;
