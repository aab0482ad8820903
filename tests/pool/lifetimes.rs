//! Order of destruction: blocks and their pools, streams, threads, contexts, and the process; with every backend.

mod exit;
#[cfg(unix)]
mod fork;
mod host_function;
mod lost;
mod reset;
mod threads;

use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{Device, Stream};

cases! {
    /// A stream is dropped while its blocks live and while memory freed on it waits for work that has not begun. Neither drop
    /// waits, and the next user of the memory is ordered behind the work.
    fn streams_end_before_their_work(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            if fixture.is("none") {
                // A plain free waits for the device; the driver requires it.
                return;
            }
            let next = fixture.stream();
            for round in 0..5 {
                let stream = fixture.stream();
                let gate = close(fixture, &stream);
                let (freed, kept) = (fixture.filled(20 * MIB, round, &stream), fixture.filled(MIB, round, &stream));
                drop(freed);
                drop(stream);
                assert!(gate.open(), "a drop waited for the stream");
                let taken = fixture.filled(50 * MIB, round + 100, &next);
                drop(kept);
                fixture.check(&taken, round + 100, &next);
            }
        });
    }

    /// A pool, its device and the stream are dropped before their blocks, which are dropped on another thread.
    fn pools_end_before_their_blocks(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for setting in gpumem_tests::fixtures::backends::settings(&device) {
            let fixture = PoolFixture::new(&setting.builder(&device).build().unwrap());
            let (home, other) = (fixture.stream(), fixture.stream());
            let blocks: Vec<_> = [300, 5000, MIB, 20 * MIB].map(|size| fixture.filled(size, size, &home)).into();
            other.wait_for(&home).unwrap();
            for block in &blocks {
                fixture.check(block, block.size_bytes(), &other);
                block.record_use(&other);
            }
            fixture.finish();
            drop((home, other));
            std::thread::spawn(move || drop(blocks)).join().unwrap();
        }
    }

    /// Pools are created and dropped on one device while blocks of other pools live; the memory of each pool is released with it.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn pools_leave_nothing(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let before = device.memory_info().unwrap().free_bytes;
        for setting in gpumem_tests::fixtures::backends::settings(&device) {
            for _ in 0..10 {
                let pool = setting.builder(&device).build().unwrap();
                let blocks = [100, 70_000, 3 * MIB, 40 * MIB].map(|size| pool.alloc(size, &stream).unwrap());
                drop(pool);
                drop(blocks);
            }
            device.synchronize().unwrap();
            let after = device.memory_info().unwrap().free_bytes;
            assert!(after + 32 * MIB >= before, "{setting}: {after} free, {before} before");
        }
    }

    /// Zero bytes take no memory and make no driver calls.
    fn empty_blocks(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(4 * MIB), |fixture| {
            let (home, other) = (fixture.stream(), fixture.stream());
            let blocks: Vec<_> = (0..100).map(|_| fixture.alloc(0, &home)).collect();
            for block in &blocks {
                assert_eq!((block.address(), block.size_bytes()), (0, 0));
                block.record_use(&other);
                fixture.write(block, 1, &other);
            }
            let status = fixture.pool.status().unwrap();
            assert_eq!((status.in_use_bytes, status.block_count, status.allocation_count), (0, 0, 0));
            drop(home);
            std::thread::spawn(move || drop(blocks)).join().unwrap();
        });
    }
}

fn close(fixture: &PoolFixture, stream: &Stream) -> StreamGate {
    let _bound = fixture.device.bind().unwrap();
    // SAFETY: the stream is alive, and its context current.
    unsafe { StreamGate::close(fixture.device.driver(), stream.raw()).unwrap() }
}
