//! Injected bugs, one at a time, which the tests must find. Compiled with `--cfg gpumem_planted_bugs` only.

use core::sync::atomic::{AtomicU8, Ordering};

/// A bug in the heap, or in the pool over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A stream is taken to be behind what it is not behind.
    InvertedClocks = 1,
    /// Free neighbours stay apart.
    MissedCoalescing,
    /// A frame more than the limit allows.
    LimitOffByOne,
    /// An event is recorded, and only then the epoch is closed that it stands for.
    EventBeforeEpoch,
    /// A window is unmapped whose last uses are not known to be over.
    EarlyUnmap,
    /// Magazines are drained without being revoked.
    UnlockedDrain,
    /// Memory that the host may use is handed out again in its stream's order, with work on it still queued.
    HostInStreamOrder,
}

impl Bug {
    /// All of them, with the names by which they are asked for.
    pub const NAMES: [(&str, Self); 7] = [
        ("inverted-clocks", Self::InvertedClocks),
        ("missed-coalescing", Self::MissedCoalescing),
        ("limit-off-by-one", Self::LimitOffByOne),
        ("event-before-epoch", Self::EventBeforeEpoch),
        ("early-unmap", Self::EarlyUnmap),
        ("unlocked-drain", Self::UnlockedDrain),
        ("host-in-stream-order", Self::HostInStreamOrder),
    ];
}

/// Injects a bug into this process, in place of an earlier one.
///
/// # Safety
///
/// The pool keeps none of its promises any more: blocks may overlap, and threads may race.
pub unsafe fn inject(bug: Bug) {
    INJECTED.store(bug as u8, Ordering::Relaxed);
}

/// True if the bug was injected.
pub fn has(bug: Bug) -> bool {
    INJECTED.load(Ordering::Relaxed) == bug as u8
}

static INJECTED: AtomicU8 = AtomicU8::new(0);
