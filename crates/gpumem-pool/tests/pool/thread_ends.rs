//! Threads that come and go: the memory that they had serves others, wherever their streams' last clones are dropped.

use gpumem_pool::{BackendKind, Device, Pool, Stream};
use gpumem_sim::SimConfig;

const MIB: u64 = 1 << 20;

/// The fate of the stream when its thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clone {
    Dropped,
    Kept,
}

/// 64 threads in turn have 20 MiB each, on a stream of their own or on their default stream. They leave as much reserved as one of them
/// needed or a few, and another stream's 200 MiB include it.
#[test]
fn memory_of_ended_threads_serves_others() {
    let make: [fn(&Device) -> Stream; 2] =
        [|device| Stream::new(device).unwrap(), |device| Stream::per_thread(device).unwrap()];
    for (kind, make) in ["own", "default"].into_iter().zip(make) {
        for clones in [Clone::Dropped, Clone::Kept] {
            for sizes in [&[20 * MIB][..], &[4 * MIB; 5], &[100_000; 200]] {
                for seed in 0..4 {
                    let driver =
                        gpumem_sim::driver(SimConfig::new().memory_bytes(4 << 30).seed(seed)).unwrap();
                    let device = Device::new(&driver, 0).unwrap();
                    let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
                    let mut kept = Vec::new();
                    for _ in 0..64 {
                        let (device, pool) = (device.clone(), pool.clone());
                        let work = move || {
                            let stream = make(&device);
                            let mut blocks: Vec<_> =
                                sizes.iter().map(|size| pool.alloc(*size, &stream).unwrap()).collect();
                            blocks.iter_mut().for_each(|block| block.fill(0..64, 1_u8, &stream).unwrap());
                            drop(blocks);
                            stream
                        };
                        let stream = std::thread::spawn(move || match clones {
                            Clone::Dropped => {
                                work();
                                None
                            }
                            Clone::Kept => Some(work()),
                        });
                        kept.extend(stream.join().unwrap());
                    }
                    let what = format!("{kind} streams, {clones:?}, {} blocks, seed {seed}", sizes.len());
                    let before = pool.status().unwrap().reserved_bytes / MIB;
                    let stream = Stream::new(&device).unwrap();
                    let _block = pool.alloc(200 * MIB, &stream).unwrap();
                    let after = pool.status().unwrap().reserved_bytes / MIB;
                    // A thread may begin while the one before it still has work.
                    assert!(before <= 40, "{what}: {before} MiB reserved");
                    assert!(after <= 200 + 40, "{what}: {before} MiB reserved, {after} with 200 MiB more");
                    pool.check().unwrap();
                }
            }
        }
    }
}
