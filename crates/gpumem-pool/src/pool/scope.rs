//! [`Scope`]: tags a thread's allocations and counts them.

use crate::pool::Pool;
use crate::stats::Tags;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::marker::PhantomData;

/// While a scope is alive, the blocks that this thread allocates from the pool carry a tag; see [`Pool::scope`].
///
/// A scope stays on its thread:
///
/// ```compile_fail
/// # use gpumem_pool::Scope;
/// fn elsewhere(scope: Scope) {
///     std::thread::spawn(move || scope.end());
/// }
/// ```
#[must_use = "dropping it ends the scope"]
pub struct Scope {
    pool: Pool,
    tag: u16,
    /// A number unique among the scopes of this thread.
    number: u64,
    _thread: PhantomData<*const ()>,
}

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
    /// The highest rise of the bytes in use above their level at the beginning of the scope.
    pub peak_bytes: u64,
}

impl Pool {
    /// Opens a scope. Until the scope is dropped, the calling thread's allocations from this pool count for its
    /// tag, in [`Status::tags`](crate::Status::tags) and among the holders in an out-of-memory report. In nested
    /// scopes, the innermost tag counts. Scopes of one name share their tag, on all threads.
    ///
    /// A block keeps its tag, whichever thread frees it. Allocations outside of scopes have no tag, and scopes add
    /// no cost to them.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    ///
    /// let scope = pool.scope("forward");
    /// let activations = pool.alloc(3 << 20, &stream)?;
    /// drop(pool.alloc(1 << 20, &stream)?);
    /// let usage = scope.end();
    /// assert_eq!((usage.allocated_bytes, usage.freed_bytes, usage.peak_bytes), (4 << 20, 1 << 20, 4 << 20));
    ///
    /// let status = pool.status()?;
    /// assert_eq!((&*status.tags[0].tag, status.tags[0].in_use_bytes), ("forward", 3 << 20));
    /// # drop(activations);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope(&self, name: &str) -> Scope {
        let (pool, tags) = (self.clone(), self.0.tags());
        let tag = tags.names().number(name);
        let number = NEXT.replace(NEXT.get() + 1);
        let frame = Frame { number, serial: tags.serial(), tag, usage: ScopeUsage::default(), rise_bytes: 0 };
        // A thread whose destructors have run has no scopes.
        if FRAMES.try_with(|frames| frames.borrow_mut().push(frame)).is_ok() {
            OPEN.set(OPEN.get() + 1);
        }
        Scope { pool, tag, number, _thread: PhantomData }
    }
}

impl Scope {
    /// Returns the name that this scope's blocks count for.
    #[must_use]
    pub fn tag(&self) -> String {
        self.pool.0.tags().names().get(self.tag).map(|name| (*name).into()).unwrap_or_default()
    }

    /// Returns the usage so far.
    #[must_use]
    pub fn usage(&self) -> ScopeUsage {
        let usage = |frames: &RefCell<Vec<Frame>>| {
            let frames = frames.borrow();
            frames.iter().find(|frame| frame.number == self.number).map(|frame| frame.usage)
        };
        FRAMES.try_with(usage).ok().flatten().unwrap_or_default()
    }

    /// Ends the scope and returns its usage.
    pub fn end(self) -> ScopeUsage {
        self.usage()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let removed = FRAMES.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            let Some(index) = frames.iter().position(|frame| frame.number == self.number) else { return };
            let ended = frames.remove(index);
            OPEN.set(OPEN.get() - 1);
            if let Some(outer) = frames[..index].iter_mut().rfind(|outer| outer.serial == ended.serial) {
                outer.add(&ended);
            }
        });
        // A thread whose destructors have run has no frames.
        let _ = removed;
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("tag", &self.tag()).field("usage", &self.usage()).finish()
    }
}

/// An open scope.
struct Frame {
    number: u64,
    /// The serial number of the pool's tags.
    serial: u64,
    tag: u16,
    usage: ScopeUsage,
    /// The allocated bytes minus the freed bytes.
    rise_bytes: i64,
}

impl Frame {
    fn count_out(&mut self, size_bytes: u64) {
        self.usage.allocation_count += 1;
        self.change(0, size_bytes);
    }

    fn count_in(&mut self, size_bytes: u64) {
        self.usage.free_count += 1;
        self.change(size_bytes, 0);
    }

    /// Counts a change of a block's size.
    fn change(&mut self, from_bytes: u64, to_bytes: u64) {
        let (more_bytes, fewer_bytes) =
            (to_bytes.saturating_sub(from_bytes), from_bytes.saturating_sub(to_bytes));
        self.usage.allocated_bytes = self.usage.allocated_bytes.saturating_add(more_bytes);
        self.usage.freed_bytes = self.usage.freed_bytes.saturating_add(fewer_bytes);
        self.rise_bytes =
            self.rise_bytes.saturating_add_unsigned(more_bytes).saturating_sub_unsigned(fewer_bytes);
        self.usage.peak_bytes = self.usage.peak_bytes.max(self.rise_bytes.max(0).unsigned_abs());
    }

    /// Adds the usage of a nested scope that has ended.
    fn add(&mut self, inner: &Self) {
        let peak_bytes =
            self.rise_bytes.saturating_add_unsigned(inner.usage.peak_bytes).max(0).unsigned_abs();
        self.usage.peak_bytes = self.usage.peak_bytes.max(peak_bytes);
        self.rise_bytes = self.rise_bytes.saturating_add(inner.rise_bytes);
        self.usage.allocated_bytes = self.usage.allocated_bytes.saturating_add(inner.usage.allocated_bytes);
        self.usage.allocation_count += inner.usage.allocation_count;
        self.usage.freed_bytes = self.usage.freed_bytes.saturating_add(inner.usage.freed_bytes);
        self.usage.free_count += inner.usage.free_count;
    }
}

/// Returns whether this thread has an open scope, of any pool.
#[inline]
pub(crate) fn is_any_open() -> bool {
    OPEN.get() > 0
}

/// Returns the tag of the pool's innermost scope, or 0 without one.
pub(crate) fn innermost(tags: &Tags) -> u16 {
    match is_any_open() {
        true => with_innermost(tags, |frame| frame.tag).unwrap_or(0),
        false => 0,
    }
}

/// Counts an allocation for the pool's innermost scope. Returns its tag, or 0 without one.
pub(crate) fn count_out(tags: &Tags, size_bytes: u64) -> u16 {
    let tag = with_innermost(tags, |frame| {
        frame.count_out(size_bytes);
        frame.tag
    });
    if let Some(tag) = tag {
        tags.count(tag, |share| share.count_out(size_bytes));
    }
    tag.unwrap_or(0)
}

/// Counts the free of a tagged block.
pub(crate) fn count_in(tags: &Tags, tag: u16, size_bytes: u64) {
    tags.count(tag, |share| share.count_in(size_bytes));
    if is_any_open() {
        with_innermost(tags, |frame| frame.count_in(size_bytes));
    }
}

/// Counts a change of a growable block for its tag.
pub(crate) fn count_change(tags: &Tags, tag: u16, from_bytes: u64, to_bytes: u64) {
    if tag == 0 || from_bytes == to_bytes {
        return;
    }
    tags.count(tag, |share| share.change(from_bytes, to_bytes));
    if is_any_open() {
        with_innermost(tags, |frame| frame.change(from_bytes, to_bytes));
    }
}

fn with_innermost<R>(tags: &Tags, work: impl FnOnce(&mut Frame) -> R) -> Option<R> {
    let with = |frames: &RefCell<Vec<Frame>>| {
        let mut frames = frames.try_borrow_mut().ok()?;
        frames.iter_mut().rfind(|frame| frame.serial == tags.serial()).map(work)
    };
    FRAMES.try_with(with).ok().flatten()
}

thread_local! {
    static OPEN: Cell<u32> = const { Cell::new(0) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may stay in one scope for years, so the sums saturate.
    #[test]
    fn sums_beyond_a_word_stay_there() {
        let frame = || Frame { number: 0, serial: 0, tag: 1, usage: ScopeUsage::default(), rise_bytes: 0 };
        let (mut outer, mut inner) = (frame(), frame());
        for _ in 0..2 {
            inner.count_out(u64::MAX - 1);
            inner.count_in(u64::MAX - 1);
            outer.add(&inner);
        }
        let usage = outer.usage;
        assert_eq!((usage.allocated_bytes, usage.freed_bytes, usage.free_count), (u64::MAX, u64::MAX, 3));
    }
}
