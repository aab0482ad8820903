//! [`ExportedBlock`] and [`ImportedBlock`]: memory of one process in another, on Linux.
//!
//! A block lies in one or more handles, which are what the driver exports, each as a file descriptor. The other process maps
//! them side by side, as they are here, and finds the block at the same place in them.

use crate::backend::{Source, Underlying};
use crate::block::Block;
use crate::device::Device;
use crate::error::PoolError;
use core::ffi::c_void;
use core::fmt;
use gpumem_sys::types::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemLocation,
    CUmemLocationType,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A block's memory, for another process: descriptors to be sent there (over a socket, or by inheritance), and the numbers
/// that say where the block is in them.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedBlock {
    /// What the block lies in, from its start to its end.
    pub handles: Vec<ExportedHandle>,
    /// Where in the first of them it starts.
    pub offset_bytes: u64,
    /// How large it is.
    pub size_bytes: u64,
}

/// A piece of physical memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedHandle {
    /// It keeps the memory, as long as it is open.
    pub descriptor: OwnedFd,
    /// All of it.
    pub size_bytes: u64,
}

impl ExportedBlock {
    /// What arrived in another process, put together again.
    #[must_use]
    pub fn new(handles: Vec<ExportedHandle>, offset_bytes: u64, size_bytes: u64) -> Self {
        Self { handles, offset_bytes, size_bytes }
    }
}

impl ExportedHandle {
    /// The same.
    #[must_use]
    pub fn new(descriptor: OwnedFd, size_bytes: u64) -> Self {
        Self { descriptor, size_bytes }
    }
}

impl Block {
    /// Names the block's memory to other processes. It is pinned from here on, as by [`Block::pin_backing`].
    ///
    /// They can use all of the handles that the block lies in, and so whatever other blocks of the pool lie there: a pool
    /// of its own for what is shared keeps the rest apart ([`Pool::private`](crate::Pool::private)). Order between processes
    /// is theirs to make. The pool may give the block's place to another once this one is dropped: keep it until the others
    /// are done.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, ImportedBlock, Pool, Stream, sys::{Driver, SimConfig}};
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&Driver::sim(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Caching).exportable().build()?;
    /// let block = pool.alloc(3 << 20, &Stream::new(&device)?)?;
    /// let exported = block.export()?;
    ///
    /// // … the descriptors and the numbers go to another process, where …
    /// let imported = ImportedBlock::new(&device, exported)?;
    /// assert_eq!(imported.size_bytes(), 3 << 20);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::NotExportable`] unless the pool was made with
    /// [`PoolBuilder::exportable`](crate::PoolBuilder::exportable), or what the driver says.
    pub fn export(&self) -> Result<ExportedBlock, PoolError> {
        if self.size_bytes() == 0 {
            return Ok(ExportedBlock::new(Vec::new(), 0, 0));
        }
        let (pool, piece) = self.state().behind(self.piece());
        let backing = pool.backend().backing(piece);
        let Underlying { handles, offset_bytes } = backing.ok_or(PoolError::NotExportable)?;
        let offset_bytes = offset_bytes + (self.address() - piece.address);
        let driver = self.device().driver();
        let _bound = self.device().enter()?;
        let mut exported = Vec::new();
        for (handle, size_bytes) in handles {
            let mut descriptor = -1_i32;
            let place = (&raw mut descriptor).cast();
            // SAFETY: a descriptor is an `int`, which outlives the call; the live block keeps the handle.
            unsafe { driver.cuMemExportToShareableHandle(place, handle, POSIX, 0)? };
            // SAFETY: the driver has just opened it for us.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            exported.push(ExportedHandle { descriptor, size_bytes });
        }
        Ok(ExportedBlock::new(exported, offset_bytes, self.size_bytes()))
    }
}

/// A block of another process (or of this one) that a device of this one may use, for as long as this lives. Its drop waits
/// for the device.
///
/// The memory is there for as long as anybody has it mapped, or a descriptor of it open: a process that ends, or is killed,
/// takes it from no other. But nobody is told: what it had queued may be done or not.
#[must_use = "dropping it takes the memory away"]
pub struct ImportedBlock {
    device: Device,
    /// Of the first handle.
    base: CUdeviceptr,
    addresses_bytes: u64,
    /// The sizes of those that are mapped, side by side.
    mapped: Vec<u64>,
    offset_bytes: u64,
    size_bytes: u64,
}

impl ImportedBlock {
    /// Maps what another process has exported. The device is the same one as there, or one with a link to it.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfBounds`] for numbers that don't fit each other, or what the driver says.
    pub fn new(device: &Device, exported: ExportedBlock) -> Result<Self, PoolError> {
        let ExportedBlock { handles, offset_bytes, size_bytes } = exported;
        let sum = |sum: u64, handle: &ExportedHandle| sum.checked_add(handle.size_bytes);
        let all_bytes = handles.iter().try_fold(0, sum).unwrap_or(0);
        let end = offset_bytes.saturating_add(size_bytes);
        if end > all_bytes {
            return Err(PoolError::OutOfBounds { start: offset_bytes, end, size_bytes: all_bytes });
        }
        let mut imported = Self {
            device: device.clone(),
            base: 0,
            addresses_bytes: 0,
            mapped: Vec::new(),
            offset_bytes,
            size_bytes,
        };
        if all_bytes > 0 {
            let _bound = device.enter()?;
            // What is done when one of these fails the drop undoes.
            imported.reserve(all_bytes)?;
            handles.iter().try_for_each(|handle| imported.map(handle))?;
            imported.open()?;
        }
        Ok(imported)
    }

    fn reserve(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        // SAFETY: the place outlives the call.
        unsafe { self.device.driver().cuMemAddressReserve(&mut self.base, size_bytes as usize, 0, 0, 0)? };
        self.addresses_bytes = size_bytes;
        Ok(())
    }

    fn map(&mut self, handle: &ExportedHandle) -> Result<(), PoolError> {
        let (driver, size) = (self.device.driver(), handle.size_bytes as usize);
        let address = self.base + self.mapped.iter().sum::<u64>();
        let mut raw = 0;
        let descriptor: *mut c_void =
            core::ptr::without_provenance_mut(handle.descriptor.as_raw_fd() as usize);
        // SAFETY: the place outlives the calls; what stands for a descriptor is its number. The addresses are ours, and
        // nothing is mapped there yet.
        let mapped = unsafe {
            driver.cuMemImportFromShareableHandle(&mut raw, descriptor, POSIX)?;
            let mapped = driver.cuMemMap(address, size, 0, raw, 0);
            // The mapping keeps the memory.
            mapped.and(driver.cuMemRelease(raw))
        };
        mapped?;
        self.mapped.push(handle.size_bytes);
        Ok(())
    }

    fn open(&self) -> Result<(), PoolError> {
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: self.device.raw(),
            },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let size = self.addresses_bytes as usize;
        // SAFETY: `access` outlives the call, and all of the addresses are mapped.
        unsafe { self.device.driver().cuMemSetAccess(self.base, size, &access, 1) }.map_err(PoolError::from)
    }

    /// Where the block starts in this process; 0 for an empty one.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        if self.size_bytes == 0 { 0 } else { self.base + self.offset_bytes }
    }

    /// How many bytes it has.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The device that may use it here.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for ImportedBlock {
    fn drop(&mut self) {
        // Without its context nothing is mapped any more. There is nobody to tell of a failure: what can't be undone stays.
        if self.addresses_bytes == 0 || self.device.finish().is_err() {
            return;
        }
        let (Ok(_bound), driver) = (self.device.enter(), self.device.driver()) else { return };
        let mut address = self.base;
        for size_bytes in &self.mapped {
            // SAFETY: it was mapped here, and all work that used it is done.
            if unsafe { driver.cuMemUnmap(address, *size_bytes as usize) }.is_err() {
                return;
            }
            address += size_bytes;
        }
        // SAFETY: they were reserved here, and nothing is mapped there any more.
        let _ = unsafe { driver.cuMemAddressFree(self.base, self.addresses_bytes as usize) };
    }
}

impl fmt::Debug for ImportedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedBlock")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
