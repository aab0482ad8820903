//! Requests for room: their order, deadlines, futures, and what reservations set aside.

use crate::fixture::on_device_memory;
use gpumem_pool::{Device, Pool, PoolError, Reservation, Stream};
use gpumem_sim::SimConfig;
use pollster::block_on;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn pool_of(size_bytes: u64) -> (Pool, Stream) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    (Pool::builder(&device).hard_limit(size_bytes).build().unwrap(), Stream::new(&device).unwrap())
}

fn is_pending(future: &mut (impl Future<Output = Result<Reservation, PoolError>> + Unpin)) -> bool {
    matches!(std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
}

/// Sixteen clients, whose working sets are three times the limit together: none is refused, whatever the backend.
#[test]
fn a_service_refuses_nothing() {
    on_device_memory(&SimConfig::new().memory_bytes(256 * MIB), |at| {
        let pool = at.builder().hard_limit(64 * MIB).build().unwrap();
        let served = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for client in 0..16_u64 {
                let (pool, served) = (&pool, &served);
                scope.spawn(move || {
                    let stream = Stream::new(pool.device()).unwrap();
                    for request in 0..6 {
                        let parts = 1 + (client + request) % 5;
                        let room = pool.room(parts * 4 * MIB).within(Duration::from_secs(60)).wait().unwrap();
                        let drawing = room.scope();
                        let blocks: Vec<_> =
                            (0..parts).map(|_| pool.alloc(4 * MIB, &stream).unwrap()).collect();
                        assert!(!pool.status().unwrap().tags.is_empty());
                        drop((blocks, drawing, room));
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(served.into_inner(), 96);
        let status = pool.status().unwrap();
        assert_eq!(status.in_use_bytes, 0);
        assert!(status.in_use_peak_bytes <= 64 * MIB, "{status}");
    });
}

#[test]
fn what_is_set_aside_is_not_given_twice() {
    let (pool, stream) = pool_of(64 * MIB);
    let first = pool.room(40 * MIB).wait().unwrap();
    assert!(pool.room(32 * MIB).try_now().unwrap().is_none());
    let drawing = first.scope();
    let block = pool.alloc(30 * MIB, &stream).unwrap();
    drop(drawing);
    // Drawn or not, the first has 40 MiB.
    assert!(pool.room(32 * MIB).try_now().unwrap().is_none());
    let second = pool.room(24 * MIB).try_now().unwrap().expect("24 MiB are left");
    drop(first);
    // The block outlives its reservation, and counts.
    assert!(pool.room(32 * MIB).try_now().unwrap().is_none());
    drop(second);
    let third = pool.room(32 * MIB).try_now().unwrap().expect("34 MiB are left");
    drop((block, third));
    assert_eq!(pool.room(64 * MIB).try_now().unwrap().map(|room| room.size_bytes()), Some(64 * MIB));
}

/// Allocations outside of reservations take memory, too, and their frees are noticed.
#[test]
fn memory_that_others_free_makes_room() {
    let (pool, stream) = pool_of(64 * MIB);
    let block = pool.alloc(48 * MIB, &stream).unwrap();
    assert!(pool.room(32 * MIB).try_now().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.room(32 * MIB).wait());
        let awaited = scope.spawn(|| block_on(pool.room(32 * MIB).into_future()));
        drop(block);
        let rooms = (waiting.join().unwrap().unwrap(), awaited.join().unwrap().unwrap());
        assert_eq!(rooms.0.size_bytes() + rooms.1.size_bytes(), 64 * MIB);
    });
}

#[test]
fn a_deadline_ends_the_wait_with_the_reason() {
    let (pool, _) = pool_of(64 * MIB);
    let kept = pool.room(48 * MIB).wait().unwrap();
    let began = Instant::now();
    for refused in [
        pool.room(32 * MIB).within(Duration::from_millis(20)).wait().unwrap_err(),
        block_on(pool.room(32 * MIB).within(Duration::from_millis(20)).into_future()).unwrap_err(),
    ] {
        let PoolError::NoRoom(cause) = &refused else { panic!("{refused:?}") };
        assert_eq!((cause.requested_bytes, cause.most_bytes), (32 * MIB, 64 * MIB));
        assert_eq!((cause.free_bytes, cause.outstanding_bytes), (64 * MIB, 48 * MIB));
        assert_eq!((cause.reservation_count, cause.waiting_count), (1, 0));
        let text = refused.to_string();
        assert!(text.contains("48.000 MiB of that is set aside for 1 reservation"), "{text}");
    }
    assert!(began.elapsed() >= Duration::from_millis(40));
    drop(kept);
    // What gave up is not in the way.
    assert!(pool.room(64 * MIB).try_now().unwrap().is_some());
}

#[test]
fn a_request_beyond_the_limit_is_refused_at_once() {
    let (pool, _) = pool_of(64 * MIB);
    for refused in [
        pool.room(65 * MIB).wait().unwrap_err(),
        pool.room(65 * MIB).try_now().unwrap_err(),
        block_on(pool.room(u64::MAX).into_future()).unwrap_err(),
    ] {
        let text = refused.to_string();
        assert!(
            text.contains("which can have 64.000 MiB at most; ask for less, or raise the limit"),
            "{text}"
        );
    }
    // A higher limit lets it in, and wakes who waits.
    let kept = pool.room(64 * MIB).wait().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.room(16 * MIB).wait());
        pool.set_hard_limit(96 * MIB).unwrap();
        drop(waiting.join().unwrap().unwrap());
    });
    drop(kept);
}

/// Nothing is lost when a future is dropped: neither its place, nor what it was given and did not fetch.
#[test]
fn a_dropped_future_gives_up_its_place() {
    let (pool, _) = pool_of(64 * MIB);
    let kept = pool.room(48 * MIB).wait().unwrap();
    let mut large = pin!(pool.room(64 * MIB).into_future());
    let mut small = pool.room(32 * MIB).into_future();
    assert!(is_pending(&mut large.as_mut()) && is_pending(&mut small));
    drop(kept);
    // The first in the queue was given the room, and never polled.
    assert!(is_pending(&mut small));
    assert!(pool.room(MIB).try_now().unwrap().is_none());
    large.set(pool.room(64 * MIB).into_future());
    let admitted = block_on(small).unwrap();
    assert_eq!(admitted.size_bytes(), 32 * MIB);
    drop(admitted);
    assert_eq!(block_on(large).unwrap().size_bytes(), 64 * MIB);
}

/// A session keeps memory between its requests, under its tag.
#[test]
fn the_memory_of_a_tag_counts_for_its_requests() {
    let (pool, stream) = pool_of(64 * MIB);
    let session = pool.tag("session");
    let kept = pool.alloc_tagged(40 * MIB, &stream, &session).unwrap();
    assert!(pool.room(48 * MIB).try_now().unwrap().is_none());
    let room = pool.room(48 * MIB).tag(&session).try_now().unwrap().expect("it lacks 8 MiB");
    assert_eq!(room.tag().name(), "session");
    assert!(pool.room(24 * MIB).try_now().unwrap().is_none());
    drop((room, kept));
    assert!(pool.room(64 * MIB).try_now().unwrap().is_some());
}

/// Threads and futures together: everybody gets a turn, and room is never given beyond the limit.
#[test]
fn threads_and_futures_share_one_queue() {
    let (pool, _) = pool_of(64 * MIB);
    let held = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (pool, held) = (&pool, &held);
            scope.spawn(move || {
                for turn in 0..40 {
                    let parts = 1 + (thread * 7 + turn * 3) % 16;
                    let room = pool.room(parts * 4 * MIB);
                    let room = if (thread + turn) % 2 == 0 {
                        room.wait().unwrap()
                    } else if turn % 5 == 0 {
                        // Some give up.
                        match block_on(room.within(Duration::from_micros(300)).into_future()) {
                            Ok(room) => room,
                            Err(PoolError::NoRoom(_)) => continue,
                            Err(error) => panic!("{error}"),
                        }
                    } else {
                        block_on(room.into_future()).unwrap()
                    };
                    let before = held.fetch_add(parts as usize, Ordering::SeqCst);
                    assert!(before + parts as usize <= 16, "{before} + {parts}");
                    std::thread::yield_now();
                    held.fetch_sub(parts as usize, Ordering::SeqCst);
                    drop(room);
                }
            });
        }
    });
    assert!(pool.room(64 * MIB).try_now().unwrap().is_some());
}
