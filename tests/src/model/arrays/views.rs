//! Views of arrays and of their twins: [`Look`].

use super::values::Value;
use crate::array::ndarray::{
    ArrayD, ArrayViewD, ArrayViewMutD, Axis, Dimension, IxDyn, SliceInfo, SliceInfoElem,
};
use crate::array::{ArrayError, GpuView, GpuViewMut};
use crate::model::operation::Pick;
use crate::model::step::text;

/// A view of an array.
#[derive(Clone, Debug)]
pub struct Look {
    /// The array.
    pub array: Pick,
    /// From one view to the next.
    pub turns: Vec<Turn>,
}

/// A step from one view to the next. Numbers are taken relative to the shape that they meet.
#[derive(Clone, Debug)]
pub enum Turn {
    /// For each axis: start, end and step, or an index.
    Slice(Vec<(usize, usize, isize, bool)>),
    /// The axes in another order.
    Permute(usize),
    /// A new axis.
    Insert(usize),
    /// One index of one axis.
    Index(usize, usize),
    /// Repeats axes of length 1, and adds an axis in front. For reading only.
    Broadcast(usize),
}

/// A step for one shape.
enum Form {
    Slice(Vec<SliceInfoElem>),
    Permute(Vec<usize>),
    Insert(Axis),
    Index(Axis, usize),
    Broadcast(Vec<usize>),
}

impl Turn {
    /// `None` if it does not apply to the shape.
    fn form(&self, shape: &[usize]) -> Option<Form> {
        match self {
            Self::Slice(axes) => Some(Form::Slice(elements(shape, axes))),
            Self::Permute(number) => Some(Form::Permute(permutation(shape.len(), *number))),
            Self::Insert(axis) => {
                (shape.len() < AXES_MAX).then(|| Form::Insert(Axis(axis % (shape.len() + 1))))
            }
            Self::Index(axis, index) => {
                let axis = axis.checked_rem(shape.len())?;
                Some(Form::Index(Axis(axis), index.checked_rem(shape[axis])?))
            }
            Self::Broadcast(times) => {
                let shape = repeated(shape, *times);
                (shape.iter().product::<usize>() <= LEN_MAX).then_some(Form::Broadcast(shape))
            }
        }
    }
}

fn elements(shape: &[usize], axes: &[(usize, usize, isize, bool)]) -> Vec<SliceInfoElem> {
    let element = |(len, (start, end, step, is_index)): (&usize, &(usize, usize, isize, bool))| {
        if *is_index && *len > 0 {
            let from_the_end = if end % 2 == 0 { 0 } else { len.cast_signed() };
            return SliceInfoElem::Index((start % len).cast_signed() - from_the_end);
        }
        let (start, end) = (start % (len + 1), end % (len + 1));
        // Mostly not empty.
        let (start, end) = if start == end { (0, *len) } else { (start.min(end), start.max(end)) };
        SliceInfoElem::Slice { start: start.cast_signed(), end: Some(end.cast_signed()), step: *step }
    };
    shape.iter().zip(axes.iter().cycle()).map(element).collect()
}

fn permutation(ndim: usize, mut number: usize) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..ndim).collect();
    for place in (1..ndim).rev() {
        axes.swap(place, number % (place + 1));
        number /= place + 1;
    }
    axes
}

fn repeated(shape: &[usize], times: usize) -> Vec<usize> {
    let repeated = shape.iter().map(|len| if *len == 1 { times } else { *len });
    if shape.len() < AXES_MAX { [2].into_iter().chain(repeated).collect() } else { repeated.collect() }
}

/// The view of an array.
pub(super) fn turned<'a, T: Value>(
    mut view: GpuView<'a, T, IxDyn>,
    turns: &[Turn],
) -> Result<GpuView<'a, T, IxDyn>, ArrayError> {
    for form in turns {
        let Some(form) = form.form(view.shape()) else { continue };
        view = match form {
            Form::Slice(info) => view.slice(&info[..]),
            Form::Permute(axes) => view.permuted_axes(axes),
            Form::Insert(axis) => view.insert_axis(axis),
            Form::Index(axis, index) => view.index_axis(axis, index),
            Form::Broadcast(shape) => view.broadcast(shape),
        }?;
    }
    Ok(view)
}

/// The mutable view of an array.
pub(super) fn turned_mut<'a, T: Value>(
    mut view: GpuViewMut<'a, T, IxDyn>,
    turns: &[Turn],
) -> Result<GpuViewMut<'a, T, IxDyn>, ArrayError> {
    for form in turns {
        let Some(form) = form.form(view.shape()) else { continue };
        view = match form {
            Form::Slice(info) => view.slice_mut(&info[..]),
            Form::Permute(axes) => view.permuted_axes_mut(axes),
            Form::Index(axis, index) => view.index_axis_mut(axis, index),
            Form::Insert(_) | Form::Broadcast(_) => Ok(view),
        }?;
    }
    Ok(view)
}

/// The elements of a view of a twin.
pub(super) fn of_twin<T: Value>(twin: ArrayViewD<'_, T>, turns: &[Turn]) -> ArrayD<T> {
    let mut elements = twin.to_owned();
    for form in turns {
        let Some(form) = form.form(elements.shape()) else { continue };
        elements = match form {
            Form::Slice(info) => elements.slice(&info[..]).to_owned(),
            Form::Permute(axes) => elements.permuted_axes(axes),
            Form::Insert(axis) => elements.insert_axis(axis),
            Form::Index(axis, index) => elements.index_axis_move(axis, index),
            // A shape that fits by construction.
            Form::Broadcast(shape) => match elements.broadcast(shape) {
                Some(view) => view.to_owned(),
                None => continue,
            },
        };
    }
    elements
}

/// The mutable view of a twin.
pub(super) fn of_twin_mut<'a, T: Value>(
    mut twin: ArrayViewMutD<'a, T>,
    turns: &[Turn],
) -> ArrayViewMutD<'a, T> {
    for form in turns {
        let Some(form) = form.form(twin.shape()) else { continue };
        twin = match form {
            Form::Slice(info) => twin.slice_move(&info[..]),
            Form::Permute(axes) => twin.permuted_axes(axes),
            Form::Index(axis, index) => twin.index_axis_move(axis, index),
            Form::Insert(_) | Form::Broadcast(_) => twin,
        };
    }
    twin
}

/// The shape of a view.
pub(super) fn shape_of(shape: &[usize], turns: &[Turn]) -> Vec<usize> {
    let mut view = shape.to_vec();
    for form in turns {
        let Some(form) = form.form(&view) else { continue };
        view = match form {
            Form::Slice(info) => {
                info.iter().zip(&view).filter_map(|(element, len)| sliced(*element, *len)).collect()
            }
            Form::Permute(axes) => axes.iter().map(|axis| view[*axis]).collect(),
            Form::Insert(axis) => {
                view.insert(axis.index(), 1);
                view
            }
            Form::Index(axis, _) => {
                view.remove(axis.index());
                view
            }
            Form::Broadcast(shape) => shape,
        };
    }
    view
}

/// The length that a slice leaves of an axis.
fn sliced(element: SliceInfoElem, len: usize) -> Option<usize> {
    match element {
        SliceInfoElem::Slice { start, end, step } => {
            let end = end.unwrap_or(len.cast_signed());
            Some((end - start).unsigned_abs().div_ceil(step.unsigned_abs()))
        }
        _ => None,
    }
}

/// The slices of two shapes after which the second can be repeated to the first. With `both`, elements of the first may be repeated
/// too. `None` if there is no element to choose.
pub(super) fn fit(target: &[usize], source: &[usize], both: bool) -> Option<(Slices, Slices)> {
    let extra = source.len().saturating_sub(target.len());
    if source[..extra].contains(&0) {
        return None;
    }
    let first = target.len() - (source.len() - extra);
    let mut targets: Slices = target.iter().map(|len| whole(*len)).collect();
    let mut sources: Slices = (0..extra).map(|_| SliceInfoElem::Index(0)).collect();
    for (axis, len) in source[extra..].iter().enumerate() {
        let (kept, read) = match (target[first + axis], *len) {
            (kept, 1) => (kept, 1),
            (1, read) if both => (1, read),
            (kept, read) => (kept.min(read), kept.min(read)),
        };
        targets[first + axis] = whole(kept);
        sources.push(whole(read));
    }
    Some((targets, sources))
}

/// The slices of a shape that leave this number of axes, with at most these lengths. `None` if there is no element to choose.
pub(super) fn reduced(shape: &[usize], lens: &[usize]) -> Option<Slices> {
    let extra = shape.len().saturating_sub(lens.len());
    if shape[..extra].contains(&0) {
        return None;
    }
    let missing = lens.len().saturating_sub(shape.len());
    if lens[..missing].contains(&0) {
        return None;
    }
    let mut slices: Slices = (0..extra).map(|_| SliceInfoElem::Index(0)).collect();
    slices.extend((0..missing).map(|_| SliceInfoElem::NewAxis));
    slices.extend(shape[extra..].iter().zip(&lens[missing..]).map(|(len, max)| whole(*len.min(max))));
    Some(slices)
}

/// Slices with a number of axes that is known to the compiler.
pub(super) fn typed<D: Dimension>(slices: Slices) -> Result<SliceInfo<Slices, IxDyn, D>, String> {
    SliceInfo::try_from(slices).map_err(text)
}

fn whole(len: usize) -> SliceInfoElem {
    SliceInfoElem::Slice { start: 0, end: Some(len.cast_signed()), step: 1 }
}

/// The shape of the result of an operation on two shapes. The second has no more axes than the first.
pub(super) fn joint(left: &[usize], right: &[usize]) -> Vec<usize> {
    let first = left.len().saturating_sub(right.len());
    let len = |(axis, len): (usize, &usize)| match axis.checked_sub(first) {
        Some(other) if *len == 1 => right[other],
        _ => *len,
    };
    left.iter().enumerate().map(len).collect()
}

pub(super) type Slices = Vec<SliceInfoElem>;

const AXES_MAX: usize = 4;

/// The largest number of elements of a result.
pub(super) const LEN_MAX: usize = 100_000;
