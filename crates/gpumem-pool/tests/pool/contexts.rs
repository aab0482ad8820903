//! The current context of the calling thread: any or none, and unchanged by every call.

use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::sys::Driver;
use gpumem_pool::sys::types::CUcontext;
use gpumem_pool::{Device, Event, Stream};

/// Calls every function of this crate's public interface.
fn every_entry(fixture: &Fixture) {
    let device = Device::new(&fixture.driver, 0).unwrap();
    device.memory_info().unwrap();
    let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let (start, end) = (Event::with_timing(&device).unwrap(), Event::with_timing(&device).unwrap());
    start.record(&home).unwrap();
    let pool = fixture.builder().hard_limit(64 << 20).build().unwrap();
    let block = pool.alloc(4096, &home).unwrap();
    other.wait_for(&home).unwrap();
    other.wait(&start).unwrap();
    block.record_use(&other);
    end.record(&other).unwrap();
    home.is_complete().unwrap();
    end.is_complete().unwrap();
    drop(block);
    home.synchronize().unwrap();
    end.synchronize().unwrap();
    end.elapsed_ms_since(&start).unwrap();
    pool.status().unwrap();
    pool.trim_to(0).unwrap();
    pool.reclaim().unwrap();
    device.synchronize().unwrap();
    drop((pool, home, other, start, end, device));
}

#[test]
fn a_thread_without_a_context_stays_without() {
    on_each_backend(&small(), |fixture| {
        assert!(current(&fixture.driver).is_null());
        every_entry(fixture);
        assert!(current(&fixture.driver).is_null());
    });
}

#[test]
fn another_context_stays_current() {
    on_each_backend(&small().devices(2), |fixture| {
        let other = Device::new(&fixture.driver, 1).unwrap();
        let bound = other.bind().unwrap();
        every_entry(fixture);
        assert_eq!(current(&fixture.driver), other.context());
        drop(bound);
        assert!(current(&fixture.driver).is_null());
    });
}

#[test]
fn the_own_context_stays_current() {
    on_each_backend(&small(), |fixture| {
        let _bound = fixture.device.bind().unwrap();
        every_entry(fixture);
        assert_eq!(current(&fixture.driver), fixture.device.context());
    });
}

#[test]
fn guards_nest() {
    on_each_backend(&small().devices(2), |fixture| {
        let second = Device::new(&fixture.driver, 1).unwrap();
        let outer = fixture.device.bind().unwrap();
        let same = fixture.device.bind().unwrap();
        let inner = second.bind().unwrap();
        assert_eq!(current(&fixture.driver), second.context());
        drop(inner);
        assert_eq!(current(&fixture.driver), fixture.device.context());
        drop(same);
        assert_eq!(current(&fixture.driver), fixture.device.context());
        drop(outer);
        assert!(current(&fixture.driver).is_null());
    });
}

/// The last handle of everything may be dropped on a thread without a context, or with another one.
#[test]
fn drops_on_other_threads_leave_their_context_alone() {
    on_each_backend(&small().devices(2), |fixture| {
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        for with_another in [false, true] {
            let block = pool.alloc(4096, &home).unwrap();
            block.record_use(&other);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let second = Device::new(&fixture.driver, 1).unwrap();
                    let bound = with_another.then(|| second.bind().unwrap());
                    let before = current(&fixture.driver);
                    drop(block);
                    assert_eq!(current(&fixture.driver), before);
                    drop(bound);
                });
            });
        }
        assert_eq!(pool.status().unwrap().block_count, 0);
    });
}

fn current(driver: &Driver) -> CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` outlives the call.
    unsafe { driver.cuCtxGetCurrent(&mut context).unwrap() };
    context
}
