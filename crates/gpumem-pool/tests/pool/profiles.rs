//! What profiles and dials change: how much is reserved beside what is in use.

use gpumem_pool::sys::{Driver, SimConfig};
use gpumem_pool::{BackendKind, Device, Dials, Pool, Profile, Stream};

fn device() -> Device {
    Device::new(&Driver::sim(SimConfig::new().memory_bytes(4 << 30)).unwrap(), 0).unwrap()
}

/// Blocks of changing sizes, a few alive at a time.
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
        let dials =
            Dials::of(Profile::Balanced).inserted_waits(allowed).poll_budget(std::time::Duration::ZERO);
        let pool = Pool::builder(&device).backend(BackendKind::Caching).dials(dials).build().unwrap();
        let streams = [Stream::new(&device).unwrap(), Stream::new(&device).unwrap()];
        for stream in streams.iter().cycle().take(10) {
            drop(pool.alloc(64 << 20, stream).unwrap());
        }
        assert_eq!(pool.status().unwrap().reserved_bytes, share * (64 << 20), "waits allowed: {allowed}");
    }
}
