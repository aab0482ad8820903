//! The open descriptors of the socket. A forked child closes its copies: otherwise clients would wait for answers of a child that gives
//! none, after its parent has ended.

use core::sync::atomic::{AtomicI32, Ordering};
use gpumem_sys::fork;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;

/// One of the places for descriptors.
pub(super) struct OpenDescriptor(&'static AtomicI32);

impl OpenDescriptor {
    /// Notes an open descriptor. Without a free place, a forked child keeps its copy open.
    pub(super) fn new(of: &impl AsRawFd) -> Option<Self> {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| fork::run_in_children(close_all));
        let place = OPEN.iter().find(|place| place.load(Ordering::Relaxed) == NONE)?;
        // Only the thread of the socket notes descriptors.
        place.store(of.as_raw_fd(), Ordering::SeqCst);
        Some(Self(place))
    }

    /// Called before the descriptor is closed.
    pub(super) fn end(&self) {
        self.0.store(NONE, Ordering::SeqCst);
    }
}

extern "C" fn close_all() {
    for place in &OPEN {
        let descriptor = place.swap(NONE, Ordering::SeqCst);
        if descriptor != NONE {
            // SAFETY: the descriptor is open in this process, a copy of the parent's. Its owner is the parent's thread of the socket, which
            // does not exist here, so nothing here uses or closes it.
            unsafe { rustix::io::close(descriptor) };
        }
    }
}

static OPEN: [AtomicI32; PLACE_COUNT] = [const { AtomicI32::new(NONE) }; PLACE_COUNT];

const NONE: RawFd = -1;
/// The listener, all clients, and one that is refused.
const PLACE_COUNT: usize = 66;
