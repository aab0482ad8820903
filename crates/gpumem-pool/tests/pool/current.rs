//! The device's current pool: what other libraries allocate from with `cuMemAllocAsync`.

use gpumem_pool::sys::types::{CUmemoryPool, CUresult};
use gpumem_pool::sys::{Driver, DriverError};
use gpumem_pool::{BackendKind, CurrentPool, Device, Pool, PoolError, Stream, Unsupported};
use gpumem_sim::SimConfig;
use std::sync::Mutex;

const MIB: u64 = 1 << 20;

/// A machine, and a stand-in for another library.
struct Machine {
    driver: Driver,
    device: Device,
    stream: Stream,
}

impl Machine {
    fn new(ordinal: u32) -> Self {
        let config = SimConfig::new().devices(2).memory_bytes(1 << 30);
        Self::of(&gpumem_sim::driver(config).unwrap(), ordinal)
    }

    fn of(driver: &Driver, ordinal: u32) -> Self {
        let device = Device::new(driver, ordinal).unwrap();
        let stream = Stream::new(&device).unwrap();
        Self { driver: driver.clone(), device, stream }
    }

    fn pool(&self) -> Pool {
        Pool::builder(&self.device).backend(BackendKind::Native).build().unwrap()
    }

    /// `cuMemAllocAsync`, as another library calls it.
    fn foreign(&self, size_bytes: u64) -> Result<u64, DriverError> {
        let _bound = self.device.bind().unwrap();
        let mut address = 0;
        // SAFETY: the address is a local's, and the stream is alive.
        unsafe { self.driver.cuMemAllocAsync(&mut address, size_bytes as usize, self.stream.raw())? };
        Ok(address)
    }

    fn free(&self, address: u64) {
        let _bound = self.device.bind().unwrap();
        // SAFETY: the caller allocated the address and does not use it again.
        unsafe { self.driver.cuMemFreeAsync(address, self.stream.raw()).unwrap() };
    }

    fn current(&self) -> CUmemoryPool {
        let mut pool = std::ptr::null_mut();
        // SAFETY: the pool is a local.
        unsafe { self.driver.cuDeviceGetMemPool(&mut pool, self.device.raw()).unwrap() };
        pool
    }

    fn set_current(&self, pool: CUmemoryPool) {
        // SAFETY: the pool is one of the device, and alive.
        unsafe { self.driver.cuDeviceSetMemPool(self.device.raw(), pool).unwrap() };
    }
}

fn used(current: &CurrentPool) -> u64 {
    current.usage().unwrap().used_bytes
}

#[test]
fn others_allocate_from_it_until_the_guard_is_dropped() {
    let machine = Machine::new(0);
    let (pool, default) = (machine.pool(), machine.current());
    let current = pool.make_current().unwrap();
    assert_ne!(machine.current(), default);

    let theirs = machine.foreign(8 * MIB).unwrap();
    let ours = pool.alloc(4 * MIB, &machine.stream).unwrap();
    let usage = current.usage().unwrap();
    assert_eq!(usage.used_bytes, 12 * MIB);
    assert!(usage.reserved_bytes >= 12 * MIB && usage.reserved_peak_bytes >= usage.reserved_bytes);
    assert_eq!(pool.status().unwrap().in_use_bytes, 4 * MIB);
    machine.free(theirs);
    machine.device.synchronize().unwrap();
    let usage = current.usage().unwrap();
    assert_eq!((usage.used_bytes, usage.used_peak_bytes), (4 * MIB, 12 * MIB));
    drop(ours);
    pool.reset_peaks().unwrap();

    drop(current);
    assert_eq!(machine.current(), default);
    let theirs = machine.foreign(MIB).unwrap();
    let current = pool.make_current().unwrap();
    assert_eq!(used(&current), 0, "it was allocated before");
    machine.free(theirs);
}

#[test]
fn the_release_threshold_keeps_memory_of_others() {
    let machine = Machine::new(0);
    let reserved = |soft_limit: Option<u64>| {
        let mut builder = Pool::builder(&machine.device).backend(BackendKind::Native);
        if let Some(bytes) = soft_limit {
            builder = builder.soft_limit(bytes);
        }
        let current = builder.build().unwrap().make_current().unwrap();
        machine.free(machine.foreign(128 * MIB).unwrap());
        machine.device.synchronize().unwrap();
        current.usage().unwrap().reserved_bytes
    };
    assert!(reserved(None) >= 128 * MIB);
    assert!(reserved(Some(32 * MIB)) <= 64 * MIB);
}

#[test]
fn the_limit_bounds_others_too() {
    let machine = Machine::new(0);
    let pool =
        Pool::builder(&machine.device).backend(BackendKind::Native).hard_limit(64 * MIB).build().unwrap();
    let _current = pool.make_current().unwrap();
    let held = machine.foreign(64 * MIB).unwrap();
    let refused = machine.foreign(64 * MIB).unwrap_err();
    assert_eq!(refused.code(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    machine.free(held);
    machine.free(machine.foreign(64 * MIB).unwrap());

    // An old driver has no bound, so a limit would be ignored.
    // SAFETY: the replacement writes the version only.
    let old = unsafe { machine.driver.with_table(|table| table.cuDriverGetVersion = Some(version_12_0)) };
    let old = Machine::of(&old, 1);
    let limited = Pool::builder(&old.device).backend(BackendKind::Native).hard_limit(64 * MIB);
    let refused = limited.build().unwrap().make_current().unwrap_err();
    assert!(matches!(refused, PoolError::Unsupported(Unsupported::Backend { .. })), "{refused:?}");
    assert!(refused.to_string().contains("CUDA 12.2"), "{refused}");
    drop(old.pool().make_current().unwrap());
}

unsafe extern "C" fn version_12_0(version: *mut i32) -> CUresult {
    // SAFETY: the caller passes a place for the version.
    unsafe { version.write(12_000) };
    CUresult::CUDA_SUCCESS
}

#[test]
fn requests_of_this_crate_trim_it() {
    let machine = Machine::new(0);
    let pool = machine.pool();
    let current = pool.make_current().unwrap();
    machine.free(machine.foreign(700 * MIB).unwrap());
    machine.device.synchronize().unwrap();
    assert!(current.usage().unwrap().reserved_bytes >= 700 * MIB);
    // Of another pool, too.
    let other = Pool::builder(&machine.device).backend(BackendKind::None).build().unwrap();
    let block = other.alloc(600 * MIB, &machine.stream).unwrap();
    assert!(current.usage().unwrap().reserved_bytes < 424 * MIB);
    drop(block);
}

#[test]
fn guards_end_in_any_order() {
    let machine = Machine::new(0);
    let default = machine.current();
    let pools = [machine.pool(), machine.pool(), machine.pool()];
    let make = |index: usize| {
        let guard = pools[index].make_current().unwrap();
        (guard, machine.current())
    };
    let ((first, one), (second, two), (third, three)) = (make(0), make(1), make(2));
    assert!(one != two && two != three && one != three);
    drop(second);
    assert_eq!(machine.current(), three);
    drop(third);
    assert_eq!(machine.current(), one);
    let (again, same) = make(0);
    assert_eq!(same, one);
    drop(first);
    assert_eq!(machine.current(), one, "one guard of the pool is left");
    drop(again);
    assert_eq!(machine.current(), default);
}

#[test]
fn a_pool_of_others_stays_current() {
    let machine = Machine::new(0);
    let (pool, default) = (machine.pool(), machine.current());
    let (guard, theirs) = (pool.make_current().unwrap(), machine.pool().make_current().unwrap());
    let raw = machine.current();
    drop(theirs);
    let current = pool.make_current().unwrap();
    machine.set_current(default);
    drop(current);
    assert_eq!(machine.current(), default, "another library has chosen it");
    machine.set_current(default);
    drop(guard);
    assert_eq!(machine.current(), default);
    assert_ne!(raw, default);
}

#[test]
fn a_forgotten_guard_keeps_its_pool() {
    let machine = Machine::new(0);
    let pool = machine.pool();
    std::mem::forget(pool.make_current().unwrap());
    let raw = machine.current();
    drop(pool);
    // The pool still serves other libraries, and later guards return to it.
    let theirs = machine.foreign(MIB).unwrap();
    drop(machine.pool().make_current().unwrap());
    assert_eq!(machine.current(), raw);
    machine.free(theirs);
}

#[test]
fn the_guard_keeps_the_pool() {
    let machine = Machine::new(0);
    let pool = machine.pool();
    let current = pool.make_current().unwrap();
    drop(pool);
    let theirs = machine.foreign(MIB).unwrap();
    assert_eq!(used(&current), MIB);
    machine.free(theirs);
    let default_is_back = {
        drop(current);
        machine.current()
    };
    machine.free(machine.foreign(MIB).unwrap());
    assert_eq!(machine.current(), default_is_back);
}

#[test]
fn devices_and_threads_are_apart() {
    let first = Machine::new(0);
    let second = Machine::of(&first.driver, 1);
    let defaults = [first.current(), second.current()];
    let guards = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for machine in [&first, &second] {
            let guards = &guards;
            scope.spawn(move || {
                for _ in 0..50 {
                    let guard = machine.pool().make_current().unwrap();
                    let address = machine.foreign(MIB).unwrap();
                    assert_eq!(used(&guard), MIB);
                    machine.free(address);
                    guards.lock().unwrap().push(guard);
                }
            });
        }
    });
    // Dropped on another thread, and interleaved.
    drop(guards);
    assert_eq!([first.current(), second.current()], defaults);
}

#[test]
fn other_backends_and_kinds_are_refused() {
    let machine = Machine::new(0);
    let default = machine.current();
    let none = Pool::builder(&machine.device).backend(BackendKind::None).build().unwrap();
    let refused = none.make_current().unwrap_err();
    assert!(
        matches!(refused, PoolError::Unsupported(Unsupported::OnBackend { backend: BackendKind::None, .. })),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("backend:native"), "{refused}");
    assert_eq!(machine.current(), default);
}

/// A library that does not know the pool is in its figures, and in the report of its own refusal.
#[test]
fn other_libraries_are_in_the_status_and_in_reports() {
    let machine = Machine::new(0);
    let pool =
        Pool::builder(&machine.device).backend(BackendKind::Native).hard_limit(512 * MIB).build().unwrap();
    assert_eq!(pool.status().unwrap().other_libraries_bytes, 0);
    let current = pool.make_current().unwrap();
    let own: Vec<_> = (1..100).map(|size| pool.alloc(size, &machine.stream).unwrap()).collect();
    assert_eq!(pool.status().unwrap().other_libraries_bytes, 0, "the driver rounds small blocks up");
    drop(own);
    let (own, theirs) = (pool.alloc(10 * MIB, &machine.stream).unwrap(), machine.foreign(300 * MIB).unwrap());
    let status = pool.status().unwrap();
    assert_eq!((status.in_use_bytes, status.other_libraries_bytes), (10 * MIB, 300 * MIB));
    assert!(status.cached_bytes <= status.reserved_bytes - 310 * MIB, "{status}");
    assert!(status.to_string().contains("\nMemory pool usage by other libraries: 300.000 MiB\n"), "{status}");

    machine.foreign(400 * MIB).unwrap_err();
    let report = pool.explain_refusal(400 * MIB).unwrap();
    assert_eq!((report.requested_bytes, report.limit_bytes), (400 * MIB, Some(512 * MIB)));
    assert_eq!((report.in_use_bytes, report.other_libraries_bytes), (310 * MIB, 300 * MIB));
    let text = report.to_string();
    assert!(text.contains("other libraries hold 300.000 MiB"), "{text}");
    assert!(text.contains("\n    other libraries"), "{text}");

    // A refusal of the pool itself counts them too.
    let error = pool.alloc(400 * MIB, &machine.stream).unwrap_err();
    assert!(error.to_string().contains("other libraries hold 300.000 MiB"), "{error}");
    drop(current);
    assert_eq!(pool.status().unwrap().other_libraries_bytes, 300 * MIB, "the memory outlives the guard");
    machine.free(theirs);
    machine.stream.synchronize().unwrap();
    assert_eq!(pool.status().unwrap().other_libraries_bytes, 0);
    drop(own);
}
