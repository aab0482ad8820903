//! DLPack 1.x: exchanges arrays with other libraries in the same process, without a copy.
//!
//! The tensors have the types of the crate [`dlpark`]: [`dlpark::versioned::Dlpack`], and [`dlpark::legacy::Dlpack`] for libraries from
//! before DLPack 1.0. Dropping one calls the deleter of its producer. [`GpuArray::into_dlpack`] exports an array: when the other library
//! calls the deleter, the memory is freed in the order of that library's stream. [`DlpackArray::from_dlpack`] imports a tensor from another
//! library: its deleter is called after all uses of the array, in the order of the stream of its `Gpu`.
//!
//! DLPack leaves the order of work to both sides. The consumer names a stream, and the producer makes that stream wait for the elements.
//! Here the stream is an argument: for `into_dlpack`, the stream that the other library reads and writes on; for `from_dlpack`, a `Gpu`
//! whose stream the other library has ordered. Python names streams by numbers, which [`Gpu::dlpack_stream`] resolves.
//!
//! An extension module of Python passes tensors as capsules named `dltensor_versioned` and `dltensor`; the feature `pyo3` of dlpark has them.

use crate::array::foreign::lend_to;
use crate::array::{AsView, GpuArray, GpuView, GpuViewMut};
use crate::element::kind::Kind;
use crate::element::{Element, check_layout};
use crate::error::{ArrayError, Rejected};
use crate::gpu::Gpu;
use crate::layout::{ElementOrder, Layout};
use crate::storage::ArrayStorage;
use core::marker::PhantomData;
pub use dlpark;
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, Managed, ManagedTensorBase, TensorRef};
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::{Device, KeptBy, MemoryKind, Stream};
use ndarray::Dimension;

/// An element type that DLPack describes: `f32`, `f64`, integers of 8 to 64 bits, `bool`; with the features `half` and `complex` also
/// `f16`, `bf16`, `Complex<f32>` and `Complex<f64>`. Implement it for types of your own.
///
/// The described type must be as large as the element, because the other library locates elements by it. Other sizes do not compile.
pub trait DlpackElement: Element {
    /// The type as DLPack describes it: `bits` times `lanes` is the size of this type in bits.
    const DATA_TYPE: DLDataType;
}

/// The described type of an element. Fails to compile if it has another size.
const fn data_type<T: DlpackElement>() -> DLDataType {
    const {
        assert!(
            T::DATA_TYPE.bits as usize * T::DATA_TYPE.lanes as usize == 8 * size_of::<T>(),
            "`DATA_TYPE` must be as large as the element: `bits` times `lanes` are its bits"
        );
    }
    T::DATA_TYPE
}

macro_rules! elements {
    ($($element:ty: $code:ident;)*) => {
        $(
            impl DlpackElement for $element {
                const DATA_TYPE: DLDataType =
                    DLDataType::scalar(DLDataTypeCode::$code, 8 * size_of::<$element>() as u8);
            }
        )*
    };
}

elements! {
    i8: INT; i16: INT; i32: INT; i64: INT;
    u8: UINT; u16: UINT; u32: UINT; u64: UINT;
    f32: FLOAT; f64: FLOAT;
    bool: BOOL;
}
#[cfg(feature = "half")]
elements! { half::f16: FLOAT; half::bf16: BFLOAT; }
#[cfg(feature = "complex")]
elements! { num_complex::Complex<f32>: COMPLEX; num_complex::Complex<f64>: COMPLEX; }

/// An array of another library. Like a [`GpuArray`], it is used through views, on any stream. Its elements may have any strides.
///
/// When it is dropped, the stream of its `Gpu` waits, on the device, for the uses on other streams, and the producer's deleter is called.
/// If a wait fails, for example because the context is lost, the memory is not returned.
pub struct DlpackArray<T, D> {
    gpu: Gpu,
    storage: ArrayStorage,
    layout: Layout<D>,
    is_read_only: bool,
    element: PhantomData<T>,
}

impl Gpu {
    /// Returns the stream that a consumer in Python names by `__dlpack__(stream=…)`, for [`GpuArray::into_dlpack`].
    ///
    /// | number | stream |
    /// | --- | --- |
    /// | `None`, 1 | the default stream, [`Stream::legacy`] |
    /// | 2 | the thread's default stream, [`Stream::per_thread`] |
    /// | -1 | the stream of this `Gpu`: the consumer orders its own work behind it |
    /// | any other but 0 | the stream with this handle |
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Dlpack`] for 0, which DLPack forbids because it could mean either default stream.
    /// - [`ArrayError::Pool`] if a driver call fails, or for a stream of another device.
    ///
    /// # Safety
    ///
    /// A handle must belong to a stream that lives until all clones of the result are dropped or [retired](Stream::retire).
    pub unsafe fn dlpack_stream(&self, number: Option<i64>) -> Result<Stream, ArrayError> {
        match number {
            Some(-1) => Ok(self.stream().clone()),
            None | Some(1) => Ok(Stream::legacy(self.device())?),
            Some(2) => Ok(Stream::per_thread(self.device())?),
            Some(0) => Err(refused("stream", "0, expected -1, 1, 2 or a handle")),
            Some(handle) => {
                let handle = handle as usize as CUstream;
                // SAFETY: the caller's promise about the handle.
                Ok(unsafe { Stream::from_raw(self.device(), handle)? })
            }
        }
    }
}

impl<T: DlpackElement, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Gives the array to another library, which reads and writes it on `stream` until it calls the deleter. The stream first waits, on the
    /// device, for all uses so far. The memory is freed after the work that is on the stream when the deleter is called.
    ///
    /// The result's type decides between a DLPack 1.x tensor and a legacy one.
    ///
    /// ```
    /// use gpumem_array::dlpack::{DlpackArray, dlpark::versioned};
    /// use gpumem_array::{Gpu, GpuArray, ndarray::Ix1, pool::{Device, Pool, Stream}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
    /// let stream = Stream::new(gpu.device())?; // the other library's stream
    /// let tensor: versioned::Dlpack = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0])?.into_dlpack(&stream)?;
    /// let raw = tensor.into_raw(); // passed to C
    ///
    /// // SAFETY: the pointer comes from `into_raw`, and is used once.
    /// let back = unsafe { versioned::Dlpack::from_raw(raw)? };
    /// let other = Gpu::with_stream(gpu.pool(), &stream)?;
    /// // SAFETY: the tensor is one of this crate, and nothing else uses it.
    /// let array: DlpackArray<f32, Ix1> = unsafe { DlpackArray::from_dlpack(&other, back)? };
    /// assert_eq!(array.view().to_vec()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the stream is on another device.
    /// - [`ArrayError::Dlpack`] if the array has more axes than DLPack counts.
    /// - [`ArrayError::Graph`] if the array was made in a capture, or if the stream captures.
    /// - [`ArrayError::Pool`] if the stream is retired or belongs to another thread, or if a driver call fails.
    ///
    /// The error contains the array.
    pub fn into_dlpack<M: ManagedTensorBase>(self, stream: &Stream) -> Result<Managed<M>, Rejected<Self>> {
        let strides: Vec<_> = self.layout().strides().collect();
        let axes = Dynamic::new(self.shape(), strides.as_slice());
        // SAFETY: the lengths and strides are those of the array.
        let prepared = unsafe { axes.prepare_unchecked_as::<M>() };
        let prepared = prepared.map_err(|error| refused("ndim", &error.to_string()));
        let prepared = match prepared.and_then(|prepared| {
            lend_to(self.storage(), stream, "exporting a tensor", (KeptBy::Dlpack, false)).map(|()| prepared)
        }) {
            Ok(prepared) => prepared,
            Err(error) => return Err(Rejected::new(error, self)),
        };
        let (storage, layout) = self.into_parts();
        let data = if layout.len() == 0 { 0 } else { storage.pinned_address() };
        let device = device_of(storage.kind(), storage.device());
        // The deleter drops the memory, which is freed in the order of the consumer's stream.
        let mut tensor = prepared.initialize(Box::new(storage));
        tensor
            .set_data(core::ptr::with_exposed_provenance_mut(data as usize))
            .set_byte_offset((layout.offset * size_of::<T>()) as u64)
            .set_device(device)
            .set_dtype(data_type::<T>());
        // SAFETY: the description is that of the array, whose memory the tensor owns.
        Ok(unsafe { tensor.finish() })
    }
}

impl<T: DlpackElement, D: Dimension> DlpackArray<T, D> {
    /// Makes an array from a tensor, in place.
    ///
    /// Checks the device, the element type, the number of axes, lengths, strides, pointers and alignment; dlpark has checked the version.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Dlpack`] names the field that does not fit, [`ArrayError::TooManyElements`] if the lengths exceed the address space,
    /// [`ArrayError::Pool`] if the stream captures, is retired or belongs to another thread. The error contains the tensor.
    ///
    /// # Safety
    ///
    /// - The memory from the first to the last element is alive until the deleter is called, and device memory of the named device.
    /// - The other library has ordered the stream of `gpu` behind its own work. It does not use the memory in a conflicting way until the
    ///   deleter is called, and afterwards only behind the work on the stream of `gpu`.
    /// - The elements are valid values of `T`.
    pub unsafe fn from_dlpack<M: ManagedTensorBase + 'static>(
        gpu: &Gpu,
        tensor: Managed<M>,
    ) -> Result<Self, Rejected<Managed<M>>> {
        let placed = match tensor.validate() {
            Ok(described) => place::<T, D>(gpu, &described),
            Err(error) => Err(refused("tensor", &error.to_string())),
        };
        match placed {
            Ok((place, layout)) => {
                let is_read_only = tensor.flags().contains(DlpackFlags::READ_ONLY);
                // SAFETY: the caller's promise about the memory that the tensor describes.
                let storage = unsafe { ArrayStorage::of_foreign(gpu, gpu.stream(), place, Box::new(tensor)) };
                Ok(Self { gpu: gpu.clone(), storage, layout, is_read_only, element: PhantomData })
            }
            Err(error) => Err(Rejected::new(error, tensor)),
        }
    }
}

/// The lowest address, the size in bytes, and the kind of the memory.
type TensorPlace = (u64, u64, MemoryKind);

/// Returns the memory of a tensor, and the layout from its lowest address.
fn place<T: DlpackElement, D: Dimension>(
    gpu: &Gpu,
    tensor: &TensorRef<'_>,
) -> Result<(TensorPlace, Layout<D>), ArrayError> {
    const { check_layout::<T>() };
    gpu.check_runs("importing a tensor")?;
    let kind = kind_of(tensor.device(), gpu.device())?;
    let (found, expected) = (tensor.dtype(), data_type::<T>());
    if found != expected {
        return Err(refused("dtype", &format!("{found:?}, expected {expected:?}")));
    }
    let ndim = tensor.ndim();
    if D::NDIM.is_some_and(|expected| expected != ndim) {
        return Err(refused("ndim", &format!("{ndim} axes, expected {}", D::NDIM.unwrap_or(0))));
    }
    let mut dim = D::zeros(ndim);
    for (len, found) in dim.slice_mut().iter_mut().zip(tensor.shape()) {
        *len = usize::try_from(*found).map_err(|_| refused("shape", &format!("the length {found}")))?;
    }
    // Also checks the number of elements.
    let dense = Layout::dense(dim.clone(), ElementOrder::Row, size_of::<T>())?;
    if dense.len() == 0 {
        return Ok(((0, 0, kind), dense));
    }
    let stride =
        |step: &i64| isize::try_from(*step).map_err(|_| refused("strides", &format!("the stride {step}")));
    let strides = match tensor.strides() {
        Some(strides) => strides.iter().map(stride).collect::<Result<Vec<_>, _>>()?,
        None => dense.strides().collect(),
    };
    let reach = reach(dim.slice(), &strides).filter(|reach| reach.bytes(size_of::<T>()).is_some());
    let beyond = || refused("strides", &format!("{strides:?}, which puts elements beyond the address space"));
    let reach = reach.ok_or_else(beyond)?;
    let size_bytes = reach.bytes(size_of::<T>()).unwrap_or(0);
    let first = (tensor.data_ptr().expose_provenance() as u64).checked_add(tensor.byte_offset());
    let first = first.filter(|_| !tensor.data_ptr().is_null());
    let first =
        first.ok_or_else(|| refused("data", "a null pointer, or an offset beyond the address space"))?;
    if !first.is_multiple_of(align_of::<T>() as u64) {
        return Err(refused("byte_offset", &format!("{first:#x} is not aligned to {}", align_of::<T>())));
    }
    let address = first.checked_sub(reach.before * size_of::<T>() as u64);
    let address = address.ok_or_else(|| refused("strides", "elements below address 0"))?;
    Ok(((address, size_bytes, kind), Layout::strided(dim, &strides, reach.before as usize)))
}

/// The elements before the first one and after it, at lower and at higher addresses.
struct Reach {
    before: u64,
    after: u64,
}

impl Reach {
    fn bytes(&self, element_bytes: usize) -> Option<u64> {
        let count = self.before.checked_add(self.after)?.checked_add(1)?;
        count.checked_mul(element_bytes as u64).filter(|bytes| i64::try_from(*bytes).is_ok())
    }
}

/// `None` if the numbers overflow. No length is 0.
fn reach(shape: &[usize], strides: &[isize]) -> Option<Reach> {
    let mut reach = Reach { before: 0, after: 0 };
    for (len, stride) in shape.iter().zip(strides) {
        let distance = (*len as u64 - 1).checked_mul(stride.unsigned_abs() as u64)?;
        let side = if *stride < 0 { &mut reach.before } else { &mut reach.after };
        *side = side.checked_add(distance)?;
    }
    Some(reach)
}

/// The kind of a tensor's memory; an error if it is on another device.
fn kind_of(found: DLDevice, device: &Device) -> Result<MemoryKind, ArrayError> {
    let is_here = i64::from(found.device_id) == i64::from(device.ordinal());
    match found.device_type {
        DLDeviceType::CUDAHOST => Ok(MemoryKind::Host),
        DLDeviceType::CUDAMANAGED if is_here => Ok(MemoryKind::Unified),
        DLDeviceType::CUDA if is_here => Ok(MemoryKind::Device),
        DLDeviceType(kind) => {
            Err(refused("device", &format!("type {kind}, device {}, expected {device}", found.device_id)))
        }
    }
}

fn device_of(kind: MemoryKind, device: &Device) -> DLDevice {
    let device_id = device.ordinal().cast_signed();
    match kind {
        MemoryKind::Host => DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 0 },
        MemoryKind::Unified => DLDevice { device_type: DLDeviceType::CUDAMANAGED, device_id },
        _ => DLDevice::cuda(device_id),
    }
}

fn refused(field: &'static str, problem: &str) -> ArrayError {
    ArrayError::Dlpack { field, problem: problem.into() }
}

impl<T: Element, D: Dimension> DlpackArray<T, D> {
    /// A view of all elements.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        GpuView::new(&self.gpu, &self.storage, self.layout.clone())
    }

    /// A mutable view of all elements.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Dlpack`] if the tensor is read-only, or if its strides repeat elements.
    pub fn view_mut(&mut self) -> Result<GpuViewMut<'_, T, D>, ArrayError> {
        if self.is_read_only {
            return Err(refused("flags", "the tensor is read-only; copy it with `view().to_owned()`"));
        }
        if !is_distinct(&self.layout) {
            return Err(refused("strides", "they repeat elements, which cannot be written apart"));
        }
        Ok(GpuViewMut::new(&self.gpu, &self.storage, self.layout.clone()))
    }

    /// The lengths of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }
}

/// True if no element has two indices: each stride leads beyond the elements of the smaller strides.
fn is_distinct<D: Dimension>(layout: &Layout<D>) -> bool {
    let axes = layout.strides().zip(layout.shape());
    let mut axes: Vec<_> =
        axes.filter(|(_, len)| **len > 1).map(|(stride, len)| (stride.unsigned_abs(), *len)).collect();
    axes.sort_unstable();
    let mut beyond = 1;
    layout.len() == 0
        || axes.iter().all(|(stride, len)| {
            let is_beyond = *stride >= beyond;
            beyond += stride * (len - 1);
            is_beyond
        })
}

impl<T: Element, D: Dimension> AsView for DlpackArray<T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.view()
    }
}

debug_fields!([T: Element, D: Dimension] DlpackArray<T, D>, it, view: it.view());
