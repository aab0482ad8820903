//! [`GpuGraph`]: operations on arrays that are captured once and launched many times.
//!
//! [`Gpu::capture`] calls a closure with a new `Gpu`, whose stream nothing else uses. Operations on it become nodes of a graph instead of
//! running. The graph has two kinds of arrays:
//!
//! - *Arguments*: arrays that were made outside and used in the closure. The capture records each of them with its bytes and whether it was
//!   written ([`CaptureRecording`](crate::gpu::recording::CaptureRecording)). A launch takes them again, as Rust borrows, and is ordered
//!   with their other uses.
//! - *Results*: arrays that were made in the closure and returned from it. The graph owns them. Their values exist after a launch
//!   ([`Launched::get`]), and until the next one, which borrows the graph exclusively.
//!
//! Other arrays made in the closure are temporaries. Their memory belongs to the graph, and launches never overlap: the driver runs the
//! launches of one executable one after another, on any stream.

mod launch;
mod outputs;

pub use launch::{GraphLaunch, Launched};
pub use outputs::{GraphScalar, Number, Out, Outputs};

use crate::array::{GpuArray, OnStream, foreign};
use crate::element::kind;
use crate::element::{Element, check_layout};
use crate::error::{ArrayError, GraphError};
use crate::gpu::recording::{Access, CaptureRecording, RecordedUse};
use crate::gpu::{Gpu, Place, sealed::KnownPlace};
use crate::kernel::Function;
use crate::layout::{ElementOrder, Layout};
use crate::storage::{ArrayStorage, Use, queue};
use core::ops::Deref;
use gpumem_pool::sys::fork;
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::{Capture, CaptureMode, Graph, GraphExec, Stream};
use ndarray::Ix0;
use outputs::Keeper;

/// The `Gpu` of a capture, passed to the closure of [`Gpu::capture`]. Operations on its stream are captured instead of run.
///
/// It dereferences to a [`Gpu`]. After the capture, operations on it return [`GraphError::CaptureEnded`](crate::GraphError::CaptureEnded).
#[derive(Debug)]
pub struct CaptureGpu {
    gpu: Gpu,
    /// The `Gpu` that `capture` was called on. Its stream is not captured.
    outside: Gpu,
}

impl Deref for CaptureGpu {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl KnownPlace for CaptureGpu {}

impl Place for CaptureGpu {
    type Kind = kind::DeviceLocal;

    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl OnStream for CaptureGpu {
    fn stream(&self) -> &Stream {
        self.gpu.stream()
    }
    fn capture(&self) -> foreign::sealed::RecordingRef<'_> {
        foreign::sealed::RecordingRef(self.gpu.recording())
    }
}

/// Captured operations on arrays, which [`GpuGraph::launch`] repeats.
///
/// It keeps its memory and the kernels that it launches. It can be sent to another thread, and launched on any `Gpu` of its device.
/// Launches never overlap, on any stream: each runs after the one before.
#[must_use = "nothing has run: launch the graph"]
pub struct GpuGraph {
    // Dropped first: it uses the other fields.
    exec: GraphExec,
    uses: Vec<RecordedUse>,
    results: Vec<ArrayStorage>,
    id: u64,
    functions: Vec<Function>,
    /// Keeps this crate's kernels loaded.
    gpu: Gpu,
}

/// A capture that ends when this is dropped, even by a panic.
struct OpenCapture {
    gpu: Gpu,
    capture: Option<Capture>,
}

impl Gpu {
    /// Captures the operations that `work` queues on its `Gpu` as a graph. Nothing runs.
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
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
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
        let (Captured { graph, uses, results, functions, id }, tokens) = self.captured(work)?;
        let exec = graph.instantiate()?;
        Ok((GpuGraph { exec, uses, results, id, functions, gpu: self.clone() }, tokens))
    }

    /// Loads the kernels of the operations that `work` calls, and runs nothing: of expressions, reductions, updates, products, and of all
    /// else that a capture can contain. Later operations on arrays with such types, layouts and numbers of elements need not load them: a
    /// reduction or product of more or fewer elements may be another kernel, so call it with the sizes that come.
    ///
    /// A kernel is otherwise loaded at its first use, which takes some hundredths of a second on a GPU whose driver does not have it on disk yet,
    /// and may wait for work on the device. `work` runs in a capture that is dropped afterwards, so the rules of [`Gpu::capture`] apply: arrays
    /// are used through the closure's `Gpu`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::update;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[0.0_f32; 4])?;
    /// let (mut p, mut v) = (GpuArray::<f32, _>::zeros(&gpu, 4)?, GpuArray::<f32, _>::zeros(&gpu, 4)?);
    /// gpu.preload_for(|c| {
    ///     let (mut p, mut v) = (p.on_mut(c), v.on_mut(c));
    ///     update((&mut p, &mut v), |(p, v)| (p + v * 0.5, v - &x))?;
    ///     (x.on(c).lazy() * 2.0).exp().sum()
    /// })?;
    /// assert_eq!(p.to_vec()?, [0.0; 4]); // nothing has run
    ///
    /// update((&mut p, &mut v), |(p, v)| (p + v * 0.25, v - &x))?; // loads nothing
    /// assert_eq!((x.lazy() * 3.0).exp().sum()?.into_scalar()?, 4.0);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Gpu::capture`].
    pub fn preload_for<R>(
        &self,
        work: impl FnOnce(&CaptureGpu) -> Result<R, ArrayError>,
    ) -> Result<(), ArrayError> {
        self.captured(|c| work(c).map(drop)).map(drop)
    }

    fn captured<R: Outputs>(
        &self,
        work: impl FnOnce(&CaptureGpu) -> Result<R, ArrayError>,
    ) -> Result<(Captured, R::Tokens), ArrayError> {
        let (recording, _on_thread) = CaptureRecording::begin()?;
        let id = recording.id();
        let gpu = self.for_capture(recording)?;
        // Relaxed: the stream is private, so the capture and other calls cannot interfere.
        let mut open =
            OpenCapture { capture: Some(Capture::begin(gpu.stream(), CaptureMode::Relaxed)?), gpu };
        let made = work(&CaptureGpu { gpu: open.gpu.clone(), outside: self.clone() })?;
        let mut keeper = Keeper::new(id);
        let tokens = made.keep(&mut keeper)?;
        let results = keeper.into_results();
        let graph = open.end()?.end()?;
        let (uses, functions) = open.gpu.recording().map(CaptureRecording::take).unwrap_or_default();
        Ok((Captured { graph, uses, results, functions, id }, tokens))
    }
}

struct Captured {
    graph: Graph,
    uses: Vec<RecordedUse>,
    results: Vec<ArrayStorage>,
    functions: Vec<Function>,
    id: u64,
}

impl GpuGraph {
    /// Captures again, for example with other arrays or numbers, and replaces the operations of this graph. That is cheaper than a new
    /// graph if the operations and their order are the same. If they differ, the call costs as much as a new capture.
    ///
    /// Use it to swap arrays of one shape between launches: a launch takes only the arrays of the last capture, so update the graph with
    /// the new arrays first. If two arrays are swapped at every launch, two graphs are cheaper, one for each direction.
    ///
    /// The call returns new tokens; the old ones become invalid. On an error the graph keeps its operations.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let (x, y) = (GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?, GpuArray::from_slice(&gpu, &[5.0_f32, 6.0])?);
    /// let (mut graph, double) = gpu.capture(|c| x.on(c).try_mul(2.0))?;
    /// assert_eq!(graph.launch(&gpu).read(&x).run()?.get(&double)?.to_vec()?, [2.0, 4.0]);
    ///
    /// let triple = graph.update(&gpu, |c| y.on(c).try_mul(3.0))?;
    /// assert_eq!(graph.launch(&gpu).read(&y).run()?.get(&triple)?.to_vec()?, [15.0, 18.0]);
    /// assert!(graph.launch(&gpu).read(&x).run().is_err()); // `x` is not an array of the last capture
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`] if `gpu` is on another device than the graph; otherwise those of [`Gpu::capture`].
    pub fn update<R: Outputs>(
        &mut self,
        gpu: &Gpu,
        work: impl FnOnce(&CaptureGpu) -> Result<R, ArrayError>,
    ) -> Result<R::Tokens, ArrayError> {
        self.gpu.check(gpu.device())?;
        let (captured, tokens) = gpu.captured(work)?;
        if !self.exec.update(&captured.graph)? {
            self.exec = captured.graph.instantiate()?;
        }
        // Running launches keep the old memory; kernels are unloaded after them.
        (self.uses, self.results, self.id) = (captured.uses, captured.results, captured.id);
        self.functions = captured.functions;
        Ok(tokens)
    }
}

impl CaptureGpu {
    /// A number of the graph, which dereferences to an array of one element. Use it as an operand, and return it from the closure.
    /// [`GraphLaunch::set`] takes its token and changes it for that launch and later ones.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
    /// let (mut graph, factor) = gpu.capture(|c| {
    ///     let factor = c.scalar(2.0_f32)?;
    ///     x.on_mut(c).try_mul_assign(&factor)?;
    ///     Ok(factor)
    /// })?;
    /// graph.launch(&gpu).write(&mut x).run()?;
    /// assert_eq!(x.to_vec()?, [2.0, 4.0]);
    /// graph.launch(&gpu).write(&mut x).set(&factor, 10.0).run()?;
    /// assert_eq!(x.to_vec()?, [20.0, 40.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the allocation or a driver call fails; [`ArrayError::Graph`] after the capture, or if the stream of the
    /// `Gpu` that captures is in a capture that `Capture::begin` began.
    pub fn scalar<T: Element>(&self, value: T) -> Result<GraphScalar<T>, ArrayError> {
        const { check_layout::<T>() };
        let recording = self.gpu.recording().ok_or(GraphError::CaptureEnded)?;
        recording.check()?;
        let block = self.outside.pool().alloc(size_of::<T>() as u64, self.outside.stream())?;
        let storage = ArrayStorage::new(block, &self.outside)?;
        write(&self.outside, &storage, bytemuck::bytes_of(&value))?;
        // Each launch comes after the first value, even if the number is not returned.
        let (stream, outside) = (self.gpu.stream(), self.outside.stream());
        if !stream.wait_for_point(outside.point())? {
            stream.wait_for(outside)?;
        }
        let layout = Layout::dense(Ix0(), ElementOrder::Row, size_of::<T>())?;
        Ok(GraphScalar::new(GpuArray::over(&self.gpu, storage.into_capture(recording.id()), layout)))
    }
}

/// Queues the value of one element. The stream has been ordered for it, and the array has as many bytes.
fn write(gpu: &Gpu, storage: &ArrayStorage, bytes: &[u8]) -> Result<(), ArrayError> {
    let (driver, one) = (gpu.device().driver(), Use::whole(storage, Access::Write));
    queue(gpu, [one], |stream, placed| {
        let address = one.at(storage.planned(), placed);
        // SAFETY: the bytes lie within live memory of this device, which the stream may write. Words lie at multiples of their size from
        // the start of a block.
        bytes.chunks(4).enumerate().try_for_each(|(index, bytes)| unsafe {
            let to = address + 4 * index as u64;
            match *bytes {
                [a, b, c, d] => driver.cuMemsetD32Async(to, u32::from_ne_bytes([a, b, c, d]), 1, stream),
                [a, b] => driver.cuMemsetD16Async(to, u16::from_ne_bytes([a, b]), 1, stream),
                [a] => driver.cuMemsetD8Async(to, a, 1, stream),
                [a, b, c] => {
                    driver.cuMemsetD16Async(to, u16::from_ne_bytes([a, b]), 1, stream)?;
                    driver.cuMemsetD8Async(to + 2, c, 1, stream)
                }
                _ => Ok(()),
            }
        })
    })
}

impl OpenCapture {
    /// The driver's capture, with the recording closed.
    fn end(&mut self) -> Result<Capture, ArrayError> {
        if let Some(recording) = self.gpu.recording() {
            recording.close();
        }
        self.capture.take().ok_or_else(|| GraphError::CaptureEnded.into())
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        drop(self.end());
    }
}

debug_fields!(GpuGraph, it, device: it.gpu.device(), arguments: it.uses.len(), results: it.results.len());
