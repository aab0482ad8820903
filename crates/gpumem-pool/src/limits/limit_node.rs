//! [`LimitNode`]: the limit that a pool and its private pools share. Pure.
//!
//! Each pool has a node with its limit. The node of a private pool is below the node of its parent pool. Each node,
//! from the pool's up to the topmost, admits the pool's memory in one atomic step, so that concurrent threads cannot
//! exceed any limit.

use crate::config::{PoolId, PoolName};
use crate::error::{LimitExceeded, RefusedBy};
#[cfg(feature = "backend-caching")]
use crate::limits::trimmable::{Trimmable, WeakList};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
#[cfg(feature = "backend-caching")]
use std::sync::Weak;

pub(crate) struct LimitNode {
    pub(crate) name: PoolName,
    /// `u64::MAX` means no limit.
    limit_bytes: AtomicU64,
    was_lowered: AtomicBool,
    held_bytes: AtomicU64,
    parent: Option<Arc<LimitNode>>,
    /// The pools that cache memory; used in the topmost node only.
    #[cfg(feature = "backend-caching")]
    trimmables: WeakList<dyn Trimmable>,
}

impl LimitNode {
    pub(crate) fn new(name: PoolName, limit_bytes: u64, parent: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            name,
            limit_bytes: AtomicU64::new(limit_bytes),
            was_lowered: AtomicBool::new(false),
            held_bytes: AtomicU64::new(0),
            parent,
            #[cfg(feature = "backend-caching")]
            trimmables: WeakList::new(),
        })
    }

    /// Counts the bytes as held, or returns the limit that refuses.
    pub(crate) fn admit(&self, size_bytes: u64) -> Result<(), LimitExceeded> {
        let sum = |held: u64| held.checked_add(size_bytes).filter(|sum| *sum <= self.admitted_bytes());
        // Acquire pairs with the release in `give_back`: the driver has released the memory that makes room for this.
        let admitted = self.held_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum);
        let held_bytes = admitted.map_err(|held_bytes| self.exceeded_at(held_bytes))? + size_bytes;
        // The limit may have been lowered since the check above. Either this check sees the new limit, or the bytes
        // were held before it was set.
        if held_bytes > self.admitted_bytes() {
            self.held_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
            return Err(self.exceeded_at(held_bytes - size_bytes));
        }
        let Some(parent) = &self.parent else { return Ok(()) };
        parent.admit(size_bytes).inspect_err(|_| {
            self.held_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        })
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::SeqCst)
    }

    /// The limit of this node, unless a bug is injected.
    fn admitted_bytes(&self) -> u64 {
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::LimitOffByOne) {
            return self.limit_bytes().saturating_add(2 << 20);
        }
        self.limit_bytes()
    }

    /// Sets the limit for later admissions. Returns the number of held bytes that exceed it.
    pub(crate) fn set_limit_bytes(&self, limit_bytes: u64) -> u64 {
        self.limit_bytes.store(limit_bytes, Ordering::SeqCst);
        let excess_bytes = self.held_bytes.load(Ordering::SeqCst).saturating_sub(limit_bytes);
        if excess_bytes > 0 {
            self.was_lowered.store(true, Ordering::Relaxed);
        }
        excess_bytes
    }

    /// True if this node may hold this many bytes: within the limit, or admitted before the limit was lowered.
    #[cfg(feature = "backend-caching")]
    pub(crate) fn allows(&self, held_bytes: u64) -> bool {
        held_bytes <= self.limit_bytes() || self.was_lowered.load(Ordering::Relaxed)
    }

    pub(crate) fn give_back(&self, size_bytes: u64) {
        self.held_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        if let Some(parent) = &self.parent {
            parent.give_back(size_bytes);
        }
    }

    pub(crate) fn room_bytes(&self) -> u64 {
        let own_bytes = self.limit_bytes().saturating_sub(self.held_bytes.load(Ordering::Relaxed));
        self.parent.as_ref().map_or(own_bytes, |parent| own_bytes.min(parent.room_bytes()))
    }

    /// True if other pools under a shared limit would have to release memory for this pool to hold more.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn is_short_of_others(&self) -> bool {
        let own_bytes = self.limit_bytes().saturating_sub(self.held_bytes.load(Ordering::Relaxed));
        self.parent.as_ref().is_none_or(|parent| parent.room_bytes() < own_bytes)
    }

    pub(crate) fn limit_exceeded_by(&self, size_bytes: u64) -> Option<LimitExceeded> {
        if self.is_exceeded_by(size_bytes) {
            Some(self.exceeded_at(self.held_bytes.load(Ordering::Relaxed)))
        } else {
            self.parent.as_ref()?.limit_exceeded_by(size_bytes)
        }
    }

    pub(crate) fn exceeded_at(&self, held_bytes: u64) -> LimitExceeded {
        let by = if self.parent.is_some() { RefusedBy::Quota } else { RefusedBy::HardLimit };
        LimitExceeded { by, owner: Some(self.name.id), limit_bytes: self.limit_bytes(), held_bytes }
    }

    /// This node, or the node above it, whose limit belongs to the pool `owner`.
    pub(crate) fn of(&self, owner: PoolId) -> Option<&Self> {
        if self.name.id == owner { Some(self) } else { self.parent.as_ref()?.of(owner) }
    }

    pub(crate) fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// True if this node's own limit refuses this many further bytes.
    pub(crate) fn is_exceeded_by(&self, size_bytes: u64) -> bool {
        self.held_bytes.load(Ordering::Relaxed).saturating_add(size_bytes) > self.limit_bytes()
    }

    #[cfg(feature = "backend-caching")]
    pub(crate) fn add_trimmable(&self, member: Weak<dyn Trimmable>) {
        if let Some(parent) = &self.parent {
            return parent.add_trimmable(member);
        }
        self.trimmables.add(member);
    }

    #[cfg(feature = "backend-caching")]
    pub(crate) fn trimmables(&self) -> Vec<Arc<dyn Trimmable>> {
        match &self.parent {
            Some(parent) => parent.trimmables(),
            None => self.trimmables.live(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limit_bytes: u64, parent: Option<Arc<LimitNode>>) -> Arc<LimitNode> {
        LimitNode::new(PoolName::new(None, None), limit_bytes, parent)
    }

    fn refusal(of: &LimitNode, held_bytes: u64) -> LimitExceeded {
        let by = if of.parent.is_some() { RefusedBy::Quota } else { RefusedBy::HardLimit };
        LimitExceeded { by, owner: Some(of.name.id), limit_bytes: of.limit_bytes(), held_bytes }
    }

    #[test]
    fn every_limit_above_holds_and_a_refusal_counts_nothing() {
        let root = limited(100, None);
        let (left, right) = (limited(70, Some(Arc::clone(&root))), limited(70, Some(Arc::clone(&root))));
        assert_eq!(left.admit(71), Err(refusal(&left, 0)));
        assert_eq!(left.admit(60), Ok(()));
        assert_eq!(
            (right.limit_exceeded_by(41), right.limit_exceeded_by(71)),
            (Some(refusal(&root, 60)), Some(refusal(&right, 0)))
        );
        assert_eq!(right.limit_exceeded_by(40), None);
        assert_eq!(right.admit(41), Err(refusal(&root, 60)));
        assert_eq!(right.admit(40), Ok(()));
        assert_eq!(root.admit(1), Err(refusal(&root, 100)));
        left.give_back(60);
        assert_eq!(right.admit(30), Ok(()));
        assert_eq!(right.admit(u64::MAX), Err(refusal(&right, 70)));
        assert_eq!(root.admit(30), Ok(()));
    }

    #[test]
    fn a_lower_limit_holds_for_what_comes() {
        let node = limited(u64::MAX, None);
        assert_eq!(node.admit(100), Ok(()));
        assert_eq!(node.set_limit_bytes(60), 40);
        assert_eq!((node.room_bytes(), node.admit(1)), (0, Err(refusal(&node, 100))));
        node.give_back(50);
        assert_eq!((node.admit(11), node.admit(10)), (Err(refusal(&node, 50)), Ok(())));
        assert_eq!(node.set_limit_bytes(70), 0);
        assert_eq!(node.admit(10), Ok(()));
    }

    /// Threads admit and release while the limit is lowered and raised. While it is low, no admission above it succeeds.
    #[test]
    fn a_limit_that_changes_is_exact() {
        let node = limited(16, None);
        // Odd from the moment the limit has been set to 3 until it is about to be raised.
        let phase = AtomicU64::new(0);
        let rounds = if cfg!(miri) { 5 } else { 100 };
        std::thread::scope(|scope| {
            for size_bytes in [4, 5, 1, 2] {
                let (node, phase) = (&node, &phase);
                scope.spawn(move || {
                    while phase.load(Ordering::SeqCst) < 2 * rounds {
                        let before = phase.load(Ordering::SeqCst);
                        if node.admit(size_bytes).is_ok() {
                            let was_low = before % 2 == 1 && phase.load(Ordering::SeqCst) == before;
                            assert!(size_bytes <= 3 || !was_low);
                            node.give_back(size_bytes);
                        }
                    }
                });
            }
            for _ in 0..rounds {
                node.set_limit_bytes(3);
                phase.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                phase.fetch_add(1, Ordering::SeqCst);
                node.set_limit_bytes(16);
            }
        });
        assert_eq!(node.held_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_part_is_short_of_others_where_the_whole_has_less_room() {
        let whole = limited(100, None);
        let part = limited(60, Some(whole.clone()));
        assert!(whole.is_short_of_others());
        assert!(!part.is_short_of_others());
        part.admit(50).unwrap();
        whole.admit(40).unwrap();
        assert_eq!((part.room_bytes(), whole.room_bytes()), (10, 10));
        assert!(!part.is_short_of_others());
        whole.admit(1).unwrap();
        assert!(part.is_short_of_others());
    }

    #[test]
    fn sums_beyond_a_word_are_refused() {
        let node = limited(u64::MAX, None);
        assert_eq!(node.admit(u64::MAX - 1), Ok(()));
        assert_eq!(node.admit(2), Err(refusal(&node, u64::MAX - 1)));
    }

    #[test]
    fn sixteen_threads_never_pass_the_limit() {
        let (node, held_bytes) = (limited(10, None), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for size_bytes in 1..=16 {
                let (node, held_bytes) = (&node, &held_bytes);
                scope.spawn(move || {
                    for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
                        if node.admit(size_bytes).is_ok() {
                            assert!(held_bytes.fetch_add(size_bytes, Ordering::AcqRel) + size_bytes <= 10);
                            held_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
                            node.give_back(size_bytes);
                        }
                    }
                });
            }
        });
        assert_eq!(node.room_bytes(), 10);
    }
}
