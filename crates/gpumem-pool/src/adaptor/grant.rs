//! [`Grant`] and [`Release`]: memory on its way to a block through the adaptors, and on its way back.
//!
//! Both are views of a [`Holding`], which says where the memory is from and how each adaptor has narrowed it. A holding that is
//! a backend's piece as it was is nothing but the block; of any other the [`Stack`](super::Stack) keeps it while the block
//! lives.

use super::PoolId;
use crate::backend::Piece;
use crate::block::Block;
use crate::clock::StreamId;
use crate::contained::contained;
use crate::device::Device;
use crate::state::StateRef;
use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};

/// Memory that an adaptor has from the next, or from elsewhere, and hands on. Dropped, it is given back.
#[must_use = "dropping it gives the memory back"]
pub struct Grant {
    /// Taken on the way out.
    holding: ManuallyDrop<Holding>,
    /// The pool whose adaptors it passes; none yet if it is another pool's block that was just brought in.
    pool: Option<StateRef>,
    /// The innermost adaptor that has not had it yet is the one before this.
    level: usize,
}

/// Where memory is from, and what of it may be used.
pub(super) struct Holding {
    pub(super) source: Source,
    pub(super) home: StreamId,
    pub(super) address: CUdeviceptr,
    pub(super) size_bytes: u64,
    /// The adaptors below this have had it on its way out, and so hear of its end.
    depth: usize,
    /// Outermost last.
    narrowings: Vec<Narrowing>,
}

pub(super) enum Source {
    /// The pool's own backend.
    Own { piece: Piece, size_bytes: u64 },
    /// A block of another pool.
    Other(Block),
}

/// What an adaptor had before it took the edges away.
struct Narrowing {
    level: usize,
    address: CUdeviceptr,
    size_bytes: u64,
}

impl Grant {
    /// A block of another pool instead of memory of this one. It must be of the request's device and stream, and not be
    /// recorded as used elsewhere.
    pub fn from_block(block: Block) -> Self {
        let (home, address, size_bytes) = (block.stream_id(), block.address(), block.size_bytes());
        let source = Source::Other(block);
        let holding = Holding { source, home, address, size_bytes, depth: 0, narrowings: Vec::new() };
        Self { holding: ManuallyDrop::new(holding), pool: None, level: 0 }
    }

    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.holding.address
    }

    /// How many bytes whoever gets it may use, at least as many as asked for.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.holding.size_bytes
    }

    /// Keeps the first `front_bytes`, and all that is behind the next `size_bytes`, from whoever gets it: the adaptor that
    /// does so finds them in [`Release::whole`]. False, and no change, if there is not as much, or if nothing would be left.
    #[must_use = "false if there is not as much"]
    pub fn narrow(&mut self, front_bytes: u64, size_bytes: u64) -> bool {
        let holding = &mut *self.holding;
        let is_within =
            front_bytes.checked_add(size_bytes).is_some_and(|end_bytes| end_bytes <= holding.size_bytes);
        if !is_within || size_bytes == 0 {
            return false;
        }
        // Of the adaptor that has it now; one after the other they count as one.
        let level = self.level.saturating_sub(1);
        if holding.narrowings.last().is_none_or(|last| last.level != level) {
            let (address, size_bytes) = (holding.address, holding.size_bytes);
            holding.narrowings.push(Narrowing { level, address, size_bytes });
        }
        holding.address += front_bytes;
        holding.size_bytes = size_bytes;
        true
    }

    /// Whether the host may use it from now on: nothing that used it before is under way.
    pub(super) fn is_for_host(&self) -> bool {
        let pool = match &self.holding.source {
            Source::Own { .. } => self.pool,
            Source::Other(block) => Some(block.state()),
        };
        pool.is_some_and(|pool| pool.setup().is_for_host)
    }

    /// Straight from the backend, below `depth` adaptors.
    pub(super) fn own(pool: StateRef, piece: Piece, size_bytes: u64, home: StreamId, depth: usize) -> Self {
        let source = Source::Own { piece, size_bytes };
        let address = piece.address;
        let holding = Holding { source, home, address, size_bytes, depth, narrowings: Vec::new() };
        Self { holding: ManuallyDrop::new(holding), pool: Some(pool), level: depth }
    }

    /// What keeps it from being the answer of the adaptor at `level` to a request of this pool, in words.
    pub(super) fn mismatch(
        &self,
        request: &super::Request<'_>,
        pool: StateRef,
        level: usize,
    ) -> Option<&'static str> {
        let Holding { source, home, address, size_bytes, .. } = &*self.holding;
        match (self.pool, source) {
            (Some(own), _) if own != pool => Some("returned memory of another pool's adaptors"),
            (Some(_), _) if self.level != level + 1 => {
                Some("returned memory that is not from the next adaptor")
            }
            (None, Source::Other(block)) if block.device() != request.device() => {
                Some("returned a block of another device")
            }
            (None, Source::Other(block)) if block.is_recorded() => {
                Some("returned a block that other streams use")
            }
            _ if pool.setup().is_for_host && !self.is_for_host() => {
                Some("returned memory that the host can't use")
            }
            _ if *home != request.stream().id() => Some("returned memory of another stream"),
            _ if *size_bytes < request.size_bytes() => Some("returned less than was asked for"),
            _ if !address.is_multiple_of(request.alignment()) => Some("returned memory that is not aligned"),
            _ => None,
        }
    }

    /// It leaves the adaptor at `level`.
    pub(super) fn pass(&mut self, pool: StateRef, level: usize) {
        if self.pool.is_none() {
            self.holding.depth = level + 1;
            self.holding.narrowings.iter_mut().for_each(|own| own.level = level);
            self.pool = Some(pool);
            pool.count_other();
        }
        self.level = level;
    }

    /// It becomes a block.
    pub(super) fn into_holding(self) -> Holding {
        let mut grant = ManuallyDrop::new(self);
        // SAFETY: the grant is not used again, nor dropped.
        unsafe { ManuallyDrop::take(&mut grant.holding) }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // SAFETY: this is the drop, and nothing else has taken it.
        let holding = unsafe { ManuallyDrop::take(&mut self.holding) };
        match (self.pool, holding) {
            (Some(pool), holding) => pool.release(holding, self.level, 0, false),
            (None, holding) => drop(holding),
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

/// Memory that is about to be given back, as the adaptor that is told had returned it.
pub struct Release<'a> {
    holding: &'a Holding,
    level: usize,
    pool: PoolId,
    device: &'a Device,
    uses: u64,
    /// False from where an adaptor has queued work of its own on it.
    is_complete: &'a Cell<bool>,
}

impl<'a> Release<'a> {
    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.holding.address
    }

    /// As many bytes as the adaptor had left of it.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.holding.size_bytes
    }

    /// All of it: with what the adaptor itself has kept from the block ([`Grant::narrow`]).
    #[must_use]
    pub fn whole(&self) -> Range<CUdeviceptr> {
        let own = self.holding.narrowings.last().filter(|last| last.level == self.level);
        let (address, size_bytes) = own.map_or((self.address(), self.size_bytes()), |narrowing| {
            (narrowing.address, narrowing.size_bytes)
        });
        address..address + size_bytes
    }

    /// The stream that it was allocated on, in whose order it is given back. It may be gone.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.holding.home
    }

    /// The device that it is memory of.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The pool that handed it out.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The other streams that have used it.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.device.clocks().users(self.uses)
    }

    /// Whether whoever dropped it knew that all uses are done.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.get()
    }

    /// Queues work behind all uses of the memory, on its home stream, whose context is current in the call. False if that
    /// can't be done without waiting: home is gone, another library's or captures, or may not wait for one of the others.
    pub(super) fn queue(&self, work: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>) -> bool {
        let clocks = self.device.clocks();
        let uses = (!self.is_complete.get()).then(|| clocks.uses(self.holding.home, self.uses));
        let call = |home| work(self.device.driver(), home);
        // What the driver refuses has not been done either.
        let queued =
            clocks.queue_behind(uses.into_iter().flatten(), self.holding.home, call).unwrap_or(false);
        if queued {
            self.set_used();
        }
        queued
    }

    /// The device still works on it, whatever its last user knew.
    pub(super) fn set_used(&self) {
        self.is_complete.set(false);
    }
}

impl fmt::Debug for Release<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

impl Holding {
    /// A backend's piece as it was, below so many adaptors.
    pub(super) fn plain(piece: Piece, size_bytes: u64, home: StreamId, depth: usize) -> Self {
        let source = Source::Own { piece, size_bytes };
        Self { source, home, address: piece.address, size_bytes, depth, narrowings: Vec::new() }
    }

    /// The piece, if a block of this size says all there is to say.
    pub(super) fn plain_piece(&self, size_bytes: u64) -> Option<Piece> {
        match self.source {
            Source::Own { piece, size_bytes: own_bytes } => {
                Some(piece).filter(|_| own_bytes == size_bytes && self.narrowings.is_empty())
            }
            Source::Other(_) => None,
        }
    }

    /// Takes back what adaptors outside of `level` had narrowed.
    fn widen_to(&mut self, level: usize) {
        while let Some(outer) = self.narrowings.pop_if(|last| last.level < level) {
            (self.address, self.size_bytes) = (outer.address, outer.size_bytes);
        }
    }
}

impl StateRef {
    /// Tells the adaptors from `level` inwards, and gives the memory back. The pool may be gone afterwards.
    pub(super) fn release(self, mut holding: Holding, level: usize, uses: u64, is_complete: bool) {
        let is_complete = Cell::new(is_complete);
        if let Some(stack) = self.stack() {
            for (level, adaptor) in stack.adaptors().iter().enumerate().take(holding.depth).skip(level) {
                holding.widen_to(level);
                let (pool, device) = (stack.id(), self.device());
                let (holding, is_complete) = (&holding, &is_complete);
                let release = Release { holding, level, pool, device, uses, is_complete };
                // A drop does not panic.
                let _ = contained(|| adaptor.free(&release));
            }
        }
        // No adaptor is at work from here on: with this, the pool and they may end.
        match holding.source {
            Source::Own { piece, size_bytes } => {
                self.free_own(piece, size_bytes, holding.home, uses, is_complete.get());
            }
            Source::Other(block) => self.free_other(block, uses, is_complete.get()),
        }
    }
}
