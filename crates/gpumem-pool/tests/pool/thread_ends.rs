//! Threads that come and go: the memory that they had serves others, wherever their streams' last clones are dropped.

#![forbid(unsafe_code)]

use gpumem_pool::{BackendKind, Device, Pool, Stream};
use gpumem_sim::{Schedule, SimConfig};
use std::sync::mpsc::channel;

const MIB: u64 = 1 << 20;

/// The fate of a thread's stream, and of the thread, after its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clone {
    Dropped,
    Kept,
    /// The thread is parked with its stream.
    Parked,
}

/// 64 threads in turn have 20 MiB each, on a stream of their own or on their default stream, and end or stay idle. They leave as much
/// reserved as one of them needed or a few, and another stream's 200 MiB include it.
#[test]
fn memory_of_ended_and_idle_threads_serves_others() {
    let make: [fn(&Device) -> Stream; 2] =
        [|device| Stream::new(device).unwrap(), |device| Stream::per_thread(device).unwrap()];
    for (kind, make) in ["own", "default"].into_iter().zip(make) {
        for clones in [Clone::Dropped, Clone::Kept, Clone::Parked] {
            for sizes in [&[20 * MIB][..], &[4 * MIB; 5], &[100_000; 200]] {
                for seed in 0..if clones == Clone::Parked { 1 } else { 4 } {
                    // Only an idle device shows that a parked thread's default stream has no work.
                    let schedule = if clones == Clone::Parked { Schedule::Early } else { Schedule::Random };
                    let config = SimConfig::new().memory_bytes(4 << 30).schedule(schedule).seed(seed);
                    let driver = gpumem_sim::driver(config).unwrap();
                    let device = Device::new(&driver, 0).unwrap();
                    let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
                    let (mut kept, mut parked) = (Vec::new(), Vec::new());
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
                        let (at_rest, rests) = channel();
                        let (wake, is_over) = channel::<()>();
                        let thread = std::thread::spawn(move || match clones {
                            Clone::Dropped => {
                                work();
                                None
                            }
                            Clone::Kept => Some(work()),
                            Clone::Parked => {
                                let stream = work();
                                at_rest.send(()).unwrap();
                                // Until the sender is dropped.
                                let _ = is_over.recv();
                                Some(stream)
                            }
                        });
                        if clones == Clone::Parked {
                            rests.recv().unwrap();
                            parked.push((wake, thread));
                        } else {
                            kept.extend(thread.join().unwrap());
                        }
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
                    for (wake, thread) in parked {
                        drop(wake);
                        thread.join().unwrap();
                    }
                }
            }
        }
    }
}
