//! [`State`]: what a pool is, and how long: until no handle and no block of it is left, as `lifetime` counts them.

mod adapted;
mod lifetime;
mod relief;
mod sync;

use crate::adaptor::Stack;
use crate::alignment::ALIGNMENT_MIN;
use crate::backend::{Backend, Freed, Piece, Source};
use crate::block::Block;
use crate::clock::{Clocks, GRAPH_BIT, StreamId};
use crate::counters::Counters;
use crate::device::Device;
use crate::error::{PoolError, is_sticky};
use crate::kind::MemoryKind;
use crate::limit::{Limit, Limits};
use crate::options::PoolBuilder;
use crate::scope;
use crate::status::{Status, StreamUsage, TagUsage};
use crate::stream::Stream;
use crate::tags::Tags;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lifetime::Lifetime;
use std::sync::{Arc, OnceLock};

/// What a pool is, for as long as a handle or a block lives.
pub(crate) struct State {
    device: Device,
    /// The device's.
    clocks: Arc<Clocks>,
    /// False if something concerns every block of this pool: adaptors, a failure.
    goes_short_way: AtomicBool,
    /// How it was built.
    setup: PoolBuilder,
    backend: Backend,
    limits: Limits,
    tags: Tags,
    /// What stands around the backend, if anything does.
    stack: Option<Stack>,
    poison: OnceLock<PoolError>,
    lifetime: Lifetime,
}

/// A pointer to a state that somebody keeps alive: a handle of the pool, or a block that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct StateRef(NonNull<State>);

// SAFETY: a state may be used and taken down by any thread: all of it is `Send` and `Sync`, which `shared` checks.
unsafe impl Send for StateRef {}
// SAFETY: as above.
unsafe impl Sync for StateRef {}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<State>();
};

impl StateRef {
    /// A new state, with one handle.
    pub(crate) fn new(setup: PoolBuilder, backend: Backend, limits: Limits) -> Self {
        let device = setup.device.clone();
        let tags = Tags::new();
        let stack = Stack::new(&setup.adaptors, tags.names());
        if let Some(stack) = &stack {
            stack.open(&device);
        }
        let state = State {
            clocks: Arc::clone(device.clocks()),
            device,
            goes_short_way: AtomicBool::new(stack.is_none()),
            setup,
            backend,
            limits,
            tags,
            stack,
            poison: OnceLock::new(),
            lifetime: Lifetime::new(),
        };
        Self(NonNull::from(Box::leak(Box::new(state))))
    }

    /// One more handle.
    pub(crate) fn add_handle(self) -> Self {
        self.lifetime.add_handle();
        self
    }

    /// One handle less; it is not used again.
    pub(crate) fn drop_handle(self) {
        if !self.lifetime.drop_handle() {
            return;
        }
        if let Some(stack) = &self.stack {
            stack.close();
        }
        if self.lifetime.close(self.backend.close()) {
            self.take_down();
        }
    }

    /// One block less; it is not used again.
    fn drop_block(self) {
        if self.lifetime.count_off() {
            self.take_down();
        }
    }

    /// Nobody is left.
    fn take_down(self) {
        // SAFETY: it came from a box in `new`. No handle is left, and every block has been counted off, so this is the
        // only pointer that is still used; the lifetime says so once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// What is at hand needs no look at anything that threads share. Always part of its caller, which so has the block's
    /// fields where it wants them: a block that comes back through memory is copied in wider pieces than it was written in,
    /// and the processor waits for that longer than for all the rest.
    #[inline(always)]
    pub(crate) fn alloc(self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        let at_hand = match self.is_undisturbed() {
            true => self.backend.hit(size_bytes, stream.near_id()),
            false => None,
        };
        let (piece, uses) = match at_hand {
            Some(piece) => (piece, 0),
            None => self.piece(size_bytes, stream)?,
        };
        let tag = if scope::is_any_open() { self.tag(size_bytes, uses) } else { 0 };
        Ok(Block::from_parts(piece.with_tag(tag), size_bytes, stream.id(), AtomicU64::new(uses), self))
    }

    /// The tag of the scope that a block has just been allocated in, for which it counts from now on. A part of a graph's
    /// memory has none, for all of that has one.
    #[inline(never)]
    fn tag(self, size_bytes: u64, uses: u64) -> u16 {
        match size_bytes > 0 && uses & GRAPH_BIT == 0 {
            true => scope::count_out(&self.tags, size_bytes),
            false => 0,
        }
    }

    /// Called by the drop of a block that has a tag.
    #[inline(never)]
    pub(crate) fn untag(self, tag: u16, size_bytes: u64) {
        scope::count_in(&self.tags, tag, size_bytes);
    }

    /// What a block is made of, and the uses that it begins with.
    #[inline(never)]
    fn piece(self, size_bytes: u64, stream: &Stream) -> Result<(Piece, u64), PoolError> {
        self.check_usable()?;
        self.check_stream(stream)?;
        if size_bytes == 0 {
            self.lifetime.count_in();
            return Ok((Piece::EMPTY, 0));
        }
        if self.has_captures()
            && let Some(block) = self.alloc_captured(size_bytes, ALIGNMENT_MIN, stream)?
        {
            let (piece, _, _, uses, _) = block.into_parts();
            return Ok((piece, uses));
        }
        Ok((self.alloc_anyhow(size_bytes, ALIGNMENT_MIN, stream)?, 0))
    }

    /// Through the adaptors if there are any, else from the backend.
    fn alloc_anyhow(self, size_bytes: u64, alignment: u64, stream: &Stream) -> Result<Piece, PoolError> {
        self.explained(match &self.stack {
            Some(stack) => self.alloc_adapted(stack, size_bytes, alignment, stream),
            None => self.alloc_own(size_bytes, alignment, stream),
        })
    }

    /// A block of the backend's, which is counted.
    pub(crate) fn alloc_own(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Piece, PoolError> {
        self.check_size(size_bytes)?;
        // A pool without adaptors has looked there.
        if self.stack.is_some()
            && alignment <= ALIGNMENT_MIN
            && self.clocks.holds().attention().is_none()
            && let Some(piece) = self.backend.hit(size_bytes, stream.near_id())
        {
            return Ok(piece);
        }
        let piece = self.relieved(|| match alignment <= ALIGNMENT_MIN {
            true => self.backend.alloc(size_bytes, stream),
            false => self.backend.alloc_aligned(size_bytes, alignment, stream),
        })?;
        if !self.backend.counts_blocks() {
            self.lifetime.count_in();
        }
        Ok(piece)
    }

    /// At a power of two.
    pub(crate) fn alloc_aligned(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Block, PoolError> {
        if size_bytes == 0 || alignment <= ALIGNMENT_MIN {
            return self.alloc(size_bytes, stream);
        }
        self.check_usable()?;
        self.check_stream(stream)?;
        if self.has_captures()
            && let Some(block) = self.alloc_captured(size_bytes, alignment, stream)?
        {
            return Ok(block);
        }
        let piece = self.alloc_anyhow(size_bytes, alignment, stream)?;
        let tag = if scope::is_any_open() { self.tag(size_bytes, 0) } else { 0 };
        Ok(Block::new(self, piece.with_tag(tag), size_bytes, stream.id()))
    }

    /// Called by a block's drop, when home's order is all there is to the free: false if it takes more than a look at what
    /// the thread has.
    #[inline]
    pub(crate) fn put_back(self, piece: &Piece, size_bytes: u64, home: StreamId) -> bool {
        self.is_undisturbed() && self.backend.put_back(piece, size_bytes, home)
    }

    /// Called by a block's drop: has nobody to tell, so what fails is kept for the next call.
    pub(crate) fn free(self, freed: &Freed) {
        if freed.size_bytes == 0 {
            return self.drop_block();
        }
        if freed.uses & GRAPH_BIT != 0 || self.has_captures() {
            if let Some(freed) = self.free_captured(*freed) {
                self.free_anyhow(&freed);
            }
            return;
        }
        self.free_anyhow(freed);
    }

    /// Past the adaptors if there are any, else to the backend.
    fn free_anyhow(self, freed: &Freed) {
        match &self.stack {
            Some(stack) => self.free_adapted(stack, freed),
            None => self.free_to_backend(freed),
        }
    }

    fn free_to_backend(self, freed: &Freed) {
        let taken = self.backend.free(freed);
        if let Err(cause) = taken.result {
            let poison = match is_sticky(cause.code()) {
                true => PoolError::DeviceLost(cause),
                false => {
                    PoolError::Poisoned { address: freed.piece.address, size_bytes: freed.size_bytes, cause }
                }
            };
            let _first_counts = self.poison.set(poison);
            self.goes_short_way.store(false, Ordering::Relaxed);
        }
        if !taken.counted {
            self.drop_block();
        }
    }
}

impl Deref for StateRef {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: whoever has the pointer is a handle or a block that has not been counted off, so the state is alive.
        unsafe { self.0.as_ref() }
    }
}

impl State {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    pub(crate) fn setup(&self) -> &PoolBuilder {
        &self.setup
    }

    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn poison(&self) -> Option<&PoolError> {
        self.poison.get()
    }

    pub(crate) fn check_usable(&self) -> Result<(), PoolError> {
        match (self.poison.get(), self.device.lost()) {
            (None, None) => Ok(()),
            (Some(poison), _) => Err(poison.clone()),
            (None, Some(cause)) => Err(PoolError::DeviceLost(cause)),
        }
    }

    /// Whether what is at hand may be handed out, and what comes back may be laid there, without a further look.
    #[inline]
    fn is_undisturbed(&self) -> bool {
        self.goes_short_way.load(Ordering::Relaxed) && self.clocks.holds().attention().is_none()
    }

    /// Whether streams have to be asked first what they do.
    fn has_captures(&self) -> bool {
        self.clocks.holds().is_open()
    }

    fn check_stream(&self, stream: &Stream) -> Result<(), PoolError> {
        stream.check_usable()?;
        if *stream.device() == self.device {
            Ok(())
        } else {
            Err(PoolError::wrong_device(&self.device, stream.device()))
        }
    }

    /// What any request is looked at for.
    pub(crate) fn check_request(&self, size_bytes: u64, stream: &Stream) -> Result<(), PoolError> {
        self.check_usable()?;
        self.check_stream(stream)?;
        self.check_size(size_bytes)
    }

    fn check_size(&self, size_bytes: u64) -> Result<(), PoolError> {
        let device_bytes = self.device.total_bytes();
        if size_bytes <= device_bytes || self.setup.kind == MemoryKind::Host {
            Ok(())
        } else {
            Err(PoolError::TooLarge { requested_bytes: size_bytes, device_bytes })
        }
    }

    pub(crate) fn reclaim(&self) -> Result<u64, PoolError> {
        self.giving_back(|state| {
            state.ask_holders();
            state.backend.reclaim()
        })
    }

    pub(crate) fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.giving_back(|state| state.backend.trim_to(keep_bytes))
    }

    pub(crate) fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.check_usable()?;
        self.check_size(size_bytes)?;
        self.explained(self.relieved(|| self.backend.reserve(size_bytes)))
    }

    pub(crate) fn set_hard_limit(&self, limit: Limit) -> Result<(), PoolError> {
        self.check_usable()?;
        let limit_bytes = Limits::resolve_hard(Some(limit), self.setup.kind, &self.device)?;
        self.backend.check_hard_limit(limit_bytes)?;
        let excess_bytes = self.limits.family().set_limit_bytes(limit_bytes);
        if excess_bytes > 0 {
            self.backend.limits_changed()?;
            let keep_bytes = self.reserved_bytes()?.saturating_sub(excess_bytes);
            self.backend.trim_to(keep_bytes)?;
        }
        Ok(())
    }

    pub(crate) fn set_soft_limit(&self, limit: Limit) -> Result<(), PoolError> {
        self.check_usable()?;
        let limit_bytes = limit.resolve_for(self.setup.kind, &self.device)?;
        self.limits.set_soft_bytes(limit_bytes);
        self.backend.limits_changed()?;
        match self.reserved_bytes()? > limit_bytes {
            true => self.backend.trim_to(limit_bytes),
            false => Ok(()),
        }
    }

    /// Says who holds what in a refusal for want of memory, and shows it to the observer.
    pub(crate) fn explained<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.map_err(|mut error| {
            if let Some(report) = error.out_of_memory_mut() {
                report.holders = self.tags.holders();
            }
            if let (Some(report), Some(observer)) = (error.out_of_memory(), &self.setup.observer) {
                (observer.0)(report);
            }
            error
        })
    }

    fn giving_back(&self, work: impl FnOnce(&Self) -> Result<(), PoolError>) -> Result<u64, PoolError> {
        self.check_usable()?;
        let before_bytes = self.reserved_bytes()?;
        work(self)?;
        Ok(before_bytes.saturating_sub(self.reserved_bytes()?))
    }

    /// A backend that reserves nothing beyond its blocks leaves this to its count.
    fn reserved_bytes(&self) -> Result<u64, PoolError> {
        let reserved = self.backend.reserved()?;
        Ok(reserved.map_or_else(|| self.backend.counts().in_use_bytes, |reserved| reserved.current_bytes))
    }

    pub(crate) fn status(&self) -> Result<Status, PoolError> {
        let device = self.device.memory_info()?;
        let reserved = self.backend.reserved()?;
        let counts = self.backend.counts();
        let tag = |(tag, sum): (Arc<str>, Counters)| TagUsage {
            tag: (*tag).into(),
            in_use_bytes: sum.in_use_bytes(),
            block_count: sum.block_count(),
            allocation_count: sum.allocation_count(),
        };
        let tags = self.tags.sums().into_iter().map(tag).collect();
        let mut streams = self.backend.streams();
        streams.retain(|(_, sum)| sum.block_count() > 0);
        let stream = |(stream, sum): (Option<StreamId>, Counters)| StreamUsage {
            stream,
            in_use_bytes: sum.in_use_bytes(),
            block_count: sum.block_count(),
        };
        let streams = streams.into_iter().map(stream).collect();
        let reserved_bytes = reserved.map_or(counts.in_use_bytes, |reserved| reserved.current_bytes);
        Ok(Status {
            backend: self.backend.kind(),
            kind: self.setup.kind,
            plain_segments: self.backend.has_plain_segments(),
            device_name: self.device.name().into(),
            device_ordinal: self.device.ordinal(),
            in_use_bytes: counts.in_use_bytes,
            reserved_bytes,
            cached_bytes: reserved_bytes.saturating_sub(counts.in_use_bytes),
            in_use_peak_bytes: counts.in_use_peak_bytes,
            reserved_peak_bytes: reserved.map_or(counts.in_use_peak_bytes, |reserved| reserved.peak_bytes),
            record_bytes: reserved.map_or(0, |reserved| reserved.record_bytes),
            block_count: counts.block_count,
            allocation_count: counts.allocation_count,
            hard_limit_bytes: self.limits.hard_bytes(),
            soft_limit_bytes: self.limits.soft_bytes(),
            device_used_bytes: device.total_bytes.saturating_sub(device.free_bytes),
            device_total_bytes: device.total_bytes,
            tags,
            streams,
        })
    }
}
