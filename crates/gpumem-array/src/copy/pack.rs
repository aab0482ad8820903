//! [`Pack`]: uploads of many arrays that travel together.
//!
//! A copy of a few KiB costs the same driver call as a copy of a few MiB. So small arrays share a buffer of the staging ring: threads
//! gather them in it after a table, and one kernel reads the buffer over the link and writes all arrays of the table. Large arrays are
//! uploaded separately.

use super::pageable;
use crate::array::GpuArray;
use crate::element::kind::{DeviceLocal, Kind};
use crate::element::{Element, check_layout};
use crate::error::{ArrayError, Rejected};
use crate::gpu::staging::{BufferAnswer, Copying, HostCopy, Lent, Staging, Stores};
use crate::gpu::{Gpu, Place};
use crate::kernel::Function;
use crate::kernel::library::{launch, parameter};
use crate::kernel::table::{Kernel, Only};
use crate::layout::{ElementOrder, Layout};
use crate::storage::{Access, ArrayStorage, Touched, Use, queue};
use core::marker::PhantomData;
use core::time::Duration;
use gpumem_pool::sys::fork;
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::{Block, KeptBy, MemoryKind, MemoryRange, SpillPin, StreamPoint, not_forked};
use ndarray::{Array, ArrayView, Dimension, Ix1};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Uploads that are queued together by [`Pack::upload`]; see [`Gpu::pack`].
#[must_use = "nothing is uploaded before `Pack::upload`"]
pub struct Pack<'a> {
    gpu: Gpu,
    parts: Vec<PackPart<'a>>,
    stock: Stock,
    uploaded: Arc<Mutex<PackUploaded>>,
}

/// An array of a [`Pack`], available once the pack is uploaded.
#[must_use = "the array is freed if this is dropped"]
pub struct PackedArray<T, D, K = DeviceLocal> {
    gpu: Gpu,
    layout: Layout<D>,
    slot: PackSlot,
    element: PhantomData<(T, K)>,
}

/// The arrays of a pack after the upload. Until then the pack has them.
#[derive(Default)]
struct PackUploaded {
    /// Behind the uploads.
    point: Option<StreamPoint>,
    memory: Vec<Option<PartMemory>>,
}

/// The memory of one array of a pack. The drop frees it.
struct PackSlot {
    uploaded: Arc<Mutex<PackUploaded>>,
    index: usize,
    is_taken: bool,
}

impl PackSlot {
    /// The memory, in use by `gpu`. `None` before the upload.
    fn take(&mut self, gpu: &Gpu) -> Option<ArrayStorage> {
        let (memory, point) = {
            let mut uploaded = self.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
            (uploaded.memory.get_mut(self.index)?.take()?, uploaded.point?)
        };
        self.is_taken = true;
        Some(match memory {
            PartMemory::Block(block) => ArrayStorage::written(block, gpu, gpu.stream(), point),
            PartMemory::Other { storage, .. } => *storage,
        })
    }
}

impl Drop for PackSlot {
    fn drop(&mut self) {
        if !self.is_taken && !fork::is_child() {
            let mut uploaded = self.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
            let memory = uploaded.memory.get_mut(self.index).and_then(Option::take);
            drop(uploaded);
            drop(memory);
        }
    }
}

struct PackPart<'a> {
    address: u64,
    /// `None` after an error, and once the array is uploaded.
    memory: Option<PartMemory>,
    bytes: Cow<'a, [u8]>,
}

enum PartMemory {
    /// Device memory that was allocated on the pack's stream. No other stream uses it before the upload, so its uses are not tracked.
    Block(Block),
    /// Memory of another kind, or memory that was allocated on another stream. It keeps its address, which the table has.
    Other { storage: Box<ArrayStorage>, _pinned: Option<SpillPin> },
}

impl PartMemory {
    fn is_block(&self) -> bool {
        matches!(self, Self::Block(_))
    }
}

/// Blocks for arrays of sizes that a pack has seen before, allocated several at a time.
#[derive(Default)]
struct Stock {
    /// The latest size, and its blocks. Most arrays have the same size as the previous one.
    latest: (u64, PackShelf),
    /// Those of the other sizes.
    others: HashMap<u64, PackShelf>,
}

/// The blocks of one size.
#[derive(Default)]
struct PackShelf {
    blocks: Vec<Block>,
    /// The number of blocks to allocate next.
    count: usize,
}

impl Stock {
    /// Allocates a block. When a size repeats, takes several blocks of it from free memory at once: 1, 2, 4 and so on.
    fn alloc(&mut self, gpu: &Gpu, size_bytes: u64) -> Result<Block, ArrayError> {
        if self.latest.0 != size_bytes {
            let shelf = self.others.remove(&size_bytes).unwrap_or_default();
            let (before_bytes, before) = core::mem::replace(&mut self.latest, (size_bytes, shelf));
            self.others.insert(before_bytes, before);
        }
        let shelf = &mut self.latest.1;
        if shelf.blocks.is_empty() && shelf.count > 0 {
            shelf.blocks = gpu.pool().alloc_ready(size_bytes, shelf.count, gpu.stream())?;
            shelf.count = shelf.blocks.len();
        }
        shelf.count += 1;
        match shelf.blocks.pop() {
            Some(block) => Ok(block),
            None => Ok(gpu.pool().alloc(size_bytes, gpu.stream())?),
        }
    }
}

impl Gpu {
    /// Starts uploads of many arrays. Nothing is queued before [`Pack::upload`]. Small arrays then share a few large transfers, instead of
    /// one transfer each.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let (weights, bias) = (array![[1.0_f32, 2.0], [3.0, 4.0]], array![0.5_f32, 0.25]);
    /// let mut pack = gpu.pack();
    /// let (w, b) = (pack.add(&gpu, &weights)?, pack.add(&gpu, &bias)?);
    /// pack.upload()?;
    /// let (w, b) = (w.into_array()?, b.into_array()?);
    /// assert_eq!((w.dot(&b)? + &b).to_vec()?, [1.5, 2.75]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pack<'a>(&self) -> Pack<'a> {
        Pack { gpu: self.clone(), parts: Vec::new(), stock: Stock::default(), uploaded: Arc::default() }
    }

    /// Uploads slices as an array each, in a few large transfers. Returns when the elements have been read.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let arrays = gpu.upload_all(&[[1, 2].as_slice(), &[3], &[]])?;
    /// assert_eq!(arrays[0].to_vec()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if an allocation or a driver call fails, or if the stream captures. On an error no array is left.
    pub fn upload_all<T: Element>(&self, slices: &[&[T]]) -> Result<Vec<GpuArray<T, Ix1>>, ArrayError> {
        let mut pack = self.pack();
        let mut packed = Vec::with_capacity(slices.len());
        for slice in slices {
            packed.push(pack.add(self, *slice)?);
        }
        pack.upload()?;
        let mut arrays = Vec::with_capacity(packed.len());
        for packed in packed {
            arrays.push(packed.into_array()?);
        }
        Ok(arrays)
    }
}

impl<'a> Pack<'a> {
    /// Allocates memory for an array, view or slice, and adds its elements to the uploads. The order of a contiguous array is kept; other
    /// arrays are gathered in row-major order.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if `place` is on another device than the pack, [`ArrayError::TooManyElements`] if the shape exceeds
    /// the address space, [`ArrayError::Pool`] if the allocation fails or the stream captures.
    pub fn add<T: Element, D: Dimension, K: Kind, P: Place<Kind = K> + ?Sized>(
        &mut self,
        place: &P,
        array: impl Into<ArrayView<'a, T, D>>,
    ) -> Result<PackedArray<T, D, K>, ArrayError> {
        let array = array.into();
        let dim = array.raw_dim();
        if let Some(elements) = array.to_slice() {
            return self.add_part(place, dim, ElementOrder::Row, || {
                Ok(Cow::Borrowed(bytemuck::cast_slice(elements)))
            });
        }
        if let Some(elements) = array.clone().reversed_axes().to_slice() {
            return self.add_part(place, dim, ElementOrder::Column, || {
                Ok(Cow::Borrowed(bytemuck::cast_slice(elements)))
            });
        }
        // Device memory is allocated first: a broadcast view can be larger than any memory.
        self.add_part(place, dim, ElementOrder::Row, || owned_bytes(&array))
    }

    /// Like [`Pack::add`], for an array that the pack keeps until it is uploaded.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::TooManyElements`], [`ArrayError::Pool`]; see [`Pack::add`].
    pub fn add_owned<T: Element, D: Dimension, K: Kind, P: Place<Kind = K> + ?Sized>(
        &mut self,
        place: &P,
        array: Array<T, D>,
    ) -> Result<PackedArray<T, D, K>, ArrayError> {
        match array.t().to_slice() {
            Some(elements) if !array.is_standard_layout() => {
                let bytes = || Ok(Cow::Owned(bytemuck::cast_slice(elements).to_vec()));
                self.add_part(place, array.raw_dim(), ElementOrder::Column, bytes)
            }
            _ => self.add_part(place, array.raw_dim(), ElementOrder::Row, || owned_bytes(&array.view())),
        }
    }

    fn add_part<T: Element, D: Dimension, K: Kind, P: Place<Kind = K> + ?Sized>(
        &mut self,
        place: &P,
        dim: D,
        order: ElementOrder,
        bytes: impl FnOnce() -> Result<Cow<'a, [u8]>, ArrayError>,
    ) -> Result<PackedArray<T, D, K>, ArrayError> {
        let gpu = place.gpu();
        self.gpu.check(gpu.device())?;
        gpu.check_runs(PACK)?;
        let layout = Layout::dense(dim, order, size_of::<T>())?;
        let (address, memory) = match K::MEMORY == MemoryKind::Device && gpu.is_same(&self.gpu) {
            true => {
                const { check_layout::<T>() };
                let block = self.stock.alloc(gpu, (layout.len() * size_of::<T>()) as u64)?;
                (block.address(), PartMemory::Block(block))
            }
            false => {
                let (storage, _) = GpuArray::<T, D, K>::unwritten(place, layout.clone())?.into_parts();
                let pinned = storage.pin(None, KeptBy::HostCopy)?;
                (storage.pinned_address(), PartMemory::Other { storage: Box::new(storage), _pinned: pinned })
            }
        };
        let slot =
            PackSlot { uploaded: Arc::clone(&self.uploaded), index: self.parts.len(), is_taken: false };
        let part = PackPart { address, memory: Some(memory), bytes: bytes()? };
        if self.parts.len() == self.parts.capacity() {
            // Unwritten pages are free, but moving a list costs all its pages again.
            self.parts.reserve(7 * self.parts.len());
        }
        self.parts.push(part);
        Ok(PackedArray { gpu: gpu.clone(), layout, slot, element: PhantomData })
    }

    /// The number of arrays.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns true if there are no arrays.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Queues all uploads on the stream of the pack's `Gpu`. Returns when the elements have been read. Afterwards
    /// [`PackedArray::into_array`] returns the arrays.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if an allocation or a driver call fails, or if the stream captures. On an error no array is left.
    pub fn upload(mut self) -> Result<(), ArrayError> {
        not_forked()?;
        self.gpu.check_runs(PACK)?;
        self.queue()?;
        let stream = self.gpu.stream();
        if stream.has_waiters() {
            // As for any write of the stream. The next call reports a failure.
            let _ = stream.mark();
        }
        let memory = self.parts.into_iter().map(|part| part.memory).collect();
        *self.uploaded.lock().unwrap_or_else(PoisonError::into_inner) =
            PackUploaded { point: Some(stream.point()), memory };
        Ok(())
    }

    fn queue(&mut self) -> Result<(), ArrayError> {
        let (gpu, staging) = (&self.gpu, self.gpu.staging());
        self.parts.iter().filter_map(PackPart::write).try_for_each(|write| write.order(gpu, PACK))?;
        let unpack = match gpu.library().function(Kernel::Unpack(Only::One)) {
            Ok(unpack) => Some(unpack),
            Err(ArrayError::NoSuchKernel { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut parts = self.parts.iter_mut().filter(|part| !part.bytes.is_empty());
        let (Some(unpack), Some(buffer_bytes)) = (unpack, staging.buffer_bytes()) else {
            return parts.try_for_each(|part| part.upload(gpu));
        };
        let packed_max = buffer_bytes / PARTS_MIN;
        let (mut small, mut large): (Vec<_>, Vec<_>) = parts.partition(|part| part.bytes.len() <= packed_max);
        large.iter_mut().try_for_each(|part| part.upload(gpu))?;
        upload_small(gpu, &staging, unpack, buffer_bytes, &mut small)
    }
}

/// The elements in row-major order. A view that repeats elements can have more of them than fit in memory.
fn owned_bytes<'a, T: Element, D: Dimension>(
    array: &ArrayView<'_, T, D>,
) -> Result<Cow<'a, [u8]>, ArrayError> {
    let size_bytes = array.len().saturating_mul(size_of::<T>());
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size_bytes).map_err(|_| ArrayError::HostFull { size_bytes })?;
    array.iter().for_each(|element| bytes.extend_from_slice(bytemuck::bytes_of(element)));
    Ok(Cow::Owned(bytes))
}

/// Uploads parts so small that a buffer takes several.
fn upload_small(
    gpu: &Gpu,
    staging: &Staging,
    unpack: &Function,
    buffer_bytes: usize,
    parts: &mut [&mut PackPart<'_>],
) -> Result<(), ArrayError> {
    let begin = Instant::now();
    // The time of arrays that are uploaded separately, which is counted there.
    let mut others = Duration::ZERO;
    let _burst = pageable::burst(staging, parts.iter().map(|part| part.bytes.len()).sum());
    let mut batches = PartGroups { parts, buffer_bytes }.peekable();
    let mut filling: VecDeque<PackFilling<'_, '_, '_>> = VecDeque::new();
    loop {
        while let Some(count) = batches.peek().map(|parts| parts.len()) {
            // A single array is uploaded faster by the driver.
            let answer = if count > 1 {
                staging.buffer(gpu.pools(), gpu.stream(), filling.is_empty())?
            } else {
                BufferAnswer::Direct
            };
            match answer {
                BufferAnswer::Buffer(buffer) => {
                    let parts = batches.next().unwrap_or_default();
                    filling.push_back(PackFilling::start(staging, buffer, parts));
                }
                BufferAnswer::Later => break,
                BufferAnswer::Direct => {
                    let begin = Instant::now();
                    let parts = batches.next().unwrap_or_default();
                    parts.iter_mut().try_for_each(|part| part.upload(gpu))?;
                    others += begin.elapsed();
                }
            }
        }
        let Some(PackFilling { copying, mut buffer, parts }) = filling.pop_front() else {
            gpu.transfer_counters().add_time(begin.elapsed().saturating_sub(others));
            return Ok(());
        };
        pageable::finish(gpu, copying);
        buffer.record_use(gpu.stream());
        gpu.transfer_counters().add_uploaded(parts.iter().map(|part| part.bytes.len()).sum());
        let (address, count) = (buffer.address(), parts.len() as u64);
        let shape = ([parts.len().min(BLOCKS_MAX) as u32, 1, 1], [THREADS, 1, 1], 0);
        let touched = parts.iter().filter_map(|part| part.touched());
        queue(gpu, touched.chain([Touched::Other(buffer.memory())]), |stream, _| {
            // The simulator does not compare its accesses with the arrays: thousands of them would be searched for each.
            // SAFETY: the parameters are those of the kernel. The buffer has a table of that many parts with their bytes; the arrays are
            // as large, alive, and the stream has been ordered to write them. The buffer is used again only when its event is
            // complete, and freed in stream order.
            unsafe { launch(unpack, stream, shape, &mut [parameter(&address), parameter(&count)]) }
        })?;
        if buffer.record_end(gpu.stream()).is_ok() {
            buffer.give_back();
        }
    }
}

/// The parts that share a buffer, one after the other.
struct PartGroups<'s, 'p, 'a> {
    parts: &'s mut [&'p mut PackPart<'a>],
    buffer_bytes: usize,
}

impl<'s, 'p, 'a> Iterator for PartGroups<'s, 'p, 'a> {
    type Item = &'s mut [&'p mut PackPart<'a>];

    fn next(&mut self) -> Option<Self::Item> {
        let mut needed_bytes = 0;
        let fits = |part: &&&mut PackPart<'a>| {
            needed_bytes += part.needed_bytes();
            needed_bytes <= self.buffer_bytes
        };
        let count = self.parts.iter().take_while(fits).count();
        let (first, rest) = core::mem::take(&mut self.parts).split_at_mut_checked(count.max(1))?;
        self.parts = rest;
        Some(first)
    }
}

/// A buffer that is being filled. The copy ends before the buffer.
struct PackFilling<'s, 'p, 'a> {
    copying: Copying<'s>,
    buffer: Lent<'s>,
    parts: &'s [&'p mut PackPart<'a>],
}

impl<'s, 'p, 'a> PackFilling<'s, 'p, 'a> {
    /// Writes the table, and begins to copy the parts behind it.
    fn start(staging: &'s Staging, buffer: Lent<'s>, parts: &'s [&'p mut PackPart<'a>]) -> Self {
        let to = buffer.host_ptr();
        let mut start = (parts.len() * ENTRY_BYTES).next_multiple_of(ALIGNMENT);
        let mut table = Vec::with_capacity(parts.len());
        let mut copies = Vec::with_capacity(parts.len());
        for part in parts {
            let (from, size_bytes) = (part.bytes.as_ptr(), part.bytes.len());
            table.push([part.address, start as u64, size_bytes as u64]);
            let to = to.wrapping_add(start);
            copies.push(HostCopy { to, from, size_bytes, stores: Stores::ThroughCache, conversion: None });
            start += size_bytes.next_multiple_of(ALIGNMENT);
        }
        buffer.note_host_access(Access::Write, start);
        // SAFETY: the table fits into the buffer, before the parts, and nothing else uses the buffer.
        unsafe { to.copy_from_nonoverlapping(table.as_ptr().cast(), parts.len() * ENTRY_BYTES) };
        // SAFETY: the parts fit into the buffer, side by side. Their bytes are borrowed, and this value is dropped before the borrow ends.
        let copying = unsafe { staging.workers().start(copies) };
        Self { copying, buffer, parts }
    }
}

impl PackPart<'_> {
    /// The memory that the upload writes. `None` once the array is uploaded.
    fn touched(&self) -> Option<Touched<'_>> {
        Some(match self.memory.as_ref()? {
            PartMemory::Block(block) => Touched::Other(MemoryRange::from(block)),
            PartMemory::Other { storage, .. } => Touched::Array(Use::whole(storage, Access::Write)),
        })
    }

    fn write(&self) -> Option<Use<'_>> {
        match &self.memory {
            Some(PartMemory::Other { storage, .. }) => Some(Use::whole(storage, Access::Write)),
            Some(PartMemory::Block(_)) | None => None,
        }
    }

    /// An upper bound of its bytes in a buffer.
    fn needed_bytes(&self) -> usize {
        self.bytes.len().next_multiple_of(ALIGNMENT) + ENTRY_BYTES.next_multiple_of(ALIGNMENT)
    }

    fn upload(&mut self, gpu: &Gpu) -> Result<(), ArrayError> {
        if let Some(PartMemory::Block(block)) = self.memory.take_if(|memory| memory.is_block()) {
            let storage = Box::new(ArrayStorage::new(block, gpu)?);
            self.memory = Some(PartMemory::Other { storage, _pinned: None });
        }
        let Some(write) = self.write() else { return Ok(()) };
        pageable::upload(gpu, write, write.storage().planned(), &self.bytes)
    }
}

impl<T: Element, D: Dimension, K: Kind> PackedArray<T, D, K> {
    /// The array.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NotUploaded`] before [`Pack::upload`], and after it has failed. The error contains this value, for after the upload.
    pub fn into_array(mut self) -> Result<GpuArray<T, D, K>, Rejected<Self>> {
        if let Err(forked) = not_forked() {
            return Err(Rejected::new(forked, self));
        }
        match self.slot.take(&self.gpu) {
            Some(storage) => Ok(GpuArray::over(&self.gpu, storage, self.layout)),
            None => {
                let shape = self.layout.shape().to_vec();
                Err(Rejected::new(ArrayError::NotUploaded { shape }, self))
            }
        }
    }
}

debug_fields!(Pack<'_>, it, len: it.len());

debug_fields!([T, D: Dimension, K] PackedArray<T, D, K>, it, shape: it.layout.shape());

/// The name of the operation in errors.
const PACK: &str = "an upload of packed arrays";
/// A part has an address, a start and a size in the table.
const ENTRY_BYTES: usize = 24;
/// In the buffer, for wide loads.
const ALIGNMENT: usize = 16;
/// Arrays larger than this fraction of a buffer are uploaded separately.
const PARTS_MIN: usize = 8;
const BLOCKS_MAX: usize = 4096;
const THREADS: u32 = 256;
