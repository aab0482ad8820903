//! Schedules without a seed: the two extremes, and all schedules of a program.

use super::*;
use gpumem_sim::Schedule;
use std::collections::BTreeSet;

fn scheduled(schedule: Schedule) -> Machine {
    machine(SimConfig::new().schedule(schedule))
}

/// Fills pinned memory, and returns the value that the host reads without waiting.
fn peek(gpu: &Machine) -> u8 {
    let (stream, byte, host) = (gpu.stream(), gpu.alloc(1), gpu.pinned(1));
    gpu.fill(stream, byte, 5, 1);
    gpu.download_to(stream, host, byte);
    host[0].get()
}

#[test]
fn late_runs_nothing_before_a_wait_and_early_everything() {
    assert_eq!(peek(&scheduled(Schedule::Late)), 0);
    assert_eq!(peek(&scheduled(Schedule::Early)), 5);
}

#[test]
fn late_runs_only_what_a_wait_takes() {
    let gpu = scheduled(Schedule::Late);
    let (a, b, c, byte) = (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(3));
    gpu.fill(a, byte, 1, 1);
    gpu.fill(b, byte + 1, 1, 1);
    gpu.order(b, c);
    gpu.fill(c, byte + 2, 1, 1);
    gpu.fill(b, byte + 1, 1, 1);
    gpu.sync(c);
    // The second fill of `b` and the one of `a`.
    assert_eq!(gpu.sim().report().queued_count, 2);
}

/// The outcomes under every schedule, and the number of schedules.
fn every_outcome<T: Ord>(program: impl Fn(&Machine) -> T) -> (BTreeSet<T>, usize) {
    let (mut outcomes, mut count) = (BTreeSet::new(), 0);
    let mut next = Some(Schedule::Choices(vec![]));
    while let Some(schedule) = next {
        let gpu = scheduled(schedule);
        outcomes.insert(program(&gpu));
        next = Schedule::next(&gpu.sim().choices());
        count += 1;
        assert!(count < 100_000);
    }
    (outcomes, count)
}

#[test]
fn every_order_of_two_streams_is_tried() {
    let (orders, count) = every_outcome(|gpu| {
        let (a, b, byte) = (gpu.stream(), gpu.stream(), gpu.alloc(4));
        let push = |stream, value| {
            gpu.copy(stream, byte + 1, byte, 3);
            gpu.fill(stream, byte, value, 1);
        };
        // Each push is two operations, so an operation of the other stream may run between them.
        push(a, 1);
        push(b, 2);
        gpu.sync(a);
        gpu.sync(b);
        gpu.download(a, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(orders), [1, 2]);
    assert!(count > 6, "{count} schedules");
}

#[test]
fn a_program_with_one_stream_that_waits_at_once_has_few_schedules() {
    let (outcomes, count) = every_outcome(|gpu| {
        let (stream, byte) = (gpu.stream(), gpu.alloc(1));
        gpu.fill(stream, byte, 5, 1);
        gpu.sync(stream);
        gpu.download(stream, byte, 1)[0]
    });
    // The operation runs at the end of the call that queues it, or when it is waited for.
    assert_eq!((Vec::from_iter(outcomes), count), (vec![5], 2));
}

#[test]
fn a_list_of_choices_repeats_its_outcome() {
    let under = |list: &[u32]| {
        let gpu = scheduled(Schedule::Choices(list.to_vec()));
        let (a, b, byte) = (gpu.stream(), gpu.stream(), gpu.alloc(1));
        gpu.fill(a, byte, 1, 1);
        gpu.fill(b, byte, 2, 1);
        // SAFETY: a context is current.
        unsafe { gpu.cuCtxSynchronize().unwrap() };
        (gpu.download(a, byte, 1)[0], gpu.sim().choices())
    };
    for list in [&[][..], &[1], &[0, 1], &[0, 0, 1], &[0, 2]] {
        assert_eq!(under(list), under(list));
        let taken: Vec<u32> = under(list).1.iter().map(|choice| choice.taken).collect();
        assert!(taken.starts_with(list) || list.len() > taken.len(), "{list:?} {taken:?}");
    }
}

#[test]
fn polling_ends_under_every_schedule() {
    for schedule in [Schedule::Late, Schedule::Early, Schedule::Choices(vec![])] {
        let gpu = scheduled(schedule);
        let (stream, byte) = (gpu.stream(), gpu.alloc(1));
        (0..20).for_each(|value| gpu.fill(stream, byte, value, 1));
        // SAFETY: handles are checked by the driver under test.
        while unsafe { gpu.cuStreamQuery(stream) }.is_err() {}
    }
}
