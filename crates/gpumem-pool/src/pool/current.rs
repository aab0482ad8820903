//! [`Pool::make_current`]: other libraries allocate from a pool of this crate.
//!
//! A device has one current pool of the driver, from which `cuMemAllocAsync` allocates. The guards of a process form a stack for each
//! device: the latest remaining guard determines the current pool. An entry keeps its pool alive, even if the guard was forgotten, because
//! the driver may allocate from it at any time.

use crate::backend::{DriverPoolUsage, NativeAllocator};
use crate::error::{OutOfMemory, PoolError};
use crate::pool::Pool;
use crate::pool::request::report;
use gpumem_base::sync::Lock;
use gpumem_device::internal::not_forked;
use gpumem_sys::fork;

/// The pools that were made current, over all devices, with the number of each guard, the latest last.
static STACK: Lock<Vec<(u64, Pool)>> = Lock::new(Vec::new());

/// Keeps a pool the current pool of its device; see [`Pool::make_current`].
///
/// Dropping the guard makes the previous guard's pool current again, or the device's default pool. Guards may be dropped in any order and
/// on any thread: the latest remaining guard of a device determines its pool. If another library has made its own pool current since, that
/// pool stays current. A forgotten guard leaves its pool current, and alive, until the process ends.
#[derive(Debug)]
#[must_use = "the pool is current only while this lives"]
pub struct CurrentPool {
    number: u64,
    pool: Pool,
}

impl Pool {
    /// Makes this pool the current pool of its device (`cuDeviceSetMemPool`), until the guard is dropped. The backend must be
    /// `native`. From then on, every `cuMemAllocAsync` on the device allocates from it, in any library of the process.
    ///
    /// | property | for allocations of other libraries |
    /// | --- | --- |
    /// | hard limit | a bound on reserved memory, one to two growth units of 32 MiB above the limit (`maxSize`); it needs CUDA 12.2 |
    /// | a hard limit that is changed later | a lower one does not apply; [`Pool::set_hard_limit`] refuses a higher one |
    /// | soft limit | the release threshold: memory up to it stays reserved when the host waits |
    /// | counters | [`CurrentPool::usage`] includes them, and so does [`Status::reserved_bytes`](crate::Status::reserved_bytes); [`Status::in_use_bytes`](crate::Status::in_use_bytes), tags, adaptors and traces do not; [`Status::other_libraries_bytes`](crate::Status::other_libraries_bytes) has the difference |
    /// | shortage | a request of this crate trims the pool; a request of another library that the driver refuses runs no reclaim callback and trims nothing, because this crate is not called; [`Pool::explain_refusal`] reports what holds the memory |
    ///
    /// A pool that another library had made current before is not restored, because its owner may have destroyed it; the device's default
    /// pool becomes current instead.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-native")] {
    /// let driver = gpumem_sim::driver(SimConfig::new())?;
    /// let device = Device::new(&driver, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Native).build()?;
    /// let current = pool.make_current()?;
    ///
    /// // Another library allocates without knowing the pool.
    /// let (stream, _context, mut address) = (Stream::new(&device)?, device.bind()?, 0);
    /// // SAFETY: the address is a local, and the stream is alive.
    /// unsafe { driver.cuMemAllocAsync(&mut address, 1 << 20, stream.raw())? };
    /// assert_eq!(current.usage()?.used_bytes, 1 << 20);
    /// // SAFETY: the address was allocated above, and nothing uses it.
    /// unsafe { driver.cuMemFreeAsync(address, stream.raw())? };
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the backend is `native`, or for a pool with a hard limit if the driver is older than CUDA 12.2.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if the call fails.
    pub fn make_current(&self) -> Result<CurrentPool, PoolError> {
        self.0.check_usable()?;
        let device_pool = self.0.backend.device_pool()?;
        let mut stack = STACK.lock();
        device_pool.make_current()?;
        let number = stack.last().map_or(0, |(number, _)| number + 1);
        stack.push((number, self.clone()));
        Ok(CurrentPool { number, pool: self.clone() })
    }

    /// The report of a request of `size_bytes` that the driver has refused to another library, which allocates from this pool
    /// ([`Pool::make_current`]): the memory in use and its holders, the limits, and advice. Call it when that library returns its
    /// `DriverError`. The report describes the state at the call; no request is made.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-native")] {
    /// let driver = gpumem_sim::driver(SimConfig::new())?;
    /// let device = Device::new(&driver, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Native).hard_limit(64 << 20).build()?;
    /// let _current = pool.make_current()?;
    ///
    /// // Another library.
    /// let (stream, _context, mut address) = (Stream::new(&device)?, device.bind()?, 0);
    /// // SAFETY: the address is a local, and the stream is alive.
    /// if let Err(error) = unsafe { driver.cuMemAllocAsync(&mut address, 1 << 30, stream.raw()) } {
    ///     let report = pool.explain_refusal(1 << 30)?;
    ///     assert_eq!(report.limit_bytes, Some(64 << 20));
    ///     println!("{error}\n{report}");
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`](crate::DeviceError::Driver) or [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) if a call fails.
    pub fn explain_refusal(&self, size_bytes: u64) -> Result<OutOfMemory, PoolError> {
        report::explain_refusal(&self.0, size_bytes, || self.0.graph_memory.kept(&self.0))
    }
}

impl CurrentPool {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The driver's counters of the pool, which include the allocations of other libraries.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`](crate::DeviceError::Driver) or [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) if a call fails.
    pub fn usage(&self) -> Result<DriverPoolUsage, PoolError> {
        not_forked()?;
        Ok(self.pool.0.backend.device_pool()?.usage()?)
    }
}

impl Drop for CurrentPool {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let removed = remove(&mut STACK.lock(), self.number);
        // The end of a pool takes other locks.
        drop(removed);
    }
}

/// Removes an entry. If its pool was current, makes the previous entry's pool current.
fn remove(stack: &mut Vec<(u64, Pool)>, number: u64) -> Option<Pool> {
    let index = stack.iter().position(|(other, _)| *other == number)?;
    let (_, removed) = stack.remove(index);
    let of_device = |pool: &&Pool| pool.device() == removed.device();
    let is_latest = !stack[index..].iter().any(|(_, pool)| of_device(&pool));
    if is_latest
        && !removed.device().is_reset()
        && let Ok(ended) = removed.0.backend.device_pool()
    {
        let before = stack[..index].iter().rev().map(|(_, pool)| pool).find(of_device);
        let before = before.and_then(|pool| pool.0.backend.device_pool().ok());
        // A drop cannot report an error, which means that the driver is shutting down.
        let _ = change(ended, before);
    }
    Some(removed)
}

/// Makes `before` current, or the default pool, unless a pool of another library is current.
fn change(ended: &NativeAllocator, before: Option<&NativeAllocator>) -> Result<(), gpumem_sys::DriverError> {
    match before {
        None => ended.end_current(),
        Some(before) if ended.is_current()? => before.make_current(),
        Some(_) => Ok(()),
    }
}
