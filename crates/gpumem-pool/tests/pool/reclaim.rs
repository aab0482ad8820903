//! Making room: those who registered, other pools, and that no request fails which a reclaim by hand would have saved.

use crate::bench::{self, Bench, built_backends};
use crate::growable;
use gpumem_pool::sys::{Driver, SimConfig};
use gpumem_pool::{
    BackendKind, Block, Device, Dials, GrowableBlock, MemoryKind, Pool, PoolBuilder, PoolError, Profile,
    Reclaimable, Stream,
};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn cramped() -> SimConfig {
    SimConfig::new().memory_bytes(64 * MIB)
}

/// Of memory that the device can run out of.
fn on_each_backend(config: &SimConfig, body: impl Fn(&Bench)) {
    bench::on_each_backend(config, |bench| {
        if bench.kind == MemoryKind::Device {
            body(bench);
        }
    });
}

type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// What a program keeps for later.
#[derive(Default)]
struct Shelf {
    cheap: Mutex<Vec<Block>>,
    dear: Mutex<Vec<Block>>,
    calls: Mutex<Vec<&'static str>>,
}

impl Reclaimable for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }

    fn purge(&self) -> Done {
        self.calls.lock().unwrap().push("purge");
        self.cheap.lock().unwrap().clear();
        Ok(())
    }

    fn release(&self) -> Done {
        self.calls.lock().unwrap().push("release");
        self.dear.lock().unwrap().clear();
        Ok(())
    }
}

#[test]
fn those_who_registered_make_room_as_far_as_it_takes() {
    on_each_backend(&cramped(), |bench| {
        let (pool, stream, shelf) = (bench.pool(), bench.stream(), Arc::new(Shelf::default()));
        let registration = bench.device.register_reclaimable(&shelf);
        let stock = || {
            *shelf.cheap.lock().unwrap() = vec![pool.alloc(20 * MIB, &stream).unwrap()];
            *shelf.dear.lock().unwrap() = vec![pool.alloc(20 * MIB, &stream).unwrap()];
            shelf.calls.lock().unwrap().clear();
        };
        stock();
        drop(pool.alloc(8 * MIB, &stream).unwrap());
        assert!(shelf.calls.lock().unwrap().is_empty());
        drop(pool.alloc(26 * MIB, &stream).unwrap());
        assert_eq!(*shelf.calls.lock().unwrap(), ["purge"]);
        assert_eq!(shelf.dear.lock().unwrap().len(), 1);
        stock();
        drop(pool.alloc(50 * MIB, &stream).unwrap());
        assert_eq!(*shelf.calls.lock().unwrap(), ["purge", "release"]);
        stock();
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        stock();
        drop(registration);
        assert!(pool.alloc(50 * MIB, &stream).is_err());
        assert!(shelf.calls.lock().unwrap().is_empty());
        drop((std::mem::take(&mut *shelf.cheap.lock().unwrap()), shelf.dear.lock().unwrap().pop()));
    });
}

/// One that fails in some way, and one that works.
struct Broken(&'static str);

impl Reclaimable for Broken {
    fn name(&self) -> &str {
        assert!(self.0 != "name", "no name");
        self.0
    }

    fn purge(&self) -> Done {
        match self.0 {
            "error" => Err("it is busy".into()),
            "worse" => std::panic::panic_any(Worse),
            _ => panic!("it broke"),
        }
    }
}

/// What panics again.
struct Worse;

impl Drop for Worse {
    fn drop(&mut self) {
        panic!("again");
    }
}

#[test]
fn whoever_fails_keeps_nobody_from_making_room() {
    on_each_backend(&cramped(), |bench| {
        let (pool, stream, shelf) = (bench.pool(), bench.stream(), Arc::new(Shelf::default()));
        let broken = ["error", "panic", "name", "worse"].map(|how| Arc::new(Broken(how)));
        let registrations = broken.each_ref().map(|one| bench.device.register_reclaimable(one));
        let last = bench.device.register_reclaimable(&shelf);
        shelf.cheap.lock().unwrap().push(pool.alloc(40 * MIB, &stream).unwrap());
        let block = pool.alloc(40 * MIB, &stream).unwrap();
        let report = pool.alloc(40 * MIB, &stream).unwrap_err().to_string();
        for failed in [
            "error: it is busy",
            "panic panicked: it broke",
            "one that has no name panicked",
            "worse panicked: nothing was said",
        ] {
            assert!(report.contains(failed), "{report}");
        }
        drop((block, registrations, last));
    });
}

/// What the pool's own ladder brought before others were asked is not forgotten when that was not enough either.
#[test]
fn a_report_has_all_that_was_tried() {
    on_each_backend(&cramped(), |bench| {
        let (pool, stream, other) = (bench.pool(), bench.stream(), bench.stream());
        let broken = Arc::new(Broken("error"));
        let registration = bench.device.register_reclaimable(&broken);
        let held = pool.alloc(30 * MIB, &stream).unwrap();
        let freed = pool.alloc(20 * MIB, &other).unwrap();
        bench.fill(&freed, 1, &other);
        drop(freed);
        let error = pool.alloc(40 * MIB, &stream).unwrap_err();
        let attempts = &error.out_of_memory().unwrap().attempts;
        let gained_bytes: u64 = attempts.iter().map(|attempt| attempt.gained_bytes).sum();
        assert!(gained_bytes >= 20 * MIB || bench.backend != BackendKind::Caching, "{error}");
        let mut names: Vec<_> = attempts.iter().map(|attempt| attempt.name).collect();
        assert_eq!(*names.last().unwrap(), "ask holders to release", "{error}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), attempts.len(), "{error}");
        drop((held, registration));
    });
}

/// One that is at the pool itself when it is asked.
struct Busy {
    pool: Mutex<Option<(Pool, Stream)>>,
    held: Mutex<Option<Block>>,
    calls: AtomicU32,
}

impl Reclaimable for Busy {
    fn purge(&self) -> Done {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let pool = self.pool.lock().unwrap();
        let Some((pool, stream)) = &*pool else { return Ok(()) };
        assert!(pool.alloc(60 * MIB, stream).is_err());
        *self.held.lock().unwrap() = None;
        drop(pool.alloc(MIB, stream)?);
        pool.reclaim()?;
        pool.check()?;
        Ok(())
    }
}

#[test]
fn whoever_is_asked_may_use_the_pool() {
    on_each_backend(&cramped(), |bench| {
        let (pool, stream) = (bench.pool(), bench.stream());
        let busy = Arc::new(Busy {
            pool: Mutex::new(Some((pool.clone(), stream.clone()))),
            held: Mutex::new(Some(pool.alloc(40 * MIB, &stream).unwrap())),
            calls: AtomicU32::new(0),
        });
        let registration = bench.device.register_reclaimable(&busy);
        drop(pool.alloc(40 * MIB, &stream).unwrap());
        assert_eq!(busy.calls.load(Ordering::Relaxed), 1);
        *busy.pool.lock().unwrap() = None;
        drop(registration);
    });
}

#[test]
fn a_holder_that_is_gone_is_not_asked() {
    let device = Device::new(&Driver::sim(cramped()).unwrap(), 0).unwrap();
    let shelf = Arc::new(Shelf::default());
    let registration = device.register_reclaimable(&shelf);
    drop(shelf);
    let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
    let block = pool.alloc(40 * MIB, &stream).unwrap();
    let report = pool.alloc(40 * MIB, &stream).unwrap_err().to_string();
    assert!(!report.contains("purge"), "{report}");
    drop((block, registration));
}

/// What one pool keeps without using it is another's on a full device.
#[test]
fn pools_of_a_device_make_room_for_each_other() {
    on_each_backend(&cramped(), |bench| {
        for backend in built_backends() {
            let (pool, stream) = (bench.pool(), bench.stream());
            let other = Pool::builder(&bench.device).backend(backend).build().unwrap();
            drop([other.alloc(20 * MIB, &stream).unwrap(), other.alloc(20 * MIB, &stream).unwrap()]);
            drop(pool.alloc(50 * MIB, &stream).unwrap());
            drop(other.alloc(50 * MIB, &stream).unwrap());
        }
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

/// It is a bug if an allocation fails that would have succeeded after a manual reclaim, of this pool or of any other.
#[test]
fn no_request_fails_that_a_reclaim_would_have_saved() {
    let (refusal_count, run_count) = (AtomicU32::new(0), AtomicU32::new(0));
    bench::on_each_backend(&cramped(), |bench| {
        let profiles = [Profile::Fast, Profile::Balanced, Profile::Tight];
        let count = if bench.backend == BackendKind::Caching { 3 } else { 1 };
        for (index, profile) in profiles.into_iter().take(count).enumerate() {
            let random = Random(bench.seed << 8 | index as u64);
            let refused_count = run(bench, bench.builder().profile(profile), random, false);
            refusal_count.fetch_add(refused_count, Ordering::Relaxed);
            run_count.fetch_add(1, Ordering::Relaxed);
        }
    });
    // The programs are such that memory is short again and again.
    assert!(refusal_count.into_inner() > 5 * run_count.into_inner());
}

/// The same of growth in place, between allocations.
#[cfg(feature = "backend-caching")]
#[test]
fn no_growth_fails_that_a_reclaim_would_have_saved() {
    let (refusal_count, run_count) = (AtomicU32::new(0), AtomicU32::new(0));
    growable::on_caching_with(&cramped(), |bench| {
        let refused_count = run(bench, bench.builder(), Random(bench.seed), true);
        refusal_count.fetch_add(refused_count, Ordering::Relaxed);
        run_count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(refusal_count.into_inner() > 5 * run_count.into_inner());
}

/// Under a limit of the pool's own, which other pools' memory has no part in.
#[test]
fn no_growth_fails_for_what_its_pool_has_cached() {
    growable::on_caching(|bench| {
        let (pool, stream) = (bench.builder().hard_limit(48 * MIB).build().unwrap(), bench.stream());
        let mut growing = [(); 2].map(|()| pool.growable(60 * MIB, &stream).unwrap());
        let (mut random, mut held, mut refusal_count) = (Random(bench.seed), Vec::new(), 0);
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

/// Returns how often a request was refused.
fn run(bench: &Bench, builder: PoolBuilder, mut random: Random, grows: bool) -> u32 {
    let parent = builder.clone().hard_limit(48 * MIB).build().unwrap();
    let pools = [
        parent.private(30 * MIB).unwrap(),
        parent.private(40 * MIB).unwrap(),
        parent,
        builder.build().unwrap(),
        Pool::new(&bench.device).unwrap(),
    ];
    let no_waits = Stream::builder(&bench.device).no_waits().build().unwrap();
    let streams = [bench.stream(), bench.stream(), no_waits];
    let (mut held, mut refusal_count): (Vec<Block>, _) = (Vec::new(), 0);
    let growing = pools.iter().filter(|pool| grows && pool.backend() == BackendKind::Caching);
    let mut growing: Vec<GrowableBlock> =
        growing.map(|pool| pool.growable(60 * MIB, &streams[0]).unwrap()).collect();
    for _ in 0..120 {
        let stream = &streams[random.below(3) as usize];
        match random.below(if grows { 10 } else { 8 }) {
            0..4 => {
                let (pool, size_bytes) = (&pools[random.below(5) as usize], random.size_bytes());
                match pool.alloc(size_bytes, stream) {
                    Ok(block) => {
                        bench.fill(&block, 1, stream);
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
            8..10 => {
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
                    growable::fill(bench, block, size_bytes - 1..size_bytes, 2, stream);
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

/// A block that grows is never refused what others have only cached, whatever they do meanwhile.
#[test]
fn growth_beside_busy_threads_is_not_refused() {
    bench::on_each_backend(&SimConfig::new().memory_bytes(1 << 30), |bench| {
        let pool = bench.builder().hard_limit(96 * MIB).build().unwrap();
        let stream = bench.stream();
        let Ok(mut block) = pool.growable(64 * MIB, &stream) else { return };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (pool, stream, is_over) = (&pool, bench.stream(), &is_over);
                let mut random = Random(bench.seed << 8 | thread);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(pool.alloc(1 + random.below(8 * MIB), &stream).unwrap());
                    }
                });
            }
            for _ in 0..20 {
                let grown = block.grow_to(40 * MIB);
                is_over.store(grown.is_err(), Ordering::Relaxed);
                grown.unwrap();
                block.shrink_to(MIB).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        pool.check().unwrap();
    });
}

#[test]
fn errors_of_others_are_not_asked_about() {
    let device = Device::new(&Driver::sim(cramped()).unwrap(), 0).unwrap();
    let shelf = Arc::new(Shelf::default());
    let _registration = device.register_reclaimable(&shelf);
    let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
    assert!(matches!(pool.alloc(u64::MAX, &stream), Err(PoolError::TooLarge { .. })));
    assert!(shelf.calls.lock().unwrap().is_empty());
}

/// As long as it takes until allocations may have something done again.
fn wait_a_little() {
    std::thread::sleep(Duration::from_millis(3));
}

#[test]
fn what_is_over_the_soft_limit_goes_back_while_the_program_allocates() {
    on_each_backend(&SimConfig::new().memory_bytes(1024 * MIB), |bench| {
        if bench.backend != BackendKind::Caching {
            return;
        }
        for (budget, is_served) in [(Duration::from_secs(1), true), (Duration::ZERO, false)] {
            let dials = Dials::default().release_budget(budget);
            let pool = bench.builder().dials(dials).soft_limit(64 * MIB).build().unwrap();
            let stream = bench.stream();
            let blocks: Vec<Block> = (0..20).map(|_| pool.alloc(20 * MIB, &stream).unwrap()).collect();
            drop(blocks);
            let mut held = Vec::new();
            for _ in 0..20 {
                wait_a_little();
                // Small blocks take over what large ones left: the long way, every other time.
                held.push(pool.alloc(MIB, &stream).unwrap());
            }
            let reserved_bytes = pool.status().unwrap().reserved_bytes;
            assert_eq!(reserved_bytes < 100 * MIB, is_served, "{reserved_bytes} bytes");
            drop(held);
        }
    });
}

#[test]
fn a_pool_that_is_idle_keeps_nothing() {
    on_each_backend(&cramped(), |bench| {
        let idle = || bench.builder().trim_when_idle(Duration::from_millis(30)).build().unwrap();
        let (pool, stream) = (idle(), bench.stream());
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        let keeps = pool.backend() != BackendKind::None;
        let reserved = |pool: &Pool| pool.status().unwrap().reserved_bytes > 0;
        stream.synchronize().unwrap();
        assert_eq!(reserved(&pool), keeps);
        std::thread::sleep(Duration::from_millis(40));
        stream.synchronize().unwrap();
        assert!(!reserved(&pool));

        // Another pool's allocation says so too.
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        stream.synchronize().unwrap();
        std::thread::sleep(Duration::from_millis(40));
        drop(bench.pool().alloc(20 * MIB, &stream).unwrap());
        assert!(!reserved(&pool));
    });
}
