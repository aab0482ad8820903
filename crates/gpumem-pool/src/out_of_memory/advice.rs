//! [`Advice`]: the one thing that would help most in this case.

use super::OutOfMemory;
use crate::bytes::Bytes;
use core::fmt;

/// What would help most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// The device has the memory; our limit is lower.
    RaiseTheLimit,
    /// Somebody else has what is missing.
    FreeTheDevice,
    /// Enough is free, but in pieces.
    Defragment,
    /// The program keeps a little more at every step.
    FindTheLeak,
    /// The program wants more than there is.
    NeedLess,
}

impl OutOfMemory {
    /// What would help most in this case.
    #[must_use]
    pub fn advice(&self) -> Advice {
        let in_pieces = self.cached_bytes().saturating_sub(self.pending_bytes);
        let most_bytes = self.limit_bytes.unwrap_or(u64::MAX).min(self.device_total_bytes);
        let missing_bytes =
            self.requested_bytes.saturating_sub(self.cached_bytes().saturating_add(self.device_free_bytes));
        if self.requested_bytes > most_bytes {
            return if self.has_room_beyond_the_limit() { Advice::RaiseTheLimit } else { Advice::NeedLess };
        }
        if self.growth.is_some() {
            return Advice::FindTheLeak;
        }
        let needed_bytes = self.in_use_bytes.saturating_add(self.requested_bytes);
        // What others have would do, all of it if it is only pieces that are in the way.
        let wanted_bytes = if missing_bytes > 0 { missing_bytes } else { self.requested_bytes };
        let are_others_in_the_way = self.others_bytes() >= wanted_bytes && self.are_others_many();
        match self.limit_bytes {
            Some(limit_bytes) if needed_bytes <= limit_bytes && self.pending_bytes < self.requested_bytes => {
                Advice::Defragment
            }
            Some(_) if self.has_room_beyond_the_limit() => Advice::RaiseTheLimit,
            None if in_pieces >= self.requested_bytes => Advice::Defragment,
            _ if are_others_in_the_way => Advice::FreeTheDevice,
            None if missing_bytes == 0 => Advice::Defragment,
            _ => Advice::NeedLess,
        }
    }

    fn has_room_beyond_the_limit(&self) -> bool {
        let beyond_bytes = self.requested_bytes.saturating_sub(self.cached_bytes());
        self.limit_bytes.is_some() && beyond_bytes <= self.device_free_bytes
    }

    /// A context of our own takes some memory too.
    fn are_others_many(&self) -> bool {
        self.others_bytes() >= self.device_total_bytes / OWN_CONTEXT_SHARE
    }
}

/// The driver takes a few hundred MiB for each context.
const OWN_CONTEXT_SHARE: u64 = 20;

impl Advice {
    /// In words, for this case.
    pub(super) fn of(self, report: &OutOfMemory) -> impl fmt::Display {
        let needed = Bytes(report.in_use_bytes.saturating_add(report.requested_bytes));
        match self {
            Self::RaiseTheLimit => format!(
                "the device has room that the limit forbids: raise it to {needed} or more (GPUMEM_HARD_LIMIT, \
                 PoolBuilder::hard_limit), or drop arrays"
            ),
            Self::FreeTheDevice => format!(
                "others hold {} of this device: see with `nvidia-smi` who, and end it or use another device",
                Bytes(report.others_bytes())
            ),
            Self::Defragment => format!(
                "enough is free, but in pieces{}: allocate large blocks first, give long-lived small ones a pool of their \
                 own (Pool::private), or choose GPUMEM_POOL=caching with GPUMEM_PROFILE=tight",
                report
                    .largest_free_bytes
                    .map_or(String::new(), |largest| format!(" of up to {}", Bytes(largest)))
            ),
            Self::FindTheLeak => {
                "something is kept at every step: drop it, or give steps a scope (Pool::scope) and see in \
                                  the status which tag grows"
                    .into()
            }
            Self::NeedLess => {
                format!(
                    "{needed} are more than there is: use smaller batches or a smaller type, or drop arrays earlier"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out_of_memory::Growth;

    const GIB: u64 = 1 << 30;

    /// A device of 16 GiB, half of it in use by the pool.
    fn report(requested_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            requested_bytes,
            in_use_bytes: 8 * GIB,
            reserved_bytes: 8 * GIB,
            device_free_bytes: 7 * GIB,
            device_total_bytes: 16 * GIB,
            ..OutOfMemory::default()
        }
    }

    #[test]
    fn each_case_gets_its_own_advice() {
        let limited = |requested_bytes| OutOfMemory { limit_bytes: Some(9 * GIB), ..report(requested_bytes) };
        assert_eq!(limited(2 * GIB).advice(), Advice::RaiseTheLimit);
        assert_eq!(limited(12 * GIB).advice(), Advice::NeedLess);
        assert_eq!(limited(7 * GIB).advice(), Advice::RaiseTheLimit);
        let in_pieces = OutOfMemory { in_use_bytes: 5 * GIB, ..limited(2 * GIB) };
        assert_eq!(in_pieces.advice(), Advice::Defragment);
        assert_eq!(OutOfMemory { pending_bytes: 2 * GIB, ..in_pieces }.advice(), Advice::RaiseTheLimit);
        assert_eq!(report(9 * GIB).advice(), Advice::NeedLess);
        assert_eq!(report(20 * GIB).advice(), Advice::NeedLess);
        let crowded = OutOfMemory { device_free_bytes: GIB, ..report(2 * GIB) };
        assert_eq!(crowded.advice(), Advice::FreeTheDevice);
        assert_eq!(OutOfMemory { reserved_bytes: 10 * GIB, ..crowded.clone() }.advice(), Advice::Defragment);
        assert_eq!(report(7 * GIB).advice(), Advice::Defragment);
        let growth = Some(Growth { from_bytes: 1, to_bytes: 2, allocation_count: 9, kept_count: 1 });
        assert_eq!(OutOfMemory { growth, ..crowded }.advice(), Advice::FindTheLeak);
        let words = |report: OutOfMemory| report.advice().of(&report).to_string();
        assert!(words(limited(2 * GIB)).contains("raise it to 10.000 GiB"));
        assert!(words(OutOfMemory { device_free_bytes: GIB, ..report(2 * GIB) }).contains("hold 7.000 GiB"));
    }

    #[test]
    fn sums_beyond_a_word_are_no_trouble() {
        let huge = OutOfMemory {
            requested_bytes: u64::MAX,
            in_use_bytes: u64::MAX,
            reserved_bytes: u64::MAX,
            pending_bytes: u64::MAX,
            device_free_bytes: u64::MAX,
            ..OutOfMemory::default()
        };
        for limit_bytes in [None, Some(0), Some(u64::MAX)] {
            let _ = OutOfMemory { limit_bytes, ..huge.clone() }.to_string();
            let _ =
                OutOfMemory { limit_bytes, device_total_bytes: u64::MAX, in_use_bytes: 0, ..huge.clone() }
                    .to_string();
        }
    }
}
