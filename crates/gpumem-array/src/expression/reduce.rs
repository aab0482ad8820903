//! Reductions of expressions and arrays, of all elements or along axes. Results stay on the device, as arrays.

use crate::array::{GpuArray, readers};
use crate::element::ScalarType;
use crate::error::ArrayError;
use crate::expression::evaluate::{ExpressionMemory, with_memory, without_arrays};
use crate::expression::fold::{self, FIRST_AXIS, Fold, FoldClass, GROUP};
use crate::expression::node::{Converted, Expression, Lazy, Recordable, layout_axes};
use crate::expression::notes::{LeafElement, Notes};
use crate::expression::plan::{KernelPlan, NARROW_MAX, THREADS_WANTED, blocks};
use crate::expression::scalar::{Arithmetic, Comparable, Real, Scalar, Truth};
use crate::expression::tape::{Tape, check_arrays};
use crate::expression::text::{NAME, THREADS};
use crate::gpu::Gpu;
use crate::launch::{OwnArguments, OwnLaunch};
use crate::layout::{ElementOrder, Layout};
use core::marker::PhantomData;
use ndarray::{Axis, Dimension, Ix0, Ix1, IxDyn};

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
        let threads = match inner {
            _ if plan.is_across => 1,
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
        if self.threads == 1 && !class.is_partial && !class.has_states {
            plan.take_outputs_at_once(self.outputs);
        }
        plan.is_wide = self.inner.max(self.outputs) > NARROW_MAX;
        plan.argument_count = argument_count;
        plan.words.clear();
        let words: [usize; FIRST_AXIS - 1] = [self.outputs, self.inner, self.parts, self.chunk];
        plan.words.extend(words.map(|word| word as u64));
        plan.words.push(total.to_bits());
        plan.push_axes(1);
        plan.end(notes, &class.key());
    }

    fn blocks(&self, plan: &KernelPlan) -> [u32; 2] {
        [blocks(self.outputs / plan.outputs_at_once * self.parts * self.threads), THREADS as u32]
    }
}

/// A launch of the kernel of a plan, whose arguments are complete but for its words.
fn launched<'a>(
    gpu: &'a Gpu,
    arguments: OwnArguments<'a>,
    plan: &KernelPlan,
    class: &FoldClass,
    division: &Division,
) -> Result<OwnLaunch<'a>, ArrayError> {
    let kernel = gpu.library().generated().entry(&plan.key, plan.key_hash)?;
    let function = kernel.function(gpu.device(), NAME, || fold::text(plan, class))?;
    Ok(arguments.launch(gpu, function, division.blocks(plan), &plan.words))
}

/// The axes of a reduction: an [`Axis`], or an array of up to four, such as `[Axis(0), Axis(2)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the axes of a reduction",
    note = "`Axis(0)` does, and `[Axis(0), Axis(2)]`"
)]
pub trait ReducedAxes<D> {
    /// The dimension without them.
    type Rest: Dimension;
    #[doc(hidden)]
    fn list(&self) -> AxisList<'_>;
}

/// The axes of a reduction. No other crate can name it, so none has reductions to other dimensions.
#[doc(hidden)]
#[derive(Debug)]
pub struct AxisList<'a>(&'a [Axis]);

macro_rules! reduced_axes {
    ($($axes:ty => $rest:ty, $slice:path;)*) => {$(
        impl<D: Dimension> ReducedAxes<D> for $axes {
            type Rest = $rest;
            fn list(&self) -> AxisList<'_> {
                AxisList($slice(self))
            }
        }
    )*};
}
reduced_axes! {
    Axis => D::Smaller, core::slice::from_ref;
    [Axis; 1] => D::Smaller, AsRef::as_ref;
    [Axis; 2] => <D::Smaller as Dimension>::Smaller, AsRef::as_ref;
    [Axis; 3] => <<D::Smaller as Dimension>::Smaller as Dimension>::Smaller, AsRef::as_ref;
    [Axis; 4] => <<<D::Smaller as Dimension>::Smaller as Dimension>::Smaller as Dimension>::Smaller, AsRef::as_ref;
}

/// The reduction of an expression. Errors name `operation`; `empty` is the result of no elements. A mean or variance is divided by their
/// number less `ddof`, which is 0 for others.
fn reduce<E: Expression, T: Scalar, D: Dimension>(
    operation: &'static str,
    expression: &E,
    fold: Fold,
    axes: Option<&[Axis]>,
    empty: Option<T>,
    ddof: f64,
) -> Result<GpuArray<T, D>, ArrayError> {
    reduce_recorded(operation, (expression, E::Elem::TYPE), fold, axes, empty, ddof)
}

/// Compiled once for all expressions with such a result. Several results are in one array along a first axis; it has all axes of the
/// expression, those that are reduced with the length 1.
fn reduce_recorded<T: Scalar, D: Dimension>(
    operation: &'static str,
    (expression, elem): (&dyn Recordable, ScalarType),
    fold: Fold,
    axes: Option<&[Axis]>,
    empty: Option<T>,
    ddof: f64,
) -> Result<GpuArray<T, D>, ArrayError> {
    with_memory(|ExpressionMemory { recording, notes, plan, .. }| {
        let mut tape = Tape::new(operation, recording);
        expression.record_on(&mut tape)?;
        let gpu = tape.gpu.ok_or_else(without_arrays)?;
        notes.read(tape.recording, operation)?;
        let shape = notes.shape();
        let refused = |right: Vec<usize>, expected| {
            Err(ArrayError::Shape { operation, left: shape.clone(), right, expected })
        };
        let named = axes.unwrap_or_default();
        let is_known = |(index, axis): (usize, &Axis)| axis.0 < shape.len() && !named[..index].contains(axis);
        if !named.iter().enumerate().all(is_known) {
            return refused(named.iter().map(|axis| axis.0).collect(), "each axis exists, and is named once");
        }
        let bytes = shape.iter().try_fold(elem.size(), |bytes, len| bytes.checked_mul(*len));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(ArrayError::TooManyElements { shape });
        }
        let is_reduced = |index: usize| axes.is_none_or(|axes| axes.contains(&Axis(index)));
        let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|axis| is_reduced(*axis));
        let total: usize = reduced.iter().map(|axis| shape[*axis]).product();
        let result_count = fold.result_count();
        let lens: Vec<usize> = match result_count {
            1 => kept.iter().map(|axis| shape[*axis]).collect(),
            _ => {
                let len = |axis| if is_reduced(axis) { 1 } else { shape[axis] };
                core::iter::once(result_count).chain((0..shape.len()).map(len)).collect()
            }
        };
        let mut dim = D::zeros(lens.len());
        dim.slice_mut().copy_from_slice(&lens);
        let result =
            GpuArray::<T, D>::unwritten(gpu, Layout::dense(dim.clone(), ElementOrder::Row, size_of::<T>())?)?;
        if result.is_empty() {
            return Ok(result);
        }
        if total == 0 {
            return match empty {
                Some(empty) => GpuArray::from_elem(gpu, dim, empty),
                None => refused(lens, "an output has at least one element"),
            };
        }
        if !(0.0..=total as f64).contains(&ddof) {
            return refused(lens, "`ddof` is at least 0, and at most the number of elements of an output");
        }
        let total = total as f64 - ddof;
        // The strides of a result, whose axes are in row-major order, and its bytes.
        let mut axes: Vec<_> = shape.iter().map(|len| (*len, 0)).collect();
        let bytes = kept.iter().rev().fold(size_of::<T>(), |stride, axis| {
            axes[*axis].1 = stride.cast_signed();
            stride * shape[*axis]
        });
        let results = |axes: Vec<_>| -> Vec<_> {
            (0..result_count).map(|place| LeafElement::result(T::TYPE, place, axes.clone())).collect()
        };
        let address = |place: usize| result.planned() + (place * bytes) as u64;
        let write = |arguments: &mut OwnArguments<'_>| {
            (1..result_count).for_each(|place| arguments.address(address(place)))
        };
        let Tape { mut arguments, recording, .. } = tape;
        plan.reduction(notes, &shape, &results(axes), is_reduced, fold.has_place());
        let division = Division::of(plan, true);
        let of = fold::reduced_as(elem, fold);
        let (is_partial, array_count) = (division.parts > 1, notes.array_count);
        let mut class =
            FoldClass { fold, of, out: T::TYPE, threads: division.threads, is_partial, has_states: false };
        check_arrays(array_count + class.results(), operation)?;
        if !is_partial {
            arguments.array((result.writes(), result.planned()));
            write(&mut arguments);
            division.end(plan, notes, &class, array_count + result_count, total);
            launched(gpu, arguments, plan, &class, &division)?.queue(operation)?;
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
        let first = launched(gpu, arguments, plan, &class, &division)?;

        // Outputs are in the order of the plan.
        let mut axes = vec![(division.parts, 0)];
        axes.extend(
            (plan.reduced_count..plan.lens.len()).rev().map(|axis| (plan.lens[axis], plan.stride(axis, 0))),
        );
        let shape: Vec<_> = axes.iter().map(|(len, _)| *len).collect();
        let mut tape = Tape::new(operation, recording);
        for (array, of) in &parts {
            let view = array.view();
            let layout = Layout::dense(IxDyn(&shape), ElementOrder::Row, of.size())?;
            tape.array(*of, gpu, view.reads(), array.planned(), layout_axes(&layout, of.size()));
        }
        let Tape { mut arguments, recording, .. } = tape;
        notes.read(recording, operation)?;
        plan.reduction(notes, &shape, &results(axes), |axis| axis == 0, true);
        let division = Division::of(plan, false);
        class = FoldClass { threads: division.threads, is_partial: false, has_states: true, ..class };
        arguments.array((result.writes(), result.planned()));
        write(&mut arguments);
        division.end(plan, notes, &class, parts.len() + result_count, total);
        first.queue_before(launched(gpu, arguments, plan, &class, &division)?, operation)?;
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
    ($($(#[$attribute:meta])* $all:ident $along:ident ($($bound:tt)*) $fold:ident $out:tt, $empty:expr $(, $ddof:ident)?;)*) => {
        impl<E: Expression> Lazy<E> {$(
            $(#[$attribute])*
            ///
            /// # Errors
            ///
            /// Those of [`Lazy::eval`], and where it has no value [`ArrayError::Shape`] for no elements.
            pub fn $all(&self $(, $ddof: f64)?) -> Result<GpuArray<reductions!(@ $out E::Elem), Ix0>, ArrayError>
            where
                E::Elem: $($bound)*,
            {
                reduce(stringify!($all), &self.0, Fold::$fold, None, $empty, 0.0 $(+ $ddof)?)
            }

            $(#[$attribute])*
            ///
            /// For each output along an axis, or along several (`[Axis(0), Axis(2)]`), which the result does not have.
            ///
            /// # Errors
            ///
            /// Those of the reduction of all elements, and [`ArrayError::Shape`] unless each axis exists and is named once.
            pub fn $along<A: ReducedAxes<E::Dim>>(
                &self,
                axes: A
                $(, $ddof: f64)?
            ) -> Result<GpuArray<reductions!(@ $out E::Elem), A::Rest>, ArrayError>
            where
                E::Elem: $($bound)*,
                E::Dim: Dimension,
            {
                reduce(stringify!($along), &self.0, Fold::$fold, Some(axes.list().0), $empty, 0.0 $(+ $ddof)?)
            }
        )*}

        readers! {
            Scalar;

            $(
                $(#[$attribute])*
                ///
                /// # Errors
                ///
                #[doc = concat!("Those of [`Lazy::", stringify!($all), "`](crate::Lazy::", stringify!($all), ").")]
                pub fn $all(view $(, $ddof: f64)?) -> Result<GpuArray<reductions!(@ $out T), Ix0>, ArrayError>
                where (T: $($bound)*) {
                    view.lazy().$all($($ddof)?)
                }

                $(#[$attribute])*
                ///
                /// For each output along an axis, or along several (`[Axis(0), Axis(2)]`), which the result does not have.
                ///
                /// # Errors
                ///
                #[doc = concat!("Those of [`Lazy::", stringify!($along), "`](crate::Lazy::", stringify!($along), ").")]
                pub fn $along[A: ReducedAxes<D>](view, axes: A $(, $ddof: f64)?) -> Result<GpuArray<reductions!(@ $out T), A::Rest>, ArrayError>
                where (T: $($bound)*) {
                    view.lazy().$along(axes $(, $ddof)?)
                }
            )*
        }
    };
    (@ same $elem:ty) => { $elem };
    (@ $out:tt $elem:ty) => { $out };
}

reductions! {
    /// The sum. Of no elements it is zero. Integers wrap; 16-bit floating-point numbers are added as `f32`.
    ///
    /// The order of the additions depends on the number of elements and, with several axes, on which of them are the outer ones in memory, by the
    /// largest strides of all arrays: the sum of a transposed array is that of the array, and may differ from that of a row-major copy in the
    /// last digits. Along an axis it depends also on the other axes, and on whether that axis is the one whose elements are next to each
    /// other. It depends neither on the GPU nor on its load.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, array, s};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.slice(s![.., 1..])?.sum()?.into_scalar()?, 16);
    /// let mean = x.sum()? / 6; // stays on the device
    /// assert_eq!(mean.into_scalar()?, 3);
    /// let stack = x.reshape((2, 3, 1))?;
    /// assert_eq!((stack.lazy() * 2).sum_axis([Axis(0), Axis(2)])?.to_vec()?, [10, 14, 18]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    sum sum_axis (Arithmetic) Sum same, Some(Arithmetic::ZERO);
    /// The product. Of no elements it is one.
    product product_axis (Arithmetic) Product same, Some(Arithmetic::ONE);
    /// The mean.
    mean mean_axis (Real) Mean same, None;
    /// The largest element. NaN is passed over; if all are NaN, the result is the least value of the type, which is minus infinity.
    max_element max_axis (Arithmetic + Comparable) Max same, None;
    /// The smallest element. NaN is passed over; if all are NaN, the result is the largest value of the type, which is infinity.
    min_element min_axis (Arithmetic + Comparable) Min same, None;
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
    var var_axis (Real) Variance same, None, ddof;
    /// The standard deviation: the square root of [`Lazy::var`].
    std std_axis (Real) Deviation same, None, ddof;
    /// The Euclidean norm: the square root of the sum of squares, which may overflow where the result does not.
    norm norm_axis (Real) Norm same, Some(Arithmetic::ZERO);
    /// The logarithm of the sum of the powers of e, in one pass: no power overflows.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1000.0_f64, 1000.0])?;
    /// assert_eq!(x.log_sum_exp()?.into_scalar()?, 1000.0 + 2.0_f64.ln());
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    log_sum_exp log_sum_exp_axis (Real) LogSumExp same, None;
    /// True if one is. Of no elements it is false.
    any any_axis (Truth) Any bool, Some(false);
    /// True if all are. Of no elements it is true.
    all all_axis (Truth) All bool, Some(true);
    /// The number of elements that are true.
    count count_axis (Truth) Count i64, Some(0);
}

impl<E: Expression<Elem: Real, Dim: Dimension>> Lazy<E> {
    /// The powers of e, divided by their sum along an axis, or along several. The first kernel finds the largest element and the sum of each
    /// output in one pass, so that no power overflows; a second one divides. 16-bit numbers are rounded once. Of no elements there are none.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Axis, array}};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1.0_f32, 1.0], [0.0, 1e3]])?;
    /// assert_eq!(x.lazy().softmax_axis(Axis(1))?.to_array()?, array![[0.5, 0.5], [0.0, 1.0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lazy::sum_axis`].
    pub fn softmax_axis<A: ReducedAxes<E::Dim>>(
        &self,
        axes: A,
    ) -> Result<GpuArray<E::Elem, E::Dim>, ArrayError> {
        let both: GpuArray<<E::Elem as Real>::Wide, IxDyn> =
            reduce("softmax_axis", &self.0, Fold::Powers, Some(axes.list().0), Some(Arithmetic::ZERO), 0.0)?;
        let (largest, sums) = (both.index_axis(Axis(0), 0)?, both.index_axis(Axis(0), 1)?);
        let wide = Lazy(Converted::<<E::Elem as Real>::Wide, _>(&self.0, PhantomData));
        let result = ((wide - largest.lazy()).exp() / sums.lazy()).cast::<E::Elem>().eval()?;
        Ok(result.into_dimensionality()?)
    }
}

readers! {
    Real;

    /// The powers of e, divided by their sum along an axis, or along several; see [`Lazy::softmax_axis`](crate::Lazy::softmax_axis).
    ///
    /// # Errors
    ///
    /// Those of [`Lazy::sum_axis`](crate::Lazy::sum_axis).
    pub fn softmax_axis[A: ReducedAxes<D>](view, axes: A) -> Result<GpuArray<T, D>, ArrayError> {
        view.lazy().softmax_axis(axes)
    }
}
