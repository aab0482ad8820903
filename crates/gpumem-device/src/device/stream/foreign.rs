//! Streams that this crate does not own: another library's, the context's legacy stream, a thread's default stream.
//!
//! The owner of such a stream may destroy or capture it at any time. The driver is therefore called with its handle only in calls that name
//! the stream, up to [`Stream::retire`]. These calls mark it if memory is pending there that another stream may want, and make it wait. If
//! the owner guarantees a longer life ([`Stream::from_raw_long_lived`]), any call may mark the stream and wait for it, as for an owned
//! stream, with or without a clone. That also applies if the stream holds its owner ([`Stream::from_raw_with_owner`]): the last clone
//! retires the stream before it drops the owner. A thread's default stream is retired when the thread ends, because its handle ends with
//! the thread.
//!
//! The driver may reuse a handle for another stream, but not an id: two wraps of one stream are clones, and a previously wrapped stream is
//! recognised.

use super::builder::{StreamBuilder, driver_id};
use super::{HandleKind, Owner, Stream, StreamInner};
use crate::device::order::{LEGACY, Life, StreamParts};
use crate::device::thread::ThreadNumber;
use crate::device::{CaptureModeGuard, Device, StreamId};
use crate::error::{CaptureError, DeviceError, StreamError, not_forked};
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use gpumem_sys::types::{CUstream, CUstream_flags, CUstreamCaptureStatus};
use gpumem_sys::{DriverError, fork};
use std::sync::{Arc, Weak};

impl Stream {
    /// Wraps a stream that another library (cudarc, cuBLAS, PyTorch) created and will destroy. Null and the driver's
    /// two special handles become [`Stream::legacy`] and [`Stream::per_thread`]; the handle of an owned stream becomes
    /// a clone of it.
    ///
    /// The driver is called with the stream's handle only in calls that name it: allocations on it, `Block::free_on`,
    /// `Block::record_use`, waits, queries and events. These calls make the stream wait for the streams whose memory
    /// it reuses, and mark it, so that other streams can reuse its memory. Memory that was freed on it and is not
    /// marked becomes available to other streams at the next such call, when the stream is retired, or when the whole
    /// device is waited for. [`StreamBuilder::no_waits`] disables the waits ([`StreamBuilder::wrap`]). For a stream
    /// that outlives the device, prefer [`Stream::from_raw_long_lived`].
    ///
    ///
    /// # Safety
    ///
    /// - `raw` is a stream of this device's primary context, alive in every call that names the result or a clone.
    /// - Before it is destroyed, either [`Stream::retire`] has returned, or no later call names it.
    /// - Work that uses a block of the pool is queued on it only while a clone lives that is not retired.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::WrongDevice`] for a stream of another context.
    /// - [`DeviceError::Capture`] for a stream that is part of a capture, unless captures were announced
    ///   (`ForeignCaptures::expect`). The capture is unchanged.
    /// - [`DeviceError::TooManyStreams`] if the maximum number of streams are alive or have unfinished work.
    /// - [`DeviceError::Driver`] if a call fails.
    pub unsafe fn from_raw(device: &Device, raw: CUstream) -> Result<Self, DeviceError> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { Self::builder(device).wrap(raw) }
    }

    /// Wraps a stream of another library that lives as long as the device is open here: one that its library never
    /// destroys, such as PyTorch's. The pool marks it, waits for it and makes it wait as for an owned stream, with or
    /// without a clone ([`StreamBuilder::no_waits`] disables the waits: [`StreamBuilder::wrap_long_lived`]). A shim
    /// that has only the handle may wrap it in every call.
    ///
    /// Null is the context's default stream, which lives as long as the context. The handle of the calling thread's default
    /// stream becomes [`Stream::per_thread`], which is never long-lived: on other threads the handle means another stream.
    /// For a stream that [`Stream::from_raw`] has wrapped before, the guarantee of a longer life takes effect now, for all
    /// clones.
    ///
    /// ```
    /// use gpumem_device::{Device, Stream, sys::types::CUstream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// // SAFETY: the default stream lives as long as the context.
    /// let stream = unsafe { Stream::from_raw_long_lived(&device, std::ptr::null_mut::<()>() as CUstream)? };
    /// stream.synchronize()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `raw` is a stream of this device's primary context. Until [`Stream::retire`] has returned, or the last [`Device`] of
    /// that context is gone (every pool, block, stream and event holds one), it is not destroyed.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::from_raw`], such as [`DeviceError::WrongDevice`] for a stream of another context.
    pub unsafe fn from_raw_long_lived(device: &Device, raw: CUstream) -> Result<Self, DeviceError> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { Self::builder(device).wrap_long_lived(raw) }
    }

    /// Wraps a stream of another library and keeps it alive: `owner`, such as cudarc's `Arc<CudaStream>`, is dropped
    /// with the last clone, after the stream has been retired. Until then the pool marks the stream, waits for it and
    /// makes it wait as for an owned stream.
    ///
    /// If a clone for this stream exists already, it and all its clones keep `owner` from now on, or the owner that they
    /// have. A default stream ([`Stream::legacy`], [`Stream::per_thread`]) and a stream of [`Stream::new`] need no owner.
    ///
    /// ```
    /// use gpumem_device::{Device, Stream, sys::types::CUstream};
    /// use gpumem_sim::SimConfig;
    /// use std::sync::Arc;
    ///
    /// /// A stream of another library.
    /// struct Theirs(Device, usize);
    /// impl Drop for Theirs {
    ///     fn drop(&mut self) {
    ///         // SAFETY: the handle is that of a live stream, and is not used after this.
    ///         let _ = unsafe { self.0.driver().cuStreamDestroy_v2(self.1 as CUstream) };
    ///     }
    /// }
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let _bound = device.bind()?;
    /// let mut raw = std::ptr::null_mut();
    /// // SAFETY: `raw` outlives the call.
    /// unsafe { device.driver().cuStreamCreate(&mut raw, 1)? };
    /// let theirs = Arc::new(Theirs(device.clone(), raw as usize));
    /// // SAFETY: `theirs` destroys the stream in its drop.
    /// let stream = unsafe { Stream::from_raw_with_owner(&device, raw, theirs.clone())? };
    /// drop(theirs);
    /// stream.synchronize()?; // the stream lives until `stream` is dropped
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `raw` is a stream of this device's primary context, and is not destroyed before `owner` is dropped. The drop may
    /// happen on any thread, with the context current; it does not panic.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::from_raw`], such as [`DeviceError::WrongDevice`] for a stream of another context.
    pub unsafe fn from_raw_with_owner(
        device: &Device,
        raw: CUstream,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self, DeviceError> {
        not_forked()?;
        let _bound = device.enter()?;
        // Dropped before the guard, if at all: the other library's calls may leave another context current.
        let owner: Owner = Box::new(owner);
        let stream = Self::builder(device).wrap_for(raw, Life::Long)?;
        if stream.0.kind == HandleKind::Foreign && stream.0.raw.0 as usize != LEGACY {
            // An earlier owner keeps the same stream alive.
            let _ = stream.0.owner.set(owner);
        }
        Ok(stream)
    }

    /// The default stream of the device's context. It is ordered with the streams of other libraries that are not
    /// non-blocking. A stream of [`Stream::new`] is non-blocking.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::TooManyStreams`] if the maximum number of streams are alive or have unfinished work.
    /// - [`DeviceError::Driver`] if a call fails.
    pub fn legacy(device: &Device) -> Result<Self, DeviceError> {
        Self::wrap(device, LEGACY as CUstream, HandleKind::Foreign, (Life::Named, false))
    }

    /// The calling thread's default stream. Calls that name it on another thread return [`DeviceError::Stream`], because the driver's
    /// handle means another stream there. The end of the thread retires it ([`Stream::retire`]), even if there are clones: no later call
    /// could mark it, and memory freed there would wait for the whole device.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if the stream is part of a capture that was not announced.
    /// - [`DeviceError::TooManyStreams`] if the maximum number of streams are alive or have unfinished work.
    /// - [`DeviceError::Driver`] if a call fails.
    pub fn per_thread(device: &Device) -> Result<Self, DeviceError> {
        Self::wrap_per_thread(device, false)
    }

    /// Declares that the stream's owner is about to destroy it: only work queued so far counts. Without this call,
    /// memory freed on it is reused only after the whole device has been waited for. For an owned stream the call has no
    /// effect: the drop of its last clone does this.
    ///
    /// Waits for calls on other threads that are inside [`Stream::run_borrowed`] with the stream, or that are queueing
    /// work on it.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Stream`] if the stream was retired before, if it is another thread's default stream, or in a closure of
    ///   [`Stream::run_borrowed`] with the stream, owned or not, which stays usable.
    pub fn retire(&self) -> Result<(), DeviceError> {
        not_forked()?;
        // Before the lock below: another thread may hold it, and wait for the end of this thread's closure.
        if self.0.calls.is_held_here() {
            return Err(DeviceError::Stream(StreamError::Borrowed));
        }
        // Once this returns, the owner may destroy the handle, so a second thread waits until the first has retired the stream.
        let _one = self.0.retirement.lock();
        self.check_usable()?;
        if self.0.kind != HandleKind::Owned {
            self.0.is_retired.store(true, Ordering::SeqCst);
            self.0.fast_path_id.store(0, Ordering::SeqCst);
            // A call that began before may still use the handle.
            self.0.calls.wait_for_all();
            self.clocks().retire(self.id(), self.0.driver_id);
        }
        Ok(())
    }

    fn wrap(
        device: &Device,
        raw: CUstream,
        kind: HandleKind,
        (life, no_waits): (Life, bool),
    ) -> Result<Self, DeviceError> {
        not_forked()?;
        let _bound = device.enter()?;
        let _relaxed = relaxed_in_captures(device)?;
        // `cuStreamGetId` and `cuStreamGetFlags` break a capture of their stream. This call does not.
        let is_capturing = is_capturing(device, raw)?;
        if is_capturing && !device.clocks().captures().is_open() {
            return Err(DeviceError::Capture(CaptureError::Unannounced));
        }
        let driver_id = Self::name_of(device, raw, life, is_capturing)?;
        let is_blocking = !is_capturing && is_blocking(device, raw);
        let thread = if let HandleKind::OfThread(thread) = kind { Some(thread) } else { None };
        let parts = StreamParts { raw, life, no_waits, is_blocking, thread };
        let make = |id: StreamId| {
            let stream = Self(Arc::new(StreamInner::new(device, raw, id, driver_id, kind)));
            stream.list();
            stream.0
        };
        Ok(Self(device.clocks().find_or_open(device.primary(), &parts, driver_id, make)?))
    }

    /// Returns the number by which a stream is recognised: the driver's id. Without one, a long-lived stream is recognised by its
    /// handle: on a driver that has no ids, and while the stream captures.
    fn name_of(
        device: &Device,
        raw: CUstream,
        life: Life,
        is_capturing: bool,
    ) -> Result<Option<u64>, DeviceError> {
        let clocks = device.clocks();
        let driver_id = if is_capturing { None } else { driver_id(device, raw)? };
        if life != Life::Long {
            return Ok(driver_id);
        }
        // No other stream has its handle until it is retired. The default stream's handle is equal in every context.
        let handle = if raw as usize == LEGACY { device.context() as usize } else { raw as usize } as u64;
        match driver_id {
            Some(driver_id) => clocks.rename(handle, driver_id),
            None => return Ok(Some(clocks.name_of_handle(device.primary(), raw).unwrap_or(handle))),
        }
        Ok(driver_id)
    }

    fn wrap_per_thread(device: &Device, no_waits: bool) -> Result<Self, DeviceError> {
        let kind = HandleKind::OfThread(ThreadNumber::current());
        let stream = Self::wrap(device, PER_THREAD as CUstream, kind, (Life::Named, no_waits))?;
        // A thread that is destroying its thread-locals leaves the stream to its last clone.
        let _ = OF_THREAD.try_with(|of_thread| of_thread.borrow_mut().add(&stream));
        Ok(stream)
    }

    /// True for a wrap that can be kept between calls: [`Stream::has_its_handle`] can check it, and it does not keep the stream
    /// alive.
    pub(super) fn may_be_kept(&self) -> bool {
        self.0.kind == HandleKind::Foreign && self.0.driver_id.is_some() && self.0.owner.get().is_none()
    }

    /// True if the driver's handle still belongs to this stream, and the stream is not capturing. Only for a call that names the
    /// handle: it must belong to a live stream.
    pub(super) fn has_its_handle(&self) -> bool {
        let (device, raw) = (self.device(), self.raw());
        let answer = || {
            let _bound = device.enter()?;
            let _relaxed = relaxed_in_captures(device)?;
            Ok::<_, DeviceError>(!is_capturing(device, raw)? && driver_id(device, raw)? == self.0.driver_id)
        };
        self.check_usable().is_ok() && answer().unwrap_or(false)
    }
}

thread_local! {
    static OF_THREAD: RefCell<DefaultStreams> = const { RefCell::new(DefaultStreams(Vec::new())) };
}

/// The calling thread's default streams, one for each device.
struct DefaultStreams(Vec<Weak<StreamInner>>);

impl DefaultStreams {
    fn add(&mut self, stream: &Stream) {
        self.0.retain(|own| own.strong_count() > 0);
        if !self.0.iter().any(|own| core::ptr::eq(own.as_ptr(), Arc::as_ptr(&stream.0))) {
            self.0.push(Arc::downgrade(&stream.0));
        }
    }
}

impl Drop for DefaultStreams {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // An error means that it was retired before.
        self.0.iter().filter_map(Weak::upgrade).for_each(|stream| drop(Stream(stream).retire()));
    }
}

impl StreamInner {
    /// The end of a stream that keeps its owner alive.
    pub(super) fn end_owned_elsewhere(&mut self, owner: Owner) {
        let _bound = self.device.enter();
        // Dropped before the guard: the other library's calls may leave another context current.
        let owner = owner;
        if !*self.is_retired.get_mut()
            && self.driver_id.is_some()
            && let Some(stream) = self.device.clocks().retire_unless_wrapped::<Self>(self.id)
        {
            // Another thread has wrapped the stream since the last clone was dropped, and found it alive.
            let _ = stream.owner.set(owner);
        }
    }
}

impl StreamBuilder {
    /// Like [`Stream::from_raw`], with this builder's options: [`StreamBuilder::no_waits`] applies to all clones from
    /// now on, [`StreamBuilder::priority`] has no effect.
    ///
    /// # Safety
    ///
    /// The requirements of [`Stream::from_raw`] apply.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::from_raw`], such as [`DeviceError::WrongDevice`] for a stream of another context.
    pub unsafe fn wrap(self, raw: CUstream) -> Result<Stream, DeviceError> {
        self.wrap_for(raw, Life::Named)
    }

    /// Like [`Stream::from_raw_long_lived`], with this builder's options as for [`StreamBuilder::wrap`].
    ///
    /// # Safety
    ///
    /// The requirements of [`Stream::from_raw_long_lived`] apply.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::from_raw`], such as [`DeviceError::WrongDevice`] for a stream of another context.
    pub unsafe fn wrap_long_lived(self, raw: CUstream) -> Result<Stream, DeviceError> {
        self.wrap_for(raw, Life::Long)
    }

    /// The caller passes on the owner's guarantee of this life.
    fn wrap_for(self, raw: CUstream, life: Life) -> Result<Stream, DeviceError> {
        let Self { device, no_waits, .. } = self;
        let raw = match raw as usize {
            0 => LEGACY as CUstream,
            PER_THREAD => return Stream::wrap_per_thread(&device, no_waits),
            _ => raw,
        };
        if raw as usize != LEGACY {
            let _bound = device.enter()?;
            let _relaxed = relaxed_in_captures(&device)?;
            let mut context = core::ptr::null_mut();
            // SAFETY: `context` outlives the call; the owner guarantees that the stream is alive in calls that name it.
            unsafe { device.driver().cuStreamGetCtx(raw, &mut context)? };
            if context != device.context() {
                return Err(DeviceError::WrongDevice {
                    expected: format!("a stream of {device}"),
                    found: "another context".into(),
                });
            }
        }
        Stream::wrap(&device, raw, HandleKind::Foreign, (life, no_waits))
    }
}

/// Enters the relaxed capture mode if a capture is known, which would refuse some calls in its own mode.
fn relaxed_in_captures(device: &Device) -> Result<Option<CaptureModeGuard<'_>>, DeviceError> {
    let is_open = device.clocks().captures().is_open();
    Ok(is_open.then(|| CaptureModeGuard::enter(device.driver())).transpose()?)
}

/// True if the driver reports that the stream is part of a capture, which may be broken. The device's context is current.
fn is_capturing(device: &Device, raw: CUstream) -> Result<bool, DeviceError> {
    // The driver refuses this query for the legacy stream, which never captures, while a capture is active.
    if raw as usize == LEGACY {
        return Ok(false);
    }
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` outlives the call, and the caller has an alive stream.
    match unsafe { device.driver().cuStreamIsCapturing(raw, &mut status) } {
        // A driver without the function has no captures.
        Ok(()) | Err(DriverError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// True if the driver reports that the legacy stream waits for it. The device's context is current.
fn is_blocking(device: &Device, raw: CUstream) -> bool {
    if matches!(raw as usize, LEGACY | PER_THREAD) {
        return true;
    }
    let mut flags = 0;
    // SAFETY: `flags` outlives the call, and the caller has an alive stream.
    let answer = unsafe { device.driver().cuStreamGetFlags(raw, &mut flags) };
    answer.is_ok() && flags & CUstream_flags::CU_STREAM_NON_BLOCKING.0 == 0
}

/// `CU_STREAM_PER_THREAD`, which is a macro in the driver's header.
const PER_THREAD: usize = 2;
