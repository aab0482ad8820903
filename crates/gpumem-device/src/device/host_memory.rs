//! [`HostMemory`] and [`BorrowedHostMemory`]: the program's own memory, which devices access in place.
//!
//! Memory that a device may still write must not return to the program. A guard over a borrow cannot ensure that, because a guard can be
//! forgotten. A borrow therefore ends with a closure ([`Device::with_host_memory`]), and a buffer that outlives the call is owned
//! ([`HostMemory`]). Both wait for the device at their end. If the wait fails, the owner keeps the buffer. The closure's caller always gets
//! the slice back, so that wait has no time limit.

use crate::device::primary::{HeldContext, WeakContext};
use crate::device::{Device, Handle, KeptMemory, Patience};
use crate::error::{DeviceError, not_forked};
use buffer::RawParts;
pub use buffer::{HostBuffer, HostBufferMut};
use core::error::Error;
use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use gpumem_sys::text::debug_is_display;
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr, CUresult};
use gpumem_sys::{DriverError, fork};
use std::io::Write;

mod buffer;

/// A buffer of the program (`Vec<T>`, `Box<[T]>`, `&'static mut [T]`; for memory that devices only read, also
/// `Arc<[T]>` and `&'static [T]`) with an address for devices. This value owns it until [`HostMemory::into_inner`].
///
/// The drop waits until the streams of all open devices have done their work, even during a capture, and then frees the buffer. It waits
/// for the streams that a [`Stream`](crate::Stream) represents or represented. For owned, long-lived, retired and blocking streams the drop
/// waits for markers, which break no capture of any thread or library. Only a non-blocking stream of
/// [`Stream::from_raw`](crate::Stream::from_raw) that is not retired requires a wait for its whole context:
///
/// - A capture that this thread has begun through this crate is ended for this wait ([`DeviceError::Capture`] at its end). The drop
///   waits for any other known capture (through this crate, or on a long-lived stream).
/// - A capture that another library has begun on another stream is not visible. The driver refuses the wait and breaks
///   the capture (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED` at its end), and the drop waits for that end. If such a
///   capture must stay intact, retire such streams first, or wrap them by
///   [`Stream::from_raw_long_lived`](crate::Stream::from_raw_long_lived).
///
/// If the wait stays impossible for two seconds, because another thread captures or because the driver refuses, the
/// buffer stays registered, and the next [`Device::synchronize`], registration or import returns [`DeviceError::Kept`].
/// The first successful [`Device::synchronize`] after that report frees the buffer, unless its elements need a drop:
/// then the buffer is leaked. [`core::mem::forget`] leaks the buffer.
///
/// ```
/// use gpumem_device::{Device, HostMemory, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let stream = Stream::new(&device)?;
/// let shared = HostMemory::register(&device, vec![0_u32; 1 << 20])?;
/// {
///     let _bound = device.bind()?;
///     // SAFETY: the memory is as large as that, and `shared` waits for the stream before it gives the vector back.
///     unsafe { device.driver().cuMemsetD32Async(shared.address(), 7, 1 << 20, stream.raw())? };
/// }
/// let table: Vec<u32> = shared.into_inner()?;
/// assert!(table.iter().all(|value| *value == 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it takes the devices' address away"]
pub struct HostMemory<B: HostBuffer> {
    registration: HostRegistration,
    parts: RawParts<B::Element>,
    buffer: PhantomData<B>,
}

/// A borrowed slice with an address for devices, inside [`Device::with_host_memory`].
pub struct BorrowedHostMemory<'a, T> {
    registration: HostRegistration,
    slice: PhantomData<&'a mut [T]>,
}

/// An error of [`HostMemory`], with the value that was passed to the call. `?` converts it to its [`DeviceError`].
pub struct HostMemoryError<V>(Box<(DeviceError, V)>);

struct HostRegistration {
    device: Device,
    host: *mut c_void,
    address: CUdeviceptr,
    size_bytes: u64,
    /// False if devices only read the memory: then no failure of their work changes it.
    is_written: bool,
    /// The other devices that were lost before, or whose loss has been returned.
    known_lost: Vec<WeakContext>,
    /// True if a loss has been returned: the program knows that the contents may be wrong.
    is_loss_returned: bool,
    is_registered: bool,
    /// True if the registration has ended, so no work uses the memory.
    is_over: bool,
}

#[derive(Clone, Copy)]
enum DeviceAccess {
    ReadWrite,
    ReadOnly,
    Pageable,
}

impl<B: HostBufferMut> HostMemory<B> {
    /// Pins a buffer with the driver, for all devices. This takes time: 27 µs per MiB on an H200's host, once the memory has been touched.
    /// An empty buffer has no address, and is free.
    ///
    /// # Errors
    ///
    /// The error contains the buffer.
    ///
    /// - [`DeviceError::Driver`] if the driver refuses, for example because part of the buffer is pinned already.
    /// - [`DeviceError::DeviceLost`] if the context is lost.
    /// - [`DeviceError::Kept`] for an earlier drop.
    pub fn register(device: &Device, buffer: B) -> Result<Self, HostMemoryError<B>> {
        Self::new(device, buffer, DeviceAccess::ReadWrite)
    }

    /// Uses a buffer without pinning: the device accesses host memory page by page.
    ///
    /// # Errors
    ///
    /// The error contains the buffer.
    ///
    /// - [`DeviceError::HostAccess`] if the device does not support this; many PCIe devices do not.
    /// - [`DeviceError::Kept`] for an earlier drop.
    pub fn pageable(device: &Device, buffer: B) -> Result<Self, HostMemoryError<B>> {
        Self::new(device, buffer, DeviceAccess::Pageable)
    }
}

impl<B: HostBuffer> HostMemory<B> {
    /// Like [`HostMemory::register`], for memory that devices only read; the host may keep reading it.
    ///
    /// # Errors
    ///
    /// All errors of [`HostMemory::register`], and [`DeviceError::HostAccess`] if the device does not support read-only
    /// registration.
    pub fn register_read_only(device: &Device, buffer: B) -> Result<Self, HostMemoryError<B>> {
        Self::new(device, buffer, DeviceAccess::ReadOnly)
    }

    fn new(device: &Device, buffer: B, access: DeviceAccess) -> Result<Self, HostMemoryError<B>> {
        let parts = buffer.into_parts();
        // SAFETY: the parts belong to the buffer, whose memory does not move until the registration has ended.
        match unsafe { HostRegistration::new(device, parts.start.cast(), parts.size_bytes(), access) } {
            Ok(registration) => Ok(Self { registration, parts, buffer: PhantomData }),
            Err(error) => {
                // SAFETY: the parts came from such a buffer, once, and the driver holds no registration of them.
                Err(HostMemoryError::new(error, unsafe { B::from_parts(parts) }))
            }
        }
    }

    /// Waits for all open devices, unregisters the buffer, and returns it.
    ///
    /// # Errors
    ///
    /// The error contains this value, which still owns the buffer.
    ///
    /// - [`DeviceError::Driver`] if the wait fails, because another thread captures or because the driver refuses; a retry
    ///   may succeed.
    /// - [`DeviceError::DeviceLost`] if the context of a device was lost since the registration, and [`DeviceError::AwaitedDeviceLost`] if a
    ///   device has waited for one that is lost, unless devices only read the buffer: work that writes it may not have run. No device uses
    ///   the buffer any more. The next call returns it, with unspecified elements.
    pub fn into_inner(mut self) -> Result<B, HostMemoryError<Self>> {
        if let Err(forked) = not_forked() {
            return Err(HostMemoryError::new(forked, self));
        }
        if let Err(error) = self.registration.settle_whole() {
            return Err(HostMemoryError::new(error, self));
        }
        match self.registration.end(Patience::Owned) {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: the registration is read once, and never dropped in its old place.
                drop(unsafe { core::ptr::read(&this.registration) });
                // SAFETY: the parts came from such a buffer, once, and no work uses them. `self` is never dropped,
                // which would free them too.
                Ok(unsafe { B::from_parts(this.parts) })
            }
            Err(error) => Err(HostMemoryError::new(error.into(), self)),
        }
    }

    /// The address for devices; 0 for an empty buffer.
    ///
    /// Use it only in work on streams that a [`Stream`](crate::Stream) represents, of a device that a [`Device`] has
    /// opened: the drop waits for those. Devices must write only values that are valid for the element type.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.registration.address
    }

    /// The size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.registration.size_bytes
    }

    /// The address for the host. Before you dereference it, wait for work that writes there. Do not write memory that
    /// devices only read.
    #[must_use]
    pub fn host_ptr(&self) -> *mut B::Element {
        self.parts.start
    }
}

impl<B: HostBuffer> Drop for HostMemory<B> {
    fn drop(&mut self) {
        match self.registration.end(Patience::Owned) {
            // SAFETY: the parts came from such a buffer, once, and no work uses them.
            Ok(()) => drop(unsafe { B::from_parts(self.parts) }),
            Err(cause) => {
                let HostRegistration { device, host, size_bytes, .. } = &self.registration;
                let (what, address) = ("host memory", host.addr() as u64);
                // In a host function this is not an error: the next wait of another thread releases the memory.
                if !(self.keep() && cause.is_not_permitted()) {
                    device.report_kept(DeviceError::Kept { what, address, size_bytes: *size_bytes, cause });
                }
            }
        }
    }
}

impl<B: HostBuffer> HostMemory<B> {
    /// Leaves the buffer to a later wait, unless its elements need a drop, which may be bound to this thread. Returns true if it does.
    fn keep(&self) -> bool {
        if core::mem::needs_drop::<B::Element>() {
            return false;
        }
        let (start, length, capacity) = self.parts.erased();
        let (start, free) = (Handle(start), buffer::free::<B> as unsafe fn(*mut c_void, usize, usize));
        let mut is_registered = self.registration.is_registered;
        let give_back = move |device: &Device| {
            // Captures the whole `Handle`: the pointer alone is not `Send`.
            let Handle(start) = &start;
            is_registered = is_registered && unregister(device, *start).is_err();
            if !is_registered {
                // SAFETY: the parts came from such a buffer, once, and its drop left them to this closure, which is
                // called again only after a failure. No work uses them, the driver holds no registration, and the
                // elements need no drop.
                unsafe { free(*start, length, capacity) };
            }
            !is_registered
        };
        self.registration.device.keep(KeptMemory { give_back: Box::new(give_back) });
        true
    }
}

/// Unregisters memory that no work uses.
fn unregister(device: &Device, host: *mut c_void) -> Result<(), DriverError> {
    let _entered = device.enter_relaxed()?;
    // SAFETY: the memory was registered by `HostRegistration::pin`, no work uses it, and the context is current.
    match unsafe { device.driver().cuMemHostUnregister(host) } {
        Err(error) if error.code() == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => Ok(()),
        answer => answer,
    }
}

impl Device {
    /// Pins a slice with the driver, for all devices, while `body` runs: `body` receives its address for devices.
    /// Before this returns or unwinds, it waits for the streams that the drop of [`HostMemory`] waits for, with the
    /// rules for captures described there.
    ///
    /// The wait has no time limit, and includes captures of other threads that prevent it. A capture that was begun without this crate on a
    /// long-lived stream is ended after half a minute, if the driver lets this thread do so, because this thread may have begun it.
    ///
    /// ```
    /// use gpumem_device::{Device, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let stream = Stream::new(&device)?;
    /// let mut table = vec![0_u32; 1 << 20];
    /// device.with_host_memory(&mut table, |memory| {
    ///     let _bound = device.bind()?;
    ///     // SAFETY: the memory is as large as that, and the end of the closure waits for the stream.
    ///     unsafe { device.driver().cuMemsetD32Async(memory.address(), 7, 1 << 20, stream.raw())? };
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })??;
    /// assert!(table.iter().all(|value| *value == 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The address cannot leave the closure with a lifetime that outlasts the registration:
    ///
    /// ```compile_fail
    /// # use gpumem_device::Device;
    /// fn escape(device: &Device, table: &mut [u32]) {
    ///     let escaped = device.with_host_memory(table, |memory| memory);
    /// }
    /// ```
    ///
    /// ```compile_fail
    /// # use gpumem_device::{BorrowedHostMemory, Device};
    /// fn keep<'a>(device: &Device, table: &'a mut [u32], kept: &mut Option<&'a BorrowedHostMemory<'a, u32>>) {
    ///     let _ = device.with_host_memory(table, |memory| *kept = Some(memory));
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Before `body` runs:
    ///
    /// - [`DeviceError::Driver`] if the driver refuses, for example because part of the slice is pinned already.
    /// - [`DeviceError::DeviceLost`] if the context is lost.
    /// - [`DeviceError::Kept`] for an earlier drop.
    ///
    /// After `body` has run, [`DeviceError::DeviceLost`] if this context is lost, or another device's context was lost during the call: the
    /// work may not have run.
    ///
    /// # Aborts
    ///
    /// If the context is not lost and the driver refuses every way to wait, or to unpin the memory, for half a minute.
    /// Returning would give the caller memory that a device may write.
    pub fn with_host_memory<T, R>(
        &self,
        slice: &mut [T],
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, DeviceError> {
        let size_bytes = size_of_val(slice) as u64;
        // SAFETY: the slice is borrowed until this returns.
        unsafe { self.with_memory(slice.as_mut_ptr(), size_bytes, DeviceAccess::ReadWrite, body) }
    }

    /// Like [`Device::with_host_memory`], for memory that devices only read; the host may keep reading it.
    ///
    /// # Errors
    ///
    /// All errors of [`Device::with_host_memory`], and [`DeviceError::HostAccess`] if the device does not support
    /// read-only registration.
    ///
    /// # Aborts
    ///
    /// Aborts under the conditions of [`Device::with_host_memory`].
    pub fn with_host_memory_read_only<T, R>(
        &self,
        slice: &[T],
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, DeviceError> {
        let size_bytes = size_of_val(slice) as u64;
        // SAFETY: the slice is borrowed until this returns, and devices only read it.
        unsafe { self.with_memory(slice.as_ptr().cast_mut(), size_bytes, DeviceAccess::ReadOnly, body) }
    }

    /// Like [`Device::with_host_memory`], without pinning: the device accesses host memory page by page.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::HostAccess`] if the device does not support this; many PCIe devices do not.
    /// - [`DeviceError::Kept`] for an earlier drop.
    ///
    /// # Aborts
    ///
    /// Aborts under the conditions of [`Device::with_host_memory`].
    pub fn with_host_memory_pageable<T, R>(
        &self,
        slice: &mut [T],
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, DeviceError> {
        let size_bytes = size_of_val(slice) as u64;
        // SAFETY: the slice is borrowed until this returns.
        unsafe { self.with_memory(slice.as_mut_ptr(), size_bytes, DeviceAccess::Pageable, body) }
    }

    /// # Safety
    ///
    /// The memory is borrowed until this returns, exclusively unless devices only read it.
    unsafe fn with_memory<T, R>(
        &self,
        start: *mut T,
        size_bytes: u64,
        access: DeviceAccess,
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, DeviceError> {
        // SAFETY: the memory is borrowed until this returns, and `memory`, which no caller can move, ends the registration.
        let registration = unsafe { HostRegistration::new(self, start.cast(), size_bytes, access)? };
        let mut memory = BorrowedHostMemory { registration, slice: PhantomData };
        let result = body(&memory);
        memory.end();
        // A lost context ended the wait, so the work may not have run.
        match memory.registration.new_loss() {
            Some(error) => Err(error.into()),
            None => self.check_awaited().map(|()| result),
        }
    }
}

impl<T> BorrowedHostMemory<'_, T> {
    /// The address for devices; 0 for an empty slice. See [`HostMemory::address`].
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.registration.address
    }

    /// The size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.registration.size_bytes
    }

    /// The address for the host. Before you dereference it, wait for work that writes there. Do not write memory that
    /// devices only read.
    #[must_use]
    pub fn host_ptr(&self) -> *mut T {
        self.registration.host.cast()
    }

    fn end(&mut self) {
        if let Err(cause) = self.registration.end(Patience::Borrowed) {
            give_up(&self.registration, cause);
        }
    }
}

impl<T> Drop for BorrowedHostMemory<'_, T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Aborts: the slice's owner would get memory back that a device may still write, and a panic cannot prevent that.
fn give_up(registration: &HostRegistration, cause: DriverError) -> ! {
    let HostRegistration { device, host, size_bytes, .. } = registration;
    let _ = writeln!(
        std::io::stderr(),
        "gpumem: {size_bytes} bytes at {host:p} are still registered with {device}, whose driver refuses to wait ({cause}); \
         aborting, because returning would release memory that the device may still use"
    );
    std::process::abort()
}

impl HostRegistration {
    /// # Safety
    ///
    /// Until [`HostRegistration::end`] has succeeded, the memory does not move, and only devices use it in a conflicting
    /// way.
    unsafe fn new(
        device: &Device,
        host: *mut c_void,
        size_bytes: u64,
        access: DeviceAccess,
    ) -> Result<Self, DeviceError> {
        not_forked()?;
        device.take_kept()?;
        access.check(device)?;
        let mut this = Self {
            device: device.clone(),
            host,
            address: 0,
            size_bytes,
            is_written: !matches!(access, DeviceAccess::ReadOnly),
            known_lost: Vec::new(),
            is_loss_returned: false,
            is_registered: false,
            is_over: false,
        };
        if size_bytes == 0 {
            return Ok(this);
        }
        let others = this.devices().filter(|other| **other != *device.primary() && other.loss().is_some());
        this.known_lost = others.map(|lost| lost.downgrade()).collect();
        match access.flags() {
            None => this.address = host.expose_provenance() as CUdeviceptr,
            Some(flags) => {
                if let Err(error) = this.pin(flags) {
                    // No work has the address. If unregistering fails, the memory stays pinned, and a later call
                    // reports it.
                    if let Err(cause) = this.unregister(Patience::Owned) {
                        let (what, address) = ("host memory", host.addr() as u64);
                        this.device.report_kept(DeviceError::Kept { what, address, size_bytes, cause });
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(this)
    }

    /// Registers the memory and finds its address. Breaks no capture.
    fn pin(&mut self, flags: u32) -> Result<(), DriverError> {
        let driver = self.device.driver();
        let _entered = self.device.enter_relaxed()?;
        // SAFETY: the memory does not move until the registration has ended, and the context is current.
        unsafe { driver.cuMemHostRegister_v2(self.host, self.size_bytes as usize, flags)? };
        self.is_registered = true;
        // SAFETY: `address` outlives the call, and the memory is registered.
        unsafe { driver.cuMemHostGetDevicePointer_v2(&mut self.address, self.host, 0) }
    }

    fn devices(&self) -> impl Iterator<Item = HeldContext> + use<> {
        let own = self.device.primary().downgrade().upgrade();
        own.into_iter().chain(self.device.clocks().devices_with_reset())
    }

    /// The error of a device that was lost since the registration, or since the last query: its work may not have run. Called after the
    /// wait.
    fn new_loss(&mut self) -> Option<DriverError> {
        if self.size_bytes == 0 || fork::is_child() {
            return None;
        }
        let is_known =
            |device: &HeldContext| self.known_lost.iter().any(|lost| lost.is_same(&device.downgrade()));
        let (error, lost) = self
            .devices()
            .filter(|device| !is_known(device))
            .find_map(|device| Some((device.loss()?, device)))?;
        self.known_lost.push(lost.downgrade());
        Some(error)
    }

    /// Waits until no work uses the memory.
    ///
    /// # Errors
    ///
    /// The errors of the wait. Once for each loss, [`DeviceError::DeviceLost`] or [`DeviceError::AwaitedDeviceLost`] if work that writes the
    /// memory may not have run.
    fn settle_whole(&mut self) -> Result<(), DeviceError> {
        if self.size_bytes == 0 || !self.is_written {
            return Ok(());
        }
        self.device.settle_machine(Patience::Owned)?;
        let whole = match self.new_loss() {
            Some(error) => Err(error.into()),
            None if self.is_loss_returned => Ok(()),
            // The device of this memory keeps the list of waits alive, so this error would come again in each call.
            None => self.device.check_awaited(),
        };
        self.is_loss_returned |= whole.is_err();
        whole
    }

    /// Waits until no work uses the memory, and unregisters it.
    fn end(&mut self, patience: Patience) -> Result<(), DriverError> {
        // No device uses a forked child's copy of the memory.
        if self.size_bytes == 0 || self.is_over || fork::is_child() {
            return Ok(());
        }
        self.device.settle_machine(patience)?;
        self.unregister(patience)?;
        self.is_over = true;
        Ok(())
    }

    /// Unregisters memory that no work uses.
    fn unregister(&mut self, patience: Patience) -> Result<(), DriverError> {
        if !self.is_registered {
            return Ok(());
        }
        let (device, host) = (&self.device, self.host);
        device.give_back(patience, || unregister(device, host))?;
        self.is_registered = false;
        Ok(())
    }
}

impl DeviceAccess {
    /// Refuses an access that the device does not support.
    fn check(self, device: &Device) -> Result<(), DeviceError> {
        let (attribute, what) = match self {
            Self::ReadWrite => return Ok(()),
            Self::ReadOnly => (
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                "does not support read-only registration of host memory",
            ),
            Self::Pageable => (
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                "does not support access to pageable host memory",
            ),
        };
        match device.attribute(attribute)? {
            0 => {
                let instead = "HostMemory::register or Device::with_host_memory";
                Err(DeviceError::HostAccess { device: device.to_string(), what, instead })
            }
            _ => Ok(()),
        }
    }

    fn flags(self) -> Option<u32> {
        match self {
            Self::ReadWrite => Some(PORTABLE | MAPPED),
            Self::ReadOnly => Some(PORTABLE | MAPPED | READ_ONLY),
            Self::Pageable => None,
        }
    }
}

impl<V> HostMemoryError<V> {
    fn new(error: DeviceError, value: V) -> Self {
        Self(Box::new((error, value)))
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &DeviceError {
        &self.0.0
    }

    /// True if memory ran out; see [`DeviceError::is_out_of_memory`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.error().is_out_of_memory()
    }

    /// The value that was passed to the call: the buffer of a registration, or the [`HostMemory`] of
    /// [`HostMemory::into_inner`].
    pub fn into_value(self) -> V {
        self.0.1
    }
}

impl<V> From<HostMemoryError<V>> for DeviceError {
    fn from(error: HostMemoryError<V>) -> Self {
        error.0.0
    }
}

impl<V> Error for HostMemoryError<V> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // Returns the error itself instead of its source: callers look for it along the chain.
        Some(self.error())
    }
}

impl<V> fmt::Display for HostMemoryError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

debug_is_display!([V] HostMemoryError<V>);

impl<B: HostBuffer> fmt::Debug for HostMemory<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.describe(f, "HostMemory")
    }
}

impl<T> fmt::Debug for BorrowedHostMemory<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.describe(f, "BorrowedHostMemory")
    }
}

impl HostRegistration {
    fn describe(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        f.debug_struct(name)
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("is_registered", &self.is_registered)
            .finish_non_exhaustive()
    }
}

// SAFETY: the driver accepts calls about host memory from any thread, and `host` is only passed to it. The impls below
// decide what the buffer or slice itself allows.
unsafe impl Send for HostRegistration {}
// SAFETY: a shared registration exposes numbers and a pointer, which is `unsafe` to dereference, and is never
// modified.
unsafe impl Sync for HostRegistration {}

// SAFETY: it owns the buffer that `parts` came from, and nothing else that is bound to a thread.
unsafe impl<B: HostBuffer + Send> Send for HostMemory<B> {}
// SAFETY: a shared reference gives no safe access to the elements, and a `Sync` buffer may be read through it.
unsafe impl<B: HostBuffer + Sync> Sync for HostMemory<B> {}

/// The driver's flags: for every context, with an address for devices, which only read.
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;
const READ_ONLY: u32 = 8;
