//! Counters by tag, by stream and by scope, and peaks that are reset.

use crate::fixture::{on_each_backend, small};
use gpumem_pool::{Capture, CaptureMode, Pool, PoolError, Scope, ScopeUsage, Tag};
use std::collections::VecDeque;

const MIB: u64 = 1 << 20;

/// Tag, bytes and blocks of each tag in the status.
fn tags(pool: &Pool) -> Vec<(String, u64, u64)> {
    let tags = pool.status().unwrap().tags;
    tags.into_iter().map(|tag| (tag.tag, tag.in_use_bytes, tag.block_count)).collect()
}

fn tag(name: &str, in_use_bytes: u64, block_count: u64) -> (String, u64, u64) {
    (name.into(), in_use_bytes, block_count)
}

/// Allocated and freed bytes, and the peak.
fn bytes(usage: ScopeUsage) -> (u64, u64, u64) {
    (usage.allocated_bytes, usage.freed_bytes, usage.peak_bytes)
}

#[test]
fn blocks_count_for_the_scope_that_they_were_allocated_in() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let untagged = pool.alloc(100, &stream).unwrap();
        assert_eq!(tags(&pool), []);
        let scope = pool.scope("weights");
        assert_eq!(scope.tag(), "weights");
        let sizes = [1, 256, 5000, 1 << 20, 3 << 20];
        let mut weights: Vec<_> =
            sizes.iter().map(|size_bytes| pool.alloc(*size_bytes, &stream).unwrap()).collect();
        weights.push(pool.alloc_aligned(4096, 1 << 16, &stream).unwrap());
        weights.push(pool.alloc(0, &stream).unwrap());
        let sum = sizes.iter().sum::<u64>() + 4096;
        assert_eq!(bytes(scope.end()), (sum, 0, sum));
        let after = pool.alloc(100, &stream).unwrap();
        assert_eq!(tags(&pool), [tag("weights", sum, 6)]);
        // Padding for alignment counts for no tag.
        let padding_bytes = pool.status().unwrap().in_use_bytes - (sum + 200);
        assert!(padding_bytes == 0 || padding_bytes == (1 << 16) - 256, "{padding_bytes}");
        // Blocks may be freed on any thread, also in raw form.
        let last = weights.pop().unwrap().into_raw();
        std::thread::scope(|scope| scope.spawn(move || drop(weights)).join().unwrap());
        assert_eq!(tags(&pool), [tag("weights", 0, 0)]);
        // SAFETY: the raw block comes from `into_raw`, and is converted once.
        drop(unsafe { gpumem_pool::Block::from_raw(last) });
        drop((untagged, after));
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.tags[0].allocation_count), (0, 6));
        pool.check().unwrap();
    });
}

#[test]
fn the_innermost_scope_counts_and_the_outer_one_has_it_in_the_end() {
    on_each_backend(&small(), |fixture| {
        let (pool, other, stream) = (fixture.pool(), fixture.pool(), fixture.stream());
        let step = pool.scope("step");
        let first = pool.alloc(10_000, &stream).unwrap();
        let forward = pool.scope("forward");
        let elsewhere = other.scope("elsewhere");
        let activations = pool.alloc(40_000, &stream).unwrap();
        let others = other.alloc(7, &stream).unwrap();
        assert_eq!(bytes(elsewhere.end()), (7, 0, 7));
        drop(first);
        assert_eq!(bytes(forward.usage()), (40_000, 10_000, 40_000));
        assert_eq!(bytes(step.usage()), (10_000, 0, 10_000));
        drop(forward);
        let backward = pool.scope("backward");
        drop(activations);
        let gradients = pool.alloc(30_000, &stream).unwrap();
        assert_eq!(bytes(backward.end()), (30_000, 40_000, 0));
        assert_eq!(bytes(step.usage()), (80_000, 50_000, 50_000));
        assert_eq!((step.usage().allocation_count, step.usage().free_count), (3, 2));
        drop(step);
        assert_eq!(tags(&pool), [tag("step", 0, 0), tag("forward", 0, 0), tag("backward", 30_000, 1)]);
        assert_eq!(tags(&other), [tag("elsewhere", 7, 1)]);
        drop((gradients, others));
    });
}

#[test]
fn scopes_may_end_in_any_order() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let [outer, inner] = ["outer", "inner"].map(|name| pool.scope(name));
        drop(outer);
        let block = pool.alloc(300, &stream).unwrap();
        assert_eq!(tags(&pool), [tag("inner", 300, 1)]);
        assert_eq!(bytes(inner.end()), (300, 0, 300));
        drop(block);
        drop(pool.alloc(300, &stream).unwrap());
        assert_eq!(pool.status().unwrap().tags[0].allocation_count, 1);
    });
}

/// Each thread has its own scopes; all threads share the tags.
#[test]
fn threads_count_for_one_tag_together() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let main = pool.scope("main");
        let work = |_| {
            let untagged = pool.alloc(50, &stream).unwrap();
            let scope = pool.scope("worker");
            let kept = (0..20).map(|_| pool.alloc(500, &stream).unwrap()).collect::<Vec<_>>();
            (0..200).for_each(|_| drop(pool.alloc(700, &stream).unwrap()));
            assert_eq!(bytes(scope.end()), (150_000, 140_000, 10_700));
            drop(untagged);
            kept
        };
        let kept: Vec<_> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| work(())));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(bytes(main.end()), (0, 0, 0));
        assert_eq!(tags(&pool), [tag("worker", 40_000, 80)]);
        drop(kept);
        assert_eq!(tags(&pool), [tag("worker", 0, 0)]);
        pool.check().unwrap();
    });
}

/// A growable block keeps the tag of its creation, and counts by its bytes.
#[test]
fn blocks_that_grow_count_for_their_tag() {
    crate::growable::on_caching(|fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 << 20).build().unwrap(), fixture.stream());
        let scope = pool.scope("log");
        let mut log = pool.growable(100 << 20, &stream).unwrap();
        log.grow_to(5 << 20).unwrap();
        drop(scope);
        let scope = pool.scope("later");
        let mut untagged = std::thread::scope(|threads| {
            threads.spawn(|| pool.growable(100 << 20, &stream).unwrap()).join().unwrap()
        });
        untagged.grow_to(2 << 20).unwrap();
        log.grow_to(9 << 20).unwrap();
        log.shrink_to(8 << 20).unwrap();
        assert_eq!(bytes(scope.usage()), (4 << 20, 1 << 20, 4 << 20));
        assert_eq!((scope.usage().allocation_count, scope.usage().free_count), (0, 0));
        assert_eq!(tags(&pool), [tag("log", 8 << 20, 0)]);
        let error = log.grow_to(90 << 20).unwrap_err();
        let holders = &error.out_of_memory().unwrap().holders;
        assert_eq!((&*holders[0].tag, holders[0].in_use_bytes), ("log", 8 << 20));
        assert_eq!(tags(&pool), [tag("log", 8 << 20, 0)]);
        drop(log);
        assert_eq!(bytes(scope.end()), (4 << 20, 9 << 20, 4 << 20));
        assert_eq!(pool.status().unwrap().tags[0].peak_bytes, 9 << 20);
        assert_eq!(pool.status().unwrap().in_use_bytes, 2 << 20);
        drop(untagged);
    });
}

/// The memory of a graph counts as a whole, as long as the graph keeps it.
#[test]
fn memory_of_a_graph_counts_until_the_graph_ends() {
    on_each_backend(&small(), |fixture| {
        if fixture.kind != gpumem_pool::MemoryKind::Device {
            return;
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let capture = Capture::begin(&stream, CaptureMode::Global).unwrap();
        let scope = pool.scope("graph");
        drop(pool.alloc(1000, &stream).unwrap());
        drop(scope);
        let graph = capture.end().unwrap();
        let status = pool.status().unwrap();
        assert_eq!(status.tags[0].in_use_bytes, status.in_use_bytes);
        assert!(status.in_use_bytes >= 1000);
        drop(graph);
        let status = pool.status().unwrap();
        assert_eq!((status.tags[0].in_use_bytes, status.in_use_bytes), (0, 0));
    });
}

#[test]
fn a_refusal_names_the_largest_holders() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 << 20).build().unwrap(), fixture.stream());
        let mut held = Vec::new();
        for (name, size_bytes) in [("small", 1 << 20), ("large", 40 << 20)] {
            let _scope = pool.scope(name);
            held.push(pool.alloc(size_bytes, &stream).unwrap());
        }
        let error = pool.alloc(48 << 20, &stream).unwrap_err();
        let PoolError::LimitReached(report) = &error else { panic!("{error:?}") };
        let holders: Vec<_> =
            report.holders.iter().map(|holder| (&*holder.tag, holder.in_use_bytes)).collect();
        assert_eq!(holders, [("large", 40 << 20), ("small", 1 << 20)]);
        assert!(error.to_string().contains("large"), "{error}");
    });
}

#[test]
fn status_counts_blocks_by_stream() {
    on_each_backend(&small(), |fixture| {
        let (pool, one, two) = (fixture.pool(), fixture.stream(), fixture.stream());
        let streams = || {
            let streams = pool.status().unwrap().streams;
            let mut streams: Vec<_> = streams
                .into_iter()
                .map(|stream| (stream.stream, stream.in_use_bytes, stream.block_count))
                .collect();
            streams.sort();
            streams
        };
        let ids = [one.id(), two.id()].map(Some);
        let small = [pool.alloc(500, &one).unwrap(), pool.alloc(700, &one).unwrap()];
        let large = pool.alloc(5 << 20, &two).unwrap();
        assert_eq!(streams(), [(ids[0], 1200, 2), (ids[1], 5 << 20, 1)]);
        let [first, second] = small;
        std::thread::scope(|scope| scope.spawn(|| drop(first)).join().unwrap());
        assert_eq!(streams(), [(ids[0], 700, 1), (ids[1], 5 << 20, 1)]);
        drop(large);
        assert_eq!(streams(), [(ids[0], 700, 1)]);
        // The blocks outlive a stream.
        two.synchronize().unwrap();
        one.synchronize().unwrap();
        drop((one, two));
        let left = streams();
        assert_eq!(left.iter().map(|(_, bytes, count)| (*bytes, *count)).collect::<Vec<_>>(), [(700, 1)]);
        drop(second);
        assert_eq!(streams(), []);
        pool.check().unwrap();
    });
}

#[test]
fn peaks_can_be_reset() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        drop(pool.alloc(100 << 20, &stream).unwrap());
        let kept = pool.alloc(8 << 20, &stream).unwrap();
        pool.reclaim().unwrap();
        let before = pool.status().unwrap();
        assert!(before.in_use_peak_bytes >= 100 << 20 && before.reserved_peak_bytes >= 100 << 20);
        pool.reset_peaks().unwrap();
        let after = pool.status().unwrap();
        assert!(after.in_use_peak_bytes < 64 << 20 && after.in_use_peak_bytes >= 8 << 20, "{after:#?}");
        assert_eq!(after.reserved_peak_bytes, after.reserved_bytes);
        let more = pool.alloc(20 << 20, &stream).unwrap();
        assert!(pool.status().unwrap().in_use_peak_bytes >= 28 << 20);
        drop((kept, more));
    });
}

/// The peak is exact for one thread, whatever the sizes; a reset sets it to the bytes in use.
#[test]
fn tags_have_peaks() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let peaks = || -> Vec<(String, u64, u64)> {
            let tags = pool.status().unwrap().tags.into_iter();
            tags.map(|tag| (tag.tag, tag.in_use_bytes, tag.peak_bytes)).collect()
        };
        let forward = pool.scope("forward");
        let kept = pool.alloc(300, &stream).unwrap();
        let many: Vec<_> = (1..400).map(|size_bytes| pool.alloc(size_bytes * 50, &stream).unwrap()).collect();
        let most_bytes = 300 + (1..400).sum::<u64>() * 50;
        {
            let _backward = pool.scope("backward");
            drop((many, pool.alloc(9 << 20, &stream).unwrap()));
        }
        assert_eq!(peaks(), [tag("forward", 300, most_bytes), tag("backward", 0, 9 << 20)]);
        drop(pool.alloc(700, &stream).unwrap());
        assert_eq!(peaks()[0].2, most_bytes);
        pool.reset_peaks().unwrap();
        assert_eq!(peaks(), [tag("forward", 300, 300), tag("backward", 0, 0)]);
        drop(pool.alloc(2 << 20, &stream).unwrap());
        drop(pool.alloc(500, &stream).unwrap());
        assert_eq!(peaks()[0].2, (2 << 20) + 300);
        drop((forward, kept));
    });
}

/// With several threads the peak is exact to a megabyte for each thread, however many blocks move between threads.
#[test]
fn peaks_of_several_threads_are_near() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let (sender, receiver) = std::sync::mpsc::sync_channel(8);
        std::thread::scope(|threads| {
            let (pool, stream) = (&pool, &stream);
            threads.spawn(move || {
                let _scope = pool.scope("wanders");
                (0..600).for_each(|_| sender.send(pool.alloc(64 << 10, stream).unwrap()).unwrap());
            });
            threads.spawn(move || receiver.into_iter().for_each(drop));
        });
        let tag = &pool.status().unwrap().tags[0];
        // Ten blocks at a time, 37 MiB in total.
        assert!((64 << 10..=3 << 20).contains(&tag.peak_bytes), "{}", tag.peak_bytes);
        assert_eq!((tag.in_use_bytes, tag.allocation_count), (0, 600));
    });
}

#[test]
fn a_scope_keeps_its_pool_and_may_be_forgotten() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let scope: Scope = pool.scope("kept");
        let block = pool.alloc(10, &stream).unwrap();
        drop(pool);
        assert_eq!(bytes(scope.usage()), (10, 0, 10));
        drop(scope);
        drop(block);
    });
}

/// A task takes its tag along: the blocks count for it on every thread, and together with the scopes of its name.
#[test]
fn a_tag_goes_with_its_task() {
    fn is_for_any_thread<T: Send + Sync>() {}
    is_for_any_thread::<Tag>();
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let requests = pool.tag("requests");
        assert_eq!(requests.name(), "requests");
        let task = async {
            let first = pool.alloc_tagged(4096, &stream, &requests)?;
            (&stream).await?;
            let second = pool.alloc_tagged(3 * MIB, &stream, &requests)?;
            Ok::<_, PoolError>([first, second])
        };
        let blocks =
            std::thread::scope(|scope| scope.spawn(|| pollster::block_on(task)).join().unwrap()).unwrap();
        assert_eq!(tags(&pool), [tag("requests", 4096 + 3 * MIB, 2)]);
        let scope = pool.scope("requests");
        let third = pool.alloc(4096, &stream).unwrap();
        assert_eq!(tags(&pool), [tag("requests", 8192 + 3 * MIB, 3)]);
        drop((blocks, third, scope));
        assert_eq!(tags(&pool), [tag("requests", 0, 0)]);
        // Again, from the cache of this thread.
        for _ in 0..3 {
            let block = pool.alloc_tagged(4096, &stream, &requests).unwrap();
            assert_eq!(tags(&pool), [tag("requests", 4096, 1)]);
            drop(block);
        }
        drop(pool.alloc_tagged(0, &stream, &requests).unwrap());
        assert_eq!(tags(&pool), [tag("requests", 0, 0)]);
        pool.check().unwrap();
    });
}

/// The tag wins over the thread's scope, whose usage has the block nevertheless.
#[test]
fn a_tag_wins_over_a_scope() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let (scope, cache) = (pool.scope("step"), pool.tag("cache"));
        let kept = pool.alloc_tagged(4096, &stream, &cache).unwrap();
        drop(pool.alloc_tagged(4096, &stream, &cache).unwrap());
        let own = pool.alloc(100, &stream).unwrap();
        assert_eq!(tags(&pool), [tag("step", 100, 1), tag("cache", 4096, 1)]);
        assert_eq!(bytes(scope.end()), (8292, 4096, 8192));
        drop((kept, own));
        assert_eq!(tags(&pool), [tag("step", 0, 0), tag("cache", 0, 0)]);
    });
}

/// Reports name the tag, and a tag of one pool counts for its name in another.
#[test]
fn reports_and_other_pools_have_the_tag() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(8 * MIB).build().unwrap();
        let (other, stream) = (fixture.pool(), fixture.stream());
        let _first = other.tag("other");
        let requests = pool.tag("requests");
        let held = pool.alloc_tagged(6 * MIB, &stream, &requests).unwrap();
        let error = pool.alloc_tagged(6 * MIB, &stream, &requests).unwrap_err();
        let report = error.out_of_memory().unwrap();
        assert_eq!(
            (report.tag.as_deref(), &*report.holders[0].tag),
            (Some("requests"), "requests"),
            "{error}"
        );
        let lent = other.alloc_tagged(4096, &stream, &requests).unwrap();
        assert_eq!(tags(&other), [tag("requests", 4096, 1)]);
        drop((held, lent));
        assert_eq!((tags(&pool)[0].1, tags(&other)[0].1), (0, 0));
    });
}

/// Scopes that end in another order than they began, and of several pools at once.
#[test]
fn the_innermost_scope_of_a_pool_counts_in_any_order() {
    on_each_backend(&small(), |fixture| {
        let (one, two, stream) = (fixture.pool(), fixture.pool(), fixture.stream());
        let (outer, inner) = (one.scope("outer"), one.scope("inner"));
        let second = two.scope("two");
        let blocks = [&one, &two, &one].map(|pool| pool.alloc(4096, &stream).unwrap());
        assert_eq!((tags(&one), tags(&two)), (vec![tag("inner", 8192, 2)], vec![tag("two", 4096, 1)]));
        // The outer one ends first: the inner one counts on.
        drop(outer);
        let third = one.alloc(4096, &stream).unwrap();
        assert_eq!(tags(&one)[0], tag("inner", 12_288, 3));
        drop(inner);
        let untagged = one.alloc(4096, &stream).unwrap();
        assert_eq!(tags(&one)[0], tag("inner", 12_288, 3));
        assert_eq!(bytes(second.end()), (4096, 0, 4096));
        drop((blocks, third, untagged));
        assert_eq!((tags(&one)[0].1, tags(&two)[0].1), (0, 0));
    });
}

/// A name for each request: names without blocks are forgotten, and those with blocks, tags, scopes or growable blocks stay.
#[test]
fn names_that_come_and_go_are_forgotten() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let (kept_tag, scope) = (pool.tag("tag"), pool.scope("scope"));
        let mut growable = fixture.maps().then(|| pool.growable(8 * MIB, &stream).unwrap());
        drop(pool.alloc(256, &stream).unwrap());
        drop(scope);
        let scope = pool.scope("open");
        let mut live = Vec::new();
        for index in 0..5000 {
            let name = format!("request {index}");
            let block = match index % 2 {
                0 => pool.alloc_tagged(4096, &stream, &pool.tag(&name)).unwrap(),
                _ => {
                    let _scope = pool.scope(&name);
                    pool.alloc(4096, &stream).unwrap()
                }
            };
            if index % 250 == 0 {
                live.push((name, block));
            }
        }
        let counted = tags(&pool);
        assert!(counted.len() < 800, "{} names", counted.len());
        for (name, _) in &live {
            assert!(counted.contains(&tag(name, 4096, 1)), "{name}");
        }
        assert_eq!(counted.iter().map(|(_, bytes, _)| bytes).sum::<u64>(), 4096 * live.len() as u64);
        // What was held counts for its name still.
        let tagged = pool.alloc_tagged(5000, &stream, &kept_tag).unwrap();
        let opened = pool.alloc(6000, &stream).unwrap();
        assert_eq!(scope.tag(), "open");
        growable.iter_mut().for_each(|growable| growable.grow_to(MIB).unwrap());
        let counted = tags(&pool);
        assert!(counted.contains(&tag("tag", 5000, 1)) && counted.contains(&tag("open", 6000, 1)));
        assert_eq!(counted.contains(&tag("scope", MIB, 0)), growable.is_some(), "{:?}", &counted[..4]);
        drop((tagged, opened, growable, live, scope));
        assert_eq!(tags(&pool).iter().map(|(_, bytes, count)| bytes + count).sum::<u64>(), 0);
    });
}

/// A tag that ends with its request, on several threads: the sums stay exact.
#[test]
fn names_come_and_go_on_several_threads() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.pool();
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (pool, stream) = (&pool, fixture.stream());
                threads.spawn(move || {
                    let mut live = VecDeque::new();
                    for index in 0..1500 {
                        let tag = pool.tag(&format!("{thread} {index}"));
                        live.push_back(pool.alloc_tagged(1000 + index, &stream, &tag).unwrap());
                        if live.len() > 20 {
                            live.pop_front();
                        }
                    }
                    let status = pool.status().unwrap();
                    let own = format!("{thread} ");
                    let own =
                        status.tags.iter().filter(|tag| tag.tag.starts_with(&own) && tag.block_count > 0);
                    assert_eq!(own.clone().count(), 20);
                    assert!(own.clone().all(|tag| tag.in_use_bytes >= 2480 && tag.allocation_count == 1));
                });
            }
        });
        assert!(pool.status().unwrap().tags.len() < 1200);
        assert_eq!(tags(&pool).iter().map(|(_, bytes, count)| bytes + count).sum::<u64>(), 0);
    });
}
