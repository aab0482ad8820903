//! Waiting at the end of a borrow: for all work of a device, with or without captures.

use super::capture_end::cut_short;
use super::{Device, KeptMemory};
use crate::error::{DeviceError, is_of_capture};
use core::time::Duration;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use std::time::Instant;

/// The time for which a refused wait is repeated. A wait for running work has no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The memory can be kept if the wait stays impossible.
    Owned,
    /// The memory always returns to its owner when the call returns.
    Borrowed,
}

/// The work to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Work of streams that a [`Stream`](crate::Stream) represents or represented.
    OfKnownStreams,
    /// All work of the device, if no capture is known. For memory of other processes, which exists only on Unix.
    #[cfg(unix)]
    OfDevice,
}

impl Device {
    /// Waits until all such work queued so far is done. A lost context runs nothing.
    ///
    /// Waits for markers in the known streams, which breaks no capture. Waits for the context if no marker can be recorded, or for the
    /// whole device, but only while no capture is known: otherwise the driver refuses the wait and breaks the capture. Ends captures of
    /// this thread that prevent the wait, and waits for captures of other threads.
    #[doc(hidden)]
    pub fn settle(&self, work: Work, patience: Patience) -> Result<(), DriverError> {
        let (start, mut pause) = (Instant::now(), PAUSE_MIN);
        let is_over = |limit: Duration| start.elapsed() >= limit;
        loop {
            match self.try_to_settle(work) {
                Ok(true) => return Ok(()),
                Ok(false) if self.end_captures_of_this_thread() => continue,
                // Another thread's capture prevents the wait, and only that thread ends it.
                Ok(false) if patience == Patience::Owned && is_over(KEPT_AFTER) => {
                    return DriverError::check("cuCtxSynchronize", CAPTURE_OPEN);
                }
                // This thread may have begun the capture without this crate; then no other thread may ever end it.
                Ok(false) if is_over(REFUSED_FOR) && self.end_others_captures() => continue,
                Ok(false) => {}
                Err(_) if self.primary().is_context_gone() => return Ok(()),
                // A host function: no repetition helps.
                Err(error) if patience == Patience::Owned && error.is_not_permitted() => return Err(error),
                // Without the capture, a wait for the device itself is possible.
                Err(_) if is_over(ENDS_CAPTURES_AFTER) && self.end_captures_of_this_thread() => continue,
                Err(error) => {
                    let limit = if patience == Patience::Owned { KEPT_AFTER } else { REFUSED_FOR };
                    let is_last = is_over(limit);
                    if is_last && patience == Patience::Borrowed && self.end_others_captures() {
                        continue;
                    }
                    if is_last {
                        return Err(error);
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Like [`Device::settle`] for known streams, for every open device of the machine: all of them can access pinned
    /// host memory.
    pub(crate) fn settle_machine(&self, patience: Patience) -> Result<(), DriverError> {
        let mut settled = Vec::new();
        for device in core::iter::once(self.clone()).chain(self.devices()) {
            if !settled.contains(&device) {
                device.settle(Work::OfKnownStreams, patience)?;
                settled.push(device);
            }
        }
        Ok(())
    }

    /// One attempt. False if work may still run for which a wait is impossible now.
    fn try_to_settle(&self, work: Work) -> Result<bool, DriverError> {
        let _entered = self.enter_relaxed()?;
        let is_captured =
            self.clocks().captures().captures_on(self.primary()) || self.clocks().has_capture(self.primary());
        if work == Work::OfKnownStreams || is_captured {
            let by_markers = self.clocks().finish_everything(self.primary());
            if is_captured || matches!(by_markers, Ok(true)) {
                return by_markers;
            }
        }
        let mut refused = None;
        for _ in 0..TRIES {
            let observation = self.clocks().observe_device(self.primary());
            let Some(_quiet) = self.quiet() else { break };
            // Entered again: a guard of another device may have failed to restore this context, and the wait is for the current context.
            let _bound = self.enter()?;
            // SAFETY: the context is current and alive.
            let waited = unsafe { self.driver().cuCtxSynchronize() };
            if waited.is_ok() {
                self.clocks().saw_device(self.primary(), observation);
                return Ok(true);
            }
            if self.primary().is_context_gone() {
                return self.noting(waited).map(|()| true);
            }
            // A capture on an unknown stream: it is broken now, and prevents the wait until it ends.
            refused = waited.err().filter(|error| !is_of_capture(error.code()));
        }
        match (self.clocks().finish_everything(self.primary())?, refused) {
            // No capture prevents the wait, so ending captures would not help.
            (false, Some(error)) => Err(error),
            (is_covered, _) => Ok(is_covered),
        }
    }

    /// Ends the captures on the device that this thread has begun through this crate;
    /// `Capture::end` reports them as broken. False if there is none.
    fn end_captures_of_this_thread(&self) -> bool {
        let captures = self.clocks().captures().begun_here(self.primary());
        captures.iter().for_each(|(graph, origin)| cut_short(self.primary(), self.clocks(), *graph, *origin));
        !captures.is_empty()
    }

    /// Ends captures on the device that were begun without this crate, if the driver lets this thread end them: its own, and relaxed ones
    /// of any thread, which cannot be distinguished. False if there are none.
    fn end_others_captures(&self) -> bool {
        self.primary()
            .keep_captures_out()
            .is_some_and(|_out| self.clocks().end_others_captures(self.primary()))
    }

    /// Repeats a call that releases memory, which needs no wait any more, until the driver accepts it. A lost context has nothing to
    /// release. The context is current.
    #[doc(hidden)]
    pub fn give_back(
        &self,
        patience: Patience,
        call: impl Fn() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let (start, mut pause) = (Instant::now(), PAUSE_MIN);
        let limit = if patience == Patience::Owned { KEPT_AFTER } else { REFUSED_FOR };
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(_) if self.primary().is_context_gone() => return Ok(()),
                Err(error) if start.elapsed() >= limit || error.is_not_permitted() => return Err(error),
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Stores memory reported by [`Device::report_kept`] until a [`Device::synchronize`] has covered its work.
    #[doc(hidden)]
    #[inline]
    pub fn keep(&self, memory: KeptMemory) {
        self.0.common.kept_memory.lock().push(memory);
    }

    /// Calls `release` after a later wait of another thread, once all work of the device is done, and again until it returns true. For
    /// drops in a host function, where the driver could not release the memory.
    #[doc(hidden)]
    pub fn release_later(&self, release: impl FnMut(&Self) -> bool + Send + 'static) {
        self.keep(KeptMemory { give_back: Box::new(release) });
    }

    /// Releases stored memory if all of its work is done. Tries once, because it follows a successful wait.
    pub(crate) fn give_back_kept(&self) {
        self.driver().destroy_refused();
        let kept = || self.0.common.kept_memory.lock();
        let mut memory = core::mem::take(&mut *kept());
        if memory.is_empty() {
            return;
        }
        let others = self.devices();
        if core::iter::once(self)
            .chain(&others)
            .all(|device| matches!(device.try_to_settle(Work::OfKnownStreams), Ok(true)))
        {
            memory.retain_mut(|memory| !(memory.give_back)(self));
        }
        kept().append(&mut memory);
    }

    /// Records memory that could not be released; the next call that can return the report does so.
    #[doc(hidden)]
    #[inline]
    pub fn report_kept(&self, kept: DeviceError) {
        self.0.common.kept.lock().push(kept);
    }

    /// Returns the oldest pending report as an error, once.
    #[doc(hidden)]
    pub fn take_kept(&self) -> Result<(), DeviceError> {
        let mut kept = self.0.common.kept.lock();
        if kept.is_empty() { Ok(()) } else { Err(kept.remove(0)) }
    }
}

/// The number of times that a refused wait for the context is repeated before markers are tried.
const TRIES: usize = 3;
/// The time for which a drop repeats refused calls, and waits for another thread's capture, before the memory is kept.
const KEPT_AFTER: Duration = Duration::from_secs(2);
/// The time for which a live driver may refuse every way to wait or release before the end of a borrow gives up. Also the time to wait for
/// captures of unknown origin before ending those that this thread may have begun.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// The time for which a refused wait is repeated before captures of this thread are ended to make it possible.
const ENDS_CAPTURES_AFTER: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(10);
const CAPTURE_OPEN: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
