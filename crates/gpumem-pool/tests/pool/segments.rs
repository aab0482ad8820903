//! The caching backend without virtual memory: when it uses plain segments, and how they behave.

use crate::call_counter::{calls, count_calls};
use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::sys::types::{CUdevice, CUdevice_attribute, CUresult};
use gpumem_pool::sys::{Driver, Table};
use gpumem_pool::{
    BackendKind, Device, MemoryKind, Pool, PoolBuilder, PoolError, Profile, Stream, Unsupported,
};
use gpumem_sim::{Effect, Rule, SimConfig};
use std::ffi::c_int;
use std::sync::Mutex;

const MIB: u64 = 1 << 20;

type GetAttribute = unsafe extern "C" fn(*mut c_int, CUdevice_attribute, CUdevice) -> CUresult;

/// The driver's own function, for [`without_attribute`].
static GET_ATTRIBUTE: Mutex<Option<GetAttribute>> = Mutex::new(None);

/// Reports that the device has no virtual memory management.
unsafe extern "C" fn without_attribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    let real = GET_ATTRIBUTE.lock().unwrap().unwrap();
    // SAFETY: the caller guarantees what the replaced function requires.
    let code = unsafe { real(value, attribute, device) };
    if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED {
        // SAFETY: the caller passes a valid out-pointer, which the replaced function has just written.
        unsafe { *value = 0 };
    }
    code
}

/// Every way in which a driver can lack virtual memory.
fn lacks() -> Vec<(&'static str, Driver)> {
    let refusing = |name: &str, code| {
        let rule = Rule::new(name, Effect::Fail(code));
        gpumem_sim::driver(SimConfig::new().rule(rule)).unwrap()
    };
    // SAFETY: a replacement calls the function that it replaces, or returns an error; missing functions are not called.
    let changed =
        |change: fn(&mut Table)| unsafe { gpumem_sim::driver(SimConfig::new()).unwrap().with_table(change) };
    let hide = |table: &mut Table| {
        *GET_ATTRIBUTE.lock().unwrap() = table.cuDeviceGetAttribute;
        table.cuDeviceGetAttribute = Some(without_attribute);
    };
    vec![
        ("no cuMemCreate", changed(|table| table.cuMemCreate = None)),
        ("no cuMemAddressReserve", changed(|table| table.cuMemAddressReserve = None)),
        ("attribute 0", changed(hide)),
        ("handles are refused", refusing("cuMemCreate", CUresult::CUDA_ERROR_NOT_SUPPORTED)),
        ("handles are forbidden", refusing("cuMemCreate", CUresult::CUDA_ERROR_NOT_PERMITTED)),
        ("addresses are refused", refusing("cuMemAddressReserve", CUresult::CUDA_ERROR_NOT_SUPPORTED)),
        ("addresses are used up", refusing("cuMemAddressReserve", CUresult::CUDA_ERROR_OUT_OF_MEMORY)),
    ]
}

#[test]
fn a_driver_without_virtual_memory_is_met_with_plain_segments() {
    for (lack, driver) in lacks() {
        let device = Device::new(&driver, 0).unwrap();
        let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
        let blocks: Vec<_> =
            [300, MIB, 5 * MIB, 700 * MIB].map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap()).into();
        let status = pool.status().unwrap();
        assert_eq!((status.backend, status.plain_segments), (BackendKind::Caching, true), "{lack}");
        assert!(status.to_string().contains("caching (plain segments)"), "{lack}: {status}");
        pool.check().unwrap();

        let private = pool.private(8 * MIB).unwrap();
        assert!(private.status().unwrap().plain_segments, "{lack}");
        assert!(matches!(private.alloc(9 * MIB, &stream), Err(PoolError::LimitReached { .. })), "{lack}");

        let error = pool.growable(MIB, &stream).unwrap_err();
        assert!(error.to_string().contains("virtual memory management"), "{lack}: {error}");
        let error = Pool::builder(&device)
            .backend(BackendKind::Caching)
            .conf("exportable:true")
            .unwrap()
            .build()
            .unwrap_err();
        assert!(matches!(&error, PoolError::Unsupported(Unsupported::Backend { .. })), "{lack}: {error}");

        drop(blocks);
        stream.synchronize().unwrap();
        assert!(pool.reclaim().unwrap() >= 706 * MIB, "{lack}");
        assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{lack}");
    }
}

/// Mapped memory that is requested by name and unavailable is reported, like any option without effect.
#[test]
fn plain_segments_in_place_of_mapped_ones_are_reported() {
    let ignored = |builder: PoolBuilder, conf: &str| -> Vec<String> {
        let pool = builder.backend(BackendKind::Caching).conf(conf).unwrap().build().unwrap();
        let ignored_options = pool.ignored_options();
        assert_eq!(pool.private(64 * MIB).unwrap().ignored_options(), ignored_options);
        ignored_options.iter().map(ToString::to_string).collect()
    };
    let is_reported = |ignored_options: &[String]| match ignored_options {
        [] => false,
        [notice] => {
            notice.starts_with("expandable_segments has no effect on the backend caching: memory lies")
        }
        ignored_options => panic!("{ignored_options:?}"),
    };
    for (lack, driver) in lacks() {
        let device = Device::new(&driver, 0).unwrap();
        assert!(is_reported(&ignored(Pool::builder(&device), "expandable_segments:true")), "{lack}");
        assert!(!is_reported(&ignored(Pool::builder(&device), "expandable_segments:false")), "{lack}");
        assert!(!is_reported(&ignored(Pool::builder(&device), "")), "{lack}");
    }
    let device = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
    assert!(is_reported(&ignored(Pool::builder(&device), "expandable_segments:true,kind:host")));
    assert!(!is_reported(&ignored(Pool::builder(&device), "expandable_segments:true")));
    // The last value counts.
    assert!(!is_reported(&ignored(
        Pool::builder(&device).conf("expandable_segments:false").unwrap(),
        "expandable_segments:true"
    )));
    let options = Pool::builder(&device)
        .conf("expandable_segments:true")
        .unwrap()
        .conf("expandable_segments:false")
        .unwrap();
    assert!(!is_reported(&ignored(options, "")));
}

#[test]
fn virtual_memory_is_taken_where_there_is_some() {
    let full = Rule::new("cuMemCreate", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    for config in [small(), small().rule(full)] {
        let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
        let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
        assert!(!pool.status().unwrap().plain_segments);
    }
}

/// The driver's own function, for [`with_cards`].
static CARDS_ATTRIBUTE: Mutex<Option<GetAttribute>> = Mutex::new(None);

/// Reports that network cards can reach virtual memory.
unsafe extern "C" fn with_cards(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED {
        // SAFETY: the caller passes a valid out-pointer.
        unsafe { *value = 1 };
        return CUresult::CUDA_SUCCESS;
    }
    let real = CARDS_ATTRIBUTE.lock().unwrap().unwrap();
    // SAFETY: the caller guarantees what the replaced function requires.
    unsafe { real(value, attribute, device) }
}

/// Drivers under WSL report memory for network cards and refuse to open it; plain segments serve the cards as well. Each flavour is
/// tried for itself.
#[test]
fn memory_for_network_cards_is_tried_for_itself() {
    let unknown = Rule::new("cuMemSetAccess", Effect::Fail(CUresult::CUDA_ERROR_UNKNOWN)).nth(1);
    let driver = gpumem_sim::driver(small().rule(unknown)).unwrap();
    // SAFETY: the replacement calls the function that it replaces, or answers as a driver may.
    let driver = unsafe {
        driver.with_table(|table| {
            *CARDS_ATTRIBUTE.lock().unwrap() = table.cuDeviceGetAttribute;
            table.cuDeviceGetAttribute = Some(with_cards);
        })
    };
    let (device, bare) = (Device::new(&driver, 0).unwrap(), gpumem_sim::driver(small()).unwrap());
    let stream = Stream::new(&device).unwrap();
    let built = |device: &Device, conf: &str| {
        let builder = Pool::builder(device).backend(BackendKind::Caching).conf(conf).unwrap();
        let pool = builder.build().unwrap();
        let status = pool.status().unwrap();
        (pool, status.plain_segments, status.plain_segments_reason.unwrap_or_default())
    };
    let (pool, is_plain, reason) = built(&device, "rdma:true");
    assert!(
        is_plain && reason.contains("for network cards (rdma:true) (cuMemSetAccess: CUDA_ERROR_UNKNOWN"),
        "{reason}"
    );
    drop(pool.alloc(5 * MIB, &stream).unwrap());
    assert!(!built(&device, "").1);
    assert!(!built(&device, "rdma:true").1, "the next trial succeeds");
    // The simulator's own devices say that cards reach no virtual memory.
    let bare = Device::new(&bare, 0).unwrap();
    let (_, is_plain, reason) = built(&bare, "rdma:true");
    assert!(is_plain && reason.contains("that network cards can reach (rdma:true)"), "{reason}");
    let options =
        Pool::builder(&bare).backend(BackendKind::Caching).conf("rdma:true,exportable:true").unwrap();
    assert!(matches!(options.build(), Err(PoolError::Unsupported(Unsupported::Backend { .. }))));
}

fn on_segments(body: impl Fn(&Fixture)) {
    on_each_backend(&small(), |fixture| {
        if fixture.plain_segments {
            body(fixture);
        }
    });
}

/// Segments are released as a whole: a segment with a live block stays, however small the block.
#[test]
fn a_segment_goes_back_once_nothing_holds_it() {
    on_segments(|fixture| {
        let (pool, stream) = (fixture.builder().profile(Profile::Tight).build().unwrap(), fixture.stream());
        pool.reserve(32 * MIB).unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 32 * MIB);
        let [first, second] = [(); 2].map(|()| pool.alloc(12 * MIB, &stream).unwrap());
        let apart = pool.alloc(20 * MIB, &stream).unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 52 * MIB);
        drop((first, apart));
        stream.synchronize().unwrap();
        assert_eq!((pool.trim_to(0).unwrap(), pool.check()), (20 * MIB, Ok(())));
        fixture.fill(&second, 7, &stream);
        assert!(fixture.holds(&second, 7, &stream));
        drop(second);
        stream.synchronize().unwrap();
        assert_eq!((pool.trim_to(0).unwrap(), pool.check()), (32 * MIB, Ok(())));
        // Their memory is reused.
        drop(pool.alloc(30 * MIB, &stream).unwrap());
        assert_eq!((pool.status().unwrap().reserved_bytes, pool.check()), (30 * MIB, Ok(())));
    });
}

/// No block crosses the boundary of two segments, though the driver allocates them adjacent.
#[test]
fn blocks_lie_in_one_segment_each() {
    on_segments(|fixture| {
        let (pool, stream) = (fixture.builder().profile(Profile::Tight).build().unwrap(), fixture.stream());
        drop([(); 4].map(|()| pool.alloc(4 * MIB, &stream).unwrap()));
        assert_eq!(pool.status().unwrap().reserved_bytes, 16 * MIB);
        let larger = pool.alloc(6 * MIB, &stream).unwrap();
        // One of the four made way.
        assert_eq!(pool.status().unwrap().reserved_bytes, 18 * MIB);
        fixture.fill(&larger, 1, &stream);
        assert!(fixture.holds(&larger, 1, &stream));
    });
}

/// At the limit, free segments that are too small are released.
#[test]
fn small_segments_make_way_for_a_large_block() {
    on_segments(|fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(16 * MIB).build().unwrap(), fixture.stream());
        drop([(); 4].map(|()| pool.alloc(4 * MIB, &stream).unwrap()));
        drop(pool.alloc(16 * MIB, &stream).unwrap());
        let status = pool.status().unwrap();
        assert_eq!((status.reserved_bytes, status.reserved_peak_bytes), (16 * MIB, 16 * MIB));
        pool.check().unwrap();
    });
}

/// A live block keeps its segment. A segment that may not be split serves only requests of nearly its size.
#[test]
fn large_segments_can_be_reserved_for_large_blocks() {
    on_segments(|fixture| {
        for conf in ["handle_bytes_max:2MiB", "handle_bytes_max:2MiB,max_split_size_mb:64"] {
            let (pool, stream) = (fixture.builder().conf(conf).unwrap().build().unwrap(), fixture.stream());
            assert!(pool.ignored_options().is_empty());
            drop(pool.alloc(600 * MIB, &stream).unwrap());
            let small: Vec<_> = [30, 64].map(|mib| pool.alloc(mib * MIB, &stream).unwrap()).into();
            let is_cut_up = pool.status().unwrap().reserved_bytes == 600 * MIB;
            assert_eq!(is_cut_up, !conf.contains("split"));
            let again = pool.alloc(599 * MIB, &stream);
            assert_eq!(again.is_ok(), !is_cut_up, "{again:?}");
            drop(again);
            if !is_cut_up {
                assert_eq!(pool.status().unwrap().reserved_bytes, 694 * MIB);
                // The remainder would be too large to be wasted.
                drop(pool.alloc(500 * MIB, &stream).unwrap());
                assert_eq!(pool.status().unwrap().reserved_bytes, 594 * MIB);
            }
            drop(small);
            pool.check().unwrap();
        }
    });
}

/// Reserved memory serves all sizes that may share a segment.
#[test]
fn reserved_memory_may_be_split() {
    on_segments(|fixture| {
        let options = fixture.builder().conf("max_split_size_mb:64").unwrap();
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        pool.reserve(160 * MIB).unwrap();
        let _held: Vec<_> = (0..5).map(|_| pool.alloc(30 * MIB, &stream).unwrap()).collect();
        assert_eq!((pool.status().unwrap().reserved_bytes, pool.check()), (160 * MIB, Ok(())));
    });
}

#[test]
fn alignment_needs_no_help_from_the_driver() {
    on_segments(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut held = Vec::new();
        for alignment in [512, 4096, 2 * MIB, 16 * MIB] {
            for size_bytes in [1, 3000, 5 * MIB] {
                let block = pool.alloc_aligned(size_bytes, alignment, &stream).unwrap();
                assert!(block.address().is_multiple_of(alignment), "{size_bytes} bytes at {alignment}");
                fixture.fill(&block, held.len() as u8, &stream);
                held.push(block);
            }
        }
        pool.check().unwrap();
        assert!(held.iter().enumerate().all(|(value, block)| fixture.holds(block, value as u8, &stream)));
        drop(held);
        pool.reclaim().unwrap();
        assert_eq!((pool.status().unwrap().reserved_bytes, pool.check()), (0, Ok(())));
    });
}

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host];

/// Sizes that grow by a little, one block alive at a time, so that no free segment holds the next block. On two streams in turn, a segment
/// that the other stream's work still uses counts as free only once that work has run.
///
/// The bound has a margin: segments go back once the heap would hold half as much again as the block, so that a program whose sizes grow
/// pays for an occasional exchange instead of one per request (`Heap::has_outgrown`). The largest segment that is made for smaller blocks
/// (64 MiB) and rounding come on top. `tight` has no margin. Memory that the host can access grows instead of waiting, so the block before
/// may still be there.
#[test]
fn segments_that_are_outgrown_go_back_before_the_pool_grows() {
    for (kind, stream_count) in KINDS.into_iter().flat_map(|kind| [(kind, 1), (kind, 2)]) {
        for &profile in Profile::ALL {
            let device =
                Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(8 << 30)).unwrap(), 0).unwrap();
            let builder = Pool::builder(&device).backend(BackendKind::Caching).kind(kind).profile(profile);
            let pool = builder.conf("expandable_segments:false").unwrap().build().unwrap();
            let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
            let place = format!("{kind}, {stream_count} streams, {profile}");
            let margin = |bytes: u64| match (kind, profile) {
                (MemoryKind::Device, Profile::Tight) => 0,
                (MemoryKind::Device, _) => bytes / 2,
                _ => bytes,
            };
            for mib in 64..=463 {
                let stream = &streams[mib as usize % stream_count];
                let mut block = pool.alloc(mib * MIB, stream).unwrap();
                block.fill(0..8, 1_u8, stream).unwrap();
                let reserved_bytes = pool.status().unwrap().reserved_bytes;
                assert!(
                    reserved_bytes <= mib * MIB + margin(mib * MIB) + 72 * MIB,
                    "{place}: {} MiB reserved for a block of {mib} MiB",
                    reserved_bytes / MIB
                );
            }
            assert!(pool.status().unwrap().reserved_peak_bytes <= 2 * 463 * MIB + 72 * MIB, "{place}");
            pool.check().unwrap();
        }
    }
}

/// Patterns of requests that repeat: sizes that take turns, many small blocks after a few large ones, and sizes of one stream each.
/// After some rounds the driver gets nothing back, and what the pool still lacks is less than a segment a round.
#[test]
fn a_pattern_that_repeats_exchanges_no_segments() {
    let patterns: [&[&[u64]]; 6] = [
        &[&[200], &[400], &[300], &[100, 250]],
        &[&[60, 60], &[100, 20], &[40, 40, 40], &[130]],
        &[&[500], &[2; 250], &[17; 20], &[90, 3, 80, 5]],
        &[&[64, 65], &[66, 67], &[68, 69], &[130, 10], &[70; 3]],
        &[&[1; 200], &[300], &[150, 150], &[299, 1, 1]],
        &[&[10, 20, 30, 40, 50], &[50, 40, 30, 20, 10, 60], &[15, 25, 35, 45, 55], &[150]],
    ];
    for conf in ["", "max_split_size_mb:20", "max_split_size_mb:64"] {
        for (index, pattern) in patterns.iter().enumerate() {
            let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(8 << 30)).unwrap();
            let device = Device::new(&count_calls(&driver, None), 0).unwrap();
            let builder = Pool::builder(&device).backend(BackendKind::Caching).conf(conf).unwrap();
            let pool = builder.conf("expandable_segments:false").unwrap().build().unwrap();
            let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
            let round = |round: usize| {
                for (phase, sizes) in pattern.iter().enumerate() {
                    // A phase on another stream must not make way for that of the first, nor the other way round.
                    let stream = &streams[usize::from(round % 3 == 2 && phase % 2 == 1)];
                    let mut blocks: Vec<_> =
                        sizes.iter().map(|mib| pool.alloc(mib * MIB, stream).unwrap()).collect();
                    blocks.iter_mut().for_each(|block| block.fill(0..8, 1_u8, stream).unwrap());
                }
            };
            (0..24).for_each(round);
            let before = calls();
            (0..9).for_each(round);
            let [made, freed] =
                ["cuMemAlloc_v2", "cuMemFree_v2"].map(|name| calls().count(name) - before.count(name));
            assert!(freed == 0 && made < 9, "pattern {index}, {conf:?}: {made} made, {freed} freed");
        }
    }
}
