//! Unified and pinned host memory: the differences to device memory.

use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::sys::types::{CUdevice_attribute, CUresult};
use gpumem_pool::{
    Advice, BackendKind, Block, Capture, CaptureMode, ConfigError, Device, Limit, MemoryKind, OutOfMemory,
    Pool, PoolError, Stream, Unsupported,
};
use gpumem_sim::{Schedule, SimConfig};

const MIB: u64 = 1 << 20;

/// A simulated machine that runs work only in waits.
fn on_host_memory(body: impl Fn(&Fixture)) {
    on_each_backend(&small().schedule(Schedule::Late), |fixture| {
        if fixture.kind.is_host_accessible() {
            body(fixture);
        }
    });
}

/// Writes on the host, without waiting.
fn write(block: &Block, value: u8) {
    // SAFETY: the block owns these bytes, and no work was queued for it.
    unsafe { block.host_ptr().unwrap().write_bytes(value, block.size_bytes() as usize) };
}

/// True if the host reads this value in every byte.
fn holds(block: &Block, value: u8) -> bool {
    // SAFETY: the block owns these bytes, and all work on it is complete.
    let bytes = unsafe {
        std::slice::from_raw_parts(block.host_ptr().unwrap().as_ptr(), block.size_bytes() as usize)
    };
    bytes.iter().all(|byte| *byte == value)
}

#[test]
fn a_block_names_its_kind_of_memory() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(5000, &stream).unwrap();
        assert_eq!(
            (pool.kind(), block.kind(), pool.status().unwrap().kind),
            (fixture.kind, fixture.kind, fixture.kind)
        );
        assert_eq!(block.host_ptr().is_some(), fixture.kind.is_host_accessible());
        if let Some(host) = block.host_ptr() {
            assert_eq!(host.as_ptr().expose_provenance() as u64, block.address());
        }
        assert!(pool.alloc(0, &stream).unwrap().host_ptr().is_none());
        assert!(pool.private(16 * MIB).unwrap().alloc(1, &stream).unwrap().kind() == fixture.kind);
        let text = pool.status().unwrap().to_string();
        assert_eq!(text.contains("memory on"), fixture.kind.is_host_accessible(), "{text}");
    });
}

/// A write of the host is not ordered behind any stream: a block with pending work must not be reused, on the same stream
/// neither.
#[test]
fn memory_is_reused_when_every_use_is_complete() {
    on_host_memory(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        for (round, size_bytes) in [300, 70_000, 3 * MIB, 50 * MIB].into_iter().enumerate() {
            let mut held = Vec::new();
            for step in 0..4_u8 {
                let used = pool.alloc(size_bytes, &stream).unwrap();
                fixture.fill(&used, 100 + step, &stream);
                drop(used);
                let block = pool.alloc(size_bytes, &stream).unwrap();
                write(&block, step);
                held.push(block);
            }
            stream.synchronize().unwrap();
            for (step, block) in held.iter().enumerate() {
                assert!(holds(block, step as u8), "round {round}, step {step}");
            }
            pool.check().unwrap();
        }
    });
}

/// Memory is reused once its uses are complete, after a wait or a query.
#[test]
fn what_is_complete_needs_no_growth() {
    on_host_memory(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        let peak_bytes = pool.status().unwrap().reserved_peak_bytes;
        for step in 0..20 {
            stream.synchronize().unwrap();
            let block = pool.alloc(20 * MIB, &stream).unwrap();
            write(&block, step);
            fixture.fill(&block, 9, &stream);
        }
        assert_eq!(pool.status().unwrap().reserved_peak_bytes, peak_bytes);
    });
}

/// At the limit the host waits for the memory that it needs.
#[test]
fn at_the_limit_the_host_waits() {
    on_host_memory(|fixture| {
        let pool = fixture.builder().hard_limit(32 * MIB).build().unwrap();
        let (stream, other) = (fixture.stream(), fixture.stream());
        for step in 0..10_u8 {
            let block = pool.alloc(24 * MIB, if step % 3 == 0 { &other } else { &stream }).unwrap();
            write(&block, step);
            other.wait_for(&stream).unwrap();
            fixture.fill(&block, 200, &other);
            block.record_use(&other);
        }
        assert!(matches!(pool.alloc(33 * MIB, &stream), Err(PoolError::LimitReached { .. })));
        assert!(pool.status().unwrap().reserved_peak_bytes <= 32 * MIB);
        pool.check().unwrap();
    });
}

/// While a stream captures, the default stream cannot be synchronised: memory that it still uses is unavailable, and the request
/// is refused right away.
#[test]
fn a_wait_that_a_capture_forbids_is_refused_at_once() {
    on_host_memory(|fixture| {
        let pool = fixture.builder().hard_limit(32 * MIB).build().unwrap();
        let (default, stream) = (Stream::legacy(&fixture.device).unwrap(), fixture.stream());
        let used = pool.alloc(32 * MIB, &default).unwrap();
        fixture.fill(&used, 1, &default);
        drop(used);
        let capture = Capture::begin(&stream, CaptureMode::Global).unwrap();
        let start = std::time::Instant::now();
        let refused = pool.alloc(MIB, &fixture.stream());
        assert!(start.elapsed().as_secs() < 5, "{refused:?}");
        let advice = refused.as_ref().err().and_then(PoolError::out_of_memory).map(OutOfMemory::advice);
        if fixture.backend == BackendKind::Caching {
            assert_eq!(advice, Some(Advice::WaitForWork), "{refused:?}");
        }
        drop((refused, capture));
        default.synchronize().unwrap();
        drop(pool.alloc(32 * MIB, &stream).unwrap());
    });
}

/// Threads write on the host to memory that other threads have just freed with pending work, at a limit that makes them share it.
#[test]
fn no_queued_work_overwrites_bytes_of_the_host() {
    on_host_memory(|fixture| {
        let pool = fixture.builder().hard_limit(48 * MIB).build().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (pool, stream) = (&pool, fixture.stream());
                scope.spawn(move || {
                    let mut held: Vec<(Block, u8)> = Vec::new();
                    let mut draw = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(thread + 1);
                    for step in 0..200_u8 {
                        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let size_bytes = (256 << ((draw >> 33) % 13)) + ((draw >> 40) & 0xff);
                        let block = pool.alloc(size_bytes, &stream).unwrap();
                        write(&block, step);
                        held.push((block, step));
                        if held.len() > 3 {
                            let (block, value) = held.swap_remove((draw >> 50) as usize % 4);
                            assert!(holds(&block, value), "thread {thread}, step {step}");
                            // The device still writes the block, without a wait.
                            fixture.fill(&block, !value, &stream);
                        }
                    }
                    assert!(held.iter().all(|(block, value)| holds(block, *value)), "thread {thread}");
                });
            }
        });
        pool.check().unwrap();
    });
}

/// A write of the host while a graph is being captured is visible when the graph runs: no block overlaps another one that the
/// graph writes.
#[test]
fn a_graph_leaves_the_hosts_bytes_alone() {
    on_host_memory(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let capture = Capture::begin(&stream, CaptureMode::Global).unwrap();
        let scratch = pool.alloc(2 * MIB, &stream).unwrap();
        fixture.fill(&scratch, 9, &stream);
        drop(scratch);
        let input = pool.alloc(2 * MIB, &stream).unwrap();
        write(&input, 5);
        let exec = capture.end().unwrap().instantiate().unwrap();
        for _ in 0..2 {
            // SAFETY: the queued work uses only memory of the graph.
            unsafe { exec.launch(&stream).unwrap() };
        }
        stream.synchronize().unwrap();
        assert!(holds(&input, 5));
        drop((input, exec));
        stream.synchronize().unwrap();
        pool.reclaim().unwrap();
        assert_eq!((pool.status().unwrap().reserved_bytes, pool.check()), (0, Ok(())));
    });
}

/// Each pool has its own limit, and the limit of host memory is independent of the device.
#[test]
fn each_kind_has_its_own_budget() {
    on_host_memory(|fixture| {
        let stream = fixture.stream();
        let pools = [(); 2].map(|()| fixture.builder().hard_limit(64 * MIB).build().unwrap());
        let held = pools.each_ref().map(|pool| pool.alloc(64 * MIB, &stream).unwrap());
        assert!(pools.iter().all(|pool| pool.alloc(1, &stream).is_err()));
        drop(held);
        let share = fixture.builder().hard_limit(Limit::Percent(25.0)).build();
        match fixture.kind {
            MemoryKind::Host => {
                let error = share.unwrap_err();
                assert!(matches!(&error, PoolError::Config(ConfigError::ShareOfHost { .. })), "{error}");
                assert!(error.to_string().contains("25%") && error.to_string().contains("1.5GiB"), "{error}");
            }
            _ => assert_eq!(share.unwrap().status().unwrap().hard_limit_bytes, Some(256 * MIB)),
        }
    });
}

#[test]
fn host_memory_may_be_more_than_the_device_has() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    for backend in crate::fixture::host_backends() {
        let pool = Pool::builder(&device).backend(backend).kind(MemoryKind::Host).build().unwrap();
        let held = [(); 3].map(|()| pool.alloc(40 * MIB, &stream).unwrap());
        let free_bytes = device.memory_info().unwrap().free_bytes;
        assert!(free_bytes >= 62 * MIB, "{backend}: {free_bytes}");
        drop(held);
        for size_bytes in [1 << 51, 1 << 63, u64::MAX - 100] {
            assert!(pool.alloc(size_bytes, &stream).is_err(), "{backend}: {size_bytes}");
        }
    }
}

/// Unified memory and reserved device memory together stay below the device's size, unless the builder allows more.
#[test]
fn unified_memory_leaves_the_device_a_margin() {
    for backend in crate::fixture::host_backends() {
        let device = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let builder = || Pool::builder(&device).backend(backend);
        let (own, unified) =
            (builder().build().unwrap(), builder().kind(MemoryKind::Unified).build().unwrap());
        let held = own.alloc(600 * MIB, &stream).unwrap();
        let first = unified.alloc(300 * MIB, &stream).unwrap();
        let error = unified.alloc(100 * MIB, &stream).unwrap_err();
        assert!(
            matches!(&error, PoolError::LimitReached(report) if report.limit_bytes == Some(960 * MIB)),
            "{error}"
        );
        let error = own.alloc(100 * MIB, &stream).unwrap_err();
        assert!(
            matches!(&error, PoolError::LimitReached(report) if report.limit_bytes == Some(960 * MIB)),
            "{error}"
        );
        let more = builder().kind(MemoryKind::Unified).conf("oversubscribe:true").unwrap().build().unwrap();
        drop(more.alloc(500 * MIB, &stream).unwrap());
        drop(first);
        stream.synchronize().unwrap();
        for pool in [&unified, &more] {
            pool.reclaim().unwrap();
        }
        drop((own.alloc(400 * MIB, &stream).unwrap(), held));
    }
}

/// At the limit, the pool waits for work of every device that uses the needed memory.
#[test]
fn at_the_limit_the_host_waits_for_other_devices_too() {
    on_each_backend(&small().devices(2).schedule(Schedule::Late), |fixture| {
        if !fixture.kind.is_host_accessible() {
            return;
        }
        let pool = fixture.builder().hard_limit(32 * MIB).build().unwrap();
        let peer = Device::new(&fixture.driver, 1).unwrap();
        let (stream, away) = (fixture.stream(), Stream::new(&peer).unwrap());
        for step in 0..4 {
            let block = pool.alloc(24 * MIB, &stream).unwrap();
            write(&block, step);
            away.wait_for(&stream).unwrap();
            fixture.fill(&block, 200, &away);
            block.record_use(&away);
        }
        let block = pool.alloc(24 * MIB, &stream).unwrap();
        write(&block, 5);
        away.synchronize().unwrap();
        assert!(holds(&block, 5));
    });
}

/// A pool may end while work uses its memory, which is released after that work is complete.
#[test]
fn an_ended_pool_keeps_memory_that_work_uses() {
    on_host_memory(|fixture| {
        let (stream, other) = (fixture.stream(), fixture.stream());
        let pool = fixture.pool();
        let kept = pool.alloc(MIB, &stream).unwrap();
        let used = [300, 5 * MIB].map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap());
        used.iter().for_each(|block| fixture.fill(block, 9, &other));
        used.iter().for_each(|block| block.record_use(&other));
        drop((used, pool));
        // A block keeps its pool alive.
        write(&kept, 3);
        fixture.fill(&kept, 4, &stream);
        drop(kept);
        fixture.device.synchronize().unwrap();
        let report = gpumem_sim::Sim::of(&fixture.driver).unwrap().report();
        assert!(report.allocations.is_empty() && report.findings.is_empty(), "{report}");
    });
}

/// `native` has device memory only. Without a name, another backend is used.
#[cfg(feature = "backend-native")]
#[test]
fn native_has_device_memory_only() {
    let device = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
    for kind in [MemoryKind::Unified, MemoryKind::Host] {
        let error = Pool::builder(&device).backend(BackendKind::Native).kind(kind).build().unwrap_err();
        assert!(error.to_string().contains("use the backend `caching` or `none`"), "{error}");
        assert_ne!(Pool::builder(&device).kind(kind).build().unwrap().backend(), BackendKind::Native);
    }
}

#[test]
fn unsupported_operations_of_kinds_and_backends_are_errors() {
    #[cfg(feature = "backend-caching")]
    {
        let device = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
        let exported = Pool::builder(&device)
            .backend(BackendKind::Caching)
            .kind(MemoryKind::Host)
            .conf("exportable:true")
            .unwrap()
            .build();
        assert!(matches!(
            exported,
            Err(PoolError::Unsupported(Unsupported::OnKind { kind: MemoryKind::Host, .. }))
        ));
    }
    // SAFETY: a missing function is not called.
    let old =
        unsafe { gpumem_sim::driver(small()).unwrap().with_table(|table| table.cuMemAllocManaged = None) };
    let error = Pool::builder(&Device::new(&old, 0).unwrap()).kind(MemoryKind::Unified).build().unwrap_err();
    assert!(
        matches!(error, PoolError::Unsupported(Unsupported::Kind { kind: MemoryKind::Unified, .. })),
        "{error}"
    );
}

/// A device without concurrent access of host and device supports managed memory, but without host access.
#[test]
fn without_concurrent_access_the_host_is_kept_away() {
    unsafe extern "C" fn none(value: *mut i32, attribute: CUdevice_attribute, _: i32) -> CUresult {
        let has = attribute != CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        // SAFETY: the caller passes a valid out-pointer.
        unsafe { *value = i32::from(has) };
        CUresult::CUDA_SUCCESS
    }
    let driver = gpumem_sim::driver(small()).unwrap();
    // SAFETY: the wrapper returns what the driver would return for another device.
    let driver = unsafe { driver.with_table(|table| table.cuDeviceGetAttribute = Some(none)) };
    let device = Device::new(&driver, 0).unwrap();
    let pool = Pool::builder(&device).kind(MemoryKind::Unified).build().unwrap();
    assert!(pool.alloc(100, &Stream::new(&device).unwrap()).unwrap().host_ptr().is_none());
}
