//! A trial of virtual memory before the first pool of a device relies on it.
//!
//! A device may report support for virtual memory, or for memory of network cards, and still refuse a call. So a smallest handle with
//! exactly the properties that the pool needs is created, mapped, opened and written. A success is remembered for the device.

use crate::backend::caching::access::MemoryAccess;
use crate::backend::caching::vmm::Vmm;
use crate::error::{PoolError, Refusal};
use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use gpumem_device::Device;
use gpumem_device::internal::{Handle, Verdict};
use gpumem_heap::{PhysicalMemory, RawHandle};
use gpumem_sys::types::{CUctx_st, CUresult, CUstream_st};
use gpumem_sys::{Driver, DriverError};
use std::time::Instant;

/// A bit for each use of handles with which memory has been mapped and written on a GPU.
#[derive(Default)]
struct Mapped(AtomicU8);

/// Returns the driver's error if the pool's memory cannot be virtual. Every code except a lack of memory counts, even `UNKNOWN`, which WSL
/// returns for memory of network cards. The device's context must be current.
///
/// # Errors
///
/// `DeviceError::DeviceLost` or `DeviceError::Driver` if the device is lost.
pub(super) fn refusal(device: &Device, access: &MemoryAccess) -> Result<Option<DriverError>, PoolError> {
    let (mapped, use_bit) = (device.extension(Mapped::default), access.handle_use.bit());
    if mapped.0.load(Ordering::Relaxed) & use_bit != 0 {
        return Ok(None);
    }
    let _entered = device.enter_relaxed()?;
    let (mut trial, mut vmm) = (Trial::of(device), Vmm::new(device.driver(), access));
    let written = trial.run(&mut vmm);
    let ended = trial.end(&mut vmm).or_else(|_| trial.end(&mut vmm));
    if ended.is_err() {
        let access = access.for_orphaned_heap();
        let retry = move |driver: &Driver, _: &_, _| trial.end(&mut Vmm::new(driver, &access)).is_ok();
        device.maintenance().defer_release(false, false, retry);
    }
    // Other work may keep the device busy. Every call has succeeded, so the write will succeed too.
    let tried = match written {
        Ok(true) => ended.map(|()| true).map_err(Refusal::from),
        other => other,
    };
    match tried {
        Ok(is_written) => {
            if is_written {
                mapped.0.fetch_or(use_bit, Ordering::Relaxed);
            }
            Ok(None)
        }
        Err(Refusal::Limit(_)) => Ok(None),
        Err(Refusal::Driver(error)) if error.is_out_of_memory() => Ok(None),
        Err(Refusal::Driver(error)) => match Verdict::of(&error) {
            Verdict::Lost => Ok(device.noting(Err(error))?),
            _ => Ok(Some(error)),
        },
    }
}

struct Trial {
    context: Handle<CUctx_st>,
    address: Option<u64>,
    handle: Option<RawHandle>,
    is_mapped: bool,
    stream: Option<Handle<CUstream_st>>,
}

impl Trial {
    fn of(device: &Device) -> Self {
        let context = Handle(device.context());
        Self { context, address: None, handle: None, is_mapped: false, stream: None }
    }

    /// True if the write was complete in time.
    fn run(&mut self, vmm: &mut Vmm<'_>) -> Result<bool, Refusal> {
        let address = vmm.reserve(SIZE_BYTES)?;
        self.address = Some(address);
        let handle = vmm.create(SIZE_BYTES)?;
        self.handle = Some(handle);
        vmm.map(address, SIZE_BYTES, handle)?;
        self.is_mapped = true;
        vmm.set_access(address, SIZE_BYTES)?;
        let stream = self.stream.insert(vmm.create_stream()?);
        vmm.fill(address, SIZE_BYTES, stream)?;
        let until = Instant::now() + WRITE_WITHIN;
        while !vmm.is_idle(stream)? {
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(true)
    }

    /// Releases everything. After an error, the rest stays for the next call. The device's context must be current.
    fn end(&mut self, vmm: &mut Vmm<'_>) -> Result<(), DriverError> {
        if let Some(stream) = &self.stream {
            if !vmm.is_idle(stream)? {
                return Err(DriverError::Failed {
                    call: "cuStreamQuery",
                    code: CUresult::CUDA_ERROR_NOT_READY,
                });
            }
            vmm.destroy_stream(self.context.0, stream)?;
            self.stream = None;
        }
        if let Some(address) = self.address {
            if self.is_mapped {
                vmm.unmap(address, SIZE_BYTES)?;
                self.is_mapped = false;
            }
            vmm.free(address, SIZE_BYTES)?;
            self.address = None;
        }
        if let Some(handle) = self.handle {
            vmm.release(handle, SIZE_BYTES)?;
            self.handle = None;
        }
        Ok(())
    }
}

/// The smallest handle.
const SIZE_BYTES: u64 = 2 << 20;
/// An idle device takes microseconds. A kernel that occupies the whole device may wait for the host.
const WRITE_WITHIN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(20);
