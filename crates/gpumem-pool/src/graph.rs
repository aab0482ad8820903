//! [`Capture`], [`Graph`], [`GraphExec`]: work that is recorded once and launched many times.
//!
//! Between [`Capture::begin`] and [`Capture::end`], work queued on the stream becomes part of a graph instead of
//! running. The memory that it uses is handled as follows:
//!
//! - *Blocks allocated while their stream captures* belong to the graph. Their addresses stay valid, and their memory
//!   is not reused elsewhere, until the graph and all its executables are dropped. Within the capture, the memory of a
//!   dropped block is reused for later blocks of its stream.
//! - *Other blocks* that are used in the capture ([`Block::record_use`](crate::Block::record_use), even on their owner stream), or dropped
//!   while one of their streams is part of it, are retained for the same time.
//! - All other operations are unaffected, on any thread.
//!
//! A launch is work of the stream that it is launched on. Memory that is released after the graph's end waits for all
//! launches.
//!
//! An operation that cannot be part of a graph is refused before it reaches the driver, which would break the capture. Captures of other
//! libraries are known only after [`ForeignCaptures::add`].

mod foreign;

pub use foreign::ForeignCaptures;

use crate::error::PoolError;
use crate::pool::GraphMemory;
use core::marker::PhantomData;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{Handle, Object, close_for_end, end_of, not_forked, run_again};
use gpumem_device::{CaptureError, Device, DeviceError, Stream};
use gpumem_sys::fork;
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::{
    CUgraph, CUgraph_st, CUgraphExec_st, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUresult,
    CUstreamCaptureMode,
};
use std::sync::Arc;

/// The effect of other driver calls on an active capture. The pool's own calls are safe in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// A call that may wait for the device breaks the capture, on any thread that has not chosen another mode.
    #[default]
    Global,
    /// Such a call breaks the capture on this thread only.
    ThreadLocal,
    /// No such call breaks the capture.
    Relaxed,
}

/// An active capture. Dropping it ends it without a graph, and the stream runs work again.
///
/// It cannot be sent to another thread: the driver ends a capture only on the thread that began it.
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

/// The work that a stream has captured, with the memory that it uses.
///
/// ```
/// use gpumem_pool::{Capture, CaptureMode, Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
///
/// let capture = Capture::begin(&stream, CaptureMode::Global)?;
/// let scratch = pool.alloc(1 << 20, &stream)?; // owned by the graph
/// // … queue work that uses `scratch.address()` on `stream` …
/// drop(scratch);
/// let exec = capture.end()?.instantiate()?;
/// // SAFETY: the captured work uses only memory of the graph.
/// unsafe { exec.launch(&stream)? };
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Graph {
    /// The driver requires that only one thread at a time uses a graph.
    raw: Lock<Handle<CUgraph_st>>,
    hold: Hold,
}

/// A graph that can be launched, independent of the [`Graph`] that it was created from.
pub struct GraphExec {
    raw: Lock<Handle<CUgraphExec_st>>,
    hold: Hold,
}

struct Hold {
    device: Device,
    memory: Arc<GraphMemory>,
    graph: u64,
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
    /// Begins to capture the work queued on a stream, instead of running it. Streams that are made to wait for it
    /// join the capture.
    ///
    /// Waits for calls on other threads that are queueing work on the stream, so that all of their work runs. The end
    /// of the capture waits for such calls too, so that all of their work is captured.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if the stream is already capturing or its capture is broken, during a copy to or from borrowed memory, if
    ///   another call does not finish queueing work on the stream within a quarter of a second, or if the driver does not report the new
    ///   capture.
    /// - [`DeviceError::Stream`], [`DeviceError::Driver`] and [`DeviceError::DeviceLost`]
    ///   as for [`Stream::synchronize`].
    pub fn begin(stream: &Stream, mode: CaptureMode) -> Result<Self, PoolError> {
        stream.device().check_open()?;
        stream.check_usable()?;
        let captures = stream.clocks().captures();
        // Held until the capture is recorded below: a call that queues work checks for it first.
        let _alone = stream.close_for_capture()?;
        let _quiet = stream.device().begin_capture();
        captures.announce();
        let begun = stream.check_runs("beginning a capture").and_then(|()| {
            let begun = stream.clocks().begin_capture(stream.stream_index(), mode.raw())?;
            begun.ok_or(DeviceError::Capture(CaptureError::Broken))
        });
        let graph = begun.inspect_err(|_| captures.withdraw())?;
        // The memory comes first: once the capture is known, dropped blocks of its streams are kept for it.
        let memory = GraphMemory::of(stream.device().clocks());
        memory.begin(graph, graph);
        captures.begin(graph, &stream.shared());
        let hold = Hold { device: stream.device().clone(), memory, graph };
        Ok(Self { stream: stream.clone(), hold, is_ended: false, _thread: PhantomData })
    }

    /// Ends the capture. The stream runs work again, even after an error.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if the capture is broken, or if a stream that joined it has work that the capturing stream does not wait for.
    /// - [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a driver call fails.
    pub fn end(mut self) -> Result<Graph, PoolError> {
        self.finish()
    }

    /// The stream on which the capture began.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn finish(&mut self) -> Result<Graph, PoolError> {
        not_forked()?;
        self.is_ended = true;
        let clocks = self.stream.clocks();
        let members = clocks.captures().members(self.hold.graph);
        // Held until the deferred waits are queued: a call that checks the streams later finds all of them.
        let _alone = close_for_end(&members);
        if !clocks.captures().end_begins(self.hold.graph) {
            // The end of a borrow ended the capture early.
            return Err(PoolError::Device(DeviceError::Capture(CaptureError::Broken)));
        }
        let ended = end_of(&members, clocks, self.stream.stream_index());
        let waited =
            run_again(self.hold.device.primary(), clocks, self.hold.graph, self.stream.stream_index());
        match ended {
            Ok(raw) if raw.is_null() => Err(PoolError::Device(DeviceError::Capture(CaptureError::Broken))),
            Ok(raw) => {
                let graph = Graph { raw: Lock::new(Handle(raw)), hold: self.hold.clone() };
                waited?;
                Ok(graph)
            }
            Err(error) => Err(match error.code() {
                CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => {
                    PoolError::Device(DeviceError::Capture(CaptureError::Broken))
                }
                CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
                    PoolError::Device(DeviceError::Capture(CaptureError::Unjoined))
                }
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
    /// Creates an executable of the graph. May be called several times.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if a call fails, [`DeviceError::DeviceLost`] if the context is lost.
    pub fn instantiate(&self) -> Result<GraphExec, PoolError> {
        self.hold.device.check_open()?;
        let device = &self.hold.device;
        let _bound = device.enter()?;
        let raw = self.raw.lock();
        let driver = device.driver();
        let mut exec = core::ptr::null_mut();
        // SAFETY: `exec` outlives the call; the graph is alive, and the lock keeps other threads from using it.
        unsafe {
            match driver.table().cuGraphInstantiateWithFlags {
                Some(_) => driver.cuGraphInstantiateWithFlags(&mut exec, raw.0, 0)?,
                None => {
                    let log = core::ptr::null_mut();
                    driver.cuGraphInstantiate_v2(&mut exec, raw.0, core::ptr::null_mut(), log, 0)?;
                }
            }
        }
        Ok(GraphExec { raw: Lock::new(Handle(exec)), hold: self.hold.clone() })
    }

    /// The driver's handle, alive as long as this graph. Only one thread at a time may use it.
    #[must_use]
    pub fn raw(&self) -> CUgraph {
        if fork::is_child() {
            return core::ptr::null_mut();
        }
        self.raw.lock().0
    }
}

impl GraphExec {
    /// Replaces the captured work with the work of `graph`, which is cheaper than a new executable. False, without a change, if the driver
    /// cannot: it requires the same operations in the same order, with other addresses and values. Queued launches are not affected.
    ///
    /// # Errors
    ///
    /// [`DeviceError::WrongDevice`] if the graph belongs to another device; [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if a
    /// call fails.
    pub fn update(&mut self, graph: &Graph) -> Result<bool, PoolError> {
        not_forked()?;
        let device = self.hold.device.clone();
        if graph.hold.device != device {
            return Err(device.mismatch(&graph.hold.device).into());
        }
        let _bound = device.enter()?;
        let exec = self.raw.get_mut().0;
        let raw = graph.raw.lock();
        let driver = device.driver();
        // SAFETY: executable and graph are alive, and no other thread uses them; the targets outlive the calls.
        let updated = unsafe {
            match driver.table().cuGraphExecUpdate_v2 {
                Some(_) => {
                    let mut info = CUgraphExecUpdateResultInfo::default();
                    driver.cuGraphExecUpdate_v2(exec, raw.0, &mut info)
                }
                None => {
                    let mut result = CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS;
                    driver.cuGraphExecUpdate(exec, raw.0, &mut core::ptr::null_mut(), &mut result)
                }
            }
        };
        match updated {
            Ok(()) => {
                self.hold = graph.hold.clone();
                Ok(true)
            }
            Err(error) if error.code() == CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Queues the captured work on `stream` and returns immediately. Launches of one executable never overlap.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::WrongDevice`] if the stream belongs to another device.
    /// - [`DeviceError::Capture`] if the stream, or a stream that it must wait for, is capturing, or if its capture is broken.
    /// - [`DeviceError::Asleep`] if memory that the graph keeps sleeps ([`Pool::sleep`](crate::Pool::sleep)).
    /// - [`DeviceError::Stream`], [`DeviceError::Driver`] and [`DeviceError::DeviceLost`]
    ///   as for [`Stream::synchronize`].
    ///
    /// # Safety
    ///
    /// The requirements are those of queueing the captured work directly: its memory accesses are ordered before and after all conflicting
    /// accesses, by this stream or by waits. It is sufficient that the launch follows the conflicting work in three cases: the waits
    /// requested during the capture for streams and events outside it, and blocks that were allocated in it and dropped. Kernels, and
    /// memory that no pool manages, must still exist.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), PoolError> {
        self.hold.device.check_open()?;
        let device = &self.hold.device;
        if stream.device() != device {
            stream.check_usable()?;
            return Err(device.mismatch(stream.device()).into());
        }
        let graph = self.hold.graph;
        let memory = core::iter::once_with(|| self.hold.memory.of_graph(graph)).flatten();
        stream.queue_work(memory, |on| {
            stream.check_runs("launching a graph")?;
            let clocks = stream.clocks();
            let (after, after_parts) =
                clocks.captures().launch(graph, stream.stream_index(), clocks.epochs());
            // The completion of another library's stream cannot be determined here.
            let after_parts = after_parts.into_iter().filter(|stamp| clocks.can_be_ordered(*stamp));
            for stamp in after.into_iter().chain(after_parts) {
                if !clocks.order_launch(stamp, stream.stream_index())? {
                    return Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable {
                        operation: "waiting for a stream that captures",
                    })));
                }
            }
            let _bound = device.enter()?;
            let raw = self.raw.lock();
            // SAFETY: executable and stream are alive, and the lock keeps other threads from using the executable. The
            // captured memory is kept until the executable is dropped, and then until this launch is done.
            unsafe { device.driver().cuGraphLaunch(raw.0, on)? };
            Ok(())
        })?
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let raw = self.raw.get_mut().0;
        self.hold.device.destroy(Object::Graph(raw));
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let raw = self.raw.get_mut().0;
        self.hold.device.destroy(Object::Exec(raw));
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
        if fork::is_child() {
            return;
        }
        self.memory.drop_handle(self.graph);
    }
}

debug_fields!(Capture, it, stream: it.stream);

debug_fields!(Graph, it, device: it.hold.device.ordinal());

debug_fields!(GraphExec, it, device: it.hold.device.ordinal());
