//! Bugs of order: memory reused too early, and unnecessary waits.

use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::fixtures::two_devices::{Link, two_devices};
use gpumem_tests::pool::{BackendKind, Block, Device, Event, MemoryKind, Pool, RecentStreams, Stream};
use gpumem_tests::sys::Driver;

cases! {
    /// rapidsai/rmm#2489: memory moved from a first stream to a second, which freed it unused, and then to a third that did not
    /// wait for the first.
    fn a_third_stream_waits_for_the_first(driver: &Driver) {
        by_way_of_a_second_stream(driver);
    }

    /// rapidsai/rmm#2251, #2394, #649: a new stream got the handle of a destroyed stream, and with it memory that the old
    /// stream's work still used.
    fn an_old_handle_is_a_new_stream(driver: &Driver) {
        through_short_lived_streams(driver);
        through_short_lived_streams_of_others(driver);
    }

    /// JuliaGPU/CUDA.jl#778, #780, #783, pytorch/pytorch#124260: memory used on a second stream was freed in the order of the
    /// first stream only.
    fn a_use_elsewhere_ends_before_the_memory_is_used_again(driver: &Driver) {
        with_uses_elsewhere(driver);
    }

    /// cupy/cupy#8068: memory freed on a stream was lost to all other streams when that stream was destroyed.
    fn a_dead_streams_memory_is_used_again(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            for round in 0..40 {
                let stream = fixture.stream();
                let block = fixture.filled(48 * MIB, round, &stream);
                fixture.check(&block, round, &stream);
            }
            assert!(fixture.reserved_bytes() <= 128 * MIB, "{}", fixture.reserved_bytes());
        });
    }

    /// RMM's tests, "allocate after the stream of a freed buffer was destroyed": the stream is destroyed while the block lives,
    /// and after it was freed.
    fn blocks_outlive_their_streams(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let (mut left, watcher): (Vec<(Block, u64)>, _) = (Vec::new(), fixture.stream());
            for key in 0..20 {
                let stream = fixture.stream();
                let (kept, freed) = (fixture.filled(MIB, key, &stream), fixture.filled(MIB, key, &stream));
                drop(freed);
                watcher.wait_for(&stream).unwrap();
                kept.record_use(&watcher);
                left.push((kept, key));
            }
            for (block, key) in left {
                fixture.check(&block, key, &watcher);
            }
        });
    }

    /// RMM's arena waited on the host for the stream of every large free. CuPy's pool cannot wait in a free; this pool must not
    /// either, whatever the stream is doing.
    fn a_free_does_not_wait(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            if fixture.is("none") {
                // A plain free waits for the device; the driver requires it.
                return;
            }
            let (home, other) = (fixture.stream(), fixture.stream());
            for size_bytes in [1000, MIB, 64 * MIB] {
                let block = fixture.filled(size_bytes, 1, &home);
                other.wait_for(&home).unwrap();
                fixture.check(&block, 1, &other);
                block.record_use(&other);
                let gates = [close(fixture, &home), close(fixture, &other)];
                drop(block);
                for gate in gates {
                    assert!(gate.open(), "the free of {size_bytes} bytes waited");
                }
            }
        });
    }

    /// rapidsai/rmm#850, #841: reuse of memory freed on another stream waited for all work queued on that stream since the free.
    fn work_behind_a_free_is_not_waited_for(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            let (first, second) = (fixture.stream(), fixture.stream());
            drop(fixture.filled(40 * MIB, 1, &first));
            second.wait_for(&first).unwrap();
            let gate = close(fixture, &first);
            let block = fixture.filled(40 * MIB, 2, &second);
            fixture.check(&block, 2, &second);
            second.synchronize().unwrap();
            assert!(gate.open(), "it waited for work that came later");
        });
    }

    /// pytorch/pytorch#147168, #139234, pytorch/torchtitan#735: memory used on another stream was returned late, so the pool grew
    /// meanwhile.
    fn memory_comes_back_when_its_uses_are_done(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let (home, other) = (fixture.stream(), fixture.stream());
            let mut reserved_bytes = None;
            for key in 0..10 {
                let block = fixture.filled(24 * MIB, key, &home);
                other.wait_for(&home).unwrap();
                fixture.check(&block, key, &other);
                block.record_use(&other);
                let now = fixture.reserved_bytes();
                assert_eq!(now, *reserved_bytes.get_or_insert(now), "round {key}");
                drop(block);
                other.synchronize().unwrap();
                home.synchronize().unwrap();
            }
        });
    }

    /// pytorch/pytorch#189504: the allocator waited for pending frees that would have fitted, and did not search again.
    fn pending_frees_are_waited_for(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
            for round in 0..30 {
                let stream = &streams[round as usize % 3];
                let block = fixture.filled(60 * MIB, round, stream);
                fixture.check(&block, round, stream);
            }
        });
    }

    /// pytorch/pytorch#171771: an allocation without memory waited for every stream, including those with long work.
    fn only_what_is_needed_is_waited_for(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            if !fixture.is("caching") {
                // With the other backends, the driver waits for the whole device.
                return;
            }
            let [first, second, bystander] = [fixture.stream(), fixture.stream(), fixture.stream()];
            let gate = close(fixture, &bystander);
            drop(fixture.filled(4 * MIB, 1, &bystander));
            drop(fixture.filled(56 * MIB, 2, &first));
            let block = fixture.filled(56 * MIB, 3, &second);
            fixture.check(&block, 3, &second);
            second.synchronize().unwrap();
            assert!(gate.open(), "it waited for a stream that had nothing to give");
        });
    }

    /// cupy/cupy#5069: per-thread default streams, which all have one handle, shared freed memory.
    fn default_streams_of_threads_are_apart(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(48 * MIB), |fixture| {
            if fixture.pool.kind() != MemoryKind::Device {
                // Pending frees are not reusable on their own stream here, and plain segments within this limit have no room for
                // them.
                return;
            }
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    scope.spawn(move || {
                        let stream = Stream::per_thread(&fixture.device).unwrap();
                        for round in 0..20 {
                            let key = thread << 32 | round;
                            // Of one size: four blocks of 9 MiB fit into two segments of 20 MiB however they come and go.
                            let block = fixture.filled(9 * MIB, key, &stream);
                            fixture.check(&block, key, &stream);
                        }
                        stream.synchronize().unwrap();
                    });
                }
            });
        });
    }

    /// rapidsai/rmm#1333, #1342, rapidsai/raft#3077: one thread with pools on two devices mixed up their events, and a
    /// destruction with the other device current crashed.
    fn two_devices_in_one_thread(driver: &Driver) {
        let Some(driver) = two_devices(driver, Link::Direct) else { return };
        let devices = [0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap());
        for backend in gpumem_tests::fixtures::backends::backends(&devices[0]) {
            let fixtures = devices.each_ref().map(|device| on(device, backend));
            let streams = fixtures.each_ref().map(|fixture| [fixture.stream(), fixture.stream()]);
            for round in 0..20 {
                let blocks = [0, 1].map(|at| fixtures[at].filled(MIB, round, &streams[at][0]));
                for (at, block) in blocks.into_iter().enumerate() {
                    let [home, other] = &streams[at];
                    let event = Event::new(&devices[at]).unwrap();
                    event.record(home).unwrap();
                    other.wait(&event).unwrap();
                    // A stream of the other device may wait for it too.
                    streams[1 - at][0].wait(&event).unwrap();
                    fixtures[at].check(&block, round, other);
                    block.record_use(other);
                    let _bound = devices[1 - at].bind().unwrap();
                    drop((block, event));
                }
            }
            fixtures.into_iter().for_each(PoolFixture::finish);
        }
    }
}

/// Runs the cases under many schedules.
#[test]
fn no_seed_breaks_the_order() {
    gpumem_tests::for_each_seed!(16, |driver: &Driver, _| {
        by_way_of_a_second_stream(driver);
        through_short_lived_streams(driver);
        with_uses_elsewhere(driver);
    });
}

fn by_way_of_a_second_stream(driver: &Driver) {
    PoolFixture::each(
        driver,
        |options| options.hard_limit(32 * MIB),
        |fixture| {
            let [first, second, third] = [fixture.stream(), fixture.stream(), fixture.stream()];
            for round in 0..4 {
                // Allocated in halves, so that a pool has memory to merge; one half stays unused.
                drop([16, 12].map(|size| fixture.filled(size * MIB, round, &first)));
                drop(fixture.alloc(28 * MIB, &second));
                let whole = fixture.filled(28 * MIB, round + 100, &third);
                fixture.check(&whole, round + 100, &third);
            }
        },
    );
}

fn through_short_lived_streams(driver: &Driver) {
    PoolFixture::each(
        driver,
        |options| options.hard_limit(16 * MIB),
        |fixture| {
            for round in 0..12 {
                let stream = fixture.stream();
                let block = fixture.filled(12 * MIB, round, &stream);
                fixture.check(&block, round, &stream);
                drop(block);
                drop(stream);
            }
        },
    );
}

/// Another library creates and destroys the streams, and each request has only the handle.
fn through_short_lived_streams_of_others(driver: &Driver) {
    PoolFixture::each(
        driver,
        |options| options.hard_limit(16 * MIB),
        |fixture| {
            let recent = RecentStreams::default();
            for round in 0..24 {
                let (_bound, mut raw) = (fixture.device.bind().unwrap(), std::ptr::null_mut());
                // SAFETY: `raw` outlives the call.
                unsafe { driver.cuStreamCreate(&mut raw, 1).unwrap() };
                for part in 0..2 {
                    // SAFETY: the stream is alive, and no call names it once it is destroyed.
                    let stream = unsafe { recent.wrap(&fixture.device, raw).unwrap() };
                    let block = fixture.filled(12 * MIB, 2 * round + part, &stream);
                    fixture.check(&block, 2 * round + part, &stream);
                }
                // SAFETY: the stream is alive, and no later call names it. Its work goes on.
                unsafe { driver.cuStreamDestroy_v2(raw).unwrap() };
            }
        },
    );
}

fn with_uses_elsewhere(driver: &Driver) {
    PoolFixture::each(
        driver,
        |options| options.hard_limit(24 * MIB),
        |fixture| {
            let [home, left, right] = [fixture.stream(), fixture.stream(), fixture.stream()];
            for round in 0..6 {
                let block = fixture.filled(16 * MIB, round, &home);
                for reader in [&left, &right] {
                    reader.wait_for(&home).unwrap();
                    fixture.check(&block, round, reader);
                    block.record_use(reader);
                }
                drop(block);
            }
        },
    );
}

fn close(fixture: &PoolFixture, stream: &Stream) -> StreamGate {
    let _bound = fixture.device.bind().unwrap();
    // SAFETY: the stream is alive, and its context current.
    unsafe { StreamGate::close(fixture.device.driver(), stream.raw()).unwrap() }
}

fn on(device: &Device, backend: BackendKind) -> PoolFixture {
    PoolFixture::new(&Pool::builder(device).backend(backend).build().unwrap())
}
