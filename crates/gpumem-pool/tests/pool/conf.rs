//! Options by name, and their effect on each backend.

use crate::fixture::{on_device_memory, small};
#[cfg(feature = "backend-native")]
use crate::fixture::{on_each_backend_with, stand_in};
use gpumem_pool::BackendKind;
#[cfg(feature = "backend-native")]
use {
    gpumem_pool::{Block, Pool},
    std::sync::atomic::Ordering,
};

const MIB: u64 = 1 << 20;

#[test]
fn idle_memory_beyond_the_threshold_is_released_at_a_cache_miss() {
    on_device_memory(&small(), |fixture| {
        for is_asked in [false, true] {
            let conf = if is_asked {
                "hard_limit:256MiB,garbage_collection_threshold:0.5"
            } else {
                "hard_limit:256MiB"
            };
            let (pool, stream) = (fixture.builder().conf(conf).unwrap().build().unwrap(), fixture.stream());
            drop((0..5).map(|_| pool.alloc(30 * MIB, &stream).unwrap()).collect::<Vec<_>>());
            stream.synchronize().unwrap();
            let _small = pool.alloc(100, &stream).unwrap();
            let reserved_bytes = pool.status().unwrap().reserved_bytes;
            let is_idle =
                pool.ignored_options().iter().any(|notice| notice.option == "garbage_collection_threshold");
            assert_eq!(is_idle, is_asked && fixture.backend == BackendKind::None);
            if fixture.backend == BackendKind::Caching {
                assert_eq!(reserved_bytes <= 128 * MIB, is_asked, "{reserved_bytes}");
            }
            pool.check().unwrap();
        }
    });
}

#[cfg(feature = "backend-native")]
stand_in!(trims, cuMemPoolTrimTo(pool: CUmemoryPool, keep_bytes: usize));

/// A device of 1 GiB, and a driver pool that should not hold more than 256 MiB without need.
#[cfg(feature = "backend-native")]
#[test]
fn the_driver_s_pool_keeps_nothing_idle_when_it_grows_beyond_the_threshold() {
    on_each_backend_with(&small(), trims::install, |fixture| {
        if fixture.backend != BackendKind::Native {
            return;
        }
        let stream = fixture.stream();
        let pool = |conf: &str| fixture.builder().conf(conf).unwrap().build().unwrap();
        let blocks = |pool: &Pool, count| -> Vec<Block> {
            (0..count).map(|_| pool.alloc(32 * MIB, &stream).unwrap()).collect()
        };
        let reserved_mib = |pool: &Pool| pool.status().unwrap().reserved_bytes / MIB;
        for (conf, expected_mib) in [("", [576, 384]), ("garbage_collection_threshold:0.25", [320, 256])] {
            // The idle memory is smaller than the request.
            let whole = pool(conf);
            drop(blocks(&whole, 8));
            stream.synchronize().unwrap();
            let held = whole.alloc(300 * MIB, &stream).unwrap();
            let without_pieces_mib = reserved_mib(&whole);
            drop((held, whole));
            fixture.device.synchronize().unwrap();
            // The idle memory is larger, but fragmented.
            let pieces = pool(conf);
            let mut index = 0;
            let mut held = blocks(&pieces, 8);
            held.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            stream.synchronize().unwrap();
            held.push(pieces.alloc(100 * MIB, &stream).unwrap());
            assert_eq!([without_pieces_mib, reserved_mib(&pieces)], expected_mib, "with {conf:?}");
        }
        // A program that reallocates the memory that it frees is not trimmed, even above the threshold.
        let steady = pool("garbage_collection_threshold:0.25");
        drop(blocks(&steady, 10));
        let before = trims::CALLS.load(Ordering::SeqCst);
        for _ in 0..5 {
            drop(blocks(&steady, 10));
        }
        assert_eq!((trims::CALLS.load(Ordering::SeqCst), reserved_mib(&steady)), (before, 320));
    });
}

#[test]
fn sizes_are_rounded_up_to_a_part_of_their_power_of_two() {
    on_device_memory(&small(), |fixture| {
        let options = fixture.builder().conf("roundup_power2_divisions:2").unwrap();
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let block = pool.alloc(33 * MIB, &stream).unwrap();
        let is_idle = pool.ignored_options().iter().any(|notice| notice.option == "roundup_power2_divisions");
        assert_eq!(is_idle, fixture.backend != BackendKind::Caching);
        assert_eq!(block.size_bytes(), 33 * MIB);
        if !is_idle {
            assert!(pool.status().unwrap().reserved_bytes >= 48 * MIB);
        }
    });
}

#[test]
fn options_without_effect_are_reported() {
    on_device_memory(&small(), |fixture| {
        let ignored = |conf: &str| -> Vec<String> {
            let pool = fixture.builder().conf(conf).unwrap().build().unwrap();
            pool.ignored_options().iter().map(ToString::to_string).collect()
        };
        let is_idle = |conf: &str| match &ignored(conf)[..] {
            [] => false,
            [notice] => notice.contains(&format!("no effect on the backend {}", fixture.backend)),
            ignored_options => panic!("{ignored_options:?}"),
        };
        assert_eq!(is_idle("max_split_size_mb:64"), !fixture.plain_segments);
        assert_eq!(is_idle("mapping_allowance:40"), !fixture.maps());
        assert_eq!(is_idle("profile:tight"), fixture.backend != BackendKind::Caching);
        assert!(!is_idle("kind:device"));
        assert!(ignored("").is_empty());
    });
}

#[test]
fn without_caching_a_pool_retains_no_memory() {
    on_device_memory(&small(), |fixture| {
        let options = fixture.builder().conf("no_caching:true").unwrap();
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        assert_eq!(pool.backend(), BackendKind::None);
        drop(pool.alloc(5 * MIB, &stream).unwrap());
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
    });
}
