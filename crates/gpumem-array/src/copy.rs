//! Copies between host and device, and between arrays on a device.
//!
//! A [`LayoutPlan`] finds the fewest driver calls: one for contiguous elements, one for rows of at least 64 bytes at a pitch, and otherwise one
//! kernel, which also moves rows within the memory of a device. The kernel cannot access host memory, so a copy between the host and other
//! layouts goes through contiguous device memory.
//!
//! Large copies from and to host memory go through pinned buffers ([`pageable`]). Others are queued in [`Stream::run_borrowed`], which
//! returns when the copy is complete. In both cases the device does not access the caller's memory after the call returns.
//!
//! [`Stream::run_borrowed`]: gpumem_pool::Stream::run_borrowed

mod join;
mod pack;
mod pageable;
mod pitched;
mod print;
mod staged;
pub(crate) mod strided;
mod transfer;

pub use join::{concatenate, stack};
pub use pack::{Pack, PackedArray};
pub use transfer::{Download, DownloadTarget, Upload, UploadSource, Uploaded};

use crate::array::{AsView, GpuArray, GpuCow, GpuView, GpuViewMut, UninitArray, readers, writers};
use crate::element::kind::Kind;
use crate::element::{Cast, Element, first_invalid};
use crate::error::{ArrayError, or_panic};
use crate::gpu::{Copier, Gpu, Place};
use crate::layout::plan::{Form, LayoutPlan, Pitched};
use crate::layout::{ElementOrder, Layout, same_shape};
use crate::storage::{ArrayStorage, queue_copy, run_borrowed};
use bytemuck::AnyBitPattern;
use gpumem_pool::sys::types::CUdeviceptr;
use ndarray::{Array, ArrayBase, Data, Dimension, Ix0, Ix1, ShapeBuilder};
use pitched::CopySide;

readers! {
    Element;

    /// Downloads the elements in row-major order. Waits for the work that the elements depend on.
    ///
    /// Contiguous elements and rows of at least 64 bytes at a pitch take one copy. Other layouts are gathered on the device first.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.t().to_vec()?, [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the view is used through a `Gpu` of another driver.
    /// - [`ArrayError::InvalidElement`] if the device wrote bytes that are not a valid `T`.
    /// - [`ArrayError::HostFull`] if the host is out of memory.
    /// - [`ArrayError::Pool`] if the stream captures, or if the allocation, a driver call or earlier work failed.
    /// - [`ArrayError::NoSuchKernel`] if the elements are gathered on the simulator without the feature `sim`.
    pub fn to_vec(view) -> Result<Vec<T>, ArrayError> {
        match view.layout().order() {
            Some(ElementOrder::Column) if !view.layout().is_dense(ElementOrder::Row) => {
                Ok(view.to_array()?.iter().copied().collect())
            }
            _ => download(view),
        }
    }

    /// Downloads the elements in their shape. Waits for the work that the elements depend on.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.t().to_array()?, array![[1, 4], [2, 5], [3, 6]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::InvalidElement`], [`ArrayError::HostFull`], [`ArrayError::Pool`],
    /// [`ArrayError::NoSuchKernel`]; see [`GpuView::to_vec`].
    pub fn to_array(view) -> Result<Array<T, D>, ArrayError> {
        let order = view.layout().order().unwrap_or(ElementOrder::Row);
        let elements = download(view)?;
        let shape = view.raw_dim().set_f(order == ElementOrder::Column);
        Array::from_shape_vec(shape, elements)
            .map_err(|_| ArrayError::TooManyElements { shape: view.shape().to_vec() })
    }

    /// Downloads the elements into a slice: in column-major order if they are contiguous only in that order, otherwise in row-major order.
    /// Waits for the work that the elements depend on. Reusing host memory is faster than [`GpuView::to_vec`], whose new memory the system
    /// must provide first.
    ///
    /// Requires `T: AnyBitPattern`, such as numbers. [`GpuView::to_vec`] downloads and checks other element types.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut host = [0.0_f32; 3];
    /// GpuArray::from_elem(&gpu, 3, 1.5_f32)?.copy_to_slice(&mut host)?;
    /// assert_eq!(host, [1.5; 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the lengths differ, [`ArrayError::WrongDevice`] if the view is used through a `Gpu` of another driver,
    /// [`ArrayError::Pool`] if the stream captures, or if the allocation, a driver call or earlier work failed;
    /// [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`, if the elements are gathered. After an error of the pool
    /// the slice may have some of the elements.
    pub fn copy_to_slice(view, elements: &mut [T]) -> Result<(), ArrayError>
    where (T: AnyBitPattern) {
        if elements.len() != view.len() {
            return Err(ArrayError::Shape {
                operation: "download",
                left: view.shape().to_vec(),
                right: vec![elements.len()],
                expected: "the slice must have as many elements as the array",
            });
        }
        // SAFETY: the slice has as many elements, and is borrowed exclusively. Whatever the device wrote is a valid value.
        unsafe { download_to(view, elements.as_mut_ptr()) }
    }

    /// Copies the elements on the device, to contiguous device memory: in their own order if they are contiguous, otherwise in
    /// row-major order.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{array, s}};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// let odd = x.slice(s![.., ..;-2])?.to_owned()?;
    /// assert_eq!(odd.to_array()?, array![[3, 1], [6, 4]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the view is used through a `Gpu` of another driver.
    /// - [`ArrayError::TooManyElements`] if the view repeats elements, and all of them exceed the address space.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn to_owned(view) -> Result<GpuArray<T, D>, ArrayError> {
        view.to_order(view.layout().order().unwrap_or(ElementOrder::Row))
    }

    /// Copies the elements to another place: to memory of another kind, or to another device. The result is contiguous: in the order of
    /// the view if that is contiguous, otherwise in row-major order.
    ///
    /// The copy is direct if a link connects the devices. Otherwise it goes through pinned memory in chunks, without waits on the host.
    ///
    /// ```
    /// use gpumem_array::{Gpu, GpuArray, pool::{Device, Pool}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().devices(2))?;
    /// let gpu = |ordinal| Gpu::new(&Pool::new(&Device::new(&driver, ordinal)?)?);
    /// let (first, second) = (gpu(0)?, gpu(1)?);
    /// let x = GpuArray::from_slice(&first, &[1.0_f32, 2.0])?;
    /// let y = x.copy_to(&second)?; // on the second device
    /// assert_eq!(y.sum()?.into_scalar()?, 3.0);
    /// assert_eq!(x.copy_to(&first.unified())?[1], 2.0); // in memory that the host can access
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::WrongDevice`], [`ArrayError::NoPeerAccess`], [`ArrayError::Pool`],
    /// [`ArrayError::NoSuchKernel`]; see [`GpuView::to_owned`] and [`GpuViewMut::assign`].
    pub fn copy_to[P: Place + ?Sized](view, place: &P) -> Result<GpuArray<T, D, P::Kind>, ArrayError> {
        let order = view.layout().order().unwrap_or(ElementOrder::Row);
        UninitArray::with_order(place, view.raw_dim(), order)?.assign(view)
    }

    /// The elements in row-major order: the view itself if they are contiguous in that order, otherwise a copy on the device.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::array};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert!(x.t().reshape(6).is_err());
    /// assert_eq!(x.t().as_standard_layout()?.reshape(6)?.to_vec()?, [1, 4, 2, 5, 3, 6]);
    /// assert!(x.as_standard_layout()?.is_view()); // no copy
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see
    /// [`GpuViewMut::assign`].
    pub fn as_standard_layout('v view) -> Result<GpuCow<'v, T, D>, ArrayError> {
        view.dense(ElementOrder::Row)
    }

}

impl<'a, T: Element, D: Dimension> GpuView<'a, T, D> {
    /// Like [`GpuView::copy_to`], through the host.
    fn copied_to(&self, receiver: &Gpu) -> Result<GpuArray<T, D>, ArrayError> {
        let order = self.layout().order().unwrap_or(ElementOrder::Row);
        let mut target = UninitArray::with_order(receiver, self.raw_dim(), order)?.into_unwritten();
        copy_staged(receiver, &mut target.view_mut(), self)?;
        Ok(target)
    }

    /// The elements, contiguous in the given order: the view itself, or a copy.
    pub(crate) fn dense(&self, order: ElementOrder) -> Result<GpuCow<'a, T, D>, ArrayError> {
        if self.layout().is_dense(order) {
            Ok(GpuCow::View(self.clone()))
        } else {
            Ok(GpuCow::Owned(self.to_order(order)?))
        }
    }

    /// A contiguous copy in the given order.
    pub(crate) fn to_order(&self, order: ElementOrder) -> Result<GpuArray<T, D>, ArrayError> {
        UninitArray::with_order(self.gpu(), self.raw_dim(), order)?.assign(self)
    }
}

impl<T: Element> GpuView<'_, T, Ix0> {
    /// Downloads the only element. Waits for the work that the elements depend on.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::InvalidElement`], [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn into_scalar(self) -> Result<T, ArrayError> {
        Ok(self.to_array()?.into_scalar())
    }
}

impl<T: Element, K: Kind> GpuArray<T, Ix1, K> {
    /// Uploads a slice. Returns when the elements have been read; the copy may still run. Work that is queued later runs after it.
    ///
    /// Large slices are staged through pinned buffers filled in parallel ([`Gpu::set_staging`]). If the pool of pinned memory has no room
    /// for a buffer, the driver copies, which takes about four times as long.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?; // in device memory
    /// let y = GpuArray::from_slice(&gpu.pinned(), &[1.0_f32, 2.0])?; // in pinned host memory
    /// assert_eq!((&x + &y).to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation or a driver call fails, or if the stream captures.
    pub fn from_slice<P: Place<Kind = K> + ?Sized>(place: &P, elements: &[T]) -> Result<Self, ArrayError> {
        Self::uninit(place, elements.len())?.copy_from_slice(elements)
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Uploads an `ndarray` array or view. Returns when the elements have been read; see [`GpuArray::from_slice`].
    ///
    /// An array that is contiguous in row-major or column-major order keeps its order. Other arrays are copied to row-major order first.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.shape(), [2, 3]);
    /// assert_eq!(x.to_array()?, array![[1, 2, 3], [4, 5, 6]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::TooManyElements`] if the shape exceeds the address space (a broadcast view can).
    /// - [`ArrayError::HostFull`] if the elements are gathered, and the host has no memory for them.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails, or if the stream captures.
    pub fn from_array<P, S>(place: &P, array: &ArrayBase<S, D>) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: Data<Elem = T>,
    {
        let dim = array.raw_dim();
        if let Some(elements) = array.as_slice() {
            return UninitArray::with_order(place, dim, ElementOrder::Row)?.copy_from_slice(elements);
        }
        if let Some(elements) = array.t().as_slice() {
            return UninitArray::with_order(place, dim, ElementOrder::Column)?.copy_from_slice(elements);
        }
        // Device memory is allocated first: a broadcast view can be larger than any memory.
        let target = UninitArray::with_order(place, dim, ElementOrder::Row)?;
        target.copy_from_slice(&gathered(array, |element| element)?)
    }

    /// Copies the array on the device, in memory of the same kind.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let mut copy = x.try_clone()?;
    /// copy.fill(0)?;
    /// assert_eq!(x.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn try_clone(&self) -> Result<Self, ArrayError> {
        let order = self.layout().order().unwrap_or(ElementOrder::Row);
        UninitArray::with_order(&self.gpu().memory::<K>(), self.raw_dim(), order)?.assign(self)
    }
}

impl<T: Element, K: Kind> GpuArray<T, Ix0, K> {
    /// Downloads the only element; see [`GpuView::into_scalar`]. To keep the array, call it on a [view](GpuArray::view).
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let sum = GpuArray::from_slice(&gpu, &[1, 2, 3])?.sum()?; // on the device
    /// assert_eq!(sum.into_scalar()?, 6);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::InvalidElement`], [`ArrayError::Pool`]; see [`GpuView::to_vec`].
    pub fn into_scalar(self) -> Result<T, ArrayError> {
        self.view().into_scalar()
    }
}

/// # Panics
///
/// If the allocation or the copy fails; [`GpuArray::try_clone`] returns an error instead.
impl<T: Element, D: Dimension, K: Kind> Clone for GpuArray<T, D, K> {
    #[track_caller]
    fn clone(&self) -> Self {
        or_panic(self.try_clone())
    }
}

impl<T: Element, D: Dimension, K: Kind> UninitArray<T, D, K> {
    /// Uploads a slice in row-major order. Returns when the elements have been read; see [`GpuArray::from_slice`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::<i32, _>::uninit(&gpu, (2, 2))?.copy_from_slice(&[1, 2, 3, 4])?;
    /// assert_eq!(x.to_array()?, array![[1, 2], [3, 4]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the lengths differ, [`ArrayError::Pool`] if the stream captures or a driver call fails. On an error
    /// the memory is freed.
    pub fn copy_from_slice(self, elements: &[T]) -> Result<GpuArray<T, D, K>, ArrayError> {
        let mut array = self.into_unwritten();
        upload(&mut array.view_mut(), elements)?;
        Ok(array)
    }

    /// Copies an array or view on the device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2])?;
    /// let rows = GpuArray::<i32, _>::uninit(&gpu, (2, 2))?.assign(&x)?;
    /// assert_eq!(rows.to_vec()?, [1, 2, 1, 2]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see
    /// [`GpuViewMut::assign`]. On an error the memory is freed.
    pub fn assign<A: AsView<Elem = T>>(self, source: &A) -> Result<GpuArray<T, D, K>, ArrayError> {
        let mut array = self.into_unwritten();
        array.view_mut().assign(source)?;
        Ok(array)
    }
}

writers! {
    Element;

    /// Overwrites the view with other elements, on the device. A smaller `source` is broadcast: missing axes are added at the front, and
    /// axes of length 1 are repeated.
    ///
    /// Contiguous elements take one driver copy. So do rows of at least 64 bytes at a pitch if they are copied between devices, or from or
    /// to host-accessible memory. Other layouts take one kernel. `source` may be on another device; see [`GpuView::copy_to`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::s;
    ///
    /// let row = GpuArray::from_slice(&gpu, &[1, 2])?;
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, (2, 2))?;
    /// x.slice_mut(s![1, ..])?.assign(&row)?;
    /// assert_eq!(x.to_vec()?, [0, 0, 1, 2]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the shapes differ and `source` cannot be broadcast.
    /// - [`ArrayError::WrongDevice`] if `source` belongs to another driver.
    /// - [`ArrayError::NoPeerAccess`] in a capture, if `source` is on a device without a link to this one.
    /// - [`ArrayError::Pool`] if an allocation or a driver call fails.
    /// - If a kernel is needed, [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn assign<A: AsView<Elem = T>>(&mut self, source: &A) -> Result<(), ArrayError> {
        let source = source.as_view();
        let mut target = self.view_mut();
        if target.shape() == source.shape() {
            return copy(&mut target, &source);
        }
        match source.broadcast(target.raw_dim()) {
            Ok(source) => copy(&mut target, &source),
            Err(_) => same_shape("assign", target.layout(), source.layout()),
        }
    }

    /// Overwrites the view with a slice: in column-major order if the view is contiguous only in that order, otherwise in row-major order.
    /// Returns when the elements have been read; see [`GpuArray::from_slice`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, 3)?;
    /// x.copy_from_slice(&[1, 2, 3])?;
    /// assert_eq!(x.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the lengths differ, [`ArrayError::WrongDevice`] if the view is used through a `Gpu` of another driver,
    /// [`ArrayError::Pool`] if the stream captures or a driver call fails; unless the elements are contiguous or rows of at least 64 bytes at
    /// a pitch,
    /// [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), ArrayError> {
        upload(&mut self.view_mut(), elements)
    }
}

impl<T: Element, D: Dimension> GpuCow<'_, T, D> {
    /// Returns the copy, or copies the view.
    ///
    /// # Errors
    ///
    /// None for a copy; the errors of [`GpuView::to_owned`] for a view.
    pub fn into_owned(self) -> Result<GpuArray<T, D>, ArrayError> {
        match self {
            Self::View(view) => view.to_owned(),
            Self::Owned(array) => Ok(array),
        }
    }
}

/// Copies between views of one shape.
pub(crate) fn copy<T: Element, D: Dimension, E: Dimension>(
    target: &mut GpuViewMut<'_, T, D>,
    source: &GpuView<'_, T, E>,
) -> Result<(), ArrayError> {
    let gpu = target.gpu();
    match [target.storage().device(), source.storage().device()]
        .into_iter()
        .all(|device| device == gpu.device())
    {
        true => copy_on(gpu, target, source),
        false => copy_between(target, source),
    }
}

/// Copies directly, on a stream whose device can access both sides; otherwise through the host.
#[cold]
fn copy_between<T: Element, D: Dimension, E: Dimension>(
    target: &mut GpuViewMut<'_, T, D>,
    source: &GpuView<'_, T, E>,
) -> Result<(), ArrayError> {
    let share =
        |gpu: &Gpu| target.storage().share(gpu, COPY).and_then(|()| source.storage().share(gpu, COPY));
    let (gpu, home) = (target.gpu(), target.home());
    match share(gpu) {
        Ok(()) => return copy_on(gpu, target, source),
        // On another stream the copy would run immediately. A copy between streams of two devices cannot be captured either.
        Err(error @ ArrayError::NoPeerAccess { .. }) if gpu.stream().is_capturing()? => return Err(error),
        Err(ArrayError::NoPeerAccess { .. }) => gpu.check_thread(COPY)?,
        Err(error) => return Err(error),
    }
    if target.storage().device() != gpu.device() && share(home).is_ok() {
        return copy_on(home, target, source);
    }
    let receiver = if target.storage().device() == gpu.device() { gpu } else { home };
    copy_staged(receiver, target, source)
}

/// Copies through the host. Elements that are not contiguous are gathered before, or scattered after, on their device. Repeated elements
/// are copied once.
fn copy_staged<T: Element, D: Dimension, E: Dimension>(
    receiver: &Gpu,
    target: &mut GpuViewMut<'_, T, D>,
    source: &GpuView<'_, T, E>,
) -> Result<(), ArrayError> {
    if target.is_empty() {
        return Ok(());
    }
    let once = source.with_layout(source.layout().without_repeats());
    if once.len() < source.len() {
        let copied = once.copied_to(receiver)?;
        return copy_on(receiver, target, &copied.view().broadcast(target.raw_dim())?);
    }
    if target.layout().common_order(source.layout()).is_some() {
        return staged::copy(receiver, target, source);
    }
    if source.layout().order().is_none() {
        let order = target.layout().order().unwrap_or(ElementOrder::Row);
        return copy_staged(receiver, target, &source.on(source.home()).to_order(order)?.view());
    }
    copy_on(receiver, target, &source.copied_to(receiver)?.view())
}

/// Copies with one driver call or kernel on the stream of `gpu`, whose device can access both sides.
fn copy_on<T: Element, D: Dimension, E: Dimension>(
    gpu: &Gpu,
    target: &mut GpuViewMut<'_, T, D>,
    source: &GpuView<'_, T, E>,
) -> Result<(), ArrayError> {
    let plan = match target.layout().common_order(source.layout()) {
        Some(_) => LayoutPlan::run(target.layout(), source.layout(), size_of::<T>()),
        None => {
            let bases = [target.storage().planned(), source.storage().planned()];
            LayoutPlan::copy(target.layout(), source.layout(), size_of::<T>(), bases)
        }
    };
    let (to, from) = (at(target.storage(), plan.to), at(source.storage(), plan.from));
    let is_local = [target.storage(), source.storage()].iter().all(|side| side.is_memory_of(gpu.device()));
    let (target, source) = (target.writes(), source.reads());
    let launch = |strided| strided::copy(gpu, strided, [(target, to), (source, from)]);
    let work = match plan.form {
        Form::Nothing => return Ok(()),
        Form::Run { size_bytes } => DriverCopy::Run { size_bytes },
        Form::Pitched(rows) if is_local => match plan.into_strided().map(launch) {
            // The simulator without the feature `sim`.
            None | Some(Err(ArrayError::NoSuchKernel { .. })) => DriverCopy::Rows(rows),
            Some(launch) => return launch?.queue(COPY),
        },
        Form::Pitched(rows) => DriverCopy::Rows(rows),
        Form::Strided(strided) => return launch(strided)?.queue(COPY),
    };
    let uses = [source, target];
    uses.into_iter().try_for_each(|one| one.order(gpu, COPY))?;
    let driver = gpu.device().driver();
    queue_copy(gpu, uses, |stream, placed| {
        let (to, from) = (target.at(to, placed), source.at(from, placed));
        // SAFETY: the plan names the elements of both views, which lie within their blocks, alive and accessible to this device. The views
        // do not overlap, since one is borrowed exclusively. The stream has been ordered after what conflicts.
        unsafe {
            match &work {
                DriverCopy::Run { size_bytes } => driver.cuMemcpyAsync(to, from, *size_bytes, stream),
                DriverCopy::Rows(rows) => {
                    pitched::queue(driver, stream, [CopySide::Pool(to), CopySide::Pool(from)], rows)
                }
            }
        }
    })
}

enum DriverCopy {
    Run { size_bytes: usize },
    Rows(Pitched),
}

/// The planned address at an offset in bytes.
pub(crate) fn at(storage: &ArrayStorage, offset: isize) -> u64 {
    storage.planned().wrapping_add_signed(offset as i64)
}

/// Copies host elements over a view: in column-major order if it is contiguous only in that order, otherwise in row-major order.
pub(crate) fn upload<T: Element, D: Dimension>(
    target: &mut GpuViewMut<'_, T, D>,
    elements: &[T],
) -> Result<(), ArrayError> {
    if elements.len() != target.len() {
        return Err(ArrayError::Shape {
            operation: "upload",
            left: target.shape().to_vec(),
            right: vec![elements.len()],
            expected: "the slice must have as many elements as the array",
        });
    }
    if elements.is_empty() {
        return Ok(());
    }
    target.gpu().check_runs(UPLOAD)?;
    let lane = CopyLane::of(target.gpu(), target.home(), target.storage(), UPLOAD)?;
    let gpu = lane.gpu();
    if target.layout().order().is_some() {
        target.writes().order(gpu, UPLOAD)?;
        pageable::upload(gpu, target.writes(), target.planned(), bytemuck::cast_slice(elements))?;
        return lane.finish();
    }
    let order = target.layout().order().unwrap_or(ElementOrder::Row);
    let host = Layout::dense(target.raw_dim(), order, size_of::<T>())?;
    // The host side has no base: kernels cannot access it.
    let plan = LayoutPlan::copy(target.layout(), &host, size_of::<T>(), [target.storage().planned(), 0]);
    if let Form::Strided(_) = plan.form {
        let gathered = UninitArray::with_order(gpu, target.raw_dim(), order)?.copy_from_slice(elements)?;
        return copy(target, &gathered.view());
    }
    target.writes().order(gpu, UPLOAD)?;
    let to = at(target.storage(), plan.to);
    let from = elements.as_ptr().expose_provenance().wrapping_add_signed(plan.from);
    let writes = target.writes();
    run_borrowed(gpu, writes, UPLOAD, |raw, placed| {
        let (driver, to) = (gpu.device().driver(), writes.at(to, placed));
        // SAFETY: the target is alive, has as many elements as the slice, and is ordered after what conflicts. The slice is borrowed
        // until this function returns, and `run_borrowed` returns when the copy is done.
        unsafe {
            match &plan.form {
                Form::Run { size_bytes } => driver.cuMemcpyAsync(to, from as CUdeviceptr, *size_bytes, raw),
                Form::Pitched(pitched) => {
                    pitched::queue(driver, raw, [CopySide::Pool(to), CopySide::Host(from)], pitched)
                }
                Form::Nothing | Form::Strided(_) => Ok(()),
            }
        }
    })?;
    target.writes().record_complete(gpu.stream());
    Ok(())
}

/// Copies host elements over a contiguous view, in the order of memory, and converts them.
pub(crate) fn upload_cast<T: Cast<U>, U: Element, D: Dimension>(
    target: &mut GpuViewMut<'_, U, D>,
    elements: &[T],
) -> Result<(), ArrayError> {
    if elements.is_empty() {
        return Ok(());
    }
    target.gpu().check_runs(UPLOAD)?;
    let lane = CopyLane::of(target.gpu(), target.home(), target.storage(), UPLOAD)?;
    target.writes().order(lane.gpu(), UPLOAD)?;
    pageable::upload_cast::<T, U>(lane.gpu(), target.writes(), target.planned(), elements)?;
    lane.finish()
}

/// The results of a function of each element, in row-major order. A view that repeats elements can have more of them than fit in memory.
pub(crate) fn gathered<T: Copy, U, S: Data<Elem = T>, D: Dimension>(
    array: &ArrayBase<S, D>,
    function: impl Fn(T) -> U,
) -> Result<Vec<U>, ArrayError> {
    let mut elements = Vec::new();
    let size_bytes = array.len().saturating_mul(size_of::<U>());
    elements.try_reserve_exact(array.len()).map_err(|_| ArrayError::HostFull { size_bytes })?;
    elements.extend(array.iter().map(|element| function(*element)));
    Ok(elements)
}

/// An array of the results of a function of each element: in row-major order, or column-major if the array is.
pub(crate) fn converted<T: Copy, U, S: Data<Elem = T>, D: Dimension>(
    array: &ArrayBase<S, D>,
    function: impl Fn(T) -> U,
) -> Result<Array<U, D>, ArrayError> {
    let shape = || array.shape().to_vec();
    let is_column_major = !array.is_standard_layout() && array.t().is_standard_layout();
    let elements = if is_column_major { gathered(&array.t(), function)? } else { gathered(array, function)? };
    Array::from_shape_vec(array.raw_dim().set_f(is_column_major), elements)
        .map_err(|_| ArrayError::TooManyElements { shape: shape() })
}

/// The elements in column-major order if they are contiguous only in that order, otherwise in row-major order.
fn download<T: Element, D: Dimension>(source: &GpuView<'_, T, D>) -> Result<Vec<T>, ArrayError> {
    let len = source.len();
    let mut elements: Vec<T> = Vec::new();
    // A view that repeats elements may exceed the address space.
    Layout::dense(source.raw_dim(), ElementOrder::Row, size_of::<T>())?;
    let size_bytes = len * size_of::<T>();
    elements.try_reserve_exact(len).map_err(|_| ArrayError::HostFull { size_bytes })?;
    // SAFETY: the vector has room for them, and is not used before this returns.
    unsafe { download_to(source, elements.as_mut_ptr())? };
    // SAFETY: all bytes of these elements are initialised. `Bits` has the layout of `T`, and any initialised bytes are a valid value of
    // it. Nothing else uses the vector while the slice lives.
    let bits = unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<T::Bits>(), len) };
    if let Some(index) = first_invalid::<T>(bits) {
        return Err(ArrayError::InvalidElement { index, kind: core::any::type_name::<T>() });
    }
    // SAFETY: `len` elements have been written, and the check above found each to be a valid value.
    unsafe { elements.set_len(len) };
    Ok(elements)
}

/// Writes all bytes of the elements to host memory, in the order of [`download`].
///
/// # Safety
///
/// `elements` has room for them, which nothing else accesses before this returns.
unsafe fn download_to<T: Element, D: Dimension>(
    source: &GpuView<'_, T, D>,
    elements: *mut T,
) -> Result<(), ArrayError> {
    if source.is_empty() {
        return Ok(());
    }
    source.gpu().check_runs(DOWNLOAD)?;
    let lane = match CopyLane::of(source.gpu(), source.home(), source.storage(), DOWNLOAD)? {
        CopyLane::Own(gpu) if gpu.recording().is_none() && source.storage().is_overtaken(gpu) => {
            CopyLane::Copier(source.home().copier()?)
        }
        lane => lane,
    };
    let gpu = lane.gpu();
    if let CopyLane::Copier(_) = lane {
        order_once(source, gpu)?;
    }
    let order = source.layout().order().unwrap_or(ElementOrder::Row);
    let host = Layout::dense(source.raw_dim(), order, size_of::<T>())?;
    let plan = LayoutPlan::copy(&host, source.layout(), size_of::<T>(), [0, source.storage().planned()]);
    if let Form::Strided(_) = plan.form {
        // SAFETY: the caller's promise, for the same elements.
        return unsafe { download_to(&source.on(gpu).to_order(order)?.view(), elements) };
    }
    if let (Form::Run { size_bytes }, Ok(start)) = (&plan.form, u64::try_from(plan.from)) {
        let range = start..start.saturating_add(*size_bytes as u64);
        let mut to = elements.cast::<u8>();
        let read = |bytes: &[u8]| {
            // SAFETY: the caller has room for all bytes of the range, which nothing else accesses, and the parts have no more together.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            to = to.wrapping_add(bytes.len());
        };
        if source.storage().read_away(range, read)? {
            return Ok(());
        }
    }
    source.reads().order(gpu, DOWNLOAD)?;
    let from = at(source.storage(), plan.from);
    if let Form::Run { size_bytes } = plan.form {
        // SAFETY: the caller has room for these bytes, which nothing else accesses.
        return unsafe { pageable::download(gpu, source.reads(), (elements.cast(), from), size_bytes) };
    }
    let to = elements.expose_provenance().wrapping_add_signed(plan.to);
    let reads = source.reads();
    run_borrowed(gpu, reads, DOWNLOAD, |raw, placed| {
        let (driver, from) = (gpu.device().driver(), reads.at(from, placed));
        // SAFETY: the source is alive, and is ordered after what wrote it. The caller has room for its elements, which nothing else
        // accesses before this returns, and then the copy is done. All of the room is written: the host's layout has no gaps.
        unsafe {
            match &plan.form {
                Form::Pitched(pitched) => {
                    pitched::queue(driver, raw, [CopySide::Host(to), CopySide::Pool(from)], pitched)
                }
                Form::Nothing | Form::Run { .. } | Form::Strided(_) => Ok(()),
            }
        }
    })
}

/// Orders a stream for its only use of a view. The streams that it waits for do not mark their later work because of that.
fn order_once<T: Element, D: Dimension>(source: &GpuView<'_, T, D>, gpu: &Gpu) -> Result<(), ArrayError> {
    let stream = source.gpu().stream();
    let has_waiters = stream.has_waiters();
    source.reads().order(gpu, DOWNLOAD)?;
    if !has_waiters {
        stream.expect_no_waiters();
    }
    Ok(())
}

/// The stream of a copy to or from the host.
enum CopyLane<'a> {
    Own(&'a Gpu),
    /// A stream of the memory's device.
    Copier(Copier<'a>),
}

impl<'a> CopyLane<'a> {
    /// Inlined, like the methods: most copies are on the stream of the view, where all of this is optimised away.
    #[inline(always)]
    fn of(
        gpu: &'a Gpu,
        home: &'a Gpu,
        storage: &ArrayStorage,
        operation: &'static str,
    ) -> Result<Self, ArrayError> {
        if storage.device() == gpu.device() {
            return Ok(Self::Own(gpu));
        }
        match storage.share(gpu, operation) {
            Ok(()) => Ok(Self::Own(gpu)),
            Err(ArrayError::NoPeerAccess { .. }) => Ok(Self::Copier(home.copier()?)),
            Err(error) => Err(error),
        }
    }

    #[inline(always)]
    fn gpu(&self) -> &Gpu {
        match self {
            Self::Own(gpu) => gpu,
            Self::Copier(copier) => copier,
        }
    }

    /// Waits, so that a copier's stream is returned idle.
    #[inline(always)]
    fn finish(&self) -> Result<(), ArrayError> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Copier(copier) => copier.synchronize(),
        }
    }
}

/// The names of the copies in errors.
const COPY: &str = "copy";
const UPLOAD: &str = "an upload from borrowed memory";
const DOWNLOAD: &str = "a download";
