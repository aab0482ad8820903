//! Adaptors and blocks that grow.

use super::{Ear, MIB};
use crate::fixture::Fixture;
use crate::growable::{byte, fill, on_caching};
use gpumem_pool::adaptor::{Adaptor, Budget, Change, Failures, Fill, Guard, Side, Tracking};
use gpumem_pool::{CaptureMode, Event, GrowableBlock, PoolError, Stream};
use std::sync::{Arc, Mutex};

#[test]
fn adaptors_run_before_and_after_a_growth() {
    on_caching(|bench| {
        let budget = Arc::new(Budget::new(10 * MIB));
        let (ears, heard) = Ear::pair();
        let builder = bench.builder().adaptor(budget.clone()).adaptor(ears[1].clone());
        let (pool, stream) = (builder.build().unwrap(), bench.stream());
        let mut block = pool.growable(64 * MIB, &stream).unwrap();
        block.grow_to(6 * MIB).unwrap();
        assert!(matches!(block.grow_to(11 * MIB), Err(PoolError::OverBudget { .. })));
        assert_eq!((block.size_bytes(), budget.in_use_bytes()), (6 * MIB, 6 * MIB));
        block.shrink_to(2 * MIB).unwrap();
        assert_eq!(budget.in_use_bytes(), 2 * MIB);
        drop(block);
        assert_eq!(budget.in_use_bytes(), 0);
        let all = ["grows 6", "grows 5", "shrinks 5", "shrinks 4", "shrinks 2"];
        let expected = all.map(|what| {
            let (verb, mib) = what.split_once(' ').unwrap();
            format!("outer {verb} {}", mib.parse::<u64>().unwrap() * MIB)
        });
        assert_eq!(*heard.lock().unwrap(), expected);
    });
}

/// Agrees to what it then does not like, or panics.
struct Fickle(Mutex<&'static str>);

impl Adaptor for Fickle {
    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        match *self.0.lock().unwrap() {
            "" => Ok(()),
            reason => Err(PoolError::Refused {
                adaptor: "fickle".into(),
                requested_bytes: change.to_bytes(),
                reason: reason.into(),
            }),
        }
    }

    fn shrink(&self, change: &Change<'_>) {
        if !change.is_undone() {
            panic!("on purpose");
        }
    }
}

/// A growth that does not please in the end is taken back by all, the pool included; and no panic leaves a drop.
#[test]
fn a_growth_that_an_adaptor_rejects_is_undone() {
    on_caching(|bench| {
        let fickle = Arc::new(Fickle(Mutex::new("")));
        let guards = [(); 2].map(|()| Arc::new(Guard::new()));
        let (inner, outer) = (Arc::new(Budget::new(64 * MIB)), Arc::new(Budget::new(64 * MIB)));
        let tracking = Arc::new(Tracking::new());
        let builder =
            bench.builder().adaptor(inner.clone()).adaptor(tracking.clone()).adaptor(guards[0].clone());
        let builder = builder.adaptor(Arc::new(Fill::debug())).adaptor(fickle.clone()).adaptor(outer.clone());
        let builder = builder.adaptor(guards[1].clone());
        let (pool, stream) = (builder.build().unwrap(), bench.stream());
        let mut block = pool.growable(64 * MIB, &stream).unwrap();
        for before_bytes in [0, 3 * MIB + 100] {
            block.grow_to(before_bytes).unwrap();
            fill(bench, &block, 0..before_bytes, 1, &stream);
            *fickle.0.lock().unwrap() = "does not like it";
            let error = block.grow_to(9 * MIB + 7).unwrap_err();
            assert!(error.to_string().ends_with("it does not like it"), "{error}");
            *fickle.0.lock().unwrap() = "";
            assert_eq!(
                (block.size_bytes(), pool.status().unwrap().in_use_bytes),
                (before_bytes, before_bytes)
            );
            assert_eq!(tracking.live().size_bytes(), before_bytes);
            for budget in [&inner, &outer] {
                assert_eq!(budget.in_use_bytes(), before_bytes.next_multiple_of(256));
            }
        }
        block.grow_to(5 * MIB).unwrap();
        assert_eq!(byte(bench, &block, 3 * MIB + 99, &stream), 1);
        drop(block);
        bench.device.synchronize().unwrap();
        assert_eq!(
            (outer.in_use_bytes(), guards.each_ref().map(|guard| guard.settle())),
            (0, [vec![], vec![]])
        );
        let counts = guards.map(|guard| (guard.checked_count(), guard.unchecked_count()));
        assert_eq!(counts, [(5, 0), (3, 0)], "the inner one has seen what was taken back");
        pool.check().unwrap();
    });
}

/// Some of its bytes.
fn bytes(bench: &Fixture, block: &GrowableBlock, range: std::ops::Range<u64>, stream: &Stream) -> [u8; 3] {
    [range.start, range.start.midpoint(range.end), range.end - 1].map(|at| byte(bench, block, at, stream))
}

/// New bytes are set before their user has them, on whatever stream he uses them first; and nothing that was queued for what
/// he left comes later.
#[test]
fn new_bytes_are_set_and_stay_the_users() {
    on_caching(|bench| {
        let cases =
            [(Fill::zero_on_alloc(), Some(0)), (Fill::debug(), Some(0xA5)), (Fill::zero_on_free(), None)];
        for (filled, expected) in cases {
            let pool = bench.builder().adaptor(Arc::new(filled)).build().unwrap();
            let (home, other) = (bench.stream(), bench.stream());
            let mut block = pool.growable(64 * MIB, &home).unwrap();
            let mut has_bytes = 0;
            for size_bytes in [3 * MIB, 8 * MIB + 5, MIB, 9 * MIB, 0, 2 * MIB, 5 * MIB] {
                block.grow_to(size_bytes).unwrap();
                if size_bytes > has_bytes {
                    let new = bytes(bench, &block, has_bytes..size_bytes, &other);
                    assert!(expected.is_none_or(|value| new == [value; 3]), "{new:?}");
                    assert!(!new.contains(&7), "what it had once");
                    fill(bench, &block, has_bytes..size_bytes, 7, &other);
                    block.record_use(&other);
                    home.synchronize().unwrap();
                    assert_eq!(bytes(bench, &block, has_bytes..size_bytes, &other), [7; 3]);
                }
                block.shrink_to(size_bytes).unwrap();
                has_bytes = size_bytes;
            }
        }
    });
}

/// Where home can't do it, what is left is made up for by what comes.
#[test]
fn bytes_that_the_owner_stream_cannot_fill_are_filled_later() {
    on_caching(|bench| {
        for is_gone in [true, false] {
            let fill_adaptor = Arc::new(Fill::zero_on_free());
            let pool = bench.builder().adaptor(fill_adaptor.clone()).build().unwrap();
            let (other, home) = (bench.stream(), bench.stream());
            let home = if is_gone { home } else { Stream::legacy(&bench.device).unwrap() };
            let mut block = pool.growable(64 * MIB, &home).unwrap();
            block.grow_to(5 * MIB).unwrap();
            fill(bench, &block, 0..5 * MIB, 7, &home);
            home.synchronize().unwrap();
            drop(home);
            block.shrink_to(MIB).unwrap();
            assert!(fill_adaptor.has_missed());
            block.grow_to(6 * MIB).unwrap();
            assert_eq!(bytes(bench, &block, MIB..6 * MIB, &other), [0; 3]);
            assert_eq!(bytes(bench, &block, 0..MIB, &other), [7; 3]);
        }
    });
}

/// One byte behind the end, by a stream whose work is queued.
fn poke(bench: &Fixture, block: &GrowableBlock, behind: u64, stream: &Stream) {
    let at = block.size_bytes() + behind;
    fill(bench, block, at..at + 1, 9, stream);
}

#[test]
fn writes_behind_the_end_are_found_when_it_moves() {
    on_caching(|bench| {
        let guard = Arc::new(Guard::new());
        let pool = bench.builder().adaptor(guard.clone()).build().unwrap();
        let (home, other) = (bench.stream(), bench.stream());
        let mut block = pool.growable(64 * MIB, &home).unwrap();
        block.grow_to(3 * MIB + 5).unwrap();
        // All that it may, up to its last byte, on another stream too.
        other.wait_for(&home).unwrap();
        fill(bench, &block, 0..3 * MIB + 5, 1, &other);
        block.record_use(&other);
        block.grow_to(3 * MIB + 9).unwrap();
        block.grow_to(5 * MIB + 100).unwrap();
        fill(bench, &block, 3 * MIB..5 * MIB + 100, 2, &home);
        block.shrink_to(MIB + 1).unwrap();
        fill(bench, &block, 0..MIB + 1, 3, &home);
        bench.device.synchronize().unwrap();
        assert_eq!((guard.settle(), guard.checked_count(), guard.unchecked_count()), (vec![], 3, 0));

        poke(bench, &block, 17, &other);
        let error = block.grow_to(3 * MIB + 50).unwrap_err();
        let PoolError::Damaged(damage) = error else { panic!("{error}") };
        assert_eq!((damage.address, damage.size_bytes, damage.stream), (block.address(), MIB + 1, home.id()));
        assert_eq!(
            (damage.side, damage.distance_bytes, damage.count, damage.found),
            (Side::Behind, 17, 1, 9)
        );
        assert_eq!(block.size_bytes(), MIB + 1);
        block.grow_to(3 * MIB + 50).unwrap();

        poke(bench, &block, 0, &home);
        block.shrink_to(2 * MIB + 1).unwrap();
        bench.device.synchronize().unwrap();
        assert_eq!(guard.settle()[0].size_bytes, 3 * MIB + 50);

        poke(bench, &block, 511, &home);
        drop(block);
        bench.device.synchronize().unwrap();
        assert_eq!(guard.settle()[0].distance_bytes, 511);
        assert_eq!(guard.unchecked_count(), 0);
    });
}

/// A block that uses all of its last piece has nothing behind it that could be looked at; near its end there is less.
#[test]
fn a_guard_ends_where_the_memory_ends() {
    on_caching(|bench| {
        let guard = Arc::new(Guard::new());
        let pool = bench.builder().adaptor(guard.clone()).build().unwrap();
        let stream = bench.stream();
        let mut block = pool.growable(4 * MIB, &stream).unwrap();
        block.grow_to(2 * MIB).unwrap();
        block.grow_to(4 * MIB).unwrap();
        block.shrink_to(2 * MIB).unwrap();
        assert_eq!((guard.checked_count(), guard.unchecked_count()), (0, 0));
        block.grow_to(4 * MIB - 3).unwrap();
        poke(bench, &block, 2, &stream);
        assert!(matches!(block.grow_to(4 * MIB), Err(PoolError::Damaged(_))));
        drop(block);
        // Behind what is gone from its stream nobody looks.
        let short = bench.stream();
        let mut block = pool.growable(4 * MIB, &short).unwrap();
        block.grow_to(100).unwrap();
        short.synchronize().unwrap();
        drop(short);
        drop(block);
        assert_eq!(guard.unchecked_count(), 1);
    });
}

/// While a stream captures, its own home or another, what adaptors do becomes no part of a graph and waits for none.
#[test]
fn growth_while_a_stream_captures() {
    on_caching(|bench| {
        for captures_home in [true, false] {
            let guard = Arc::new(Guard::new());
            let builder = bench.builder().adaptor(guard.clone()).adaptor(Arc::new(Fill::debug()));
            let (pool, home, other) = (builder.build().unwrap(), bench.stream(), bench.stream());
            let mut block = pool.growable(64 * MIB, &home).unwrap();
            block.grow_to(3 * MIB + 1).unwrap();
            fill(bench, &block, 0..3 * MIB + 1, 7, &other);
            block.record_use(&other);
            let captured = if captures_home { &home } else { &other };
            let capture = captured.begin_capture(CaptureMode::Global).unwrap();
            block.grow_to(5 * MIB + 1).unwrap();
            block.shrink_to(MIB + 1).unwrap();
            // What the stream had queued before may still write there, and can't be waited for now.
            let grown = block.grow_to(3 * MIB + 1);
            let exec = capture.end().unwrap().instantiate().unwrap();
            match grown {
                Err(PoolError::NotInCapture { .. }) => block.grow_to(3 * MIB + 1).unwrap(),
                grown => grown.unwrap(),
            }
            assert_eq!(bytes(bench, &block, MIB + 1..3 * MIB + 1, &bench.stream()), [0xA5; 3]);
            assert_eq!(byte(bench, &block, MIB, &other), 7);
            // SAFETY: there is nothing in it.
            unsafe { exec.launch(captured).unwrap() };
            drop(block);
            bench.device.synchronize().unwrap();
            assert_eq!(guard.settle(), []);
        }
    });
}

/// What was queued before a capture, by the block's users and by adaptors, is waited for while that goes on: on the stream
/// that captures, and on one that has joined it.
#[test]
fn growth_into_memory_freed_before_a_capture() {
    on_caching(|bench| {
        for (captures_home, joins) in
            [true, false].map(|home| ["", "stream", "event"].map(|how| (home, how))).concat()
        {
            let builder = bench.builder().adaptor(Arc::new(Fill::debug()));
            let (pool, home, other) = (builder.build().unwrap(), bench.stream(), bench.stream());
            let mut block = pool.growable(MIB, &home).unwrap();
            block.grow_to(35).unwrap();
            fill(bench, &block, 0..35, 7, &other);
            block.record_use(&other);
            // No memory goes back.
            block.shrink_to(10).unwrap();
            let captured = if captures_home { &home } else { &other };
            let origin = if joins.is_empty() { captured.clone() } else { bench.stream() };
            let capture = origin.begin_capture(CaptureMode::Global).unwrap();
            match joins {
                "stream" => captured.wait_for(&origin).unwrap(),
                "event" => {
                    let event = Event::new(&bench.device).unwrap();
                    event.record(&origin).unwrap();
                    captured.wait(&event).unwrap();
                }
                _ => {}
            }
            assert!(captured.is_capturing().unwrap());
            block.grow_to(20).unwrap();
            assert_eq!(byte(bench, &block, 10, &bench.stream()), 0xA5);
            // In it, nothing is known to be done.
            block.shrink_to(10).unwrap();
            assert!(matches!(block.grow_to(20), Err(PoolError::NotInCapture { .. })));
            origin.wait_for(captured).unwrap();
            drop(capture.end().unwrap());
            block.grow_to(20).unwrap();
            assert_eq!(byte(bench, &block, 10, &home), 0xA5);
        }
        let report = gpumem_sim::Sim::of(&bench.driver).unwrap().report();
        assert!(report.findings.is_empty(), "{report}");
    });
}

/// All adaptors at once, and growth that is refused now and then by any of them.
#[test]
fn any_of_them_may_refuse() {
    on_caching(|bench| {
        let (guards, failures) =
            ([(); 2].map(|()| Arc::new(Guard::new())), Arc::new(Failures::share(0.2, bench.seed)));
        let (budget, tracking) = (Arc::new(Budget::new(20 * MIB)), Arc::new(Tracking::new()));
        let builder = bench.builder().hard_limit(24 * MIB).adaptor(guards[0].clone()).adaptor(budget.clone());
        let builder =
            builder.adaptor(Arc::new(Fill::zero_on_alloc())).adaptor(failures).adaptor(tracking.clone());
        let pool = builder.adaptor(guards[1].clone()).build().unwrap();
        let streams = [bench.stream(), bench.stream()];
        let mut block = pool.growable(32 * MIB, &streams[0]).unwrap();
        let mut random = crate::shortage::Random(bench.seed);
        let mut refusal_count = 0;
        for _ in 0..30 {
            let (size_bytes, before_bytes) = (random.below(26 * MIB), block.size_bytes());
            if size_bytes < before_bytes {
                block.shrink_to(size_bytes).unwrap();
            } else if let Err(error) = block.grow_to(size_bytes) {
                let is_known =
                    matches!(error, PoolError::OverBudget { .. }) || error.out_of_memory().is_some();
                assert!(is_known && block.size_bytes() == before_bytes, "{error}");
                refusal_count += 1;
            } else if size_bytes > before_bytes {
                assert_eq!(bytes(bench, &block, before_bytes..size_bytes, &streams[1]), [0; 3]);
                fill(bench, &block, before_bytes..size_bytes, 7, &streams[1]);
                block.record_use(&streams[1]);
            }
            assert_eq!(budget.in_use_bytes(), block.size_bytes().next_multiple_of(256));
            assert_eq!(tracking.live().size_bytes(), block.size_bytes());
            assert_eq!(pool.status().unwrap().in_use_bytes, block.size_bytes());
            pool.check().unwrap();
        }
        assert!(refusal_count > 2, "{refusal_count}");
        drop(block);
        bench.device.synchronize().unwrap();
        for guard in guards {
            assert_eq!((guard.settle(), guard.unchecked_count()), (vec![], 0));
        }
    });
}
