//! Handles that sleep: in the middle of any program, with a call that fails anywhere, and with blocks that are freed during the sleep.

use super::known::STREAMS;
use super::pair::{Pair, Step, overlaps, step};
use gpumem_base::HeapTuning;
use proptest::prelude::*;

/// Compares the heap with the driver.
fn check(pair: &Pair) {
    pair.heap.check().unwrap();
    let created: u64 = pair.driver.created.values().sum();
    assert_eq!(pair.heap.reserved_bytes(), created);
}

/// Each live block has accessible memory of its own.
fn check_live(pair: &Pair) {
    let places =
        pair.live.iter().flat_map(|(block, size_bytes, _)| pair.driver.physical(block.address, *size_bytes));
    let places: Vec<_> = places.collect();
    for (index, place) in places.iter().enumerate() {
        assert!(
            !places[..index].iter().any(|other| overlaps(place, other)),
            "{place:?} belongs to two blocks"
        );
    }
}

/// Puts the heap to sleep. A call may fail: what was done before it is undone, and the next attempt succeeds.
fn sleep(pair: &mut Pair) -> Vec<(u64, u64)> {
    for _ in 0..2 {
        let Ok(ranges) = pair.heap.begin_sleep(&mut pair.driver) else {
            assert!(!pair.heap.is_sleeping());
            check(pair);
            continue;
        };
        match pair.heap.put_to_sleep(&mut pair.driver) {
            Ok(released_bytes) => {
                assert_eq!(released_bytes, pair.heap.sleeping_bytes());
                return ranges;
            }
            Err(_) => {
                pair.heap.wake(&mut pair.driver).unwrap();
                pair.heap.end_sleep();
                check(pair);
                check_live(pair);
            }
        }
    }
    panic!("only one call fails");
}

fn wake(pair: &mut Pair) {
    let asleep_bytes = pair.heap.sleeping_bytes();
    while pair.heap.wake(&mut pair.driver).is_err() {
        pair.heap.put_to_sleep(&mut pair.driver).unwrap();
        check(pair);
        assert!(pair.heap.sleeping_bytes() <= asleep_bytes);
    }
    pair.heap.end_sleep();
}

/// Ends the work that is queued, and releases what is free.
fn finish(pair: &mut Pair) {
    (0..STREAMS).for_each(|stream| pair.known.observe(stream));
    pair.driver.fails_in = None;
    pair.run(&Step::Trim { keep_bytes: 0 });
}

fn tuning() -> impl Strategy<Value = HeapTuning> {
    (prop_oneof![Just(0), 1_u32..200], 1_u32..=8).prop_map(|(growth_slack_per_mille, handle_max_pages)| {
        HeapTuning { growth_slack_per_mille, handle_max_pages, ..HeapTuning::BALANCED }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_goes_on_after_it(
        tuning in tuning(),
        before in prop::collection::vec(step(), 1..120),
        fails in prop::array::uniform2(prop::option::of(0_u32..30)),
        freed in prop::collection::vec(any::<usize>(), 0..10),
        after in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = Pair::new(tuning);
        before.iter().for_each(|step| pair.run(step));
        finish(&mut pair);
        let before_bytes = pair.heap.reserved_bytes();
        pair.driver.fails_in = fails[0];
        let ranges = sleep(&mut pair);
        check(&pair);
        prop_assert_eq!((pair.heap.reserved_bytes(), pair.heap.sleeping_bytes()), (0, before_bytes));
        // Each block lies in the ranges as a whole.
        for (block, size_bytes, _) in &pair.live {
            let end = block.address + size_bytes;
            let part = |(start, range_bytes): &(u64, u64)| {
                (start + range_bytes).min(end).saturating_sub((*start).max(block.address))
            };
            let asleep_bytes: u64 = ranges.iter().map(part).sum();
            prop_assert_eq!(asleep_bytes, *size_bytes);
        }
        for index in freed {
            if !pair.live.is_empty() {
                let (block, ..) = pair.live.swap_remove(index % pair.live.len());
                pair.heap.give(block.record, &[]);
            }
        }
        check(&pair);
        prop_assert_eq!(pair.heap.trim(0, &pair.known, &mut pair.driver).is_ok(), true);
        pair.driver.fails_in = fails[1];
        wake(&mut pair);
        check(&pair);
        check_live(&pair);
        pair.used.clear();
        after.iter().for_each(|step| pair.run(step));
        finish(&mut pair);
        pair.has_what_it_says_is_free();
    }

    /// A heap that sleeps may end, wherever a call has failed before.
    #[test]
    fn a_heap_that_sleeps_may_end(
        tuning in tuning(),
        before in prop::collection::vec(step(), 1..120),
        fails in prop::array::uniform2(prop::option::of(0_u32..30)),
    ) {
        let mut pair = Pair::new(tuning);
        before.iter().for_each(|step| pair.run(step));
        finish(&mut pair);
        if pair.heap.begin_sleep(&mut pair.driver).is_ok() {
            pair.driver.fails_in = fails[0];
            let _ = pair.heap.put_to_sleep(&mut pair.driver);
            pair.driver.fails_in = fails[1];
            // Wakes in part, and sleeps on.
            let _ = pair.heap.wake(&mut pair.driver);
        }
        pair.driver.fails_in = None;
        pair.live.drain(..).for_each(|(block, ..)| pair.heap.give(block.record, &[]));
        pair.heap.forget_sleepers();
        pair.heap.check().unwrap();
        pair.heap.release_lost(&mut pair.driver).unwrap();
        pair.heap.trim(0, &pair.known, &mut pair.driver).unwrap();
        check(&pair);
        prop_assert!(pair.driver.created.is_empty() && pair.driver.mapped.is_empty());
    }
}
