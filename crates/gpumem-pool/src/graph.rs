//! [`Capture`], [`Graph`], [`GraphExec`]: work that is recorded once and launched as often as wanted.
//!
//! Between [`Stream::begin_capture`] and [`Capture::end`], what is queued on the stream becomes part of a graph instead of
//! running. Memory takes part in that:
//!
//! - *Blocks allocated while their stream captures* belong to the graph. Their addresses stay as they are, and their
//!   memory goes nowhere else, until the graph and all its executables are gone. Within the capture, a block that is
//!   dropped makes room for later ones of its stream.
//! - *Other blocks* that are used in the capture ([`Block::record_use`](crate::Block::record_use), also on their owner stream
//!   stream) or dropped while one of their streams is part of it, stay as long.
//! - Everything else goes on as ever, on any thread.
//!
//! A launch is work of the stream that it is launched on. Memory that goes back after the graph's end waits for all
//! launches.
//!
//! What can't be part of a graph is refused before the driver sees it, which would break the capture. Captures that are
//! begun by other means than [`Stream::begin_capture`] are not seen here.

use crate::device::{Device, Handle, Part, Stream, capturing::run_again};
use crate::error::PoolError;
use crate::pool::GraphMemory;
use core::fmt;
use core::marker::PhantomData;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUgraph, CUgraph_st, CUgraphExec_st, CUresult, CUstreamCaptureMode};
use std::sync::{Arc, Mutex, PoisonError};

/// What other calls to the driver may do to a capture that goes on. The pool's own calls are safe in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// A call that may wait for the device breaks it, on any thread that has not chosen otherwise.
    #[default]
    Global,
    /// Such a call breaks it on this thread only.
    ThreadLocal,
    /// No such call breaks it.
    Relaxed,
}

/// A capture that goes on. Dropped, it ends without a graph, and the stream runs its work again.
///
/// It stays on its thread: the driver ends a capture only where it began.
///
/// ```compile_fail
/// # use gpumem_pool::Capture;
/// fn elsewhere(capture: Capture) {
///     std::thread::spawn(move || capture.end());
/// }
/// ```
#[must_use = "dropping a capture ends it without a graph"]
pub struct Capture {
    stream: Stream,
    hold: Hold,
    is_ended: bool,
    _thread: PhantomData<*const ()>,
}

/// What a stream has captured, with the memory that it uses.
///
/// ```
/// use gpumem_pool::{CaptureMode, Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
///
/// let capture = stream.begin_capture(CaptureMode::Global)?;
/// let scratch = pool.alloc(1 << 20, &stream)?; // the graph's from now on
/// // … queue work that uses `scratch.address()` on `stream` …
/// drop(scratch);
/// let exec = capture.end()?.instantiate()?;
/// // SAFETY: what was queued uses only memory of the graph's own.
/// unsafe { exec.launch(&stream)? };
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Graph {
    /// The driver leaves it to its callers that one thread at a time uses a graph.
    raw: Mutex<Handle<CUgraph_st>>,
    hold: Hold,
}

/// A graph that can be launched, independent of the [`Graph`] that it was made from.
pub struct GraphExec {
    raw: Mutex<Handle<CUgraphExec_st>>,
    hold: Hold,
}

/// Keeps what a graph keeps.
struct Hold {
    device: Device,
    memory: Arc<GraphMemory>,
    graph: u64,
}

impl Stream {
    /// Begins to record what is queued on this stream, instead of running it. Streams that are made to wait for it join.
    ///
    /// A call on another thread that is just queueing work on this stream is waited for, so that all of its work runs. So does
    /// the capture's end, so that all of it is recorded.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotInCapture`] when the stream captures already, during a copy to or from borrowed memory, and when another
    /// call has not done queueing work on the stream within a quarter of a second; else as [`Stream::synchronize`].
    pub fn begin_capture(&self, mode: CaptureMode) -> Result<Capture, PoolError> {
        self.check_usable()?;
        let captures = self.clocks().captures();
        // Until the capture is known below: a call that queues work looks for it first.
        let _alone = self.close_for_capture()?;
        let _quiet = self.device().begin_capture();
        captures.announce();
        let begun = self.check_runs("beginning a capture").and_then(|()| {
            let begun = self.clocks().begin_capture(self.stream_index(), mode.raw())?;
            begun.ok_or(PoolError::CaptureBroken)
        });
        let graph = begun.inspect_err(|_| captures.withdraw())?;
        captures.begin(graph, self);
        let memory = GraphMemory::of(self.device().clocks());
        memory.begin(graph);
        let hold = Hold { device: self.device().clone(), memory, graph };
        Ok(Capture { stream: self.clone(), hold, is_ended: false, _thread: PhantomData })
    }

    /// Whether what is queued on this stream now becomes part of a graph whose capture was begun by
    /// [`Stream::begin_capture`], on this stream or on one that it has waited for.
    ///
    /// # Errors
    ///
    /// As [`Stream::synchronize`].
    pub fn is_capturing(&self) -> Result<bool, PoolError> {
        self.check_usable()?;
        Ok(self.clocks().captures().is_open() && self.part()? != Part::Runs)
    }
}

impl CaptureMode {
    fn raw(self) -> CUstreamCaptureMode {
        match self {
            Self::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Self::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Self::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

impl Capture {
    /// Ends it. Whatever comes of that, the stream runs its work again.
    ///
    /// # Errors
    ///
    /// [`PoolError::CaptureBroken`], [`PoolError::CaptureUnjoined`], or what the driver says.
    pub fn end(mut self) -> Result<Graph, PoolError> {
        self.finish()
    }

    /// The stream on which it began.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn finish(&mut self) -> Result<Graph, PoolError> {
        self.is_ended = true;
        let clocks = self.stream.clocks();
        let members = clocks.captures().members(self.hold.graph);
        // Until the streams wait for all that they were asked to wait for: a call that looks at them now finds all of that.
        let _alone = Stream::close_for_end(&members);
        if !clocks.captures().end_begins(self.hold.graph) {
            // The end of a borrow has cut it short.
            return Err(PoolError::CaptureBroken);
        }
        let ended = clocks.end_capture(self.stream.stream_index());
        let waited = run_again(&self.hold.device, self.hold.graph, self.stream.stream_index());
        match ended {
            Ok(raw) if raw.is_null() => Err(PoolError::CaptureBroken),
            Ok(raw) => {
                let graph = Graph { raw: Mutex::new(Handle(raw)), hold: self.hold.clone() };
                waited?;
                Ok(graph)
            }
            Err(error) => Err(match error.code() {
                CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => PoolError::CaptureBroken,
                CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => PoolError::CaptureUnjoined,
                _ => error.into(),
            }),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.is_ended {
            drop(self.finish());
        }
    }
}

impl Graph {
    /// Makes it ready to be launched. May be done more than once.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn instantiate(&self) -> Result<GraphExec, PoolError> {
        let device = &self.hold.device;
        let _bound = device.enter()?;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = device.driver();
        let mut exec = core::ptr::null_mut();
        // SAFETY: `exec` outlives the call; the graph is alive, and nobody else uses it now.
        unsafe {
            match driver.table().cuGraphInstantiateWithFlags {
                Some(_) => driver.cuGraphInstantiateWithFlags(&mut exec, raw.0, 0)?,
                None => {
                    let log = core::ptr::null_mut();
                    driver.cuGraphInstantiate_v2(&mut exec, raw.0, core::ptr::null_mut(), log, 0)?;
                }
            }
        }
        Ok(GraphExec { raw: Mutex::new(Handle(exec)), hold: self.hold.clone() })
    }

    /// The driver's handle, alive for as long as this graph is. Only one thread at a time may use it.
    #[must_use]
    pub fn raw(&self) -> CUgraph {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

impl GraphExec {
    /// Queues everything that was captured on `stream`. Returns at once. Launches of one executable never overlap.
    ///
    /// # Errors
    ///
    /// [`PoolError::WrongDevice`]; [`PoolError::NotInCapture`] when the stream captures, or one that it has to wait for; else as
    /// [`Stream::synchronize`].
    ///
    /// # Safety
    ///
    /// As for queueing the work by hand: what it does to memory is ordered before and after whatever conflicts with it,
    /// on this stream or by waits. Only for waits that were asked for during the capture, for streams and events outside, and
    /// for blocks that were allocated in it and are dropped, it is enough that the launch follows. Memory of others than a pool, and kernels, are still there.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), PoolError> {
        let device = &self.hold.device;
        let _call = stream.call()?;
        if stream.device() != device {
            return Err(device.mismatch(stream.device()));
        }
        stream.check_runs("launching a graph")?;
        let clocks = stream.clocks();
        let (after, after_parts) = clocks.captures().launch(self.hold.graph, stream.stream_index(), clocks);
        // Of another library's stream nobody can say from here when it is done.
        let after_parts = after_parts.into_iter().filter(|stamp| clocks.can_be_ordered(*stamp));
        for stamp in after.into_iter().chain(after_parts) {
            if !clocks.order_launch(stamp, stream.stream_index())? {
                return Err(PoolError::NotInCapture { operation: "waiting for a stream that captures" });
            }
        }
        let _bound = device.enter()?;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: executable and stream are alive, and nobody else uses the executable now; the memory that it was
        // captured with is kept until it is gone, and then until this launch is done.
        unsafe { device.driver().cuGraphLaunch(raw.0, stream.raw())? };
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let raw = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner).0;
        // SAFETY: nobody passes the handle again; executables don't need the graph.
        self.hold.destroy(|driver| unsafe { driver.cuGraphDestroy(raw) });
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let raw = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner).0;
        // SAFETY: nobody passes the handle again; the driver keeps what launches that are queued need.
        self.hold.destroy(|driver| unsafe { driver.cuGraphExecDestroy(raw) });
    }
}

impl Hold {
    /// Destroys an object of the driver's. There is nobody to tell of a failure.
    fn destroy(&self, destroy: impl FnOnce(&gpumem_sys::Driver) -> Result<(), DriverError>) {
        // Without its context it is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let _guard = self.device.driver().teardown();
        let _ = destroy(self.device.driver());
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        self.device.clocks().captures().add_handle(self.graph);
        Self { device: self.device.clone(), memory: Arc::clone(&self.memory), graph: self.graph }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.memory.drop_handle(self.graph);
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.hold.device.ordinal()).finish_non_exhaustive()
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").field("device", &self.hold.device.ordinal()).finish_non_exhaustive()
    }
}
