//! Hard limits that are raised and lowered, on both drivers: the pool never holds more than the limit, and refuses no request
//! that fits.

use gpumem_sim::{Schedule, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::driver::memory_counter::MemoryCounter;
use gpumem_tests::fixtures::backends::{backends, settings};
use gpumem_tests::pool::{BackendKind, Block, Device, MemoryKind, Pool, PoolError, Stream};
use proptest::prelude::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// The growth step of the driver's pool, by which it may exceed a limit.
const PIECE_BYTES: u64 = 32 * MIB;

/// A pool whose limit changes, and the expected state.
struct Subject {
    pool: Pool,
    streams: [Stream; 2],
    blocks: Vec<Block>,
    limit_bytes: u64,
    highest_bytes: u64,
}

#[derive(Clone, Debug)]
enum Step {
    /// Allocates a number of MiB, on one of the streams.
    Alloc(u64, usize),
    /// The allocation with this index, if it exists.
    Free(usize),
    SetLimit(u64),
    Synchronize(usize),
    TrimTo(u64),
}

impl Subject {
    fn new(device: &Device, backend: BackendKind, limit_bytes: u64) -> Self {
        // The limit of `native` cannot be raised above this one.
        let highest_bytes = 320 * MIB;
        let pool = Pool::builder(device).backend(backend).hard_limit(highest_bytes).build().unwrap();
        pool.set_hard_limit(limit_bytes).unwrap();
        Self {
            pool,
            streams: [(); 2].map(|()| Stream::new(device).unwrap()),
            blocks: Vec::new(),
            limit_bytes,
            highest_bytes,
        }
    }

    fn in_use_bytes(&self) -> u64 {
        self.blocks.iter().map(Block::size_bytes).sum()
    }

    /// True if an allocation was refused.
    fn take(&mut self, step: &Step) -> Result<bool, PoolError> {
        match *step {
            Step::Alloc(size_mib, stream) => match self.pool.alloc(size_mib * MIB, &self.streams[stream]) {
                Ok(block) => self.blocks.push(block),
                Err(PoolError::LimitReached(_)) => return Ok(true),
                Err(other) => return Err(other),
            },
            Step::Free(index) => {
                if index < self.blocks.len() {
                    drop(self.blocks.swap_remove(index));
                }
            }
            Step::SetLimit(limit_mib) => {
                self.limit_bytes = limit_mib * MIB;
                self.pool.set_hard_limit(self.limit_bytes)?;
            }
            Step::Synchronize(stream) => self.streams[stream].synchronize()?,
            Step::TrimTo(keep_mib) => drop(self.pool.trim_to(keep_mib * MIB)?),
        }
        Ok(false)
    }

    fn check(&self) {
        let status = self.pool.status().unwrap();
        assert_eq!(
            (status.in_use_bytes, status.hard_limit_bytes),
            (self.in_use_bytes(), Some(self.limit_bytes))
        );
        assert!(status.reserved_bytes <= most_reserved_bytes(&self.pool, self.highest_bytes), "{status}");
        assert!(status.reserved_bytes >= status.in_use_bytes, "{status}");
        assert!(status.reserved_peak_bytes >= status.reserved_bytes, "{status}");
    }
}

/// The memory that a pool may hold if its limit was never higher.
fn most_reserved_bytes(pool: &Pool, highest_bytes: u64) -> u64 {
    match pool.backend() {
        BackendKind::Native => highest_bytes.next_multiple_of(PIECE_BYTES) + PIECE_BYTES,
        _ => highest_bytes,
    }
}

/// Blocks of one size fit into any hole, so a request is refused if and only if it does not fit below the limit.
fn run_with_one_size(device: &Device, backend: BackendKind, size_mib: u64, steps: &[Step]) {
    let mut subject = Subject::new(device, backend, PIECE_BYTES);
    for step in steps {
        let step = match step {
            Step::Alloc(_, stream) => Step::Alloc(size_mib, *stream),
            other => other.clone(),
        };
        let fits = subject.in_use_bytes() + size_mib * MIB <= subject.limit_bytes;
        let is_refused = subject.take(&step).unwrap();
        assert!(
            !matches!(step, Step::Alloc(..)) || is_refused != fits,
            "{step:?}: refused {is_refused}, fits {fits}"
        );
        subject.check();
    }
    subject.blocks.clear();
    subject.pool.reclaim().unwrap();
    assert_eq!(subject.pool.status().unwrap().reserved_bytes, 0);
}

/// The steps of a program, determined by the seed.
fn steps(seed: u64, count: u64) -> Vec<Step> {
    let draw = |index: u64| (seed << 32 | index).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) >> 7;
    let step = |index| {
        let (what, value) = (draw(2 * index) % 16, draw(2 * index + 1));
        match what {
            0 => Step::SetLimit(32 << (value % 3)),
            1 => Step::Synchronize(value as usize % 2),
            2..=6 => Step::Free(value as usize % 16),
            _ => Step::Alloc(8, value as usize % 2),
        }
    };
    (0..count).map(step).collect()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..100_u64, 0..2_usize).prop_map(|(size, stream)| Step::Alloc(size, stream)),
        6 => (0..40_usize).prop_map(Step::Free),
        2 => (2..300_u64).prop_map(Step::SetLimit),
        1 => (0..2_usize).prop_map(Step::Synchronize),
        1 => (0..200_u64).prop_map(Step::TrimTo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_refusal_where_there_is_room(
        seed in 0..1000_u64,
        is_late in any::<bool>(),
        size_mib in prop_oneof![Just(1), Just(4), Just(16), Just(32)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let device = device(seed, is_late);
        for backend in backends(&device).into_iter().filter(|backend| *backend != BackendKind::Caching) {
            run_with_one_size(&device, backend, size_mib, &steps);
        }
    }

    /// Blocks of all sizes: fragmentation may refuse requests, but the limit is never exceeded.
    #[test]
    fn never_a_byte_above(
        seed in 0..1000_u64,
        is_late in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let device = device(seed, is_late);
        for backend in backends(&device) {
            // With a lowered limit, its reserved bytes exceed the limit for a while; the model test covers this.
            if backend == BackendKind::Caching {
                continue;
            }
            let mut subject = Subject::new(&device, backend, 40 * MIB);
            for step in &steps {
                let before_bytes = subject.in_use_bytes();
                subject.take(step).unwrap();
                subject.check();
                prop_assert!(subject.in_use_bytes() <= subject.limit_bytes.max(before_bytes));
            }
        }
    }
}

/// The work of one thread; returns the number of refused requests.
fn wants_too_much(pool: &Pool, stream: &Stream, thread: u64, limit_bytes: u64) -> u64 {
    let (mut held, mut refused_count) = (Vec::new(), 0);
    for step in 0..40 {
        match pool.alloc((1 + (thread * 7 + step * 13) % 5) * MIB, stream) {
            Ok(block) => held.push(block),
            Err(PoolError::LimitReached(report)) => {
                assert!(report.in_use_bytes <= limit_bytes, "{report}");
                refused_count += 1;
                held.clear();
            }
            Err(other) => panic!("{other}"),
        }
        if step % 3 == 0 {
            held.pop();
        }
    }
    refused_count
}

fn device(seed: u64, is_late: bool) -> Device {
    let config = SimConfig::new().memory_bytes(1 << 30).seed(seed);
    let config = if is_late { config.schedule(Schedule::Late) } else { config };
    Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap()
}

cases! {
    /// A raised limit can be used fully: for one large block, and for many blocks with small ones between them.
    fn a_limit_is_raised(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for backend in backends(&device).into_iter().filter(|backend| *backend != BackendKind::Native) {
            let pool = Pool::builder(&device).backend(backend).hard_limit(64 * MIB).build().unwrap();
            let weights: Vec<_> = (0..8).map(|_| pool.alloc(8 * MIB, &stream).unwrap()).collect();
            assert!(matches!(pool.alloc(1, &stream), Err(PoolError::LimitReached(_))));
            pool.set_hard_limit(256 * MIB).unwrap();
            let large = pool.alloc(190 * MIB, &stream).unwrap();
            assert!(matches!(pool.alloc(3 * MIB, &stream), Err(PoolError::LimitReached(_))), "{backend}");
            drop(large);
            let many: Vec<_> = (0..24).map(|_| pool.alloc(8 * MIB, &stream).unwrap()).collect();
            assert!(matches!(pool.alloc(1, &stream), Err(PoolError::LimitReached(_))), "{backend}");
            assert!(pool.status().unwrap().reserved_bytes <= most_reserved_bytes(&pool, 256 * MIB));
            // The remainder of the first block is not an obstacle.
            let mut weights = weights;
            weights.truncate(1);
            drop(many);
            drop(pool.alloc(224 * MIB, &stream).unwrap());
            drop(weights);
            pool.reclaim().unwrap();
            drop(pool.alloc(256 * MIB, &stream).unwrap());
            pool.reclaim().unwrap();
            let status = pool.status().unwrap();
            assert_eq!((status.reserved_bytes, status.in_use_bytes), (0, 0), "{backend}");
            assert!(status.reserved_peak_bytes <= most_reserved_bytes(&pool, 256 * MIB), "{status}");
        }
    }

    /// The limit is raised and lowered at random, on two streams.
    fn limits_go_up_and_down(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device).into_iter().filter(|backend| *backend != BackendKind::Caching) {
            for seed in 0..3 {
                run_with_one_size(&device, backend, 8, &steps(seed, 400));
            }
        }
    }

    /// Sixteen threads that request three times the limit, with every kind of memory: the memory allocated by the driver never
    /// exceeds the limit, and equals the pool's reserved bytes.
    fn sixteen_threads_never_pass_the_limit(driver: &Driver) {
        const LIMIT_BYTES: u64 = 16 * MIB;
        for setting in settings(&Device::new(driver, 0).unwrap()) {
            let counted = MemoryCounter::new(driver);
            let device = Device::new(&counted.driver, 0).unwrap();
            let pool = setting.builder(&device).hard_limit(LIMIT_BYTES).build().unwrap();
            let refused_count = std::thread::scope(|scope| {
                let start = |thread| scope.spawn({
                    let (pool, stream) = (&pool, Stream::new(&device).unwrap());
                    move || wants_too_much(pool, &stream, thread, LIMIT_BYTES)
                });
                let threads: Vec<_> = (0..16).map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
            });
            assert!(refused_count > 0, "{setting}: the limit was never met: this shows nothing");
            let (status, peak_bytes) = (pool.status().unwrap(), counted.peak_bytes(setting.kind));
            assert!(LIMIT_BYTES / 2 < peak_bytes && peak_bytes <= LIMIT_BYTES, "{setting}: {peak_bytes} at once");
            let told_bytes = match setting.backend {
                BackendKind::Caching => status.reserved_peak_bytes,
                // The driver's pool reserves more than it hands out.
                _ => status.in_use_peak_bytes,
            };
            assert!(told_bytes <= LIMIT_BYTES, "{setting}: {status}");
            // The other backends count a block as in use after the driver has allocated it; another block may have been freed in
            // between.
            let is_exact = setting.backend == BackendKind::Caching;
            assert!(!is_exact || peak_bytes <= told_bytes, "{setting}: {peak_bytes}, {status}");
            assert_eq!((status.in_use_bytes, status.block_count), (0, 0), "{setting}");
            drop(pool);
            device.synchronize().unwrap();
            assert_eq!(counted.held_bytes(setting.kind), 0, "{setting}");
        }
    }

    /// Threads allocate while the limit changes, and a wrapped driver table counts the memory.
    fn threads_allocate_while_the_limit_goes_up_and_down(driver: &Driver) {
        const LIMITS_MIB: [u64; 8] = [32, 96, 32, 128, 64, 192, 96, 256];
        let counted = MemoryCounter::new(driver);
        let device = Device::new(&counted.driver, 0).unwrap();
        for backend in backends(&device).into_iter().filter(|backend| *backend != BackendKind::Native) {
            let pool = Pool::builder(&device).backend(backend).hard_limit(LIMITS_MIB[0] * MIB).build().unwrap();
            let start_bytes = counted.held_bytes(MemoryKind::Device);
            std::thread::scope(|scope| {
                // Dropped at the end of this scope, also by a panic; the threads run until then.
                let running = Arc::new(());
                for thread in 0..6_usize {
                    let (pool, running, device) = (&pool, Arc::downgrade(&running), &device);
                    scope.spawn(move || {
                        let (stream, mut held, mut step) = (Stream::new(device).unwrap(), Vec::new(), thread);
                        while running.strong_count() > 0 {
                            step += 1;
                            match pool.alloc((1 + step as u64 * 7 % 9) * MIB, &stream) {
                                Ok(block) => held.push(block),
                                Err(PoolError::LimitReached(_)) => held.clear(),
                                Err(other) => panic!("{other}"),
                            }
                            if step % 3 == 0 {
                                held.pop();
                            }
                        }
                    });
                }
                let mut highest_bytes = 0;
                for limit_mib in LIMITS_MIB {
                    highest_bytes = highest_bytes.max(limit_mib * MIB);
                    pool.set_hard_limit(limit_mib * MIB).unwrap();
                    for _ in 0..20 {
                        std::thread::sleep(std::time::Duration::from_micros(200));
                        let held_bytes = counted.held_bytes(MemoryKind::Device) - start_bytes;
                        assert!(held_bytes <= highest_bytes, "{backend}: {held_bytes} of {highest_bytes}");
                        let reserved_bytes = pool.status().unwrap().reserved_bytes;
                        assert!(reserved_bytes <= most_reserved_bytes(&pool, highest_bytes), "{backend}");
                    }
                }
            });
            // All memory is available again.
            pool.reclaim().unwrap();
            let stream = Stream::new(&device).unwrap();
            let all: Vec<_> = (0..32).map(|_| pool.alloc(8 * MIB, &stream).unwrap()).collect();
            assert!(matches!(pool.alloc(1, &stream), Err(PoolError::LimitReached(_))), "{backend}");
            drop(all);
        }
    }
}
