//! Shares streams, slices and libraries with cudarc, without copies.
//!
//! cudarc and this crate both retain the primary context of a device, so they share memory and streams. [`SharedStream`] wraps one of
//! cudarc's streams in a [`Stream`] and keeps it alive. cudarc's safe API then takes arrays as arguments: [`SharedStream::read`] and
//! [`SharedStream::write`] return guards that implement [`DevicePtr`], [`DevicePtrMut`] and [`PushKernelArg`]. The stream waits, on the
//! device, for the uses of the array so far, and later uses on other streams wait for what is queued until the guard is dropped.
//!
//! ```no_run
//! use gpumem_array::cudarc::{self, SharedStream, cudarc::driver::CudaContext};
//! use gpumem_array::{Gpu, GpuArray, pool::{Pool, sys::Driver}};
//!
//! let context = CudaContext::new(0)?;
//! let stream = context.new_stream()?;
//! let device = cudarc::device(&Driver::cuda()?, &context)?;
//! let gpu = Gpu::new(&Pool::new(&device)?)?;
//! let shared = SharedStream::new(&device, &stream)?;
//!
//! let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0])?;
//! let mut y = GpuArray::<f32, _>::zeros(&gpu, 3)?;
//! stream.memcpy_dtod(&shared.read(&x)?, &mut shared.write(&mut y)?)?; // any function of cudarc that takes slices
//! assert_eq!(y.sum()?.into_scalar()?, 6.0); // waits for the copy, on the device
//!
//! let y = GpuArray::from_cuda_slice(&gpu, stream.clone_htod(&[4.0_f32, 5.0])?)?; // cudarc's memory, in place
//! let lent = (y + 1.0).lend_to_cudarc(&shared)?; // the pool's memory, in place
//! assert_eq!(stream.clone_dtoh(lent.as_slice())?, [5.0, 6.0]);
//! let y = lent.into_array()?;
//! # drop(y);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//!
//! - cudarc records uses of its slices with events, unless [`CudaContext::disable_event_tracking`] turned them off. In that case only work
//!   on the slice's own stream is waited for, as in cudarc.
//! - cudarc keeps only one event for the reads of a slice, of the last read. If several streams have read a slice (or a lent array), wait
//!   for the others before it is written, dropped or returned.
//! - A `CudaContext` without a live stream of [`CudaContext::new_stream`] does not order its slices with streams of another `CudaContext`.
//!   Share one context per device, or wait between the two.
//! - A copy between devices (`memcpy_dtod`) runs on the stream of its target. cudarc does not record that use of the source. Wait for that
//!   stream before the source is changed or dropped, even if the source is an array.
//! - [`CudaContext::per_thread_stream`] cannot be shared: its handle means a different stream on each thread.

use crate::array::foreign::{check_runs, lend_to, sealed};
use crate::array::{AsView, AsViewMut, GpuArray, OnStream, ReadOn, WriteOn};
use crate::element::Element;
use crate::element::kind::{self, Kind};
use crate::error::{ArrayError, GraphError, Rejected};
use crate::gpu::Gpu;
use crate::layout::{ElementOrder, Layout};
use crate::storage::{Access, ArrayStorage, Use};
pub use ::cudarc;
use ::cudarc::driver::result::{self, ctx};
use ::cudarc::driver::sys::{
    CUdeviceptr, CUresult as TheirResult, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, is_culib_present,
};
use ::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    DriverError as TheirError, LaunchArgs, PushKernelArg, SyncOnDrop,
};
use core::fmt;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::sys::types::{CUstreamCaptureStatus, cudaError_enum};
use gpumem_pool::sys::{Driver, DriverError, fork};
use gpumem_pool::{Device, DeviceError, KeptBy, MemoryKind, MemoryRange, Stream, StreamError};
use ndarray::{Dimension, Ix1};
use std::sync::Arc;

/// Opens the device of a context of cudarc. `driver` is the driver that cudarc has loaded: [`Driver::cuda`], or [`Driver::drop_in`] where
/// gpumem's simulator is installed under the driver's name.
///
/// # Errors
///
/// - [`ArrayError::Cudarc`] for a context that is not the device's primary one ([`CudaContext::new`]), or of another driver.
/// - [`ArrayError::Pool`] if a driver call fails.
pub fn device(driver: &Driver, context: &CudaContext) -> Result<Device, ArrayError> {
    let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
    let device = Device::new(driver, ordinal)?;
    check_context(&device, context)?;
    Ok(device)
}

/// cudarc's context of a device. Its streams can be shared ([`SharedStream`]).
///
/// # Errors
///
/// - [`ArrayError::Cudarc`] if cudarc finds no driver, or loads a different one than `device` uses.
/// - [`ArrayError::Pool`] if a driver call fails.
pub fn context(device: &Device) -> Result<Arc<CudaContext>, ArrayError> {
    // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
    if !unsafe { is_culib_present() } {
        return Err(unfit("driver", "no libcuda where cudarc looks for it; install NVIDIA's driver"));
    }
    result::init().map_err(failed("cuInit"))?;
    // cudarc's constructor leaves its context current.
    let _restored = TheirCurrent::save()?;
    let _bound = device.bind()?;
    let context = CudaContext::new(device.ordinal() as usize).map_err(failed("CudaContext::new"))?;
    check_context(device, &context)?;
    Ok(context)
}

/// Restores, when dropped, the context that was current for cudarc.
struct TheirCurrent(Option<::cudarc::driver::sys::CUcontext>);

impl TheirCurrent {
    fn save() -> Result<Self, ArrayError> {
        Ok(Self(ctx::get_current().map_err(failed("cuCtxGetCurrent"))?))
    }
}

impl Drop for TheirCurrent {
    fn drop(&mut self) {
        let found = ctx::get_current().ok().flatten();
        if found != self.0 {
            // SAFETY: the context was current before. Its owner may have destroyed it since, which is then an error of the call.
            let _ = unsafe { ctx::set_current(self.0.unwrap_or(core::ptr::null_mut())) };
        }
    }
}

/// Checks that a context of cudarc is the primary context of the device, in one driver.
fn check_context(device: &Device, context: &CudaContext) -> Result<(), ArrayError> {
    if context.ordinal() != device.ordinal() as usize {
        let found = format!("device {} of cudarc", context.ordinal());
        return Err(ArrayError::WrongDevice { expected: device.to_string(), found });
    }
    if context.cu_ctx().addr() != device.context().addr() || !is_same_driver(device, context)? {
        return Err(unfit(
            "context",
            "it is not the device's primary context, or another driver's; create it with `CudaContext::new`, and open the device with the \
             driver that cudarc loads (`Driver::cuda`, or `Driver::drop_in` for the simulator under its name)",
        ));
    }
    Ok(())
}

/// True if the device's driver sees cudarc change the current context. Contexts of two drivers may have equal addresses.
fn is_same_driver(device: &Device, context: &CudaContext) -> Result<bool, ArrayError> {
    let theirs = || ctx::get_current().map_err(failed("cuCtxGetCurrent"));
    let agrees = || -> Result<bool, ArrayError> {
        let mut ours = core::ptr::null_mut();
        // SAFETY: `ours` outlives the call.
        unsafe { device.driver().cuCtxGetCurrent(&mut ours)? };
        Ok(theirs()?.map_or(0, |theirs| theirs.addr()) == ours.addr())
    };
    let push = || {
        // SAFETY: the context is alive.
        let pushed = unsafe { cuCtxPushCurrent_v2(context.cu_ctx()) }.result();
        pushed.map_err(failed("cuCtxPushCurrent"))
    };
    let pop = || {
        let mut popped = core::ptr::null_mut();
        // SAFETY: `popped` outlives the call.
        unsafe { cuCtxPopCurrent_v2(&mut popped) }.result().map_err(failed("cuCtxPopCurrent"))
    };
    let before = agrees()?;
    let is_current = theirs()? == Some(context.cu_ctx());
    if is_current {
        pop()?
    } else {
        push()?
    }
    let changed = agrees();
    // Restores the stack of contexts.
    if is_current {
        push()?
    } else {
        pop()?
    }
    Ok(before && changed?)
}

/// A stream of cudarc, as a [`Stream`] of gpumem. Clones share it, and keep it alive with all clones of the `Stream`.
///
/// It is a stream like any other: [`Gpu::with_stream`], allocations and waits take [`SharedStream::stream`], and
/// [`GpuView::read_on`](crate::GpuView::read_on) takes it for libraries that cudarc does not wrap safely.
#[derive(Clone, Debug)]
pub struct SharedStream {
    ours: Stream,
    theirs: ManuallyDrop<Arc<CudaStream>>,
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        // Dropping cudarc's stream or context leaves that context current.
        let _bound = self.ours.device().bind();
        // SAFETY: it is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.theirs) };
    }
}

impl SharedStream {
    /// Shares a stream of cudarc on the same device.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the stream is on another device.
    /// - [`ArrayError::Cudarc`] if its context is not the device's primary one or another driver's, and for
    ///   [`CudaContext::per_thread_stream`].
    /// - [`ArrayError::Pool`] if a driver call fails.
    pub fn new(device: &Device, stream: &Arc<CudaStream>) -> Result<Self, ArrayError> {
        check_context(device, stream.context())?;
        if stream.cu_stream().addr() == PER_THREAD {
            return Err(unfit(
                "stream",
                "the handle of a per-thread stream means another stream on each thread; use `CudaContext::new_stream`",
            ));
        }
        // SAFETY: the check above: it is a stream of the device's primary context. The `Arc` keeps it alive: cudarc destroys a stream
        // with its last `Arc`, and the unsafe constructor of a borrowed one requires that the stream outlives the `Arc`.
        let ours = unsafe { Stream::from_raw_with_owner(device, stream.cu_stream().cast(), stream.clone())? };
        Ok(Self { ours, theirs: ManuallyDrop::new(stream.clone()) })
    }

    /// The stream as a [`Stream`], for this crate and the pool.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.ours
    }

    /// The stream as cudarc's type.
    #[must_use]
    pub fn cudarc(&self) -> &Arc<CudaStream> {
        &self.theirs
    }

    /// Lends the elements of an array or view to functions of cudarc that read them on this stream.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NotContiguous`] if the elements are not contiguous, [`ArrayError::Graph`] if the stream captures, and the errors of
    /// [`GpuView::read_on`](crate::GpuView::read_on).
    pub fn read<'a, A: AsView + ?Sized>(
        &'a self,
        array: &'a A,
    ) -> Result<ReadSlice<'a, A::Elem, A::Dim>, ArrayError> {
        let view = array.as_view();
        check_contiguous(view.layout(), "lending to cudarc")?;
        self.check_runs()?;
        let len = view.layout().len();
        let guard = view.read_on(self)?;
        Ok(ReadSlice { place: SlicePlace::new(self, guard.address(), len), guard })
    }

    /// Lends the elements of an array or view to functions of cudarc that write them on this stream, and may read them.
    ///
    /// The functions must write valid values of the element type; downloads check them.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NotContiguous`] if the elements are not contiguous, [`ArrayError::Graph`] if the stream captures, and the errors of
    /// [`GpuViewMut::write_on`](crate::GpuViewMut::write_on).
    pub fn write<'a, A: AsViewMut + ?Sized>(
        &'a self,
        array: &'a mut A,
    ) -> Result<WriteSlice<'a, A::Elem, A::Dim>, ArrayError> {
        let view = array.as_view_mut();
        check_contiguous(view.layout(), "lending to cudarc")?;
        self.check_runs()?;
        let len = view.layout().len();
        let guard = view.write_on(self)?;
        Ok(WriteSlice { place: SlicePlace::new(self, guard.address(), len), guard })
    }

    /// Returns an error if the stream captures, even in a capture that cudarc began. Called before waits, which would break the capture.
    fn check_runs(&self) -> Result<(), ArrayError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let _bound = self.ours.device().bind()?;
        let asked = self.ours.queue_work(MemoryRange::NONE, |raw| {
            // SAFETY: `status` outlives the call, and the stream is alive.
            unsafe { self.ours.device().driver().cuStreamIsCapturing(raw, &mut status) }
        })?;
        match asked {
            // The default stream captures nothing, but a stream that it waits for may.
            Err(error) if error.code() == cudaError_enum::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(()),
            Err(DriverError::Missing { .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            Ok(()) => Err(GraphError::StreamCaptures.into()),
        }
    }
}

impl OnStream for SharedStream {
    fn stream(&self) -> &Stream {
        &self.ours
    }
    fn capture(&self) -> sealed::RecordingRef<'_> {
        sealed::RecordingRef(None)
    }
}

fn check_contiguous<D: Dimension>(layout: &Layout<D>, operation: &'static str) -> Result<(), ArrayError> {
    match layout.order() {
        Some(_) => Ok(()),
        None => {
            Err(layout.not_contiguous(operation, "copy the elements first (`to_owned`), or use `read_on`"))
        }
    }
}

/// Elements that cudarc's functions read on a stream; see [`SharedStream::read`].
///
/// An argument of a launch ([`CudaStream::launch_builder`]) must be launched on the stream of the guard. Other functions may be called with
/// another stream of the device: that stream waits for the guard's stream, and the host for the work. They fail if the guard's stream has
/// begun to capture or was retired.
#[must_use = "the use ends when the guard is dropped"]
pub struct ReadSlice<'a, T, D> {
    // Dropped first: it may wait for the work.
    place: SlicePlace<'a>,
    guard: ReadOn<'a, T, D>,
}

/// Elements that cudarc's functions write on a stream, and may read; see [`SharedStream::write`].
///
/// For launches and other streams, see [`ReadSlice`].
#[must_use = "the use ends when the guard is dropped"]
pub struct WriteSlice<'a, T, D> {
    // Dropped first: it may wait for the work.
    place: SlicePlace<'a>,
    guard: WriteOn<'a, T, D>,
}

struct SlicePlace<'a> {
    stream: &'a SharedStream,
    /// Launches take its address.
    address: CUdeviceptr,
    len: usize,
    /// True if a function has used the elements on another stream.
    is_used_elsewhere: AtomicBool,
}

impl<'a> SlicePlace<'a> {
    fn new(stream: &'a SharedStream, address: u64, len: usize) -> Self {
        Self { stream, address, len, is_used_elsewhere: AtomicBool::new(false) }
    }

    /// The address for work that is about to be queued on `stream`.
    fn lend<'b>(&'b self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        let own = &self.stream.theirs;
        // The error cannot be returned here. A null pointer makes the caller's call fail.
        let refused = || (0, SyncOnDrop::Record(None));
        if stream.context().cu_ctx() != own.context().cu_ctx() {
            stream.context().record_err(Err::<(), _>(TheirError(TheirResult::CUDA_ERROR_INVALID_CONTEXT)));
            return refused();
        }
        // The stream may have begun to capture, and its graph would keep no memory. Or it was retired, and nothing waits for later work on
        // it. The error is not recorded, because `CudaStream::end_capture` would return it.
        if self.stream.check_runs().is_err() {
            return refused();
        }
        if stream.cu_stream() == own.cu_stream() {
            return (self.address, SyncOnDrop::Record(None));
        }
        self.is_used_elsewhere.store(true, Ordering::Relaxed);
        if let Err(error) = stream.join(own) {
            stream.context().record_err(Err::<(), _>(error));
            if self.stream.ours.device().synchronize_for_drop().is_err() {
                return refused();
            }
        }
        (self.address, SyncOnDrop::sync_stream(stream))
    }
}

impl Drop for SlicePlace<'_> {
    fn drop(&mut self) {
        if *self.is_used_elsewhere.get_mut() {
            // cudarc has waited for the other stream, unless an error was pending in its context. A lost context runs no work.
            let _ = self.stream.ours.device().synchronize_for_drop();
        }
    }
}

macro_rules! guard {
    ($guard:ident) => {
        impl<T: Element, D: Dimension> DeviceSlice<T> for $guard<'_, T, D> {
            fn len(&self) -> usize {
                self.place.len
            }
            fn stream(&self) -> &Arc<CudaStream> {
                &self.place.stream.theirs
            }
        }

        impl<T: Element, D: Dimension> DevicePtr<T> for $guard<'_, T, D> {
            fn device_ptr<'b>(&'b self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
                self.place.lend(stream)
            }
        }

        impl<T: Element, D: Dimension> $guard<'_, T, D> {
            /// The device address of the first element; zero if there are no elements.
            #[must_use]
            pub fn address(&self) -> u64 {
                self.place.address
            }

            /// The lengths of the axes.
            #[must_use]
            pub fn shape(&self) -> &[usize] {
                self.guard.shape()
            }
        }

        impl<T: Element, D: Dimension> fmt::Debug for $guard<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard)).field("guard", &self.guard).finish_non_exhaustive()
            }
        }
    };
}
guard!(ReadSlice);
guard!(WriteSlice);

impl<T: Element, D: Dimension> DevicePtrMut<T> for WriteSlice<'_, T, D> {
    fn device_ptr_mut<'b>(&'b mut self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        self.place.lend(stream)
    }
}

// SAFETY: the argument is the address, as kernels take pointers. It lives in the guard, which is borrowed as long as the launch.
unsafe impl<'a, 'b: 'a, T, D> PushKernelArg<&'b ReadSlice<'_, T, D>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b ReadSlice<'_, T, D>) -> &mut Self {
        PushKernelArg::<&'b CUdeviceptr>::arg(self, &arg.place.address)
    }
}

// SAFETY: as for `ReadSlice`.
unsafe impl<'a, 'b: 'a, T, D> PushKernelArg<&'b mut WriteSlice<'_, T, D>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut WriteSlice<'_, T, D>) -> &mut Self {
        let arg: &'b WriteSlice<'_, T, D> = arg;
        PushKernelArg::<&'b CUdeviceptr>::arg(self, &arg.place.address)
    }
}

impl<T: Element> GpuArray<T, Ix1> {
    /// Makes an array from a cudarc slice, in place. The stream of `gpu` waits, on the device, for the uses of the slice that cudarc has
    /// recorded, and for the work on its stream. When the array is dropped, the slice is dropped after all its uses: cudarc frees the
    /// memory on the slice's stream.
    ///
    /// The memory does not belong to a pool: limits and statistics do not include it. [`GpuArray::into_cuda_slice`] returns the slice.
    ///
    /// ```no_run
    /// use gpumem_array::cudarc::{self, cudarc::driver::CudaContext};
    /// use gpumem_array::{Gpu, GpuArray, pool::{Pool, sys::Driver}};
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let gpu = Gpu::new(&Pool::new(&cudarc::device(&Driver::cuda()?, stream.context())?)?)?;
    /// let x = GpuArray::from_cuda_slice(&gpu, stream.clone_htod(&[1.0_f32, 2.0])?)?;
    /// assert_eq!((&x * 2.0).to_vec()?, [2.0, 4.0]);
    /// let slice = x.into_cuda_slice()?;
    /// assert_eq!(stream.clone_dtoh(&slice)?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the slice is on another device than `gpu`.
    /// - [`ArrayError::Cudarc`] if its context is not the device's primary one or another driver's, or if it belongs to
    ///   [`CudaContext::per_thread_stream`].
    /// - [`ArrayError::Graph`] if its stream captures.
    /// - [`ArrayError::Pool`] if the stream of `gpu` is retired or belongs to another thread, or if a driver call fails.
    /// - [`ArrayError::Pool`] or [`ArrayError::Graph`] in a capture, and after it for its `Gpu`.
    ///
    /// The error contains the slice.
    pub fn from_cuda_slice(gpu: &Gpu, mut slice: CudaSlice<T>) -> Result<Self, Rejected<CudaSlice<T>>> {
        let (home, layout) = match take(gpu, &mut slice) {
            Ok(taken) => taken,
            Err(error) => return Err(Rejected::new(error, slice)),
        };
        let (address, size_bytes) = (address_of(&slice), slice.num_bytes() as u64);
        let place = (address, size_bytes, MemoryKind::Device);
        // SAFETY: the slice is the memory's only owner, and the stream of `gpu` waits for all that cudarc knows of its uses.
        let storage = unsafe { ArrayStorage::of_foreign(gpu, home.stream(), place, Box::new(slice)) };
        Ok(Self::over(gpu, storage, layout))
    }
}

/// Makes the stream of `gpu` wait for the uses of a slice.
fn take<T: Element>(gpu: &Gpu, slice: &mut CudaSlice<T>) -> Result<(SharedStream, Layout<Ix1>), ArrayError> {
    check_runs(gpu, "an array over a slice of cudarc")?;
    let home = SharedStream::new(gpu.device(), slice.stream())?;
    home.check_runs()?;
    let layout = Layout::dense(Ix1(slice.len()), ElementOrder::Row, size_of::<T>())?;
    wait_for_uses(&home, slice)?;
    // All work on the stream: cudarc has queued it without recording it here.
    if !gpu.stream().wait_for_point_outside_captures(home.ours.latest_point())? {
        gpu.stream().wait_for(&home.ours)?;
    }
    Ok((home, layout))
}

/// Makes the stream of a slice wait for the uses on other streams that cudarc has recorded.
fn wait_for_uses<T>(home: &SharedStream, slice: &mut CudaSlice<T>) -> Result<(), ArrayError> {
    let (device, context) = (home.ours.device(), home.theirs.context());
    let _bound = device.bind()?;
    // Only the waits matter: no use follows that would be recorded.
    let waits = without_pending(context, || core::mem::forget(slice.device_ptr_mut(&home.theirs).1));
    // A context without streams records nothing, not even uses on streams that it had and on a thread's default stream.
    let is_unrecorded = context.is_event_tracking() && !context.is_in_multi_stream_mode();
    // Nothing else waits for work that cudarc has queued on a stream since it was retired.
    let is_retired = matches!(home.ours.is_capturing(), Err(DeviceError::Stream(StreamError::Retired)));
    if waits.is_err() || is_unrecorded || is_retired {
        device.synchronize_for_drop()?;
    }
    Ok(())
}

/// Makes other streams of cudarc wait for the work that is on the stream of a slice.
fn record_write<T>(home: &Arc<CudaStream>, slice: &mut CudaSlice<T>) -> Result<(), TheirError> {
    without_pending(home.context(), || drop(slice.device_ptr_mut(home).1))
}

/// Calls cudarc, which records errors instead of returning them. While an error is pending, its calls return that error and do nothing, so
/// it is set aside during the call. All errors are pending afterwards.
///
/// # Errors
///
/// The error of the call, or the pending one: an earlier use may not have been recorded.
fn without_pending(context: &CudaContext, call: impl FnOnce()) -> Result<(), TheirError> {
    let earlier = context.check_err();
    call();
    let own = context.check_err();
    context.record_err(earlier);
    context.record_err(own);
    earlier.and(own)
}

/// The address of a slice, without a use.
fn address_of<T>(slice: &CudaSlice<T>) -> u64 {
    let (address, not_used) = slice.device_ptr(slice.stream());
    core::mem::forget(not_used);
    address
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Returns the cudarc slice that the array was made from, in place and with its original length. The stream of the slice waits, on the
    /// device, for all uses of the array.
    ///
    /// cudarc frees a slice with the driver's call, so pool memory cannot become a slice: [`GpuArray::lend_to_cudarc`] lends it.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoCudaSlice`] if the array was not made by [`GpuArray::from_cuda_slice`], or of other elements.
    /// - [`ArrayError::Pool`] if a driver call fails.
    /// - [`ArrayError::Pool`] or [`ArrayError::Graph`] in a capture, and after it for its `Gpu`.
    ///
    /// The error contains the array.
    pub fn into_cuda_slice(self) -> Result<CudaSlice<T>, Rejected<Self>> {
        let gpu = self.gpu().clone();
        if let Err(error) = check_runs(&gpu, "taking the slice of an array") {
            return Err(Rejected::new(error, self));
        }
        let (storage, layout) = self.into_parts();
        match storage.into_foreign::<CudaSlice<T>>() {
            Ok(mut slice) => {
                let _bound = gpu.device().bind();
                let stream = slice.stream().clone();
                if record_write(&stream, &mut slice).is_err() {
                    // The next use of the slice finds the error in its context.
                    let _ = gpu.device().synchronize_for_drop();
                }
                Ok(slice)
            }
            Err((error, storage)) => Err(Rejected::new(error, Self::over(&gpu, storage, layout))),
        }
    }

    /// Lends the array to cudarc as a slice, in place, even if it is pool memory. cudarc may use the slice on any stream, and records its
    /// uses. The shared stream first waits, on the device, for all uses of the array so far.
    ///
    /// [`LentSlice::into_array`] returns the array. If the lent slice is dropped instead, the memory is freed after cudarc's uses.
    ///
    /// ```no_run
    /// use gpumem_array::cudarc::{self, SharedStream, cudarc::driver::CudaContext};
    /// use gpumem_array::{Gpu, GpuArray, pool::{Pool, sys::Driver}};
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let device = cudarc::device(&Driver::cuda()?, stream.context())?;
    /// let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let shared = SharedStream::new(&device, &stream)?;
    ///
    /// let mut lent = GpuArray::from_elem(&gpu, (2, 3), 1.5_f32)?.lend_to_cudarc(&shared)?;
    /// stream.memset_zeros(&mut lent.as_view_mut().slice_mut(0..3))?;
    /// assert_eq!(lent.into_array()?.sum()?.into_scalar()?, 4.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the stream is on another device.
    /// - [`ArrayError::Graph`] if the array was made in a capture, or if the stream captures.
    /// - [`ArrayError::Pool`] if the stream is retired, or if a driver call fails.
    ///
    /// The error contains the array.
    pub fn lend_to_cudarc(self, stream: &SharedStream) -> Result<LentSlice<T, D, K>, Rejected<Self>> {
        let lends = |stream: &SharedStream| {
            stream.check_runs()?;
            lend_to(self.storage(), &stream.ours, "lending to cudarc", (KeptBy::Cudarc, true))
        };
        if let Err(error) = lends(stream) {
            return Err(Rejected::new(error, self));
        }
        match upgrade(stream, self.view().pinned_address(), self.len()) {
            Ok(slice) => {
                let (slice, stream) = (ManuallyDrop::new(slice), stream.clone());
                Ok(LentSlice { slice, stream, array: Some(self) })
            }
            Err(error) => {
                Use::whole(self.storage(), Access::Write).end_foreign(&stream.ours);
                Err(Rejected::new(error, self))
            }
        }
    }
}

/// A slice of cudarc over memory that it does not own. Other cudarc streams wait for the work that is on its stream now.
fn upgrade<T>(stream: &SharedStream, address: u64, len: usize) -> Result<CudaSlice<T>, ArrayError> {
    let _bound = stream.ours.device().bind()?;
    let (home, mut made) = (&stream.theirs, None);
    let created = without_pending(home.context(), || {
        // SAFETY: the caller has memory for the elements, and takes care that the slice is not dropped.
        let upgrade = || unsafe { ManuallyDrop::new(home.upgrade_device_ptr::<T>(address, len)) };
        // It panics if the events cannot be created.
        made = std::panic::catch_unwind(AssertUnwindSafe(upgrade)).ok();
    });
    let Some(mut slice) = made else {
        let error = created.err().unwrap_or(TheirError(TheirResult::CUDA_ERROR_OUT_OF_MEMORY));
        return Err(failed("cuEventCreate")(error));
    };
    if let Err(error) = record_write(home, &mut slice) {
        ManuallyDrop::into_inner(slice).leak();
        return Err(failed("cuEventRecord")(error));
    }
    Ok(ManuallyDrop::into_inner(slice))
}

/// An array that cudarc uses as a slice; see [`GpuArray::lend_to_cudarc`].
///
/// It implements [`DevicePtr`], [`DevicePtrMut`] and [`PushKernelArg`], as a slice does. Functions that take `&CudaSlice<T>` get
/// [`LentSlice::as_slice`], those that take `&mut CudaViewMut<T>` get [`LentSlice::as_view_mut`]. There is no `&mut CudaSlice<T>`: the
/// program could swap it for a slice that cudarc owns, and cudarc would free it.
///
/// If cudarc tracks events and no stream of [`CudaContext::new_stream`] is alive in its context, cudarc records no uses, and the end of the
/// loan waits on the host.
#[must_use = "the loan ends when it is dropped, and the array with it"]
pub struct LentSlice<T: Element, D: Dimension, K: Kind = kind::DeviceLocal> {
    /// Leaked at the end of the loan; only its events are dropped.
    slice: ManuallyDrop<CudaSlice<T>>,
    stream: SharedStream,
    /// `None` after the end.
    array: Option<GpuArray<T, D, K>>,
}

impl<T: Element, D: Dimension, K: Kind> LentSlice<T, D, K> {
    /// The slice.
    #[must_use]
    pub fn as_slice(&self) -> &CudaSlice<T> {
        &self.slice
    }

    /// A view of all elements, for cudarc.
    #[must_use]
    pub fn as_view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }

    /// A mutable view of all elements, for cudarc.
    #[must_use]
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }

    /// The stream that the slice belongs to.
    #[must_use]
    pub fn stream(&self) -> &SharedStream {
        &self.stream
    }

    /// Ends the loan and returns the array. Streams that use it wait, on the device, for cudarc's uses.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails. The error contains the lent slice.
    pub fn into_array(mut self) -> Result<GpuArray<T, D, K>, Rejected<Self>> {
        if let Err(error) = wait_for_uses(&self.stream, &mut self.slice) {
            return Err(Rejected::new(error, self));
        }
        match self.array.take() {
            Some(array) => {
                self.end(&array);
                Ok(array)
            }
            // Only the drop and this method, which takes the value, remove it.
            None => Err(Rejected::new(ArrayError::NoCudaSlice { memory: "none" }, self)),
        }
    }

    /// The end of the loan. cudarc's uses have been waited for.
    fn end(&mut self, array: &GpuArray<T, D, K>) {
        let _bound = self.stream.ours.device().bind();
        // SAFETY: the callers have taken the array, and so nothing uses the slice after this.
        unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
        Use::whole(array.storage(), Access::Write).end_foreign(&self.stream.ours);
    }
}

impl<T: Element, D: Dimension, K: Kind> Drop for LentSlice<T, D, K> {
    fn drop(&mut self) {
        let Some(array) = self.array.take() else { return };
        if fork::is_child() {
            return core::mem::forget(array);
        }
        let waits = wait_for_uses(&self.stream, &mut self.slice);
        self.end(&array);
        if waits.is_err() {
            // The memory may be in use indefinitely, so it is never reused.
            core::mem::forget(array);
        }
    }
}

impl<T: Element, D: Dimension, K: Kind> DeviceSlice<T> for LentSlice<T, D, K> {
    fn len(&self) -> usize {
        self.slice.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T: Element, D: Dimension, K: Kind> DevicePtr<T> for LentSlice<T, D, K> {
    fn device_ptr<'b>(&'b self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        self.slice.device_ptr(stream)
    }
}

impl<T: Element, D: Dimension, K: Kind> DevicePtrMut<T> for LentSlice<T, D, K> {
    fn device_ptr_mut<'b>(&'b mut self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        self.slice.device_ptr_mut(stream)
    }
}

// SAFETY: passes the argument on to the slice, which is borrowed as long as the launch.
unsafe impl<'a, 'b: 'a, T: Element, D: Dimension, K: Kind> PushKernelArg<&'b LentSlice<T, D, K>>
    for LaunchArgs<'a>
{
    #[inline(always)]
    fn arg(&mut self, arg: &'b LentSlice<T, D, K>) -> &mut Self {
        PushKernelArg::<&'b CudaSlice<T>>::arg(self, &arg.slice)
    }
}

// SAFETY: as for a shared reference.
unsafe impl<'a, 'b: 'a, T: Element, D: Dimension, K: Kind> PushKernelArg<&'b mut LentSlice<T, D, K>>
    for LaunchArgs<'a>
{
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut LentSlice<T, D, K>) -> &mut Self {
        PushKernelArg::<&'b mut CudaSlice<T>>::arg(self, &mut arg.slice)
    }
}

debug_fields!([T: Element, D: Dimension, K: Kind] LentSlice<T, D, K>, it, array: it.array, stream: it.stream);

fn unfit(object: &'static str, problem: &str) -> ArrayError {
    ArrayError::Cudarc { object, problem: problem.into() }
}

/// The error of a driver call that cudarc has made.
fn failed(call: &'static str) -> impl Fn(TheirError) -> ArrayError {
    move |error| DriverError::Failed { call, code: cudaError_enum(error.0 as u32) }.into()
}

/// `CU_STREAM_PER_THREAD`, which is a macro in the driver's header.
const PER_THREAD: usize = 2;
