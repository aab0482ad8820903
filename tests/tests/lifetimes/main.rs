//! Who may outlive whom: blocks and their pools, streams, threads, contexts, and the process itself; with every backend.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exit;
mod lost;
mod threads;

use gpumem_tests::bench::{Bench, MIB};
use gpumem_tests::cases;
use gpumem_tests::gate::Gate;
use gpumem_tests::pool::{Device, Stream};

cases! {
    /// A stream goes while its blocks live and while what was freed on it waits for work that has not begun. Neither
    /// waits, and whoever gets the memory comes behind the work.
    fn streams_end_before_their_work(driver: &Driver) {
        Bench::each(driver, |options| options.hard_limit(64 * MIB), |bench| {
            if bench.is("none") {
                // A plain free waits for the device: that is the driver's.
                return;
            }
            let next = bench.stream();
            for round in 0..5 {
                let stream = bench.stream();
                let gate = close(bench, &stream);
                let (freed, kept) = (bench.filled(20 * MIB, round, &stream), bench.filled(MIB, round, &stream));
                drop(freed);
                drop(stream);
                assert!(gate.open(), "a drop waited for the stream");
                let taken = bench.filled(50 * MIB, round + 100, &next);
                drop(kept);
                bench.check(&taken, round + 100, &next);
            }
        });
    }

    /// A pool, its device and the stream go before their blocks, which go on another thread.
    fn pools_end_before_their_blocks(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for setting in gpumem_tests::backends::settings(&device) {
            let bench = Bench::new(&setting.builder(&device).build().unwrap());
            let (home, other) = (bench.stream(), bench.stream());
            let blocks: Vec<_> = [300, 5000, MIB, 20 * MIB].map(|size| bench.filled(size, size, &home)).into();
            other.wait_for(&home).unwrap();
            for block in &blocks {
                bench.check(block, block.size_bytes(), &other);
                block.record_use(&other);
            }
            bench.finish();
            drop((home, other));
            std::thread::spawn(move || drop(blocks)).join().unwrap();
        }
    }

    /// Pools come and go on one device, with others' blocks alive; the memory of each is back when it is gone.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn pools_leave_nothing(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let before = device.memory_info().unwrap().free_bytes;
        for setting in gpumem_tests::backends::settings(&device) {
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

    /// Zero bytes are no memory: they cost nothing, and go nowhere.
    fn empty_blocks(driver: &Driver) {
        Bench::each(driver, |options| options.hard_limit(4 * MIB), |bench| {
            let (home, other) = (bench.stream(), bench.stream());
            let blocks: Vec<_> = (0..100).map(|_| bench.alloc(0, &home)).collect();
            for block in &blocks {
                assert_eq!((block.address(), block.size_bytes()), (0, 0));
                block.record_use(&other);
                bench.write(block, 1, &other);
            }
            let status = bench.pool.status().unwrap();
            assert_eq!((status.in_use_bytes, status.block_count, status.allocation_count), (0, 0, 0));
            drop(home);
            std::thread::spawn(move || drop(blocks)).join().unwrap();
        });
    }
}

fn close(bench: &Bench, stream: &Stream) -> Gate {
    let _bound = bench.device.bind().unwrap();
    // SAFETY: the stream is alive, and its context current.
    unsafe { Gate::close(bench.device.driver(), stream.raw()).unwrap() }
}
