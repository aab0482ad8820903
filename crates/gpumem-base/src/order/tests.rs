//! The clocks against a naive twin: sets of operations instead of numbers.

use super::epochs::{Epochs, Seen};
use super::{Order, Stamp, StreamId, StreamIndex};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The steps of a program, by stream. A stream queues an operation before each stamp and each marker, so that the two differ: in between,
/// the numbers are coarser than the sets, on the safe side.
#[derive(Clone, Debug)]
enum Step {
    /// A block is freed on the stream.
    Stamp(u16),
    /// An event is recorded.
    Mark(u16),
    /// The stream waits for an event; the driver accepts or refuses.
    Wait(u16, usize, bool),
    /// An event is complete.
    Seen(usize),
    /// The host waits for the stream.
    Finish(u16),
    /// The stream ends, the host waits for it, and another stream gets its index.
    Replace(u16),
}

type Operation = (u16, u32);
type Set = BTreeSet<Operation>;

/// Everything that is ordered before, written out.
#[derive(Default)]
struct Twin {
    /// For each stream, all operations before its next operation.
    before: [Set; STREAM_COUNT as usize],
    complete: Set,
    operation_count: u32,
}

struct Stamped {
    stamp: Stamp,
    operation: Operation,
}

struct Event {
    covered: Box<[Stamp]>,
    before: Set,
}

impl Twin {
    fn queue(&mut self, stream: u16) -> Operation {
        self.operation_count += 1;
        let operation = (stream, self.operation_count);
        self.before[usize::from(stream)].insert(operation);
        operation
    }
}

#[derive(Default)]
struct World {
    twin: Twin,
    stamps: Vec<Stamped>,
    events: Vec<Event>,
    generation: u64,
}

impl World {
    fn step(&mut self, epochs: &Epochs, step: &Step) {
        match *step {
            Step::Stamp(stream) => {
                let operation = self.twin.queue(stream);
                self.stamps.push(Stamped { stamp: epochs.stamp(StreamIndex(stream)), operation });
            }
            Step::Mark(stream) => {
                let covered = epochs.close(StreamIndex(stream)).unwrap();
                self.twin.queue(stream);
                let before = self.twin.before[usize::from(stream)].clone();
                self.events.push(Event { covered, before });
            }
            Step::Wait(stream, event, agreed) => {
                let Some(event) = pick(&self.events, event).filter(|_| agreed) else { return };
                self.twin.before[usize::from(stream)].extend(&event.before);
                epochs.raise_order(StreamIndex(stream), &event.covered);
            }
            Step::Seen(event) => {
                let Some(event) = pick(&self.events, event) else { return };
                self.twin.complete.extend(&event.before);
                epochs.raise_complete(&event.covered);
            }
            Step::Finish(stream) => {
                let covered = epochs.close(StreamIndex(stream)).unwrap();
                self.twin.complete.extend(&self.twin.before[usize::from(stream)]);
                epochs.raise_complete(&covered);
            }
            Step::Replace(stream) => {
                epochs.raise_complete(&epochs.close_for_good(StreamIndex(stream)));
                let before = core::mem::take(&mut self.twin.before[usize::from(stream)]);
                self.twin.complete.extend(before);
                self.generation += 1;
                epochs.open(StreamId::new(self.generation, StreamIndex(stream)));
            }
        }
    }

    fn check(&self, epochs: &Epochs) -> Result<(), TestCaseError> {
        for Stamped { stamp, operation } in &self.stamps {
            let is_complete = self.twin.complete.contains(operation);
            prop_assert_eq!(epochs.is_complete(*stamp), is_complete, "{:?} complete", stamp);
            for index in 0..STREAM_COUNT {
                let knows = self.twin.before[usize::from(index)].contains(operation);
                let is_ordered = knows || is_complete || operation.0 == index;
                prop_assert_eq!(
                    epochs.is_ordered(*stamp, StreamIndex(index)),
                    is_ordered,
                    "{:?} on {}",
                    stamp,
                    index
                );
            }
        }
        Ok(())
    }
}

fn pick<T>(list: &[T], index: usize) -> Option<&T> {
    list.get(index.checked_rem(list.len())?)
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAM_COUNT;
    prop_oneof![
        4 => stream().prop_map(Step::Stamp),
        3 => stream().prop_map(Step::Mark),
        4 => (stream(), 0..32_usize, prop::bool::weighted(0.9)).prop_map(|(s, e, ok)| Step::Wait(s, e, ok)),
        1 => (0..32_usize).prop_map(Step::Seen),
        1 => stream().prop_map(Step::Finish),
        1 => stream().prop_map(Step::Replace),
    ]
}

proptest! {
    #[test]
    fn numbers_answer_as_sets_do(steps in prop::collection::vec(step(), 1..60)) {
        let (epochs, mut world) = (Epochs::new(), World::default());
        for index in 0..STREAM_COUNT {
            epochs.open(StreamId::new(0, StreamIndex(index)));
        }
        let mut seen = Seen::new();
        for step in &steps {
            world.step(&epochs, step);
            world.check(&epochs)?;
            prop_assert_eq!(epochs.check(usize::from(STREAM_COUNT), &mut seen), Ok(()));
        }
    }
}

#[test]
fn a_clock_that_is_ahead_or_goes_back_is_told() {
    let (epochs, mut seen) = (Epochs::new(), Seen::new());
    (0..2).for_each(|index| epochs.open(StreamId::new(1, StreamIndex(index))));
    epochs.raise_order(StreamIndex(0), &[Stamp::new(StreamIndex(1), 1)]);
    epochs.check(2, &mut seen).unwrap();
    for what in ["epoch", "complete", "ordered before it"] {
        let mut seen: Seen =
            seen.iter().map(|(name, count)| (*name, count + u64::from(name.0 == what))).collect();
        let said = epochs.check(2, &mut seen).unwrap_err();
        assert!(said.contains(&format!("{what} went back")), "{said}");
    }
    epochs.raise_complete(&[Stamp::new(StreamIndex(1), 99)]);
    let said = epochs.check(2, &mut seen).unwrap_err();
    assert_eq!(said, "stream 1: 99 of stream 1 is complete, in epoch 2");
}

#[test]
fn a_stamp_is_of_its_stream_or_of_none() {
    let epochs = Epochs::new();
    let (first, second) = (StreamId::new(1, StreamIndex(3)), StreamId::new(2, StreamIndex(3)));
    epochs.open(first);
    let stamp = epochs.stamp_of(first);
    assert_eq!((stamp.stream_index(), stamp), (StreamIndex(3), epochs.stamp(StreamIndex(3))));
    epochs.raise_complete(&epochs.close_for_good(StreamIndex(3)));
    epochs.open(second);
    assert_eq!(epochs.stamp_of(first), Stamp::COMPLETE);
    assert!(epochs.is_complete(stamp) && epochs.is_complete(Stamp::COMPLETE));
    assert!(epochs.stamp_of(second) > stamp && !epochs.is_complete(epochs.stamp_of(second)));
}

#[test]
fn slots_far_apart_are_kept_apart() {
    let epochs = Epochs::new();
    let [low, high] = [StreamIndex(0), StreamIndex(StreamIndex::COUNT_MAX as u16 - 1)];
    let (stamp, covered) = (epochs.stamp(high), epochs.close(high).unwrap());
    assert!(!epochs.is_ordered(stamp, low));
    epochs.raise_order(low, &covered);
    assert!(epochs.is_ordered(stamp, low) && !epochs.is_ordered(epochs.stamp(high), low));
    assert!(!epochs.is_ordered(stamp, StreamIndex(64)));
    let covered = epochs.close(low).unwrap();
    assert_eq!(covered.len(), 2, "what the stream waited for goes along: {covered:?}");
    epochs.raise_order(StreamIndex(64), &covered);
    assert!(epochs.is_ordered(stamp, StreamIndex(64)));
}

const STREAM_COUNT: u16 = 4;
