//! Waiting at the end of a borrow: for all work of a device, captures or not, until it is done.

use super::Device;
use crate::device::{CaptureModeGuard, capturing::cut_short};
use crate::error::{PoolError, is_of_capture, is_over};
use core::time::Duration;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use std::sync::PoisonError;
use std::time::Instant;

/// How long a refused wait is repeated. Work that runs is waited for without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The memory can be kept if the wait stays impossible.
    Owned,
    /// The memory goes back to its owner when the call returns, whatever happens.
    Borrowed,
}

/// Memory that could not be given back when it was dropped.
pub(crate) struct KeptMemory {
    /// Gives it back, if the driver lets it go. Called only when no work uses it any more.
    pub(crate) give_back: Box<dyn FnMut(&Device) -> bool + Send>,
}

/// Whose work is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// That of streams that a [`Stream`](crate::Stream) stands for or stood for.
    OfKnownStreams,
    /// All work of the device, as long as no capture is known. For memory of other processes, which only Unix has.
    #[cfg(unix)]
    OfDevice,
}

impl Device {
    /// Waits until no such work that was queued by now runs any more. A lost context runs nothing.
    ///
    /// Known streams are waited for behind markers: no capture minds them, whoever has begun it. Where no marker can be made, and
    /// for the whole device, the context is waited for, but only while no capture is known: the driver refuses that wait and
    /// breaks the capture. Captures that this thread has begun are ended where they are in the way, and those of other threads
    /// are waited for.
    pub(crate) fn settle(&self, work: Work, patience: Patience) -> Result<(), DriverError> {
        let (start, mut pause) = (Instant::now(), PAUSE_MIN);
        let is_over = |limit: Duration| start.elapsed() >= limit;
        loop {
            match self.try_to_settle(work) {
                Ok(true) => return Ok(()),
                Ok(false) if self.end_captures_of_this_thread() => continue,
                // Another thread's capture is in the way, which that thread ends.
                Ok(false) if patience == Patience::Owned && is_over(KEPT_AFTER) => {
                    return DriverError::check("cuCtxSynchronize", CAPTURE_OPEN);
                }
                // Or this thread has begun it without this crate: then nobody else may ever end it.
                Ok(false) if is_over(REFUSED_FOR) && self.end_others_captures() => continue,
                Ok(false) => {}
                Err(_) if self.is_context_gone() => return Ok(()),
                // Without the capture the device itself may be waited for.
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

    /// As [`Device::settle`] for known streams of every device of the machine that is open: pinned host memory serves all of them.
    pub(crate) fn settle_machine(&self, patience: Patience) -> Result<(), DriverError> {
        let mut settled = Vec::new();
        for device in core::iter::once(self.clone()).chain(self.clocks().devices()) {
            if !settled.contains(&device) {
                device.settle(Work::OfKnownStreams, patience)?;
                settled.push(device);
            }
        }
        Ok(())
    }

    /// One try. False if work may still run that can't be waited for now.
    fn try_to_settle(&self, work: Work) -> Result<bool, DriverError> {
        let _bound = self.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.driver())?;
        let is_captured = self.clocks().captures().captures_on(self) || self.clocks().has_capture(self);
        if work == Work::OfKnownStreams || is_captured {
            let by_markers = self.clocks().finish_everything(self);
            if is_captured || matches!(by_markers, Ok(true)) {
                return by_markers;
            }
        }
        let mut refused = None;
        for _ in 0..TRIES {
            let observation = self.clocks().observe_device(self);
            let Some(_quiet) = self.quiet() else { break };
            // SAFETY: the context is current and alive.
            let waited = unsafe { self.driver().cuCtxSynchronize() };
            if waited.is_ok() {
                self.clocks().saw_device(self, observation);
                return Ok(true);
            }
            if self.is_context_gone() {
                return self.noting(waited).map(|()| true);
            }
            // A capture on a stream that is not known here: it is broken now, and in the way until it ends.
            refused = waited.err().filter(|error| !is_of_capture(error.code()));
        }
        match (self.clocks().finish_everything(self)?, refused) {
            // No capture is in the way, so that nobody's end of one would help.
            (false, Some(error)) => Err(error),
            (is_covered, _) => Ok(is_covered),
        }
    }

    /// Whether the driver says so itself: a code that one call answers may be another call's failure.
    pub(crate) fn is_context_gone(&self) -> bool {
        let _bound = match self.enter() {
            Ok(bound) => bound,
            // Twice: this may be the failure of one call too.
            Err(error) => {
                return is_over(error.code()) && self.enter().is_err_and(|error| is_over(error.code()));
            }
        };
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both outlive the call.
        let answer = unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total) };
        answer.is_err_and(|error| is_over(error.code()))
    }

    /// Ends the captures on the device that this thread has begun through this crate: their ends report a broken capture. False
    /// if there is none.
    fn end_captures_of_this_thread(&self) -> bool {
        let captures = self.clocks().captures().begun_here(self);
        captures.iter().for_each(|(graph, origin)| cut_short(self, *graph, *origin));
        !captures.is_empty()
    }

    /// Ends captures on the device that were begun without this crate, where the driver lets this thread do so: those that it
    /// has begun, and relaxed ones of any thread, which can't be told from them. False if there is none.
    fn end_others_captures(&self) -> bool {
        self.keep_captures_out().is_some_and(|_out| self.clocks().end_others_captures(self))
    }

    /// Repeats a call that gives memory back, which needs no wait any more, until the driver takes it. A lost context has
    /// nothing to give back. The context is current.
    pub(crate) fn give_back(
        &self,
        patience: Patience,
        call: impl Fn() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let (start, mut pause) = (Instant::now(), PAUSE_MIN);
        let limit = if patience == Patience::Owned { KEPT_AFTER } else { REFUSED_FOR };
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(_) if self.is_context_gone() => return Ok(()),
                Err(error) if start.elapsed() >= limit => return Err(error),
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Keeps memory of which [`Device::report_kept`] tells until a wait by [`Device::synchronize`] has covered its work.
    pub(crate) fn keep(&self, memory: KeptMemory) {
        self.0.common.kept_memory.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }

    /// Gives back memory that was kept, where all of its work is done now. Tries once: this follows a wait that succeeded.
    pub(crate) fn give_back_kept(&self) {
        let kept = || self.0.common.kept_memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = core::mem::take(&mut *kept());
        if memory.is_empty() {
            return;
        }
        let others = self.clocks().devices();
        if core::iter::once(self)
            .chain(&others)
            .all(|device| matches!(device.try_to_settle(Work::OfKnownStreams), Ok(true)))
        {
            memory.retain_mut(|memory| !(memory.give_back)(self));
        }
        kept().append(&mut memory);
    }

    /// Notes memory that was kept instead of being given back, to be reported by the next call that can.
    pub(crate) fn report_kept(&self, kept: PoolError) {
        self.0.common.kept.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }

    /// The first report that nobody has had yet.
    pub(crate) fn take_kept(&self) -> Result<(), PoolError> {
        let mut kept = self.0.common.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() { Ok(()) } else { Err(kept.remove(0)) }
    }
}

/// How often a refused wait for the context is repeated before markers are tried.
const TRIES: usize = 3;
/// How long a drop repeats what the driver refuses, and waits for another thread's capture, before the memory is kept.
const KEPT_AFTER: Duration = Duration::from_secs(2);
/// How long a driver that runs may refuse every way to wait, or to give back, before a borrow's end gives up; and how long
/// captures of others are waited for before those that this thread may have begun are ended.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// From when on a wait that is refused is made possible by ending captures that this thread has begun.
const ENDS_CAPTURES_AFTER: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(10);
const CAPTURE_OPEN: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
