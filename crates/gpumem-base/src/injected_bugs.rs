//! Injected bugs, one at a time, which the tests must find. Compiled with `--cfg gpumem_planted_bugs` only.

use core::sync::atomic::{AtomicU8, Ordering};

/// A bug in the heap, or in the pool over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A stream counts as ordered behind work that it is not ordered behind.
    InvertedClocks = 1,
    /// Free neighbours are not merged.
    MissedCoalescing,
    /// The limit allows one page too much.
    LimitOffByOne,
    /// An event is recorded before the epoch that it stands for is closed.
    EventBeforeEpoch,
    /// A mapping is unmapped before its last uses are known to be complete.
    EarlyUnmap,
    /// Magazines are drained without being revoked.
    UnlockedDrain,
    /// Memory that the host may use is handed out in its stream's order, while work on it is still queued.
    HostInStreamOrder,
}

impl Bug {
    /// All bugs, with the names that select them.
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

/// Injects a bug into this process, and removes an earlier one.
///
/// # Safety
///
/// The pool is unsound from here on: blocks may overlap, and threads may race.
pub unsafe fn inject(bug: Bug) {
    INJECTED.store(bug as u8, Ordering::Relaxed);
}

/// True if the bug was injected.
pub fn has(bug: Bug) -> bool {
    INJECTED.load(Ordering::Relaxed) == bug as u8
}

static INJECTED: AtomicU8 = AtomicU8::new(0);
