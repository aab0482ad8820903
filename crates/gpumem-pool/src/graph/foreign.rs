//! [`ForeignCaptures`]: captures that another library begins, ends and launches.

use super::Hold;
use crate::error::PoolError;
use crate::pool::GraphMemory;
use core::fmt;
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{CapturePart, StreamIndex, close_for_end, not_forked, run_again};
use gpumem_device::{CaptureError, CaptureModeGuard, Device, DeviceError, Stream};
use gpumem_sys::fork;
use std::sync::Arc;
use std::time::Instant;

/// The memory of captures that another library, such as PyTorch, begins and ends with the driver alone.
///
/// Blocks allocated on a stream while it captures, after [`ForeignCaptures::add`] was called with it, belong to the captures: their
/// addresses stay valid, and their memory is not reused elsewhere, until this value is dropped. Blocks that are used or dropped in the
/// capture are retained as long, as in [`Capture`](super::Capture).
///
/// Captures of one value share memory: later captures reuse memory that earlier ones have dropped ([`ForeignCaptures::expect_more`]). Their
/// graphs must run one after another, in the order of their captures, as graphs of one pool do in PyTorch. For graphs that run at the same
/// time or in another order, create one value each.
///
/// ```
/// use gpumem_pool::{Device, ForeignCaptures, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
///
/// let captures = ForeignCaptures::expect(&device); // before the other library begins a capture
/// // … it begins a capture on `stream` …
/// # let capture = gpumem_pool::Capture::begin(&stream, gpumem_pool::CaptureMode::Relaxed)?;
/// captures.add(&stream)?;
/// let scratch = pool.alloc(1 << 20, &stream)?; // kept for the graph
/// drop(scratch);
/// // … it ends the capture …
/// # let graph = capture.end()?;
/// captures.end()?;
/// // … and launches its graph, on any stream, until:
/// # drop(graph);
/// drop(captures); // waits for the device
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ForeignCaptures {
    device: Device,
    memory: Arc<GraphMemory>,
    state: Lock<ForeignState>,
}

#[derive(Default)]
struct ForeignState {
    has_ended: bool,
    /// Captures have ended, and launches may not use their memory yet.
    is_waiting: bool,
    /// The first capture that this value has added before others did; the later ones share memory with it.
    group: Option<u64>,
    /// Each capture, and the stream that it was found on first.
    found: Vec<(Hold, StreamIndex)>,
}

impl ForeignCaptures {
    /// Announces captures on streams of the device. Until [`ForeignCaptures::end`], calls that name a stream ask the driver whether it
    /// captures, and the pools' own calls do not disturb a capture. Call it before the capture begins.
    #[must_use = "a drop ends the captures"]
    pub fn expect(device: &Device) -> Self {
        device.clocks().captures().announce();
        let memory = GraphMemory::of(device.clocks());
        Self { device: device.clone(), memory, state: Lock::default() }
    }

    /// Announces further captures, after [`ForeignCaptures::end`]. Before the end it has no effect.
    pub fn expect_more(&self) {
        if fork::is_child() {
            return;
        }
        let mut state = self.state.lock();
        if core::mem::replace(&mut state.has_ended, false) {
            self.device.clocks().captures().announce();
        }
    }

    /// Adds the capture that a stream is part of. False, without a change, if the stream does not capture, or after the end. Call it on
    /// each stream before an allocation; repeated captures are not added again.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if the stream's capture is broken.
    /// - [`DeviceError::WrongDevice`] if the stream belongs to another device.
    /// - [`DeviceError::Stream`], [`DeviceError::Driver`] and [`DeviceError::DeviceLost`] as for
    ///   [`Stream::synchronize`].
    pub fn add(&self, stream: &Stream) -> Result<bool, PoolError> {
        not_forked()?;
        stream.check_usable()?;
        if *stream.device() != self.device {
            return Err(self.device.mismatch(stream.device()).into());
        }
        let mut state = self.state.lock();
        if state.has_ended {
            return Ok(false);
        }
        let graph = match stream.part()? {
            CapturePart::In(graph) => graph,
            CapturePart::Runs => return Ok(false),
            CapturePart::Broken => return Err(PoolError::Device(DeviceError::Capture(CaptureError::Broken))),
        };
        let captures = self.device.clocks().captures();
        if captures.knows(graph) {
            captures.join(graph, &stream.shared());
            // Each value that finds a capture keeps its memory.
            let is_held = state.found.iter().any(|(hold, _)| hold.graph == graph);
            if !is_held && captures.share_adopted(graph) {
                state.found.push((self.hold(graph), stream.stream_index()));
            }
            return Ok(true);
        }
        captures.announce();
        // The memory comes first: once the capture is known, dropped blocks of its streams are kept for it.
        self.memory.begin(graph, *state.group.get_or_insert(graph));
        captures.adopt(graph, &stream.shared());
        state.found.push((self.hold(graph), stream.stream_index()));
        Ok(true)
    }

    /// Declares that the captures have ended. Waits, on the host, until their memory may be used by launches on any stream. The call names
    /// the streams that were added. A capture that is still active continues: another value that has added it ends it, or the next call
    /// does.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if another capture prevents the wait.
    /// - [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a driver call fails.
    pub fn end(&self) -> Result<(), PoolError> {
        not_forked()?;
        let mut state = self.state.lock();
        let (clocks, captures) = (self.device.clocks(), self.device.clocks().captures());
        let (mut result, mut is_waiting) = (Ok(()), state.is_waiting || !state.has_ended);
        for (hold, origin) in &state.found {
            let is_active =
                || matches!(clocks.part(*origin), Ok(CapturePart::In(graph)) if graph == hold.graph);
            if !captures.knows(hold.graph) || is_active() {
                continue;
            }
            let members = captures.members(hold.graph);
            // Held until the deferred waits are queued, as at the end of a capture of our own.
            let _alone = close_for_end(&members);
            if captures.end_begins(hold.graph) {
                is_waiting = true;
                result = result.and(run_again(self.device.primary(), clocks, hold.graph, *origin));
            }
        }
        if !core::mem::replace(&mut state.has_ended, true) {
            captures.withdraw();
        }
        // After an error, the next call waits.
        state.is_waiting = is_waiting;
        result?;
        if is_waiting {
            self.let_memory_be_ready(&state)?;
            state.is_waiting = false;
        }
        Ok(())
    }

    /// Waits until launches on any stream may use the memory: the streams of launches are not known here.
    fn let_memory_be_ready(&self, state: &ForeignState) -> Result<(), PoolError> {
        let (clocks, captures) = (self.device.clocks(), self.device.clocks().captures());
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let mut former_uses = Vec::new();
        for (hold, _) in &state.found {
            // It was allocated on this stream.
            if let Some(source) = captures.source(hold.graph).and_then(Stream::of_shared) {
                source.synchronize()?;
            }
            former_uses.extend(captures.after_parts(hold.graph));
        }
        // A later capture gets the parts that an earlier one has returned, ordered after their uses in the program.
        if !clocks.wait_on_host(&former_uses, Instant::now() + USES_END_WITHIN)? {
            self.device.synchronize_for_drop()?;
        }
        Ok(())
    }

    fn hold(&self, graph: u64) -> Hold {
        Hold { device: self.device.clone(), memory: Arc::clone(&self.memory), graph }
    }
}

impl Drop for ForeignCaptures {
    /// Waits for the device, because launches of the graphs are not known here.
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // A drop cannot report an error; nothing runs any more on a device that is lost.
        let _ = self.end();
        // While another capture is active, the driver refuses a wait for the device, so every known stream is waited for instead.
        if !self.state.lock().found.is_empty() && self.device.synchronize().is_err() {
            let _ = self.device.clocks().finish_everything(self.device.primary());
        }
    }
}

impl fmt::Debug for ForeignCaptures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("ForeignCaptures")
            .field("device", &self.device.ordinal())
            .field("has_ended", &state.has_ended)
            .field("count", &state.found.len())
            .finish_non_exhaustive()
    }
}

/// The time to wait for stream markers before the host waits for the device.
const USES_END_WITHIN: Duration = Duration::from_secs(1);
