//! A pool, its streams and its blocks used by many threads at once.

use crate::fixture::{on_each_backend, small};
use gpumem_pool::{BackendKind, Block};
use gpumem_sim::SimConfig;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

#[test]
fn blocks_cross_threads() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.pool();
        let shelf = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let (pool, shelf) = (&pool, &shelf);
                scope.spawn(move || {
                    let stream = fixture.stream();
                    for step in 0..30_u64 {
                        let block = pool.alloc(256 << (step % 6), &stream).unwrap();
                        fixture.fill(&block, thread, &stream);
                        shelf.lock().unwrap().push((block, thread, stream.clone()));
                        let taken = if step % 2 == 0 { shelf.lock().unwrap().pop() } else { None };
                        if let Some((block, value, home)) = taken {
                            stream.wait_for(&home).unwrap();
                            block.record_use(&stream);
                            assert!(fixture.holds(&block, value, &stream));
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
            assert!(fixture.holds(block, *value, home));
        }
        drop(left);
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
    });
}

#[test]
fn streams_and_pools_come_and_go_on_all_threads() {
    on_each_backend(&small(), |fixture| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || {
                    for _ in 0..10 {
                        let (pool, one, two) = (fixture.pool(), fixture.stream(), fixture.stream());
                        let block = pool.alloc(1 << 16, &one).unwrap();
                        two.wait_for(&one).unwrap();
                        fixture.fill(&block, 3, &two);
                        block.record_use(&two);
                    }
                });
            }
        });
        fixture.device.synchronize().unwrap();
        let info = fixture.device.memory_info().unwrap();
        assert_eq!(info.free_bytes, info.total_bytes);
    });
}

/// Many streams wait for one stream: its fence is shared.
#[test]
fn many_threads_wait_for_one_stream() {
    on_each_backend(&small(), |fixture| {
        let (pool, source) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(4096, &source).unwrap();
        fixture.fill(&block, 9, &source);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let (block, source) = (&block, &source);
                scope.spawn(move || {
                    let stream = fixture.stream();
                    for _ in 0..10 {
                        stream.wait_for(source).unwrap();
                    }
                    block.record_use(&stream);
                    assert!(fixture.holds(block, 9, &stream));
                });
            }
        });
    });
}

#[test]
fn large_blocks_cached_by_a_thread_are_available_to_others() {
    let memory_bytes = 64 << 20;
    on_each_backend(&SimConfig::new().memory_bytes(memory_bytes), |fixture| {
        // The other thread's block may be in the only segment that is large enough.
        if fixture.plain_segments || fixture.backend == BackendKind::Native {
            return;
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let most_bytes = memory_bytes / 4 * 3;
        let block = pool.alloc(most_bytes, &stream).unwrap();
        std::thread::scope(|scope| scope.spawn(|| drop(block)).join().unwrap());
        // Another size, so that no thread has freed this size last.
        let block = pool.alloc(most_bytes - (1 << 20), &stream).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    // Freed here repeatedly while the other thread has its own block.
                    drop(pool.alloc(2 << 20, &fixture.stream()).unwrap());
                }
            });
            drop(block);
            let other = fixture.stream();
            drop(pool.alloc(most_bytes, &other).unwrap());
        });
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        pool.check().unwrap();
    });
}

/// While threads allocate and other threads free, sums may lag behind, but never exceed the possible maximum.
#[test]
fn numbers_stay_possible_while_threads_hand_blocks_on() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(256 << 20).build().unwrap();
        std::thread::scope(|scope| {
            // Dropped at the end of this scope, also by a panic; the threads run until then.
            let running = Arc::new(());
            for _ in 0..2 {
                let (sender, receiver) = sync_channel::<Block>(0);
                let (pool, running, stream) = (&pool, Arc::downgrade(&running), fixture.stream());
                scope.spawn(move || {
                    while running.strong_count() > 0 {
                        let _scope = pool.scope("on its way");
                        sender.send(pool.alloc(3000, &stream).unwrap()).unwrap();
                    }
                });
                scope.spawn(move || receiver.iter().for_each(drop));
            }
            for _ in 0..500 {
                let status = pool.status().unwrap();
                let of_tags = status.tags.iter().map(|tag| (tag.in_use_bytes, tag.block_count));
                let of_streams =
                    status.streams.iter().map(|stream| (stream.in_use_bytes, stream.block_count));
                let all = [(status.in_use_bytes, status.block_count), (status.in_use_peak_bytes, 0)];
                let is_possible = of_tags
                    .chain(of_streams)
                    .chain(all)
                    .all(|(in_use_bytes, block_count)| in_use_bytes <= 256 << 20 && block_count < 1 << 20);
                assert!(is_possible, "{status:#?}");
            }
        });
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.block_count, status.streams.len()), (0, 0, 0));
        assert!(status.tags.iter().all(|tag| (tag.in_use_bytes, tag.block_count) == (0, 0)), "{status}");
    });
}
