//! Long-running programs: requests are refused in time and run only callbacks that can help, and memory that the driver refused
//! to release once is not lost.

#[cfg(feature = "backend-caching")]
use crate::fixture::stand_in;
use crate::fixture::{host_backends, on_each_backend};
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::{BackendKind, Device, MemoryKind, Pool, PoolError, Reclaimable, Registration, Stream};
#[cfg(feature = "backend-caching")]
use gpumem_pool::{DeviceError, GrowableBlock};
use gpumem_sim::{Effect, Rule, SimConfig};
use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Holds a stream back until it is opened, or for a minute: a wait for the stream then fails the test.
struct Gate(Sender<()>);

impl Gate {
    fn close(stream: &Stream) -> Self {
        let (opener, opened) = channel();
        let opened: *mut Receiver<()> = Box::into_raw(Box::new(opened));
        let _bound = stream.device().bind().unwrap();
        // SAFETY: the function owns its argument; the stream is alive and belongs to the current context.
        unsafe {
            stream.device().driver().cuLaunchHostFunc(stream.raw(), Some(wait), opened.cast()).unwrap()
        };
        Self(opener)
    }

    /// Opens the gate. Returns false if the stream continued by itself.
    fn open(self) -> bool {
        self.0.send(()).is_ok()
    }
}

unsafe extern "C" fn wait(opened: *mut c_void) {
    // SAFETY: the pointer comes from a box of this type, and this call alone has it.
    let opened = unsafe { Box::from_raw(opened.cast::<Receiver<()>>()) };
    let _ = opened.recv_timeout(Duration::from_secs(60));
}

/// The wait for a stream that hangs ends, on a full device and at a limit.
#[test]
fn no_allocation_waits_for_a_full_device_beyond_its_deadline() {
    on_each_backend(&SimConfig::new().memory_bytes(128 * MIB), |fixture| {
        let builder = fixture.builder().conf("wait_deadline_ms:50").unwrap();
        let pool = if fixture.kind == MemoryKind::Host { builder.hard_limit(96 * MIB) } else { builder };
        let (pool, hung, stream) = (pool.build().unwrap(), fixture.stream(), fixture.stream());
        let sibling = fixture.pool();
        drop(sibling.alloc(8 * MIB, &stream).unwrap());
        let _small = sibling.alloc(4 * MIB, &stream).unwrap();
        let held = pool.alloc(80 * MIB, &hung).unwrap();
        let gate = Gate::close(&hung);
        let error = pool.alloc(60 * MIB, &stream).unwrap_err();
        let report = error.out_of_memory().unwrap();
        let is_named = report.unfinished.iter().any(|unfinished| unfinished.stream == hung.id());
        match fixture.kind {
            MemoryKind::Device => assert!(is_named, "{error}"),
            // The margin refuses before the wait or after it.
            MemoryKind::Unified => {}
            // The memory does not depend on pending work.
            _ => assert!(!is_named, "{error}"),
        }
        let reserved = pool.reserve(128 * MIB);
        assert!(fixture.backend != BackendKind::Caching || reserved.is_err());
        if let Ok(mut growable) = pool.growable(100 * MIB, &stream) {
            assert!(growable.grow_to(60 * MIB).is_err());
        }
        assert!(gate.open(), "an allocation waited for work without an end");
        hung.synchronize().unwrap();
        drop(held);
        pool.reclaim().unwrap();
        drop(pool.alloc(84 * MIB, &stream).unwrap());
    });
}

/// A driver that exports the function but returns "not supported".
#[test]
fn waits_need_no_event_of_the_context() {
    let rule: Rule = "cuCtxRecordEvent=fail:801".parse().unwrap();
    on_each_backend(&SimConfig::new().memory_bytes(128 * MIB).rule(rule), |fixture| {
        let pool = match fixture.kind {
            MemoryKind::Host => fixture.builder().hard_limit(96 * MIB).build().unwrap(),
            _ => fixture.pool(),
        };
        let (busy, stream) = (fixture.stream(), fixture.stream());
        let held = pool.alloc(60 * MIB, &busy).unwrap();
        fixture.fill(&held, 1, &busy);
        drop(held);
        drop(pool.alloc(70 * MIB, &stream).unwrap());
        drop(pool);
        assert!(busy.is_complete().is_ok());
    });
}

/// Calls that release an ended pool's memory wait for the device, so queries make them only while it is idle.
#[test]
fn memory_of_an_ended_pool_is_released_when_the_device_is_idle() {
    on_each_backend(&SimConfig::new(), |fixture| {
        let (busy, stream, pool) = (fixture.stream(), fixture.stream(), fixture.pool());
        let block = pool.alloc(4 * MIB, &stream).unwrap();
        if pool.backend() == BackendKind::Caching {
            fixture.fill(&block, 1, &stream);
            drop(block);
            let gate = Gate::close(&busy);
            drop(pool);
            for _ in 0..3 {
                while !stream.is_complete().unwrap() {}
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(gate.open(), "a query waited for the device");
            busy.synchronize().unwrap();
        }
    });
}

/// An idle pool that a query may not trim is still idle at the next wait.
#[test]
fn an_idle_pool_is_trimmed_by_the_wait_where_queries_may_not() {
    on_each_backend(&SimConfig::new(), |fixture| {
        if fixture.backend != BackendKind::Caching {
            return;
        }
        let builder = fixture.builder().conf("trim_when_idle_ms:20,release_budget_us:0").unwrap();
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        drop(pool.alloc(4 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        assert!(pool.status().unwrap().reserved_bytes > 0);
        std::thread::sleep(Duration::from_millis(30));
        assert!(stream.is_complete().unwrap());
        stream.synchronize().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
    });
}

struct Cache(MemoryKind, AtomicU32);

impl Reclaimable for Cache {
    fn helps(&self, kind: MemoryKind) -> bool {
        kind == self.0
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A reclaimable that does not state a kind of memory.
struct Workspace(AtomicU32);

impl Reclaimable for Workspace {
    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A refused request for pinned memory runs no callbacks for device memory, leaves cached device memory alone, and does not wait
/// for unrelated work.
#[test]
fn a_refused_pinned_request_reclaims_only_pinned_memory() {
    for backend in host_backends() {
        let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(256 * MIB)).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let caches = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host]
            .map(|kind| Arc::new(Cache(kind, AtomicU32::new(0))));
        let workspace = Arc::new(Workspace(AtomicU32::new(0)));
        let _registrations = caches.each_ref().map(|cache| Registration::new(&device, cache));
        let _registration = Registration::new(&device, &workspace);
        let asked = || {
            let [own, unified, host] = caches.each_ref().map(|cache| cache.1.swap(0, Ordering::Relaxed) > 0);
            (own, unified, host, workspace.0.swap(0, Ordering::Relaxed) > 0)
        };

        let (cached, unified) =
            (Pool::new(&device).unwrap(), Pool::builder(&device).kind(MemoryKind::Unified).build().unwrap());
        drop([cached.alloc(32 * MIB, &stream).unwrap(), unified.alloc(32 * MIB, &stream).unwrap()]);
        stream.synchronize().unwrap();
        let kept = || [&cached, &unified].map(|pool| pool.status().unwrap().reserved_bytes);
        let before = kept();
        // Backend `none` caches nothing.
        let has_caching = cfg!(feature = "backend-caching");
        let keeps = [has_caching || cfg!(feature = "backend-native"), has_caching];
        assert_eq!(before.map(|bytes| bytes > 0), keeps, "nothing is cached: this shows nothing");

        let builder = || Pool::builder(&device).backend(backend).kind(MemoryKind::Host);
        let (pinned, sibling) = (builder().hard_limit(32 * MIB).build().unwrap(), builder().build().unwrap());
        drop(sibling.alloc(8 * MIB, &stream).unwrap());
        let held = pinned.alloc(24 * MIB, &stream).unwrap();
        let hung = Stream::new(&device).unwrap();
        let gate = Gate::close(&hung);
        for size_bytes in [16 * MIB, 1 << 48] {
            assert!(pinned.alloc(size_bytes, &stream).unwrap_err().out_of_memory().is_some());
            assert_eq!(asked(), (false, false, true, false), "{backend}, {size_bytes} bytes");
        }
        assert!(gate.open(), "{backend}: pinned memory waited for work that can't make room for it");
        assert_eq!(kept(), before, "{backend}");
        drop(held);

        // If device memory is short, callbacks for device memory and callbacks without a kind run.
        let own = Pool::builder(&device).backend(backend).build().unwrap();
        drop(own.alloc(230 * MIB, &stream).unwrap());
        assert_eq!(kept()[0], 0, "{backend}");
        asked();
        let small = own.alloc(8 * MIB, &stream).unwrap();
        assert!(own.alloc(255 * MIB, &stream).is_err());
        assert_eq!(asked(), (true, false, false, true), "{backend}");
        drop(small);
        assert_eq!(kept(), [0, 0], "{backend}");
        own.reclaim().unwrap();
        assert_eq!(asked(), (true, false, false, true), "{backend}: a reclaim asks those that help too");
    }
}

/// Unified memory may be larger than the device, if the builder allows it.
#[test]
fn unified_memory_may_be_more_than_the_device_has() {
    for backend in host_backends() {
        let device =
            Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(64 * MIB)).unwrap(), 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let builder = || Pool::builder(&device).backend(backend).kind(MemoryKind::Unified);
        assert!(matches!(
            builder().build().unwrap().alloc(100 * MIB, &stream),
            Err(PoolError::TooLarge { .. })
        ));
        let pool = builder().conf("oversubscribe:true").unwrap().build().unwrap();
        let block = pool.alloc(200 * MIB, &stream).unwrap();
        let aligned = pool.alloc_aligned(100 * MIB, 4 << 20, &stream).unwrap();
        assert_eq!((block.size_bytes(), aligned.address() % (4 << 20)), (200 * MIB, 0), "{backend}");
        pool.reserve(400 * MIB).unwrap();
        drop((block, aligned));
        pool.check().unwrap();
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{backend}");
        for size_bytes in [1 << 55, 1 << 63, u64::MAX - 100] {
            assert!(pool.alloc(size_bytes, &stream).is_err(), "{backend}: {size_bytes}");
        }
        let device_memory =
            Pool::builder(&device).backend(backend).conf("oversubscribe:true").unwrap().build().unwrap();
        assert!(matches!(device_memory.alloc(100 * MIB, &stream), Err(PoolError::TooLarge { .. })));
    }
}

const BROKEN: CUresult = CUresult::CUDA_ERROR_OPERATING_SYSTEM;

/// A machine on which the `nth` of some calls fails.
fn failing(call: &str, nth: u64) -> Device {
    let rule = Rule::new(call, Effect::Fail(BROKEN)).nth(nth);
    Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(256 * MIB).rule(rule)).unwrap(), 0).unwrap()
}

fn free_bytes(device: &Device) -> u64 {
    device.memory_info().unwrap().free_bytes
}

/// A handle that the driver refuses to release counts as reserved, the failure is reported, and the release is retried.
#[cfg(feature = "backend-caching")]
#[test]
fn a_handle_that_was_not_taken_back_is_given_back_later() {
    // The first calls are those with which a pool tries virtual memory.
    for (call, nth) in [("cuMemRelease", 2), ("cuMemRelease", 3), ("cuMemUnmap", 2), ("cuMemUnmap", 3)] {
        let device = failing(call, nth);
        let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let blocks = [20, 40, 60].map(|size_mib| pool.alloc(size_mib * MIB, &stream).unwrap());
        drop(blocks);
        let error = pool.reclaim().unwrap_err();
        assert!(
            matches!(&error, PoolError::Device(DeviceError::Driver(cause)) if cause.code() == BROKEN),
            "{call}: {error}"
        );
        pool.check().unwrap();
        let reserved_bytes = pool.status().unwrap().reserved_bytes;
        assert_eq!(reserved_bytes, 256 * MIB - free_bytes(&device), "{call}: what is not back counts");
        assert!(reserved_bytes > 0, "{call}");
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{call}");
        assert_eq!(free_bytes(&device), 256 * MIB, "{call}");
        drop(pool.alloc(200 * MIB, &stream).unwrap());
        pool.check().unwrap();
    }
}

#[cfg(feature = "backend-caching")]
stand_in!(handle_release, cuMemRelease(handle: CUmemGenericAllocationHandle));

/// While the driver refuses, each reclaim reports it, and a request that does not fit is out of memory.
#[cfg(feature = "backend-caching")]
#[test]
fn a_handle_that_is_never_taken_back_is_reported_each_time() {
    let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(256 * MIB)).unwrap();
    // SAFETY: the wrapper calls the function that it replaces, or fails without effect.
    let driver = unsafe { driver.with_table(handle_release::install) };
    let device = Device::new(&driver, 0).unwrap();
    let pool = Pool::builder(&device).backend(BackendKind::Caching).hard_limit(64 * MIB).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    drop(pool.alloc(40 * MIB, &stream).unwrap());
    handle_release::FAIL_WITH.store(BROKEN.0, Ordering::SeqCst);
    for _ in 0..3 {
        assert!(matches!(pool.reclaim(), Err(PoolError::Device(DeviceError::Driver(_)))));
        pool.check().unwrap();
    }
    // At least one handle of 2 MiB is refused.
    let error = pool.alloc(63 * MIB, &stream).unwrap_err();
    assert!(matches!(&error, PoolError::LimitReached(_)), "{error}");
    drop(pool.alloc(20 * MIB, &stream).unwrap());
    handle_release::FAIL_WITH.store(0, Ordering::SeqCst);
    pool.reclaim().unwrap();
    assert_eq!(pool.status().unwrap().reserved_bytes, 0);
}

/// Refused releases of segments and of other backends' memory are handled in the same way.
#[test]
fn memory_that_the_driver_refused_to_free_is_freed_by_the_end_of_the_pool() {
    on_each_backend(&SimConfig::new().memory_bytes(256 * MIB), |fixture| {
        for (call, nth) in [
            ("cuMemFree_v2", 1),
            ("cuMemFreeHost", 1),
            ("cuMemFreeAsync", 1),
            ("cuMemPoolDestroy", 1),
            // Of the trial of virtual memory, and of the pool.
            ("cuMemAddressFree", 1),
            ("cuMemAddressFree", 2),
        ] {
            let device = failing(call, nth);
            let builder = Pool::builder(&device).backend(fixture.backend).kind(fixture.kind);
            let builder = if fixture.plain_segments {
                builder.conf("expandable_segments:false").unwrap()
            } else {
                builder
            };
            let (pool, stream) = (builder.build().unwrap(), Stream::new(&device).unwrap());
            let blocks = [20, 40].map(|size_mib| pool.alloc(size_mib * MIB, &stream).unwrap());
            drop(blocks);
            stream.synchronize().unwrap();
            // Reported here, at the next call, or never if the end of the pool fails.
            let reclaimed = pool.reclaim();
            pool.check().unwrap();
            if reclaimed.is_err() && fixture.backend == BackendKind::Caching {
                pool.reclaim().unwrap();
                assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{call}");
            }
            drop(pool);
            device.synchronize().unwrap();
            let report = gpumem_sim::Sim::of(device.driver()).unwrap().report();
            assert!(report.allocations.is_empty(), "{call}: {report}");
            assert_eq!((report.handle_count, report.reservation_count), (0, 0), "{call}: {report}");
            assert_eq!(free_bytes(&device), 256 * MIB, "{call}: {report}");
        }
    });
}

/// The release of a growable block's addresses is retried, like that of its memory.
#[cfg(feature = "backend-caching")]
#[test]
fn memory_of_a_growable_block_is_released_later() {
    for (call, nth) in [("cuMemRelease", 2), ("cuMemUnmap", 2), ("cuMemAddressFree", 2)] {
        let device = failing(call, nth);
        let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let mut growable: GrowableBlock = pool.growable(64 * MIB, &stream).unwrap();
        growable.grow_to(40 * MIB).unwrap();
        drop(growable);
        // A drop cannot return the error; the next trims release the memory.
        let _ = pool.trim_to(0);
        pool.reclaim().unwrap();
        pool.check().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{call}");
        let report = gpumem_sim::Sim::of(device.driver()).unwrap().report();
        assert_eq!((report.handle_count, report.reservation_count), (0, 2), "{call}: {report}");
        assert_eq!(free_bytes(&device), 256 * MIB, "{call}");
    }
}
