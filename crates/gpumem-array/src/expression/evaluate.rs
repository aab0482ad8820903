//! Evaluation: an expression is recorded and planned, its kernel is found or written, and queued like any other.

use crate::array::{AsViewMut, GpuArray};
use crate::error::ArrayError;
use crate::expression::known_plans::KnownPlans;
use crate::expression::node::{ElementsBefore, Expression, Lazy, axes, layout_axes};
use crate::expression::plan::KernelPlan;
use crate::expression::scalar::Scalar;
use crate::expression::tape::{EXPRESSION, Notes, Tape};
use crate::expression::text::{self, NAME, THREADS};
use crate::gpu::Gpu;
use crate::kernel::Function;
use crate::launch::OwnArguments;
use crate::layout::{ElementOrder, Layout};
use crate::storage::Use;
use core::cell::Cell;
use core::marker::PhantomData;
use ndarray::Dimension;

/// The memory of a thread's recordings and plans, which its later expressions reuse.
#[derive(Default)]
pub(crate) struct ExpressionMemory {
    pub(crate) notes: Notes,
    /// The plan of the reduction at work.
    pub(crate) plan: KernelPlan,
    /// The plans of recent element-wise kernels.
    pub(crate) plans: KnownPlans,
}

thread_local! {
    static SPARE: Cell<Option<Box<ExpressionMemory>>> = const { Cell::new(None) };
}

pub(crate) fn with_memory<R>(work: impl FnOnce(&mut ExpressionMemory) -> R) -> R {
    let mut memory = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = work(&mut memory);
    // A thread that is ending cannot keep the memory.
    let _spare = SPARE.try_with(|spare| spare.set(Some(memory)));
    result
}

/// Calculates an expression as a new array in device memory, on the `Gpu` of its first array. Errors name `operation`.
pub(crate) fn evaluate<E: Expression<Dim: Dimension>>(
    operation: &'static str,
    expression: &E,
) -> Result<GpuArray<E::Elem, E::Dim>, ArrayError> {
    with_memory(|ExpressionMemory { notes, plans, .. }| {
        let mut tape = Tape::new(operation, notes);
        expression.record(&mut tape)?;
        let gpu = tape.gpu.ok_or_else(without_arrays)?;
        let result =
            GpuArray::<E::Elem, E::Dim>::unwritten(gpu, result_layout(&tape, size_of::<E::Elem>())?)?;
        if !result.is_empty() {
            tape.target(E::Elem::TYPE, NEW_ARRAY, axes(&result.view()));
            queue_recorded(gpu, tape, plans, result.writes(), [result.address()])?;
        }
        Ok(result)
    })
}

/// Loads the kernel of [`evaluate`].
pub(crate) fn preload<E: Expression<Dim: Dimension>>(expression: &E) -> Result<(), ArrayError> {
    with_memory(|ExpressionMemory { notes, plans, .. }| {
        let mut tape = Tape::new("preload", notes);
        expression.record(&mut tape)?;
        let gpu = tape.gpu.ok_or_else(without_arrays)?;
        let layout = result_layout::<E::Dim>(&tape, size_of::<E::Elem>())?;
        if layout.shape().contains(&0) {
            return Ok(());
        }
        tape.target(E::Elem::TYPE, NEW_ARRAY, layout_axes(&layout, size_of::<E::Elem>()));
        let Tape { notes, .. } = tape;
        kernel(gpu, plans.each(notes, &notes.shapes)?).map(drop)
    })
}

/// The kernel of a plan, loaded.
fn kernel<'g>(gpu: &'g Gpu, plan: &KernelPlan) -> Result<&'g Function, ArrayError> {
    gpu.library()
        .generated()
        .entry(&plan.key, plan.key_hash)?
        .function(gpu.device(), NAME, || text::each(plan))
}

/// Stands for the address of a new array as a target: a plan depends on its alignment alone, and every allocation is aligned to 256 bytes.
pub(crate) const NEW_ARRAY: u64 = 0;

/// Queues the kernel of a recorded expression, which writes the targets of the tape. They have these addresses, all in one array.
pub(crate) fn queue_recorded<'a>(
    gpu: &'a Gpu,
    tape: Tape<'a, '_>,
    plans: &mut KnownPlans,
    array: Use<'a>,
    addresses: impl IntoIterator<Item = u64>,
) -> Result<(), ArrayError> {
    let operation = tape.operation();
    let Tape { mut arguments, notes, .. } = tape;
    let mut addresses = addresses.into_iter();
    if let Some(first) = addresses.next() {
        arguments.array((array, first));
    }
    addresses.for_each(|address| arguments.address(address));
    queue_each(gpu, arguments, plans.each(notes, &notes.shapes)?, operation)
}

fn queue_each<'a>(
    gpu: &'a Gpu,
    arguments: OwnArguments<'a>,
    plan: &KernelPlan,
    operation: &'static str,
) -> Result<(), ArrayError> {
    let function = kernel(gpu, plan)?;
    let len: usize = plan.lens.iter().product();
    let blocks = blocks(len.div_ceil(plan.lanes));
    arguments.launch(gpu, function, [blocks, THREADS as u32], &plan.words).queue(operation)
}

/// The blocks for a number of threads. Kernels stride by the grid, so fewer would be correct too, but are slower: a grid of 16 blocks for
/// each multiprocessor reaches 94 % of the rate.
pub(crate) fn blocks(threads: usize) -> u32 {
    u32::try_from(threads.div_ceil(THREADS)).unwrap_or(GRID_MAX).clamp(1, GRID_MAX)
}

/// The largest first dimension of a grid.
const GRID_MAX: u32 = i32::MAX.cast_unsigned();

/// The layout of the result: in the order of the first array that has its shape, if that is contiguous; otherwise row-major.
fn result_layout<D: Dimension>(tape: &Tape<'_, '_>, size: usize) -> Result<Layout<D>, ArrayError> {
    let shape = tape.notes.shapes.as_slice();
    let mut dim = D::zeros(shape.len());
    dim.slice_mut().copy_from_slice(shape);
    let has_shape = |axes: &&[(usize, isize)]| axes.iter().map(|(len, _)| len).eq(shape);
    let first = tape.notes.elements().iter().map(|element| element.axes.as_slice()).find(has_shape);
    let is_dense = |axes: &mut dyn Iterator<Item = &(usize, isize)>, size: usize| {
        let mut next = size.cast_signed();
        axes.filter(|(len, _)| *len > 1).all(|(len, stride)| {
            let is_next = *stride == next;
            next *= len.cast_signed();
            is_next
        })
    };
    let element_size = |axes: &[(usize, isize)]| {
        axes.iter().filter(|(len, _)| *len > 1).map(|(_, stride)| stride.unsigned_abs()).min().unwrap_or(size)
    };
    let by_columns = first.is_some_and(|axes| {
        let size = element_size(axes);
        is_dense(&mut axes.iter(), size) && !is_dense(&mut axes.iter().rev(), size)
    });
    Layout::dense(dim, if by_columns { ElementOrder::Column } else { ElementOrder::Row }, size)
}

#[cold]
pub(crate) fn without_arrays() -> ArrayError {
    ArrayError::Shape {
        operation: EXPRESSION,
        left: Vec::new(),
        right: Vec::new(),
        expected: "an expression that is evaluated has an array",
    }
}

/// Up to four arrays that [`update`] writes, as mutable references in a tuple.
pub trait Updated {
    /// Their elements before the update, as expressions.
    type Before;
    #[doc(hidden)]
    fn before(&self) -> Self::Before;
}

/// The expressions of an [`update`], in a tuple: one for each array.
pub trait Updates<T> {
    #[doc(hidden)]
    fn write(self, operation: &'static str, targets: T) -> Result<(), ArrayError>;
}

/// Replaces the elements of arrays of one shape by expressions of them, in one kernel. All expressions see the elements from before the
/// update.
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::update;
///
/// let mut position = GpuArray::from_slice(&gpu, &[0.0_f32, 1.0])?;
/// let mut velocity = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
/// update((&mut position, &mut velocity), |(x, v)| (x + v * 0.5, v * 0.9))?;
/// assert_eq!(position.to_vec()?, [0.5, 2.0]);
/// assert_eq!(velocity.to_vec()?, [0.9, 1.8]);
/// # Ok::<(), gpumem_array::ArrayError>(())
/// ```
///
/// # Errors
///
/// [`ArrayError::Shape`] if the shapes differ, or an expression cannot be broadcast to them; those of [`Lazy::eval`].
pub fn update<T: Updated, U: Updates<T>>(
    targets: T,
    expressions: impl FnOnce(T::Before) -> U,
) -> Result<(), ArrayError> {
    expressions(targets.before()).write("update", targets)
}

macro_rules! updates {
    ($($($array:ident $expression:ident $target:ident $place:tt)+;)*) => {$(
        impl<'t, $($array: AsViewMut<Elem: Scalar> + ?Sized),+> Updated for ($(&'t mut $array,)+) {
            type Before = ($(Lazy<ElementsBefore<$array::Elem, $array::Dim>>,)+);
            fn before(&self) -> Self::Before {
                ($(Lazy(ElementsBefore { index: $place, element: PhantomData }),)+)
            }
        }

        impl<'t, $($array, $expression),+> Updates<($(&'t mut $array,)+)> for ($(Lazy<$expression>,)+)
        where
            $($array: AsViewMut<Elem: Scalar> + ?Sized, $expression: Expression<Elem = $array::Elem>,)+
        {
            fn write(self, operation: &'static str, targets: ($(&'t mut $array,)+)) -> Result<(), ArrayError> {
                with_memory(|ExpressionMemory { notes, plans, .. }| {
                    let mut tape = Tape::new(operation, notes);
                    $(let $target = targets.$place.as_view_mut();)+
                    let first = targets_first!($($target)+).view();
                    $(
                        same_shape(operation, first.shape(), $target.shape())?;
                        tape.target(<$array::Elem as Scalar>::TYPE, $target.address(), axes(&$target.view()));
                    )+
                    $(
                        self.$place.0.record(&mut tape)?;
                        fits(operation, first.shape(), &mut tape)?;
                    )+
                    if first.is_empty() {
                        return Ok(());
                    }
                    let Tape { mut arguments, notes, .. } = tape;
                    $(arguments.array(($target.writes(), $target.address()));)+
                    queue_each(first.gpu(), arguments, plans.each(notes, first.shape())?, operation)
                })
            }
        }
    )*};
}

macro_rules! targets_first {
    ($first:ident $($rest:ident)*) => {
        $first
    };
}

updates! {
    A E a 0;
    A E a 0 B F b 1;
    A E a 0 B F b 1 C G c 2;
    A E a 0 B F b 1 C G c 2 D H d 3;
}

fn same_shape(operation: &'static str, first: &[usize], other: &[usize]) -> Result<(), ArrayError> {
    if first == other {
        return Ok(());
    }
    Err(ArrayError::Shape {
        operation,
        left: first.to_vec(),
        right: other.to_vec(),
        expected: "all arrays of an update have one shape",
    })
}

/// Checks that the expression that was recorded last can be broadcast to a shape, and forgets its own.
fn fits(operation: &'static str, shape: &[usize], tape: &mut Tape<'_, '_>) -> Result<(), ArrayError> {
    let found = tape.notes.shapes.as_slice();
    let fits_axis = |(found, len): (&usize, &usize)| *found == 1 || found == len;
    if found.len() <= shape.len() && found.iter().rev().zip(shape.iter().rev()).all(fits_axis) {
        tape.notes.shapes.clear();
        return Ok(());
    }
    Err(ArrayError::Shape {
        operation,
        left: shape.to_vec(),
        right: found.to_vec(),
        expected: "an operation in place keeps the shape of the array",
    })
}
