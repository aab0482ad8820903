//! [`Workers`]: threads that copy host memory.
//!
//! A copy is divided into pieces, which the threads and the waiting caller take from one queue. A thread copies bytes, or converts numbers
//! while it copies them, and nothing else: it cannot fail, block or panic, and needs no driver context.

use super::copy::{copy_past_cache, copy_through_cache};
use crate::element::{Cast, Element};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use gpumem_pool::sys::fork;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Threads that start with the first copy that needs them, sleep without work, and end with this value.
pub(crate) struct Workers {
    queue: Arc<Queue>,
    started: Once,
}

struct Queue {
    state: Mutex<WorkerState>,
    /// The number of pieces in the queue: threads look for new pieces without the lock before they sleep.
    piece_count: AtomicUsize,
    /// The number of [`Burst`]s. During a burst, threads wait longer for pieces before they sleep.
    burst_count: AtomicUsize,
    /// Notified when there are pieces, and at the end.
    added: Condvar,
    /// Notified when a copy is done.
    done: Condvar,
    threads: Mutex<Threads>,
    piece_bytes: usize,
}

#[derive(Default)]
struct WorkerState {
    pieces: VecDeque<CopyPiece>,
    /// Threads that sleep and have not been notified.
    sleeping: usize,
    is_ending: bool,
}

/// Each thread starts the next one, so that a caller waits only for one thread to start.
struct Threads {
    started: Vec<JoinHandle<()>>,
    /// The number of threads still to start.
    left: usize,
}

/// Bytes to copy from one place on the host to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCopy {
    pub(crate) to: *mut u8,
    pub(crate) from: *const u8,
    pub(crate) size_bytes: usize,
    pub(crate) stores: Stores,
    /// Changes the type of the elements. `size_bytes` is then the size of the destination.
    pub(crate) conversion: Option<Conversion>,
}

/// A conversion of elements while they are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    /// The sizes of an element, in bytes.
    from_bytes: usize,
    to_bytes: usize,
    /// Converts a number of elements from the second place to the first.
    run: unsafe fn(*mut u8, *const u8, usize),
}

impl Conversion {
    pub(crate) fn new<T: Cast<U>, U: Element>() -> Self {
        Self { from_bytes: size_of::<T>(), to_bytes: size_of::<U>(), run: convert::<T, U> }
    }

    /// The size of elements after the conversion, in bytes.
    pub(crate) fn target_bytes(self, source_bytes: usize) -> usize {
        source_bytes / self.from_bytes * self.to_bytes
    }

    /// The largest whole number of converted elements that fits, in bytes; at least one element.
    pub(crate) fn whole(self, size_bytes: usize) -> usize {
        (size_bytes / self.to_bytes).max(1) * self.to_bytes
    }

    /// Converts as many elements as both sides have. They are aligned to them.
    pub(crate) fn convert(self, to: &mut [u8], from: &[u8]) {
        let len = (to.len() / self.to_bytes).min(from.len() / self.from_bytes);
        // SAFETY: both sides have these elements, and a mutable slice overlaps no other.
        unsafe { (self.run)(to.as_mut_ptr(), from.as_ptr(), len) };
    }

    /// The size of the elements before the conversion, in bytes.
    pub(crate) fn source_bytes(self, size_bytes: usize) -> usize {
        size_bytes / self.to_bytes * self.from_bytes
    }
}

/// # Safety
///
/// `from` is readable and `to` writable for `len` elements, both aligned. The two ranges must not overlap.
unsafe fn convert<T: Cast<U>, U: Element>(to: *mut u8, from: *const u8, len: usize) {
    let (to, from) = (to.cast::<U>(), from.cast::<T>());
    for index in 0..len {
        // SAFETY: the caller's promise.
        unsafe { to.add(index).write(from.add(index).read().cast()) };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the caches: the fastest way to buffers that the link reads soon.
    ThroughCache,
    /// Bypassing the caches, for larger destinations.
    PastCache,
}

/// Copies that one thread makes in a row.
struct CopyPiece {
    copies: Vec<HostCopy>,
    /// The number of pieces that are not done.
    left: Arc<AtomicUsize>,
}

// SAFETY: the caller of `Workers::start` guarantees that any thread may access the memory until the copy is done.
unsafe impl Send for CopyPiece {}

/// A copy in progress. The drop waits for it.
#[must_use = "dropping it waits for the copy"]
pub(crate) struct Copying<'a> {
    queue: &'a Queue,
    left: Arc<AtomicUsize>,
    memory: PhantomData<*mut u8>,
}

impl Workers {
    pub(super) fn new(thread_count: usize) -> Self {
        Self::with_pieces(thread_count, PIECE_BYTES)
    }

    fn with_pieces(thread_count: usize, piece_bytes: usize) -> Self {
        let queue = Queue {
            state: Mutex::default(),
            piece_count: AtomicUsize::new(0),
            burst_count: AtomicUsize::new(0),
            added: Condvar::new(),
            done: Condvar::new(),
            threads: Mutex::new(Threads { started: Vec::new(), left: thread_count }),
            piece_bytes,
        };
        Self { queue: Arc::new(queue), started: Once::new() }
    }

    /// Begins a copy of several buffers. Starts the threads unless they run; if the system refuses one, the others and the callers copy.
    pub(crate) fn burst(&self) -> Burst<'_> {
        self.started.call_once(|| self.queue.start_thread());
        self.queue.burst_count.fetch_add(1, Ordering::Relaxed);
        Burst(&self.queue)
    }

    /// Begins copies of host memory.
    ///
    /// # Safety
    ///
    /// - Until the result is dropped, both sides of each copy have `size_bytes` bytes that any thread may access, and do not overlap.
    ///   Nothing else writes them or reads the target. The result is not forgotten.
    /// - With a conversion, the source has as many elements, and both sides are aligned to theirs. A conversion is not started together
    ///   with other copies.
    pub(crate) unsafe fn start(&self, copies: impl IntoIterator<Item = HostCopy>) -> Copying<'_> {
        let pieces = pieces(copies, self.queue.piece_bytes);
        let left = Arc::new(AtomicUsize::new(pieces.len()));
        self.queue.add(pieces.into_iter().map(|copies| CopyPiece { copies, left: Arc::clone(&left) }));
        Copying { queue: &self.queue, left, memory: PhantomData }
    }

    /// Copies one piece of any copy on the calling thread. False if there is none.
    pub(crate) fn help(&self) -> bool {
        self.queue.take().map(|piece| self.queue.run(&piece)).is_some()
    }
}

/// A copy that keeps adding pieces, until the drop.
#[must_use = "threads sleep sooner without it"]
pub(crate) struct Burst<'a>(&'a Queue);

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        self.0.burst_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Copying<'_> {
    /// True if the copy is done. Does not wait.
    pub(crate) fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        while !self.is_done() {
            match self.queue.take() {
                Some(piece) => self.queue.run(&piece),
                None => return self.queue.wait_for(&self.left),
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(self: &Arc<Self>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = threads.left.checked_sub(1) else { return };
        let (queue, name) = (Arc::clone(self), format!("gpumem-copy-{}", threads.started.len()));
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            queue.start_thread();
            queue.work();
        });
        threads.left = if thread.is_ok() { left } else { 0 };
        threads.started.extend(thread);
    }

    fn add(&self, pieces: impl Iterator<Item = CopyPiece>) {
        let mut state = self.lock();
        state.pieces.extend(pieces);
        self.piece_count.store(state.pieces.len(), Ordering::Relaxed);
        self.wake(state);
    }

    /// Wakes a few threads, if there are pieces. They wake others, because a system call takes longer than copying a small piece.
    fn wake(&self, mut state: MutexGuard<'_, WorkerState>) {
        let woken = state.sleeping.min(state.pieces.len()).min(WOKEN_MAX);
        state.sleeping -= woken;
        drop(state);
        (0..woken).for_each(|_| self.added.notify_one());
    }

    fn take(&self) -> Option<CopyPiece> {
        if self.piece_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut state = self.lock();
        let piece = state.pieces.pop_front();
        self.piece_count.store(state.pieces.len(), Ordering::Relaxed);
        piece
    }

    fn run(&self, piece: &CopyPiece) {
        for &HostCopy { to, from, size_bytes, stores, conversion } in &piece.copies {
            if let Some(conversion) = conversion {
                // SAFETY: the caller of `Workers::start` guarantees this until the copy is done, which it is only after this piece. A piece
                // has whole elements.
                unsafe { (conversion.run)(to, from, size_bytes / conversion.to_bytes) };
                continue;
            }
            let copy = match stores {
                Stores::ThroughCache => copy_through_cache,
                Stores::PastCache => copy_past_cache,
            };
            // SAFETY: the caller of `Workers::start` guarantees this until the copy is done, which it is only after this piece.
            unsafe { copy(to, from, size_bytes) };
        }
        if piece.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock: otherwise the notification could be missed between the waiter's check of the count and its sleep.
            drop(self.lock());
            self.done.notify_all();
        }
    }

    /// Waits until the pieces of a copy, which threads are copying, are done.
    fn wait_for(&self, left: &AtomicUsize) {
        if spin_until(|| left.load(Ordering::Acquire) == 0, || BURST_SPIN_MAX) {
            return;
        }
        let mut state = self.lock();
        while left.load(Ordering::Acquire) != 0 {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies pieces until the end.
    fn work(&self) {
        loop {
            while let Some(piece) = self.take() {
                self.run(&piece);
            }
            let spin_max = || match self.burst_count.load(Ordering::Relaxed) {
                0 => SPIN_MAX,
                _ => BURST_SPIN_MAX,
            };
            if spin_until(|| self.piece_count.load(Ordering::Relaxed) > 0, spin_max) {
                continue;
            }
            let mut state = self.lock();
            if state.is_ending {
                return;
            }
            if !state.pieces.is_empty() {
                continue;
            }
            state.sleeping += 1;
            let state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
            self.wake(state);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.queue.lock().is_ending = true;
        self.queue.added.notify_all();
        let threads = {
            let mut threads = self.queue.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.left = 0;
            core::mem::take(&mut threads.started)
        };
        // A thread that copies bytes does not panic.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Divides copies into groups of at most `piece_bytes` each.
fn pieces(copies: impl IntoIterator<Item = HostCopy>, piece_bytes: usize) -> Vec<Vec<HostCopy>> {
    let (mut pieces, mut piece, mut room) = (Vec::new(), Vec::new(), piece_bytes);
    for mut copy in copies {
        while copy.size_bytes > 0 {
            let room_bytes = copy.conversion.map_or(room, |conversion| conversion.whole(room));
            let size_bytes = copy.size_bytes.min(room_bytes);
            piece.push(HostCopy { size_bytes, ..copy });
            copy.to = copy.to.wrapping_add(size_bytes);
            let source_bytes =
                copy.conversion.map_or(size_bytes, |conversion| conversion.source_bytes(size_bytes));
            copy.from = copy.from.wrapping_add(source_bytes);
            copy.size_bytes -= size_bytes;
            room = room.saturating_sub(size_bytes);
            if room == 0 {
                pieces.push(core::mem::take(&mut piece));
                room = piece_bytes;
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// Waits briefly, for less time than it takes to sleep and to be woken.
fn spin_until(is_over: impl Fn() -> bool, spin_max: impl Fn() -> Duration) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if is_over() {
                return true;
            }
            core::hint::spin_loop();
        }
        if start.elapsed() >= spin_max() {
            return false;
        }
    }
}

/// Large enough that taking a piece is cheap, and small enough that the copies of one buffer end together.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
const SPIN_MAX: Duration = Duration::from_micros(20);
/// During a large copy, its next piece comes soon.
const BURST_SPIN_MAX: Duration = Duration::from_micros(200);
/// The number of threads that a caller or a thread wakes at a time.
const WOKEN_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(to: &mut [u8], from: &[u8]) -> HostCopy {
        let stores = match from.len() {
            0..=PIECE_BYTES => Stores::ThroughCache,
            _ => Stores::PastCache,
        };
        HostCopy {
            to: to.as_mut_ptr(),
            from: from.as_ptr(),
            size_bytes: from.len(),
            stores,
            conversion: None,
        }
    }

    #[test]
    fn many_small_copies_share_pieces() {
        let workers = Workers::new(2);
        let _burst = workers.burst();
        let from: Vec<Vec<u8>> = (0..1000_usize).map(|index| vec![index as u8; index % 700]).collect();
        let mut to: Vec<Vec<u8>> = from.iter().map(|from| vec![0; from.len()]).collect();
        let copies: Vec<_> = to.iter_mut().zip(&from).map(|(to, from)| copy(to, from)).collect();
        assert!(pieces(copies.iter().copied(), PIECE_BYTES).len() < 5);
        // SAFETY: the vectors have these bytes, outlive the copy, and are not used before it is done.
        drop(unsafe { workers.start(copies) });
        assert!(to == from);
    }

    #[test]
    fn copies_of_several_callers_are_complete_when_they_end() {
        let workers = Workers::new(3);
        let _burst = workers.burst();
        std::thread::scope(|scope| {
            for seed in 0..4_u8 {
                let workers = &workers;
                scope.spawn(move || {
                    for size_bytes in [1, PIECE_BYTES - 1, PIECE_BYTES, 5 * PIECE_BYTES + 7] {
                        let from: Vec<u8> = (0..size_bytes).map(|index| (index as u8) ^ seed).collect();
                        let mut to = vec![0_u8; size_bytes];
                        // SAFETY: both vectors have these bytes, outlive the copy, and are not used before it is done.
                        drop(unsafe { workers.start([copy(&mut to, &from)]) });
                        assert!(to == from);
                    }
                });
            }
        });
    }

    #[test]
    fn numbers_are_converted_by_pieces() {
        // A piece of this size has no whole number of elements.
        let workers = Workers::with_pieces(2, PIECE_BYTES - 1);
        let _burst = workers.burst();
        for len in [1, 1000, PIECE_BYTES / 4, 3 * PIECE_BYTES / 4 + 5] {
            let from: Vec<f64> = (0..len).map(|index| index as f64 + 0.25).collect();
            let mut to = vec![0_f32; len];
            let (target, source): (&mut [u8], &[u8]) =
                (bytemuck::cast_slice_mut(&mut to), bytemuck::cast_slice(&from));
            let copy = HostCopy {
                to: target.as_mut_ptr(),
                from: source.as_ptr(),
                size_bytes: 4 * len,
                stores: Stores::ThroughCache,
                conversion: Some(Conversion::new::<f64, f32>()),
            };
            // SAFETY: both vectors have these elements, outlive the copy, and are not used before it is done.
            drop(unsafe { workers.start([copy]) });
            assert!(to.iter().zip(&from).all(|(to, from)| f64::from(*to) == *from), "{len}");
        }
    }

    #[test]
    fn callers_copy_without_threads() {
        let workers = Workers::new(0);
        let (from, mut to) = (vec![7_u8; PIECE_BYTES + 1], vec![0_u8; PIECE_BYTES + 1]);
        // SAFETY: both vectors have these bytes, outlive the copy, and are not used before it is done.
        let copying = unsafe { workers.start([copy(&mut to, &from)]) };
        assert!(workers.help() && workers.help() && !workers.help());
        assert!(copying.is_done());
        drop(copying);
        assert!(to == from);
    }
}
