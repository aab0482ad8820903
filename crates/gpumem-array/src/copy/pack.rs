//! [`Pack`]: uploads of many arrays that travel together.
//!
//! A copy of a few KiB costs the same call of the driver as one of a few MiB. So small arrays share a buffer of the staging ring: threads
//! gather them in it behind a table, and one kernel reads the buffer over the link and writes all arrays of the table. Large arrays take
//! the usual way.

use super::pageable;
use crate::array::GpuArray;
use crate::element::Element;
use crate::error::{ArrayError, Rejected};
use crate::gpu::staging::{Answer, Copying, HostCopy, Lent, Staging, Stores};
use crate::gpu::{Gpu, Place};
use crate::kernel::Function;
use crate::kernel::library::{launch, parameter};
use crate::kind::{Device, Kind};
use crate::layout::{Layout, Order};
use crate::storage::{Access, Storage, Use, queue};
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use ndarray::{Array, ArrayBase, ArrayView, Data, Dimension, Ix1};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Uploads that are queued together by [`Pack::upload`]; see [`Gpu::pack`].
#[must_use = "nothing is uploaded before `Pack::upload`"]
pub struct Pack<'a> {
    gpu: Gpu,
    parts: Vec<Part<'a>>,
}

/// An array of a [`Pack`], once that is uploaded.
#[must_use = "the array is freed if this is dropped"]
pub struct PackedArray<T, D, K = Device> {
    gpu: Gpu,
    layout: Layout<D>,
    slot: Slot,
    element: PhantomData<(T, K)>,
}

/// The memory of an array, once it is uploaded.
type Slot = Arc<Mutex<Option<Storage>>>;

/// An array without its type.
struct Part<'a> {
    storage: Storage,
    bytes: Cow<'a, [u8]>,
    slot: Slot,
}

impl Gpu {
    /// Begins uploads of many arrays. Nothing is queued before [`Pack::upload`]. Small arrays then share a few large transfers, instead
    /// of one transfer each.
    ///
    /// ```
    /// use gpumem_array::{Gpu, ndarray::array, pool::{Device, Pool}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
    /// let (weights, bias) = (array![[1.0_f32, 2.0], [3.0, 4.0]], array![0.5_f32, 0.25]);
    /// let mut pack = gpu.pack();
    /// let (w, b) = (pack.add(&gpu, &weights)?, pack.add(&gpu, &bias)?);
    /// pack.upload()?;
    /// let (w, b) = (w.into_array()?, b.into_array()?);
    /// assert_eq!((w.dot(&b)? + &b).to_vec()?, [1.5, 2.75]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pack<'a>(&self) -> Pack<'a> {
        Pack { gpu: self.clone(), parts: Vec::new() }
    }

    /// Uploads slices as an array each, in a few large transfers. Returns when the elements have been read.
    ///
    /// ```
    /// use gpumem_array::{Gpu, pool::{Device, Pool}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
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
        let packed: Vec<_> =
            slices.iter().map(|slice| pack.add_slice(self, slice)).collect::<Result<_, _>>()?;
        pack.upload()?;
        packed.into_iter().map(|packed| Ok(packed.into_array()?)).collect()
    }
}

impl<'a> Pack<'a> {
    /// Allocates memory for an array, and adds its elements to the uploads. The order of a contiguous array is kept; other arrays are
    /// gathered in row-major order.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if `place` is on another device than the pack, [`ArrayError::TooManyElements`] if the shape exceeds
    /// the address space, [`ArrayError::Pool`] if the allocation fails or the stream captures.
    pub fn add<T, D, K, P, S>(
        &mut self,
        place: &P,
        array: &'a ArrayBase<S, D>,
    ) -> Result<PackedArray<T, D, K>, ArrayError>
    where
        T: Element,
        D: Dimension,
        K: Kind,
        P: Place<Kind = K> + ?Sized,
        S: Data<Elem = T>,
    {
        self.add_view(place, array.view())
    }

    /// Like [`Pack::add`], for a view.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::TooManyElements`], [`ArrayError::Pool`]; see [`Pack::add`].
    pub fn add_view<T: Element, D: Dimension, K: Kind, P: Place<Kind = K> + ?Sized>(
        &mut self,
        place: &P,
        array: ArrayView<'a, T, D>,
    ) -> Result<PackedArray<T, D, K>, ArrayError> {
        let dim = array.raw_dim();
        if let Some(elements) = array.to_slice() {
            return self
                .add_part(place, dim, Order::Row, || Ok(Cow::Borrowed(bytemuck::cast_slice(elements))));
        }
        if let Some(elements) = array.clone().reversed_axes().to_slice() {
            return self
                .add_part(place, dim, Order::Column, || Ok(Cow::Borrowed(bytemuck::cast_slice(elements))));
        }
        // The device's memory first: a broadcast view can be larger than any memory.
        self.add_part(place, dim, Order::Row, || owned_bytes(&array))
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
                self.add_part(place, array.raw_dim(), Order::Column, bytes)
            }
            _ => self.add_part(place, array.raw_dim(), Order::Row, || owned_bytes(&array.view())),
        }
    }

    /// Allocates memory for a slice, and adds its elements to the uploads.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::Pool`]; see [`Pack::add`].
    pub fn add_slice<T: Element, K: Kind, P: Place<Kind = K> + ?Sized>(
        &mut self,
        place: &P,
        elements: &'a [T],
    ) -> Result<PackedArray<T, Ix1, K>, ArrayError> {
        let dim = ndarray::Dim(elements.len());
        self.add_part(place, dim, Order::Row, || Ok(Cow::Borrowed(bytemuck::cast_slice(elements))))
    }

    fn add_part<T: Element, D: Dimension, K: Kind, P: Place<Kind = K> + ?Sized>(
        &mut self,
        place: &P,
        dim: D,
        order: Order,
        bytes: impl FnOnce() -> Result<Cow<'a, [u8]>, ArrayError>,
    ) -> Result<PackedArray<T, D, K>, ArrayError> {
        let gpu = place.gpu();
        self.gpu.check(gpu.device())?;
        gpu.check_runs(PACK)?;
        let array = GpuArray::<T, D, K>::unwritten(place, Layout::dense(dim, order, size_of::<T>())?)?;
        let (storage, layout) = array.into_parts();
        let slot = Slot::default();
        self.parts.push(Part { storage, bytes: bytes()?, slot: Arc::clone(&slot) });
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

    /// Queues all uploads on the stream of the pack's `Gpu`. Returns when the elements have been read. [`PackedArray::into_array`] then
    /// returns the arrays.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if an allocation or a driver call fails, or if the stream captures. On an error no array is left.
    pub fn upload(self) -> Result<(), ArrayError> {
        self.gpu.check_runs(PACK)?;
        self.queue()?;
        for Part { storage, slot, .. } in self.parts {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(storage);
        }
        Ok(())
    }

    fn queue(&self) -> Result<(), ArrayError> {
        let (gpu, staging) = (&self.gpu, self.gpu.staging());
        self.parts.iter().try_for_each(|part| part.write().order(gpu, PACK))?;
        let unpack = match gpu.library().unpack() {
            Ok(unpack) => Some(unpack),
            Err(ArrayError::NoSuchKernel { .. }) => None,
            Err(error) => return Err(error),
        };
        let parts: Vec<&Part<'a>> = self.parts.iter().filter(|part| !part.bytes.is_empty()).collect();
        let (Some(unpack), Some(buffer_bytes)) = (unpack, staging.buffer_bytes()) else {
            return parts.iter().try_for_each(|part| part.upload(gpu));
        };
        let packed_max = buffer_bytes / PARTS_MIN;
        let (small, large): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.bytes.len() <= packed_max);
        large.iter().try_for_each(|part| part.upload(gpu))?;
        upload_small(gpu, &staging, unpack, buffer_bytes, &small)
    }
}

/// The elements in row-major order. A view can have more of them than memory: it can repeat them.
fn owned_bytes<'a, T: Element, D: Dimension>(
    array: &ArrayView<'_, T, D>,
) -> Result<Cow<'a, [u8]>, ArrayError> {
    let size_bytes = array.len().saturating_mul(size_of::<T>());
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size_bytes).map_err(|_| ArrayError::HostFull { size_bytes })?;
    array.iter().for_each(|element| bytes.extend_from_slice(bytemuck::bytes_of(element)));
    Ok(Cow::Owned(bytes))
}

/// Uploads parts of which a buffer takes several.
fn upload_small(
    gpu: &Gpu,
    staging: &Staging,
    unpack: &Function,
    buffer_bytes: usize,
    parts: &[&Part<'_>],
) -> Result<(), ArrayError> {
    let begin = Instant::now();
    // The time of arrays that are uploaded by themselves, and counted there.
    let mut others = Duration::ZERO;
    let mut batches = Batches { parts, buffer_bytes }.peekable();
    let mut filling: VecDeque<Filling<'_>> = VecDeque::new();
    let _burst = pageable::burst(staging, parts.iter().map(|part| part.bytes.len()).sum());
    loop {
        while let Some(&parts) = batches.peek() {
            // A single array is uploaded faster by the driver.
            let answer =
                if parts.len() > 1 { staging.buffer(gpu, filling.is_empty())? } else { Answer::Direct };
            match answer {
                Answer::Buffer(buffer) => filling.push_back(Filling::start(staging, buffer, parts)),
                Answer::Later => break,
                Answer::Direct => {
                    let begin = Instant::now();
                    parts.iter().try_for_each(|part| part.upload(gpu))?;
                    others += begin.elapsed();
                }
            }
            batches.next();
        }
        let Some(Filling { copying, mut buffer, parts }) = filling.pop_front() else {
            gpu.transfer_counters().add_time(begin.elapsed().saturating_sub(others));
            return Ok(());
        };
        pageable::finish(gpu, copying);
        buffer.record_use(gpu.stream());
        gpu.transfer_counters().add_uploaded(parts.iter().map(|part| part.bytes.len()).sum());
        let (address, count) = (buffer.address(), parts.len() as u64);
        let shape = ([parts.len().min(BLOCKS_MAX) as u32, 1, 1], [THREADS, 1, 1], 0);
        queue(gpu, parts.iter().map(|part| part.write()), |stream| {
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
struct Batches<'p, 'a> {
    parts: &'p [&'p Part<'a>],
    buffer_bytes: usize,
}

impl<'p, 'a> Iterator for Batches<'p, 'a> {
    type Item = &'p [&'p Part<'a>];

    fn next(&mut self) -> Option<Self::Item> {
        let mut needed_bytes = 0;
        let fits = |part: &&&Part<'a>| {
            needed_bytes += part.needed_bytes();
            needed_bytes <= self.buffer_bytes
        };
        let count = self.parts.iter().take_while(fits).count();
        let (first, rest) = self.parts.split_at_checked(count.max(1))?;
        self.parts = rest;
        Some(first)
    }
}

/// A buffer that is being filled. The copy ends before the buffer.
struct Filling<'p> {
    copying: Copying<'p>,
    buffer: Lent<'p>,
    parts: &'p [&'p Part<'p>],
}

impl<'p> Filling<'p> {
    /// Writes the table, and begins to copy the parts behind it.
    fn start(staging: &'p Staging, buffer: Lent<'p>, parts: &'p [&'p Part<'p>]) -> Self {
        let to = buffer.host_ptr();
        let mut start = (parts.len() * ENTRY_BYTES).next_multiple_of(ALIGNMENT);
        let mut table = Vec::with_capacity(parts.len());
        let mut copies = Vec::with_capacity(parts.len());
        for part in parts {
            let (from, size_bytes) = (part.bytes.as_ptr(), part.bytes.len());
            table.push([part.storage.address(), start as u64, size_bytes as u64]);
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

impl Part<'_> {
    fn write(&self) -> Use<'_> {
        Use::whole(&self.storage, Access::Write)
    }

    /// An upper bound of its bytes in a buffer.
    fn needed_bytes(&self) -> usize {
        self.bytes.len().next_multiple_of(ALIGNMENT) + ENTRY_BYTES.next_multiple_of(ALIGNMENT)
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), ArrayError> {
        pageable::upload(gpu, self.write(), self.storage.address(), &self.bytes)
    }
}

impl<T: Element, D: Dimension, K: Kind> PackedArray<T, D, K> {
    /// The array.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NotUploaded`] before [`Pack::upload`], and after it has failed. The error contains this value, for after the upload.
    pub fn into_array(self) -> Result<GpuArray<T, D, K>, Rejected<Self>> {
        let storage = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        match storage {
            Some(storage) => Ok(GpuArray::over(&self.gpu, storage, self.layout)),
            None => {
                let shape = self.layout.shape().to_vec();
                Err(Rejected::new(ArrayError::NotUploaded { shape }, self))
            }
        }
    }
}

impl fmt::Debug for Pack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pack").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T, D: Dimension, K> fmt::Debug for PackedArray<T, D, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedArray").field("shape", &self.layout.shape()).finish_non_exhaustive()
    }
}

/// The operation, as errors name it.
const PACK: &str = "an upload of packed arrays";
/// A part has an address, a start and a size in the table.
const ENTRY_BYTES: usize = 24;
/// In the buffer, for wide loads.
const ALIGNMENT: usize = 16;
/// Larger arrays than this share of a buffer are uploaded by themselves.
const PARTS_MIN: usize = 8;
const BLOCKS_MAX: usize = 4096;
const THREADS: u32 = 256;
