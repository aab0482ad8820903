//! Blocks handed out and taken back: what is at hand first, then captures, adaptors and the backend.

use super::StateRef;
use crate::backend::{Backend, Freed, NOWHERE, Piece, Source};
use crate::config::ALIGNMENT_MIN;
use crate::device::{GRAPH_BIT, Stream, StreamId};
use crate::error::{PoolError, is_sticky};
use crate::pool::{Block, Stack, scope};
use core::sync::atomic::{AtomicU64, Ordering};

impl StateRef {
    /// What is at hand needs no look at anything that threads share. Always part of its caller, which so has the block's
    /// fields where it wants them: a block that comes back through memory is copied in wider pieces than it was written in,
    /// and the processor waits for that longer than for all the rest.
    #[inline(always)]
    pub(crate) fn alloc(self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        let at_hand = match self.undisturbed() {
            Some(near) => Backend::hit(near, size_bytes, stream.near_id()),
            None => None,
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

    /// A piece that is being dropped counts for its tag no more, if it has one.
    #[inline]
    pub(crate) fn untag(self, piece: Piece, size_bytes: u64) -> Piece {
        if piece.tag() != 0 {
            scope::count_in(&self.tags, piece.tag(), size_bytes);
        }
        piece.without_tag()
    }

    /// What a block is made of, and the uses that it begins with.
    #[inline(never)]
    fn piece(self, size_bytes: u64, stream: &Stream) -> Result<(Piece, u64), PoolError> {
        if let Some(stack) = &self.stack
            && size_bytes > 0
            && self.has_only_adaptors_to_ask(stream)
        {
            return self.alloc_around(stack, size_bytes, ALIGNMENT_MIN, stream);
        }
        self.check_usable()?;
        self.check_stream(stream)?;
        self.name(stream, size_bytes);
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

    /// An allocation names a stream, and takes more than a look at what is cached: marks it where it can be marked in
    /// such calls alone, and others want its memory or may soon.
    fn name(self, stream: &Stream, size_bytes: u64) {
        if self.is_mark_due(size_bytes, stream) { stream.mark_named() } else { stream.note_named() }
    }

    /// Whether a call that names a stream is to mark it, after so many bytes more: what has been used since the
    /// last mark may be an eighth of the pool.
    pub(crate) fn is_mark_due(self, size_bytes: u64, stream: &Stream) -> bool {
        stream.is_mark_due(size_bytes, || self.reserved_bytes().unwrap_or(0) / 8)
    }

    /// Through the adaptors if there are any, else from the backend.
    fn alloc_anyhow(self, size_bytes: u64, alignment: u64, stream: &Stream) -> Result<Piece, PoolError> {
        match &self.stack {
            Some(stack) => Ok(self.alloc_around(stack, size_bytes, alignment, stream)?.0),
            None => self.explained(self.alloc_own(size_bytes, alignment, stream)),
        }
    }

    /// Through the adaptors. No other stream has used it yet.
    #[inline(always)]
    fn alloc_around(
        self,
        stack: &Stack,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<(Piece, u64), PoolError> {
        let finish = |answer| self.finish_around(answer, stack, size_bytes, alignment, stream);
        self.alloc_adapted(stack, size_bytes, alignment, stream, finish)
    }

    /// Asks again where a budget has no room.
    #[inline(never)]
    fn finish_around(
        self,
        answer: Result<Piece, PoolError>,
        stack: &Stack,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<(Piece, u64), PoolError> {
        let error = match answer {
            Ok(piece) => return Ok((piece, 0)),
            Err(error) => error,
        };
        let finish = |answer: Result<Piece, _>| Ok((answer?, 0));
        let request = || self.alloc_adapted(stack, size_bytes, alignment, stream, finish);
        self.explained(self.retried_over_budget(Err(error), request))
    }

    /// A block of the backend's, which is counted.
    pub(crate) fn alloc_own(
        self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Piece, PoolError> {
        self.check_size(size_bytes)?;
        let piece = self.relieved(|| match alignment <= ALIGNMENT_MIN {
            true => self.backend.alloc(size_bytes, stream),
            false => self.backend.alloc_aligned(size_bytes, alignment, stream),
        });
        let piece = piece.map_err(|error| error.aligned(size_bytes, alignment))?;
        if !self.backend.counts_blocks() {
            self.lifetime.count_in();
        }
        Ok(piece)
    }

    /// What the thread has at hand of a backend with adaptors around: of others that has been looked for.
    #[inline(always)]
    pub(crate) fn hit_own(self, size_bytes: u64, alignment: u64, stream: &Stream) -> Option<Piece> {
        match alignment <= ALIGNMENT_MIN && self.clocks.captures().slow_path().is_none() {
            true => Backend::hit(self.backend.near(), size_bytes, stream.near_id()),
            false => None,
        }
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
        self.name(stream, size_bytes);
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
    /// the thread has, as it always does for a large block.
    #[inline(always)]
    pub(crate) fn put_back_small(self, piece: &Piece, size_bytes: u64, home: StreamId) -> bool {
        match self.undisturbed() {
            Some(near) => Backend::put_back_small(near, piece, size_bytes, home),
            None => false,
        }
    }

    /// The same of any size.
    pub(crate) fn put_back(self, piece: &Piece, size_bytes: u64, home: StreamId) -> bool {
        match self.undisturbed() {
            Some(near) => self.backend.put_back(near, piece, size_bytes, home),
            None => false,
        }
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

    pub(super) fn free_to_backend(self, freed: &Freed) {
        // Streams that used the block and can't be marked here are marked by the next calls that name them: this free waits
        // for that. Noted once it has been stamped, after which the pool may be gone.
        let is_pending = freed.uses & !GRAPH_BIT != 0 && !freed.is_complete;
        let device = (is_pending && self.clocks.has_named_streams()).then(|| self.device().clone());
        self.free_to_backend_alone(freed);
        if let Some(device) = device {
            device.clocks().want_marks(device.clocks().used(freed.uses));
        }
    }

    fn free_to_backend_alone(self, freed: &Freed) {
        let taken = self.backend.free(freed);
        if let Err(cause) = taken.result {
            let poison = match is_sticky(cause.code()) {
                true => PoolError::DeviceLost(cause),
                false => {
                    PoolError::Poisoned { address: freed.piece.address, size_bytes: freed.size_bytes, cause }
                }
            };
            let _first_counts = self.poison.set(poison);
            self.near.store(NOWHERE, Ordering::Relaxed);
        }
        if !taken.counted {
            self.drop_block();
        }
    }
}
