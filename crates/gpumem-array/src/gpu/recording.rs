//! [`CaptureRecording`]: the arrays and kernels from outside that a capture uses.
//!
//! A capture runs nothing, so it does not affect the order of uses of other arrays. Their uses are recorded here, and each launch of
//! the graph is ordered by them.
//!
//! A thread has at most one capture at a time. During it, the thread may use only the capture's `Gpu`: an operation on another `Gpu` would
//! run immediately, which a closure that describes a graph does not intend.

use crate::error::GraphError;
use crate::kernel::Function;
use crate::layout::Gaps;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kind of a use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Read,
    /// Writes, and possibly reads.
    Write,
}

/// The outside arrays and the kernels that a capture uses.
pub(crate) struct CaptureRecording {
    id: u64,
    state: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    is_closed: bool,
    uses: Vec<RecordedUse>,
    functions: Vec<Function>,
}

/// A use of memory that was allocated outside the capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedUse {
    /// The serial number of the storage. A later allocation may reuse the address, but never the serial number.
    pub(crate) serial: u64,
    /// The address of the storage, for messages.
    pub(crate) address: u64,
    /// The bytes, from the start of the storage.
    pub(crate) range: Range<u64>,
    /// The bytes of the range that are not used.
    pub(crate) gaps: Gaps,
    pub(crate) access: Access,
    pub(crate) view: ViewName,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewName {
    pub(crate) element: &'static str,
    pub(crate) shape: Vec<usize>,
}

/// The capture of this thread, until the drop.
pub(crate) struct OnThread(PhantomData<*const ()>);

/// The number of captures on all threads. While it is 0, no thread looks for its own.
static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The id of this thread's capture, or 0.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl CaptureRecording {
    /// Creates the recording of a capture, which is this thread's capture until the guard is dropped.
    pub(crate) fn begin() -> Result<(Self, OnThread), GraphError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if current() != 0 {
            return Err(GraphError::NestedCapture);
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        CURRENT.set(id);
        OPEN.fetch_add(1, Ordering::Relaxed);
        Ok((Self { id, state: Mutex::default() }, OnThread(PhantomData)))
    }

    /// The number of the capture, unique in the process and never 0.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Records a use. Uses of overlapping bytes become one.
    pub(crate) fn note(&self, mut noted: RecordedUse) -> Result<(), GraphError> {
        let mut state = self.open()?;
        // The merged range may overlap further ones.
        while let Some(at) = state.uses.iter().position(|other| other.overlaps(&noted)) {
            let other = state.uses.remove(at);
            // Errors name the view with the most bytes.
            if other.range.end - other.range.start >= noted.range.end - noted.range.start {
                noted.view = other.view;
            }
            if (&noted.range, noted.gaps) != (&other.range, other.gaps) {
                noted.gaps = Gaps::NONE;
            }
            noted.range = noted.range.start.min(other.range.start)..noted.range.end.max(other.range.end);
            noted.access = noted.access.max(other.access);
        }
        state.uses.push(noted);
        Ok(())
    }

    /// Keeps a kernel loaded as long as the graph.
    pub(crate) fn keep(&self, function: &Function) -> Result<(), GraphError> {
        self.open()?.functions.push(function.clone());
        Ok(())
    }

    /// An error if the capture has ended.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        self.open().map(drop)
    }

    /// Closes the recording. Called before the driver's capture ends, so that a stream that runs work again finds it closed.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
    }

    pub(crate) fn take(&self) -> (Vec<RecordedUse>, Vec<Function>) {
        let mut state = self.lock();
        (core::mem::take(&mut state.uses), core::mem::take(&mut state.functions))
    }

    fn open(&self) -> Result<MutexGuard<'_, Recorded>, GraphError> {
        let state = self.lock();
        if state.is_closed { Err(GraphError::CaptureEnded) } else { Ok(state) }
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordedUse {
    fn overlaps(&self, other: &Self) -> bool {
        self.serial == other.serial
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        CURRENT.set(0);
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// True if any thread captures. The answer always includes the calling thread's own capture.
#[inline]
pub(crate) fn is_any_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// Refuses an operation of this thread on a `Gpu` of the capture `id` (0 for none) while the thread captures on another `Gpu`.
pub(crate) fn check_thread(id: u64, operation: &'static str) -> Result<(), GraphError> {
    match current() {
        0 => Ok(()),
        open if open == id => Ok(()),
        _ => Err(GraphError::OutsideCapture { operation }),
    }
}

fn current() -> u64 {
    CURRENT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(serial: u64, range: Range<u64>, access: Access) -> RecordedUse {
        RecordedUse { serial, address: 0, range, gaps: Gaps::NONE, access, view: ViewName::default() }
    }

    #[test]
    fn uses_of_overlapping_bytes_become_one() {
        let (recording, _on_thread) = CaptureRecording::begin().unwrap();
        let uses = [
            noted(1, 0..8, Access::Read),
            noted(1, 16..24, Access::Write),
            noted(2, 0..8, Access::Write),
            noted(1, 4..17, Access::Read),
            noted(1, 32..40, Access::Read),
        ];
        uses.into_iter().for_each(|one| recording.note(one).unwrap());
        let expected =
            [noted(2, 0..8, Access::Write), noted(1, 0..24, Access::Write), noted(1, 32..40, Access::Read)];
        assert_eq!(recording.take().0, expected);
        recording.close();
        assert_eq!(recording.note(noted(1, 0..1, Access::Read)), Err(GraphError::CaptureEnded));
    }

    #[test]
    fn errors_name_the_largest_view_of_an_array() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let (recording, _on_thread) = CaptureRecording::begin().unwrap();
            for size in order.map(|index| [4, 16, 8][index]) {
                let view = ViewName { element: "u8", shape: vec![size] };
                recording.note(RecordedUse { view, ..noted(1, 0..size as u64, Access::Read) }).unwrap();
            }
            let uses = recording.take().0;
            assert_eq!((uses.len(), &uses[0].view.shape), (1, &vec![16]));
        }
    }

    #[test]
    fn a_thread_has_one_capture() {
        let (recording, on_thread) = CaptureRecording::begin().unwrap();
        assert!(is_any_open());
        assert_eq!(CaptureRecording::begin().err(), Some(GraphError::NestedCapture));
        assert_eq!(check_thread(0, "fill"), Err(GraphError::OutsideCapture { operation: "fill" }));
        assert_eq!(check_thread(recording.id(), "fill"), Ok(()));
        std::thread::spawn(|| assert_eq!(check_thread(0, "fill"), Ok(()))).join().unwrap();
        drop(on_thread);
        assert_eq!(check_thread(0, "fill"), Ok(()));
    }
}
