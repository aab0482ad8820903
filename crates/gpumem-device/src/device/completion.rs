//! [`Completion`]: a future that resolves when work of a stream is complete.
//!
//! A completion has a marker behind the work that it waits for. When it is polled before the marker is complete, it is listed with the
//! [`notifier`], one thread for the process, and a host function behind the marker tells that thread to query the marker. The host function
//! neither queries nor wakes anything, because it must not call the driver, which a waker may do. The thread also queries without being
//! told, at growing intervals: a lost context runs no host function, and some drivers have none.
//!
//! Three parts keep a pending completion sound without a wait in its drop. The host function gets a number, not an address. The list holds
//! the marker, and with it the device, until the completion is dropped or resolved. The driver keeps the part of a destroyed event that a
//! queued wait needs.

pub(super) mod lanes;
pub(super) mod notifier;

use crate::device::{CaptureModeGuard, Device, Event, Marker, MarkerEvent, Stream, StreamIndex};
use crate::error::{CaptureError, DeviceError, not_forked};
use core::fmt;
use core::future::{Future, IntoFuture};
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use gpumem_base::sync::Lock;
use gpumem_sys::{DriverError, fork};
use std::sync::Arc;

/// A future that resolves when work of a stream is complete; see [`Stream::completion`] and [`Event::completion`]. Any
/// executor can poll it, on any thread. No thread is blocked: a thread of this crate, which starts at the first use, calls
/// the waker.
///
/// The future resolves with an error if the context is lost. After it has resolved, it returns the result again. Dropping a pending future
/// does not wait.
///
/// ```
/// use gpumem_device::{Device, Event, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (upload, compute) = (Stream::new(&device)?, Stream::new(&device)?);
/// let uploaded = Event::new(&device)?;
/// uploaded.record(&upload)?;
///
/// let both = async {
///     (&uploaded).await?; // the last record
///     (&compute).await // everything queued so far
/// };
/// pollster::block_on(both)?; // any executor
///
/// compute.completion().wait()?; // without one: blocks this thread
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing unless it is awaited or polled"]
pub struct Completion(CompletionState);

enum CompletionState {
    Over(Result<(), DeviceError>),
    Pending(Arc<Pending>),
}

/// Work that was not complete when it was last queried.
struct Pending {
    /// The number by which the notifier and the host function know it; unique in the process.
    id: u64,
    /// Declared before the device, which its event needs.
    marker: Arc<Marker>,
    source: StreamIndex,
    device: Device,
    progress: Lock<Progress>,
}

#[derive(Default)]
struct Progress {
    outcome: Option<Result<(), DeviceError>>,
    waker: Option<Waker>,
    is_listed: bool,
}

impl Stream {
    /// A future for everything queued on this stream so far, without later work. The future keeps the device alive, but not the stream.
    ///
    /// It resolves with the errors of [`Stream::synchronize`]: [`DeviceError::Capture`] if the stream captures now,
    /// [`DeviceError::Stream`] if it was retired or is another thread's default stream, [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a call or the work failed.
    pub fn completion(&self) -> Completion {
        Completion::of(self.pending())
    }

    fn pending(&self) -> Result<Option<Pending>, DeviceError> {
        not_forked()?;
        let _call = self.call()?;
        self.check_runs(AWAITING)?;
        match self.clocks().marker_by_user(self.stream_index())? {
            Some(marker) => Ok(Some(Pending::new(self.device(), self.stream_index(), marker))),
            None => {
                self.check_usable()?;
                // Fails on a lost context.
                self.device().memory_info()?;
                // A capture that was begun without this crate.
                Err(DeviceError::Capture(CaptureError::NotCapturable { operation: AWAITING }))
            }
        }
    }
}

impl Event {
    /// A future for the last record of this event; complete if it was never recorded. A later record does not change what
    /// the future waits for. The event may be dropped.
    ///
    /// It resolves with the errors of [`Event::synchronize`]: [`DeviceError::Capture`] if the event was last recorded
    /// in a capture, [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a call or the work failed.
    pub fn completion(&self) -> Completion {
        Completion::of(self.pending())
    }

    fn pending(&self) -> Result<Option<Pending>, DeviceError> {
        not_forked()?;
        if self.is_complete()? {
            return Ok(None);
        }
        let device = self.device();
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        let marker = MarkerEvent::create(device.primary())?;
        // A concurrent record by another thread counts: stamps and wait belong to the same record.
        self.with_record(|covered| {
            let covered =
                covered.ok_or(DeviceError::Capture(CaptureError::NotCapturable { operation: AWAITING }))?;
            let source = covered.first().map_or(StreamIndex::HOST, |stamp| stamp.stream_index());
            device.lanes().queue_behind(device.primary(), source, self.raw(), |lane| {
                marker.record(device.primary(), lane)
            })?;
            Ok(Some(Pending::new(device, source, Arc::new(Marker::new(marker, covered)))))
        })
    }
}

impl Completion {
    fn of(pending: Result<Option<Pending>, DeviceError>) -> Self {
        Self(match pending {
            Ok(Some(pending)) => CompletionState::Pending(Arc::new(pending)),
            Ok(None) => CompletionState::Over(Ok(())),
            Err(error) => CompletionState::Over(Err(error)),
        })
    }

    /// True if the work is complete. Queries the driver once, and does not wait.
    ///
    /// # Errors
    ///
    /// The error that the future resolves with, such as [`DeviceError::DeviceLost`].
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        match &self.0 {
            CompletionState::Over(outcome) => outcome.clone().map(|()| true),
            CompletionState::Pending(pending) => match pending.query() {
                Some(outcome) => outcome.map(|()| true),
                None => Ok(false),
            },
        }
    }

    /// Waits on the host until the work is complete: blocks this thread.
    ///
    /// # Errors
    ///
    /// The error that the future resolves with, such as [`DeviceError::DeviceLost`].
    pub fn wait(self) -> Result<(), DeviceError> {
        match &self.0 {
            CompletionState::Over(outcome) => outcome.clone(),
            CompletionState::Pending(pending) => pending.wait(),
        }
    }
}

impl Future for Completion {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &self.0 {
            CompletionState::Over(outcome) => return Poll::Ready(outcome.clone()),
            CompletionState::Pending(pending) => pending.poll(context.waker()),
        };
        if let Poll::Ready(outcome) = &outcome {
            // The marker and the device are released with the result, not with the future.
            let before = core::mem::replace(&mut self.0, CompletionState::Over(outcome.clone()));
            before.unlist();
        }
        outcome
    }
}

impl IntoFuture for &Stream {
    type Output = Result<(), DeviceError>;
    type IntoFuture = Completion;

    /// See [`Stream::completion`].
    fn into_future(self) -> Completion {
        self.completion()
    }
}

impl IntoFuture for &Event {
    type Output = Result<(), DeviceError>;
    type IntoFuture = Completion;

    /// See [`Event::completion`].
    fn into_future(self) -> Completion {
        self.completion()
    }
}

impl CompletionState {
    fn unlist(&self) {
        if !fork::is_child()
            && let Self::Pending(pending) = self
            && pending.progress.lock().is_listed
        {
            notifier::remove(pending.id);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.0.unlist();
    }
}

impl Pending {
    fn new(device: &Device, source: StreamIndex, marker: Arc<Marker>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, marker, source, device: device.clone(), progress: Lock::default() }
    }

    fn poll(self: &Arc<Self>, waker: &Waker) -> Poll<Result<(), DeviceError>> {
        if let Err(forked) = not_forked() {
            return Poll::Ready(Err(forked));
        }
        // Cloned and dropped outside the lock: both run code of the executor.
        let waker = waker.clone();
        let (previous, is_first) = {
            let mut progress = self.progress.lock();
            if let Some(outcome) = &progress.outcome {
                return Poll::Ready(outcome.clone());
            }
            let is_first = !core::mem::replace(&mut progress.is_listed, true);
            (progress.waker.replace(waker), is_first)
        };
        drop(previous);
        if !is_first {
            return Poll::Pending;
        }
        // The waker is stored already, so no completion after this query is missed.
        if let Some(outcome) = self.query() {
            return Poll::Ready(outcome);
        }
        if notifier::add(self) {
            // Without a host function, the notifier queries.
            let _ = self.queue_notification();
        } else {
            // No thread runs, and none can be started: the executor polls until the work is complete.
            let mut progress = self.progress.lock();
            progress.is_listed = false;
            let waker = progress.waker.take();
            drop(progress);
            waker.into_iter().for_each(Waker::wake);
        }
        Poll::Pending
    }

    /// Queues the host function behind the marker.
    fn queue_notification(&self) -> Result<(), DriverError> {
        let device = &self.device;
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        let event = self.marker.event().raw();
        let lanes = device.lanes();
        let notify = |lane| notifier::notify(device.primary(), lane, self.id);
        lanes.queue_behind(device.primary(), self.source, event, notify)
    }

    /// The outcome, if the marker is complete or the context is lost.
    fn query(&self) -> Option<Result<(), DeviceError>> {
        if let Err(forked) = not_forked() {
            return Some(Err(forked));
        }
        if let Some(outcome) = &self.progress.lock().outcome {
            return Some(outcome.clone());
        }
        let outcome = match self.device.clocks().query_marker(self.device.primary(), &self.marker) {
            Ok(false) => return None,
            Ok(true) => {
                self.device.serve();
                self.device.check_awaited()
            }
            Err(error) => Err(error.into()),
        };
        let mut progress = self.progress.lock();
        Some(progress.outcome.get_or_insert(outcome).clone())
    }

    fn wait(&self) -> Result<(), DeviceError> {
        not_forked()?;
        if let Some(outcome) = &self.progress.lock().outcome {
            return outcome.clone();
        }
        let _bound = self.device.enter()?;
        self.device.maintenance().before_wait();
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        self.device.clocks().synchronize_marker(self.device.primary(), &self.marker)?;
        self.device.after_wait();
        self.device.check_awaited()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Completion");
        match &self.0 {
            CompletionState::Over(outcome) => fields.field("outcome", outcome),
            CompletionState::Pending(pending) => fields.field("device", &pending.device.ordinal()),
        };
        fields.finish_non_exhaustive()
    }
}

const AWAITING: &str = "awaiting its completion";
