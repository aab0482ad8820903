//! The clocks: the guarantee of a `true` result to its reader.

use gpumem_base::order::{Epochs, Order, Stamp, StreamId, StreamIndex};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

fn stream() -> StreamId {
    StreamId::new(1, SLOT)
}

const SLOT: StreamIndex = StreamIndex(1);
const OTHER: StreamIndex = StreamIndex(2);
const THIRD: StreamIndex = StreamIndex(3);

fn clocks() -> Arc<Epochs> {
    let epochs = Arc::new(Epochs::new());
    epochs.open(stream());
    // Loom tracks only atomics created before the threads of the model.
    for slot in [SLOT, OTHER, THIRD] {
        epochs.raise_order(slot, &[Stamp::new(slot, 0)]);
        epochs.stamp(slot);
    }
    epochs
}

/// A thread queues work and takes its stamp; another makes a marker. If the marker covers the stamp, the work was queued before the
/// marker.
#[test]
fn a_mark_covers_the_work_behind_every_stamp_that_it_closes() {
    loom::model(|| {
        let epochs = clocks();
        // The driver serialises the work queued on a stream.
        let queued = Arc::new(Mutex::new(false));
        let user = thread::spawn({
            let (epochs, queued) = (Arc::clone(&epochs), Arc::clone(&queued));
            move || {
                *queued.lock().unwrap() = true;
                epochs.stamp(SLOT)
            }
        });
        let covered = epochs.close(SLOT).unwrap();
        let was_queued = *queued.lock().unwrap();
        let stamp = user.join().unwrap();
        epochs.raise_complete(&covered);
        assert!(was_queued || !epochs.is_complete(stamp), "{stamp:?} is not behind {covered:?}");
    });
}

/// If a thread reads that a stamp is ordered before a stream, the work that it queues there runs behind the wait.
#[test]
fn an_order_that_is_seen_has_been_queued() {
    loom::model(|| {
        let epochs = clocks();
        let waits = Arc::new(AtomicBool::new(false));
        let stamp = epochs.stamp(SLOT);
        let waiter = thread::spawn({
            let (epochs, waits) = (Arc::clone(&epochs), Arc::clone(&waits));
            move || {
                let covered = epochs.close(SLOT).unwrap();
                waits.store(true, Ordering::Relaxed);
                epochs.raise_order(OTHER, &covered);
            }
        });
        assert!(!epochs.is_ordered(stamp, OTHER) || waits.load(Ordering::Relaxed));
        waiter.join().unwrap();
        assert!(epochs.is_ordered(stamp, OTHER) && !epochs.is_complete(stamp));
    });
}

/// Two concurrent markers: each closes an epoch of its own, and both include what was known about a third stream.
#[test]
fn marks_made_at_once_close_different_epochs() {
    loom::model(|| {
        let epochs = clocks();
        let known = Stamp::new(THIRD, 1);
        epochs.raise_order(SLOT, &[known]);
        let marks = [(); 2].map(|()| {
            let epochs = Arc::clone(&epochs);
            thread::spawn(move || epochs.close(SLOT).unwrap())
        });
        let [one, two] = marks.map(|mark| mark.join().unwrap());
        assert_ne!(one[0], two[0]);
        assert_eq!((one[1], two[1]), (known, known));
        assert!(epochs.stamp(SLOT) > one[0].max(two[0]));
    });
}

/// A stream has ended, its last marker is complete, and its index is reused by another stream, while a block of the old stream is
/// dropped. The stamp of that block is complete only once the old stream's work is; the new stream's work is not.
#[test]
fn a_slot_that_goes_to_another_stream_misleads_nobody() {
    loom::model(|| {
        let epochs = clocks();
        let (last, done) = (epochs.close_for_good(SLOT), Arc::new(AtomicBool::new(false)));
        let device = thread::spawn({
            let (epochs, done) = (Arc::clone(&epochs), Arc::clone(&done));
            move || {
                done.store(true, Ordering::Relaxed);
                epochs.raise_complete(&last);
            }
        });
        let taker = thread::spawn({
            let epochs = Arc::clone(&epochs);
            move || {
                let is_free = epochs.is_complete(epochs.stamp(SLOT));
                if is_free {
                    epochs.open(StreamId::new(2, SLOT));
                    assert!(!epochs.is_complete(epochs.stamp(SLOT)));
                }
            }
        });
        let stamp = epochs.stamp_of(stream());
        assert!(!epochs.is_complete(stamp) || done.load(Ordering::Relaxed), "{stamp:?} too early");
        device.join().unwrap();
        taker.join().unwrap();
    });
}
