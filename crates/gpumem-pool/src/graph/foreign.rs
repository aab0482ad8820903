//! [`ForeignCaptures`]: captures that another library begins, ends and launches.

use super::Hold;
use crate::device::{CaptureModeGuard, Device, Part, Stream, StreamIndex, capturing::run_again};
use crate::error::PoolError;
use crate::pool::GraphMemory;
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of captures that another library, such as PyTorch, begins and ends with the driver alone.
///
/// Blocks allocated on a stream while it captures, after [`ForeignCaptures::add`] was called with it, belong to the captures: their
/// addresses stay valid, and their memory is not reused elsewhere, until this value is dropped. Blocks that are used or dropped in the
/// capture are retained as long, as in [`Capture`](super::Capture).
///
/// Captures of one value share memory: what a capture has dropped serves the later ones ([`ForeignCaptures::expect_more`]). Their graphs
/// must run one after another, in the order of their captures, as graphs of one pool do in PyTorch. For graphs that run at the same time,
/// or in another order, create a value for each.
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
/// # let capture = stream.begin_capture(gpumem_pool::CaptureMode::Relaxed)?;
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    has_ended: bool,
    /// Each capture, and the stream that it was found on.
    found: Vec<(Hold, StreamIndex)>,
}

impl ForeignCaptures {
    /// Announces captures on streams of the device. Until [`ForeignCaptures::end`], calls that name a stream ask the driver whether it
    /// captures, and the pools' own calls do not disturb a capture. Call it before the capture begins.
    #[must_use = "a drop ends the captures"]
    pub fn expect(device: &Device) -> Self {
        device.clocks().captures().announce();
        let memory = GraphMemory::of(device.clocks());
        Self { device: device.clone(), memory, state: Mutex::default() }
    }

    /// Announces further captures, after [`ForeignCaptures::end`]. Before the end it changes nothing.
    pub fn expect_more(&self) {
        let mut state = self.lock();
        if core::mem::replace(&mut state.has_ended, false) {
            self.device.clocks().captures().announce();
        }
    }

    /// Adds the capture that a stream is part of. False, and no change, if the stream does not capture, or after the end. Call it on
    /// each stream before an allocation; a capture that was added before is not added again.
    ///
    /// # Errors
    ///
    /// - [`PoolError::CaptureBroken`] if the stream's capture is broken.
    /// - [`PoolError::WrongDevice`] if the stream belongs to another device.
    /// - [`PoolError::StreamRetired`], [`PoolError::WrongThread`], [`PoolError::Driver`] and [`PoolError::DeviceLost`] as for
    ///   [`Stream::synchronize`].
    pub fn add(&self, stream: &Stream) -> Result<bool, PoolError> {
        stream.check_usable()?;
        if *stream.device() != self.device {
            return Err(self.device.mismatch(stream.device()));
        }
        let mut state = self.lock();
        if state.has_ended {
            return Ok(false);
        }
        let graph = match stream.part()? {
            Part::In(graph) => graph,
            Part::Runs => return Ok(false),
            Part::Broken => return Err(PoolError::CaptureBroken),
        };
        let captures = self.device.clocks().captures();
        if captures.knows(graph) {
            captures.join(graph, stream);
            return Ok(true);
        }
        captures.announce();
        // First the memory: from the moment that the capture is known, dropped blocks of its streams are kept for it.
        self.memory.begin(graph, state.found.first().map_or(graph, |(first, _)| first.graph));
        captures.adopt(graph, stream);
        let hold = Hold { device: self.device.clone(), memory: Arc::clone(&self.memory), graph };
        state.found.push((hold, stream.stream_index()));
        Ok(true)
    }

    /// Declares that the captures have ended. Waits, on the host, until their memory may be used by launches on any stream. A second
    /// call does nothing.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] or [`PoolError::DeviceLost`] if a driver call fails.
    pub fn end(&self) -> Result<(), PoolError> {
        let mut state = self.lock();
        if core::mem::replace(&mut state.has_ended, true) {
            return Ok(());
        }
        let captures = self.device.clocks().captures();
        let mut result = Ok(());
        for (hold, origin) in &state.found {
            let members = captures.members(hold.graph);
            // Held until the deferred waits are queued, as at the end of a capture of our own.
            let _alone = Stream::close_for_end(&members);
            if captures.end_begins(hold.graph) {
                result = result.and(run_again(&self.device, hold.graph, *origin));
            }
        }
        captures.withdraw();
        result?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        for (hold, _) in &state.found {
            // Launches follow the stream that the memory was allocated on; the other library's cannot be made to.
            if let Some(source) = captures.source(hold.graph) {
                source.synchronize()?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ForeignCaptures {
    /// Waits for the device, because launches of the graphs are not known here.
    fn drop(&mut self) {
        // A drop cannot report an error; nothing runs any more on a device that is lost.
        let _ = self.end();
        // While another capture is active, the driver refuses a wait for the device: then for every stream that is known here.
        if !self.lock().found.is_empty() && self.device.synchronize().is_err() {
            let _ = self.device.clocks().finish_everything(&self.device);
        }
    }
}

impl fmt::Debug for ForeignCaptures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("ForeignCaptures")
            .field("device", &self.device.ordinal())
            .field("has_ended", &state.has_ended)
            .field("count", &state.found.len())
            .finish_non_exhaustive()
    }
}
