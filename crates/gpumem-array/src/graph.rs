//! [`GpuGraph`]: operations on arrays that are captured once and launched many times.
//!
//! [`Gpu::capture`] calls a closure with a `Gpu` of its own, whose stream nothing else uses. Operations on it become nodes of a graph
//! instead of running. The graph has two kinds of arrays:
//!
//! - *Arguments*: arrays that were made outside and used in the closure. The capture records each of them with its bytes and whether it
//!   was written ([`Recording`](crate::gpu::recording::Recording)). A launch takes them again, as Rust borrows, and is ordered with their
//!   other uses like any operation.
//! - *Results*: arrays that were made in the closure and returned from it. The graph owns them. Their values exist after a launch
//!   ([`Launched::get`]), and until the next one, which borrows the graph exclusively.
//!
//! Other arrays made in the closure are temporaries. Their memory is part of the graph's, and launches never overlap: the driver runs the
//! launches of one executable one after the other, on any stream.

mod launch;
mod outputs;

pub use launch::{GraphLaunch, Launched};
pub use outputs::{Out, Outputs};

use crate::array::{OnStream, foreign};
use crate::error::ArrayError;
use crate::gpu::recording::{RecordedUse, Recording};
use crate::gpu::{Gpu, Place, sealed::Sealed};
use crate::kernel::Function;
use crate::kind;
use crate::storage::Storage;
use core::fmt;
use core::ops::Deref;
use gpumem_pool::{Capture, CaptureMode, GraphExec, Stream};
use outputs::Keeper;

/// The `Gpu` of a capture, which only the closure of [`Gpu::capture`] has. Operations on its stream are captured instead of run.
///
/// It dereferences to a [`Gpu`]. After the capture, operations on it return [`GraphError::CaptureEnded`](crate::GraphError::CaptureEnded).
#[derive(Debug)]
pub struct CaptureGpu(Gpu);

impl Deref for CaptureGpu {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.0
    }
}

impl Sealed for CaptureGpu {}

impl Place for CaptureGpu {
    type Kind = kind::Device;

    fn gpu(&self) -> &Gpu {
        &self.0
    }
}

impl foreign::sealed::Sealed for CaptureGpu {}

impl OnStream for CaptureGpu {
    fn stream(&self) -> &Stream {
        self.0.stream()
    }
    fn capture(&self) -> foreign::sealed::Capture<'_> {
        foreign::sealed::Capture(self.0.recording())
    }
}

/// Captured operations on arrays, which [`GpuGraph::launch`] repeats.
///
/// It keeps its memory and the kernels that it launches. It can be sent to another thread, and launched on any `Gpu` of its device.
/// Launches never overlap, on any stream: each runs after the one before.
#[must_use = "nothing has run: launch the graph"]
pub struct GpuGraph {
    // Dropped first: the rest is what it uses.
    exec: GraphExec,
    /// The arrays of each launch.
    uses: Vec<RecordedUse>,
    results: Vec<Storage>,
    /// The number of the capture.
    id: u64,
    /// The kernels of the program.
    _functions: Vec<Function>,
    /// Keeps this crate's kernels loaded.
    gpu: Gpu,
}

/// A capture that ends when this is dropped, also by a panic.
struct Open {
    gpu: Gpu,
    capture: Option<Capture>,
}

impl Gpu {
    /// Captures the operations that `work` queues on the `Gpu` that it is given, and makes a graph of them. Nothing runs.
    ///
    /// The arrays that `work` returns (alone, or in tuples, arrays, `Vec` and `Option`) become the results of the graph. The call
    /// returns a token for each; [`Launched::get`] takes it.
    ///
    /// In the closure:
    ///
    /// - Arrays are used through the closure's `Gpu` (`x.on(c)`, `w.on_mut(c)`, `GpuArray::zeros(c, …)`). An operation of this thread
    ///   on another `Gpu` is an error. Other threads and their streams are not affected.
    /// - Operations that need the host fail: downloads, uploads from borrowed memory, waits.
    /// - Memory is allocated for the graph, and memory of dropped arrays is reused within it.
    ///
    /// A capture that ends with an error or a panic is dropped with its memory.
    ///
    /// ```
    /// use gpumem_array::{Gpu, GpuArray, pool::{Device, Pool}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
    /// let gradient = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
    /// let mut weights = GpuArray::from_slice(&gpu, &[10.0_f32, 10.0])?;
    ///
    /// let (mut step, norm) = gpu.capture(|c| {
    ///     let change = gradient.on(c).try_mul(0.5)?; // a temporary
    ///     weights.on_mut(c).try_sub_assign(&change)?;
    ///     weights.on(c).dot(&weights) // a result
    /// })?;
    ///
    /// for expected in [9.5_f32 * 9.5 + 81.0, 81.0 + 64.0] {
    ///     let done = step.launch(&gpu).write(&mut weights).read(&gradient).run()?;
    ///     assert_eq!(done.get(&norm)?.into_scalar()?, expected);
    /// }
    /// assert_eq!(weights.to_vec()?, [9.0, 8.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - The error that `work` returns.
    /// - [`ArrayError::Graph`] if this thread is already capturing, or if `work` returns an array that was made outside.
    /// - [`ArrayError::Pool`] if the stream cannot be created, the capture is broken, or a driver call fails.
    pub fn capture<R: Outputs>(
        &self,
        work: impl FnOnce(&CaptureGpu) -> Result<R, ArrayError>,
    ) -> Result<(GpuGraph, R::Tokens), ArrayError> {
        let (recording, _on_thread) = Recording::begin()?;
        let id = recording.id();
        let gpu = self.for_capture(recording)?;
        // Relaxed: the stream is private, so no other call can interfere with the capture, and it interferes with none.
        let mut open = Open { capture: Some(gpu.stream().begin_capture(CaptureMode::Relaxed)?), gpu };
        let made = work(&CaptureGpu(open.gpu.clone()))?;
        let mut keeper = Keeper::new(id);
        let tokens = made.keep(&mut keeper)?;
        let results = keeper.into_results();
        let exec = open.end()?.end()?.instantiate()?;
        let (uses, functions) = open.gpu.recording().map(Recording::take).unwrap_or_default();
        Ok((GpuGraph { exec, uses, results, id, _functions: functions, gpu: self.clone() }, tokens))
    }
}

impl Open {
    /// The driver's capture, with the recording closed.
    fn end(&mut self) -> Result<Capture, ArrayError> {
        if let Some(recording) = self.gpu.recording() {
            recording.close();
        }
        self.capture.take().ok_or_else(|| crate::error::GraphError::CaptureEnded.into())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl fmt::Debug for GpuGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuGraph")
            .field("device", self.gpu.device())
            .field("arguments", &self.uses.len())
            .field("results", &self.results.len())
            .finish_non_exhaustive()
    }
}
