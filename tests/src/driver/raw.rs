//! A device used by the raw driver calls, for tests of the driver itself.
//!
//! Device 0's primary context is current while a [`Raw`] lives. Nothing is tracked: a test destroys what
//! it creates.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_adapt::array::pool::sys::{Driver, DriverError};
use std::ptr::null_mut;

/// The result code of a driver call.
#[must_use]
pub fn code(result: Result<(), DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |error| error.code())
}

/// Device 0 with its primary context current on this thread.
pub struct Raw {
    /// The table under test.
    pub driver: Driver,
    /// Device 0.
    pub device: CUdevice,
    /// Its primary context.
    pub context: CUcontext,
}

impl Raw {
    /// Retains device 0's primary context and makes it current.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn new(driver: &Driver) -> Result<Self, DriverError> {
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: the out-pointers live through the calls.
        unsafe {
            driver.cuInit(0)?;
            driver.cuDeviceGet(&mut device, 0)?;
            driver.cuDevicePrimaryCtxRetain(&mut context, device)?;
            driver.cuCtxPushCurrent_v2(context)?;
        }
        Ok(Self { driver: driver.clone(), device, context })
    }

    /// A new non-blocking stream.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn stream(&self) -> Result<CUstream, DriverError> {
        let mut stream = null_mut();
        // SAFETY: the out-pointer lives through the call; the context is current.
        unsafe { self.driver.cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0)? };
        Ok(stream)
    }

    /// A new event without timing.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn event(&self) -> Result<CUevent, DriverError> {
        let mut event = null_mut();
        // SAFETY: like `stream`.
        unsafe { self.driver.cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)? };
        Ok(event)
    }

    /// Plain device memory.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn alloc(&self, size_bytes: usize) -> Result<CUdeviceptr, DriverError> {
        let mut address = 0;
        // SAFETY: like `stream`.
        unsafe { self.driver.cuMemAlloc_v2(&mut address, size_bytes)? };
        Ok(address)
    }

    /// Stream-ordered device memory.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    ///
    /// # Safety
    ///
    /// The stream is alive.
    pub unsafe fn alloc_async(
        &self,
        size_bytes: usize,
        stream: CUstream,
    ) -> Result<CUdeviceptr, DriverError> {
        let mut address = 0;
        // SAFETY: the out-pointer lives through the call; the caller guarantees the stream.
        unsafe { self.driver.cuMemAllocAsync(&mut address, size_bytes, stream)? };
        Ok(address)
    }

    /// Waits for the device and reads `size_bytes` bytes at `address`.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn read(&self, address: CUdeviceptr, size_bytes: usize) -> Result<Vec<u8>, DriverError> {
        let mut bytes = vec![0; size_bytes];
        // SAFETY: `bytes` has room for what is copied, and the call returns when it is there.
        unsafe {
            self.driver.cuCtxSynchronize()?;
            self.driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, size_bytes)?;
        }
        Ok(bytes)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: pops and releases the context that `new` pushed and retained. An error means that the context was destroyed before.
        unsafe {
            let _ = self.driver.cuCtxPopCurrent_v2(&mut popped);
            let _ = self.driver.cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
