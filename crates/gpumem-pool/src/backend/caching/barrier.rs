//! Two barriers of unequal price: [`light`], which costs next to nothing, and [`heavy`], which pays for both.
//!
//! Two threads each write a word of their own and then read the other's. At least one of them must see what the other
//! wrote, so each needs a barrier between its write and its read. An owner who comes by millions of times a second makes
//! the light one, and others, who come rarely, the heavy one:
//!
//! - The *light* barrier only keeps the compiler from moving the read before the write. The processor may still read first,
//!   while the write waits in its store buffer.
//! - The *heavy* barrier asks the system (`membarrier`) to have every processor that runs a thread of this process make a
//!   full barrier before it returns; a thread that does not run has made one when it was taken off its processor. Look at
//!   where it falls into the owner's steps. Behind the owner's write: then the write is seen by whoever reads after the
//!   heavy barrier. Before the owner's write: then the owner's read comes later still, and sees all that was written before
//!   the heavy barrier. There is no third place.
//!
//! Where the system does not have that, both are full fences, for which the same holds by the language's own rules. Which
//! of the two it is, is decided once, by [`prepare`], before there is anything to protect.

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
use std::sync::Once;

/// What all light barriers are, in this process.
static KIND: AtomicU8 = AtomicU8::new(FENCES);
const FENCES: u8 = 0;
const ASYMMETRIC: u8 = 1;

/// Decides which barriers these are. Whoever makes something that they protect calls it first: what threads learn of that
/// thing comes after the decision.
pub(super) fn prepare() {
    static DECIDED: Once = Once::new();
    DECIDED.call_once(|| {
        if system::register() {
            KIND.store(ASYMMETRIC, Ordering::Relaxed);
        }
    });
}

/// Between the owner's write and his read.
#[inline(always)]
pub(super) fn light() {
    if KIND.load(Ordering::Relaxed) == ASYMMETRIC {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Between anybody else's write and his read.
#[cold]
pub(super) fn heavy() {
    fence(Ordering::SeqCst);
    if KIND.load(Ordering::Relaxed) == ASYMMETRIC && !system::barrier() {
        give_up();
    }
}

/// The system refuses what it once agreed to, as in a sandbox that was put up later. From now on all are fences. No
/// processor keeps a write to itself for as long as this waits, and none that is made later is light.
fn give_up() {
    KIND.store(FENCES, Ordering::SeqCst);
    std::thread::sleep(core::time::Duration::from_millis(10));
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::thread::{MembarrierCommand, membarrier};

    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    pub(super) fn barrier() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn barrier() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, AtomicU64};

    /// Both write a round's number, make their barriers, and read what the other wrote. In no round do both miss it.
    #[test]
    fn one_of_two_sees_the_other() {
        prepare();
        let rounds = if cfg!(miri) { 50 } else { 5_000 };
        let [owners, others] = [(); 2].map(|()| AtomicU32::new(0));
        let [begun, done] = [(); 2].map(|()| AtomicU64::new(0));
        let wait_for = |count: &AtomicU64, least| {
            while count.load(Ordering::Acquire) < least {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                let saw = |round: u32| {
                    begun.fetch_add(1, Ordering::AcqRel);
                    wait_for(&begun, 2 * u64::from(round));
                    owners.store(round, Ordering::Relaxed);
                    light();
                    let saw = others.load(Ordering::Relaxed) == round;
                    done.fetch_add(1, Ordering::AcqRel);
                    wait_for(&done, 2 * u64::from(round));
                    saw
                };
                (1..=rounds).map(saw).collect::<Vec<bool>>()
            });
            let saw = |round: u32| {
                begun.fetch_add(1, Ordering::AcqRel);
                wait_for(&begun, 2 * u64::from(round));
                others.store(round, Ordering::Relaxed);
                heavy();
                let saw = owners.load(Ordering::Relaxed) == round;
                done.fetch_add(1, Ordering::AcqRel);
                wait_for(&done, 2 * u64::from(round));
                saw
            };
            let other: Vec<bool> = (1..=rounds).map(saw).collect();
            assert!(owner.join().unwrap().into_iter().zip(other).all(|(one, other)| one || other));
        });
    }
}
