//! A driver that counts the memory allocated through it, to the byte and at any moment, independently of the pool's counters. It
//! wraps each call that allocates device or host memory.
//!
//! C function pointers carry no state, so the counts are global: a process has one counted driver at a time.

use crate::pool::MemoryKind;
use crate::sys::types::{
    CUdeviceptr, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocationType,
    CUmemPoolProps, CUmemoryPool, CUstream,
};
use crate::sys::{CUresult, Driver, Table};
use core::ffi::{c_uint, c_ulonglong, c_void};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The memory allocated through one driver. Its drop lets the next driver be counted.
#[derive(Debug)]
pub struct MemoryCounter {
    /// The driver that counts.
    pub driver: Driver,
    _turn: MutexGuard<'static, ()>,
}

impl MemoryCounter {
    /// Starts to count. Waits until the previous `MemoryCounter` is dropped.
    #[must_use]
    pub fn new(driver: &Driver) -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *lock(&REAL) = Some(*driver.table());
        lock(&SIZES).clear();
        lock(&POOLS).clear();
        for sum in &SUMS {
            sum.held_bytes.store(0, Ordering::SeqCst);
            sum.peak_bytes.store(0, Ordering::SeqCst);
        }
        // SAFETY: each function calls the one that it replaces, with the same arguments.
        let driver = unsafe { driver.with_table(install) };
        Self { driver, _turn: turn }
    }

    /// The bytes of a kind of memory that are allocated now.
    #[must_use]
    pub fn held_bytes(&self, kind: MemoryKind) -> u64 {
        sum(kind).held_bytes.load(Ordering::SeqCst)
    }

    /// The peak of [`MemoryCounter::held_bytes`].
    #[must_use]
    pub fn peak_bytes(&self, kind: MemoryKind) -> u64 {
        sum(kind).peak_bytes.load(Ordering::SeqCst)
    }
}

struct Sum {
    held_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Sum {
    const fn new() -> Self {
        Self { held_bytes: AtomicU64::new(0), peak_bytes: AtomicU64::new(0) }
    }
}

static SUMS: [Sum; 3] = [Sum::new(), Sum::new(), Sum::new()];
static REAL: Mutex<Option<Table>> = Mutex::new(None);
/// The size of each allocation, by its address or its handle of physical memory.
static SIZES: Mutex<BTreeMap<(Named, u64), (MemoryKind, u64)>> = Mutex::new(BTreeMap::new());

/// The kind of memory of each of the driver's pools, by handle. Pools that are not listed have device memory.
static POOLS: Mutex<BTreeMap<usize, MemoryKind>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Address,
    Handle,
}

fn sum(kind: MemoryKind) -> &'static Sum {
    match kind {
        MemoryKind::Unified => &SUMS[1],
        MemoryKind::Host => &SUMS[2],
        _ => &SUMS[0],
    }
}

fn lock<T>(place: &'static Mutex<T>) -> MutexGuard<'static, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(named: Named, name: u64, kind: MemoryKind, size_bytes: u64) {
    lock(&SIZES).insert((named, name), (kind, size_bytes));
    let held_bytes = sum(kind).held_bytes.fetch_add(size_bytes, Ordering::SeqCst) + size_bytes;
    sum(kind).peak_bytes.fetch_max(held_bytes, Ordering::SeqCst);
}

/// Removed before the driver's call, because the driver may give the address to another thread right after it; the bytes count until
/// the call has returned.
fn remove(named: Named, name: u64, give_back: impl FnOnce() -> CUresult) -> CUresult {
    let known = lock(&SIZES).remove(&(named, name));
    let code = give_back();
    if let Some((kind, size_bytes)) = known {
        match code {
            CUresult::CUDA_SUCCESS => {
                sum(kind).held_bytes.fetch_sub(size_bytes, Ordering::SeqCst);
            }
            _ => {
                lock(&SIZES).insert((named, name), (kind, size_bytes));
            }
        }
    }
    code
}

fn add_pool(pool: CUmemoryPool, props: CUmemPoolProps) {
    let is_host = props.location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
    let kind = match props.allocType {
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED => MemoryKind::Unified,
        _ if is_host => MemoryKind::Host,
        _ => MemoryKind::Device,
    };
    lock(&POOLS).insert(pool.addr(), kind);
}

fn kind_of(pool: CUmemoryPool) -> MemoryKind {
    lock(&POOLS).get(&pool.addr()).copied().unwrap_or_default()
}

fn real() -> Table {
    lock(&REAL).unwrap_or_default()
}

macro_rules! wrapped {
    ($($name:ident($($arg:ident: $type:ty),*) $body:expr;)*) => {
        fn install(table: &mut Table) {
            $(table.$name = table.$name.map(|_| stand_in::$name as _);)*
        }

        #[allow(non_snake_case, reason = "the driver's names")]
        mod stand_in {
            use super::*;

            $(pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
                let Some(real) = real().$name else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller guarantees what the wrapped function requires.
                let call = || unsafe { real($($arg),*) };
                let counted: fn(&dyn Fn() -> CUresult, $($type),*) -> CUresult = $body;
                counted(&call, $($arg),*)
            })*
        }
    };
}

/// Counts an allocation if its call has succeeded.
fn made(code: CUresult, count: impl FnOnce()) -> CUresult {
    if code == CUresult::CUDA_SUCCESS {
        count();
    }
    code
}

/// The value that the driver has written to an output of a call.
fn at<T: Copy>(place: *mut T) -> T {
    // SAFETY: the call has succeeded, so the pointer is valid and written.
    unsafe { *place }
}

wrapped! {
    cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong)
        |call, handle, size, _, _| made(call(), || add(Named::Handle, at(handle), MemoryKind::Device, size as u64));
    cuMemRelease(handle: CUmemGenericAllocationHandle)
        |call, handle| remove(Named::Handle, handle, call);
    cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize)
        |call, address, size| made(call(), || add(Named::Address, at(address), MemoryKind::Device, size as u64));
    cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint)
        |call, address, size, _| made(call(), || add(Named::Address, at(address), MemoryKind::Unified, size as u64));
    cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream)
        |call, address, size, pool, _| made(call(), || add(Named::Address, at(address), kind_of(pool), size as u64));
    cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps)
        |call, pool, props| made(call(), || add_pool(at(pool), at(props.cast_mut())));
    cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream)
        |call, address, size, _| made(call(), || add(Named::Address, at(address), MemoryKind::Device, size as u64));
    cuMemAllocPitch_v2(address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint)
        |call, address, pitch, _, height, _| {
            made(call(), || add(Named::Address, at(address), MemoryKind::Device, (at(pitch) * height) as u64))
        };
    cuMemFree_v2(address: CUdeviceptr)
        |call, address| remove(Named::Address, address, call);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream)
        |call, address, _| remove(Named::Address, address, call);
    cuMemHostAlloc(place: *mut *mut c_void, size: usize, flags: c_uint)
        |call, place, size, _| made(call(), || add(Named::Address, at(place) as u64, MemoryKind::Host, size as u64));
    cuMemAllocHost_v2(place: *mut *mut c_void, size: usize)
        |call, place, size| made(call(), || add(Named::Address, at(place) as u64, MemoryKind::Host, size as u64));
    cuMemFreeHost(place: *mut c_void)
        |call, place| remove(Named::Address, place as u64, call);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{BackendKind, Device, Pool, PoolError, Stream, Unsupported};
    use gpumem_sim::SimConfig;

    /// Every call that allocates memory is counted, including those that no pool makes today.
    #[test]
    fn calls_that_no_pool_makes_are_counted_too() {
        let counted = MemoryCounter::new(&gpumem_sim::driver(SimConfig::new()).unwrap());
        let (device, driver) = (Device::new(&counted.driver, 0).unwrap(), &counted.driver);
        let _bound = device.bind().unwrap();
        let held = || [MemoryKind::Device, MemoryKind::Host].map(|kind| counted.held_bytes(kind));
        let (mut ordered, mut pitched, mut pitch, mut host) = (0, 0, 0, core::ptr::null_mut());
        // SAFETY: locals outlive the calls; each allocation is freed once, and unused then.
        unsafe {
            driver.cuMemAllocAsync(&mut ordered, 1000, core::ptr::null_mut()).unwrap();
            driver.cuMemAllocPitch_v2(&mut pitched, &mut pitch, 100, 10, 4).unwrap();
            driver.cuMemAllocHost_v2(&mut host, 3000).unwrap();
            assert_eq!(held(), [1000 + 10 * pitch as u64, 3000]);
            driver.cuMemFreeAsync(ordered, core::ptr::null_mut()).unwrap();
            driver.cuMemFree_v2(pitched).unwrap();
            driver.cuMemFreeHost(host).unwrap();
        }
        assert_eq!(held(), [0, 0]);
    }

    const BACKENDS: [BackendKind; 2] = [BackendKind::None, BackendKind::Native];

    #[test]
    fn every_byte_is_counted_where_it_belongs() {
        let counted = MemoryCounter::new(&gpumem_sim::driver(SimConfig::new()).unwrap());
        let device = Device::new(&counted.driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let kinds = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host];
        for (backend, kind) in kinds.into_iter().flat_map(|kind| BACKENDS.map(|backend| (backend, kind))) {
            let before_bytes = counted.held_bytes(kind);
            let pool = match Pool::builder(&device).backend(backend).kind(kind).build() {
                Err(PoolError::Unsupported(Unsupported::NotBuilt { .. } | Unsupported::OnBackend { .. })) => {
                    continue;
                }
                pool => pool.unwrap(),
            };
            let blocks = [1000, 5000].map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap());
            assert_eq!(counted.held_bytes(kind) - before_bytes, 6000, "{kind}");
            drop(blocks);
            // Host-accessible memory is released once all uses are complete.
            device.synchronize().unwrap();
            pool.reclaim().unwrap();
            assert_eq!((counted.held_bytes(kind), counted.peak_bytes(kind)), (before_bytes, 6000), "{kind}");
        }
    }
}
