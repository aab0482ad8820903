//! The effect of profiles and tuning options on the reserved memory.

use gpumem_pool::{BackendKind, Device, Pool, Profile, Stream};
use gpumem_sim::SimConfig;
use std::sync::mpsc::channel;

fn device() -> Device {
    Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(4 << 30)).unwrap(), 0).unwrap()
}

/// Allocates blocks of changing sizes, a few of which are alive at a time.
fn run(pool: &Pool, stream: &Stream) {
    let mut held = std::collections::VecDeque::new();
    for i in 0..400_u64 {
        held.push_back(pool.alloc(((i * i * 37) % 41 + 1) << 20, stream).unwrap());
        if held.len() > 6 + (i % 7) as usize {
            held.pop_front();
        }
        pool.check().unwrap();
    }
}

#[test]
fn tighter_profiles_reserve_less() {
    let device = device();
    let mut ratios = Vec::new();
    for profile in [Profile::Tight, Profile::Balanced, Profile::Fast] {
        let pool = Pool::builder(&device).backend(BackendKind::Caching).profile(profile).build().unwrap();
        run(&pool, &Stream::new(&device).unwrap());
        let status = pool.status().unwrap();
        ratios.push(status.reserved_peak_bytes as f64 / status.in_use_peak_bytes as f64);
    }
    assert!(ratios[0] <= ratios[1] && ratios[1] <= ratios[2], "{ratios:?}");
    assert!(ratios[0] < 1.04 && ratios[2] < 1.4, "{ratios:?}");
}

#[test]
fn without_inserted_waits_streams_keep_to_themselves() {
    for (allowed, share) in [(true, 1), (false, 2)] {
        let device = device();
        let conf = format!("backend:caching,inserted_waits:{allowed},poll_budget_us:0");
        let pool = Pool::builder(&device).conf(&conf).unwrap().build().unwrap();
        let streams = [Stream::new(&device).unwrap(), Stream::new(&device).unwrap()];
        for stream in streams.iter().cycle().take(10) {
            drop(pool.alloc(64 << 20, stream).unwrap());
        }
        assert_eq!(pool.status().unwrap().reserved_bytes, share * (64 << 20), "waits allowed: {allowed}");
    }
}

/// A pool with more memory than it ever needed.
fn ahead(device: &Device, profile: Profile) -> Pool {
    let builder = Pool::builder(device).backend(BackendKind::Caching).profile(profile);
    let pool = builder.hard_limit(GIB).build().unwrap();
    pool.reserve(GIB).unwrap();
    pool
}

#[test]
fn a_thread_reuses_a_close_fit_from_memory_reserved_ahead() {
    for (profile, is_whole) in
        [(Profile::Fast, true), (Profile::Balanced, true), (Profile::Fast, false), (Profile::Balanced, false)]
    {
        let device = device();
        let builder = Pool::builder(&device).backend(BackendKind::Caching);
        let pool = builder.profile(profile).build().unwrap();
        if is_whole {
            pool.reserve(GIB).unwrap();
        }
        let stream = Stream::new(&device).unwrap();
        let (first, second) =
            (pool.alloc(40 * MIB, &stream).unwrap(), pool.alloc(60 * MIB, &stream).unwrap());
        let within = first.address()..first.address() + 40 * MIB;
        drop((first, second));
        let nearly = pool.alloc(33 * MIB, &stream).unwrap();
        assert_eq!(nearly.address(), within.start, "{profile}");
        assert_eq!(pool.status().unwrap().in_use_bytes, 33 * MIB);
        // The remainder stays with the block, or serves the next one.
        let next = pool.alloc(7 * MIB, &stream).unwrap();
        assert_eq!(within.contains(&next.address()), !is_whole, "{profile}");
        drop(nearly);
        let whole = pool.alloc(40 * MIB, &stream).unwrap();
        assert_eq!(whole.address() == within.start, is_whole, "{profile}");
        pool.check().unwrap();
    }
}

#[test]
fn memory_cached_by_a_thread_is_available_to_others() {
    let device = device();
    let pool = ahead(&device, Profile::Fast);
    let ((notify, notified), (wake, parked)) = (channel(), channel::<()>());
    let (device, pool) = (&device, &pool);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let stream = Stream::new(device).unwrap();
            let sizes = (0..30).map(|step| (2 + step % 17) * MIB);
            let blocks: Vec<_> = sizes.map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap()).collect();
            drop(blocks);
            notify.send(()).unwrap();
            let _never = parked.recv();
        });
        notified.recv().unwrap();
        let stream = Stream::new(device).unwrap();
        assert_eq!(pool.alloc(GIB, &stream).unwrap().size_bytes(), GIB);
        assert_eq!(pool.status().unwrap().reserved_peak_bytes, GIB);
        pool.check().unwrap();
        drop(wake);
    });
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
