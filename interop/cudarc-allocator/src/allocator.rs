//! [`PoolAllocator`]: the proposed trait of cudarc, on a pool of gpumem.

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaStream, DeviceAllocator, DriverError};
use gpumem_pool::{Block, Pool, PoolError, Stream};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Allocates the slices of a context from a pool.
#[derive(Debug)]
pub struct PoolAllocator {
    pool: Pool,
    /// The streams by their handles, until they end.
    streams: Mutex<HashMap<usize, Stream>>,
    /// The blocks of the slices, by address: cudarc frees by address alone. Several tables, so that threads seldom wait.
    blocks: [Mutex<HashMap<u64, Block>>; TABLES],
    last_refusal: Mutex<Option<PoolError>>,
}

impl PoolAllocator {
    /// `None` unless the pool is on the device and the driver of the context.
    pub fn new(pool: &Pool, context: &CudaContext) -> Option<Self> {
        let is_same = pool.device().context().addr() == context.cu_ctx().addr();
        is_same.then(|| Self {
            pool: pool.clone(),
            streams: Mutex::default(),
            blocks: std::array::from_fn(|_| Mutex::default()),
            last_refusal: Mutex::default(),
        })
    }

    /// The report of the last request that was refused. cudarc's error is a number.
    pub fn take_refusal(&self) -> Option<PoolError> {
        lock(&self.last_refusal).take()
    }

    /// The stream, which is wrapped once and retired at its end.
    fn stream(&self, raw: CUstream) -> Result<Stream, PoolError> {
        let mut streams = lock(&self.streams);
        if let Some(stream) = streams.get(&raw.addr()) {
            return Ok(stream.clone());
        }
        // SAFETY: the stream belongs to the context. `stream_ends` retires it before it is destroyed, and the default streams live as
        // long as the context.
        let stream = unsafe { Stream::from_raw_long_lived(self.pool.device(), raw.cast())? };
        // The handle means another stream on each thread.
        if raw.addr() != PER_THREAD {
            streams.insert(raw.addr(), stream.clone());
        }
        Ok(stream)
    }

    fn table(&self, address: u64) -> MutexGuard<'_, HashMap<u64, Block>> {
        // Blocks begin at multiples of 512 bytes.
        lock(&self.blocks[(address >> 9) as usize % TABLES])
    }
}

// SAFETY: a block of the pool belongs to its owner alone until it is freed, and may be used in the order of the stream.
unsafe impl DeviceAllocator for PoolAllocator {
    unsafe fn alloc(&self, stream: &CudaStream, num_bytes: usize) -> Result<CUdeviceptr, DriverError> {
        if num_bytes == 0 {
            return Ok(0);
        }
        let block =
            self.stream(stream.cu_stream()).and_then(|stream| self.pool.alloc(num_bytes as u64, &stream));
        match block {
            Ok(block) => {
                let address = block.address();
                self.table(address).insert(address, block);
                Ok(address)
            }
            Err(error) => {
                let code = match error.is_out_of_memory() {
                    true => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                    false => CUresult::CUDA_ERROR_UNKNOWN,
                };
                *lock(&self.last_refusal) = Some(error);
                Err(DriverError(code))
            }
        }
    }

    unsafe fn free(&self, address: CUdeviceptr, _num_bytes: usize, stream: &CudaStream) {
        let Some(block) = self.table(address).remove(&address) else { return };
        match self.stream(stream.cu_stream()) {
            Ok(stream) => block.free_on(&stream),
            // The context is lost, and its memory with it.
            Err(_) => drop(block),
        }
    }

    fn stream_ends(&self, raw: CUstream) {
        if !raw.is_null()
            && let Some(stream) = lock(&self.streams).remove(&raw.addr())
        {
            // Already retired: nothing names it any more.
            let _ = stream.retire();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const TABLES: usize = 61;
/// `CU_STREAM_PER_THREAD`, which is a macro in the driver's header.
const PER_THREAD: usize = 2;
