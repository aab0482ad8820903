//! Reductions of expressions, of all elements or along an axis.

use crate::array::GpuArray;
use crate::element::ScalarType;
use crate::error::ArrayError;
use crate::expression::evaluate::{ExpressionMemory, with_memory, without_arrays};
use crate::expression::fold::{self, FIRST_AXIS, Fold, FoldClass, GROUP};
use crate::expression::node::{Converted, Expression, Lazy, Recordable};
use crate::expression::notes::Notes;
use crate::expression::plan::{KernelPlan, NARROW_MAX, blocks};
use crate::expression::scalar::{Arithmetic, Comparable, Real, Scalar};
use crate::expression::tape::{Tape, check_arrays};
use crate::expression::text::{NAME, THREADS};
use crate::gpu::Gpu;
use crate::kernel::Function;
use crate::kernel::generated::GeneratedKernel;
use crate::layout::{ElementOrder, Layout};
use core::marker::PhantomData;
use ndarray::{Axis, Dimension, Ix0, Ix1};

/// Enough threads to keep a large GPU busy.
const THREADS_WANTED: usize = 132 * 1024;
/// Up to this number of elements a second launch costs more than it saves.
const ONE_PART_MAX: usize = 32 << 10;
/// The groups that a thread of a warp or block takes at least, and a thread that is alone.
const GROUPS_A_THREAD: usize = 16;

/// How the elements of the outputs are divided.
#[derive(Clone, Copy, Debug)]
struct Division {
    outputs: usize,
    /// The elements of an output.
    inner: usize,
    threads: usize,
    parts: usize,
    /// The elements of a part.
    chunk: usize,
}

impl Division {
    /// Divides the elements of a planned reduction. Without `can_split`, each output has one part.
    fn of(plan: &KernelPlan, can_split: bool) -> Self {
        let inner: usize = plan.lens[..plan.reduced_count].iter().product();
        let outputs: usize = plan.lens[plan.reduced_count..].iter().product();
        let least = |mut axes: core::ops::Range<usize>| {
            let strides =
                |axis| (0..plan.columns.len()).map(move |column| plan.stride(axis, column).unsigned_abs());
            axes.by_ref().flat_map(strides).filter(|stride| *stride != 0).min().unwrap_or(usize::MAX)
        };
        // Neighbouring threads read neighbouring elements.
        let is_across = least(plan.reduced_count..plan.lens.len()) < least(0..plan.reduced_count);
        let threads = match inner {
            _ if is_across => 1,
            0..=32 => 1,
            33..=1024 => 32,
            _ => THREADS,
        };
        let part_min = threads * GROUP * GROUPS_A_THREAD;
        let wanted = match inner {
            0..=ONE_PART_MAX if threads == THREADS => 1,
            _ if can_split => (THREADS_WANTED / (outputs * threads).max(1)).min(inner / part_min).max(1),
            _ => 1,
        };
        let chunk = inner.div_ceil(wanted).next_multiple_of(threads * GROUP);
        Self { outputs, inner, threads, parts: inner.div_ceil(chunk).max(1), chunk }
    }

    /// Ends the plan of the kernel.
    fn end(
        &self,
        plan: &mut KernelPlan,
        notes: &Notes,
        class: &FoldClass,
        argument_count: usize,
        total: f64,
    ) {
        let is_row = plan.reduced_count == 1 || plan.lens[0].is_multiple_of(GROUP);
        plan.lanes = if is_row { GROUP } else { 1 };
        plan.is_wide = self.inner.max(self.outputs) > NARROW_MAX;
        plan.argument_count = argument_count;
        plan.words.clear();
        let words: [usize; FIRST_AXIS - 1] = [self.outputs, self.inner, self.parts, self.chunk];
        plan.words.extend(words.map(|word| word as u64));
        plan.words.push(total.to_bits());
        plan.push_axes(1);
        plan.end(notes, &class.key());
    }

    fn blocks(&self) -> [u32; 2] {
        [blocks(self.outputs * self.parts * self.threads), THREADS as u32]
    }
}

/// The kernel of a plan, loaded.
fn function<'k>(
    gpu: &Gpu,
    kernel: &'k GeneratedKernel,
    plan: &KernelPlan,
    class: &FoldClass,
) -> Result<&'k Function, ArrayError> {
    kernel.function(gpu.device(), NAME, || fold::text(plan, class))
}

fn entry<'g>(gpu: &'g Gpu, plan: &KernelPlan) -> Result<&'g GeneratedKernel, ArrayError> {
    gpu.library().generated().entry(&plan.key, plan.key_hash)
}

/// The reduction of an expression. Errors name `operation`; `empty` is the result of no elements. A mean or variance is divided by their
/// number less `ddof`, which is 0 for others.
pub(crate) fn reduce<E: Expression, T: Scalar, D: Dimension>(
    operation: &'static str,
    expression: &E,
    fold: Fold,
    axis: Option<Axis>,
    empty: Option<T>,
    ddof: f64,
) -> Result<GpuArray<T, D>, ArrayError> {
    reduce_recorded(operation, (expression, E::Elem::TYPE), fold, axis, empty, ddof)
}

/// Compiled once for all expressions with such a result.
fn reduce_recorded<T: Scalar, D: Dimension>(
    operation: &'static str,
    (expression, elem): (&dyn Recordable, ScalarType),
    fold: Fold,
    axis: Option<Axis>,
    empty: Option<T>,
    ddof: f64,
) -> Result<GpuArray<T, D>, ArrayError> {
    with_memory(|ExpressionMemory { recording, notes, plan, .. }| {
        let mut tape = Tape::new(operation, recording);
        expression.record_on(&mut tape)?;
        let gpu = tape.gpu.ok_or_else(without_arrays)?;
        notes.read(tape.recording, operation)?;
        let shape = notes.shape();
        if let Some(Axis(axis)) = axis.filter(|axis| axis.0 >= shape.len()) {
            let expected = "the index of an axis";
            return Err(ArrayError::Shape { operation, left: shape, right: vec![axis], expected });
        }
        let bytes = shape.iter().try_fold(elem.size(), |bytes, len| bytes.checked_mul(*len));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(ArrayError::TooManyElements { shape });
        }
        let is_reduced = |index: usize| axis.is_none_or(|axis| axis.0 == index);
        let kept = || shape.iter().enumerate().filter(|(index, _)| !is_reduced(*index)).map(|(_, len)| *len);
        let mut dim = D::zeros(kept().count());
        dim.slice_mut().iter_mut().zip(kept()).for_each(|(to, len)| *to = len);
        let reduced = shape.iter().enumerate().filter(|(index, _)| is_reduced(*index));
        let total: usize = reduced.map(|(_, len)| *len).product();
        let result =
            GpuArray::<T, D>::unwritten(gpu, Layout::dense(dim.clone(), ElementOrder::Row, size_of::<T>())?)?;
        if result.is_empty() {
            return Ok(result);
        }
        if total == 0 {
            let expected = "an output has at least one element";
            let Some(empty) = empty else {
                return Err(ArrayError::Shape {
                    operation,
                    left: shape,
                    right: dim.slice().to_vec(),
                    expected,
                });
            };
            return GpuArray::from_elem(gpu, dim, empty);
        }
        if !(0.0..=total as f64).contains(&ddof) {
            let expected = "`ddof` is at least 0, and at most the number of elements of an output";
            return Err(ArrayError::Shape { operation, left: shape, right: dim.slice().to_vec(), expected });
        }
        let total = total as f64 - ddof;
        let Tape { mut arguments, recording, .. } = tape;
        plan.reduction(notes, &shape, is_reduced, fold.has_place());
        let division = Division::of(plan, true);
        let of = fold::reduced_as(elem, fold);
        let (is_partial, array_count) = (division.parts > 1, plan.argument_count);
        let mut class =
            FoldClass { fold, of, out: T::TYPE, threads: division.threads, is_partial, has_states: false };
        check_arrays(array_count + class.results(), operation)?;
        if !is_partial {
            arguments.array((result.writes(), result.planned()));
            division.end(plan, notes, &class, array_count + 1, total);
            let kernel = entry(gpu, plan)?;
            let function = function(gpu, kernel, plan, &class)?;
            arguments.launch(gpu, function, division.blocks(), &plan.words).queue(operation)?;
            return Ok(result);
        }
        // The states of the parts.
        let count = division.parts * division.outputs;
        let array = |of: ScalarType| {
            let layout = Layout::dense(Ix1(count * of.size()), ElementOrder::Row, 1)?;
            Ok((GpuArray::<u8, Ix1>::unwritten(gpu, layout)?, of))
        };
        let parts = class.state().into_iter().map(array).collect::<Result<Vec<_>, ArrayError>>()?;
        let mut arguments = arguments;
        parts.iter().for_each(|(array, _)| arguments.array((array.writes(), array.planned())));
        division.end(plan, notes, &class, array_count + parts.len(), total);
        let kernel = entry(gpu, plan)?;
        let first =
            arguments.launch(gpu, function(gpu, kernel, plan, &class)?, division.blocks(), &plan.words);

        let shape = [division.parts, division.outputs];
        let mut tape = Tape::new(operation, recording);
        for (array, of) in &parts {
            let size = of.size().cast_signed();
            let strides = [shape[1].cast_signed() * size, size];
            let view = array.view();
            tape.array(*of, gpu, view.reads(), array.planned(), shape.into_iter().zip(strides));
        }
        let Tape { mut arguments, recording, .. } = tape;
        notes.read(recording, operation)?;
        plan.reduction(notes, &shape, |axis| axis == 0, true);
        let division = Division::of(plan, false);
        class = FoldClass { threads: division.threads, is_partial: false, has_states: true, ..class };
        arguments.array((result.writes(), result.planned()));
        let array_count = plan.argument_count;
        division.end(plan, notes, &class, array_count + 1, total);
        let kernel = entry(gpu, plan)?;
        let second =
            arguments.launch(gpu, function(gpu, kernel, plan, &class)?, division.blocks(), &plan.words);
        first.queue_before(second, operation)?;
        Ok(result)
    })
}

/// The sum of all elements.
pub(crate) fn sum<E: Expression<Elem: Arithmetic>>(
    operation: &'static str,
    expression: &E,
) -> Result<GpuArray<E::Elem, Ix0>, ArrayError> {
    reduce(operation, expression, Fold::Sum, None, Some(E::Elem::ZERO), 0.0)
}

macro_rules! reductions {
    ($($(#[$attribute:meta])* $all:ident $along:ident ($($bound:tt)*) $fold:ident $out:ty, $empty:expr $(, $ddof:ident)?;)*) => {
        impl<E: Expression> Lazy<E> {$(
            $(#[$attribute])*
            ///
            /// # Errors
            ///
            /// Those of [`Lazy::eval`], and where it has no value [`ArrayError::Shape`] for no elements.
            pub fn $all(&self $(, $ddof: f64)?) -> Result<GpuArray<$out, Ix0>, ArrayError>
            where
                E::Elem: $($bound)*,
            {
                reduce(stringify!($all), &self.0, Fold::$fold, None, $empty, 0.0 $(+ $ddof)?)
            }

            $(#[$attribute])*
            /// For each output along an axis, which the result does not have.
            ///
            /// # Errors
            ///
            /// Those of the reduction of all elements, and [`ArrayError::Shape`] if there is no such axis.
            pub fn $along(
                &self,
                axis: Axis
                $(, $ddof: f64)?
            ) -> Result<GpuArray<$out, <E::Dim as Dimension>::Smaller>, ArrayError>
            where
                E::Elem: $($bound)*,
                E::Dim: Dimension,
            {
                reduce(stringify!($along), &self.0, Fold::$fold, Some(axis), $empty, 0.0 $(+ $ddof)?)
            }
        )*}
    };
}

reductions! {
    /// The sum. Of no elements it is zero. Integers wrap; 16-bit floating-point numbers are added as `f32`.
    ///
    /// The order of the additions depends on the number of elements and, with several axes, on which of them are the outer ones in memory, by the
    /// largest strides of all arrays: the sum of a transposed array is that of the array, and may differ from that of a row-major copy in the
    /// last digits. Along an axis it depends also on the other axes, and on whether that axis is the one whose elements are next to each
    /// other. It depends neither on the GPU nor on its load.
    sum sum_axis (Arithmetic) Sum E::Elem, Some(E::Elem::ZERO);
    /// The product. Of no elements it is one.
    product product_axis (Arithmetic) Product E::Elem, Some(E::Elem::ONE);
    /// The mean.
    mean mean_axis (Real) Mean E::Elem, None;
    /// The largest element. NaN is passed over; if all are NaN, the result is the least value of the type, which is minus infinity.
    max_element max_axis (Arithmetic + Comparable) Max E::Elem, None;
    /// The smallest element. NaN is passed over; if all are NaN, the result is the largest value of the type, which is infinity.
    min_element min_axis (Arithmetic + Comparable) Min E::Elem, None;
    /// The place of the largest element in row-major order, and of several the first. NaN is passed over; if all are NaN, it is 0.
    argmax argmax_axis (Arithmetic + Comparable) ArgMax i64, None;
    /// The place of the smallest element in row-major order, and of several the first. NaN is passed over; if all are NaN, it is 0.
    argmin argmin_axis (Arithmetic + Comparable) ArgMin i64, None;
    /// The variance: the sum of squared distances from the mean, divided by the number of elements less `ddof`, which is 1 for the variance of
    /// a sample. A large mean costs no digits: states are merged by the formulas of Welford and of Chan, Golub and LeVeque.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1e6_f32, 1e6 + 1.0, 1e6 + 2.0])?;
    /// assert_eq!(x.lazy().var(1.0)?.into_scalar()?, 1.0);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    var var_axis (Real) Variance E::Elem, None, ddof;
    /// The standard deviation: the square root of [`Lazy::var`].
    std std_axis (Real) Deviation E::Elem, None, ddof;
    /// The Euclidean norm: the square root of the sum of squares, which may overflow where the result does not.
    norm norm_axis (Real) Norm E::Elem, Some(E::Elem::ZERO);
}

macro_rules! truths {
    ($($(#[$attribute:meta])* $all:ident $along:ident $fold:ident $empty:literal;)*) => {
        impl<E: Expression<Elem = bool>> Lazy<E> {$(
            $(#[$attribute])*
            ///
            /// # Errors
            ///
            /// Those of [`Lazy::eval`].
            pub fn $all(&self) -> Result<GpuArray<bool, Ix0>, ArrayError> {
                reduce(stringify!($all), &self.0, Fold::$fold, None, Some($empty), 0.0)
            }

            $(#[$attribute])*
            /// For each output along an axis, which the result does not have.
            ///
            /// # Errors
            ///
            /// Those of [`Lazy::eval`], and [`ArrayError::Shape`] if there is no such axis.
            pub fn $along(&self, axis: Axis) -> Result<GpuArray<bool, <E::Dim as Dimension>::Smaller>, ArrayError>
            where
                E::Dim: Dimension,
            {
                reduce(stringify!($along), &self.0, Fold::$fold, Some(axis), Some($empty), 0.0)
            }
        )*}
    };
}

truths! {
    /// True if one is. Of no elements it is false.
    any any_axis Any false;
    /// True if all are. Of no elements it is true.
    all all_axis All true;
}

impl<E: Expression<Elem = bool>> Lazy<E> {
    /// The number of elements that are true.
    ///
    /// # Errors
    ///
    /// Those of [`Lazy::eval`].
    pub fn count(&self) -> Result<GpuArray<i64, Ix0>, ArrayError> {
        reduce("count", &Converted::<i64, _>(&self.0, PhantomData), Fold::Sum, None, Some(0), 0.0)
    }

    /// The number of elements that are true, along an axis, which the result does not have.
    ///
    /// # Errors
    ///
    /// Those of [`Lazy::eval`], and [`ArrayError::Shape`] if there is no such axis.
    pub fn count_axis(&self, axis: Axis) -> Result<GpuArray<i64, <E::Dim as Dimension>::Smaller>, ArrayError>
    where
        E::Dim: Dimension,
    {
        reduce("count_axis", &Converted::<i64, _>(&self.0, PhantomData), Fold::Sum, Some(axis), Some(0), 0.0)
    }
}
