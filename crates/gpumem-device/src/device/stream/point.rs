//! [`StreamPoint`]: all work queued on a stream up to one moment, in one word.
//!
//! Taking a point makes no driver call. A wait for a point uses the earliest marker behind it, so later work delays the waiter only if no
//! marker lies between. A stream whose points other streams wait for should be marked early: [`Stream::has_waiters`].

use super::Stream;
use crate::device::{CapturePart, Device, OrderEvent, Stamp, StreamIndex};
use crate::error::{CaptureError, DeviceError, StreamError};
use core::fmt;
use gpumem_base::order::Order;

/// All work queued on a stream up to one moment. It needs no driver object, and outlives the stream.
///
/// A point belongs to the driver of its stream, and has no meaning for streams and devices of another driver.
///
/// ```
/// use gpumem_device::{Device, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (copy, compute) = (Stream::new(&device)?, Stream::new(&device)?);
/// // … queue a copy on `copy` …
/// let copied = copy.point();
/// copy.mark()?; // optional: a wait for `copied` does not wait for later work
/// // … queue more on `copy` …
/// assert!(compute.wait_for_point(copied)?); // on the device
/// assert!(compute.is_behind(copied)); // another wait would make no driver call
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamPoint(Stamp);

impl StreamPoint {
    /// No work: always complete.
    pub const COMPLETE: Self = Self(Stamp::COMPLETE);

    /// The point as a word, for example to store it in an atomic. The word 0 stands for completed work.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.into()
    }

    /// The point with a word of [`StreamPoint::to_bits`].
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits.into())
    }

    /// True if both are points of one stream, provided that neither stream is gone.
    #[inline]
    #[must_use]
    pub fn has_stream_of(self, other: Self) -> bool {
        self.0.stream_index() == other.0.stream_index()
    }

    #[doc(hidden)]
    #[inline]
    pub fn stream_index(self) -> StreamIndex {
        self.0.stream_index()
    }

    /// Everything that a stamp stands for.
    #[doc(hidden)]
    #[inline]
    pub fn of_stamp(stamp: Stamp) -> Self {
        Self(stamp)
    }

    fn is_latest(self) -> bool {
        self.0.epoch() == Stamp::EPOCH_MAX
    }
}

impl Stream {
    /// The point behind all work queued on this stream so far, including all work of this thread.
    #[inline]
    #[must_use]
    pub fn point(&self) -> StreamPoint {
        StreamPoint(self.clocks().stamp_of(self.id()))
    }

    /// A point behind all work that is queued on this stream before the point is waited for. Use it for work that is
    /// about to be queued.
    #[inline]
    #[must_use]
    pub fn latest_point(&self) -> StreamPoint {
        StreamPoint(Stamp::new(self.stream_index(), Stamp::EPOCH_MAX))
    }

    /// True if work queued on this stream from now on is known, without a driver call, to run after the point.
    #[inline]
    #[must_use]
    pub fn is_behind(&self, point: StreamPoint) -> bool {
        point.0.stream_index() == self.stream_index()
            || self.clocks().is_ordered(point.0, self.stream_index())
    }

    /// True if the stream belongs to another library or is a default stream. A wait for such a stream may need its name
    /// ([`Stream::wait_for`]); for other streams, points always suffice.
    #[inline]
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        !self.is_owned()
    }

    /// True if other streams have recently waited for points of this stream. A caller that queues work for other streams should then call
    /// [`Stream::mark`] after it.
    #[inline]
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.clocks().has_waiters(self.stream_index())
    }

    /// True if a capture that this crate began is active on any stream of the machine. Without one, a stream that is behind a point needs
    /// no check before work that depends on it.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn is_any_capture_active(&self) -> bool {
        self.clocks().captures().is_open()
    }

    /// Resets [`Stream::has_waiters`] until another stream waits for a point again. For a wait that will not be followed by more.
    #[doc(hidden)]
    #[inline]
    pub fn expect_no_waiters(&self) {
        self.clocks().expect_no_waiters(self.stream_index());
    }

    /// Records a marker, so that waits for earlier points of this stream do not include later work. Returns false if the
    /// stream captures or is retired.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Stream`] if it is another thread's default stream.
    /// - [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a call fails.
    pub fn mark(&self) -> Result<bool, DeviceError> {
        self.device().check_open()?;
        let _call = match self.call() {
            Err(DeviceError::Stream(StreamError::Retired)) => return Ok(false),
            call => call?,
        };
        self.clocks().use_up_waiter(self.stream_index());
        Ok(self.clocks().record_marker_by_user(self.stream_index())?)
    }

    /// Makes work queued on this stream from now on wait, on the device, for the point. Makes no driver call if the
    /// stream is behind the point already. If the point's stream has a marker behind the point, work queued after that
    /// marker is not waited for.
    ///
    /// In a capture, the wait becomes part of the launches, as with [`Stream::wait_for`].
    ///
    /// Returns false without a wait if the point's stream belongs to another library and has no marker behind the point: use
    /// [`Stream::wait_for`] for such a stream.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::wait_for`], such as [`DeviceError::Stream`].
    #[inline]
    pub fn wait_for_point(&self, point: StreamPoint) -> Result<bool, DeviceError> {
        if !self.clocks().captures().is_open() && self.is_behind(point) {
            return Ok(true);
        }
        self.wait_for_point_slow(point, true)
    }

    /// Like [`Stream::wait_for_point`], but the stream does not join a capture: if the point's work is part of one, the call fails.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Capture`] if the point's work is part of a capture that is active; otherwise the errors of
    /// [`Stream::wait_for`].
    #[inline]
    pub fn wait_for_point_outside_captures(&self, point: StreamPoint) -> Result<bool, DeviceError> {
        if !self.clocks().captures().is_open() && self.is_behind(point) {
            return Ok(true);
        }
        self.wait_for_point_slow(point, false)
    }

    #[cold]
    fn wait_for_point_slow(&self, point: StreamPoint, may_join: bool) -> Result<bool, DeviceError> {
        self.device().check_open()?;
        let _call = self.call()?;
        let (clocks, own, source) = (self.clocks(), self.stream_index(), point.0.stream_index());
        if own == source || clocks.is_complete(point.0) {
            return Ok(true);
        }
        let stamp = if point.is_latest() { clocks.stamp(source) } else { point.0 };
        let captures = clocks.captures();
        let source_id = clocks.stream_in(source);
        let note = || self.device().watch().note(OrderEvent::Wait { stream: self.id(), source: source_id });
        if captures.is_open() {
            let source_part = if clocks.is_captured(stamp) { clocks.own_part(source) } else { None };
            match (self.part()?, source_part.unwrap_or(CapturePart::Runs)) {
                (CapturePart::Broken, _) | (_, CapturePart::Broken) => {
                    return Err(DeviceError::Capture(CaptureError::Broken));
                }
                (CapturePart::In(graph), CapturePart::Runs) if captures.knows(graph) => {
                    let is_marked = clocks.ensure_marker(stamp)?;
                    if is_marked {
                        captures.add_after(graph, own, [stamp]);
                    }
                    return Ok(is_marked);
                }
                (CapturePart::In(graph), CapturePart::In(other)) if graph != other => {
                    return Err(DeviceError::Capture(CaptureError::NotCapturable {
                        operation: "waiting for another capture",
                    }));
                }
                (_, CapturePart::In(_)) if !may_join => {
                    return Err(DeviceError::Capture(CaptureError::NotCapturable {
                        operation: "waiting for work of a capture",
                    }));
                }
                (own_part, CapturePart::In(_)) => {
                    let _alone = self.close_to_join(own_part == CapturePart::Runs)?;
                    clocks.queue_fork(own, source)?;
                    self.note_joined();
                    note();
                    return Ok(true);
                }
                (_, CapturePart::Runs) => {}
            }
        }
        let is_ordered = clocks.wait_for_stamp(stamp, own)?;
        if is_ordered {
            note();
        }
        Ok(is_ordered)
    }
}

impl Device {
    /// Waits on the host until the point is complete. Later work of its stream is not waited for if a marker
    /// ([`Stream::mark`]) lies between.
    ///
    /// Returns false without a wait if the point's stream captures, or belongs to another library and has no marker
    /// behind the point.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if the wait or earlier work failed.
    pub fn synchronize_point(&self, point: StreamPoint) -> Result<bool, DeviceError> {
        let clocks = self.clocks();
        if clocks.is_complete(point.0) {
            return self.check_awaited().map(|()| true);
        }
        self.check_open()?;
        let stamp = if point.is_latest() { clocks.stamp(point.0.stream_index()) } else { point.0 };
        let _bound = self.enter()?;
        self.maintenance().before_wait();
        let is_complete = clocks.synchronize_stamp(stamp)?;
        self.after_wait();
        self.check_awaited()?;
        Ok(is_complete)
    }

    /// True if the point is known to be complete, without a driver call.
    #[inline]
    #[must_use]
    pub fn is_point_complete(&self, point: StreamPoint) -> bool {
        self.clocks().is_complete(point.0)
    }
}

impl fmt::Debug for StreamPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamPoint").field(&self.0).finish()
    }
}
