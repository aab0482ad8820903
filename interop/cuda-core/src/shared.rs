//! Blocks of gpumem as memory of cuda-core. A module to copy into a program.
//!
//! A [`PoolMemory`] is a block that cuda-core may use. cuda-core's buffers share it ([`RawDeviceBuffer::foreign`]), and each piece of its
//! work holds a lease until the device has done it. The block goes back to gpumem's pool when the last buffer and the last lease are gone;
//! until then [`PoolMemory::into_block`] returns nothing.
//!
//! Both libraries use the device's primary context, and a stream of cuda-core is a stream of gpumem by [`stream`].

use cuda_core::sys::CUdeviceptr;
use cuda_core::{Context, DeviceAllocation, DeviceBuffer, DeviceCopy, RawDeviceBuffer, Stream as CoreStream};
use gpumem_pool::{Block, Device, DeviceError, Pool, PoolError, Stream};
use std::sync::Arc;

/// Why memory could not be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// The two libraries use different contexts.
    #[error(
        "cuda-core uses another context than that of {device}: make its context with `cuda_core::Context::new` for the same device"
    )]
    OtherContext {
        /// The device of gpumem.
        device: String,
    },
    /// The bytes of the elements cannot be counted.
    #[error("{len} elements of {element_bytes} bytes exceed the address space; allocate fewer")]
    TooManyElements {
        /// The number of elements.
        len: usize,
        /// The size of one.
        element_bytes: usize,
    },
    /// An operation of gpumem failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An operation of cuda-core failed.
    #[error("cuda-core: {0}")]
    Core(#[from] cuda_core::DriverError),
}

impl From<DeviceError> for CoreError {
    fn from(error: DeviceError) -> Self {
        Self::Pool(error.into())
    }
}

/// A block that cuda-core uses.
pub struct PoolMemory {
    block: Block,
    context: Arc<Context>,
    /// The owner stream of the block if it is cuda-core's, for both libraries. The second may be destroyed once this is dropped.
    _stream: Option<(Stream, Arc<CoreStream>)>,
}

// SAFETY: a block has the same address and size, in its device's primary context, until it is dropped; `context` is that context
// (`check`), and this keeps both alive.
unsafe impl DeviceAllocation for PoolMemory {
    fn device_ptr(&self) -> CUdeviceptr {
        self.block.address()
    }
    fn len_bytes(&self) -> usize {
        // A block is no larger than the memory of a device.
        self.block.size_bytes() as usize
    }
    fn context(&self) -> Arc<Context> {
        self.context.clone()
    }
}

impl PoolMemory {
    /// Makes a block of the pool available to cuda-core, after a wait on the host for the work on the block so far. Any stream of
    /// the context may then use it.
    ///
    /// # Errors
    ///
    /// - [`CoreError::OtherContext`] if `context` is not the primary context of the block's device.
    /// - [`CoreError::Pool`] if the device cannot be waited for.
    pub fn new(block: Block, context: &Arc<Context>) -> Result<Arc<Self>, CoreError> {
        check(block.device(), context)?;
        block.device().synchronize()?;
        Ok(Arc::new(Self { block, context: context.clone(), _stream: None }))
    }

    /// The block again, once no buffer and no unfinished work of cuda-core holds it; before that, `memory` unchanged.
    pub fn into_block(memory: Arc<Self>) -> Result<Block, Arc<Self>> {
        Ok(Arc::try_unwrap(memory)?.block)
    }
}

/// A stream of cuda-core as a stream of gpumem.
///
/// # Safety
///
/// The stream of cuda-core lives as long as calls name the result or its clones.
///
/// # Errors
///
/// [`CoreError::OtherContext`] for a stream of another context than the device's primary one.
pub unsafe fn stream(device: &Device, stream: &CoreStream) -> Result<Stream, CoreError> {
    check(device, stream.context())?;
    // SAFETY: the caller's promise.
    Ok(unsafe { Stream::from_raw(device, stream.cu_stream().cast())? })
}

/// Allocates a buffer of cuda-core from a pool, on a stream. Its elements are unspecified bytes.
///
/// # Safety
///
/// The contract of cuda-core's `DeviceBuffer::uninitialized_async`: elements are written before they are read, and work on other
/// streams comes after the work on `stream` so far.
///
/// # Errors
///
/// [`CoreError::OtherContext`], [`CoreError::TooManyElements`], and [`CoreError::Pool`] with the causes of `Pool::alloc`, the limits and
/// the report among them.
pub unsafe fn uninitialized<T: DeviceCopy>(
    pool: &Pool,
    len: usize,
    on: &Arc<CoreStream>,
) -> Result<DeviceBuffer<T>, CoreError> {
    let element_bytes = size_of::<T>();
    let size_bytes =
        len.checked_mul(element_bytes).ok_or(CoreError::TooManyElements { len, element_bytes })?;
    // SAFETY: the stream is alive until the block has been freed, and no call names it later.
    let named = unsafe { stream(pool.device(), on)? };
    let block = pool.alloc(size_bytes as u64, &named)?;
    let memory = PoolMemory { block, context: on.context().clone(), _stream: Some((named, on.clone())) };
    let storage = RawDeviceBuffer::foreign(Arc::new(memory), size_bytes);
    // SAFETY: the caller's promise; the memory has `len` elements, and a block is aligned to 256 bytes.
    Ok(unsafe { DeviceBuffer::from_storage_copy(storage, len)? })
}

/// Allocates a buffer of cuda-core from a pool, and copies elements of the host into it.
///
/// # Errors
///
/// The causes that [`uninitialized`] lists, and [`CoreError::Core`] if the copy fails.
pub fn from_host<T: DeviceCopy>(
    pool: &Pool,
    on: &Arc<CoreStream>,
    elements: &[T],
) -> Result<DeviceBuffer<T>, CoreError> {
    // SAFETY: the copy writes all elements, and is complete when it returns, so any stream may use them.
    let mut buffer = unsafe { uninitialized(pool, elements.len(), on)? };
    buffer.copy_from_host(on, elements)?;
    Ok(buffer)
}

fn check(device: &Device, context: &Context) -> Result<(), CoreError> {
    match context.cu_ctx().cast() == device.context() {
        true => Ok(()),
        false => Err(CoreError::OtherContext { device: device.to_string() }),
    }
}
