//! Integrated devices, whose memory is the host's: free memory is what the system says is available, wherever a figure of it is used.

use crate::fixture::{Fixture, on_device_memory, on_each_backend};
use gpumem_pool::{Advice, MemoryKind, PoolError};
use gpumem_sim::{Sim, SimConfig};

const GIB: u64 = 1 << 30;

/// A device of 8 GiB, of which the driver reports 1 GiB as free.
fn integrated() -> SimConfig {
    SimConfig::new().memory_bytes(8 * GIB).integrated(7 * GIB)
}

/// The figure of the driver.
fn driver_free_bytes(fixture: &Fixture) -> u64 {
    let _bound = fixture.device.bind().unwrap();
    let (mut free, mut total) = (0, 0);
    // SAFETY: locals outlive the call.
    unsafe { fixture.driver.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
    free as u64
}

#[test]
fn a_share_of_free_memory_counts_the_page_cache() {
    on_device_memory(&integrated(), |fixture| {
        assert_eq!(driver_free_bytes(fixture), GIB);
        let info = fixture.device.memory_info().unwrap();
        assert_eq!((info.free_bytes, info.total_bytes), (8 * GIB, 8 * GIB));
        let pool = fixture.builder().hard_limit("75%free").soft_limit("50%free").build().unwrap();
        let status = pool.status().unwrap();
        assert_eq!((status.hard_limit_bytes, status.soft_limit_bytes), (Some(6 * GIB), Some(4 * GIB)));
        assert_eq!((status.device_used_bytes, status.device_total_bytes), (0, 8 * GIB));
        let private = pool.private("25%free").unwrap();
        assert_eq!(private.status().unwrap().hard_limit_bytes, Some(2 * GIB));
        // What the pool has reserved counts as free, and the driver has nothing free any more.
        let _held = pool.alloc(4 * GIB, &fixture.stream()).unwrap();
        assert_eq!(driver_free_bytes(fixture), 0);
        pool.set_hard_limit("75%free").unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(6 * GIB));
        assert_eq!(pool.status().unwrap().device_used_bytes, 4 * GIB);
    });
}

/// The page cache belongs to nobody whom the program could ask to free it.
#[test]
fn a_report_counts_the_page_cache_as_free() {
    on_device_memory(&integrated(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let _held = pool.alloc(5 * GIB, &stream).unwrap();
        let error = pool.alloc(4 * GIB, &stream).unwrap_err();
        let report = error.out_of_memory().unwrap();
        assert_eq!((report.device_free_bytes, report.others_bytes()), (3 * GIB, 0));
        assert_eq!(report.advice(), Advice::NeedLess, "{error}");
        let largest = pool.alloc_up_to(GIB..=8 * GIB, &stream).unwrap();
        assert!(largest.size_bytes() > 5 * GIB / 2, "{largest:?}");
    });
}

/// Unified memory has no other place to move to, so it leaves the margin (512 MiB) in what other programs have left.
#[test]
fn unified_memory_leaves_the_margin_in_what_is_available() {
    on_each_backend(&integrated(), |fixture| {
        if fixture.kind != MemoryKind::Unified {
            return;
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        Sim::of(&fixture.driver).unwrap().take_memory(0, 6 * GIB);
        let error = pool.alloc(7 * GIB / 4, &stream).unwrap_err();
        let PoolError::LimitReached(report) = &error else { panic!("{error}") };
        assert_eq!((report.limit_bytes, report.advice()), (Some(3 * GIB / 2), Advice::NeedLess), "{error}");
        assert!(!error.to_string().contains("oversubscribe"), "{error}");
        drop(pool.alloc(GIB, &stream).unwrap());
        let beyond = fixture.builder().conf("oversubscribe:true").unwrap().build().unwrap();
        drop(beyond.alloc(7 * GIB / 4, &stream).unwrap());
    });
}

/// A system that does not say what is available leaves the driver's figure.
#[test]
fn another_device_has_the_figure_of_the_driver() {
    on_device_memory(&SimConfig::new().memory_bytes(8 * GIB), |fixture| {
        Sim::of(&fixture.driver).unwrap().take_memory(0, 7 * GIB);
        assert_eq!(fixture.device.memory_info().unwrap().free_bytes, driver_free_bytes(fixture));
        let pool = fixture.builder().hard_limit("50%free").build().unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(GIB / 2));
    });
}
