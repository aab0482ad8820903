//! Evaluation: an expression is recorded and planned, its kernel is found or written, and queued like any other.

use crate::array::{AsViewMut, GpuArray};
use crate::error::ArrayError;
use crate::expression::known_plans::{KnownPlan, KnownPlans};
use crate::expression::node::{ElementsBefore, Expression, Lazy, Recordable, layout_axes};
use crate::expression::notes::Notes;
use crate::expression::plan::KernelPlan;
use crate::expression::scalar::Scalar;
use crate::expression::tape::{EXPRESSION, Tape, TapeRecording};
use crate::expression::text::{self, NAME, THREADS};
use crate::gpu::Gpu;
use crate::launch::OwnArguments;
use crate::layout::{ElementOrder, Layout};
use crate::storage::Use;
use core::cell::Cell;
use core::marker::PhantomData;
use ndarray::Dimension;

/// The memory of a thread's recordings and plans, which its later expressions reuse.
#[derive(Default)]
pub(crate) struct ExpressionMemory {
    pub(crate) recording: TapeRecording,
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
    evaluate_recorded(operation, expression)
}

/// Compiled once for all expressions with such a result.
fn evaluate_recorded<T: Scalar, D: Dimension>(
    operation: &'static str,
    expression: &dyn Recordable,
) -> Result<GpuArray<T, D>, ArrayError> {
    with_memory(|ExpressionMemory { recording, notes, plans, .. }| {
        let mut tape = Tape::new(operation, recording);
        expression.record_on(&mut tape)?;
        tape.new_target(T::TYPE);
        let Tape { arguments, gpu, recording, .. } = tape;
        let gpu = gpu.ok_or_else(without_arrays)?;
        let KnownPlan { plan, shape, is_by_columns, .. } = plans.find(recording, notes, operation)?;
        let mut dim = D::zeros(shape.len());
        dim.slice_mut().copy_from_slice(shape);
        let order = if *is_by_columns { ElementOrder::Column } else { ElementOrder::Row };
        let layout = Layout::dense(dim, order, size_of::<T>())?;
        let result = GpuArray::<T, D>::unwritten(gpu, layout)?;
        queue_each(gpu, arguments, (result.writes(), [result.planned()]), plan, operation)?;
        Ok(result)
    })
}

/// Queues the kernel of a recorded expression, which writes the targets of the tape. They have these addresses, all in one array.
pub(crate) fn queue_recorded<'a>(
    gpu: &'a Gpu,
    tape: Tape<'a, '_>,
    notes: &mut Notes,
    plans: &mut KnownPlans,
    targets: (Use<'a>, impl IntoIterator<Item = u64>),
) -> Result<(), ArrayError> {
    let operation = tape.operation();
    let Tape { arguments, recording, .. } = tape;
    let KnownPlan { plan, .. } = plans.find(recording, notes, operation)?;
    queue_each(gpu, arguments, targets, plan, operation)
}

fn queue_each<'a>(
    gpu: &'a Gpu,
    mut arguments: OwnArguments<'a>,
    (array, addresses): (Use<'a>, impl IntoIterator<Item = u64>),
    plan: &KernelPlan,
    operation: &'static str,
) -> Result<(), ArrayError> {
    let mut addresses = addresses.into_iter();
    if let Some(first) = addresses.next() {
        arguments.array((array, first));
    }
    addresses.for_each(|address| arguments.address(address));
    queue_planned(gpu, arguments, plan, operation)
}

/// Queues the kernel of a plan, whose arguments are complete but for its words.
fn queue_planned<'a>(
    gpu: &'a Gpu,
    arguments: OwnArguments<'a>,
    plan: &KernelPlan,
    operation: &'static str,
) -> Result<(), ArrayError> {
    if plan.blocks == 0 {
        return Ok(());
    }
    let kernel = gpu.library().generated().entry(&plan.key, plan.key_hash)?;
    let function = kernel.function(gpu.device(), NAME, || text::each(plan))?;
    arguments.launch(gpu, function, [plan.blocks, THREADS as u32], &plan.words).queue(operation)
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
                /// Compiled once for all expressions of such arrays.
                fn write_recorded<$($array: AsViewMut<Elem: Scalar> + ?Sized),+>(
                    operation: &'static str,
                    targets: ($(&mut $array,)+),
                    expressions: &[&dyn Recordable],
                ) -> Result<(), ArrayError> {
                    with_memory(|ExpressionMemory { recording, notes, plans, .. }| {
                        let mut tape = Tape::new(operation, recording);
                        $(
                            let $target = targets.$place.as_view_mut();
                            let (of, size) = (<$array::Elem as Scalar>::TYPE, size_of::<$array::Elem>());
                            tape.target(of, $target.planned(), layout_axes($target.layout(), size));
                        )+
                        expressions.iter().try_for_each(|expression| expression.record_on(&mut tape))?;
                        let Tape { mut arguments, recording, .. } = tape;
                        let KnownPlan { plan, .. } = plans.find(recording, notes, operation)?;
                        $(arguments.array(($target.writes(), $target.planned()));)+
                        queue_planned(targets_first!($($target)+).gpu(), arguments, plan, operation)
                    })
                }
                write_recorded(operation, targets, &[$(&self.$place.0),+])
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

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::expression::plan::Steps;
    use ndarray::{Ix2, Slice};

    /// The axis of tiles, and how the arrays are passed through: the target first.
    fn planned(expression: &dyn Recordable) -> (Option<usize>, Vec<Steps>) {
        with_memory(|ExpressionMemory { recording, notes, plans, .. }| {
            let mut tape = Tape::new("test", recording);
            expression.record_on(&mut tape).expect("an expression");
            tape.new_target(f32::TYPE);
            let KnownPlan { plan, .. } = plans.find(tape.recording, notes, "test").expect("a plan");
            (plan.tile_axis, plan.columns.iter().map(|column| column.steps).collect())
        })
    }

    #[test]
    fn large_transposed_operands_are_tiled() {
        let gpu = crate::example_gpu().unwrap();
        let x = GpuArray::<f32, Ix2>::zeros(&gpu, (256, 260)).unwrap();
        let square = x.slice_axis(ndarray::Axis(1), Slice::from(..256)).unwrap();
        let tiled = vec![Steps::Unit, Steps::Unit, Steps::Turned];
        assert_eq!(planned(&(square.lazy() + square.lazy().t()).0), (Some(1), tiled));
        // A result in the order of its first operand is not turned.
        assert_eq!(planned(&x.lazy().t().0).0, None);
        assert_eq!(planned(&(x.lazy() + &x).0).0, None);
        let small = GpuArray::<f32, Ix2>::zeros(&gpu, (64, 64)).unwrap();
        assert_eq!(planned(&(small.lazy() + small.t()).0).0, None);
        let pixels = GpuArray::<f32, _>::zeros(&gpu, (3, 1 << 16)).unwrap();
        let interleaved = GpuArray::<f32, _>::zeros(&gpu, (1 << 16, 3)).unwrap();
        assert_eq!(planned(&(interleaved.lazy() + pixels.t()).0).0, None);
    }

    /// The elements that a thread takes at once, and whether they may be in several rows.
    fn lanes(expression: &dyn Recordable) -> (usize, bool) {
        with_memory(|ExpressionMemory { recording, notes, plans, .. }| {
            let mut tape = Tape::new("test", recording);
            expression.record_on(&mut tape).expect("an expression");
            tape.new_target(f32::TYPE);
            let KnownPlan { plan, .. } = plans.find(tape.recording, notes, "test").expect("a plan");
            (plan.lanes, plan.is_flat)
        })
    }

    #[test]
    fn groups_go_over_rows_that_are_short() {
        let gpu = crate::example_gpu().unwrap();
        let pixels = GpuArray::<u8, _>::zeros(&gpu, (100, 3)).unwrap();
        let channel = GpuArray::<f32, _>::zeros(&gpu, 3).unwrap();
        let image = pixels.lazy().cast::<f32>();
        assert_eq!(lanes(&(image / 255.0 - &channel).0), (4, true));
        assert_eq!(lanes(&(image / 255.0).0), (4, false));
        let rows = GpuArray::<f32, _>::zeros(&gpu, (100, 8)).unwrap();
        let row = GpuArray::<f32, _>::zeros(&gpu, 8).unwrap();
        assert_eq!(lanes(&(rows.lazy() - &row).0), (4, false));
        // Each element is in another sector of memory.
        let planes = GpuArray::<f32, _>::zeros(&gpu, (3, 100)).unwrap();
        assert_eq!(lanes(&(image + planes.t()).0), (1, false));
    }
}
