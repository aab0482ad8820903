//! Random programs that are always short of memory: no request fails that would succeed after an explicit reclaim.

use crate::fixture::{Fixture, on_each_backend};
use crate::growable;
use crate::reclaim::cramped;
use gpumem_pool::{BackendKind, Block, GrowableBlock, Pool, PoolBuilder, Profile, Stream};
use gpumem_sim::SimConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const MIB: u64 = 1 << 20;

/// It is a bug if an allocation fails that would succeed after an explicit reclaim of this pool or of any other.
#[test]
fn no_request_fails_that_a_reclaim_would_have_saved() {
    let (refusal_count, run_count) = (AtomicU32::new(0), AtomicU32::new(0));
    on_each_backend(&cramped(), |fixture| {
        let profiles = Profile::ALL.iter().map(|profile| format!("profile:{profile}"));
        // Threads cache blocks of both sizes, more than the heap may grow by.
        let keeping = "growth_slack:0,growth_slack_max:0,magazine_share:1000,magazine_bytes_min:64MiB";
        let count = if fixture.backend == BackendKind::Caching { usize::MAX } else { 1 };
        for (index, conf) in profiles.chain([keeping.into()]).take(count).enumerate() {
            let random = Random(fixture.seed << 8 | index as u64);
            let refused_count = run(fixture, fixture.builder().conf(&conf).unwrap(), random, false);
            refusal_count.fetch_add(refused_count, Ordering::Relaxed);
            run_count.fetch_add(1, Ordering::Relaxed);
        }
    });
    // The programs run short of memory repeatedly.
    assert!(refusal_count.into_inner() > 5 * run_count.into_inner());
}

/// With growth in place between allocations.
#[cfg(feature = "backend-caching")]
#[test]
fn no_growth_fails_that_a_reclaim_would_have_saved() {
    let (refusal_count, run_count) = (AtomicU32::new(0), AtomicU32::new(0));
    growable::on_caching_with(&cramped(), |fixture| {
        let refused_count = run(fixture, fixture.builder(), Random(fixture.seed), true);
        refusal_count.fetch_add(refused_count, Ordering::Relaxed);
        run_count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(refusal_count.into_inner() > 5 * run_count.into_inner());
}

/// Under a limit of the pool itself, on which other pools' memory has no effect.
#[test]
fn no_growth_fails_while_its_pool_has_cached_memory() {
    growable::on_caching(|fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(48 * MIB).build().unwrap(), fixture.stream());
        let mut growing = [(); 2].map(|()| pool.growable(60 * MIB, &stream).unwrap());
        let (mut random, mut held, mut refusal_count) = (Random(fixture.seed), Vec::new(), 0);
        for _ in 0..80 {
            match random.below(4) {
                0 => held.extend(pool.alloc(random.below(12 * MIB), &stream).ok()),
                1 if !held.is_empty() => drop(held.swap_remove(random.below(held.len() as u64) as usize)),
                index => {
                    let (block, size_bytes) = (&mut growing[index as usize % 2], random.below(40 * MIB));
                    block.shrink_to(size_bytes).unwrap();
                    if let Err(error) = block.grow_to(size_bytes) {
                        refusal_count += 1;
                        pool.reclaim().unwrap();
                        assert!(block.grow_to(size_bytes).is_err(), "refused before: {error}");
                    }
                }
            }
        }
        assert!(refusal_count > 5, "{refusal_count}");
    });
}

/// Returns the number of refused requests.
fn run(fixture: &Fixture, builder: PoolBuilder, mut random: Random, grows: bool) -> u32 {
    let parent = builder.clone().hard_limit(48 * MIB).build().unwrap();
    let pools = [
        parent.private(30 * MIB).unwrap(),
        parent.private(40 * MIB).unwrap(),
        parent,
        builder.build().unwrap(),
        Pool::new(&fixture.device).unwrap(),
    ];
    let no_waits = Stream::builder(&fixture.device).no_waits().build().unwrap();
    let streams = [fixture.stream(), fixture.stream(), no_waits];
    let (mut held, mut refusal_count): (Vec<Block>, _) = (Vec::new(), 0);
    let growing = pools.iter().filter(|pool| grows && pool.backend() == BackendKind::Caching);
    let mut growing: Vec<GrowableBlock> =
        growing.map(|pool| pool.growable(60 * MIB, &streams[0]).unwrap()).collect();
    // The other backends cannot reserve memory.
    let choices = match fixture.backend {
        _ if grows => 11,
        BackendKind::Caching => 9,
        _ => 8,
    };
    for _ in 0..120 {
        let stream = &streams[random.below(3) as usize];
        match random.below(choices) {
            0..4 => {
                let (pool, size_bytes) = (&pools[random.below(5) as usize], random.size_bytes());
                match pool.alloc(size_bytes, stream) {
                    Ok(block) => {
                        fixture.fill(&block, 1, stream);
                        held.push(block);
                    }
                    Err(error) => {
                        assert!(error.out_of_memory().is_some(), "{error}");
                        refusal_count += 1;
                        pools.iter().map(|pool| pool.reclaim().unwrap()).for_each(|_| ());
                        let again = pool.alloc(size_bytes, stream).map(|block| block.address());
                        assert!(again.is_err(), "{:?}: refused before: {error}", pool.backend());
                    }
                }
            }
            4 if !held.is_empty() => {
                let block = &held[random.below(held.len() as u64) as usize];
                block.record_use(stream);
            }
            8 => {
                let (pool, size_bytes) = (&pools[random.below(5) as usize], random.below(40) * MIB);
                if let Err(error) = pool.reserve(size_bytes) {
                    assert!(error.out_of_memory().is_some(), "{error}");
                    refusal_count += 1;
                    pools.iter().map(|pool| pool.reclaim().unwrap()).for_each(|_| ());
                    assert!(
                        pool.reserve(size_bytes).is_err(),
                        "{:?}: refused before: {error}",
                        pool.backend()
                    );
                }
            }
            9..11 => {
                let (index, size_bytes) = (random.below(growing.len() as u64), random.below(40) * MIB);
                let block = &mut growing[index as usize];
                let before_bytes = block.size_bytes();
                block.shrink_to(size_bytes).unwrap();
                if let Err(error) = block.grow_to(size_bytes) {
                    assert!(error.out_of_memory().is_some(), "{error}");
                    refusal_count += 1;
                    pools.iter().map(|pool| pool.reclaim().unwrap()).for_each(|_| ());
                    assert!(block.grow_to(size_bytes).is_err(), "refused before: {error}");
                    assert_eq!(block.size_bytes(), before_bytes);
                } else if size_bytes > 0 {
                    growable::fill(fixture, block, size_bytes - 1..size_bytes, 2, stream);
                    block.record_use(stream);
                }
            }
            5 => stream.wait_for(&streams[random.below(3) as usize]).unwrap(),
            _ if !held.is_empty() => drop(held.swap_remove(random.below(held.len() as u64) as usize)),
            _ => {}
        }
    }
    refusal_count
}

/// A growable block is never refused memory that others merely cache, whatever they do meanwhile.
#[test]
fn growth_beside_busy_threads_is_not_refused() {
    on_each_backend(&SimConfig::new().memory_bytes(1 << 30), |fixture| {
        let pool = fixture.builder().hard_limit(96 * MIB).build().unwrap();
        let stream = fixture.stream();
        let Ok(mut block) = pool.growable(64 * MIB, &stream) else { return };
        std::thread::scope(|scope| {
            // Dropped at the end of this scope, also by a panic; the threads run until then.
            let running = Arc::new(());
            for thread in 0..3 {
                let (pool, stream, running) = (&pool, fixture.stream(), Arc::downgrade(&running));
                let mut random = Random(fixture.seed << 8 | thread);
                scope.spawn(move || {
                    while running.strong_count() > 0 {
                        drop(pool.alloc(1 + random.below(8 * MIB), &stream).unwrap());
                    }
                });
            }
            for _ in 0..20 {
                block.grow_to(40 * MIB).unwrap();
                block.shrink_to(MIB).unwrap();
            }
        });
        pool.check().unwrap();
    });
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % count
    }

    fn size_bytes(&mut self) -> u64 {
        let least_bytes = 1 << (8 + self.below(18));
        least_bytes + self.below(least_bytes)
    }
}
