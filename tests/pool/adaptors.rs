//! Adaptors around every backend, on both drivers.

use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
#[cfg(target_os = "linux")]
use gpumem_tests::pool::ImportedBlock;
use gpumem_tests::pool::adaptor::{
    Adaptor, Budget, Failures, Fallback, Fill, Grant, Guard, Next, Request, Side, Tracking,
};
use gpumem_tests::pool::trace::{Recording, Trace, What};
use gpumem_tests::pool::{
    Block, Device, FlightRecorder, MemoryKind, Pool, PoolError, RefusedBy, Stream, Unsupported,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

/// A pool for every backend, with these adaptors.
fn pools(device: &Device, adaptors: Vec<Arc<dyn Adaptor>>) -> impl Iterator<Item = Pool> {
    backends(device).into_iter().map(move |backend| {
        let builder = Pool::builder(device).backend(backend);
        adaptors.iter().cloned().fold(builder, |builder, adaptor| builder.adaptor(adaptor)).build().unwrap()
    })
}

fn write(address: u64, value: u8, size_bytes: u64, stream: &Stream) {
    let _bound = stream.device().bind().unwrap();
    // SAFETY: the owner of the bytes is freed after the work of this stream.
    unsafe {
        let driver = stream.device().driver();
        driver.cuMemsetD8Async(address, value, size_bytes as usize, stream.raw()).unwrap();
    }
}

fn read(address: u64, size_bytes: u64, stream: &Stream) -> Vec<u8> {
    stream.synchronize().unwrap();
    let _bound = stream.device().bind().unwrap();
    let mut bytes = vec![0_u8; size_bytes as usize];
    // SAFETY: the buffer has the length of the copy.
    unsafe {
        let driver = stream.device().driver();
        driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()).unwrap();
    }
    bytes
}

/// Returns a block of the requesting pool, once for each request.
#[derive(Default)]
struct Nest {
    pool: Mutex<Option<Pool>>,
    is_asking: AtomicBool,
}

impl Adaptor for Nest {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return next.alloc(request);
        }
        let pool = self.pool.lock().unwrap().clone().unwrap();
        let block = pool.alloc_aligned(request.size_bytes(), request.alignment(), request.stream());
        self.is_asking.store(false, Ordering::Relaxed);
        Ok(Grant::from_block(block?))
    }
}

/// Returns a stored block.
#[derive(Default)]
struct Again(Mutex<Option<Block>>);

impl Adaptor for Again {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        match self.0.lock().unwrap().take() {
            Some(block) => Ok(Grant::from_block(block)),
            None => next.alloc(request),
        }
    }
}

cases! {
    /// The recorded requests of a pool, and the last ones before a refusal, with what the pool held.
    fn requests_are_recorded(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let kind = driver.kind();
        let scratch = |name: &str| std::env::temp_dir().join(format!("gpumem-tests-{}-{kind:?}-{name}.trace", std::process::id()));
        for backend in backends(&device) {
            let (whole, last) = (scratch("whole"), scratch("last"));
            let builder = Pool::builder(&device).backend(backend).hard_limit(64 * MIB);
            let builder = builder.adaptor(Trace::create(&whole).unwrap());
            let pool = builder.flight_recorder(FlightRecorder::File(last.clone())).build().unwrap();
            let held = pool.alloc(40 * MIB, &stream).unwrap();
            write(held.address(), 7, 40 * MIB, &stream);
            let error = pool.alloc(32 * MIB, &stream).unwrap_err();
            assert_eq!(error.out_of_memory().unwrap().flight_record, Some(Ok(last.clone())), "{error}");
            let status = pool.status().unwrap();
            assert_eq!(read(held.address(), 1, &stream), [7]);
            drop((held, pool));
            for file in [&whole, &last] {
                let recording = Recording::read(file).unwrap();
                let has = |expected: fn(&What) -> bool| recording.events.iter().any(|event| expected(&event.what));
                assert!(has(|what| matches!(what, What::Alloc { size_bytes, .. } if *size_bytes == 40 * MIB)));
                assert!(has(|what| matches!(what, What::Refused { size_bytes, .. } if *size_bytes == 32 * MIB)));
                assert!(has(|what| matches!(what, What::InUse { in_use_bytes, .. } if *in_use_bytes == 40 * MIB)));
                let peaks = recording.events.iter().filter_map(|event| match event.what {
                    What::Reserved { peak_bytes, .. } => Some(peak_bytes),
                    _ => None,
                });
                assert_eq!(peaks.max(), Some(status.reserved_peak_bytes), "{backend}");
                assert_eq!((recording.pools[0].backend, recording.tail), (backend, None));
                std::fs::remove_file(file).unwrap();
            }
        }
    }

    /// One budget applies to blocks, whatever happens to them, and to private pools.
    fn a_budget_holds(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let budget = Arc::new(Budget::new(48 * MIB));
        for pool in pools(&device, vec![budget.clone()]) {
            let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let private = pool.private(64 * MIB).unwrap();
            let block = pool.alloc(30 * MIB, &home).unwrap();
            assert!(matches!(private.alloc(20 * MIB, &home), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget));
            other.wait_for(&home).unwrap();
            write(block.address(), 1, block.size_bytes(), &other);
            block.record_use(&other);
            drop(block);
            let block = private.alloc(48 * MIB, &home).unwrap();
            write(block.address(), 2, block.size_bytes(), &home);
            drop((private, pool));
            assert_eq!(budget.in_use_bytes(), 48 * MIB);
            drop(block);
            assert_eq!(budget.in_use_bytes(), 0);
        }
    }

    /// An adaptor that returns a block of the requesting pool, over one that lends and one that shrinks: memory in use stays in
    /// use, and is freed once.
    fn a_block_within_a_block_of_its_pool_is_its_own(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for backend in backends(&device) {
            let spare = Pool::builder(&device).backend(backend).build().unwrap();
            for adaptor in [Arc::new(Fallback::new(&spare)) as Arc<dyn Adaptor>, Arc::new(Guard::new())] {
                let nest = Arc::new(Nest::default());
                let limit_bytes = if adaptor.name() == "fallback" { 4 * MIB } else { 64 * MIB };
                let builder = Pool::builder(&device).backend(backend).hard_limit(limit_bytes);
                let pool = builder.adaptor(adaptor).adaptor(nest.clone()).build().unwrap();
                *nest.pool.lock().unwrap() = Some(pool.clone());
                let in_use_bytes = || pool.status().unwrap().in_use_bytes + spare.status().unwrap().in_use_bytes;
                let blocks: Vec<_> = (1..4_u8).map(|value| {
                    let block = pool.alloc(6 * MIB, &stream).unwrap();
                    write(block.address(), value, block.size_bytes(), &stream);
                    block
                }).collect();
                let others = [spare.alloc(6 * MIB, &stream).unwrap(), spare.alloc(MIB, &stream).unwrap()];
                others.iter().for_each(|other| write(other.address(), 9, other.size_bytes(), &stream));
                for (value, block) in (1..4_u8).zip(&blocks) {
                    assert!(read(block.address(), 6 * MIB, &stream).iter().all(|byte| *byte == value));
                }
                assert!(in_use_bytes() >= 25 * MIB);
                drop(blocks);
                assert_eq!(in_use_bytes(), 7 * MIB);
                drop(others);
                *nest.pool.lock().unwrap() = None;
                assert_eq!((in_use_bytes(), pool.check()), (0, Ok(())));
            }
        }
    }

    /// If an adaptor returns pinned memory with pending work, the host gets access after that work is complete.
    fn pending_work_is_done_before_the_host_has_its_memory(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let pinned = Pool::builder(&device).kind(MemoryKind::Host).build().unwrap();
        let again = Arc::new(Again::default());
        let pool = Pool::builder(&device).adaptor(again.clone()).adaptor(Arc::new(Fill::zero_on_alloc()));
        let pool = pool.build().unwrap();
        for _ in 0..4 {
            let old = pinned.alloc(64 * MIB, &stream).unwrap();
            (0..8).for_each(|_| write(old.address(), 7, old.size_bytes(), &stream));
            *again.0.lock().unwrap() = Some(old);
            let block = pool.alloc(64 * MIB, &stream).unwrap();
            assert_eq!(block.kind(), MemoryKind::Host);
            assert!(read(block.address(), 64 * MIB, &stream).iter().all(|byte| *byte == 0));
        }
    }

    /// An injected failure leaks no memory.
    fn failures_leave_nothing(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let (budget, failures) = (Arc::new(Budget::new(1 << 30)), Arc::new(Failures::share(0.5, 3)));
        let stream = Stream::new(&device).unwrap();
        for pool in pools(&device, vec![failures.clone(), budget.clone()]) {
            let blocks: Vec<_> = (1..50).filter_map(|step| pool.alloc(step * 10_000, &stream).ok()).collect();
            let live_bytes: u64 = blocks.iter().map(|block| block.size_bytes()).sum();
            assert_eq!(pool.status().unwrap().block_count, blocks.len() as u64);
            assert!(budget.in_use_bytes() >= live_bytes && budget.in_use_bytes() < live_bytes + 50 * 256);
            drop(blocks);
            assert_eq!(budget.in_use_bytes(), 0);
        }
        assert!(failures.failed_count() > 10 && failures.failed_count() < failures.seen_count() - 10);
    }

    /// No block shows the bytes of another one, whether bytes are zeroed at allocation or at free.
    fn bytes_are_zeroed(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for fill in [Fill::zero_on_alloc(), Fill::zero_on_free()] {
            let fill = Arc::new(fill);
            for pool in pools(&device, vec![fill.clone()]) {
                let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
                for round in 0..8 {
                    let (home, other) = (&streams[round % 2], &streams[(round + 1) % 2]);
                    let block = pool.alloc(3 * MIB + 5, home).unwrap();
                    if round > 1 {
                        assert!(read(block.address(), 3 * MIB + 5, home).iter().all(|byte| *byte == 0));
                    }
                    other.wait_for(home).unwrap();
                    write(block.address(), 0x77, block.size_bytes(), other);
                    block.record_use(other);
                }
            }
            assert!(!fill.has_missed());
        }
    }

    /// A single byte written past either end is detected.
    fn guards_see_a_byte(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let guard = Arc::new(Guard::new());
        for pool in pools(&device, vec![guard.clone()]) {
            let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            for (at, side) in [(-1, Side::Before), (5000, Side::Behind)] {
                let block = pool.alloc(5000, &home).unwrap();
                let whole = pool.alloc(5000, &home).unwrap();
                write(whole.address(), 1, whole.size_bytes(), &home);
                other.wait_for(&home).unwrap();
                write(block.address().wrapping_add_signed(at), 0x42, 1, &other);
                block.record_use(&other);
                drop((block, whole));
                device.synchronize().unwrap();
                let found = guard.settle();
                assert_eq!(found.len(), 1);
                assert_eq!((found[0].side, found[0].distance_bytes, found[0].found), (side, 0, 0x42));
            }
        }
        assert_eq!(guard.unchecked_count(), 0);
    }

    /// A second pool serves the requests that the first refuses, and both report it.
    fn another_pool_helps_out(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for spare in pools(&device, vec![]) {
            let (tracking, budget) = (Arc::new(Tracking::new()), Arc::new(Budget::new(4 * MIB)));
            let fallback = Arc::new(Fallback::new(&spare));
            let adaptors: Vec<Arc<dyn Adaptor>> = vec![budget, fallback.clone(), tracking.clone()];
            for pool in pools(&device, adaptors.clone()) {
                let home = Stream::new(&device).unwrap();
                let blocks = [3 * MIB, 2 * MIB, 8 * MIB].map(|size_bytes| pool.alloc(size_bytes, &home).unwrap());
                for (value, block) in [1, 2, 3].into_iter().zip(&blocks) {
                    write(block.address(), value, block.size_bytes(), &home);
                }
                for (value, block) in [1, 2, 3].into_iter().zip(&blocks) {
                    assert!(read(block.address(), block.size_bytes(), &home).iter().all(|byte| *byte == value));
                }
                assert_eq!(spare.status().unwrap().in_use_bytes, 10 * MIB);
                assert_eq!(tracking.live().size_bytes(), 13 * MIB);
                drop(pool);
                drop(blocks);
                assert!(tracking.live().blocks.is_empty());
            }
            assert_eq!(spare.status().unwrap().block_count, 0);
        }
    }

    /// A block with guard bytes and a block lent by another pool are exported without additions.
    fn the_exported_memory_is_the_block(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let spare = match Pool::builder(&device).conf("exportable:true").unwrap().adaptor(Arc::new(Guard::new())).build() {
            // The backend that supports exports is not built in.
            Err(PoolError::Unsupported(Unsupported::OnBackend { .. })) => return,
            built => built.unwrap(),
        };
        let (budget, fallback) = (Arc::new(Budget::new(MIB)), Arc::new(Fallback::new(&spare)));
        let builder = Pool::builder(&device).conf("exportable:true").unwrap().adaptor(budget).adaptor(fallback);
        let pool = builder.adaptor(Arc::new(Guard::new())).build().unwrap();
        let stream = Stream::new(&device).unwrap();
        let (own, lent) = (pool.alloc(5000, &stream).unwrap(), pool.alloc(2 * MIB, &stream).unwrap());
        assert!(spare.status().unwrap().in_use_bytes > 2 * MIB);
        for (value, block) in [(3, &own), (4, &lent)] {
            write(block.address(), value, block.size_bytes(), &stream);
            let import = ImportedBlock::new(&device, block.export().unwrap()).unwrap();
            let found = read(import.address(), block.size_bytes(), &stream);
            assert!(found.iter().all(|byte| *byte == value), "{value}");
            block.pin_backing().unwrap();
        }
    }
}
