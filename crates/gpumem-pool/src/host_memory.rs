//! [`HostMemory`]: memory of the program's own that a device uses where it is.

use crate::device::Device;
use crate::error::PoolError;
use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr};

/// A slice of the program's own memory, with an address for devices, for as long as this lives. The slice is borrowed
/// meanwhile: nobody else can see what the device writes, or change what it reads.
///
/// Pinned with the driver ([`HostMemory::register`]), or as it is where the device follows the host's addresses by itself
/// ([`HostMemory::pageable`]). Its drop waits for the device, and then takes the pins out.
///
/// ```
/// use gpumem_pool::{Device, HostMemory, Stream, sys::{Driver, SimConfig}};
///
/// let device = Device::new(&Driver::sim(SimConfig::new())?, 0)?;
/// let stream = Stream::new(&device)?;
/// let mut table = vec![0_u32; 1 << 20];
/// {
///     let shared = HostMemory::register(&device, &mut table)?;
///     let _bound = device.bind()?;
///     // SAFETY: the memory is shared, and as long as that.
///     unsafe { device.driver().cuMemsetD32Async(shared.address(), 7, 1 << 20, stream.raw())? };
/// }
/// assert!(table.iter().all(|value| *value == 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it takes the device's way to the memory away"]
pub struct HostMemory<'a, T> {
    device: Device,
    host: *mut c_void,
    address: CUdeviceptr,
    size_bytes: u64,
    is_registered: bool,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is the slice that it borrows, alone or with others, which may go to another thread if the elements may be sent
// and shared; the driver takes calls about it from any thread.
unsafe impl<T: Send + Sync> Send for HostMemory<'_, T> {}
// SAFETY: a shared one tells addresses, and gives no way to the elements.
unsafe impl<T: Sync> Sync for HostMemory<'_, T> {}

impl<'a, T> HostMemory<'a, T> {
    /// Pins a slice, for all devices of the driver. That takes time: 27 µs a MiB on an H200's host, once the memory has been
    /// touched. An empty slice has no address, and costs nothing.
    ///
    /// What a device writes must be values that `T` can have.
    ///
    /// # Errors
    ///
    /// What the driver says, if some of it is pinned already, say.
    pub fn register(device: &Device, slice: &'a mut [T]) -> Result<Self, PoolError> {
        Self::pin(device, slice.as_mut_ptr().cast(), size_of_val::<[T]>(slice) as u64, 0)
    }

    /// The same for memory that devices only read: the host may go on reading it too.
    ///
    /// # Errors
    ///
    /// As [`HostMemory::register`]; [`PoolError::NoHostAccess`] where the device has no such thing.
    pub fn register_read_only(device: &Device, slice: &'a [T]) -> Result<Self, PoolError> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        if device.attribute(attribute)? == 0 {
            return Err(PoolError::NoHostAccess {
                device: device.to_string(),
                what: "can't have host memory for reading only",
                instead: "HostMemory::register",
            });
        }
        Self::pin(device, slice.as_ptr().cast_mut().cast(), size_of_val::<[T]>(slice) as u64, READ_ONLY)
    }

    /// A slice as it is: the device follows the host's addresses by itself, page by page.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoHostAccess`] where it can't, as on most machines whose device is behind a bus.
    pub fn pageable(device: &Device, slice: &'a mut [T]) -> Result<Self, PoolError> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        if device.attribute(attribute)? == 0 {
            return Err(PoolError::NoHostAccess {
                device: device.to_string(),
                what: "can't follow the host's addresses",
                instead: "HostMemory::register",
            });
        }
        let host: *mut c_void = slice.as_mut_ptr().cast();
        let address = if slice.is_empty() { 0 } else { host.expose_provenance() as CUdeviceptr };
        let size_bytes = size_of_val::<[T]>(slice) as u64;
        Ok(Self {
            device: device.clone(),
            host,
            address,
            size_bytes,
            is_registered: false,
            slice: PhantomData,
        })
    }

    fn pin(device: &Device, host: *mut c_void, size_bytes: u64, more_flags: u32) -> Result<Self, PoolError> {
        let driver = device.driver();
        let mut memory = Self {
            device: device.clone(),
            host,
            address: 0,
            size_bytes,
            is_registered: false,
            slice: PhantomData,
        };
        if size_bytes > 0 {
            let _bound = device.enter()?;
            // SAFETY: the slice is borrowed for as long as the pins are there, and the context is current.
            unsafe {
                driver.cuMemHostRegister_v2(host, size_bytes as usize, PORTABLE | MAPPED | more_flags)?
            };
            // From here on the drop takes them out.
            memory.is_registered = true;
            // SAFETY: `address` outlives the call, and the memory is pinned.
            unsafe { driver.cuMemHostGetDevicePointer_v2(&mut memory.address, host, 0)? };
        }
        Ok(memory)
    }

    /// Where devices find it; 0 for an empty slice.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// How many bytes it has.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Where the host finds it. Whoever follows the pointer waits first for work that writes there, and writes nothing that
    /// devices only read.
    #[must_use]
    pub fn host_ptr(&self) -> *mut T {
        self.host.cast()
    }
}

impl<T> Drop for HostMemory<'_, T> {
    fn drop(&mut self) {
        // The slice goes back to its owner: no work may use it any more. Without its context none does.
        if self.size_bytes == 0 || self.device.finish().is_err() || !self.is_registered {
            return;
        }
        let Ok(_bound) = self.device.enter() else { return };
        // SAFETY: it was registered here, and all work that used it is done. There is nobody to tell of a failure.
        let _ = unsafe { self.device.driver().cuMemHostUnregister(self.host) };
    }
}

impl<T> fmt::Debug for HostMemory<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("is_registered", &self.is_registered)
            .finish_non_exhaustive()
    }
}

/// For every context, with an address for devices, which only read.
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;
const READ_ONLY: u32 = 8;
