//! [`Workers`]: threads that copy host memory.
//!
//! A copy is divided into pieces, which the threads and the waiting caller take from one queue. A thread copies bytes and nothing
//! else: it cannot fail, block or panic, and needs no context of a driver.

use super::copy::{copy_past_cache, copy_through_cache};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Threads that start with the first copy that needs them, sleep when there is none, and end with this value.
pub(crate) struct Workers {
    queue: Arc<Queue>,
    thread_count: usize,
    threads: OnceLock<Vec<JoinHandle<()>>>,
}

struct Queue {
    state: Mutex<State>,
    /// The number of pieces in the queue: threads look for new pieces without the lock before they sleep.
    piece_count: AtomicUsize,
    /// Notified when there are pieces, and at the end.
    added: Condvar,
    /// Notified when a copy is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    sleeping: usize,
    is_ending: bool,
}

/// Bytes to copy from one place on the host to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCopy {
    pub(crate) to: *mut u8,
    pub(crate) from: *const u8,
    pub(crate) size_bytes: usize,
    /// True if the destination is too large for the processor's caches.
    pub(crate) is_past_cache: bool,
}

/// Copies that one thread makes in a row.
struct Piece {
    copies: Vec<HostCopy>,
    /// The number of pieces that are not done.
    left: Arc<AtomicUsize>,
}

// SAFETY: the caller of `Workers::start` guarantees that any thread may access the memory until the copy is done.
unsafe impl Send for Piece {}

/// A copy in progress. The drop waits for it.
#[must_use = "dropping it waits for the copy"]
pub(crate) struct Copying<'a> {
    queue: &'a Queue,
    left: Arc<AtomicUsize>,
    memory: PhantomData<*mut u8>,
}

impl Workers {
    pub(super) fn new(thread_count: usize) -> Self {
        let queue = Queue {
            state: Mutex::default(),
            piece_count: AtomicUsize::new(0),
            added: Condvar::new(),
            done: Condvar::new(),
        };
        Self { queue: Arc::new(queue), thread_count, threads: OnceLock::new() }
    }

    /// Starts the threads, unless they run. If the system refuses one, the others and the callers copy.
    pub(crate) fn wake(&self) {
        self.threads.get_or_init(|| {
            let spawn = |index| {
                let queue = Arc::clone(&self.queue);
                std::thread::Builder::new()
                    .name(format!("gpumem-copy-{index}"))
                    .spawn(move || queue.work())
                    .ok()
            };
            (0..self.thread_count).map_while(spawn).collect()
        });
    }

    /// Begins copies of host memory.
    ///
    /// # Safety
    ///
    /// Until the result is dropped, both sides of each copy have `size_bytes` bytes that any thread may access, do not overlap, and no
    /// one else writes them or reads the target. The result is not forgotten.
    pub(crate) unsafe fn start(&self, copies: impl IntoIterator<Item = HostCopy>) -> Copying<'_> {
        let pieces = pieces(copies);
        let left = Arc::new(AtomicUsize::new(pieces.len()));
        self.queue.add(pieces.into_iter().map(|copies| Piece { copies, left: Arc::clone(&left) }));
        Copying { queue: &self.queue, left, memory: PhantomData }
    }

    /// Copies one piece of any copy on the calling thread. False if there is none.
    pub(crate) fn help(&self) -> bool {
        self.queue.take().map(|piece| self.queue.run(&piece)).is_some()
    }
}

impl Copying<'_> {
    /// Returns whether the copy is done. Does not wait.
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, pieces: impl Iterator<Item = Piece>) {
        let mut state = self.lock();
        state.pieces.extend(pieces);
        self.piece_count.store(state.pieces.len(), Ordering::Relaxed);
        let woken = state.sleeping.min(state.pieces.len());
        drop(state);
        (0..woken).for_each(|_| self.added.notify_one());
    }

    fn take(&self) -> Option<Piece> {
        if self.piece_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut state = self.lock();
        let piece = state.pieces.pop_front();
        self.piece_count.store(state.pieces.len(), Ordering::Relaxed);
        piece
    }

    fn run(&self, piece: &Piece) {
        for &HostCopy { to, from, size_bytes, is_past_cache } in &piece.copies {
            let copy = if is_past_cache { copy_past_cache } else { copy_through_cache };
            // SAFETY: the caller of `Workers::start` guarantees this until the copy is done, which it is only after this piece.
            unsafe { copy(to, from, size_bytes) };
        }
        if piece.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock: between the waiter's look at the count and its sleep, the notification would be missed.
            drop(self.lock());
            self.done.notify_all();
        }
    }

    /// Waits until the pieces of a copy, which threads are copying, are done.
    fn wait_for(&self, left: &AtomicUsize) {
        if spin_until(|| left.load(Ordering::Acquire) == 0) {
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
            if spin_until(|| self.piece_count.load(Ordering::Relaxed) > 0) {
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
            let mut state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.lock().is_ending = true;
        self.queue.added.notify_all();
        for thread in self.threads.take().into_iter().flatten() {
            // A thread that copies bytes does not panic.
            let _ = thread.join();
        }
    }
}

/// Divides copies into groups of at most [`PIECE_BYTES`] each.
fn pieces(copies: impl IntoIterator<Item = HostCopy>) -> Vec<Vec<HostCopy>> {
    let (mut pieces, mut piece, mut room) = (Vec::new(), Vec::new(), PIECE_BYTES);
    for mut copy in copies {
        while copy.size_bytes > 0 {
            let size_bytes = copy.size_bytes.min(room);
            piece.push(HostCopy { size_bytes, ..copy });
            copy.to = copy.to.wrapping_add(size_bytes);
            copy.from = copy.from.wrapping_add(size_bytes);
            copy.size_bytes -= size_bytes;
            room -= size_bytes;
            if room == 0 {
                pieces.push(core::mem::take(&mut piece));
                room = PIECE_BYTES;
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// Waits for a moment, which is shorter than it takes to sleep and to be woken.
fn spin_until(is_over: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if is_over() {
                return true;
            }
            core::hint::spin_loop();
        }
        if start.elapsed() >= SPIN_MAX {
            return false;
        }
    }
}

/// Long enough that taking a piece costs little, and short enough that the copies of one buffer end together.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
const SPIN_MAX: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(to: &mut [u8], from: &[u8]) -> HostCopy {
        let is_past_cache = from.len() > PIECE_BYTES;
        HostCopy { to: to.as_mut_ptr(), from: from.as_ptr(), size_bytes: from.len(), is_past_cache }
    }

    #[test]
    fn many_small_copies_share_pieces() {
        let workers = Workers::new(2);
        workers.wake();
        let from: Vec<Vec<u8>> = (0..1000_usize).map(|index| vec![index as u8; index % 700]).collect();
        let mut to: Vec<Vec<u8>> = from.iter().map(|from| vec![0; from.len()]).collect();
        let copies: Vec<_> = to.iter_mut().zip(&from).map(|(to, from)| copy(to, from)).collect();
        assert!(pieces(copies.iter().copied()).len() < 5);
        // SAFETY: the vectors have these bytes, outlive the copy, and are not used before it is done.
        drop(unsafe { workers.start(copies) });
        assert!(to == from);
    }

    #[test]
    fn copies_of_several_callers_are_complete_when_they_end() {
        let workers = Workers::new(3);
        workers.wake();
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
