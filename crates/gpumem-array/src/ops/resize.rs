//! Vectors that grow and shrink: `resize`, `append`, `extend_from_slice`, with spare capacity as in `Vec`.
//!
//! The capacity grows as in CUDA.jl: it doubles up to 100 MiB, then grows by 32 MiB, and memory is returned below a quarter. An array of
//! [`GpuArray::growable`] has a [`GrowableBlock`](gpumem_pool::GrowableBlock) instead: it changes in place, without copies.

use crate::array::foreign::check_runs;
use crate::array::{AsView, GpuArray};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::layout::Layout;
use crate::storage::ArrayStorage;
use ndarray::{Ix1, s};

impl<T: Element> GpuArray<T, Ix1> {
    /// Creates an empty vector whose memory grows in place, up to `max_len` elements: [`GpuArray::resize`], [`GpuArray::append`] and
    /// [`GpuArray::extend_from_slice`] copy nothing and keep [`GpuArray::address`]. A graph that was captured with the array keeps using
    /// the elements of the capture, and refuses the array while it has fewer. This call reserves only addresses. Memory is added in
    /// units of 2 MiB as the array grows, and released when less than a quarter is in use.
    ///
    /// The memory belongs to one device: operations of another device return [`ArrayError::NoPeerAccess`], and copies to it go through the
    /// host.
    ///
    /// ```
    /// use gpumem_array::{Gpu, GpuArray, pool::{BackendKind, Device, Pool}};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let gpu = Gpu::new(&Pool::builder(&device).backend(BackendKind::Caching).build()?)?;
    /// let mut log = GpuArray::growable(&gpu, 100 << 20)?; // up to 400 MiB
    /// log.extend_from_slice(&[1.0_f32, 2.0])?;
    /// let address = log.address();
    /// log.resize(3 << 20, 0.5)?;
    /// assert_eq!((log.address(), log.len()), (address, 3 << 20));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::TooManyElements`] if `max_len` exceeds the address space.
    /// - [`ArrayError::Pool`] unless the pool has the backend `caching` over virtual memory of the device, if `max_len` exceeds the
    ///   device's memory, or if a driver call fails.
    /// - [`ArrayError::Pool`] or [`ArrayError::Graph`] in a capture.
    pub fn growable(gpu: &Gpu, max_len: usize) -> Result<Self, ArrayError> {
        check_runs(gpu, "a growable array")?;
        // Checks that the product fits.
        let max_bytes = Layout::row_major::<T>(Ix1(max_len))?.len() * size_of::<T>();
        let block = gpu.pool().growable(max_bytes as u64, gpu.stream())?;
        Ok(Self::over(gpu, ArrayStorage::of_growable(block), Layout::row_major::<T>(Ix1(0))?))
    }
}

impl<T: Element, K: Kind> GpuArray<T, Ix1, K> {
    /// The number of elements that the memory has room for. For [`GpuArray::growable`] it grows and shrinks.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// x.resize(4, 0)?;
    /// assert_eq!((x.len(), x.capacity()), (4, 6)); // spare room for two more
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.storage().size_bytes()).unwrap_or(0) / size_of::<T>()
    }

    /// Changes the number of elements. New elements are set to `value`.
    ///
    /// Within the capacity the elements stay where they are. Beyond it, they are copied on the device to a larger allocation with spare
    /// capacity. Below a quarter of it, they are copied to an allocation of their size. A copy changes [`GpuArray::address`], and a graph
    /// that was captured with the array refuses it afterwards. An array of [`GpuArray::growable`] is never copied.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// x.resize(5, 9)?;
    /// x.extend_from_slice(&[7])?;
    /// assert_eq!(x.to_vec()?, [1, 2, 3, 9, 9, 7]);
    /// assert_eq!(x.capacity(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::TooManyElements`] if the elements exceed the address space.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails, or beyond the maximum of [`GpuArray::growable`].
    /// - [`ArrayError::Pool`] or [`ArrayError::Graph`] in a capture, unless the array was made in it.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    ///
    /// The array is unchanged after an error.
    pub fn resize(&mut self, len: usize, value: T) -> Result<(), ArrayError> {
        self.change_len(len, |array, old| array.slice_mut(s![old..])?.fill(value))
    }

    /// Appends elements of another array or view, on the device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1, 2])?;
    /// let y = GpuArray::from_slice(&gpu, &[3, 4])?;
    /// x.append(&y)?;
    /// assert_eq!(x.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::Pool`] and [`ArrayError::NoSuchKernel`]; see [`GpuArray::resize`].
    /// [`ArrayError::WrongDevice`] and [`ArrayError::NoPeerAccess`] for an array of another device; see [`GpuArray::assign`].
    pub fn append<A: AsView<Elem = T, Dim = Ix1>>(&mut self, other: &A) -> Result<(), ArrayError> {
        let other = other.as_view();
        self.change_len(self.len().saturating_add(other.len()), |array, old| {
            array.slice_mut(s![old..])?.assign(&other)
        })
    }

    /// Appends a slice. Returns when the elements have been read.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1, 2])?;
    /// x.extend_from_slice(&[3, 4])?;
    /// assert_eq!(x.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`]; [`ArrayError::Pool`] if the allocation or a driver call fails, or if the stream captures; see
    /// [`GpuArray::resize`].
    pub fn extend_from_slice(&mut self, elements: &[T]) -> Result<(), ArrayError> {
        self.change_len(self.len().saturating_add(elements.len()), |array, old| {
            array.slice_mut(s![old..])?.copy_from_slice(elements)
        })
    }

    /// Changes the length; `write` writes the elements from the old length on.
    fn change_len(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut Self, usize) -> Result<(), ArrayError>,
    ) -> Result<(), ArrayError> {
        let (old, capacity) = (self.len(), self.capacity());
        let layout = Layout::row_major::<T>(Ix1(len))?;
        // A graph would write the new elements only at each launch, but the array has them from now on.
        if self.storage().capture_id() == 0 {
            check_runs(self.gpu(), "changing the length of an array")?;
        }
        if self.storage().is_growable() {
            if !(capacity / 4..=capacity).contains(&len) {
                // `Layout` has checked that the product fits.
                self.storage_mut().resize_in_place((len * size_of::<T>()) as u64)?;
            }
        } else if len > capacity {
            // Spare capacity is optional: without memory for it, the elements alone may fit.
            let moved = self.moved(grown::<T>(capacity).max(len), old).or_else(|_| self.moved(len, old))?;
            *self = moved;
        } else if len < capacity / 4 {
            *self = self.moved(len, len.min(old))?;
        }
        self.set_layout(layout);
        if len <= old {
            return Ok(());
        }
        write(self, old).inspect_err(|_| {
            if let Ok(layout) = Layout::row_major::<T>(Ix1(old)) {
                self.set_layout(layout);
            }
        })
    }

    /// The first `kept` elements, in memory with room for `capacity`.
    fn moved(&self, capacity: usize, kept: usize) -> Result<Self, ArrayError> {
        let mut moved = Self::unwritten(&self.gpu().memory::<K>(), Layout::row_major::<T>(Ix1(capacity))?)?;
        moved.set_layout(Layout::row_major::<T>(Ix1(kept))?);
        moved.assign(&self.slice(s![..kept])?)?;
        Ok(moved)
    }
}

/// The capacity after `capacity`, in elements.
fn grown<T>(capacity: usize) -> usize {
    let bytes = capacity * size_of::<T>();
    if bytes <= DOUBLED_MAX { capacity * 2 } else { capacity + INCREMENT / size_of::<T>() }
}

const DOUBLED_MAX: usize = 100 << 20;
const INCREMENT: usize = 32 << 20;
