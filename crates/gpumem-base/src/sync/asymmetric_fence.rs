//! Two fences of unequal cost: the light one is almost free, and the heavy one pays for both.
//!
//! Two threads each write a word of their own and then read the other's. At least one of them must see what the other wrote, so each needs
//! a fence between its write and its read. An owner that does this millions of times a second makes the light fence. Other threads, which
//! do it rarely, make the heavy one. The Linux kernel and Folly (`asymmetricThreadFenceLight`) use the same scheme.
//!
//! - The *light* fence only keeps the compiler from moving the read before the write. The processor may still read first, while the
//!   write waits in its store buffer.
//! - The *heavy* fence asks the system (`membarrier`) to have every processor that runs a thread of this process make a full fence before
//!   it returns; a thread that does not run made one when it was taken off its processor. If that fence comes after the owner's write, a
//!   read behind the heavy fence sees the write. If it comes before the owner's write, the owner's read comes later still and sees
//!   everything written before the heavy fence.
//!
//! Without `membarrier` both make full fences, and the language guarantees the same. [`is_light`] determines which of the two an
//! owner uses from now on. If the system refuses `membarrier` later, [`asymmetric_fence_heavy`] still works with owners that use
//! light fences, until they switch.

use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::sync::Once;

/// True if owners may make light fences from now on. Registers the process at the first call.
#[inline]
pub fn is_light() -> bool {
    static DECIDED: Once = Once::new();
    DECIDED.call_once(|| IS_LIGHT.store(system::register(), Ordering::Relaxed));
    IS_LIGHT.load(Ordering::Relaxed)
}

static IS_LIGHT: AtomicBool = AtomicBool::new(false);

/// The owner's fence between its write and its read, if [`is_light`].
#[inline(always)]
pub fn asymmetric_fence_light() {
    compiler_fence(Ordering::SeqCst);
}

/// The owner's fence between its write and its read, if not [`is_light`].
#[inline(always)]
pub fn fence() {
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Every other thread's fence between its write and its read. `are_light`: an owner may have made a light fence.
#[cold]
pub fn asymmetric_fence_heavy(are_light: bool) {
    fence();
    if are_light && !system::barrier() {
        give_up();
    }
}

/// Handles a system that refuses `membarrier` after accepting it, as in a sandbox that was set up later. Owners make full fences from now
/// on. The wait covers owners that have not noticed: no processor delays a write for that long.
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

    /// Both write a round's number, make their fences, and read what the other wrote. In no round do both miss it.
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
