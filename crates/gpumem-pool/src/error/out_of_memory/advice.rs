//! [`Advice`]: the one action that helps most. The first row that applies decides, with exceptions for limits; see
//! `advice_below` and `advice_for_device`.
//!
//! | situation | advice |
//! | --- | --- |
//! | only an arithmetic bug can produce the size | need less |
//! | graphs alone retain most of the memory in use, and releasing it would suffice | drop graphs |
//! | use grows with every step, and an empty pool could serve the request | find the leak |
//! | the free memory waits for work that the request could not wait for | wait for it |
//! | the pool's cached memory would suffice, and it is more than a few percent | it is fragmented |
//! | the device has enough free memory, and its driver refuses it | try differently |
//! | the margin of unified memory refused | oversubscribe; need less if the device's memory is the host's |
//! | a limit refused, and the device has the memory, or other pools only cache it | raise it |
//! | other users hold the missing memory, and more than a context takes | free the device |
//! | otherwise | need less |

use super::{Holder, OutOfMemory, RefusedBy};
use crate::config::{ALIGNMENT_MIN, BackendKind, MemoryKind};
use crate::error::Requested;

/// The action that helps most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Advice {
    /// The device has the memory; the pool's limit is lower.
    RaiseTheLimit,
    /// Another process, another pool of this process, or this process outside its pools (cuBLAS, its own `cuMemAlloc`) holds the missing
    /// memory.
    FreeTheDevice,
    /// Enough memory is free, but it is fragmented.
    Defragment,
    /// The device has enough free memory, but its driver refused the request. Smaller blocks or another backend may
    /// succeed.
    TryDifferently,
    /// The program keeps more blocks after every step: a leak, or a cache that is still filling.
    FindTheLeak,
    /// Captures and graphs retain most of the memory in use; the program has freed it. End the captures that are open, and drop
    /// graphs.
    DropGraphs,
    /// The program needs more memory than is available, or an arithmetic error produced the size.
    NeedLess,
    /// The margin that unified memory leaves free refused the request.
    Oversubscribe,
    /// Free memory waits for work on the device that this request could not wait for, because a capture is active or
    /// because the work did not finish in time.
    WaitForWork,
}

impl OutOfMemory {
    /// The action that helps most in this case.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self.limit_bytes {
            _ if self.refused_by == RefusedBy::OnPurpose => Advice::TryDifferently,
            _ if Requested(self.requested_bytes).is_miscomputed() => Advice::NeedLess,
            Some(limit_bytes) => self.advice_below(limit_bytes),
            None => self.advice_for_device(),
        }
    }

    fn advice_below(&self, limit_bytes: u64) -> Advice {
        let own_bytes = limit_bytes.saturating_sub(self.limit_others_bytes);
        if self.would_graphs_do(own_bytes) {
            return Advice::DropGraphs;
        }
        if self.leaks_into(own_bytes) {
            return Advice::FindTheLeak;
        }
        if self.needed_bytes() <= limit_bytes {
            let available_bytes = own_bytes.saturating_sub(self.held_bytes());
            let is_pending =
                self.is_pending() || available_bytes.saturating_sub(self.pending_bytes) < self.wanted_bytes();
            if is_pending {
                return Advice::WaitForWork;
            }
            if available_bytes >= limit_bytes / MUCH_IDLE || !self.has_room_beyond_the_limit() {
                return Advice::Defragment;
            }
        }
        match () {
            // Memory beyond the host's has nowhere to move.
            () if self.refused_by == RefusedBy::Margin && self.facts.is_integrated => Advice::NeedLess,
            () if self.refused_by == RefusedBy::Margin => Advice::Oversubscribe,
            () if self.has_room_beyond_the_limit() => Advice::RaiseTheLimit,
            () if self.are_others_in_the_way() => Advice::FreeTheDevice,
            () => Advice::NeedLess,
        }
    }

    fn advice_for_device(&self) -> Advice {
        let free_bytes = if self.is_on_device() { self.device_free_bytes } else { 0 };
        let wanted_bytes = self.wanted_bytes();
        let is_withheld = wanted_bytes.saturating_add(self.driver_unit_bytes()) <= free_bytes;
        let in_pieces_bytes = self.idle_bytes().saturating_sub(self.pending_bytes);
        let is_there = in_pieces_bytes.saturating_add(free_bytes) >= wanted_bytes;
        let room_bytes = self.reserved_bytes.saturating_add(free_bytes);
        // A few percent are always idle, and do not explain a refusal.
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

    /// The use that the request would lead to, of the limit that refused or of this pool. Rounded up to the unit that the backend takes
    /// from the driver, if that is known.
    pub(super) fn needed_bytes(&self) -> u64 {
        let own_bytes = self.held_bytes().saturating_add(self.wanted_bytes());
        let taken_bytes = match self.facts.backend {
            Some(BackendKind::Caching) if self.refused_by != RefusedBy::Budget => {
                own_bytes.checked_next_multiple_of(2 << 20)
            }
            _ => None,
        };
        taken_bytes.unwrap_or(own_bytes).saturating_add(self.limit_others_bytes)
    }

    /// The limit that would allow the request. If the free memory below the limit is fragmented, the request needs additional memory.
    pub(super) fn raised_limit_bytes(&self) -> u64 {
        match self.needed_bytes() {
            needed_bytes if Some(needed_bytes) <= self.limit_bytes => {
                needed_bytes.saturating_add(self.idle_bytes())
            }
            needed_bytes => needed_bytes,
        }
    }

    /// The tag of at least half of the memory in use.
    pub(super) fn main_holder(&self) -> Option<&Holder> {
        let blocks_bytes = self.in_use_bytes.saturating_add(self.asleep_bytes);
        self.holders.first().filter(|holder| holder.in_use_bytes >= blocks_bytes.div_ceil(2))
    }

    /// The bytes of blocks that count against limits, rounding by the pool included. Everything that counts against a budget is in
    /// [`OutOfMemory::limit_others_bytes`].
    fn held_bytes(&self) -> u64 {
        let rounding_bytes = match self.facts.backend {
            Some(BackendKind::Caching) => self.rounding_bytes,
            _ => 0,
        };
        match self.refused_by {
            RefusedBy::Budget => 0,
            _ => self.in_use_bytes.saturating_add(rounding_bytes),
        }
    }

    /// Reserved bytes that belong to no block.
    fn idle_bytes(&self) -> u64 {
        self.cached_bytes().saturating_sub(self.rounding_bytes)
    }

    /// The bytes that the request takes: an aligned start needs more than the requested size.
    pub(super) fn wanted_bytes(&self) -> u64 {
        let had_bytes =
            if self.facts.backend == Some(BackendKind::Caching) { 2 << 20 } else { ALIGNMENT_MIN };
        let padding_bytes = self.alignment.saturating_sub(had_bytes);
        self.requested_bytes.saturating_add(self.added_bytes).saturating_add(padding_bytes)
    }

    /// True if graphs retain most of the memory in use, and the request would fit without it.
    fn would_graphs_do(&self, room_bytes: u64) -> bool {
        let others_bytes = self.held_bytes().saturating_sub(self.graph_bytes);
        self.graph_bytes > others_bytes && others_bytes.saturating_add(self.wanted_bytes()) <= room_bytes
    }

    /// True if use has grown like a leak that explains the refusal: with nothing in use the request would fit.
    fn leaks_into(&self, room_bytes: u64) -> bool {
        self.growth.as_ref().is_some_and(|growth| growth.is_leak) && self.wanted_bytes() <= room_bytes
    }

    fn is_pending(&self) -> bool {
        self.pending_bytes > 0 && self.pending_bytes >= self.wanted_bytes()
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.kind == MemoryKind::Device
    }

    /// With less free memory than this, every driver refuses.
    fn driver_unit_bytes(&self) -> u64 {
        if self.facts.backend == Some(BackendKind::Native) { 32 << 20 } else { 2 << 20 }
    }

    pub(super) fn has_room_beyond_the_limit(&self) -> bool {
        let beyond_bytes = self.wanted_bytes().saturating_sub(self.idle_bytes());
        !self.is_on_device() || beyond_bytes <= self.obtainable_bytes()
    }

    /// The device's free memory, plus the memory that its other pools could release.
    fn obtainable_bytes(&self) -> u64 {
        self.device_free_bytes.saturating_add(self.facts.others_cached_bytes)
    }

    /// True if the memory of other users would suffice, or all of it if fragmentation is the only problem. The context and libraries of
    /// this process do not count as other users; another pool of this program always does.
    fn are_others_in_the_way(&self) -> bool {
        let missing_bytes = match self.missing_bytes() {
            0 => self.wanted_bytes(),
            missing_bytes => missing_bytes,
        };
        let would_do = |others_bytes, least_bytes| others_bytes >= missing_bytes.max(least_bytes);
        let others_bytes = self.others_bytes();
        self.is_on_device()
            && (would_do(others_bytes, self.context_bytes()) || would_do(self.other_pools_bytes, 1))
    }

    /// The size of the request beyond the memory that is free or can be released; 0 if fragmentation is the only problem.
    pub(super) fn missing_bytes(&self) -> u64 {
        let room_bytes = self.idle_bytes().saturating_add(self.obtainable_bytes());
        self.wanted_bytes().saturating_sub(room_bytes)
    }

    /// An upper bound for this process's context and libraries, by the size of the device.
    pub(super) fn context_bytes(&self) -> u64 {
        (self.device_total_bytes / 20).max((self.device_total_bytes / 4).min(CONTEXT_BYTES))
    }
}

/// The driver takes a few hundred MiB for each context, and libraries add to that.
const CONTEXT_BYTES: u64 = 1 << 30;

/// Idle memory beyond this fraction (1/8) of the reserved bytes explains a refusal.
const MUCH_IDLE: u64 = 8;

#[cfg(test)]
mod tests;
