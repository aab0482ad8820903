//! [`GraphLaunch`]: the arguments of one launch of a graph, matched with what was captured; [`Launched`]: the results.

use crate::array::{AsView, AsViewMut, GpuView};
use crate::element::Element;
use crate::error::{ArrayError, GraphError};
use crate::gpu::Gpu;
use crate::gpu::recording::{Access, RecordedUse, ViewName};
use crate::graph::{GpuGraph, Number, Out, write};
use crate::layout::{ByteSpan, Gaps};
use crate::storage::{Use, prefetch, queue_launch};
use core::ops::Range;
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::{CaptureError, DeviceError, PoolError};
use ndarray::Dimension;

/// The builder of a launch. Add each array that the closure of [`Gpu::capture`] used from outside, in any order, then call
/// [`GraphLaunch::run`].
#[must_use = "nothing runs until `run`"]
pub struct GraphLaunch<'g, 'a> {
    graph: &'g mut GpuGraph,
    gpu: &'g Gpu,
    arguments: Vec<Argument<'a>>,
    values: Vec<Value>,
}

/// A new value of a number of the graph.
struct Value {
    graph: u64,
    index: usize,
    bytes: Vec<u8>,
}

/// A queued launch. It borrows the graph, because the next launch overwrites the results.
///
/// ```compile_fail,E0499
/// # use gpumem_array::{ArrayError, Gpu, GpuGraph, Out, ndarray::Ix1};
/// fn twice(gpu: &Gpu, graph: &mut GpuGraph, out: &Out<f32, Ix1>) -> Result<(), ArrayError> {
///     let first = graph.launch(gpu).run()?;
///     let second = graph.launch(gpu).run()?;
///     first.get(out)?;
///     Ok(())
/// }
/// ```
pub struct Launched<'g> {
    graph: &'g GpuGraph,
    gpu: &'g Gpu,
}

/// The name of the operation in errors.
const LAUNCH: &str = "launching a graph";

/// An array that is passed to a launch.
struct Argument<'a> {
    array: Use<'a>,
    /// The bytes of the view, from the start of the storage.
    range: Range<u64>,
}

impl GpuGraph {
    /// Starts to build a launch on the stream of `gpu`.
    pub fn launch<'g, 'a>(&'g mut self, gpu: &'g Gpu) -> GraphLaunch<'g, 'a> {
        let arguments = Vec::with_capacity(self.uses.len());
        GraphLaunch { graph: self, gpu, arguments, values: Vec::new() }
    }
}

impl<'g, 'a> GraphLaunch<'g, 'a> {
    /// Adds an array that the graph reads: the array of the capture, or a view with at least the bytes that the capture used. A strided
    /// view lacks the bytes between its elements, so it is accepted only if the capture used the same view. The graph uses the elements of
    /// the capture, even if the array has grown in place since. Another array of the same shape is refused; [`GpuGraph::update`] swaps
    /// arrays.
    pub fn read<A: AsView + ?Sized>(mut self, array: &'a A) -> Self {
        self.arguments.push(Argument::of(array.as_view().reads()));
        self
    }

    /// Adds an array that the graph writes, and may read.
    pub fn write<A: AsViewMut + ?Sized>(mut self, array: &'a mut A) -> Self {
        self.arguments.push(Argument::of(array.as_view_mut().writes()));
        self
    }

    /// Sets a number of the graph ([`CaptureGpu::scalar`](crate::CaptureGpu::scalar)), for this launch and later ones.
    pub fn set<T: Element>(mut self, number: &Number<T>, value: T) -> Self {
        let bytes = bytemuck::bytes_of(&value).to_vec();
        self.values.push(Value { graph: number.graph, index: number.index, bytes });
        self
    }

    /// Queues the graph on the stream and returns immediately. The stream first waits, on the device, for conflicting uses of the
    /// arguments, and for readers of the last launch's results, on other streams.
    ///
    /// # Errors
    ///
    /// Before anything is queued:
    ///
    /// - [`ArrayError::WrongDevice`] if the `Gpu` is on another device than the graph.
    /// - [`ArrayError::Graph`] if an argument is missing, is not used by the graph, lacks bytes that the graph uses, or is passed for
    ///   reading and written; if a token belongs to another graph; or in the closure of a capture.
    ///
    /// And [`ArrayError::Pool`] if the stream captures, is retired or belongs to another thread, or if a driver call fails.
    pub fn run(self) -> Result<Launched<'g>, ArrayError> {
        let Self { graph, gpu, arguments, values } = self;
        graph.gpu.check(gpu.device())?;
        gpu.check_thread(LAUNCH)?;
        if gpu.recording().is_some() {
            return Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable {
                operation: LAUNCH,
            }))
            .into());
        }
        let mut uses = matched(&graph.uses, &arguments)?;
        if values.iter().any(|value| value.graph != graph.id) {
            return Err(GraphError::ForeignResult.into());
        }
        uses.extend(graph.results.iter().map(|result| Use::whole(result, Access::Write)));
        uses.iter().try_for_each(|one| one.order(gpu, LAUNCH))?;
        for value in &values {
            let number = graph.results.get(value.index).ok_or(GraphError::ForeignResult)?;
            write(gpu, number, &value.bytes)?;
        }
        prefetch(gpu, uses.iter().copied());
        // SAFETY: the graph consists of operations of this crate on memory of its own, which the pool keeps, and on its arguments, which
        // were just matched. The stream has been ordered after conflicting uses of both, and later uses are ordered after it. Kernels stay
        // loaded as long as the graph.
        let queued = queue_launch(gpu, uses, |_, _| unsafe { graph.exec.launch(gpu.stream()) });
        if let Some(last) = graph.functions.last() {
            gpu.note_kernel(last.known_name());
        }
        queued?;
        Ok(Launched { graph, gpu })
    }
}

impl<'a> Argument<'a> {
    fn of(array: Use<'a>) -> Self {
        Self { array, range: array.range() }
    }

    /// The use of the array that the graph repeats.
    fn serves(&self, recorded: &RecordedUse) -> Use<'a> {
        let Range { start, end } = recorded.range;
        // A write counts for the whole array only if the whole array is borrowed.
        let is_whole = self.array.bytes() == ByteSpan::ALL && recorded.range == self.range;
        let bytes = if is_whole { ByteSpan::ALL } else { ByteSpan { start, end, gaps: recorded.gaps } };
        Use::new(self.array.storage(), recorded.access, bytes)
    }

    /// True if the argument and the recorded use belong to the same array.
    fn is_of(&self, recorded: &RecordedUse) -> bool {
        self.array.storage().serial() == recorded.serial
    }

    fn overlaps(&self, recorded: &RecordedUse) -> bool {
        self.is_of(recorded) && self.range.start < recorded.range.end && recorded.range.start < self.range.end
    }

    /// True if the bytes lie between the argument's first and last byte.
    fn encloses(&self, recorded: &RecordedUse) -> bool {
        self.is_of(recorded)
            && self.range.start <= recorded.range.start
            && recorded.range.end <= self.range.end
    }

    /// True if the argument owns the bytes. Another view may borrow the bytes in its gaps.
    fn contains(&self, recorded: &RecordedUse) -> bool {
        let gaps = self.array.bytes().gaps;
        let is_equal = gaps.are_regular() && self.range == recorded.range && gaps == recorded.gaps;
        self.encloses(recorded) && (gaps == Gaps::NONE || is_equal)
    }
}

/// The argument for each recorded use. An argument may serve several uses, and must serve at least one.
fn matched<'a>(uses: &[RecordedUse], arguments: &[Argument<'a>]) -> Result<Vec<Use<'a>>, ArrayError> {
    // Uses of no bytes are not recorded.
    let mut is_used: Vec<_> = arguments.iter().map(|argument| argument.range.is_empty()).collect();
    let mut found = Vec::with_capacity(uses.len());
    for recorded in uses {
        let mut places = (0..arguments.len()).filter(|at| arguments[*at].contains(recorded));
        let Some(index) = places.find(|at| arguments[*at].array.access() >= recorded.access) else {
            return Err(misfit(recorded, arguments).into());
        };
        is_used[index] = true;
        found.push(arguments[index].serves(recorded));
    }
    match is_used.iter().position(|is_used| !is_used) {
        Some(index) => Err(GraphError::ExtraArgument { index }.into()),
        None => Ok(found),
    }
}

/// The reason why no argument fits a recorded use.
fn misfit(recorded: &RecordedUse, arguments: &[Argument<'_>]) -> GraphError {
    if let Some(index) = arguments.iter().position(|argument| argument.contains(recorded)) {
        return GraphError::ReadOnlyArgument { index };
    }
    let (expected, address) = (recorded.range.clone(), recorded.address);
    if let Some(index) = arguments.iter().position(|argument| argument.encloses(recorded)) {
        return GraphError::StridedArgument { index, expected };
    }
    match arguments.iter().position(|argument| argument.overlaps(recorded)) {
        Some(index) => GraphError::PartialArgument { index, expected, found: arguments[index].range.clone() },
        None => {
            let ViewName { element, shape } = recorded.view.clone();
            let method = if recorded.access == Access::Write { "write(&mut array)" } else { "read(&array)" };
            GraphError::MissingArgument { element, shape, address, range: expected, method }
        }
    }
}

impl Launched<'_> {
    /// A result of this launch, as a view on the stream of the launch. Reading it waits for the launch, on the device.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Graph`] if the token belongs to another graph.
    pub fn get<T: Element, D: Dimension>(&self, out: &Out<T, D>) -> Result<GpuView<'_, T, D>, ArrayError> {
        let result = self.graph.results.get(out.index).filter(|_| out.graph == self.graph.id);
        let storage = result.ok_or(GraphError::ForeignResult)?;
        Ok(GpuView::new(self.gpu, storage, out.layout.clone()))
    }
}

debug_fields!(GraphLaunch<'_, '_>, it, graph: it.graph, arguments: it.arguments.len());

debug_fields!(Launched<'_>, it, graph: it.graph);
