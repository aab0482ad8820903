//! The open scopes of each thread, and what they count; [`Scope`](crate::Scope) and [`Tag`](crate::Tag) open them.

use crate::stats::{Share, Tags};
use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

/// The allocations and frees of one thread within a scope, for blocks that were allocated in scopes of the same
/// pool. A nested scope adds its usage when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ScopeUsage {
    /// The sum of allocated bytes, including growable blocks.
    pub allocated_bytes: u64,
    /// The number of allocated blocks, without growable blocks.
    pub allocation_count: u64,
    /// The sum of freed bytes, including blocks that were allocated earlier in another scope.
    pub freed_bytes: u64,
    /// The number of freed blocks, without growable blocks.
    pub free_count: u64,
    /// The maximum increase of the bytes in use since the beginning of the scope.
    pub peak_bytes: u64,
}

/// An open scope, used only by its thread.
struct Frame {
    number: u64,
    /// The serial number of the pool's tags.
    serial: u64,
    tag: u16,
    share: Arc<Share>,
    usage: FrameUsage,
}

/// The usage of an open scope, in as few sums as give all fields of [`ScopeUsage`].
///
/// The two sums that a free changes are not neighbours: one wide load of both, just after an allocation has written one of
/// them, would wait until that store is complete.
#[derive(Default)]
#[repr(C)]
struct FrameUsage {
    /// The allocated bytes minus the freed bytes. Live memory is less than 8 EiB, so this does not overflow.
    rise_bytes: Cell<i64>,
    allocated_bytes: Cell<u64>,
    allocation_count: Cell<u64>,
    free_count: Cell<u64>,
    peak_bytes: Cell<i64>,
}

impl Frame {
    /// Counts an allocation. Returns the share if [`Share::note_rise`] is due.
    #[inline]
    fn count_out(&self, size_bytes: u64) -> Option<&Share> {
        self.usage.count_out(size_bytes);
        self.share.count_out_only(size_bytes).then_some(&*self.share)
    }

    #[inline]
    fn count_in(&self, size_bytes: u64) {
        self.usage.count_in(size_bytes);
        self.share.count_in(size_bytes);
    }
}

impl FrameUsage {
    #[inline]
    fn count_out(&self, size_bytes: u64) {
        self.allocation_count.set(self.allocation_count.get() + 1);
        self.grow(size_bytes);
    }

    #[inline]
    fn count_in(&self, size_bytes: u64) {
        self.free_count.set(self.free_count.get() + 1);
        self.shrink(size_bytes);
    }

    #[inline]
    fn grow(&self, bytes: u64) {
        add(&self.allocated_bytes, bytes);
        let rise_bytes = self.rise_bytes.get().wrapping_add_unsigned(bytes);
        self.rise_bytes.set(rise_bytes);
        self.note_peak(rise_bytes);
    }

    #[inline]
    fn shrink(&self, bytes: u64) {
        self.rise_bytes.set(self.rise_bytes.get().wrapping_sub_unsigned(bytes));
    }

    #[inline]
    fn note_peak(&self, rise_bytes: i64) {
        if rise_bytes > self.peak_bytes.get() {
            self.peak_bytes.set(rise_bytes);
        }
    }

    fn change(&self, from_bytes: u64, to_bytes: u64) {
        match to_bytes.checked_sub(from_bytes) {
            Some(more_bytes) => self.grow(more_bytes),
            None => self.shrink(from_bytes - to_bytes),
        }
    }

    fn add(&self, inner: &Self) {
        let rise_bytes = self.rise_bytes.get();
        self.note_peak(rise_bytes.saturating_add(inner.peak_bytes.get()));
        self.rise_bytes.set(rise_bytes.saturating_add(inner.rise_bytes.get()));
        add(&self.allocated_bytes, inner.allocated_bytes.get());
        add(&self.allocation_count, inner.allocation_count.get());
        add(&self.free_count, inner.free_count.get());
    }

    fn usage(&self) -> ScopeUsage {
        let (allocated_bytes, rise_bytes) = (self.allocated_bytes.get(), self.rise_bytes.get());
        ScopeUsage {
            allocated_bytes,
            allocation_count: self.allocation_count.get(),
            freed_bytes: allocated_bytes.saturating_add_signed(rise_bytes.saturating_neg()),
            free_count: self.free_count.get(),
            peak_bytes: self.peak_bytes.get().unsigned_abs(),
        }
    }
}

#[inline]
fn add(sum: &Cell<u64>, more: u64) {
    match sum.get().checked_add(more) {
        Some(added) => sum.set(added),
        None => saturate(sum),
    }
}

#[cold]
fn saturate(sum: &Cell<u64>) {
    sum.set(u64::MAX);
}

#[derive(Default)]
struct Frames(Vec<Rc<Frame>>);

impl Drop for Frames {
    fn drop(&mut self) {
        HERE.with(Here::clear);
    }
}

/// The part of a thread's scopes that it finds without a search: the number of open scopes, and the innermost frame of one pool.
pub(crate) struct Here {
    open_count: Cell<u32>,
    /// The serial number of the pool's tags; 0 if there is no frame.
    serial: Cell<u64>,
    frame: Cell<*const Frame>,
}

impl Here {
    fn clear(&self) {
        self.serial.set(0);
    }

    fn set(&self, frame: &Rc<Frame>) {
        self.frame.set(Rc::as_ptr(frame));
        self.serial.set(frame.serial);
    }
}

/// Opens a frame on this thread, until the result is dropped.
pub(crate) fn open(tags: &Tags, tag: u16) -> Open {
    let number = NEXT.replace(NEXT.get() + 1);
    // A thread whose destructors have run has neither shares nor scopes.
    if let Some(share) = tags.share(tag) {
        let frame = Rc::new(Frame { number, serial: tags.serial, tag, share, usage: FrameUsage::default() });
        let opened = FRAMES.try_with(|frames| {
            HERE.with(|here| here.set(&frame));
            frames.borrow_mut().0.push(frame);
        });
        if opened.is_ok() {
            HERE.with(|here| here.open_count.set(here.open_count.get() + 1));
        }
    }
    Open { number, _thread: PhantomData }
}

pub(crate) struct Open {
    /// A number unique among the scopes of this thread.
    number: u64,
    _thread: PhantomData<*const ()>,
}

impl Open {
    pub(super) fn usage(&self) -> ScopeUsage {
        let usage = |frames: &RefCell<Frames>| {
            let frames = frames.borrow();
            frames.0.iter().find(|frame| frame.number == self.number).map(|frame| frame.usage.usage())
        };
        FRAMES.try_with(usage).ok().flatten().unwrap_or_default()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let removed = FRAMES.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            let Some(index) = frames.0.iter().position(|frame| frame.number == self.number) else { return };
            // Before the frame is dropped: no cell points to a frame that is gone.
            HERE.with(Here::clear);
            let ended = frames.0.remove(index);
            HERE.with(|here| here.open_count.set(here.open_count.get() - 1));
            if let Some(outer) = frames.0[..index].iter().rfind(|outer| outer.serial == ended.serial) {
                outer.usage.add(&ended.usage);
            }
        });
        // A thread whose destructors have run has no frames.
        let _ = removed;
    }
}

#[inline]
pub(crate) fn is_any_open() -> bool {
    HERE.with(|here| here.open_count.get() > 0)
}

/// Calls `work` with this thread's scopes if one is open, of any pool.
#[inline(always)]
pub(crate) fn if_any_open<R>(work: impl FnOnce(&Here) -> R) -> Option<R> {
    HERE.with(|here| (here.open_count.get() > 0).then(|| work(here)))
}

/// Calls `work` with this thread's scopes, inlined into its caller: the compiler does not inline
/// [`LocalKey::with`](std::thread::LocalKey::with) with a large closure, and passes what the closure captures through memory.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn with_here<R>(work: impl FnOnce(&Here) -> R) -> R {
    let here = HERE.with(core::ptr::from_ref);
    // SAFETY: the value has no destructor, so it lives as long as the thread, and this call ends before.
    work(unsafe { &*here })
}

/// Returns the tag of the pool's innermost scope, or 0 without one.
pub(crate) fn innermost(tags: &Tags) -> u16 {
    if is_any_open() { with_innermost(tags, |frame| frame.tag).unwrap_or(0) } else { 0 }
}

/// Counts an allocation for the pool's innermost scope, if it is found without a search. Calls `end` with the scope's tag. If the tag
/// has a new peak, `end` also gets the tag's share, for [`Share::note_rise`].
#[inline(always)]
pub(crate) fn count_out_here<R>(
    here: &Here,
    tags: &Tags,
    size_bytes: u64,
    end: impl FnOnce(u16, Option<&Share>) -> R,
) -> Option<R> {
    with_found(here, tags.serial, |frame| end(frame.tag, frame.count_out(size_bytes)))
}

/// Counts an allocation for the pool's innermost scope. Returns its tag, or 0 without one.
pub(crate) fn count_out(tags: &Tags, size_bytes: u64) -> u16 {
    let counted = with_innermost(tags, |frame| {
        frame.count_out(size_bytes).iter().for_each(|share| share.note_rise());
        frame.tag
    });
    counted.unwrap_or(0)
}

/// Counts an allocation for a tag, and in the usage of the pool's innermost scope.
#[inline]
pub(crate) fn count_out_as(tags: &Tags, tag: u16, size_bytes: u64) {
    tags.count(tag, |share| share.count_out(size_bytes));
    if is_any_open() {
        with_innermost(tags, |frame| frame.usage.count_out(size_bytes));
    }
}

/// Counts the free of a block if its tag belongs to the innermost scope of the pool whose tags have this serial number, and if `put_back`
/// returns true: the pool may be gone then. Otherwise it counts nothing and returns false, which may also mean that the scope requires a
/// search.
#[inline(always)]
pub(crate) fn count_in_here(
    here: &Here,
    serial: u64,
    tag: u16,
    size_bytes: u64,
    put_back: impl FnOnce() -> bool,
) -> bool {
    let is_counted = with_found(here, serial, |frame| {
        let is_freed = frame.tag == tag && put_back();
        if is_freed {
            frame.count_in(size_bytes);
        }
        is_freed
    });
    is_counted == Some(true)
}

pub(crate) fn count_in(tags: &Tags, tag: u16, size_bytes: u64) {
    tags.count(tag, |share| share.count_in(size_bytes));
    if is_any_open() {
        with_innermost(tags, |frame| frame.usage.count_in(size_bytes));
    }
}

pub(crate) fn count_change(tags: &Tags, tag: u16, from_bytes: u64, to_bytes: u64) {
    if tag == 0 || from_bytes == to_bytes {
        return;
    }
    tags.count(tag, |share| share.change(from_bytes, to_bytes));
    if is_any_open() {
        with_innermost(tags, |frame| frame.usage.change(from_bytes, to_bytes));
    }
}

/// Calls `work` with the pool's innermost frame, or returns `None` without one.
fn with_innermost<R>(tags: &Tags, work: impl Fn(&Frame) -> R) -> Option<R> {
    if let Some(result) = HERE.with(|here| with_found(here, tags.serial, &work)) {
        return Some(result);
    }
    let find = |frames: &RefCell<Frames>| {
        let frames = frames.borrow();
        let frame = frames.0.iter().rfind(|frame| frame.serial == tags.serial)?;
        HERE.with(|here| here.set(frame));
        Some(work(frame))
    };
    FRAMES.try_with(find).ok().flatten()
}

/// Like [`with_innermost`], if the frame that was used last is the innermost one of the pool whose tags have this serial number; `None` may
/// also mean that it requires a search.
#[inline(always)]
fn with_found<R>(here: &Here, serial: u64, work: impl FnOnce(&Frame) -> R) -> Option<R> {
    let is_found = here.serial.get() == serial;
    let found = is_found.then(|| here.frame.get());
    // SAFETY: `here` is this thread's. This thread's list holds the frame that the cell points to: before it drops a frame, in
    // `Open::drop` or at the thread's end, it clears the cell. `work` opens and ends no scope.
    found.map(|frame| work(unsafe { &*frame }))
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static HERE: Here = const { Here { open_count: Cell::new(0), serial: Cell::new(0), frame: Cell::new(core::ptr::null()) } };
    static FRAMES: RefCell<Frames> = const { RefCell::new(Frames(Vec::new())) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may stay in one scope for years, so the sums saturate.
    #[test]
    fn sums_beyond_a_word_stay_there() {
        let (outer, inner) = (FrameUsage::default(), FrameUsage::default());
        for _ in 0..2 {
            inner.count_out(u64::MAX - 1);
            inner.count_in(u64::MAX - 1);
            outer.add(&inner);
        }
        let usage = outer.usage();
        assert_eq!((usage.allocated_bytes, usage.freed_bytes, usage.free_count), (u64::MAX, u64::MAX, 3));
    }
}
