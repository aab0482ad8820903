//! A pool in a server program: one that never waits for work but queries it, and whose work may hang. On both drivers.

use gpumem_tests::cases;
use gpumem_tests::driver::memory_counter::MemoryCounter;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::backends::{backends, settings};
use gpumem_tests::pool::{BackendKind, Block, Device, Event, MemoryKind, Pool, PoolError, Stream};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Queries until a condition holds, like an idle server. Returns false after the time limit.
fn polls_until(event: &Event, is_so: impl Fn() -> bool) -> bool {
    (0..POLL_COUNT).any(|_| {
        event.is_complete().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        is_so()
    })
}

const POLL_COUNT: usize = 3000;

/// Blocks that were used on a stream, with the event behind their use.
fn used_blocks(device: &Device, pool: &Pool, stream: &Stream, count: usize) -> (Vec<Block>, Event) {
    let blocks: Vec<Block> = (0..count).map(|_| pool.alloc(16 * MIB, stream).unwrap()).collect();
    let event = Event::new(device).unwrap();
    event.record(stream).unwrap();
    (blocks, event)
}

fn close_gate(device: &Device, stream: &Stream) -> StreamGate {
    let _bound = device.bind().unwrap();
    // SAFETY: the stream is alive and of the context that is current.
    unsafe { StreamGate::close(device.driver(), stream.raw()).unwrap() }
}

cases! {
    /// An allocation whose only memory is held back by a hanging stream is refused at its deadline, and the report names that
    /// stream. Other allocations succeed.
    fn an_allocation_behind_a_stream_that_hangs_ends_at_its_deadline(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        // With `none`, a free waits.
        for setting in settings(&device).into_iter().filter(|setting| setting.backend != BackendKind::None) {
            let builder = setting.builder(&device).hard_limit(64 * MIB);
            let pool = builder.conf("wait_deadline_ms:300,inserted_waits:false").unwrap().build().unwrap();
            let (hung, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let block = pool.alloc(48 * MIB, &hung).unwrap();
            let gate = close_gate(&device, &hung);
            drop(block);
            for _ in 0..2 {
                match pool.alloc(40 * MIB, &other) {
                    // The driver's pool has enough memory for other streams, or makes the stream wait.
                    Ok(block) if setting.backend == BackendKind::Native => drop(block),
                    Ok(_) => panic!("{setting}: memory that work may use was handed out"),
                    Err(PoolError::LimitReached(report)) => {
                        let named = report.unfinished.iter().find(|one| one.stream == hung.id());
                        let queued_ago = named.and_then(|one| one.queued_ago);
                        assert!(queued_ago.is_some_and(|ago| ago >= Duration::from_millis(1)), "{setting}: {report}");
                        assert!(report.to_string().contains(&hung.id().to_string()), "{setting}: {report}");
                    }
                    Err(error) => panic!("{setting}: {error}"),
                }
            }
            if setting.backend == BackendKind::Caching {
                drop(pool.alloc(8 * MIB, &other).unwrap());
            }
            assert!(gate.open(), "{setting}: an allocation waited for the stream");
            hung.synchronize().unwrap();
            drop(pool.alloc(48 * MIB, &other).unwrap());
            pool.reclaim().unwrap();
            assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{setting}");
        }
    }

    /// Memory freed in time by another stream is reused, even if a third stream hangs.
    fn a_stream_that_hangs_keeps_no_other_stream_s_memory(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let builder = Pool::builder(&device).backend(BackendKind::Caching).hard_limit(64 * MIB);
        let Ok(pool) = builder.conf("wait_deadline_ms:2000,inserted_waits:false").unwrap().build() else { return };
        let [hung, busy, other] = [(); 3].map(|()| Stream::new(&device).unwrap());
        let held = pool.alloc(16 * MIB, &hung).unwrap();
        let block = pool.alloc(40 * MIB, &busy).unwrap();
        let (busy_gate, hung_gate) = (close_gate(&device, &busy), close_gate(&device, &hung));
        drop((held, block));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                assert!(busy_gate.open());
            });
            drop(pool.alloc(40 * MIB, &other).unwrap());
        });
        assert!(hung_gate.open(), "the allocation waited for the wrong stream");
        device.synchronize().unwrap();
    }

    /// Queries of work apply a soft limit.
    fn a_soft_limit_is_served_by_queries(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for setting in settings(&device).into_iter().filter(|setting| setting.backend != BackendKind::None) {
            let pool = setting.builder(&device).soft_limit(32 * MIB).build().unwrap();
            let (stream, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let (blocks, event) = used_blocks(&device, &pool, &stream, 8);
            // A stream with pending work keeps the memory that it uses, and nothing else.
            let gate = close_gate(&device, &other);
            drop(blocks);
            let reserved_bytes = || pool.status().unwrap().reserved_bytes;
            let is_served = match setting.backend {
                BackendKind::Caching if setting.kind == MemoryKind::Device && !setting.plain_segments => {
                    polls_until(&event, || reserved_bytes() <= 32 * MIB)
                }
                // These backends wait for the device, or the driver does, when memory is released.
                _ => true,
            };
            assert!(is_served, "{setting}: {} bytes stay", reserved_bytes());
            assert!(gate.open(), "{setting}: a query waited");
            // The driver's pool releases in units of 32 MiB.
            assert!(polls_until(&event, || reserved_bytes() <= 32 * MIB), "{setting}: {} bytes stay", reserved_bytes());
        }
    }

    /// Queries trim a pool that is idle.
    fn an_idle_pool_is_trimmed_by_queries(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for setting in settings(&device).into_iter().filter(|setting| setting.backend != BackendKind::None) {
            let pool = setting.builder(&device).conf("trim_when_idle_ms:5").unwrap().build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let (blocks, event) = used_blocks(&device, &pool, &stream, 8);
            drop(blocks);
            let is_empty = || pool.status().unwrap().reserved_bytes == 0;
            assert!(polls_until(&event, is_empty), "{setting}");
            drop(pool.alloc(MIB, &stream).unwrap());
        }
    }

    /// Queries release memory of a pool that ended while its work was queued.
    fn memory_of_an_ended_pool_is_released_by_queries(driver: &Driver) {
        let plain = Device::new(driver, 0).unwrap();
        for setting in settings(&plain).into_iter().filter(|setting| setting.backend != BackendKind::None) {
            let counted = MemoryCounter::new(driver);
            let device = Device::new(&counted.driver, 0).unwrap();
            let pool = setting.builder(&device).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let (blocks, event) = used_blocks(&device, &pool, &stream, 4);
            let gate = close_gate(&device, &stream);
            drop((blocks, pool));
            assert!(gate.open(), "{setting}: the end of a pool waited");
            let later = Event::new(&device).unwrap();
            later.record(&stream).unwrap();
            let is_empty = || counted.held_bytes(setting.kind) == 0;
            assert!(polls_until(&event, is_empty), "{setting}");
            // Not immediately: the driver's pool releases in stream order, and later work may have to wait.
            assert!(polls_until(&event, || later.is_complete().unwrap()), "{setting}");
        }
    }

    /// If no maintenance is due, queries make no additional driver calls.
    fn queries_cost_nothing_where_nothing_is_due(driver: &Driver) {
        use gpumem_tests::driver::count_calls;
        use gpumem_trace::calls::reading;
        let driver = count_calls(driver);
        let device = Device::new(&driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let (blocks, event) = used_blocks(&device, &pool, &stream, 2);
            drop(blocks);
            event.synchronize().unwrap();
            // Memory of the previous pool is released here, not in a query.
            device.synchronize().unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let before = reading();
            assert!(event.is_complete().unwrap());
            let calls = reading().since(&before).calls.by_name();
            let allowed = ["cuEventQuery", "cuCtxGetId", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"];
            assert!(calls.iter().all(|(name, count)| allowed.contains(name) && *count <= 2), "{backend}: {calls:?}");
        }
    }
}
