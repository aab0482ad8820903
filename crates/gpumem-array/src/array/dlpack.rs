//! DLPack 1.x: arrays that are exchanged with other libraries in the same process, without a copy.
//!
//! A [`DlpackTensor`] owns a `DLManagedTensorVersioned`, the C structure of the standard, and calls its deleter when it is dropped.
//! [`GpuArray::into_dlpack`] makes one of an array: the memory is freed behind the stream that the other library works on, when that
//! library calls the deleter. [`DlpackTensor::into_array`] takes one from another library: its deleter is called behind all uses of the
//! [`DlpackArray`], in the order of the stream of its `Gpu`.
//!
//! DLPack leaves the order of work to both sides. The consumer names a stream, and the producer makes that stream wait for the elements.
//! Here the stream is an argument: of `into_dlpack`, the one that the other library reads and writes on; of `into_array`, a `Gpu`
//! whose stream the other library has ordered.

pub mod raw;

use crate::array::{AsView, GpuArray, GpuView, GpuViewMut, Vector};
use crate::element::{Element, check_layout};
use crate::error::{ArrayError, Rejected};
use crate::gpu::{Gpu, check_device};
use crate::kind::Kind;
use crate::layout::{Layout, Order};
use crate::storage::{Access, Storage, Use};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use gpumem_pool::{Device, MemoryKind, Stream};
use ndarray::{Dimension, Ix1};
use raw::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, READ_ONLY};

/// An element type that DLPack describes: `f32`, `f64`, integers of 8 to 64 bits, `bool`; with the features `half` and `complex` also
/// `f16`, `bf16`, `Complex<f32>` and `Complex<f64>`.
pub trait DlpackElement: Element {
    /// The type as DLPack describes it.
    const DATA_TYPE: DLDataType;
}

macro_rules! elements {
    ($($element:ty: $code:literal;)*) => {
        $(
            impl DlpackElement for $element {
                const DATA_TYPE: DLDataType =
                    DLDataType { code: $code, bits: 8 * size_of::<$element>() as u8, lanes: 1 };
            }
        )*
    };
}

elements! {
    i8: 0; i16: 0; i32: 0; i64: 0;
    u8: 1; u16: 1; u32: 1; u64: 1;
    f32: 2; f64: 2;
    bool: 6;
}
#[cfg(feature = "half")]
elements! { half::f16: 2; half::bf16: 4; }
#[cfg(feature = "complex")]
elements! { num_complex::Complex<f32>: 5; num_complex::Complex<f64>: 5; }

/// A tensor of DLPack, with its memory. Dropping it calls the deleter of its producer.
pub struct DlpackTensor(NonNull<DLManagedTensorVersioned>);

// SAFETY: DLPack allows the deleter on any thread, and the structure is not changed while it is shared.
unsafe impl Send for DlpackTensor {}
// SAFETY: a shared reference only reads the structure.
unsafe impl Sync for DlpackTensor {}

/// An array of another library. Like a [`GpuArray`], it is used through views, on any stream. Its elements may have any strides.
///
/// When it is dropped, the stream of its `Gpu` waits, on the device, for the uses on other streams, and the deleter of the producer is
/// called. If a wait fails, for example because the context is lost, the memory is not returned.
pub struct DlpackArray<T, D> {
    gpu: Gpu,
    storage: Storage,
    layout: Layout<D>,
    is_read_only: bool,
    element: PhantomData<T>,
}

/// An exported tensor, with the array that it keeps.
struct Exported {
    tensor: DLManagedTensorVersioned,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    /// Frees the memory behind the stream of the consumer.
    _storage: Storage,
}

impl<T: DlpackElement, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Gives the array to another library, which reads and writes it on `stream` until it calls the deleter. The stream first waits, on
    /// the device, for all uses so far. The memory is freed behind the work that is on the stream when the deleter is called.
    ///
    /// ```
    /// use gpumem_array::{Gpu, GpuArray, dlpack::DlpackTensor, ndarray::Ix1, pool::{Device, Pool, Stream}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
    /// let stream = Stream::new(gpu.device())?; // the other library's stream
    /// let tensor = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0])?.into_dlpack(&stream)?;
    /// let raw = tensor.into_raw(); // passed to C
    ///
    /// // SAFETY: the pointer comes from `into_raw`, and is used once.
    /// let back = unsafe { DlpackTensor::from_raw(raw) }.ok_or("null")?;
    /// let other = Gpu::with_stream(gpu.pool(), &stream)?;
    /// // SAFETY: the tensor is one of this crate, and nothing else uses it.
    /// let array = unsafe { back.into_array::<f32, Ix1>(&other)? };
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
    pub fn into_dlpack(self, stream: &Stream) -> Result<DlpackTensor, Rejected<Self>> {
        let ndim = match self.lend_to(stream) {
            Ok(ndim) => ndim,
            Err(error) => return Err(Rejected::new(error, self)),
        };
        let (storage, layout) = self.into_parts();
        let byte_offset = (layout.offset * size_of::<T>()) as u64;
        let data = if layout.len() == 0 { 0 } else { storage.address() };
        let exported = Box::new(Exported {
            shape: layout.shape().iter().map(|len| *len as i64).collect(),
            strides: layout.strides().map(|stride| stride as i64).collect(),
            tensor: DLManagedTensorVersioned {
                version: VERSION,
                manager_ctx: core::ptr::null_mut(),
                deleter: Some(delete),
                flags: 0,
                dl_tensor: DLTensor {
                    data: core::ptr::with_exposed_provenance_mut(data as usize),
                    device: device_of(storage.kind(), storage.device()),
                    ndim,
                    dtype: T::DATA_TYPE,
                    shape: core::ptr::null_mut(),
                    strides: core::ptr::null_mut(),
                    byte_offset,
                },
            },
            _storage: storage,
        });
        let exported = Box::into_raw(exported);
        // SAFETY: the box was just given up, and nothing else has the pointer. Its slices stay where they are.
        unsafe {
            (*exported).tensor.manager_ctx = exported.cast();
            (*exported).tensor.dl_tensor.shape = (*exported).shape.as_mut_ptr();
            (*exported).tensor.dl_tensor.strides = (*exported).strides.as_mut_ptr();
            Ok(DlpackTensor(NonNull::new_unchecked(&raw mut (*exported).tensor)))
        }
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Orders a stream for any use by another library, and returns the number of axes as DLPack counts them.
    fn lend_to(&self, stream: &Stream) -> Result<i32, ArrayError> {
        check_device(stream.device(), self.storage().device())?;
        let ndim = i32::try_from(self.ndim()).map_err(|_| refused("ndim", "too many axes"))?;
        let whole = Use::whole(self.storage(), Access::Write);
        whole.order_on(stream, None, "exporting a tensor")?;
        whole.begin_foreign(stream, None)?;
        Ok(ndim)
    }
}

/// The deleter of exported tensors.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the consumer calls this once, with the tensor that it was given: the context is the box of `into_dlpack`.
    unsafe { drop(Box::from_raw((*tensor).manager_ctx.cast::<Exported>())) };
}

impl DlpackTensor {
    /// Takes a tensor from another library. `None` for a null pointer.
    ///
    /// # Safety
    ///
    /// The pointer is null, or that of a structure of DLPack 1.x that nothing else deletes. Its shape and strides are those of `ndim` axes, or
    /// null. The deleter may be called on any thread.
    #[must_use]
    pub unsafe fn from_raw(tensor: *mut DLManagedTensorVersioned) -> Option<Self> {
        NonNull::new(tensor).map(Self)
    }

    /// Gives the tensor up. The receiver calls its deleter.
    #[must_use = "the memory is leaked unless the deleter is called"]
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        core::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// The C structure.
    #[must_use]
    pub fn as_raw(&self) -> &DLManagedTensorVersioned {
        // SAFETY: the structure is alive until the deleter is called, and not changed meanwhile.
        unsafe { self.0.as_ref() }
    }

    /// Makes an array of the tensor, in place.
    ///
    /// Checked are the version, the device, the element type, the number of axes, lengths, strides, pointers and alignment.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Dlpack`] names the field that does not fit, [`ArrayError::Pool`] if the stream captures, is retired or belongs to another
    /// thread. The error contains the tensor.
    ///
    /// # Safety
    ///
    /// - The memory from the first to the last element is alive until the deleter is called, and device memory of the named device.
    /// - The other library has ordered the stream of `gpu` behind its own work, uses the memory in no conflicting way until it has been
    ///   deleted, and then only behind the work on the stream of `gpu`.
    /// - The elements are valid values of `T`.
    pub unsafe fn into_array<T: DlpackElement, D: Dimension>(
        self,
        gpu: &Gpu,
    ) -> Result<DlpackArray<T, D>, Rejected<Self>> {
        match self.placed::<T, D>(gpu) {
            Ok((address, size_bytes, layout)) => {
                let (is_read_only, kind) = (self.as_raw().flags & READ_ONLY != 0, self.memory_kind());
                let place = (address, size_bytes, kind);
                // SAFETY: the caller's promise about the memory that the structure describes.
                let storage = unsafe { Storage::of_foreign(gpu, place, Box::new(self)) };
                Ok(DlpackArray { gpu: gpu.clone(), storage, layout, is_read_only, element: PhantomData })
            }
            Err(error) => Err(Rejected::new(error, self)),
        }
    }

    fn memory_kind(&self) -> MemoryKind {
        match self.as_raw().dl_tensor.device.device_type {
            raw::CUDA_HOST => MemoryKind::Host,
            raw::CUDA_MANAGED => MemoryKind::Unified,
            _ => MemoryKind::Device,
        }
    }

    /// The lowest address, the size in bytes, and the layout from there.
    fn placed<T: DlpackElement, D: Dimension>(&self, gpu: &Gpu) -> Result<(u64, u64, Layout<D>), ArrayError> {
        const { check_layout::<T>() };
        gpu.check_runs("importing a tensor")?;
        let DLManagedTensorVersioned { version, dl_tensor, .. } = self.as_raw();
        if version.major != VERSION.major {
            return Err(refused(
                "version",
                &format!("version {}.{}, expected 1.x", version.major, version.minor),
            ));
        }
        check_place(dl_tensor.device, gpu.device())?;
        if dl_tensor.dtype != T::DATA_TYPE {
            let (found, expected) = (dl_tensor.dtype, T::DATA_TYPE);
            return Err(refused("dtype", &format!("{found:?}, expected {expected:?}")));
        }
        let (shape, strides) = axes(dl_tensor)?;
        if D::NDIM.is_some_and(|ndim| ndim != shape.len()) {
            let problem = format!("{} axes, expected {}", shape.len(), D::NDIM.unwrap_or(0));
            return Err(refused("ndim", &problem));
        }
        let mut dim = D::zeros(shape.len());
        dim.slice_mut().copy_from_slice(&shape);
        // Also checks the number of elements.
        let dense = Layout::dense(dim.clone(), Order::Row, size_of::<T>())?;
        if dense.len() == 0 {
            return Ok((0, 0, dense));
        }
        let strides = strides.unwrap_or_else(|| dense.strides().collect());
        let reach = reach(&shape, &strides).filter(|reach| reach.bytes(size_of::<T>()).is_some());
        let reach = reach.ok_or_else(|| refused("strides", "elements beyond the address space"))?;
        let size_bytes = reach.bytes(size_of::<T>()).unwrap_or(0);
        let first = (dl_tensor.data.expose_provenance() as u64).checked_add(dl_tensor.byte_offset);
        let first = first.filter(|_| !dl_tensor.data.is_null());
        let first =
            first.ok_or_else(|| refused("data", "a null pointer, or an offset beyond the address space"))?;
        if !first.is_multiple_of(align_of::<T>() as u64) {
            return Err(refused("byte_offset", &format!("{first:#x} is not aligned to {}", align_of::<T>())));
        }
        let address = first.checked_sub(reach.before * size_of::<T>() as u64);
        let address = address.ok_or_else(|| refused("strides", "elements below address 0"))?;
        Ok((address, size_bytes, Layout::strided(dim, &strides, reach.before as usize)))
    }
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

/// The lengths, and the strides unless the tensor is contiguous by rows.
type Axes = (Vec<usize>, Option<Vec<isize>>);

fn axes(tensor: &DLTensor) -> Result<Axes, ArrayError> {
    let Ok(ndim) = usize::try_from(tensor.ndim) else {
        return Err(refused("ndim", &format!("{} axes", tensor.ndim)));
    };
    let numbers = |first: *mut i64| match first.is_null() || ndim == 0 {
        true => &[][..],
        // SAFETY: the promise of `from_raw`: there are as many numbers as axes.
        false => unsafe { core::slice::from_raw_parts(first, ndim) },
    };
    if tensor.shape.is_null() && ndim > 0 {
        return Err(refused("shape", "a null pointer"));
    }
    let len = |len: &i64| usize::try_from(*len).map_err(|_| refused("shape", &format!("the length {len}")));
    let shape = numbers(tensor.shape).iter().map(len).collect::<Result<Vec<_>, _>>()?;
    let stride =
        |step: &i64| isize::try_from(*step).map_err(|_| refused("strides", &format!("the stride {step}")));
    let strides = numbers(tensor.strides).iter().map(stride).collect::<Result<Vec<_>, _>>()?;
    Ok((shape, (strides.len() == ndim).then_some(strides)))
}

fn check_place(found: DLDevice, device: &Device) -> Result<(), ArrayError> {
    let DLDevice { device_type, device_id } = found;
    match device_type {
        raw::CUDA_HOST => Ok(()),
        raw::CUDA | raw::CUDA_MANAGED if i64::from(device_id) == i64::from(device.ordinal()) => Ok(()),
        _ => Err(refused("device", &format!("type {device_type}, device {device_id}, expected {device}"))),
    }
}

fn device_of(kind: MemoryKind, device: &Device) -> DLDevice {
    let device_id = device.ordinal().cast_signed();
    match kind {
        MemoryKind::Host => DLDevice { device_type: raw::CUDA_HOST, device_id: 0 },
        MemoryKind::Unified => DLDevice { device_type: raw::CUDA_MANAGED, device_id },
        _ => DLDevice { device_type: raw::CUDA, device_id },
    }
}

fn refused(field: &'static str, problem: &str) -> ArrayError {
    ArrayError::Dlpack { field, problem: problem.into() }
}

impl Drop for DlpackTensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.as_raw().deleter {
            // SAFETY: the tensor is owned, so this is the only call.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
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

/// Returns whether no element is at two indices: each stride leads beyond the elements of the smaller ones.
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

impl<T: Element> Vector for DlpackArray<T, Ix1> {}

impl fmt::Debug for DlpackTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DlpackTensor").field(self.as_raw()).finish()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for DlpackArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlpackArray").field("view", &self.view()).finish_non_exhaustive()
    }
}

/// The version of exported tensors: 1.0 has every field that is used here.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };
