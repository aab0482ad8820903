//! Threads: a pool, its streams and its blocks in use by many at once.

use crate::bench::{on_each_backend, small};
use gpumem_pool::sys::SimConfig;
use std::sync::Mutex;

#[test]
fn blocks_cross_threads() {
    on_each_backend(&small(), |bench| {
        let pool = bench.pool();
        let shelf = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let (pool, shelf) = (&pool, &shelf);
                scope.spawn(move || {
                    let stream = bench.stream();
                    for step in 0..30_u64 {
                        let block = pool.alloc(256 << (step % 6), &stream).unwrap();
                        bench.fill(&block, thread, &stream);
                        shelf.lock().unwrap().push((block, thread, stream.clone()));
                        let taken = if step % 2 == 0 { shelf.lock().unwrap().pop() } else { None };
                        if let Some((block, value, home)) = taken {
                            stream.wait_for(&home).unwrap();
                            block.record_use(&stream);
                            assert!(bench.holds(&block, value, &stream));
                        }
                    }
                });
            }
        });
        let left = shelf.into_inner().unwrap();
        let status = pool.status().unwrap();
        assert_eq!(status.allocation_count, 8 * 30);
        assert_eq!(status.block_count, left.len() as u64);
        assert_eq!(status.in_use_bytes, left.iter().map(|(block, ..)| block.size_bytes()).sum::<u64>());
        for (block, value, home) in &left {
            assert!(bench.holds(block, *value, home));
        }
        drop(left);
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
    });
}

#[test]
fn streams_and_pools_come_and_go_on_all_threads() {
    on_each_backend(&small(), |bench| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || {
                    for _ in 0..10 {
                        let (pool, one, two) = (bench.pool(), bench.stream(), bench.stream());
                        let block = pool.alloc(1 << 16, &one).unwrap();
                        two.wait_for(&one).unwrap();
                        bench.fill(&block, 3, &two);
                        block.record_use(&two);
                    }
                });
            }
        });
        bench.device.synchronize().unwrap();
        let info = bench.device.memory_info().unwrap();
        assert_eq!(info.free_bytes, info.total_bytes);
    });
}

/// One stream that many wait for at once: its fence is shared.
#[test]
fn many_threads_wait_for_one_stream() {
    on_each_backend(&small(), |bench| {
        let (pool, source) = (bench.pool(), bench.stream());
        let block = pool.alloc(4096, &source).unwrap();
        bench.fill(&block, 9, &source);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let (block, source) = (&block, &source);
                scope.spawn(move || {
                    let stream = bench.stream();
                    for _ in 0..10 {
                        stream.wait_for(source).unwrap();
                    }
                    block.record_use(&stream);
                    assert!(bench.holds(block, 9, &stream));
                });
            }
        });
    });
}

#[test]
fn large_blocks_that_a_thread_has_just_freed_are_nobody_elses_lack() {
    let memory_bytes = 64 << 20;
    on_each_backend(&SimConfig::new().memory_bytes(memory_bytes), |bench| {
        let (pool, stream) = (bench.pool(), bench.stream());
        let most_bytes = memory_bytes / 4 * 3;
        let block = pool.alloc(most_bytes, &stream).unwrap();
        std::thread::scope(|scope| scope.spawn(|| drop(block)).join().unwrap());
        // Of another size, so that it is nobody's last.
        let block = pool.alloc(most_bytes - (1 << 20), &stream).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    // Freed here again and again while the other thread has its own.
                    drop(pool.alloc(2 << 20, &bench.stream()).unwrap());
                }
            });
            drop(block);
            let other = bench.stream();
            drop(pool.alloc(most_bytes, &other).unwrap());
        });
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        pool.check().unwrap();
    });
}
