//! [`Stack`]: a pool's adaptors, outermost first, and what it has to know of blocks that are no plain pieces of its backend.

use super::grant::{Grant, Holding, Memory, Source};
use super::{Adaptor, Change, Opening, PoolId, Request, Subject};
use crate::backend::Allocation;
use crate::config::ALIGNMENT_MIN;
use crate::device::{Device, Stream};
use crate::error::PoolError;
use crate::pool::{StateRef, alignment::check_alignment};
use crate::reclaim::catch_panic::catch_panic;
use crate::stats::Names;
use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Stack {
    id: PoolId,
    /// Of the pool's tags.
    names: Arc<Names>,
    adaptors: Box<[Arc<dyn Adaptor>]>,
    /// What is behind blocks that are no plain pieces of the backend.
    entries: Mutex<Entries>,
}

/// Each belongs to the one block that has its number for a record. No address tells them apart: blocks that lie one in the
/// other may start at the same.
#[derive(Default)]
struct Entries {
    all: Vec<Option<Holding>>,
    free: Vec<u32>,
}

/// What a block is, or is part of.
pub(crate) enum Behind {
    /// A piece of its own pool's backend.
    Own(Allocation),
    /// A block of another pool, which may have adaptors too.
    Other(StateRef, Allocation),
}

/// A request of the program's, on its way through all adaptors.
pub(super) struct Call<'a> {
    pub(super) stack: &'a Stack,
    pub(super) pool: StateRef,
    pub(super) stream: &'a Stream,
    pub(super) tag: u16,
}

/// The adaptors inside of one, and the backend.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    call: &'a Call<'a>,
    level: usize,
}

impl Next<'_> {
    /// Asks the next. May be called as often as one likes: what is not returned is given back.
    ///
    /// # Errors
    ///
    /// As [`Pool::alloc`](crate::Pool::alloc); [`PoolError::BadAlignment`]; what an adaptor says, or
    /// [`PoolError::Refused`] for one that returns what does not fit; [`PoolError::NotInCapture`] if an adaptor lets the
    /// stream begin to capture.
    pub fn alloc(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        let Self { call, level } = *self;
        // All but size and alignment is the call's: the request may be another one's.
        let (size_bytes, alignment) = (request.size_bytes(), request.alignment());
        if alignment > ALIGNMENT_MIN || !call.stream.is_owned() {
            call.check_request(alignment)?;
        }
        match call.stack.adaptors.get(level) {
            Some(adaptor) => call.ask(&**adaptor, &Request::new(size_bytes, alignment, call), level),
            None => call.alloc_own(size_bytes, alignment),
        }
    }
}

impl<'a> Call<'a> {
    /// From the outermost adaptor, for a request that has been looked at.
    #[inline(always)]
    pub(super) fn begin(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        match self.stack.adaptors.first() {
            Some(outermost) => outermost.alloc(request, Next { call: self, level: 1 }),
            None => self.alloc_own(request.size_bytes(), request.alignment()),
        }
    }

    /// Its answer, if that is an allocation of the backend's just as large.
    #[inline(always)]
    pub(super) fn plain_allocation(
        &self,
        answer: &Result<Grant, PoolError>,
        request: &Request<'_>,
    ) -> Option<Allocation> {
        let grant = answer.as_ref().ok().filter(|_| self.is_fast_path())?;
        let (allocation, size_bytes) = grant.plain_answer(request, self, 0)?;
        if size_bytes == request.size_bytes() { Some(allocation) } else { None }
    }

    /// Any other answer of it.
    #[inline(never)]
    pub(super) fn finish(
        &self,
        answer: Result<Grant, PoolError>,
        request: &Request<'_>,
    ) -> Result<Allocation, PoolError> {
        let mut grant = answer?;
        self.check_answer(&mut grant, request, 0)?;
        self.hand_out(grant, request.size_bytes())
    }

    /// From the adaptor at `level`.
    #[inline]
    fn ask(&self, adaptor: &dyn Adaptor, request: &Request<'_>, level: usize) -> Result<Grant, PoolError> {
        let mut answer = adaptor.alloc(request, Next { call: self, level: level + 1 });
        if let Ok(grant) = &mut answer {
            if self.is_fast_path()
                && let Some((allocation, size_bytes)) = grant.plain_answer(request, self, level)
            {
                // The same in a new one, as most of it is known: the processor waits for what it copies in another width than
                // it has just been written in.
                core::mem::forget(answer);
                return Ok(Grant::own(self, allocation, size_bytes, level));
            }
            self.check_answer(grant, request, level)?;
        }
        answer
    }

    #[cold]
    fn check_request(&self, alignment: u64) -> Result<(), PoolError> {
        check_alignment(alignment)?;
        // Whoever asks may be on another thread than the program, or may have retired the stream.
        self.stream.check_usable()
    }

    /// From the backend, inside of all adaptors.
    #[inline(always)]
    fn alloc_own(&self, size_bytes: u64, alignment: u64) -> Result<Grant, PoolError> {
        let allocation = match self.pool.hit_own(size_bytes, alignment, self.stream) {
            Some(allocation) => allocation,
            None => {
                self.check_no_capture()?;
                self.pool.alloc_own(size_bytes, alignment, self.stream)?
            }
        };
        Ok(Grant::own(self, allocation, size_bytes, self.stack.adaptors.len()))
    }

    #[inline]
    fn is_fast_path(&self) -> bool {
        self.stream.is_owned() && !self.pool.has_captures()
    }

    /// No adaptor is asked for a stream that captures; but one can begin it.
    fn check_no_capture(&self) -> Result<(), PoolError> {
        match self.pool.has_captures() && self.stream.captures_for()?.is_some() {
            true => Err(PoolError::NotInCapture { operation: "allocating after an adaptor began it" }),
            false => Ok(()),
        }
    }

    #[inline(never)]
    fn check_answer(&self, grant: &mut Grant, request: &Request<'_>, level: usize) -> Result<(), PoolError> {
        self.stream.check_usable()?;
        self.check_no_capture()?;
        if let Some(reason) = grant.mismatch(request, self.pool, level) {
            return Err(self.stack.refusal(level, request.size_bytes(), reason));
        }
        if grant.is_pending_for_host() {
            self.stream.finish()?;
        }
        grant.pass(self.pool, level);
        Ok(())
    }

    /// A grant that has passed all adaptors leaves for a block of this size: what that is made of.
    fn hand_out(&self, grant: Grant, size_bytes: u64) -> Result<Allocation, PoolError> {
        if let Some(allocation) = grant.plain_allocation(size_bytes) {
            core::mem::forget(grant);
            return Ok(allocation);
        }
        let (address, stack) = (grant.address(), self.stack);
        stack.add(grant.into_holding()).map(|number| Allocation::special(address, number)).map_err(
            |holding| {
                self.pool.release(holding, 0, false);
                let reason = "returned more blocks that are not the backend's than can be counted";
                stack.refusal(0, size_bytes, reason)
            },
        )
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.call.stack.adaptors.iter().skip(self.level)).finish()
    }
}

impl Entries {
    /// Its number. Not if there is none left.
    fn add(&mut self, holding: Holding) -> Result<u32, Holding> {
        let free = self.free.pop();
        let Some(number) = free.or_else(|| u32::try_from(self.all.len()).ok()) else { return Err(holding) };
        match self.all.get_mut(number as usize) {
            Some(entry) => *entry = Some(holding),
            None => self.all.push(Some(holding)),
        }
        Ok(number)
    }

    fn get(&self, number: u32) -> Option<&Holding> {
        self.all.get(number as usize)?.as_ref()
    }

    fn take(&mut self, number: u32) -> Option<Holding> {
        let holding = self.all.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(holding)
    }
}

impl Stack {
    /// `None` where there are no adaptors; they were added innermost first.
    pub(crate) fn new(added: &[Arc<dyn Adaptor>], names: &Arc<Names>) -> Option<Self> {
        if added.is_empty() {
            return None;
        }
        Some(Self {
            id: PoolId::next(),
            names: Arc::clone(names),
            adaptors: added.iter().rev().cloned().collect(),
            entries: Mutex::default(),
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
        self.adaptors.iter().for_each(|adaptor| drop(catch_panic(|| adaptor.close(self.id))));
    }

    fn refusal(&self, level: usize, requested_bytes: u64, reason: &str) -> PoolError {
        let adaptor = self.adaptors.get(level).map(|adaptor| adaptor.name().into()).unwrap_or_default();
        PoolError::Refused { adaptor, requested_bytes, reason: reason.into() }
    }

    /// What a block had behind it, which has been dropped.
    pub(super) fn take_back(&self, number: u32) -> Option<Holding> {
        self.entries().take(number)
    }

    /// Keeps what has a number from here on.
    pub(super) fn add(&self, holding: Holding) -> Result<u32, Holding> {
        self.entries().add(holding)
    }

    /// What is behind a live block that is no plain allocation.
    pub(crate) fn behind(&self, number: u32) -> Option<Behind> {
        self.entries().get(number).and_then(|holding| match &holding.memory {
            Memory::Whole(mark) => Some(Behind::Own(Allocation::from_mark(holding.address, *mark))),
            Memory::Special(special) => Some(match &special.source {
                Source::Own { allocation, .. } => Behind::Own(*allocation),
                Source::Other(block) => Behind::Other(block.state(), block.allocation()),
            }),
            Memory::Gone => None,
        })
    }

    /// How many blocks of other pools lie in such a block, one in the other.
    pub(crate) fn nesting(&self, number: u32) -> usize {
        self.entries().get(number).map_or(0, Holding::nesting)
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

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Often in a drop.
fn tell(adaptors: &[Arc<dyn Adaptor>], change: &Change<'_>) {
    adaptors.iter().for_each(|adaptor| drop(catch_panic(|| adaptor.shrink(change))));
}
