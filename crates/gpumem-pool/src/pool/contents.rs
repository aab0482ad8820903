//! Copies and fills of blocks: [`Block::copy_from_host`] and others, and [`Pool::alloc_zeroed`].
//!
//! The program names a stream, and the pool does the rest in this order:
//!
//! 1. Checks: the range, the driver, the stream, and that the stream does not capture.
//! 2. The stream's device gets access to the memory ([`Block::enable_peer_access`]).
//! 3. The stream waits, on the device, for the uses of the block so far ([`Block::order`]). So safe code has no race: writing borrows the
//!    block exclusively. And no work reaches memory that an earlier block still uses, because the allocation on the owner stream counts as
//!    a use.
//! 4. The use is recorded, and the work is queued, in a call during which no capture of the stream begins. That call refuses sleeping
//!    memory, and a pool that goes to sleep waits for the call.
//!
//! Host memory is borrowed, so copies from and to it are complete when they return ([`Stream::run_borrowed`]).

use crate::device::Stream;
use crate::error::{BadArgument, PoolError, not_forked};
use crate::pool::{Block, Pool};
use bytemuck::{AnyBitPattern, NoUninit};
use core::ops::Range;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};

impl Pool {
    /// Like [`Pool::alloc`], with all bytes set to zero. The fill is work on `stream`, and this call does not wait for it:
    /// before the host reads memory that it can access ([`Block::host_ptr`]), it waits for the stream.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let block = pool.alloc_zeroed(4096, &stream)?;
    /// let mut sums = [1_u64; 512];
    /// block.copy_to_host(0, &mut sums, &stream)?;
    /// assert_eq!(sums, [0; 512]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Capture`] if the stream captures.
    /// - All errors of [`Pool::alloc`], such as [`PoolError::OutOfMemory`] and [`PoolError::LimitReached`].
    pub fn alloc_zeroed(&self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        not_forked()?;
        stream.check_usable()?;
        // Before the allocation, which would take memory for the graph.
        stream.check_runs("an allocation of zeroed memory")?;
        let mut block = self.alloc(size_bytes, stream)?;
        block.fill(0..size_bytes, 0_u8, stream)?;
        Ok(block)
    }
}

/// Copies and fills. Each is work on the given stream, of any device that can access the block ([`Block::enable_peer_access`] is called for
/// it). The stream waits, on the device, for the uses of the block so far: all work queued on its owner stream and on every recorded
/// stream. It does not wait for other streams. With one stream there are no waits. Work that is queued is recorded as a use
/// ([`Block::record_use`]), so that the free waits for it.
///
/// Host memory is borrowed, so a copy from or to it is complete when the call returns. To queue such a copy without
/// waiting, go through a block of pinned memory ([`MemoryKind::Host`](crate::MemoryKind::Host)), or use the arrays of
/// `gpumem-array`, whose transfers own their host memory.
impl Block {
    /// Copies a slice into the block, starting at byte `offset_bytes`. Returns when the copy is complete.
    ///
    /// The driver copies pageable memory with one thread. Copies of pinned slices take a fifth of the time.
    ///
    /// ```
    /// use gpumem_pool::{BadArgument, Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc(16, &stream)?;
    /// block.copy_from_host(0, &[1.0_f32, 2.0, 3.0, 4.0], &stream)?;
    /// let mut last = [0.0_f32; 2];
    /// block.copy_to_host(8, &mut last, &stream)?;
    /// assert_eq!(last, [3.0, 4.0]);
    /// assert!(matches!(block.copy_from_host(9, &[0_u64], &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the slice does not fit behind the offset.
    /// - [`PoolError::WrongDevice`] for a stream of another driver.
    /// - [`PoolError::Unsupported`] if the stream's device has no link to the block's.
    /// - [`PoolError::Capture`] if the stream, or a stream that uses the block, captures, or if its capture is broken.
    /// - [`PoolError::Stream`] if a stream of [`Stream::from_raw`] other than `stream` uses the block, or if this thread cannot use the stream.
    /// - [`PoolError::Asleep`] if the memory sleeps ([`Pool::sleep`]).
    /// - [`PoolError::DeviceLost`] or [`PoolError::Driver`] if a call or earlier work failed. The block may then be partly written.
    ///
    /// # Aborts
    ///
    /// Like [`Stream::run_borrowed`].
    pub fn copy_from_host<T: NoUninit>(
        &mut self,
        offset_bytes: u64,
        source: &[T],
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let part = span(offset_bytes, size_of_val(source));
        let from = source.as_ptr().expose_provenance() as CUdeviceptr;
        self.copy_host(part, stream, "a copy from host memory", |driver, (to, size), raw| {
            // SAFETY: the block has these bytes, is alive, and is borrowed exclusively; the stream is ordered behind its uses, and
            // its context is current. The slice is borrowed until the copy is complete, and has no uninitialised bytes.
            unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
        })
    }

    /// Copies bytes of the block, starting at byte `offset_bytes`, into a slice. Returns when the copy is complete.
    ///
    /// Every bit pattern is a valid element. If the block has not been written, the values are unspecified.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, upload, compute) = (Pool::new(&device)?, Stream::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc(3, &upload)?;
    /// block.copy_from_host(0, b"abc", &upload)?;
    /// let mut bytes = [0_u8; 3];
    /// block.copy_to_host(0, &mut bytes, &compute)?; // `compute` waits for `upload`
    /// assert_eq!(&bytes, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Block::copy_from_host`], such as [`PoolError::BadArgument`] and [`PoolError::Capture`]. After
    /// [`PoolError::DeviceLost`] and [`PoolError::Driver`] the slice may be partly written.
    ///
    /// # Aborts
    ///
    /// Like [`Stream::run_borrowed`].
    pub fn copy_to_host<T: AnyBitPattern>(
        &self,
        offset_bytes: u64,
        target: &mut [T],
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let part = span(offset_bytes, size_of_val(target));
        let to = target.as_mut_ptr().expose_provenance() as CUdeviceptr;
        self.copy_host(part, stream, "a copy to host memory", |driver, (from, size), raw| {
            // SAFETY: the block has these bytes and is alive; the stream is ordered behind its writes, and its context is current.
            // The slice is borrowed exclusively until the copy is complete, and every bit pattern is a value of its elements.
            unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
        })
    }

    /// Copies the bytes `part` of another block to this one, starting at byte `offset_bytes`. The copy is work on `stream`, and this call
    /// does not wait for it.
    ///
    /// The blocks may be of different pools and kinds of memory, and on different devices if a link connects them.
    ///
    /// ```
    /// use gpumem_pool::{Device, MemoryKind, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let pinned = Pool::builder(&device).kind(MemoryKind::Host).build()?;
    ///
    /// let mut weights = pool.alloc_zeroed(1 << 20, &stream)?;
    /// let mut saved = pinned.alloc(1 << 20, &stream)?;
    /// saved.copy_from(0, &weights, 0..1 << 20, &stream)?; // queued, no wait
    /// weights.copy_from(4096, &saved, 0..4096, &stream)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Block::copy_from_host`], for both blocks, such as [`PoolError::BadArgument`],
    /// [`PoolError::Unsupported`] and [`PoolError::Capture`].
    pub fn copy_from(
        &mut self,
        offset_bytes: u64,
        source: &Self,
        part: Range<u64>,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let size_bytes = part.end.saturating_sub(part.start);
        let from = source.bytes(part)?;
        let to = self.bytes(offset_bytes..offset_bytes.saturating_add(size_bytes))?;
        let blocks = [&*self, source];
        queue(&blocks, from.zip(to), stream, "a copy of a block", |driver, ((from, size), (to, _)), raw| {
            // SAFETY: both blocks have these bytes, are alive, and do not overlap, because one is borrowed exclusively. The stream is
            // ordered behind their uses, which now include this one, and its context is current.
            unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
        })
    }

    /// Copies the bytes `part` of the block to another place in it, starting at byte `offset_bytes`. The copy is work on `stream`, and this
    /// call does not wait for it.
    ///
    /// ```
    /// use gpumem_pool::{BadArgument, Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc_zeroed(4096, &stream)?;
    /// block.copy_within(0..1024, 1024, &stream)?;
    /// assert!(matches!(block.copy_within(0..1024, 512, &stream), Err(PoolError::BadArgument(BadArgument::Overlap { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the two places overlap.
    /// - The errors of [`Block::copy_from_host`], such as [`PoolError::BadArgument`] and [`PoolError::Capture`].
    pub fn copy_within(
        &mut self,
        part: Range<u64>,
        offset_bytes: u64,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let (start, size_bytes) = (part.start, part.end.saturating_sub(part.start));
        let from = self.bytes(part)?;
        let to = self.bytes(offset_bytes..offset_bytes.saturating_add(size_bytes))?;
        if start.abs_diff(offset_bytes) < size_bytes {
            return Err(PoolError::BadArgument(BadArgument::Overlap {
                from: start,
                to: offset_bytes,
                size_bytes,
            }));
        }
        queue(
            &[self],
            from.zip(to),
            stream,
            "a copy within a block",
            |driver, ((from, size), (to, _)), raw| {
                // SAFETY: the block has these bytes, which do not overlap, is alive and borrowed exclusively. The stream is ordered
                // behind its uses, which now include this one, and its context is current.
                unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
            },
        )
    }

    /// Fills the bytes `part` of the block with copies of a value of 1, 2 or 4 bytes; other sizes do not compile. The fill
    /// is work on `stream`, and this call does not wait for it.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc_zeroed(16, &stream)?;
    /// block.fill(8..16, 1.5_f32, &stream)?;
    /// let mut values = [0.0_f32; 4];
    /// block.copy_to_host(0, &mut values, &stream)?;
    /// assert_eq!(values, [0.0, 0.0, 1.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```compile_fail
    /// # use gpumem_pool::{Block, PoolError, Stream};
    /// fn fill(block: &mut Block, stream: &Stream) -> Result<(), PoolError> {
    ///     block.fill(0..8, 1.5_f64, stream)
    /// }
    /// # std::hint::black_box(fill as fn(&mut Block, &Stream) -> Result<(), PoolError>);
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if an end of the range is not a multiple of the value's size.
    /// - The errors of [`Block::copy_from_host`], such as [`PoolError::BadArgument`] and [`PoolError::Capture`].
    pub fn fill<T: NoUninit>(
        &mut self,
        part: Range<u64>,
        value: T,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        const { assert!(matches!(size_of::<T>(), 1 | 2 | 4), "a fill takes a value of 1, 2 or 4 bytes") };
        let (Range { start, end }, element_bytes) = (part.clone(), size_of::<T>() as u64);
        let bytes = self.bytes(part)?;
        if start % element_bytes != 0 || end % element_bytes != 0 {
            return Err(PoolError::BadArgument(BadArgument::PartialElements { start, end, element_bytes }));
        }
        let mut word = [0; 4];
        word[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        queue(&[self], bytes, stream, "a fill of a block", |driver, (address, size), raw| {
            // SAFETY: the block has these bytes, which are whole elements, is alive and borrowed exclusively. The stream is ordered
            // behind its uses, which now include this one, and its context is current.
            unsafe {
                match size_of::<T>() {
                    1 => driver.cuMemsetD8Async(address, word[0], size, raw),
                    2 => driver.cuMemsetD16Async(
                        address,
                        u16::from_ne_bytes([word[0], word[1]]),
                        size / 2,
                        raw,
                    ),
                    _ => driver.cuMemsetD32Async(address, u32::from_ne_bytes(word), size / 4, raw),
                }
            }
        })
    }

    /// Copies between host memory and a range of the block. Returns when the copy that `copy` queues is complete.
    fn copy_host(
        &self,
        part: Range<u64>,
        stream: &Stream,
        operation: &'static str,
        copy: impl FnOnce(&Driver, (CUdeviceptr, usize), CUstream) -> Result<(), DriverError>,
    ) -> Result<(), PoolError> {
        let bytes = self.bytes(part)?;
        self.check_use(stream)?;
        let Some(bytes) = bytes else { return Ok(()) };
        self.begin_use(stream, operation)?;
        let device = stream.device();
        let _bound = device.enter()?;
        // Complete when this returns, so later work has nothing to wait for, and the use is not recorded.
        stream
            .run_borrowed(operation, [self], |raw| Ok(device.noting(copy(device.driver(), bytes, raw))?))?
    }

    /// Refuses a stream of another driver, and a stream that this thread cannot use.
    fn check_use(&self, stream: &Stream) -> Result<(), PoolError> {
        self.check_machine(stream.device())?;
        stream.check_usable()
    }

    /// Prepares `stream` for work on the block.
    fn begin_use(&self, stream: &Stream, operation: &'static str) -> Result<(), PoolError> {
        // Queuing the work checks this again. The check here comes before the waits, which would become part of the capture.
        stream.check_runs(operation)?;
        if self.origin().device() != stream.device() {
            self.enable_peer_access(stream.device())?;
        }
        self.order(stream)
    }
}

/// Queues work of `stream` on blocks. `None` stands for no bytes, and queues nothing.
fn queue<P>(
    blocks: &[&Block],
    place: Option<P>,
    stream: &Stream,
    operation: &'static str,
    work: impl FnOnce(&Driver, P, CUstream) -> Result<(), DriverError>,
) -> Result<(), PoolError> {
    blocks.iter().try_for_each(|block| block.check_use(stream))?;
    let Some(place) = place else { return Ok(()) };
    blocks.iter().try_for_each(|block| block.begin_use(stream, operation))?;
    let device = stream.device();
    stream.queue_work(blocks.iter().copied(), |raw| {
        // A stream that has begun to capture would get work that a free does not wait for.
        stream.check_runs(operation)?;
        let _bound = device.enter()?;
        blocks.iter().for_each(|block| block.record_use(stream));
        Ok(device.noting(work(device.driver(), place, raw))?)
    })?
}

/// The bytes of a slice at an offset. A huge offset gives a range that no block has.
fn span(offset_bytes: u64, size_bytes: usize) -> Range<u64> {
    offset_bytes..offset_bytes.saturating_add(size_bytes as u64)
}
