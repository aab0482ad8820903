//! Reclaim callbacks and other pools when memory is short, and memory that is released before that.

use crate::fixture::{built_backends, on_device_memory};
use gpumem_pool::{BackendKind, Block, Device, Pool, PoolError, Reclaimable, Registration, Stream};
use gpumem_sim::SimConfig;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

pub(crate) fn cramped() -> SimConfig {
    SimConfig::new().memory_bytes(64 * MIB)
}

type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// A cache of the program.
#[derive(Default)]
struct Shelf {
    cheap: Mutex<Vec<Block>>,
    dear: Mutex<Vec<Block>>,
    calls: Mutex<Vec<&'static str>>,
}

impl Reclaimable for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }

    fn purge(&self) -> Done {
        self.calls.lock().unwrap().push("purge");
        self.cheap.lock().unwrap().clear();
        Ok(())
    }

    fn release(&self) -> Done {
        self.calls.lock().unwrap().push("release");
        self.dear.lock().unwrap().clear();
        Ok(())
    }
}

#[test]
fn reclaim_callbacks_run_until_enough_is_free() {
    on_device_memory(&cramped(), |fixture| {
        let (pool, stream, shelf) = (fixture.pool(), fixture.stream(), Arc::new(Shelf::default()));
        let registration = Registration::new(&fixture.device, &shelf);
        let stock = || {
            *shelf.cheap.lock().unwrap() = vec![pool.alloc(20 * MIB, &stream).unwrap()];
            *shelf.dear.lock().unwrap() = vec![pool.alloc(20 * MIB, &stream).unwrap()];
            shelf.calls.lock().unwrap().clear();
        };
        stock();
        drop(pool.alloc(8 * MIB, &stream).unwrap());
        assert!(shelf.calls.lock().unwrap().is_empty());
        drop(pool.alloc(26 * MIB, &stream).unwrap());
        assert_eq!(*shelf.calls.lock().unwrap(), ["purge"]);
        assert_eq!(shelf.dear.lock().unwrap().len(), 1);
        stock();
        drop(pool.alloc(50 * MIB, &stream).unwrap());
        assert_eq!(*shelf.calls.lock().unwrap(), ["purge", "release"]);
        stock();
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        stock();
        drop(registration);
        assert!(pool.alloc(50 * MIB, &stream).is_err());
        assert!(shelf.calls.lock().unwrap().is_empty());
        drop((std::mem::take(&mut *shelf.cheap.lock().unwrap()), shelf.dear.lock().unwrap().pop()));
    });
}

/// A reclaimable that fails in some way.
struct Broken(&'static str);

impl Reclaimable for Broken {
    fn name(&self) -> &str {
        assert!(self.0 != "name", "no name");
        self.0
    }

    fn purge(&self) -> Done {
        match self.0 {
            "error" => Err("it is busy".into()),
            "worse" => std::panic::panic_any(Worse),
            _ => panic!("it broke"),
        }
    }
}

/// A reclaimable that panics each time.
struct Worse;

impl Drop for Worse {
    fn drop(&mut self) {
        panic!("again");
    }
}

#[test]
fn a_failing_callback_does_not_stop_the_others() {
    on_device_memory(&cramped(), |fixture| {
        let (pool, stream, shelf) = (fixture.pool(), fixture.stream(), Arc::new(Shelf::default()));
        let broken = ["error", "panic", "name", "worse"].map(|how| Arc::new(Broken(how)));
        let registrations = broken.each_ref().map(|one| Registration::new(&fixture.device, one));
        let last = Registration::new(&fixture.device, &shelf);
        shelf.cheap.lock().unwrap().push(pool.alloc(40 * MIB, &stream).unwrap());
        let block = pool.alloc(40 * MIB, &stream).unwrap();
        let report = pool.alloc(40 * MIB, &stream).unwrap_err().to_string();
        for failed in [
            "error: it is busy",
            "panic panicked: it broke",
            "an unnamed holder panicked",
            "worse panicked: no message",
        ] {
            assert!(report.contains(failed), "{report}");
        }
        drop((block, registrations, last));
    });
}

/// The report has the steps before the reclaim callbacks, even if the callbacks did not suffice.
#[test]
fn a_report_lists_every_step() {
    on_device_memory(&cramped(), |fixture| {
        let (pool, stream, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let broken = Arc::new(Broken("error"));
        let registration = Registration::new(&fixture.device, &broken);
        let held = pool.alloc(30 * MIB, &stream).unwrap();
        let freed = pool.alloc(20 * MIB, &other).unwrap();
        fixture.fill(&freed, 1, &other);
        drop(freed);
        let error = pool.alloc(40 * MIB, &stream).unwrap_err();
        let attempts = &error.out_of_memory().unwrap().attempts;
        let gained_bytes: u64 = attempts.iter().map(|attempt| attempt.gained_bytes).sum();
        assert!(gained_bytes >= 20 * MIB || fixture.backend != BackendKind::Caching, "{error}");
        let mut names: Vec<_> = attempts.iter().map(|attempt| attempt.name).collect();
        assert_eq!(*names.last().unwrap(), "run reclaim callbacks (release)", "{error}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), attempts.len(), "{error}");
        let asked = attempts.iter().filter(|attempt| attempt.name.starts_with("run reclaim callbacks"));
        assert_eq!(asked.map(|attempt| attempt.gained_bytes).collect::<Vec<_>>(), [0, 0], "{error}");
        drop((held, registration));
    });
}

/// Memory that a callback frees may need a wait: the report has the steps of the second attempt too.
#[test]
fn a_report_lists_the_steps_after_a_reclaim() {
    on_device_memory(&cramped(), |fixture| {
        let (pool, stream, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let shelf = Arc::new(Shelf::default());
        let registration = Registration::new(&fixture.device, &shelf);
        let held = pool.alloc(30 * MIB, &stream).unwrap();
        let cached = pool.alloc(20 * MIB, &other).unwrap();
        fixture.fill(&cached, 1, &other);
        shelf.cheap.lock().unwrap().push(cached);
        let error = pool.alloc(40 * MIB, &stream).unwrap_err();
        let attempts = &error.out_of_memory().unwrap().attempts;
        let own = attempts.iter().filter(|attempt| !attempt.name.starts_with("run reclaim callbacks"));
        let gained_bytes: u64 = own.map(|attempt| attempt.gained_bytes).sum();
        assert!(gained_bytes >= 20 * MIB || fixture.backend != BackendKind::Caching, "{error}");
        drop((held, registration));
    });
}

/// If a pool's own limit refuses, other pools keep their cached memory, because releasing it would not help.
#[test]
fn a_limit_of_one_s_own_takes_nothing_from_others() {
    on_device_memory(&cramped(), |fixture| {
        let (other, stream) = (fixture.pool(), fixture.stream());
        drop(other.alloc(20 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        let kept_bytes = other.status().unwrap().reserved_bytes;
        let pool = fixture.builder().hard_limit(16 * MIB).build().unwrap();
        let held = pool.alloc(10 * MIB, &stream).unwrap();
        assert!(matches!(pool.alloc(10 * MIB, &stream), Err(PoolError::LimitReached(_))));
        assert_eq!(other.status().unwrap().reserved_bytes, kept_bytes);
        drop(held);
    });
}

/// Another library has retained the context too, which outlives the device handle.
#[test]
fn the_end_of_a_device_releases_memory_of_its_ended_pools() {
    on_device_memory(&cramped(), |fixture| {
        let driver = gpumem_sim::driver(cramped().seed(fixture.seed)).unwrap();
        let (mut context, mut free_bytes, mut total_bytes) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: the context outlives the call, and is released at the end.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap() };
        let device = Device::new(&driver, 0).unwrap();
        let builder = Pool::builder(&device).backend(fixture.backend);
        let pool =
            if fixture.plain_segments { builder.conf("expandable_segments:false").unwrap() } else { builder }
                .build()
                .unwrap();
        let stream = Stream::new(&device).unwrap();
        let block = pool.alloc(8 * MIB, &stream).unwrap();
        let bound = device.bind().unwrap();
        // SAFETY: the block is alive, and its memory is released after its stream's work.
        unsafe { driver.cuMemsetD8Async(block.address(), 1, 8 << 20, stream.raw()).unwrap() };
        drop(bound);
        drop((block, pool, stream, device));
        // SAFETY: the context is alive until it is released here; locals outlive the calls.
        unsafe {
            driver.cuCtxPushCurrent_v2(context).unwrap();
            driver.cuCtxSynchronize().unwrap();
            driver.cuMemGetInfo_v2(&mut free_bytes, &mut total_bytes).unwrap();
            driver.cuCtxPopCurrent_v2(&mut context).unwrap();
            driver.cuDevicePrimaryCtxRelease_v2(0).unwrap();
        }
        assert_eq!(free_bytes, total_bytes);
    });
}

/// A reclaimable that uses the pool while it is called.
struct Busy {
    pool: Mutex<Option<(Pool, Stream)>>,
    held: Mutex<Option<Block>>,
    calls: AtomicU32,
}

impl Reclaimable for Busy {
    fn purge(&self) -> Done {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let pool = self.pool.lock().unwrap();
        let Some((pool, stream)) = &*pool else { return Ok(()) };
        assert!(pool.alloc(60 * MIB, stream).is_err());
        *self.held.lock().unwrap() = None;
        drop(pool.alloc(MIB, stream)?);
        pool.reclaim()?;
        pool.check()?;
        Ok(())
    }
}

#[test]
fn a_reclaim_callback_may_use_the_pool() {
    on_device_memory(&cramped(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let busy = Arc::new(Busy {
            pool: Mutex::new(Some((pool.clone(), stream.clone()))),
            held: Mutex::new(Some(pool.alloc(40 * MIB, &stream).unwrap())),
            calls: AtomicU32::new(0),
        });
        let registration = Registration::new(&fixture.device, &busy);
        drop(pool.alloc(40 * MIB, &stream).unwrap());
        assert_eq!(busy.calls.load(Ordering::Relaxed), 1);
        *busy.pool.lock().unwrap() = None;
        drop(registration);
    });
}

#[test]
fn a_dropped_reclaimable_is_not_called() {
    let device = Device::new(&gpumem_sim::driver(cramped()).unwrap(), 0).unwrap();
    let shelf = Arc::new(Shelf::default());
    let registration = Registration::new(&device, &shelf);
    drop(shelf);
    let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
    let block = pool.alloc(40 * MIB, &stream).unwrap();
    let report = pool.alloc(40 * MIB, &stream).unwrap_err().to_string();
    assert!(!report.contains("purge"), "{report}");
    drop((block, registration));
}

/// On a full device, unused memory of one pool serves another.
#[test]
fn pools_of_a_device_make_room_for_each_other() {
    on_device_memory(&cramped(), |fixture| {
        for backend in built_backends() {
            let (pool, stream) = (fixture.pool(), fixture.stream());
            let other = Pool::builder(&fixture.device).backend(backend).build().unwrap();
            drop([other.alloc(20 * MIB, &stream).unwrap(), other.alloc(20 * MIB, &stream).unwrap()]);
            drop(pool.alloc(50 * MIB, &stream).unwrap());
            drop(other.alloc(50 * MIB, &stream).unwrap());
        }
    });
}

#[test]
fn errors_other_than_out_of_memory_run_no_callback() {
    let device = Device::new(&gpumem_sim::driver(cramped()).unwrap(), 0).unwrap();
    let shelf = Arc::new(Shelf::default());
    let _registration = Registration::new(&device, &shelf);
    let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
    assert!(matches!(pool.alloc(u64::MAX, &stream), Err(PoolError::TooLarge { .. })));
    assert!(shelf.calls.lock().unwrap().is_empty());
}

/// Waits for the interval of maintenance in allocations.
fn wait_a_little() {
    std::thread::sleep(Duration::from_millis(3));
}

#[test]
fn memory_above_the_soft_limit_is_released_during_allocations() {
    on_device_memory(&SimConfig::new().memory_bytes(1024 * MIB), |fixture| {
        if fixture.backend != BackendKind::Caching {
            return;
        }
        for (conf, is_served) in [("release_budget_us:1000000", true), ("release_budget_us:0", false)] {
            let pool = fixture.builder().conf(conf).unwrap().soft_limit(64 * MIB).build().unwrap();
            let stream = fixture.stream();
            let blocks: Vec<Block> = (0..20).map(|_| pool.alloc(20 * MIB, &stream).unwrap()).collect();
            drop(blocks);
            let mut held = Vec::new();
            for _ in 0..20 {
                wait_a_little();
                // Small blocks reuse the memory of large ones through the slow path, every other time.
                held.push(pool.alloc(MIB, &stream).unwrap());
            }
            let reserved_bytes = pool.status().unwrap().reserved_bytes;
            assert_eq!(reserved_bytes < 100 * MIB, is_served, "{reserved_bytes} bytes");
            drop(held);
        }
    });
}

#[test]
fn a_pool_that_is_idle_keeps_nothing() {
    const IDLE: Duration = Duration::from_millis(30);
    on_device_memory(&cramped(), |fixture| {
        let pool = fixture.builder().conf("trim_when_idle_ms:30").unwrap().build().unwrap();
        let (stream, start) = (fixture.stream(), Instant::now());
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        let keeps = pool.backend() != BackendKind::None;
        let reserved = |pool: &Pool| pool.status().unwrap().reserved_bytes > 0;
        stream.synchronize().unwrap();
        let is_reserved = reserved(&pool);
        // This thread may have been delayed by the operating system.
        if start.elapsed() < IDLE {
            assert_eq!(is_reserved, keeps);
        }
        std::thread::sleep(IDLE);
        stream.synchronize().unwrap();
        assert!(!reserved(&pool));

        // An allocation of another pool reports it too.
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        std::thread::sleep(IDLE);
        drop(fixture.pool().alloc(20 * MIB, &stream).unwrap());
        assert!(!reserved(&pool));
    });
}
