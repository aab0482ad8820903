//! The driver calls for physical memory and addresses.

use super::access::{HeapMemory, MemoryAccess};
use crate::backend::plain;
use crate::error::Refusal;
use gpumem_device::internal::{Handle, Object, Owned};
use gpumem_heap::{PhysicalMemory, RawHandle};
use gpumem_sys::types::{CUcontext, CUmemAccessDesc, CUresult, CUstream_flags, CUstream_st};
use gpumem_sys::{Driver, DriverError};

/// The driver calls for one device, whose context is current.
pub(super) struct Vmm<'a> {
    driver: &'a Driver,
    access: &'a MemoryAccess,
}

impl<'a> Vmm<'a> {
    pub(super) fn new(driver: &'a Driver, access: &'a MemoryAccess) -> Self {
        Self { driver, access }
    }

    /// Sets the access of one device. The access of other devices is unchanged.
    pub(super) fn set_access_of(
        &self,
        address: u64,
        size_bytes: u64,
        access: &CUmemAccessDesc,
    ) -> Result<(), DriverError> {
        // SAFETY: `access` outlives the call; the heap has mapped the range.
        self.count(|| unsafe { self.driver.cuMemSetAccess(address, size_bytes as usize, access, 1) })
    }

    fn count<R>(&self, call: impl FnOnce() -> R) -> R {
        self.access.activity.driver_call(call)
    }

    fn create_handle(&self, size_bytes: u64) -> Result<u64, DriverError> {
        let props = self.access.props();
        let mut handle = 0;
        // SAFETY: `handle` and `props` outlive the call.
        unsafe { self.driver.cuMemCreate(&mut handle, size_bytes as usize, &props, 0)? };
        Ok(handle)
    }

    /// Reserves addresses for `size_bytes`, with nothing mapped.
    pub(super) fn reserve(&self, size_bytes: u64) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        self.count(|| unsafe {
            self.driver.cuMemAddressReserve(&mut address, size_bytes as usize, 0, 0, 0)
        })?;
        Ok(address)
    }

    /// Frees addresses that have nothing mapped.
    pub(super) fn free(&self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the range came from `reserve`, and its heap is empty.
        self.count(|| unsafe { self.driver.cuMemAddressFree(address, size_bytes as usize) })
    }

    pub(super) fn create_stream(&self) -> Result<Handle<CUstream_st>, DriverError> {
        let mut stream = core::ptr::null_mut();
        // SAFETY: `stream` outlives the call.
        unsafe { self.driver.cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0)? };
        Ok(Handle(stream))
    }

    pub(super) fn fill(
        &self,
        address: u64,
        size_bytes: u64,
        stream: &Handle<CUstream_st>,
    ) -> Result<(), DriverError> {
        // SAFETY: the range is mapped and belongs to the caller, and the stream is alive.
        unsafe { self.driver.cuMemsetD8Async(address, 0, size_bytes as usize, stream.0) }
    }

    pub(super) fn is_idle(&self, stream: &Handle<CUstream_st>) -> Result<bool, DriverError> {
        // SAFETY: the stream is alive.
        match unsafe { self.driver.cuStreamQuery(stream.0) } {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            queried => queried.map(|()| true),
        }
    }

    /// Destroys a stream of [`Vmm::create_stream`], which is not used after a success.
    pub(super) fn destroy_stream(
        &self,
        context: CUcontext,
        stream: &Handle<CUstream_st>,
    ) -> Result<(), DriverError> {
        Owned { object: Object::Stream(stream.0), context }.destroy(self.driver)
    }
}

impl PhysicalMemory for Vmm<'_> {
    type Error = DriverError;
    type Refusal = Refusal;

    /// A limit can refuse memory that it has just allowed, because other pools have used it up or the limit was lowered.
    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, Refusal> {
        self.access.admission.admit(size_bytes).map_err(Refusal::Limit)?;
        let created = self.count(|| match self.access.memory {
            HeapMemory::Virtual => self.create_handle(size_bytes),
            HeapMemory::Segments(kind) => plain::acquire(self.driver, kind, size_bytes),
        });
        let created = created.inspect_err(|_| self.access.admission.give_back(size_bytes));
        Ok(RawHandle(created?))
    }

    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), DriverError> {
        // SAFETY: the heap owns the addresses and ensures that nothing is mapped there; the handle is alive.
        self.count(|| unsafe { self.driver.cuMemMap(address, size_bytes as usize, 0, handle.0, 0) })
    }

    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        let set = |granted: &[CUmemAccessDesc]| {
            // SAFETY: `granted` outlives the call; the heap has mapped the range.
            self.count(|| unsafe {
                self.driver.cuMemSetAccess(address, size_bytes as usize, granted.as_ptr(), granted.len())
            })
        };
        self.access.with(set)
    }

    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the heap has mapped the range, and all work that used it is complete.
        self.count(|| unsafe { self.driver.cuMemUnmap(address, size_bytes as usize) })
    }

    fn release(&mut self, handle: RawHandle, size_bytes: u64) -> Result<(), DriverError> {
        self.count(|| match self.access.memory {
            // SAFETY: the handle was created here, and is not used again.
            HeapMemory::Virtual => unsafe { self.driver.cuMemRelease(handle.0) },
            // SAFETY: the segment was allocated here and is not used again, and the heap ensures that all uses are
            // complete.
            HeapMemory::Segments(kind) => unsafe { plain::release(self.driver, kind, handle.0) },
        })?;
        self.access.activity.trimmed_bytes.add(size_bytes);
        self.access.admission.give_back(size_bytes);
        Ok(())
    }
}
