//! gpumem's arrays as buffers of cust, and cust's buffers as arrays of gpumem, without a copy. A module to copy into a program.
//!
//! | from | to | by | freed by |
//! | --- | --- | --- | --- |
//! | an array | a buffer, inside a closure | [`read`], [`write`] | gpumem |
//! | an array | a buffer, as long as you like | [`Given::new`], [`Given::take_back`] | gpumem |
//! | a buffer | an array | [`Adopted::new`], [`Adopted::into_buffer`] | cust |
//!
//! Arrays in device, unified and pinned memory are a [`DeviceBuffer`], a [`UnifiedBuffer`] and a [`LockedBuffer`]. A block of a pool
//! becomes an array by `GpuArray::from_block`, and an array a block by `into_block`.
//!
//! Both libraries use the device's primary context. cust works on a [`CustStream`]: the stream waits, on the device, for the uses of the
//! array so far, and later uses wait for the work on it. cust's blocking calls run on the default stream, which is in order with all
//! streams of cust: it creates none that is non-blocking. cust's slices of device memory (`DeviceSlice`) have no lifetime, so cust's own
//! rule applies: none is used after its buffer is gone.

use cust::memory::{
    DeviceBuffer, DeviceCopy, DevicePointer, DeviceSlice, LockedBuffer, UnifiedBuffer, UnifiedPointer,
};
use cust::stream::StreamFlags;
use gpumem_array::dlpack::dlpark::ffi::{DLDevice, DLDeviceType};
use gpumem_array::dlpack::dlpark::{metadata::Dynamic, versioned::Dlpack};
use gpumem_array::dlpack::{DlpackArray, DlpackElement};
use gpumem_array::kind::{self, Kind};
use gpumem_array::ndarray::{Dimension, Ix1};
use gpumem_array::pool::sys::types::{CUcontext, CUpointer_attribute};
use gpumem_array::pool::{Device, DeviceError, PoolError, Stream};
use gpumem_array::{ArrayError, Gpu, GpuArray, GpuView, GpuViewMut};
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Why memory did not change hands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CustError {
    /// The buffer was allocated in another context than the one of the `Gpu`.
    #[error(
        "cust's buffer at {address:#x} belongs to another context than that of {device}: allocate it while the \
         `cust::context::Context` of that device is current, or use a `Gpu` of the other device"
    )]
    OtherContext {
        /// The address of the buffer.
        address: u64,
        /// The device of the `Gpu`.
        device: String,
    },
    /// The stream is not in order with the default stream, which cust's blocking calls run on.
    #[error(
        "a non-blocking stream is not in order with cust's blocking calls: create it without the flag NON_BLOCKING"
    )]
    NonBlocking,
    /// The tensor that carries the buffer cannot be described.
    #[error("a buffer of {len} elements cannot be described as a tensor: {problem}")]
    Tensor {
        /// The number of elements.
        len: usize,
        /// The cause.
        problem: String,
    },
    /// A graph or another part of the program still holds the memory.
    #[error("the buffer at {address:#x} is still used; drop the graphs that use it first")]
    InUse {
        /// The address of the buffer.
        address: u64,
    },
    /// An operation of gpumem failed.
    #[error(transparent)]
    Array(#[from] ArrayError),
}

impl From<DeviceError> for CustError {
    fn from(error: DeviceError) -> Self {
        Self::Array(error.into())
    }
}

impl From<PoolError> for CustError {
    fn from(error: PoolError) -> Self {
        Self::Array(error.into())
    }
}

/// An error together with the value that was passed in, unchanged.
pub struct Refused<V>(Box<(CustError, V)>);

impl<V> Refused<V> {
    fn new(error: impl Into<CustError>, value: V) -> Self {
        Self(Box::new((error.into(), value)))
    }

    /// The error and the value.
    pub fn into_parts(self) -> (CustError, V) {
        *self.0
    }
}

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

impl<V> fmt::Display for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

impl<V> Error for Refused<V> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.0.source()
    }
}

impl<V> From<Refused<V>> for CustError {
    fn from(refused: Refused<V>) -> Self {
        refused.0.0
    }
}

/// A stream of cust that gpumem knows. cust destroys it when this is dropped.
pub struct CustStream {
    known: Stream,
    cust: cust::stream::Stream,
}

impl CustStream {
    /// # Errors
    ///
    /// - [`CustError::NonBlocking`] for a stream that is not in order with the default stream.
    /// - [`CustError::Array`] with `DeviceError::WrongDevice` for a stream of another context than the device's primary one.
    pub fn new(device: &Device, stream: cust::stream::Stream) -> Result<Self, Refused<cust::stream::Stream>> {
        // A failure has another cause, which the next call returns.
        if stream.get_flags().is_ok_and(|flags| flags.contains(StreamFlags::NON_BLOCKING)) {
            return Err(Refused::new(CustError::NonBlocking, stream));
        }
        // SAFETY: the stream is alive, and `drop` retires it before cust destroys it.
        match unsafe { Stream::from_raw(device, stream.as_inner().cast()) } {
            Ok(known) => Ok(Self { known, cust: stream }),
            Err(error) => Err(Refused::new(error, stream)),
        }
    }

    /// The stream, for gpumem's calls.
    pub fn known(&self) -> &Stream {
        &self.known
    }
}

impl Deref for CustStream {
    type Target = cust::stream::Stream;

    fn deref(&self) -> &Self::Target {
        &self.cust
    }
}

impl Drop for CustStream {
    fn drop(&mut self) {
        // It can fail only if a clone of `known` was retired before.
        let _ = self.known.retire();
    }
}

/// An element type of both libraries.
pub trait Shared: DlpackElement + DeviceCopy {}
impl<T: DlpackElement + DeviceCopy> Shared for T {}

/// A kind of memory of gpumem, with cust's buffer for it.
pub trait CustKind: Kind + Sized + sealed::Sealed {
    /// cust's buffer.
    type Buffer<T: Shared>: CustBuffer<Element = T>;

    /// Waits on the host until it may read, and if `T` is given exclusively write, the elements. Nothing for device memory.
    #[doc(hidden)]
    fn wait_to_read<T: Shared, D: Dimension>(array: &GpuArray<T, D, Self>) -> Result<(), ArrayError>;
    #[doc(hidden)]
    fn wait_to_write<T: Shared, D: Dimension>(array: &mut GpuArray<T, D, Self>) -> Result<(), ArrayError>;
}

/// A buffer of cust.
pub trait CustBuffer: sealed::Sealed {
    /// The element type.
    type Element: Shared;
    #[doc(hidden)]
    const DEVICE_TYPE: DLDeviceType;
    #[doc(hidden)]
    fn address(&self) -> u64;
    #[doc(hidden)]
    fn count(&self) -> usize;
    /// # Safety
    ///
    /// The memory is of the buffer's kind and has `len` elements. The result must not be dropped, and not be used after the memory.
    #[doc(hidden)]
    unsafe fn over(address: u64, len: usize) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! buffers {
    ($($kind:ident: $buffer:ident, $device_type:ident;)*) => {
        $(
            impl sealed::Sealed for kind::$kind {}
            impl<T: Shared> sealed::Sealed for $buffer<T> {}
        )*
    };
}
buffers! { DeviceLocal: DeviceBuffer, CUDA; Unified: UnifiedBuffer, CUDAMANAGED; Pinned: LockedBuffer, CUDAHOST; }

impl CustKind for kind::DeviceLocal {
    type Buffer<T: Shared> = DeviceBuffer<T>;

    fn wait_to_read<T: Shared, D: Dimension>(_: &GpuArray<T, D, Self>) -> Result<(), ArrayError> {
        Ok(())
    }
    fn wait_to_write<T: Shared, D: Dimension>(_: &mut GpuArray<T, D, Self>) -> Result<(), ArrayError> {
        Ok(())
    }
}

macro_rules! host_kinds {
    ($($kind:ident: $buffer:ident;)*) => {
        $(
            impl CustKind for kind::$kind {
                type Buffer<T: Shared> = $buffer<T>;

                fn wait_to_read<T: Shared, D: Dimension>(array: &GpuArray<T, D, Self>) -> Result<(), ArrayError> {
                    array.as_slice().map(drop)
                }
                fn wait_to_write<T: Shared, D: Dimension>(array: &mut GpuArray<T, D, Self>) -> Result<(), ArrayError> {
                    array.as_mut_slice().map(drop)
                }
            }
        )*
    };
}
host_kinds! { Unified: UnifiedBuffer; Pinned: LockedBuffer; }

impl<T: Shared> CustBuffer for DeviceBuffer<T> {
    type Element = T;
    const DEVICE_TYPE: DLDeviceType = DLDeviceType::CUDA;

    fn address(&self) -> u64 {
        self.as_device_ptr().as_raw()
    }
    fn count(&self) -> usize {
        self.len()
    }
    unsafe fn over(address: u64, len: usize) -> Self {
        // SAFETY: the caller does not drop the buffer, so cust never frees the memory.
        unsafe { Self::from_raw_parts(DevicePointer::from_raw(address), len) }
    }
}

impl<T: Shared> CustBuffer for UnifiedBuffer<T> {
    type Element = T;
    const DEVICE_TYPE: DLDeviceType = DLDeviceType::CUDAMANAGED;

    fn address(&self) -> u64 {
        self.as_slice().as_ptr().expose_provenance() as u64
    }
    fn count(&self) -> usize {
        self.len()
    }
    unsafe fn over(address: u64, len: usize) -> Self {
        // SAFETY: the pointer is not null; the caller does not drop the buffer, so cust never frees the memory.
        unsafe { Self::from_raw_parts(UnifiedPointer::wrap(host_pointer(address)), len) }
    }
}

impl<T: Shared> CustBuffer for LockedBuffer<T> {
    type Element = T;
    const DEVICE_TYPE: DLDeviceType = DLDeviceType::CUDAHOST;

    fn address(&self) -> u64 {
        self.as_slice().as_ptr().expose_provenance() as u64
    }
    fn count(&self) -> usize {
        self.len()
    }
    unsafe fn over(address: u64, len: usize) -> Self {
        // SAFETY: the pointer is not null; the caller does not drop the buffer, so cust never frees the memory.
        unsafe { Self::from_raw_parts(host_pointer(address), len) }
    }
}

/// cust makes slices of the pointer, also of no elements: it must not be null.
fn host_pointer<T>(address: u64) -> *mut T {
    match address {
        0 => NonNull::dangling().as_ptr(),
        address => std::ptr::with_exposed_provenance_mut(address as usize),
    }
}

/// Lends an array to cust, which reads it in `body`, with work on `stream` or with blocking calls.
///
/// # Errors
///
/// [`CustError::Array`] with the causes that `GpuView::read_on` and, for unified and pinned arrays, `GpuArray::as_slice` list.
pub fn read<T: Shared, D: Dimension, K: CustKind, R>(
    array: &GpuArray<T, D, K>,
    stream: &CustStream,
    body: impl FnOnce(&K::Buffer<T>) -> R,
) -> Result<R, CustError> {
    K::wait_to_read(array)?;
    let guard = array.read_on(&stream.known)?;
    // SAFETY: the array has `len` elements of the kind `K`, and is borrowed until the end of this function.
    let buffer = ManuallyDrop::new(unsafe { K::Buffer::<T>::over(guard.address(), array.len()) });
    Ok(body(&buffer))
}

/// Lends an array to cust, which reads and writes it in `body`, with work on `stream` or with blocking calls. Each value that cust
/// writes must be a valid `T`.
///
/// # Errors
///
/// [`CustError::Array`] with the causes that `GpuView::read_on` and, for unified and pinned arrays, `GpuArray::as_mut_slice` list.
pub fn write<T: Shared, D: Dimension, K: CustKind, R>(
    array: &mut GpuArray<T, D, K>,
    stream: &CustStream,
    body: impl for<'scope> FnOnce(&mut Lent<'scope, K::Buffer<T>>) -> R,
) -> Result<R, CustError> {
    K::wait_to_write(array)?;
    let len = array.len();
    let guard = array.write_on(&stream.known)?;
    // SAFETY: the array has `len` elements of the kind `K`, and is borrowed exclusively until the end of this function.
    let mut lent = unsafe { Lent::new(guard.address(), len) };
    Ok(body(&mut lent))
}

/// A buffer that cust may use and write, but not free.
///
/// It dereferences to cust's buffer. There is no `&mut` to the buffer itself: a program could move the buffer out, and cust would free it.
pub struct Lent<'scope, B> {
    buffer: ManuallyDrop<B>,
    /// Two buffers of nested closures cannot be exchanged.
    scope: PhantomData<fn(&'scope ()) -> &'scope ()>,
}

impl<B: CustBuffer> Lent<'_, B> {
    /// # Safety
    ///
    /// The memory is of the buffer's kind and has `len` elements, which nothing else uses while the result exists.
    unsafe fn new(address: u64, len: usize) -> Self {
        // SAFETY: the caller's promise; the buffer is never dropped.
        Self { buffer: ManuallyDrop::new(unsafe { B::over(address, len) }), scope: PhantomData }
    }
}

impl<B> Deref for Lent<'_, B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.buffer
    }
}

impl<T: Shared> Lent<'_, DeviceBuffer<T>> {
    /// The elements, for cust's copies and fills.
    pub fn as_mut_slice(&mut self) -> &mut DeviceSlice<T> {
        &mut self.buffer
    }
}

impl<T: Shared> Lent<'_, UnifiedBuffer<T>> {
    /// The elements, for the host.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.buffer.as_mut_slice()
    }

    /// The address, for launches.
    pub fn as_unified_ptr(&mut self) -> UnifiedPointer<T> {
        self.buffer.as_unified_ptr()
    }
}

impl<T: Shared> Lent<'_, LockedBuffer<T>> {
    /// The elements, for the host and for cust's copies.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.buffer.as_mut_slice()
    }
}

/// An array in cust's hands. It dereferences to [`Lent`], and that to cust's buffer. Dropping it frees the memory to gpumem's pool, behind
/// cust's work.
pub struct Given<'a, T: Shared, D: Dimension, K: CustKind> {
    lent: Lent<'static, K::Buffer<T>>,
    array: GpuArray<T, D, K>,
    /// While it lives, the memory is in order with cust's blocking calls.
    stream: PhantomData<&'a CustStream>,
}

impl<'a, T: Shared, D: Dimension, K: CustKind> Given<'a, T, D, K> {
    /// Gives an array to cust, for work on `stream` and for blocking calls.
    ///
    /// # Errors
    ///
    /// The causes that [`write`] lists. The error contains the array.
    pub fn new(
        mut array: GpuArray<T, D, K>,
        stream: &'a CustStream,
    ) -> Result<Self, Refused<GpuArray<T, D, K>>> {
        let len = array.len();
        let address = K::wait_to_write(&mut array).and_then(|()| {
            let guard = array.write_on(&stream.known)?;
            let address = guard.address();
            // A leaked guard covers all work on the stream up to the moment when another stream waits for the array.
            std::mem::forget(guard);
            Ok(address)
        });
        match address {
            // SAFETY: the array has `len` elements of the kind `K`; it is not used before it is taken back.
            Ok(address) => Ok(Self { lent: unsafe { Lent::new(address, len) }, array, stream: PhantomData }),
            Err(error) => Err(Refused::new(error, array)),
        }
    }

    /// The array again. Its later uses wait, on the device, for cust's work.
    pub fn take_back(self) -> GpuArray<T, D, K> {
        self.array
    }
}

impl<T: Shared, D: Dimension, K: CustKind> Deref for Given<'_, T, D, K> {
    type Target = Lent<'static, K::Buffer<T>>;

    fn deref(&self) -> &Self::Target {
        &self.lent
    }
}

impl<T: Shared, D: Dimension> Given<'_, T, D, kind::DeviceLocal> {
    /// The elements, for cust's copies and fills.
    pub fn as_mut_slice(&mut self) -> &mut DeviceSlice<T> {
        self.lent.as_mut_slice()
    }
}

impl<T: Shared, D: Dimension> Given<'_, T, D, kind::Unified> {
    /// The elements, for the host.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.lent.as_mut_slice()
    }

    /// The address, for launches.
    pub fn as_unified_ptr(&mut self) -> UnifiedPointer<T> {
        self.lent.as_unified_ptr()
    }
}

impl<T: Shared, D: Dimension> Given<'_, T, D, kind::Pinned> {
    /// The elements, for the host and for cust's copies.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.lent.as_mut_slice()
    }
}

/// A buffer of cust as an array of gpumem, which work on any stream uses. cust frees it when this is dropped, after that work.
pub struct Adopted<B: CustBuffer> {
    // Dropped before the owner: the stream of the `Gpu` then waits for the uses on other streams.
    array: DlpackArray<B::Element, Ix1>,
    owner: Arc<Owner<B>>,
}

impl<B: CustBuffer + 'static> Adopted<B> {
    /// Takes a buffer. cust's blocking calls are complete, or ordered on the default stream, which the stream of `gpu` waits for; cust
    /// leaves it to its caller that asynchronous work on a buffer has ended before anything else uses it.
    ///
    /// # Errors
    ///
    /// - [`CustError::OtherContext`] if the buffer was allocated in another context.
    /// - [`CustError::Array`] if the stream of `gpu` captures, or if a driver call fails. The error contains the buffer.
    pub fn new(gpu: &Gpu, buffer: B) -> Result<Self, Refused<B>> {
        if let Err(error) = check(gpu, &buffer) {
            return Err(Refused::new(error, buffer));
        }
        let (address, len) = (buffer.address(), buffer.count());
        let owner = Arc::new(Owner { buffer: Some(buffer), stream: gpu.stream().clone() });
        match Self::array(gpu, address, len, &owner) {
            Ok(array) => Ok(Self { array, owner }),
            Err(error) => Err(match Owner::into_buffer(owner) {
                Ok(buffer) => Refused::new(error, buffer),
                Err(_) => unreachable!("the tensor is gone"),
            }),
        }
    }

    fn array(
        gpu: &Gpu,
        address: u64,
        len: usize,
        owner: &Arc<Owner<B>>,
    ) -> Result<DlpackArray<B::Element, Ix1>, CustError> {
        let refused = |problem: String| CustError::Tensor { len, problem };
        let shape = [i64::try_from(len).map_err(|error| refused(error.to_string()))?];
        let tensor = Dynamic::compact(shape).initialize(Box::new(owner.clone()));
        let mut tensor = tensor.map_err(|error| refused(error.to_string()))?;
        // The driver's numbers of devices are small.
        let device_id = match B::DEVICE_TYPE {
            DLDeviceType::CUDAHOST => 0,
            _ => gpu.device().ordinal().cast_signed(),
        };
        let data = if len == 0 { 0 } else { address as usize };
        tensor
            .set_data(std::ptr::with_exposed_provenance_mut(data))
            .set_device(DLDevice { device_type: B::DEVICE_TYPE, device_id })
            .set_dtype(B::Element::DATA_TYPE);
        // SAFETY: the description is that of the buffer, which the tensor keeps.
        let tensor: Dlpack = unsafe { tensor.finish() };
        // SAFETY: the memory lives until the deleter has dropped its share of the owner. The stream of `gpu` is ordered behind cust's
        // work (`check`). cust does not use the buffer until `into_buffer` or the drop, which wait for the stream.
        Ok(unsafe { DlpackArray::from_dlpack(gpu, tensor) }.map_err(ArrayError::from)?)
    }

    /// The elements, for operations of gpumem.
    pub fn view(&self) -> GpuView<'_, B::Element, Ix1> {
        self.array.view()
    }

    /// The elements, for operations of gpumem that write.
    ///
    /// # Errors
    ///
    /// None for a buffer; the error is that of `DlpackArray::view_mut`.
    pub fn view_mut(&mut self) -> Result<GpuViewMut<'_, B::Element, Ix1>, ArrayError> {
        self.array.view_mut()
    }

    /// The buffer again, after all work on it has ended.
    ///
    /// # Errors
    ///
    /// - [`CustError::Array`] if the stream of the `Gpu` cannot be waited for. cust does not free the buffer then.
    /// - [`CustError::InUse`] if a graph holds the memory; cust frees it after the graph.
    pub fn into_buffer(self) -> Result<B, CustError> {
        let Self { array, owner } = self;
        drop(array);
        owner.stream.synchronize()?;
        Owner::into_buffer(owner).map_err(|owner| CustError::InUse { address: owner.address() })
    }
}

/// Checks the context, and orders the stream behind cust's blocking calls.
fn check<B: CustBuffer>(gpu: &Gpu, buffer: &B) -> Result<(), CustError> {
    let device = gpu.device();
    gpu.stream().wait_for(&Stream::legacy(device)?)?;
    if buffer.count() == 0 {
        return Ok(());
    }
    let (address, mut found) = (buffer.address(), std::ptr::null_mut::<()>() as CUcontext);
    let _bound = device.bind()?;
    // SAFETY: the attribute is a context, and there is room for one.
    let asked = unsafe {
        device.driver().cuPointerGetAttribute(
            (&raw mut found).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            address,
        )
    };
    asked.map_err(PoolError::from)?;
    match found == device.context() {
        true => Ok(()),
        false => Err(CustError::OtherContext { address, device: device.to_string() }),
    }
}

/// A buffer that cust frees, in its context, after the work on a stream.
struct Owner<B: CustBuffer> {
    /// `None` once it has been taken out.
    buffer: Option<B>,
    stream: Stream,
}

// SAFETY: no reference to the buffer is given out while it is shared. cust's buffers may be freed on any thread.
unsafe impl<B: CustBuffer> Send for Owner<B> where B::Element: Send {}
// SAFETY: a shared owner only names the address of the buffer; the last one takes or drops it.
unsafe impl<B: CustBuffer> Sync for Owner<B> where B::Element: Send {}

impl<B: CustBuffer> Owner<B> {
    fn address(&self) -> u64 {
        self.buffer.as_ref().map_or(0, B::address)
    }

    /// The buffer, if nothing else holds it.
    fn into_buffer(owner: Arc<Self>) -> Result<B, Arc<Self>> {
        let mut owner = Arc::try_unwrap(owner)?;
        let Some(buffer) = owner.buffer.take() else { unreachable!("only this function takes the buffer") };
        Ok(buffer)
    }
}

impl<B: CustBuffer> Drop for Owner<B> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        // cust frees in the thread's current context, and may be called on any thread.
        match (self.stream.synchronize(), self.stream.device().bind()) {
            (Ok(()), Ok(_bound)) => drop(buffer),
            // Work may still use the memory.
            _ => std::mem::forget(buffer),
        }
    }
}
