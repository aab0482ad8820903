//! The lock of a thread's magazines, the order between a stamp and the blocks that it covers, the clocks, contents that move, and the end of
//! a pool, in every interleaving that the memory model allows. Compiled with `--cfg gpumem_loom` only.

#![cfg(gpumem_loom)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
mod moves;
mod state;

use gpumem_base::sync::{BiasedLock, MISSING, Missing, revoke_all};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The owner's access to the value; at any time one thread of a test is the owner.
#[allow(unsafe_code)]
fn own<T, R>(locked: &BiasedLock<T>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
    // SAFETY: in each test one thread calls this; another one only after the first has ended.
    unsafe { locked.own(work) }
}

/// The owner's access, without waiting.
#[allow(unsafe_code)]
fn try_own<T, R>(locked: &BiasedLock<T>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
    // SAFETY: like `own`.
    unsafe { locked.try_own(work) }
}

fn revoke<T, R>(locked: &BiasedLock<T>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
    revoke_all([((), locked)]).pop().map(|((), revoked)| revoked.with(work))
}

fn close<T, R>(locked: &BiasedLock<T>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
    revoke_all([((), locked)]).pop().map(|((), revoked)| revoked.close(work))
}

/// An owner and another thread access one value.
fn an_owner_and_another() {
    loom::model(|| {
        let pair = Arc::new(BiasedLock::new((0, 0)));
        let owner = thread::spawn({
            let pair = Arc::clone(&pair);
            move || {
                let raised = |(left, right): &mut (u32, u32)| {
                    *left += 1;
                    *right += 1;
                };
                [(); 2].map(|()| try_own(&pair, raised)).iter().flatten().count() as u32
            }
        });
        let drained = revoke(&pair, core::mem::take).unwrap();
        let count = owner.join().unwrap();
        let rest = own(&pair, |pair| *pair).unwrap();
        assert_eq!(drained.0, drained.1);
        assert_eq!((drained.0 + rest.0, rest.0), (count, rest.1));
    });
}

#[test]
fn nobody_sees_half_a_change() {
    an_owner_and_another();
}

/// Loom detects two threads that access one value concurrently.
#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_light_barrier_both_are_at_the_value() {
    MISSING.set(Missing::Light);
    an_owner_and_another();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_heavy_barrier_both_are_at_the_value() {
    MISSING.set(Missing::Heavy);
    an_owner_and_another();
}

#[test]
fn one_barrier_does_for_several() {
    loom::model(|| {
        let counts = [(); 2].map(|()| Arc::new(BiasedLock::new(0)));
        let owner = thread::spawn({
            let counts = counts.clone();
            move || counts.each_ref().map(|count| u32::from(try_own(count, |count| *count += 1).is_some()))
        });
        for (_, revoked) in revoke_all(counts.iter().map(|count| ((), &**count))) {
            revoked.with(|count| *count += 1);
        }
        let raised = owner.join().unwrap();
        assert_eq!(counts.map(|count| own(&count, |count| *count).unwrap()), raised.map(|raised| raised + 1));
    });
}

/// A value passes from one owner to the next while another thread revokes it for a moment.
#[test]
fn an_owner_after_another() {
    loom::model(|| {
        let count = Arc::new(BiasedLock::new(0));
        let drainer = thread::spawn({
            let count = Arc::clone(&count);
            move || revoke(&count, core::mem::take).unwrap()
        });
        let first = thread::spawn({
            let count = Arc::clone(&count);
            move || own(&count, |count| *count += 1)
        });
        first.join().unwrap();
        own(&count, |count| *count += 1).unwrap();
        let drained = drainer.join().unwrap();
        assert_eq!(drained + own(&count, |count| *count).unwrap(), 2);
    });
}

#[test]
fn what_was_put_in_before_the_close_is_found_by_the_close_and_nothing_comes_later() {
    loom::model(|| {
        let count = Arc::new(BiasedLock::new(0));
        let owner = thread::spawn({
            let count = Arc::clone(&count);
            move || [(); 2].map(|()| own(&count, |count| *count += 1)).iter().flatten().count()
        });
        let closed_with = close(&count, |count| *count).unwrap();
        assert_eq!(owner.join().unwrap(), closed_with);
        assert!(count.is_closed() && revoke(&count, |_| ()).is_none() && own(&count, |_| ()).is_none());
    });
}

/// A thread queues work and then puts a block into the depot. Another makes a marker: it opens an epoch, then records an event,
/// which covers all work queued by then. A thread that takes the block and then reads the epoch gets a stamp whose event covers
/// the work.
#[test]
fn a_stamp_read_after_the_piece_has_left_covers_the_work_before_its_free() {
    loom::model(|| {
        let set = Arc::new(BiasedLock::new(None));
        let (queued, epoch, recorded) =
            (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let free = thread::spawn({
            let (set, queued) = (Arc::clone(&set), Arc::clone(&queued));
            move || {
                // The driver serialises the work queued on a stream.
                queued.fetch_add(1, Ordering::SeqCst);
                own(&set, |piece| *piece = Some(1));
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
        let drained = revoke(&set, Option::take).unwrap();
        let stamp = epoch.load(Ordering::SeqCst);
        free.join().unwrap();
        let closes = tick.join().unwrap();
        if drained.is_some() && stamp == closes {
            assert_eq!(recorded.load(Ordering::Acquire), 1, "the event is behind the work");
        }
    });
}
