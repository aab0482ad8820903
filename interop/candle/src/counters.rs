//! The driver's counters of the pools that `cuMemAllocAsync` allocates from.

use candle_core::cuda::cudarc::driver::result::{device, mem_pool};
use candle_core::cuda::cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use candle_core::cuda::cudarc::driver::{CudaContext, DriverError};

/// A pool at the time of the call. Handles are not kept, because a pool may end.
#[derive(Clone, Copy)]
pub enum Of {
    /// The pool from which candle's next tensor comes.
    Current,
    /// The device's default pool.
    Default,
}

pub struct Counters {
    /// A number that distinguishes the pools that exist.
    pub id: usize,
    /// Bytes held from the device.
    pub reserved_bytes: u64,
    /// The peak of these bytes since [`reset_peak`].
    pub reserved_peak_bytes: u64,
    /// Bytes in allocations.
    pub used_bytes: u64,
}

pub fn read(context: &CudaContext, of: Of) -> Result<Counters, DriverError> {
    let pool = find(context, of)?;
    Ok(Counters {
        id: pool as usize,
        reserved_bytes: attribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        reserved_peak_bytes: attribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
        used_bytes: attribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
    })
}

/// Restarts the peak at the present value.
pub fn reset_peak(context: &CudaContext, of: Of) -> Result<(), DriverError> {
    let (pool, mut zero) = (find(context, of)?, 0_u64);
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    // SAFETY: the pool exists, since it is the device's default pool or current; the value is a `cuuint64_t` and outlives the call.
    unsafe { mem_pool::set_attribute(pool, attribute, (&raw mut zero).cast()) }
}

fn find(context: &CudaContext, of: Of) -> Result<CUmemoryPool, DriverError> {
    // SAFETY: the device is that of a context that exists.
    unsafe {
        match of {
            Of::Current => device::get_mem_pool(context.cu_device()),
            Of::Default => device::get_default_mem_pool(context.cu_device()),
        }
    }
}

fn attribute(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> Result<u64, DriverError> {
    let mut value = 0_u64;
    // SAFETY: `find` returned the pool just now; the attributes of this file are `cuuint64_t`, and the value outlives the call.
    unsafe { mem_pool::get_attribute(pool, attribute, (&raw mut value).cast())? };
    Ok(value)
}
