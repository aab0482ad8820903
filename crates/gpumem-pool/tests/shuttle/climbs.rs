//! Threads that climb the ladder at once, against a limit that has room for all of them: nobody is refused, and nothing
//! is lost.

use crate::ladder::climb;
use crate::magazine::{Own, Piece};
use crate::recent::{Large, Step};
use crate::world::clock::{Order, Slot};
use crate::world::heap::{PIECE_BYTES, Request};
use crate::world::shared::{Lack, Shared};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use shuttle::thread;

const THREADS: u16 = 3;
const ROUNDS: usize = 6;
const CLAIM_COUNT: usize = 2;

fn alloc(shared: &Shared, set: Own<'_>) -> Piece {
    let request = Request { size_bytes: PIECE_BYTES, slot: Slot(set.stream() as u16) };
    shared.give_recent(&mut shared.core(), set);
    let ready = {
        let mut core = shared.core();
        let ready = core.heap.take_ready(&request, shared.clocks());
        ready.iter().for_each(|_| core.counters.count_out(PIECE_BYTES));
        ready
    };
    let piece = ready.unwrap_or_else(|| {
        let piece = climb(shared, &request, PIECE_BYTES, &mut Lack::default()).unwrap();
        shared.core().counters.count_out(PIECE_BYTES);
        piece.expect("refused though there is room")
    });
    set.note_out(piece.record, 0);
    assert!(shared.core().is_out(piece));
    piece
}

fn free(shared: &Shared, set: Own<'_>, piece: Piece) {
    let stamp = shared.clocks().stamp(Slot(set.stream() as u16));
    let large = Large { piece, size_bytes: PIECE_BYTES, step: Step::floor(PIECE_BYTES), stamp: stamp.into() };
    if !set.put_large(large) {
        shared.give_recent(&mut shared.core(), set);
        assert!(set.put_large(large));
    }
}

/// Threads claim what they are about to ask for, one block or two, of `CLAIM_COUNT` for all.
fn crowd(limit_count: usize) {
    let shared = Arc::new(Shared::new(limit_count as u64 * PIECE_BYTES));
    let claimed = Arc::new(AtomicUsize::new(0));
    let workers = (0..THREADS).map(|number| {
        let (shared, claimed) = (Arc::clone(&shared), Arc::clone(&claimed));
        thread::spawn(move || {
            let set = shared.front.adopt(u64::from(number)).unwrap();
            for round in 0..ROUNDS {
                // SAFETY: this thread has just adopted it, and uses one view at a time.
                let own = unsafe { set.own() };
                let count = 1 + (round + usize::from(number)) % 2;
                let sum = |held: usize| Some(held + count).filter(|sum| *sum <= CLAIM_COUNT);
                while claimed.fetch_update(SeqCst, SeqCst, sum).is_err() {
                    thread::yield_now();
                }
                let pieces: Vec<Piece> = (0..count).map(|_| alloc(&shared, own)).collect();
                shared.clocks().tick(Slot(number)).unwrap();
                pieces.into_iter().for_each(|piece| free(&shared, own, piece));
                claimed.fetch_sub(count, SeqCst);
            }
            set.hand_over();
        })
    });
    let workers: Vec<_> = workers.collect();
    shared.drain_all();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    shared.drain_all();
    shared.device.finish().unwrap();
    let mut core = shared.core();
    assert!(core.heap.reserved_bytes() <= limit_count as u64 * PIECE_BYTES);
    core.heap.trim(0, shared.clocks(), &mut shared.vmm()).unwrap();
    assert_eq!(core.heap.reserved_bytes(), 0, "something is lost");
    let is_any_left = shared.clocks().is_complete(shared.clocks().stamp(Slot(0)));
    assert!(!is_any_left, "what is stamped now is not done yet");
}

#[test]
fn nobody_is_refused_what_there_is_room_for() {
    crate::check(|| crowd(CLAIM_COUNT));
    crate::check_with_pauses(|| crowd(CLAIM_COUNT));
}

/// The model sees it if somebody is.
#[test]
#[should_panic(expected = "refused though there is room")]
fn too_little_room_is_seen() {
    crate::check(|| crowd(CLAIM_COUNT - 1));
}
