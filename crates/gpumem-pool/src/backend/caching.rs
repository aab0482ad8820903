//! `caching`: our own heap over the driver's virtual memory, behind magazines that a thread has to itself.
//!
//! A block of up to 1 MiB comes from the calling thread's magazine of the stream, and goes back to the freeing thread's:
//! plain reads and writes of what nobody else touches. All else is [`Shared`]'s: what a magazine lacks or has no room for,
//! larger blocks, and blocks that other streams have used.
//!
//! | module | noun |
//! | --- | --- |
//! | `shared` | front and heap of one pool, put together |
//! | `class` | size classes of blocks up to 1 MiB |
//! | `thread`, `set`, `magazine`, `lock`, `barrier` | what a thread keeps at hand of a stream's freed blocks; how others get at it |
//! | `recent` | the last few larger blocks that came back |
//! | `depot`, `budget` | batches that wander between threads; how much all of this may hold |
//! | `front` | magazines and depot of one pool |
//! | `heap` | all that is larger, and what the front is filled from: addresses, handles, mappings |
//! | `ladder` | what an allocation does that found nothing at hand, rung by rung |
//! | `extent` | blocks that grow in place |
//! | `vmm`, `access` | the driver's calls for physical memory; who may use it |
//! | `gate` | the heap's lock |
//! | `sync` | what the front needs of threads |

mod access;
mod extent;
mod ladder;
mod shared;
#[allow(unsafe_code)]
mod vmm;

use super::{Counts, Freed, Growing, Piece, Reserved, Source, Taken, Underlying};
use crate::config::{BackendKind, Config};
use crate::device::{Device, Stream, StreamId};
use crate::error::PoolError;
use crate::limits::Limits;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_heap::cache::{self, LargeBlock, OwnerGuard, SizeStep};
use gpumem_heap::counters::Counters;
use gpumem_heap::{HeapBlock, SizeClass};
use shared::Shared;
use std::sync::Arc;

pub(crate) struct CachingBackend {
    /// Never used again: what a thread remembers of a pool that is gone matches no other.
    front: u64,
    shared: Arc<Shared>,
}

impl CachingBackend {
    pub(super) fn new(device: &Device, config: &Config, limits: &Limits) -> Result<Self, PoolError> {
        static NEXT: AtomicU64 = AtomicU64::new(cache::KEY_STEP);
        let front = NEXT.fetch_add(cache::KEY_STEP, Ordering::Relaxed);
        Ok(Self { front, shared: Shared::new(front, device, config, limits)? })
    }
}

impl CachingBackend {
    pub(super) fn near(&self) -> u64 {
        self.front
    }

    #[inline(always)]
    pub(super) fn hit(near: u64, size_bytes: u64, near_id: u64) -> Option<Piece> {
        let Some(class) = SizeClass::of(size_bytes) else {
            return Self::hit_large(near, size_bytes, near_id);
        };
        let piece = cache::with_cache(near, near_id, |set| set.take(class, size_bytes));
        piece.flatten().map(|piece| of_class(class, piece))
    }

    #[inline(always)]
    pub(super) fn put_back_small(near: u64, piece: &Piece, size_bytes: u64, home: StreamId) -> bool {
        let Some(class) = SizeClass::at(piece.untagged_class()) else { return false };
        let put = |set: OwnerGuard<'_>| {
            set.put(class, size_bytes, HeapBlock { address: piece.address, record: piece.record() })
        };
        cache::with_cache(near, home.as_u64(), put) == Some(true)
    }

    pub(super) fn put_back(&self, near: u64, piece: &Piece, size_bytes: u64, home: StreamId) -> bool {
        if SizeClass::at(piece.untagged_class()).is_some() {
            return Self::put_back_small(near, piece, size_bytes, home);
        }
        let Some(large) = self.shared.large(piece, size_bytes, home) else { return false };
        cache::with_cache(near, home.as_u64(), |set| set.put_large(large)) == Some(true)
    }

    #[inline(never)]
    fn hit_large(near: u64, size_bytes: u64, near_id: u64) -> Option<Piece> {
        cache::with_cache(near, near_id, |set| set.take_large(size_bytes)).flatten().map(of_recent)
    }
}

impl Source for CachingBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Caching
    }

    fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Piece, PoolError> {
        self.shared.alloc(size_bytes, stream)
    }

    fn alloc_aligned(&self, size_bytes: u64, alignment: u64, stream: &Stream) -> Result<Piece, PoolError> {
        self.shared.alloc_from_heap(size_bytes, alignment, stream)
    }

    fn free(&self, freed: &Freed) -> Taken {
        self.shared.free(freed)
    }

    fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.shared.reserve(size_bytes)
    }

    fn check(&self) -> Result<(), String> {
        self.shared.check()
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.shared.enable_peer_access(peer)
    }

    fn pin(&self, piece: Piece) -> Result<(), PoolError> {
        self.shared.pin(piece.record());
        Ok(())
    }

    fn backing(&self, piece: Piece) -> Option<Underlying> {
        self.shared.backing(&piece)
    }

    fn growing(&self) -> Option<&dyn Growing> {
        if self.shared.can_map() { Some(&*self.shared) } else { None }
    }

    fn limits_changed(&self) -> Result<(), PoolError> {
        self.shared.hear_of_waits();
        Ok(())
    }

    fn close(&self) -> u64 {
        self.shared.close()
    }

    fn counts_blocks(&self) -> bool {
        true
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    fn counts(&self) -> Counts {
        self.shared.counts()
    }

    fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        self.shared.streams()
    }

    fn reset_peaks(&self) -> Result<(), PoolError> {
        self.shared.reset_peaks();
        Ok(())
    }

    fn has_plain_segments(&self) -> bool {
        self.shared.has_plain_segments()
    }

    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.shared.trim_to(keep_bytes)
    }

    fn reclaim(&self) -> Result<(), PoolError> {
        self.shared.reclaim()
    }

    fn reserved(&self) -> Result<Option<Reserved>, PoolError> {
        Ok(Some(self.shared.reserved()))
    }
}

impl Freed {
    /// Whether home's order is all there is to it.
    fn is_plain(&self) -> bool {
        self.uses == 0 && !self.is_complete
    }
}

fn of_class(class: SizeClass, piece: HeapBlock) -> Piece {
    Piece::new(piece.address, piece.record, class.index() as u16)
}

fn of_recent(large: LargeBlock) -> Piece {
    of_heap(large.block, large.step)
}

/// A large piece's class says how large it is.
fn of_heap(piece: HeapBlock, step: SizeStep) -> Piece {
    Piece::new(piece.address, piece.record, LARGE_FIRST + step.number())
}

/// What there is of a large piece at least, as far as it is known.
fn step_of(piece: &Piece) -> SizeStep {
    piece.class().checked_sub(LARGE_FIRST).and_then(SizeStep::at).unwrap_or_default()
}

/// Beyond the classes of small ones.
const LARGE_FIRST: u16 = 256;
