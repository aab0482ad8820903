//! [`Stack`]: a pool's adaptors, outermost first, and the records of blocks that are not plain backend allocations.

use super::grant::{Grant, Holding, Memory, Source};
use super::{Adaptor, Change, Gauge, Opening, PoolId, PoolSettings, Request, Subject};
use crate::backend::Allocation;
use crate::config::{ALIGNMENT_MIN, PoolName};
use crate::device::catch_panic::catch_panic;
use crate::device::{Device, Stream};
use crate::error::{CaptureError, PoolError};
use crate::pool::{StateRef, Witness, alignment::check_alignment};
use crate::stats::Names;
use core::fmt;
use gpumem_sys::fork;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Stack {
    name: PoolName,
    /// The names of the pool's tags.
    names: Arc<Names>,
    adaptors: Box<[Arc<dyn Adaptor>]>,
    /// The recorders among the adaptors, which see the refusals that end a request.
    witnesses: Mutex<Vec<Arc<dyn Witness>>>,
    /// The holdings of blocks that are not plain backend allocations.
    entries: Mutex<Entries>,
}

/// Holdings by number. Each belongs to the block whose record is its number. An address would not identify a holding, because nested blocks
/// may start at the same address.
#[derive(Default)]
struct Entries {
    all: Vec<Option<Holding>>,
    free: Vec<u32>,
}

/// The memory that a block is, or is part of.
pub(crate) enum BackingAllocation {
    /// An allocation of the backend of the block's own pool.
    Own(Allocation),
    /// A block of another pool, which may have adaptors too.
    Other(StateRef, Allocation),
}

/// A request of the program, on its way through all adaptors.
pub(super) struct Call<'a> {
    pub(super) stack: &'a Stack,
    pub(super) pool: StateRef,
    pub(super) stream: &'a Stream,
    pub(super) tag: u16,
}

/// The adaptors inside the current one, and the backend.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    call: &'a Call<'a>,
    level: usize,
}

impl Next<'_> {
    /// Passes a request to the next adaptor or to the backend. May be called any number of times: grants that are not
    /// returned are freed.
    ///
    /// # Errors
    ///
    /// - The errors of [`Pool::alloc`](crate::Pool::alloc).
    /// - [`PoolError::BadArgument`] for an invalid alignment.
    /// - [`PoolError::Refused`] if an adaptor returns memory that does not match the request.
    /// - [`PoolError::Capture`] if an adaptor has made the stream begin a capture.
    /// - Any other error of an adaptor.
    pub fn alloc(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        let Self { call, level } = *self;
        // Only size and alignment come from `request`, which may belong to another call.
        let (size_bytes, alignment) = (request.size_bytes(), request.alignment());
        if alignment > ALIGNMENT_MIN || !call.stream.is_owned() {
            call.check_request(alignment)?;
        }
        match call.stack.adaptors.get(level) {
            Some(adaptor) => call.ask(&**adaptor, &Request::new(size_bytes, alignment, call), level),
            None => call.alloc_inside(size_bytes, alignment),
        }
    }
}

impl<'a> Call<'a> {
    /// Starts at the outermost adaptor, with a request that has been checked.
    #[inline(always)]
    pub(super) fn begin(&self, request: &Request<'_>) -> Result<Grant, PoolError> {
        match self.stack.adaptors.first() {
            Some(outermost) => outermost.alloc(request, Next { call: self, level: 1 }),
            None => self.alloc_inside(request.size_bytes(), request.alignment()),
        }
    }

    /// Returns the allocation of an answer that is a plain backend allocation of exactly the requested size.
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

    /// Handles every other answer of `begin`.
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

    /// Calls the adaptor at `level`.
    #[inline]
    fn ask(&self, adaptor: &dyn Adaptor, request: &Request<'_>, level: usize) -> Result<Grant, PoolError> {
        let mut answer = adaptor.alloc(request, Next { call: self, level: level + 1 });
        if let Ok(grant) = &mut answer {
            if self.is_fast_path()
                && let Some((allocation, size_bytes)) = grant.plain_answer(request, self, level)
            {
                // Builds a new grant from known values instead of copying the answer. The copy would load the fields with a different width
                // than their preceding stores, which stalls the processor.
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
        // The adaptor may call from a different thread than the program, or may have retired the stream.
        self.stream.check_usable()
    }

    /// Allocates from the backend, inside all adaptors.
    #[inline(always)]
    fn alloc_inside(&self, size_bytes: u64, alignment: u64) -> Result<Grant, PoolError> {
        let allocation = match self.pool.hit(size_bytes, alignment, self.stream) {
            Some(allocation) => allocation,
            None => {
                self.check_no_capture()?;
                self.pool.alloc_from_backend(size_bytes, alignment, self.stream)?
            }
        };
        Ok(Grant::own(self, allocation, size_bytes, self.stack.adaptors.len()))
    }

    #[inline]
    fn is_fast_path(&self) -> bool {
        self.stream.is_owned() && !self.pool.has_captures()
    }

    /// Adaptors are never called for a capturing stream, but an adaptor can begin a capture.
    fn check_no_capture(&self) -> Result<(), PoolError> {
        if self.pool.has_captures() && self.stream.captures_for()?.is_some() {
            Err(PoolError::Capture(CaptureError::NotCapturable {
                operation: "allocating after an adaptor began it",
            }))
        } else {
            Ok(())
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

    /// Converts a grant that has passed all adaptors to the allocation of a block of this size.
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
    /// Returns the number of the new entry, or the holding if numbers ran out.
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
    /// Returns `None` without adaptors. `added` lists them innermost first.
    pub(crate) fn new(name: &PoolName, added: &[Arc<dyn Adaptor>], names: &Arc<Names>) -> Option<Self> {
        if added.is_empty() {
            return None;
        }
        Some(Self {
            name: name.clone(),
            names: Arc::clone(names),
            adaptors: added.iter().rev().cloned().collect(),
            witnesses: Mutex::default(),
            entries: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> PoolId {
        self.name.id()
    }

    pub(super) fn pool_name(&self) -> Arc<str> {
        Arc::clone(self.name.shared())
    }

    pub(super) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    pub(super) fn adaptors(&self) -> &[Arc<dyn Adaptor>] {
        &self.adaptors
    }

    /// Notifies the adaptors that a pool was built with this stack.
    pub(crate) fn open(&self, device: &Device, settings: &PoolSettings, gauge: &Gauge) {
        let opening = Opening { device, stack: self, settings, gauge };
        self.adaptors.iter().for_each(|adaptor| adaptor.open(&opening));
    }

    /// Notifies the adaptors that the last handle is dropped.
    pub(crate) fn close(&self) {
        // A drop must not panic.
        self.adaptors.iter().for_each(|adaptor| drop(catch_panic(|| adaptor.close(self.id()))));
    }

    /// Adds a recorder of refusals.
    pub(super) fn add_witness(&self, witness: Arc<dyn Witness>) {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner).push(witness);
    }

    /// The recorders of refusals.
    pub(crate) fn witnesses(&self) -> Vec<Arc<dyn Witness>> {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refusal(&self, level: usize, requested_bytes: u64, reason: &str) -> PoolError {
        let adaptor = self.adaptors.get(level).map(|adaptor| adaptor.name().into()).unwrap_or_default();
        PoolError::Refused { adaptor, requested_bytes, reason: reason.into(), origin: None }
    }

    /// Removes and returns the holding of a block that has been dropped.
    pub(super) fn take_back(&self, number: u32) -> Option<Holding> {
        self.entries().take(number)
    }

    /// Stores a holding and returns its number.
    pub(super) fn add(&self, holding: Holding) -> Result<u32, Holding> {
        self.entries().add(holding)
    }

    /// Returns the allocation that contains a live block, for blocks that are not plain allocations.
    pub(crate) fn backing_allocation(&self, number: u32) -> Option<BackingAllocation> {
        if fork::is_child() {
            return None;
        }
        self.entries().get(number).and_then(|holding| match &holding.memory {
            Memory::Whole(mark) => {
                Some(BackingAllocation::Own(Allocation::from_mark(holding.address, *mark)))
            }
            Memory::Special(special) => Some(match &special.source {
                Source::Own { allocation, .. } => BackingAllocation::Own(*allocation),
                Source::Other(block) => BackingAllocation::Other(block.state(), block.allocation()),
            }),
            Memory::Gone => None,
        })
    }

    /// Returns the nesting depth of other pools' blocks in the block with this number.
    pub(crate) fn nesting(&self, number: u32) -> usize {
        if fork::is_child() {
            return 0;
        }
        self.entries().get(number).map_or(0, Holding::nesting)
    }

    /// Grows a growable block if all adaptors agree. `shrink` undoes the growth if an adaptor refuses afterwards.
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
                notify_shrink(&self.adaptors[..level], &change.backwards(true));
                return answer.unwrap_or_else(|payload| resume_unwind(payload));
            }
        }
        grow().inspect_err(|_| notify_shrink(&self.adaptors, &change.backwards(true)))?;
        for (level, adaptor) in self.adaptors.iter().enumerate().rev() {
            let answer = catch_unwind(AssertUnwindSafe(|| adaptor.grown(&change)));
            if !matches!(answer, Ok(Ok(()))) {
                let (without, with) = self.adaptors.split_at(level + 1);
                notify_shrink(without, &change.backwards(true));
                notify_shrink(with, &change.backwards(false));
                shrink();
                return answer.unwrap_or_else(|payload| resume_unwind(payload));
            }
        }
        Ok(())
    }

    /// Notifies the adaptors that a growable block is about to shrink.
    pub(crate) fn shrink(&self, subject: &Subject<'_>, from_bytes: u64, to_bytes: u64) {
        if from_bytes != to_bytes {
            notify_shrink(&self.adaptors, &Change::new(subject, self, from_bytes, to_bytes));
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifies adaptors of a shrink. This often runs in a drop, so panics are caught.
fn notify_shrink(adaptors: &[Arc<dyn Adaptor>], change: &Change<'_>) {
    adaptors.iter().for_each(|adaptor| drop(catch_panic(|| adaptor.shrink(change))));
}
