//! [`ExportedBlock`] and [`ImportedBlock`]: memory shared between processes, on Linux.
//!
//! A block lies in one or more driver handles. Each handle is exported as a file descriptor. The other process maps
//! the handles side by side, as they are mapped here, and finds the block at its offset.

#[cfg(all(feature = "ipc", target_os = "linux"))]
mod socket;

#[cfg(all(feature = "ipc", target_os = "linux"))]
pub use socket::SocketError;

use crate::error::{BadArgument, PoolError};
use core::ffi::c_void;
use gpumem_device::internal::{KeptMemory, Patience, Work, not_forked};
use gpumem_device::{Device, DeviceError};
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType,
};
use gpumem_sys::{DriverError, fork};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A block's memory, exported to another process: file descriptors to send there (over a socket, or by
/// inheritance), and the position of the block within them.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedBlock {
    /// The handles that contain the block, from its start to its end.
    pub handles: Vec<ExportedHandle>,
    /// The offset of the block in the first handle.
    pub offset_bytes: u64,
    /// The size of the block.
    pub size_bytes: u64,
}

/// A handle to physical memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedHandle {
    /// The file descriptor, which keeps the memory alive while it is open.
    pub descriptor: OwnedFd,
    /// The size of the handle's memory.
    pub size_bytes: u64,
}

impl ExportedBlock {
    /// Reassembles an exported block from data that arrived in another process.
    #[must_use]
    pub fn new(handles: Vec<ExportedHandle>, offset_bytes: u64, size_bytes: u64) -> Self {
        Self { handles, offset_bytes, size_bytes }
    }

    /// Exports the driver's handles under a block, which lives during the call.
    pub(super) fn of(
        device: &Device,
        handles: &[(CUmemGenericAllocationHandle, u64)],
        offset_bytes: u64,
        size_bytes: u64,
    ) -> Result<Self, PoolError> {
        let driver = device.driver();
        let _bound = device.enter()?;
        let mut exported = Vec::new();
        for &(handle, size_bytes) in handles {
            let mut descriptor = -1_i32;
            let place = (&raw mut descriptor).cast();
            // SAFETY: for this type of handle the driver writes an `int`, which `descriptor` is and which outlives
            // the call. The block, which is alive, keeps the handle.
            unsafe { driver.cuMemExportToShareableHandle(place, handle, POSIX, 0)? };
            // SAFETY: the export has opened the descriptor for its caller, which owns it and has not shared it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            exported.push(ExportedHandle { descriptor, size_bytes });
        }
        Ok(Self::new(exported, offset_bytes, size_bytes))
    }
}

impl ExportedHandle {
    /// Reassembles an exported handle from data that arrived in another process.
    #[must_use]
    pub fn new(descriptor: OwnedFd, size_bytes: u64) -> Self {
        Self { descriptor, size_bytes }
    }
}

/// A block of another process (or of this one), mapped for a device of this process while this value lives.
///
/// Its drop waits for the device, even during a capture, and then unmaps the memory. If only ending this thread's capture lets the wait
/// succeed, the drop ends it, and the end of the capture returns [`DeviceError::Capture`]. If the wait stays impossible for two
/// seconds, because another thread captures or because the driver refuses, the memory stays mapped, and the next [`Device::synchronize`],
/// registration or import reports [`DeviceError::Kept`].
///
/// The memory exists as long as any process has it mapped or has its descriptor open. If one process ends, even by a signal, the others
/// keep the memory. They get no notification: work that the process had queued may or may not be complete.
#[must_use = "dropping it takes the memory away"]
pub struct ImportedBlock {
    device: Device,
    base: CUdeviceptr,
    addresses_bytes: u64,
    /// The sizes of the handles that are mapped, side by side.
    mapped: Vec<u64>,
    /// True if the device has access, so that work may use the memory.
    is_open: bool,
    offset_bytes: u64,
    size_bytes: u64,
}

impl ImportedBlock {
    /// Maps a block that another process has exported. The device must be the exporting device, or one with a link
    /// to it.
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the block does not fit into its handles, or if the sizes of the handles, or the offset and the size of
    ///   the block, add up to more than an address can be.
    /// - [`DeviceError::Kept`] for an earlier drop.
    /// - [`DeviceError::DeviceLost`] or [`DeviceError::Driver`] if a call fails.
    pub fn new(device: &Device, exported: ExportedBlock) -> Result<Self, PoolError> {
        not_forked()?;
        device.take_kept()?;
        let ExportedBlock { handles, offset_bytes, size_bytes } = exported;
        let overflow = |what| PoolError::BadArgument(BadArgument::SizeOverflow { what });
        let sum = |sum: u64, handle: &ExportedHandle| sum.checked_add(handle.size_bytes);
        let all_bytes =
            handles.iter().try_fold(0, sum).ok_or(overflow("the sizes of the exported handles"))?;
        let end = offset_bytes.checked_add(size_bytes);
        let end = end.ok_or(overflow("the offset and the size of the exported block"))?;
        if end > all_bytes {
            return Err(PoolError::BadArgument(BadArgument::OutOfBounds {
                start: offset_bytes,
                end,
                size_bytes: all_bytes,
            }));
        }
        let mut imported = Self {
            device: device.clone(),
            base: 0,
            addresses_bytes: 0,
            mapped: Vec::new(),
            is_open: false,
            offset_bytes,
            size_bytes,
        };
        if all_bytes > 0 {
            let _entered = device.enter_relaxed()?;
            // If a call fails, the drop undoes the earlier ones.
            imported.reserve(all_bytes)?;
            handles.iter().try_for_each(|handle| imported.map(handle))?;
            imported.open()?;
        }
        Ok(imported)
    }

    fn reserve(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        // SAFETY: `base` outlives the call, and the context is current.
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
        // SAFETY: `raw` outlives the call. For this type of handle the driver takes the descriptor's number in
        // place of the pointer, and `handle` keeps the descriptor open.
        unsafe { driver.cuMemImportFromShareableHandle(&mut raw, descriptor, POSIX)? };
        // SAFETY: `reserve` has reserved the addresses for this block alone. The earlier handles end at `address`,
        // and the sum of all sizes is the reserved size.
        let mapped = unsafe { driver.cuMemMap(address, size, 0, raw, 0) };
        if mapped.is_ok() {
            self.mapped.push(handle.size_bytes);
        }
        // SAFETY: the import above has counted the handle once. A mapping keeps the memory by itself.
        let released = self.device.give_back(Patience::Owned, || unsafe { driver.cuMemRelease(raw) });
        Ok(mapped.and(released)?)
    }

    fn open(&mut self) -> Result<(), PoolError> {
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: self.device.raw(),
            },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let size = self.addresses_bytes as usize;
        // SAFETY: `access` outlives the call, and `map` has mapped all of the addresses.
        unsafe { self.device.driver().cuMemSetAccess(self.base, size, &access, 1)? };
        self.is_open = true;
        Ok(())
    }

    /// Returns the start address of the block in this process; 0 for an empty block.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        if self.size_bytes == 0 { 0 } else { self.base + self.offset_bytes }
    }

    /// Returns the size of the block.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the device that may use the block in this process.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl ImportedBlock {
    /// Waits until no work uses the memory, and unmaps it.
    fn unmap(&mut self) -> Result<(), DriverError> {
        if self.addresses_bytes == 0 {
            return Ok(());
        }
        let device = &self.device;
        if self.is_open {
            device.settle(Work::OfDevice, Patience::Owned)?;
        }
        let give_back = |call: &DriverCall<'_>| device.give_back(Patience::Owned, call);
        unmap(device, self.base, &mut self.addresses_bytes, &mut self.mapped, give_back)
    }
}

type DriverCall<'a> = dyn Fn() -> Result<(), DriverError> + 'a;

/// Unmaps the handles of an imported block, which no work uses, and frees its addresses. After a failure it may be called again. `call` makes
/// the calls of the driver.
fn unmap(
    device: &Device,
    base: CUdeviceptr,
    addresses_bytes: &mut u64,
    mapped: &mut Vec<u64>,
    call: impl Fn(&DriverCall<'_>) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let driver = device.driver();
    let give_back = |free: &DriverCall<'_>| {
        call(&|| {
            let _entered = device.enter_relaxed()?;
            free()
        })
    };
    // Unmaps the last handle first: if the driver refuses, the remaining handles are still at the beginning of the addresses.
    while let Some(size_bytes) = mapped.last().copied() {
        let address = base + mapped.iter().sum::<u64>() - size_bytes;
        // SAFETY: this handle was mapped at this address by `ImportedBlock::map`, and no work uses it.
        give_back(&|| unsafe { driver.cuMemUnmap(address, size_bytes as usize) })?;
        mapped.pop();
    }
    let size = *addresses_bytes as usize;
    // SAFETY: the addresses were reserved by `ImportedBlock::reserve`, and nothing is mapped there any more.
    give_back(&|| unsafe { driver.cuMemAddressFree(base, size) })?;
    *addresses_bytes = 0;
    Ok(())
}

impl Drop for ImportedBlock {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let Err(cause) = self.unmap() else { return };
        // The next wait of the host releases it, or a later one.
        let (base, mut addresses_bytes) = (self.base, self.addresses_bytes);
        let size_bytes = addresses_bytes;
        let mut mapped = core::mem::take(&mut self.mapped);
        let give_back = move |device: &Device| {
            unmap(device, base, &mut addresses_bytes, &mut mapped, |call| call()).is_ok()
        };
        self.device.keep(KeptMemory { give_back: Box::new(give_back) });
        // In a host function this is not an error.
        if !cause.is_not_permitted() {
            let what = "an imported block";
            self.device.report_kept(DeviceError::Kept { what, address: base, size_bytes, cause });
        }
    }
}

debug_fields!(
    ImportedBlock, it,
    address: format_args!("{:#x}", it.address()),
    size_bytes: it.size_bytes,
    device: it.device,
);

const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
