//! [`Stack`]: a pool's adaptors, outermost first, and what it has to know of blocks that are no plain pieces of its backend.

use super::grant::{Grant, Holding, Source};
use super::{Adaptor, Change, Opening, PoolId, Request, Subject};
use crate::alignment::check_alignment;
use crate::backend::{Freed, Piece};
use crate::contained::contained;
use crate::device::Device;
use crate::error::PoolError;
use crate::state::StateRef;
use crate::stream::Stream;
use crate::tags::Names;
use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gpumem_sys::types::CUdeviceptr;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Stack {
    id: PoolId,
    /// Of the pool's tags.
    names: Arc<Names>,
    adaptors: Box<[Arc<dyn Adaptor>]>,
    /// By the block's address: what is alive has one of its own.
    special: Mutex<HashMap<CUdeviceptr, Holding>>,
    /// How many there are, so that a pool without any does not look.
    special_count: AtomicUsize,
}

/// What a block is, or is part of.
pub(crate) enum Behind {
    /// A piece of its own pool's backend.
    Own(Piece),
    /// A block of another pool, which may have adaptors too.
    Other(StateRef, Piece),
}

/// The adaptors inside of one, and the backend.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    stack: &'a Stack,
    pool: StateRef,
    stream: &'a Stream,
    tag: u16,
    level: usize,
}

impl Next<'_> {
    /// Asks the next. May be called as often as one likes: what is not returned is given back.
    ///
    /// # Errors
    ///
    /// As [`Pool::alloc`](crate::Pool::alloc); [`PoolError::BadAlignment`]; what an adaptor says, or
    /// [`PoolError::Refused`] for one that returns what does not fit.
    pub fn alloc(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        let Self { stack, pool, stream, tag, level } = *self;
        // All but size and alignment is the call's: the request may be another one's.
        let request = Request::new(request.size_bytes(), request.alignment(), tag, stream, stack);
        check_alignment(request.alignment())?;
        let Some(adaptor) = stack.adaptors.get(level) else {
            let piece = pool.alloc_own(request.size_bytes(), request.alignment(), stream)?;
            return Ok(Grant::own(pool, piece, request.size_bytes(), stream.id(), level));
        };
        let mut grant = adaptor.alloc(&request, Next { level: level + 1, ..*self })?;
        if let Some(reason) = grant.mismatch(&request, pool, level) {
            return Err(PoolError::Refused {
                adaptor: adaptor.name().into(),
                requested_bytes: request.size_bytes(),
                reason: reason.into(),
            });
        }
        grant.pass(pool, level);
        Ok(grant)
    }
}

impl<'a> Next<'a> {
    pub(super) fn outermost(stack: &'a Stack, pool: StateRef, request: &Request<'a>) -> Self {
        Self { stack, pool, stream: request.stream(), tag: request.tag_number(), level: 0 }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.stack.adaptors.iter().skip(self.level)).finish()
    }
}

impl Stack {
    /// `None` where there are no adaptors; they were added innermost first.
    pub(crate) fn new(added: &[Arc<dyn Adaptor>], names: &Arc<Names>) -> Option<Self> {
        static POOL_COUNT: AtomicU64 = AtomicU64::new(0);
        if added.is_empty() {
            return None;
        }
        Some(Self {
            id: PoolId(POOL_COUNT.fetch_add(1, Ordering::Relaxed) + 1),
            names: Arc::clone(names),
            adaptors: added.iter().rev().cloned().collect(),
            special: Mutex::default(),
            special_count: AtomicUsize::new(0),
        })
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    pub(super) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    pub(super) fn adaptors(&self) -> &[Arc<dyn Adaptor>] {
        &self.adaptors
    }

    /// A pool has been made with it.
    pub(crate) fn open(&self, device: &Device) {
        let opening = Opening { device, stack: self };
        self.adaptors.iter().for_each(|adaptor| adaptor.open(&opening));
    }

    /// The last handle goes.
    pub(crate) fn close(&self) {
        // In a drop.
        self.adaptors.iter().for_each(|adaptor| drop(contained(|| adaptor.close(self.id))));
    }

    /// A grant leaves for a block of this size: what that is made of.
    pub(super) fn hand_out(&self, grant: Grant, size_bytes: u64) -> Piece {
        let holding = grant.into_holding();
        if let Some(piece) = holding.plain_piece(size_bytes) {
            return piece;
        }
        let address = holding.address;
        self.special().insert(address, holding);
        self.special_count.fetch_add(1, Ordering::Relaxed);
        Piece::new(address, 0, Piece::NO_CLASS)
    }

    /// A block comes back.
    pub(super) fn take_back(&self, freed: &Freed) -> Holding {
        let special = match self.special_count.load(Ordering::Relaxed) {
            0 => None,
            _ => self.special().remove(&freed.piece.address),
        };
        if special.is_some() {
            self.special_count.fetch_sub(1, Ordering::Relaxed);
        }
        special
            .unwrap_or_else(|| Holding::plain(freed.piece, freed.size_bytes, freed.home, self.adaptors.len()))
    }

    /// What is behind a live block, if that is no plain piece.
    pub(crate) fn behind(&self, address: CUdeviceptr) -> Option<Behind> {
        self.special().get(&address).map(|holding| match &holding.source {
            Source::Own { piece, .. } => Behind::Own(*piece),
            Source::Other(block) => Behind::Other(block.state(), block.piece()),
        })
    }

    /// Grows a block that grows, if all agree; `shrink` takes back what did not please them in the end.
    pub(crate) fn grow(
        &self,
        subject: &Subject<'_>,
        (from_bytes, to_bytes): (u64, u64),
        grow: impl FnOnce() -> Result<(), PoolError>,
        shrink: impl FnOnce(),
    ) -> Result<(), PoolError> {
        let change = Change::new(subject, self, from_bytes, to_bytes);
        for (level, adaptor) in self.adaptors.iter().enumerate() {
            let answer = catch_unwind(AssertUnwindSafe(|| adaptor.grow(&change)));
            if !matches!(answer, Ok(Ok(()))) {
                tell(&self.adaptors[..level], &change.backwards(true));
                return answer.unwrap_or_else(|payload| resume_unwind(payload));
            }
        }
        grow().inspect_err(|_| tell(&self.adaptors, &change.backwards(true)))?;
        for (level, adaptor) in self.adaptors.iter().enumerate().rev() {
            let answer = catch_unwind(AssertUnwindSafe(|| adaptor.grown(&change)));
            if !matches!(answer, Ok(Ok(()))) {
                let (without, with) = self.adaptors.split_at(level + 1);
                tell(without, &change.backwards(true));
                tell(with, &change.backwards(false));
                shrink();
                return answer.unwrap_or_else(|payload| resume_unwind(payload));
            }
        }
        Ok(())
    }

    /// Such a block is about to shrink.
    pub(crate) fn shrink(&self, subject: &Subject<'_>, from_bytes: u64, to_bytes: u64) {
        if from_bytes != to_bytes {
            tell(&self.adaptors, &Change::new(subject, self, from_bytes, to_bytes));
        }
    }

    fn special(&self) -> MutexGuard<'_, HashMap<CUdeviceptr, Holding>> {
        self.special.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Often in a drop.
fn tell(adaptors: &[Arc<dyn Adaptor>], change: &Change<'_>) {
    adaptors.iter().for_each(|adaptor| drop(contained(|| adaptor.shrink(change))));
}
