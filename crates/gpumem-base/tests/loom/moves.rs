//! A call that uses memory, a holder that keeps its address, and a thread that moves the contents away and back.

use gpumem_base::sync::MovableAddress;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Two places for the contents. Loom detects an access to a place while the contents move.
struct Contents {
    address: MovableAddress<2>,
    places: [UnsafeCell<u32>; 2],
    calls: AtomicU32,
    turn: Mutex<()>,
}

/// What is left out, to show that loom detects it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// The wait for calls that have begun.
    Wait,
    /// The question whether somebody holds the address.
    Pins,
}

#[allow(unsafe_code)]
impl Contents {
    fn new() -> Arc<Self> {
        let places = [UnsafeCell::new(7), UnsafeCell::new(0)];
        Arc::new(Self {
            address: MovableAddress::new(1),
            places,
            calls: AtomicU32::new(0),
            turn: Mutex::new(()),
        })
    }

    fn read(&self) {
        let place = &self.places[usize::try_from(self.address.get()).unwrap() - 1];
        // SAFETY: what the tests are about; loom fails if a write may happen at the same time.
        assert_eq!(place.with(|value| unsafe { *value }), 7);
    }

    /// A call. False if the address was closed.
    fn call(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_open = self.address.is_open();
        if is_open {
            self.read();
        }
        self.calls.fetch_sub(1, Ordering::Release);
        is_open
    }

    /// Holds the address, outside of calls.
    fn hold(&self) {
        self.address.pin(1);
        drop(self.turn.lock().unwrap());
        self.read();
        self.address.unpin(1);
    }

    /// Moves the contents to the other place. False if they stay.
    fn move_contents(&self, left: Left) -> bool {
        let _turn = self.turn.lock().unwrap();
        assert!(self.address.close());
        fence(Ordering::SeqCst);
        while left != Left::Wait && self.calls.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        if left != Left::Pins && self.address.is_pinned() {
            self.address.open();
            return false;
        }
        let from = usize::try_from(self.address.get()).unwrap() - 1;
        self.address.leave();
        // SAFETY: like `read`.
        unsafe {
            self.places[from].with_mut(|value| *value = 0);
            self.places[1 - from].with_mut(|value| *value = 7);
        }
        self.address.arrive(2 - from as u64);
        true
    }
}

fn uses_and_a_move(left: Left) {
    loom::model(move || {
        let contents = Contents::new();
        let user = thread::spawn({
            let contents = Arc::clone(&contents);
            move || {
                contents.call();
                contents.call();
            }
        });
        contents.move_contents(left);
        user.join().unwrap();
        assert!(contents.call());
    });
}

fn a_holder_and_a_move(left: Left) {
    loom::model(move || {
        let contents = Contents::new();
        let holder = thread::spawn({
            let contents = Arc::clone(&contents);
            move || contents.hold()
        });
        contents.move_contents(left);
        holder.join().unwrap();
        assert!(contents.move_contents(Left::Nothing));
    });
}

#[test]
fn contents_do_not_move_during_a_call() {
    uses_and_a_move(Left::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_wait_they_move_during_a_call() {
    uses_and_a_move(Left::Wait);
}

#[test]
fn contents_do_not_move_while_somebody_holds_the_address() {
    a_holder_and_a_move(Left::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_question_they_move_under_a_holder() {
    a_holder_and_a_move(Left::Pins);
}
