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
//! Where the system does not have that, both make full fences, for which the same holds by the language's own rules.
//! [`is_light`] says which of the two to begin with; owners who began with light barriers are met with heavy ones until they
//! know better, whatever it says by then.

use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::sync::Once;

/// Whether owners may make light barriers from now on. The process is registered first.
pub(super) fn is_light() -> bool {
    static DECIDED: Once = Once::new();
    DECIDED.call_once(|| IS_LIGHT.store(system::register(), Ordering::Relaxed));
    IS_LIGHT.load(Ordering::Relaxed)
}

static IS_LIGHT: AtomicBool = AtomicBool::new(false);

/// Between the owner's write and his read, where he may.
#[inline(always)]
pub(super) fn asymmetric_fence_light() {
    compiler_fence(Ordering::SeqCst);
}

/// The same where he may not.
#[inline(always)]
pub(super) fn fence() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Between anybody else's write and his read, if one of the owners may have made a light one, or none.
#[cold]
pub(super) fn asymmetric_fence_heavy(are_light: bool) {
    fence();
    if are_light && !system::barrier() {
        give_up();
    }
}

/// The system refuses what it once agreed to, as in a sandbox that was put up later. From now on owners make fences; until
/// one knows, the others wait here: no processor keeps a write to itself for as long.
fn give_up() {
    IS_LIGHT.store(false, Ordering::Relaxed);
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
        let is_light = is_light();
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
                    if is_light {
                        asymmetric_fence_light()
                    } else {
                        fence()
                    }
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
                asymmetric_fence_heavy(is_light);
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
