//! [`HostMemory`] and [`BorrowedHostMemory`]: memory of the program's own that devices use where it is.
//!
//! Memory that a device may still write must not be the program's again. No guard over a borrow can promise that, because a
//! guard can be forgotten: so a borrow ends with a closure ([`Device::with_host_memory`]), and a buffer that outlives the
//! call is owned ([`HostMemory`]). Both wait for the device at their end. The owner keeps the buffer if it can't wait; the
//! closure's caller gets the slice back whatever happens, so that it waits as long as it takes.

use crate::device::{CaptureModeGuard, Device, Handle, KeptMemory, Patience};
use crate::error::PoolError;
use buffer::Parts;
pub use buffer::{HostBuffer, HostBufferMut};
use core::error::Error;
use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr, CUresult};
use std::io::Write;

mod buffer;

/// A buffer of the program's own (`Vec<T>`, `Box<[T]>`, `&'static mut [T]`; for devices that only read also `Arc<[T]>` and
/// `&'static [T]`) with an address for devices. It belongs to this value until [`HostMemory::into_inner`].
///
/// Its drop waits until the streams of all open devices have done their work, also under a capture, and then gives the buffer
/// back to the allocator. These are the streams that a [`Stream`](crate::Stream) stands for or stood for. Markers in the streams
/// are enough for this crate's, long-lived, retired and blocking ones, and break no capture, whoever has begun it and wherever.
/// Only a non-blocking stream of [`Stream::from_raw`](crate::Stream::from_raw) that is not retired has to be waited for with its
/// whole context:
///
/// - A capture that this thread has begun through this crate is ended for that ([`PoolError::CaptureBroken`] at its end), and
///   any other that is known (through this crate, or on a long-lived stream) is waited for.
/// - A capture that another library has begun on another stream can't be seen. The driver refuses the wait and breaks the capture
///   (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED` at its end), and the drop waits for that end. Retire such streams first, or wrap
///   them by [`Stream::from_raw_long_lived`](crate::Stream::from_raw_long_lived), where a capture must stay whole.
///
/// If the wait stays impossible for two seconds, because another thread captures or because the driver refuses, the buffer stays
/// registered, and the next [`Device::synchronize`], registration or import reports [`PoolError::Kept`]. The first
/// [`Device::synchronize`] after the report that succeeds gives the buffer back, unless its elements have a drop: those are
/// leaked. [`core::mem::forget`] leaks the buffer.
///
/// ```
/// use gpumem_pool::{Device, HostMemory, Stream};
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
    registration: Registration,
    parts: Parts<B::Element>,
    buffer: PhantomData<B>,
}

/// A borrowed slice with an address for devices, inside of [`Device::with_host_memory`].
pub struct BorrowedHostMemory<'a, T> {
    registration: Registration,
    slice: PhantomData<&'a mut [T]>,
}

/// An error of [`HostMemory`], with the value that the call was given. It turns into the [`PoolError`] by `?`.
pub struct HostMemoryError<V>(Box<(PoolError, V)>);

/// What the driver knows of some host memory.
struct Registration {
    device: Device,
    host: *mut c_void,
    address: CUdeviceptr,
    size_bytes: u64,
    is_registered: bool,
    /// Whether it has ended, so that no work uses the memory.
    is_over: bool,
}

/// The way in which devices find the memory.
#[derive(Clone, Copy)]
enum Access {
    ReadWrite,
    ReadOnly,
    Pageable,
}

impl<B: HostBufferMut> HostMemory<B> {
    /// Pins a buffer with the driver, for all devices. That takes time: 27 µs a MiB on an H200's host, once the memory has
    /// been touched. An empty buffer has no address, and costs nothing.
    ///
    /// # Errors
    ///
    /// With the buffer: [`PoolError::Driver`] if the driver refuses, for example because part of it is pinned already;
    /// [`PoolError::DeviceLost`]; [`PoolError::Kept`] for an earlier drop.
    pub fn register(device: &Device, buffer: B) -> Result<Self, HostMemoryError<B>> {
        Self::new(device, buffer, Access::ReadWrite)
    }

    /// Takes a buffer as it is: the device follows the host's addresses by itself, page by page.
    ///
    /// # Errors
    ///
    /// With the buffer: [`PoolError::NoHostAccess`] where the device can't, as on most machines whose device is behind a bus;
    /// [`PoolError::Kept`] for an earlier drop.
    pub fn pageable(device: &Device, buffer: B) -> Result<Self, HostMemoryError<B>> {
        Self::new(device, buffer, Access::Pageable)
    }
}

impl<B: HostBuffer> HostMemory<B> {
    /// Like [`HostMemory::register`], for memory that devices only read: the host may go on reading it too.
    ///
    /// # Errors
    ///
    /// Those of [`HostMemory::register`]; [`PoolError::NoHostAccess`] where the device has no such registration.
    pub fn register_read_only(device: &Device, buffer: B) -> Result<Self, HostMemoryError<B>> {
        Self::new(device, buffer, Access::ReadOnly)
    }

    fn new(device: &Device, buffer: B, access: Access) -> Result<Self, HostMemoryError<B>> {
        let parts = buffer.into_parts();
        // SAFETY: the parts are the buffer's, whose memory stays where it is until the registration has ended.
        match unsafe { Registration::new(device, parts.start.cast(), parts.size_bytes(), access) } {
            Ok(registration) => Ok(Self { registration, parts, buffer: PhantomData }),
            Err(error) => {
                // SAFETY: the parts came from such a buffer, once, and the driver knows nothing of them.
                Err(HostMemoryError::new(error, unsafe { B::from_parts(parts) }))
            }
        }
    }

    /// Waits for all devices that are open, and gives the buffer back, which the driver then no longer knows.
    ///
    /// # Errors
    ///
    /// With this value, which still has the buffer: [`PoolError::Driver`] if the device can't be waited for, because another
    /// thread captures or because the driver refuses. Trying again may help.
    pub fn into_inner(mut self) -> Result<B, HostMemoryError<Self>> {
        match self.registration.end(Patience::Owned) {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: the registration is read once, and never dropped where it was.
                drop(unsafe { core::ptr::read(&this.registration) });
                // SAFETY: the parts came from such a buffer, once, no work uses them, and the drop, which would too, never runs.
                Ok(unsafe { B::from_parts(this.parts) })
            }
            Err(error) => Err(HostMemoryError::new(error.into(), self)),
        }
    }

    /// The address for devices; 0 for an empty buffer.
    ///
    /// Work that uses it is queued on streams that a [`Stream`](crate::Stream) stands for, of a device that a [`Device`] has
    /// opened: those are what the drop waits for. What a device writes must be values that the elements can have.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.registration.address
    }

    /// The number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.registration.size_bytes
    }

    /// The address for the host. Wait before you follow it for work that writes there, and write nothing that devices only
    /// read.
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
                let Registration { device, host, size_bytes, .. } = &self.registration;
                let (what, address) = ("host memory", host.addr() as u64);
                device.report_kept(PoolError::Kept { what, address, size_bytes: *size_bytes, cause });
                self.keep();
            }
        }
    }
}

impl<B: HostBuffer> HostMemory<B> {
    /// Leaves the buffer to a later wait, unless its elements have a drop, which may be bound to this thread.
    fn keep(&self) {
        if core::mem::needs_drop::<B::Element>() {
            return;
        }
        let (start, length, capacity) = self.parts.erased();
        let (start, free) = (Handle(start), buffer::free::<B> as unsafe fn(*mut c_void, usize, usize));
        let mut is_registered = self.registration.is_registered;
        let give_back = move |device: &Device| {
            // As a whole: the pointer alone may not go to another thread.
            let Handle(start) = &start;
            is_registered = is_registered && unregister(device, *start).is_err();
            if !is_registered {
                // SAFETY: the parts came from such a buffer, once, and its drop left them to this call, which is made again
                // only where it has failed. No work uses them, the driver does not know them, and elements need no drop.
                unsafe { free(*start, length, capacity) };
            }
            !is_registered
        };
        self.registration.device.keep(KeptMemory { give_back: Box::new(give_back) });
    }
}

/// Takes a registration back that no work uses any more.
fn unregister(device: &Device, host: *mut c_void) -> Result<(), DriverError> {
    let _bound = device.enter()?;
    let _relaxed = CaptureModeGuard::enter(device.driver())?;
    // SAFETY: the memory was registered by `Registration::pin`, no work uses it, and the context is current.
    match unsafe { device.driver().cuMemHostUnregister(host) } {
        Err(error) if error.code() == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => Ok(()),
        answer => answer,
    }
}

impl Device {
    /// Pins a slice with the driver, for all devices, while `body` runs: `body` gets its address for devices. The slice is
    /// the caller's again when this returns, or panics with `body`: the same streams as at the drop of [`HostMemory`] are waited
    /// for first, and the same captures minded.
    ///
    /// The wait has no bound. A capture that another thread has begun is waited for where it is in the way. One that was begun
    /// without this crate on a long-lived stream is ended after half a minute, if the driver lets this thread do so: this
    /// thread may have begun it.
    ///
    /// ```
    /// use gpumem_pool::{Device, Stream};
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
    /// The address can't leave the closure with a promise that the memory is there:
    ///
    /// ```compile_fail
    /// # use gpumem_pool::Device;
    /// fn escape(device: &Device, table: &mut [u32]) {
    ///     let escaped = device.with_host_memory(table, |memory| memory);
    /// }
    /// ```
    ///
    /// ```compile_fail
    /// # use gpumem_pool::{BorrowedHostMemory, Device};
    /// fn keep<'a>(device: &Device, table: &'a mut [u32], kept: &mut Option<&'a BorrowedHostMemory<'a, u32>>) {
    ///     let _ = device.with_host_memory(table, |memory| *kept = Some(memory));
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Before `body` runs: [`PoolError::Driver`] if the driver refuses, for example because part of the slice is pinned
    /// already; [`PoolError::DeviceLost`]; [`PoolError::Kept`] for an earlier drop.
    ///
    /// # Aborts
    ///
    /// If the driver, whose context is not lost, refuses every way to wait, or to take the pins out, for half a minute. The
    /// caller would get back memory that a device may write.
    pub fn with_host_memory<T, R>(
        &self,
        slice: &mut [T],
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, PoolError> {
        let size_bytes = size_of_val(slice) as u64;
        // SAFETY: the slice is borrowed until this returns.
        unsafe { self.with_memory(slice.as_mut_ptr(), size_bytes, Access::ReadWrite, body) }
    }

    /// Like [`Device::with_host_memory`], for memory that devices only read: the host may go on reading it too.
    ///
    /// # Errors
    ///
    /// Those of [`Device::with_host_memory`]; [`PoolError::NoHostAccess`] where the device has no such registration.
    ///
    /// # Aborts
    ///
    /// When [`Device::with_host_memory`] does.
    pub fn with_host_memory_read_only<T, R>(
        &self,
        slice: &[T],
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, PoolError> {
        let size_bytes = size_of_val(slice) as u64;
        // SAFETY: the slice is borrowed until this returns, and devices only read it.
        unsafe { self.with_memory(slice.as_ptr().cast_mut(), size_bytes, Access::ReadOnly, body) }
    }

    /// Like [`Device::with_host_memory`], without pins: the device follows the host's addresses by itself, page by page.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoHostAccess`] where the device can't, as on most machines whose device is behind a bus;
    /// [`PoolError::Kept`] for an earlier drop.
    ///
    /// # Aborts
    ///
    /// When [`Device::with_host_memory`] does.
    pub fn with_host_memory_pageable<T, R>(
        &self,
        slice: &mut [T],
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, PoolError> {
        let size_bytes = size_of_val(slice) as u64;
        // SAFETY: the slice is borrowed until this returns.
        unsafe { self.with_memory(slice.as_mut_ptr(), size_bytes, Access::Pageable, body) }
    }

    /// # Safety
    ///
    /// The memory is borrowed until this returns, alone unless devices only read it.
    unsafe fn with_memory<T, R>(
        &self,
        start: *mut T,
        size_bytes: u64,
        access: Access,
        body: impl FnOnce(&BorrowedHostMemory<'_, T>) -> R,
    ) -> Result<R, PoolError> {
        // SAFETY: the memory is borrowed until this returns, and `memory`, which no caller can move, ends the registration.
        let registration = unsafe { Registration::new(self, start.cast(), size_bytes, access)? };
        let memory = BorrowedHostMemory { registration, slice: PhantomData };
        Ok(body(&memory))
    }
}

impl<T> BorrowedHostMemory<'_, T> {
    /// The address for devices; 0 for an empty slice. See [`HostMemory::address`].
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.registration.address
    }

    /// The number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.registration.size_bytes
    }

    /// The address for the host. Wait before you follow it for work that writes there, and write nothing that devices only
    /// read.
    #[must_use]
    pub fn host_ptr(&self) -> *mut T {
        self.registration.host.cast()
    }
}

impl<T> Drop for BorrowedHostMemory<'_, T> {
    fn drop(&mut self) {
        if let Err(cause) = self.registration.end(Patience::Borrowed) {
            give_up(&self.registration, cause);
        }
    }
}

/// The slice's owner would get memory back that a device may still write, and no panic can prevent that.
fn give_up(registration: &Registration, cause: DriverError) -> ! {
    let Registration { device, host, size_bytes, .. } = registration;
    let _ = writeln!(
        std::io::stderr(),
        "gpumem: {size_bytes} bytes at {host:p} are still registered with {device}, whose driver refuses to wait ({cause}); \
         aborting, because returning would give the memory back under use"
    );
    std::process::abort()
}

impl Registration {
    /// # Safety
    ///
    /// The memory stays where it is, and nobody but devices uses it in a way that conflicts with them, until
    /// [`Registration::end`] has succeeded.
    unsafe fn new(
        device: &Device,
        host: *mut c_void,
        size_bytes: u64,
        access: Access,
    ) -> Result<Self, PoolError> {
        device.take_kept()?;
        access.check(device)?;
        let device = device.clone();
        let mut this = Self { device, host, address: 0, size_bytes, is_registered: false, is_over: false };
        if size_bytes == 0 {
            return Ok(this);
        }
        match access.flags() {
            None => this.address = host.expose_provenance() as CUdeviceptr,
            Some(flags) => {
                if let Err(error) = this.pin(flags) {
                    // No work has the address. What can't be taken back stays pinned, and says so later.
                    if let Err(cause) = this.unregister(Patience::Owned) {
                        let (what, address) = ("host memory", host.addr() as u64);
                        this.device.report_kept(PoolError::Kept { what, address, size_bytes, cause });
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(this)
    }

    /// Registers the memory and finds its address. No capture minds.
    fn pin(&mut self, flags: u32) -> Result<(), DriverError> {
        let driver = self.device.driver();
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(driver)?;
        // SAFETY: the memory stays where it is until the registration has ended, and the context is current.
        unsafe { driver.cuMemHostRegister_v2(self.host, self.size_bytes as usize, flags)? };
        self.is_registered = true;
        // SAFETY: `address` outlives the call, and the memory is registered.
        unsafe { driver.cuMemHostGetDevicePointer_v2(&mut self.address, self.host, 0) }
    }

    /// Waits until no work uses the memory, and takes the registration back.
    fn end(&mut self, patience: Patience) -> Result<(), DriverError> {
        if self.size_bytes == 0 || self.is_over {
            return Ok(());
        }
        self.device.settle_machine(patience)?;
        self.unregister(patience)?;
        self.is_over = true;
        Ok(())
    }

    /// No work uses the memory.
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

impl Access {
    /// Refuses what the device can't do.
    fn check(self, device: &Device) -> Result<(), PoolError> {
        let (attribute, what) = match self {
            Self::ReadWrite => return Ok(()),
            Self::ReadOnly => (
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                "can't have host memory for reading only",
            ),
            Self::Pageable => (
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                "can't follow the host's addresses",
            ),
        };
        match device.attribute(attribute)? {
            0 => {
                let instead = "HostMemory::register or Device::with_host_memory";
                Err(PoolError::NoHostAccess { device: device.to_string(), what, instead })
            }
            _ => Ok(()),
        }
    }

    /// The driver's; `None` if the memory is not registered.
    fn flags(self) -> Option<u32> {
        match self {
            Self::ReadWrite => Some(PORTABLE | MAPPED),
            Self::ReadOnly => Some(PORTABLE | MAPPED | READ_ONLY),
            Self::Pageable => None,
        }
    }
}

impl<V> HostMemoryError<V> {
    fn new(error: PoolError, value: V) -> Self {
        Self(Box::new((error, value)))
    }

    /// The error itself.
    #[must_use]
    pub fn error(&self) -> &PoolError {
        &self.0.0
    }

    /// The value that the call was given: the buffer of a registration, the [`HostMemory`] of [`HostMemory::into_inner`].
    pub fn into_value(self) -> V {
        self.0.1
    }
}

impl<V> From<HostMemoryError<V>> for PoolError {
    fn from(error: HostMemoryError<V>) -> Self {
        error.0.0
    }
}

impl<V> Error for HostMemoryError<V> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.0.source()
    }
}

impl<V> fmt::Display for HostMemoryError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

impl<V> fmt::Debug for HostMemoryError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemoryError").field("error", &self.0.0).finish_non_exhaustive()
    }
}

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

impl Registration {
    fn describe(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        f.debug_struct(name)
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("is_registered", &self.is_registered)
            .finish_non_exhaustive()
    }
}

// SAFETY: the driver takes calls about host memory from any thread, and `host` is only passed to it. What the memory itself
// allows is decided by the buffer or slice, in the impls below.
unsafe impl Send for Registration {}
// SAFETY: a shared registration gives away numbers and a pointer, which is `unsafe` to follow, and changes nothing.
unsafe impl Sync for Registration {}

// SAFETY: it owns the buffer that `parts` came from, and nothing else that is bound to a thread.
unsafe impl<B: HostBuffer + Send> Send for HostMemory<B> {}
// SAFETY: a shared one gives no safe way to the elements, and a buffer that may be shared may be read through it.
unsafe impl<B: HostBuffer + Sync> Sync for HostMemory<B> {}

/// The driver's flags: for every context, with an address for devices, which only read.
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;
const READ_ONLY: u32 = 8;
