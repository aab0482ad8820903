//! The lock word, the order of a stamp behind the pieces that it covers, the clocks, and the end of a pool, in every
//! interleaving that the memory model allows. These are the library's own sources, compiled over loom's threads.

#![allow(dead_code, reason = "the models use a part of what they compile")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(unreachable_pub, reason = "the library exports what this test does not")]
mod clock;
#[path = "../../src/backend/caching/lock.rs"]
mod lock;
#[cfg(feature = "planted-bugs")]
#[allow(unreachable_pub, reason = "the library exports what this test does not")]
#[path = "../../src/planted.rs"]
mod planted;
mod state;
mod sync;

use lock::Locked;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

#[test]
fn nobody_sees_half_a_change() {
    loom::model(|| {
        let pair = Arc::new(Locked::new((0, 0)));
        let owner = thread::spawn({
            let pair = Arc::clone(&pair);
            move || {
                for _ in 0..2 {
                    pair.with(|(left, right)| {
                        *left += 1;
                        *right += 1;
                    });
                }
            }
        });
        let drained = pair.with(core::mem::take).unwrap();
        owner.join().unwrap();
        let rest = pair.with(|pair| *pair).unwrap();
        assert_eq!(drained.0, drained.1);
        assert_eq!((drained.0 + rest.0, rest.1 - rest.0), (2, 0));
    });
}

#[test]
fn what_was_put_in_before_the_close_is_found_by_the_close_and_nothing_comes_later() {
    loom::model(|| {
        let count = Arc::new(Locked::new(0));
        let owner = thread::spawn({
            let count = Arc::clone(&count);
            move || [(); 2].map(|()| count.with(|count| *count += 1)).iter().flatten().count()
        });
        let closed_with = count.close(|count| *count).unwrap();
        assert_eq!(owner.join().unwrap(), closed_with);
        assert!(count.is_closed() && count.with(|_| ()).is_none());
    });
}

/// A thread queues work and then puts a piece in; another ticks: it opens an epoch, then records an event, which covers
/// what is queued by then. Whoever takes the piece out and then reads the epoch has a stamp whose event covers the work.
#[test]
fn a_stamp_read_after_the_piece_has_left_covers_the_work_before_its_free() {
    loom::model(|| {
        let set = Arc::new(Locked::new(None));
        let (queued, epoch, recorded) =
            (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let free = thread::spawn({
            let (set, queued) = (Arc::clone(&set), Arc::clone(&queued));
            move || {
                // The driver serialises what is queued on a stream.
                queued.fetch_add(1, Ordering::SeqCst);
                set.with(|piece| *piece = Some(1));
            }
        });
        let tick = thread::spawn({
            let (queued, epoch, recorded) = (Arc::clone(&queued), Arc::clone(&epoch), Arc::clone(&recorded));
            move || {
                let closes = epoch.fetch_add(1, Ordering::SeqCst);
                let covers = queued.fetch_add(0, Ordering::SeqCst);
                recorded.store(covers, Ordering::Release);
                closes
            }
        });
        let drained = set.with(Option::take).unwrap();
        let stamp = epoch.load(Ordering::SeqCst);
        free.join().unwrap();
        let closes = tick.join().unwrap();
        if drained.is_some() && stamp == closes {
            assert_eq!(recorded.load(Ordering::Acquire), 1, "the event is behind the work");
        }
    });
}
