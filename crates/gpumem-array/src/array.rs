//! [`GpuArray`]: the owner of elements on a device.
//!
//! The elements are contiguous, in row-major order unless they came from a column-major host array. Dropping an array frees its
//! memory in the order of the streams that used it, without a wait.

mod cow;
pub(crate) mod foreign;
#[allow(unsafe_code)] // slices of memory that the host can access
mod host;
#[allow(unsafe_code)] // views of host memory
mod host_memory;
pub(crate) mod interop;
pub(crate) mod read;
#[allow(unsafe_code)] // `assume_init`
mod uninit;
pub(crate) mod view;
mod write;

pub use cow::GpuCow;
pub use foreign::{OnStream, ReadOn, WriteOn};
pub use host::HostIndex;
pub(crate) use read::readers;
pub use uninit::UninitArray;
pub use view::{AsView, AsViewMut, GpuView, GpuViewMut};
pub(crate) use write::{parts, writers};

#[cfg(doctest)]
#[doc = include_str!("../tests/must_not_compile.md")]
mod must_not_compile {}

use crate::array::view::describe;
use crate::element::kind::{self, DeviceLocal, Kind};
use crate::element::{Element, check_layout};
use crate::error::{ArrayError, Rejected};
use crate::gpu::{Gpu, Place};
use crate::layout::Layout;
use crate::storage::{Access, ArrayStorage, Use};
use core::fmt;
use core::marker::PhantomData;
use gpumem_pool::MemoryKind;
use ndarray::{Dimension, IntoDimension, Ix1, Ix2, IxDyn};

/// Elements of type `T` on a device, in the shape of an `ndarray` dimension `D` and in memory of the kind `K`.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, ndarray::array, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let a = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
/// let b = GpuArray::from_elem(&gpu, (2, 2), 10.0_f32)?;
/// let c = &a * &b - 1.0; // operators panic where `try_mul`, `try_sub` return an error
/// assert_eq!(c.to_array()?, array![[9.0, 19.0], [29.0, 39.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Kinds of memory
///
/// The first argument of a constructor decides the kind: a [`Gpu`] for device memory, [`Gpu::unified`] or [`Gpu::pinned`] for memory
/// that the host can access ([`UnifiedArray`], [`PinnedArray`]). Those have slices and indices: [`GpuArray::as_slice`],
/// [`GpuArray::as_array`], `array[index]`.
///
/// ```
/// use gpumem_array::{Gpu, GpuArray, UnifiedArray, ndarray::Ix1, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let mut x: UnifiedArray<f32, Ix1> = GpuArray::zeros(&gpu.unified(), 3)?;
/// x[1] = 5.0;
/// assert_eq!((&x + 1.0).to_vec()?, [1.0, 6.0, 1.0]); // the sum is in device memory
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The host cannot read device memory by mistake. Indexing a device array does not compile, and the compiler's message names the
/// alternatives.
///
/// ```compile_fail,E0277
/// # use gpumem_array::{GpuArray, ndarray::Ix1};
/// fn first(array: &GpuArray<f32, Ix1>) -> f32 {
///     array[0]
/// }
/// ```
pub struct GpuArray<T, D, K = DeviceLocal> {
    gpu: Gpu,
    storage: ArrayStorage,
    layout: Layout<D>,
    element: PhantomData<(T, K)>,
}

/// An array in unified memory; see [`Gpu::unified`].
pub type UnifiedArray<T, D> = GpuArray<T, D, kind::Unified>;

/// An array in pinned host memory; see [`Gpu::pinned`].
pub type PinnedArray<T, D> = GpuArray<T, D, kind::Pinned>;

/// A vector.
pub type GpuArray1<T, K = DeviceLocal> = GpuArray<T, Ix1, K>;

/// A matrix.
pub type GpuArray2<T, K = DeviceLocal> = GpuArray<T, Ix2, K>;

/// An array whose number of axes is known at run time.
pub type GpuArrayD<T, K = DeviceLocal> = GpuArray<T, IxDyn, K>;

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Changes the shape without a copy. The elements are taken in row-major order.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3, 4])?.into_shape((2, 2))?;
    /// assert_eq!(x.shape(), [2, 2]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the number of elements differs, [`ArrayError::TooManyElements`] if the shape exceeds the address space,
    /// [`ArrayError::NotContiguous`] if the array is in column-major order; [`GpuArray::as_standard_layout`] copies it to row-major order.
    /// The error contains the array.
    pub fn into_shape<S: IntoDimension>(self, shape: S) -> Result<GpuArray<T, S::Dim, K>, Rejected<Self>> {
        match self.layout.reshaped(shape.into_dimension(), size_of::<T>()) {
            Ok(layout) => Ok(self.with_layout(layout)),
            Err(error) => Err(Rejected::new(error, self)),
        }
    }

    /// Converts to a number of axes that is known at run time, without a copy.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?.into_dyn();
    /// assert_eq!((x.ndim(), x.len()), (2, 6));
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn into_dyn(self) -> GpuArray<T, IxDyn, K> {
        let layout = self.layout.clone().into_dyn();
        self.with_layout(layout)
    }

    /// Converts to another dimension type with as many axes, without a copy: from [`IxDyn`](type@ndarray::IxDyn) to `Ix2`, for example.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, GpuArray2, ndarray::{Ix1, Ix2}};
    ///
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?.into_dyn();
    /// let x = x.into_dimensionality::<Ix1>().unwrap_err().into_value();
    /// let x: GpuArray2<f32> = x.into_dimensionality()?;
    /// assert_eq!(x.ncols(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the numbers of axes differ. The error contains the array.
    pub fn into_dimensionality<E: Dimension>(self) -> Result<GpuArray<T, E, K>, Rejected<Self>> {
        match self.layout.to_dimensionality() {
            Ok(layout) => Ok(self.with_layout(layout)),
            Err(error) => Err(Rejected::new(error, self)),
        }
    }

    /// Moves the array to the stream of another `Gpu` on the same device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let other = gpu.fork()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?.into_gpu(&other)?;
    /// assert_eq!(x.gpu(), &other); // operations on `x` are queued there from now on
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if `gpu` is on another device. The error contains the array; [`GpuArray::copy_to`] copies it there.
    pub fn into_gpu(mut self, gpu: &Gpu) -> Result<Self, Rejected<Self>> {
        match gpu.check(self.storage.device()) {
            Ok(()) => {
                self.gpu = gpu.clone();
                Ok(self)
            }
            Err(error) => Err(Rejected::new(error, self)),
        }
    }

    /// A view of all elements.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let view = x.view();
    /// assert_eq!(view.sum()?.into_scalar()?, 6);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        GpuView::new(&self.gpu, &self.storage, self.layout.clone())
    }

    /// A mutable view of all elements.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// x.view_mut().fill(7)?;
    /// assert_eq!(x.to_vec()?, [7, 7, 7]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        GpuViewMut::new(&self.gpu, &self.storage, self.layout.clone())
    }

    /// The `Gpu` that operations on this array are queued on, and that their results belong to.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Uninitialised memory. The caller writes all elements before the array leaves this crate.
    pub(crate) fn unwritten<P: Place<Kind = K> + ?Sized>(
        place: &P,
        layout: Layout<D>,
    ) -> Result<Self, ArrayError> {
        let gpu = place.gpu();
        // `Layout` has checked that the product fits.
        let size_bytes = (layout.len() * size_of::<T>()) as u64;
        let block = gpu.pools().of(K::MEMORY)?.alloc(size_bytes, gpu.stream());
        let block = block.map_err(|error| gpu.with_kernel_name(error.into()))?;
        Ok(Self::over(gpu, ArrayStorage::new(block, gpu)?, layout))
    }

    /// The array with the kind [`DeviceLocal`], if that is its kind.
    #[allow(clippy::result_large_err, reason = "the error is the array itself")]
    pub(crate) fn into_device(self) -> Result<GpuArray<T, D>, Self> {
        match K::MEMORY {
            MemoryKind::Device => {
                let Self { gpu, storage, layout, .. } = self;
                Ok(GpuArray { gpu, storage, layout, element: PhantomData })
            }
            _ => Err(self),
        }
    }

    /// The elements of another layout within the storage.
    fn with_layout<E>(self, layout: Layout<E>) -> GpuArray<T, E, K> {
        GpuArray { gpu: self.gpu, storage: self.storage, layout, element: PhantomData }
    }

    /// An array over memory that is large enough for the layout, and is written before the array leaves this crate.
    pub(crate) fn over(gpu: &Gpu, storage: ArrayStorage, layout: Layout<D>) -> Self {
        const { check_layout::<T>() };
        Self { gpu: gpu.clone(), storage, layout, element: PhantomData }
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Another part of the same memory. New elements are written before the array leaves this crate.
    pub(crate) fn set_layout(&mut self, layout: Layout<D>) {
        self.layout = layout;
    }

    pub(crate) fn storage(&self) -> &ArrayStorage {
        &self.storage
    }

    pub(crate) fn storage_mut(&mut self) -> &mut ArrayStorage {
        &mut self.storage
    }

    /// Work that writes all elements.
    #[inline]
    pub(crate) fn writes(&self) -> Use<'_> {
        self.storage.note_for_captures::<T>(self.layout.shape());
        Use::whole(&self.storage, Access::Write)
    }

    pub(crate) fn into_parts(self) -> (ArrayStorage, Layout<D>) {
        (self.storage, self.layout)
    }
}

impl<T: Element, D: Dimension, K: Kind> AsView for GpuArray<T, D, K> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.view()
    }
}

impl<T: Element, D: Dimension, K: Kind> AsViewMut for GpuArray<T, D, K> {
    fn as_view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        self.view_mut()
    }
}

impl<T: Element, D: Dimension, K: Kind> fmt::Debug for GpuArray<T, D, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuArray", K::NAME, &self.view())
    }
}
