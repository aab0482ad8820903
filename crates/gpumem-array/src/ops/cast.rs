//! Conversion to another floating-point type, where it takes the least time: on the device, whose memory is faster than any link, unless a
//! conversion on the host saves bytes on the link.

use crate::array::{GpuArray, GpuView, UninitArray, readers};
use crate::copy::{converted, upload_cast};
use crate::element::kind::{self, Kind};
use crate::element::{Cast, CastNumbers, Element, ScalarType};
use crate::error::ArrayError;
use crate::expression::evaluate::{ExpressionMemory, queue_recorded, with_memory};
use crate::expression::node::layout_axes;
use crate::expression::tape::Tape;
use crate::gpu::Place;
use crate::layout::{ElementOrder, Layout};
use core::any::TypeId;
use ndarray::{Array, ArrayBase, Data, Dimension};

readers! {
    Element;

    /// Converts the elements to another floating-point type, on the device. The result is in device memory, in the order of the view if that is
    /// contiguous, otherwise in row-major order.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let double = GpuArray::from_slice(&gpu, &[0.1_f64, 1e300])?;
    /// assert_eq!(double.cast::<f32>()?.to_vec()?, [0.1, f32::INFINITY]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::TooManyElements`] if the result exceeds the address space.
    /// - [`ArrayError::NoPeerAccess`] if the view is used through a device that has no link to its memory, in a capture.
    /// - [`ArrayError::WrongDevice`] if it is used through another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn cast[U: Element](view) -> Result<GpuArray<U, D>, ArrayError>
    where (T: Cast<U>) {
        view.cast_to(view.gpu())
    }

    /// Like [`GpuView::cast`](crate::GpuView::cast), with the result at another place: in memory of another kind, or on another device.
    /// Between devices, the elements cross the link in the smaller of both types.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[0.5_f64, 1.5])?;
    /// let host = x.cast_to::<f32, _>(&gpu.pinned())?; // half of the bytes cross the bus
    /// assert_eq!(host[1], 1.5_f32);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`],
    /// [`ArrayError::NoSuchKernel`]; see [`GpuView::cast`](crate::GpuView::cast) and [`GpuView::copy_to`](crate::GpuView::copy_to).
    pub fn cast_to[U: Element, P: Place + ?Sized](view, place: &P) -> Result<GpuArray<U, D, P::Kind>, ArrayError>
    where (T: Cast<U>) {
        let gpu = place.gpu();
        if view.storage().device() != gpu.device() {
            return if size_of::<T>() > size_of::<U>() {
                view.on(view.home()).cast()?.copy_to(place)
            } else {
                view.copy_to(gpu)?.view().cast_to(place)
            };
        }
        let order = view.layout().order().unwrap_or(ElementOrder::Row);
        converted_at(&view.on(gpu), place, Layout::dense(view.raw_dim(), order, size_of::<U>())?)
    }

    /// Downloads the elements as another floating-point type. They cross the link in the smaller of both types.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[0.5_f32, 1.5])?;
    /// assert_eq!(x.to_array_cast::<f64>()?, array![0.5_f64, 1.5]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::InvalidElement`], [`ArrayError::HostFull`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`],
    /// [`ArrayError::NoSuchKernel`]; see [`GpuView::to_array`](crate::GpuView::to_array) and [`GpuView::cast`](crate::GpuView::cast).
    pub fn to_array_cast[U: Element](view) -> Result<Array<U, D>, ArrayError>
    where (T: Cast<U>) {
        if size_of::<T>() > size_of::<U>() {
            view.on(view.home()).cast()?.to_array()
        } else {
            converted(&view.to_array()?, T::cast)
        }
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Uploads an `ndarray` array or view as another floating-point type. Returns when the elements have been read. The order is chosen as
    /// in [`GpuArray::from_array`].
    ///
    /// The elements cross the link in the smaller of both types. Those that become smaller are converted on the host, by the threads that copy
    /// them to pinned memory ([`Gpu::set_staging`](crate::Gpu::set_staging)). Those that become larger are uploaded to more device memory,
    /// and converted there; if there is no room for both, they are converted on the host.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Ix1, array}};
    ///
    /// let single: GpuArray<f32, Ix1> = GpuArray::from_array_cast(&gpu, &array![0.5_f64, 1.5])?;
    /// assert_eq!(single.to_vec()?, [0.5_f32, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::HostFull`], [`ArrayError::Pool`]; see [`GpuArray::from_array`].
    pub fn from_array_cast<U, P, S>(place: &P, array: &ArrayBase<S, D>) -> Result<Self, ArrayError>
    where
        U: Cast<T>,
        P: Place<Kind = K> + ?Sized,
        S: Data<Elem = U>,
    {
        let is_wider = size_of::<T>() > size_of::<U>();
        let has_kernels =
            TypeId::of::<K>() == TypeId::of::<kind::DeviceLocal>() && array.len() >= DEVICE_LEN_MIN;
        if is_wider && has_kernels && !array.is_empty() {
            let narrow = GpuArray::<U, D>::from_array(place.gpu(), array);
            match narrow.and_then(|narrow| narrow.view().cast_to(place)) {
                Err(error) if error.is_out_of_memory() => {}
                Err(ArrayError::NoSuchKernel { .. }) => {}
                result => return result,
            }
        }
        let order = match array.t().as_slice() {
            Some(_) if array.as_slice().is_none() => ElementOrder::Column,
            _ => ElementOrder::Row,
        };
        let mut target = UninitArray::with_order(place, array.raw_dim(), order)?.into_unwritten();
        match array.as_slice_memory_order().filter(|_| is_contiguous(array)) {
            Some(elements) => upload_cast(&mut target.view_mut(), elements)?,
            None => {
                let elements = converted(array, U::cast)?;
                target.view_mut().copy_from_slice(elements.as_slice().unwrap_or_default())?;
            }
        }
        Ok(target)
    }
}

/// The elements of a view, converted on the device of `place`. The result has the layout.
fn converted_at<T: Cast<U>, U: Element, D: Dimension, P: Place + ?Sized>(
    view: &GpuView<'_, T, D>,
    place: &P,
    layout: Layout<D>,
) -> Result<GpuArray<U, D, P::Kind>, ArrayError> {
    let gpu = place.gpu();
    let result = GpuArray::<U, D, P::Kind>::unwritten(place, layout)?;
    if result.is_empty() {
        return Ok(result);
    }
    let CastNumbers { from, to, lanes } = T::NUMBERS;
    with_memory(|ExpressionMemory { recording, notes, plans, .. }| {
        let mut tape = Tape::new("cast", recording);
        tape.array(from, gpu, view.reads(), view.planned(), numbers(view.layout(), from, lanes));
        tape.cast(to);
        tape.target(to, result.planned(), numbers(result.layout(), to, lanes));
        queue_recorded(gpu, tape, notes, plans, (result.writes(), [result.planned()]))
    })?;
    Ok(result)
}

/// The axes of the numbers of elements: those of an element are next to each other.
fn numbers<D: Dimension>(
    layout: &Layout<D>,
    of: ScalarType,
    lanes: usize,
) -> impl Iterator<Item = (usize, isize)> {
    layout_axes(layout, lanes * of.size()).chain([(lanes, of.size().cast_signed())])
}

/// True for row-major or column-major order. Other views, such as one with reversed rows, can be contiguous in memory too.
fn is_contiguous<S: Data, D: Dimension>(array: &ArrayBase<S, D>) -> bool {
    array.is_standard_layout() || array.t().is_standard_layout()
}

/// For fewer elements, a launch and an allocation take longer than a conversion on the host.
const DEVICE_LEN_MIN: usize = 1 << 15;
