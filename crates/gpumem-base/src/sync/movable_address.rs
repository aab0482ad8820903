//! [`MovableAddress`]: the address of memory whose contents may move, for calls that use it while others move them.
//!
//! A call counts itself, and then asks whether the address is *open*. Who moves the contents closes it, makes a fence, and waits until all
//! calls that had begun have ended: calls that begin later find it closed and use nothing. So an address that a call found open is valid until
//! the call ends. Who keeps the address longer *pins* it first; contents that are pinned after the calls have ended stay.

use super::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// An address that may change, with the holders that keep it, of several kinds.
#[derive(Debug)]
pub struct MovableAddress<const KINDS: usize> {
    /// 0 while the contents are away. It stays until all calls have ended that found it open.
    address: AtomicU64,
    is_open: AtomicBool,
    /// The numbers of holders, by kind.
    pins: [AtomicU32; KINDS],
}

impl<const KINDS: usize> MovableAddress<KINDS> {
    /// An open address.
    pub fn new(address: u64) -> Self {
        let pins = core::array::from_fn(|_| AtomicU32::new(0));
        Self { address: AtomicU64::new(address), is_open: AtomicBool::new(true), pins }
    }

    /// The address: valid in a call that has found it open, and for a holder that was there before the contents moved.
    #[inline]
    pub fn get(&self) -> u64 {
        self.address.load(Ordering::Acquire)
    }

    /// True, in a counted call, if the address is valid until the call ends.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Closes the address for calls that begin from now on. False if it was closed. One thread at a time closes and opens.
    pub fn close(&self) -> bool {
        self.is_open.swap(false, Ordering::SeqCst)
    }

    /// Opens an address that was closed, because the contents stay.
    pub fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// The contents have left: no call uses the address.
    pub fn leave(&self) {
        self.address.store(0, Ordering::Release);
    }

    /// The contents have this address from now on.
    pub fn arrive(&self, address: u64) {
        self.address.store(address, Ordering::Release);
        self.open();
    }

    /// Adds a holder of a kind. It counts for who moves contents after this call; the holder then waits for who moves them now.
    pub fn pin(&self, kind: usize) {
        if let Some(count) = self.pins.get(kind) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Ends a holder.
    pub fn unpin(&self, kind: usize) {
        if let Some(count) = self.pins.get(kind) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The first kind of which there are holders.
    pub fn holder(&self) -> Option<usize> {
        self.pins.iter().position(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// True if there are holders.
    pub fn is_pinned(&self) -> bool {
        self.holder().is_some()
    }
}
