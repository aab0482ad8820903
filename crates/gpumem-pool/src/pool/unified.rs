//! Placement of unified memory: [`Block::prefetch`] and [`Block::advise`].

use crate::config::{BackendKind, MemoryKind};
use crate::device::{Device, Stream};
use crate::error::{PoolError, Unsupported, not_forked};
use crate::pool::Block;
use core::ops::Range;
use gpumem_sys::types::{CUdevice, CUdeviceptr, CUmem_advise, CUresult};

/// A location of unified memory pages.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Location<'a> {
    /// Host memory.
    Host,
    /// The memory of a device.
    Device(&'a Device),
}

/// Expected usage of a range of unified memory; see [`Block::advise`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MemoryAdvice<'a> {
    /// True: the range is mostly read, so each reader may have a copy. False removes the advice.
    ReadMostly(bool),
    /// The preferred location of the range, for every user. `None` removes the advice.
    PreferredLocation(Option<Location<'a>>),
    /// True: the range is accessed from this location, so a mapping is kept there, regardless of where the pages are. False removes the
    /// advice.
    AccessedBy(Location<'a>, bool),
}

impl Block {
    /// Moves the pages of a range of the block (bytes from its start) to where they will be used. The move is work
    /// on `stream`, in stream order, and this call does not wait. A move does not change the contents. It counts as
    /// a use of the block on `stream`.
    ///
    /// ```
    /// use gpumem_pool::{Device, Location, MemoryKind, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).kind(MemoryKind::Unified).build()?;
    /// let stream = Stream::new(&device)?;
    ///
    /// let block = pool.alloc(4 << 20, &stream)?;
    /// block.prefetch(0..1 << 20, Location::Device(&device), &stream)?;
    /// assert!(block.prefetch(0..(4 << 20) + 1, Location::Host, &stream).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the block is unified memory.
    /// - [`PoolError::BadArgument`] if the range is not within the block.
    /// - [`PoolError::WrongDevice`] for a stream or a device of another driver.
    /// - [`PoolError::Stream`] if this thread cannot use the stream.
    /// - [`PoolError::Capture`] if the stream captures.
    /// - [`PoolError::Driver`] if the driver cannot move pages, or if another call fails.
    pub fn prefetch(&self, part: Range<u64>, to: Location<'_>, stream: &Stream) -> Result<(), PoolError> {
        not_forked()?;
        let part = self.pages(part, "be prefetched")?;
        stream.queue_work([self], |raw| {
            self.check_machine(stream.device())?;
            let Some((address, size)) = part else { return Ok(()) };
            stream.check_runs("prefetching")?;
            let to = self.place(to)?;
            let _bound = stream.device().enter()?;
            self.record_use(stream);
            let driver = stream.device().driver();
            // SAFETY: the block has these bytes; the stream is alive, its handle is valid on this thread, its context
            // is current, and the block's free will wait for it.
            unsafe { driver.cuMemPrefetchAsync(address, size, to, raw) }.map_err(PoolError::from)
        })?
    }

    /// Advises the driver how a range of the block (bytes from its start) will be used. Advice affects performance
    /// only.
    ///
    /// Advice applies to whole pages, which neighbouring blocks may share. It stays with the pages when the block
    /// is dropped: remove advice that should not apply to the next block there.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, MemoryAdvice, MemoryKind, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).kind(MemoryKind::Unified).backend(BackendKind::None).build()?;
    ///
    /// let block = pool.alloc(4 << 20, &Stream::new(&device)?)?;
    /// block.advise(0..4 << 20, MemoryAdvice::ReadMostly(true))?;
    /// // … many devices read it …
    /// block.advise(0..4 << 20, MemoryAdvice::ReadMostly(false))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the block is unified memory.
    /// - [`PoolError::BadArgument`] if the range is not within the block.
    /// - [`PoolError::WrongDevice`] for a location on a device of another driver.
    /// - [`PoolError::Unsupported`] with `native`, if the driver accepts no advice for memory of its own pools, as in CUDA 13.0: its
    ///   [documentation](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__UNIFIED.html) allows advice only for memory of
    ///   `cuMemAllocManaged`, which `caching` and `none` use.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn advise(&self, part: Range<u64>, expectation: MemoryAdvice<'_>) -> Result<(), PoolError> {
        not_forked()?;
        let Some((address, size)) = self.pages(part, "be advised on")? else { return Ok(()) };
        let own = Location::Device(self.device());
        let (advice, place) = match expectation {
            MemoryAdvice::ReadMostly(true) => (CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, own),
            MemoryAdvice::ReadMostly(false) => (CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY, own),
            MemoryAdvice::PreferredLocation(Some(place)) => {
                (CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place)
            }
            MemoryAdvice::PreferredLocation(None) => {
                (CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, own)
            }
            MemoryAdvice::AccessedBy(place, true) => (CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY, place),
            MemoryAdvice::AccessedBy(place, false) => (CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY, place),
        };
        let place = self.place(place)?;
        let _bound = self.device().enter()?;
        // SAFETY: the block has these bytes, and its context is current.
        let advised = unsafe { self.device().driver().cuMemAdvise(address, size, advice, place) };
        advised.map_err(|error| match self.state().backing_allocation(self.allocation()).0.backend().kind() {
            backend @ BackendKind::Native if NOT_ADVISED.contains(&error.code()) => {
                let what = "take advice on unified memory";
                PoolError::Unsupported(Unsupported::OnBackend {
                    backend,
                    what,
                    instead: "`caching` or `none`",
                })
            }
            _ => error.into(),
        })
    }

    /// Returns the address and size of a range; `None` if the range is empty.
    fn pages(&self, part: Range<u64>, what: &'static str) -> Result<Option<(CUdeviceptr, usize)>, PoolError> {
        if self.kind() != MemoryKind::Unified {
            return Err(PoolError::Unsupported(Unsupported::OnKind {
                kind: self.kind(),
                what,
                instead: "`unified`",
            }));
        }
        self.bytes(part)
    }

    /// Returns the driver's number of a location: the device's ordinal, or `HOST`.
    fn place(&self, location: Location<'_>) -> Result<CUdevice, PoolError> {
        match location {
            Location::Host => Ok(HOST),
            Location::Device(device) => self.check_machine(device).map(|()| device.raw()),
        }
    }
}

/// The driver's error codes for advice on memory that is not managed: the observed one and the documented one. The
/// bytes and the location have been checked before.
const NOT_ADVISED: [CUresult; 2] = [CUresult::CUDA_ERROR_NOT_SUPPORTED, CUresult::CUDA_ERROR_INVALID_VALUE];

/// The driver's number for the host.
const HOST: CUdevice = -1;
