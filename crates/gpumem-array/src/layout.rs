//! [`Layout`]: shape, strides and offset of a view, all in elements.
//!
//! Shapes are `ndarray` dimensions, and slicing follows its rules. Sizes are checked when a shape is made, so that the
//! arithmetic on layouts cannot overflow afterwards.

pub(crate) mod plan;

use crate::error::ArrayError;
use ndarray::{Axis, Dimension, Ix1, IxDyn, RemoveAxis, Slice, SliceArg, SliceInfoElem};

/// Shape, strides and the offset of the first element, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout<D> {
    pub(crate) dim: D,
    /// Each `usize` holds an `isize`, as in `ndarray`.
    strides: D,
    pub(crate) offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOrder {
    /// The last index moves fastest.
    Row,
    /// The first index moves fastest.
    Column,
}

/// The bytes of a view: offsets from the start of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSpan {
    /// The first.
    pub(crate) start: u64,
    /// After the last.
    pub(crate) end: u64,
    pub(crate) gaps: Gaps,
}

/// The bytes between the first and the last that do not belong to a view. Another view may own them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gaps(u64);

impl ByteSpan {
    /// Every byte of any storage.
    pub(crate) const ALL: Self = Self { start: 0, end: u64::MAX, gaps: Gaps::NONE };
}

impl Gaps {
    /// Each byte belongs to the view.
    pub(crate) const NONE: Self = Self(0);
    /// Unknown, and not equal to the gaps of any other view.
    const IRREGULAR: Self = Self(u64::MAX);

    /// Marks two distances: `outer` in the lower half, `inner` above it.
    const NESTED: u64 = 1 << 63;

    /// Runs of bytes at this distance. With the first and the last byte, it determines the length of the runs.
    pub(crate) fn every(step_bytes: u64) -> Self {
        if step_bytes < Self::NESTED { Self(step_bytes) } else { Self::IRREGULAR }
    }

    /// Groups of runs: the groups at one distance, and the runs of a group at another. With the first and the last byte, they determine
    /// the number of runs of a group and their length, since no group overlaps the next.
    pub(crate) fn nested(inner_bytes: u64, outer_bytes: u64) -> Self {
        if inner_bytes < (1 << 31) - 1 && outer_bytes < 1 << 32 {
            Self(Self::NESTED | inner_bytes << 32 | outer_bytes)
        } else {
            Self::IRREGULAR
        }
    }

    /// The distances of the runs and of their groups, if any. `None` without gaps, and if they are irregular.
    pub(crate) fn distances(self) -> Option<(u64, Option<u64>)> {
        match self {
            Self::NONE | Self::IRREGULAR => None,
            Self(word) if word < Self::NESTED => Some((word, None)),
            Self(word) => Some(((word ^ Self::NESTED) >> 32, Some(word & u64::from(u32::MAX)))),
        }
    }

    /// True if two views with these gaps and the same first and last byte have the same bytes.
    pub(crate) fn are_regular(self) -> bool {
        self != Self::IRREGULAR
    }
}

impl<D: Dimension> Layout<D> {
    /// Contiguous elements of `size_bytes` each.
    pub(crate) fn dense(dim: D, order: ElementOrder, size_bytes: usize) -> Result<Self, ArrayError> {
        let too_many = || ArrayError::TooManyElements { shape: dim.slice().to_vec() };
        // Zero lengths are skipped, because strides are products of the other lengths.
        let mut lens = dim.slice().iter().copied().filter(|len| *len > 0);
        let bytes = lens.try_fold(size_bytes.max(1), usize::checked_mul);
        bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(too_many)?;
        let mut strides = D::zeros(dim.ndim());
        if dim.slice().iter().all(|len| *len > 0) {
            let mut step = 1;
            let mut place = |(stride, len): (&mut usize, &usize)| {
                *stride = step;
                step *= len;
            };
            let pairs = strides.slice_mut().iter_mut().zip(dim.slice());
            match order {
                ElementOrder::Row => pairs.rev().for_each(&mut place),
                ElementOrder::Column => pairs.for_each(&mut place),
            }
        }
        Ok(Self { dim, strides, offset: 0 })
    }

    /// Contiguous elements of type `T` in row-major order.
    pub(crate) fn row_major<T>(dim: D) -> Result<Self, ArrayError> {
        Self::dense(dim, ElementOrder::Row, size_of::<T>())
    }

    /// Elements at these strides, one for each axis, all of them in one allocation of less than 2⁶³ bytes.
    pub(crate) fn strided(dim: D, strides: &[isize], offset: usize) -> Self {
        let mut own = D::zeros(dim.ndim());
        own.slice_mut().iter_mut().zip(strides).for_each(|(own, stride)| *own = stride.cast_unsigned());
        Self { dim, strides: own, offset }
    }

    pub(crate) fn len(&self) -> usize {
        self.dim.size()
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.dim.slice()
    }

    pub(crate) fn strides(&self) -> impl DoubleEndedIterator<Item = isize> + ExactSizeIterator {
        self.strides.slice().iter().map(|stride| stride.cast_signed())
    }

    /// The strides as `ndarray` keeps them.
    pub(crate) fn raw_strides(&self) -> D {
        self.strides.clone()
    }

    /// The order of the elements if they are contiguous; `Row` if both orders apply.
    pub(crate) fn order(&self) -> Option<ElementOrder> {
        [ElementOrder::Row, ElementOrder::Column].into_iter().find(|order| self.is_dense(*order))
    }

    /// True if the elements are contiguous in this order.
    pub(crate) fn is_dense(&self, order: ElementOrder) -> bool {
        let axes = self.shape().iter().copied().zip(self.strides());
        self.len() == 0
            || match order {
                ElementOrder::Row => side_by_side(axes.rev()),
                ElementOrder::Column => side_by_side(axes),
            }
    }

    /// True if the elements are contiguous in row-major order: for launches, where it costs less than [`Layout::is_dense`].
    #[inline]
    pub(crate) fn is_row_major(&self) -> bool {
        let mut expected = 1_usize;
        for (len, stride) in self.dim.slice().iter().zip(self.strides.slice()).rev() {
            if *len != 1 && *stride != expected {
                return self.len() == 0;
            }
            expected = expected.wrapping_mul(*len);
        }
        true
    }

    /// An order in which both are contiguous.
    pub(crate) fn common_order<E: Dimension>(&self, other: &Layout<E>) -> Option<ElementOrder> {
        [ElementOrder::Row, ElementOrder::Column]
            .into_iter()
            .find(|order| self.is_dense(*order) && other.is_dense(*order))
    }

    /// The bytes from the first element in memory to the last, from the start of a storage of `storage_bytes`.
    #[inline]
    pub(crate) fn bytes(&self, element_bytes: usize, storage_bytes: u64) -> ByteSpan {
        let size = element_bytes as u64;
        // A view that repeats elements can have this length without covering all bytes, or a length that overflows.
        if (self.len() as u64).wrapping_mul(size) == storage_bytes && !self.repeats() {
            ByteSpan::ALL
        } else {
            // Compared field by field, so that both cases stay in registers.
            let ByteSpan { start, end, gaps } = self.hull(size);
            ByteSpan { start, end, gaps }
        }
    }

    /// True if an element has several indices.
    fn repeats(&self) -> bool {
        self.shape().iter().zip(self.strides.slice()).any(|(len, stride)| *len > 1 && *stride == 0)
    }

    #[cold]
    fn hull(&self, size: u64) -> ByteSpan {
        if self.len() == 0 {
            return ByteSpan { start: 0, end: 0, gaps: Gaps::NONE };
        }
        let (mut first, mut last) = (self.offset as i64, self.offset as i64);
        for (len, stride) in self.shape().iter().zip(self.strides()) {
            let steps = (*len as i64 - 1) * stride as i64;
            if steps < 0 { first += steps } else { last += steps }
        }
        ByteSpan { start: first as u64 * size, end: (last as u64 + 1) * size, gaps: self.gaps(size) }
    }

    /// The layout is not empty.
    fn gaps(&self, size: u64) -> Gaps {
        let axis = |bound: u64| {
            let steps = self.strides().map(|stride| stride.unsigned_abs() as u64);
            let axes = steps.zip(self.shape().iter().map(|len| *len as u64));
            axes.filter(|(step, len)| *len > 1 && *step > bound).min()
        };
        // From the smallest stride to the largest: first the axes that form a run, then those that repeat it.
        let (mut run, mut bound) = (1, 0);
        let mut next = axis(bound);
        while let Some((step, len)) = next.filter(|(step, _)| *step == run) {
            (run, bound) = (run * len, step);
            next = axis(bound);
        }
        let Some((distance, count)) = next else { return Gaps::NONE };
        if distance <= run {
            return Gaps::IRREGULAR;
        }
        // Axes that continue the runs, or their groups, at the same distance; one axis may have a larger one.
        let (mut end, mut outer) = (distance * count, None);
        // The number of elements from the first to the last of a group.
        let mut group = end - distance + run;
        bound = distance;
        while let Some((step, len)) = axis(bound) {
            if step != end {
                if outer.is_some() || step < group {
                    return Gaps::IRREGULAR;
                }
                outer = Some(step);
            } else if outer.is_none() {
                group = end * len - distance + run;
            }
            (end, bound) = (step * len, step);
        }
        match outer {
            None => Gaps::every(distance * size),
            Some(outer) => Gaps::nested(distance * size, outer * size),
        }
    }

    pub(crate) fn not_contiguous(&self, operation: &'static str, hint: &'static str) -> ArrayError {
        let (shape, strides) = (self.shape().to_vec(), self.strides().collect());
        ArrayError::NotContiguous { operation, shape, strides, hint }
    }

    /// The layout with a number of axes that is known at run time.
    pub(crate) fn into_dyn(self) -> Layout<IxDyn> {
        Layout { dim: self.dim.into_dyn(), strides: self.strides.into_dyn(), offset: self.offset }
    }

    /// The layout with another dimension type of as many axes.
    pub(crate) fn to_dimensionality<E: Dimension>(&self) -> Result<Layout<E>, ArrayError> {
        let convert = |dim: &D| E::from_dimension(dim);
        match convert(&self.dim).zip(convert(&self.strides)) {
            Some((dim, strides)) => Ok(Layout { dim, strides, offset: self.offset }),
            None => Err(ArrayError::Shape {
                operation: "into_dimensionality",
                left: self.shape().to_vec(),
                right: vec![0; E::NDIM.unwrap_or(0)],
                expected: "the numbers of axes must be equal",
            }),
        }
    }

    pub(crate) fn transposed(mut self) -> Self {
        self.dim.slice_mut().reverse();
        self.strides.slice_mut().reverse();
        self
    }

    /// The elements with equal indices on all axes. One without axes has one element.
    pub(crate) fn diagonal(&self) -> Layout<Ix1> {
        let len = self.shape().iter().copied().min().unwrap_or(1);
        let stride: isize = self.strides().sum();
        Layout { dim: Ix1(len), strides: Ix1(stride.cast_unsigned()), offset: self.offset }
    }

    /// The elements that `slice` selects on `axis`, by `ndarray`'s rules: negative indices count from the end.
    pub(crate) fn slice_axis(mut self, axis: Axis, slice: Slice) -> Result<Self, ArrayError> {
        let refuse = |layout: &Self| ArrayError::Slice {
            slice: format!("{slice:?}"),
            axis: axis.index(),
            shape: layout.shape().to_vec(),
        };
        let Some(&len) = self.shape().get(axis.index()) else { return Err(refuse(&self)) };
        let Some((start, end)) = ends(slice, len) else { return Err(refuse(&self)) };
        let count = end - start;
        let step = slice.step.unsigned_abs();
        let stride = self.strides.slice()[axis.index()].cast_signed();
        if count > 0 {
            let first = if slice.step < 0 { end - 1 } else { start };
            // Inside the view, so the sum is the index of an element of the storage.
            self.offset = self.offset.wrapping_add_signed(stride.wrapping_mul(first.cast_signed()));
        }
        let taken = count.div_ceil(step);
        // The stride is never used with at most one element, and the product might not fit.
        let stride = if taken > 1 { stride.wrapping_mul(slice.step) } else { 0 };
        self.dim.slice_mut()[axis.index()] = taken;
        self.strides.slice_mut()[axis.index()] = stride.cast_unsigned();
        Ok(self)
    }

    /// The elements that a slice of all axes selects: `s![…]` of `ndarray`.
    pub(crate) fn slice<I: SliceArg<D>>(&self, info: &I) -> Result<Layout<I::OutDim>, ArrayError> {
        let elements = info.as_ref();
        let refuse = |slice: String, axis| ArrayError::Slice { slice, axis, shape: self.shape().to_vec() };
        let taken = elements.iter().filter(|element| !matches!(element, SliceInfoElem::NewAxis)).count();
        if taken != self.shape().len() {
            return Err(refuse(format!("slice of {taken} axes"), taken.min(self.shape().len())));
        }
        let mut rest = self.clone();
        let mut dim = I::OutDim::zeros(info.out_ndim());
        let mut strides = I::OutDim::zeros(info.out_ndim());
        let mut new_axes = dim.slice_mut().iter_mut().zip(strides.slice_mut());
        let mut push = |len: usize, stride: usize| {
            if let Some((new_len, new_stride)) = new_axes.next() {
                (*new_len, *new_stride) = (len, stride);
            }
        };
        let mut axis = 0;
        for element in elements {
            match *element {
                SliceInfoElem::Slice { start, end, step } => {
                    rest = rest.slice_axis(Axis(axis), Slice { start, end, step })?;
                    push(rest.dim.slice()[axis], rest.strides.slice()[axis]);
                    axis += 1;
                }
                SliceInfoElem::Index(index) => {
                    let len = rest.dim.slice()[axis];
                    let place =
                        if index < 0 { len.checked_add_signed(index) } else { Some(index.unsigned_abs()) };
                    let place = place.filter(|place| *place < len);
                    let place = place.ok_or_else(|| refuse(format!("index {index}"), axis))?;
                    rest.advance(axis, place);
                    axis += 1;
                }
                SliceInfoElem::NewAxis => push(1, 0),
            }
        }
        Ok(Layout { dim, strides, offset: rest.offset })
    }

    /// The elements at `index` of an axis, without that axis.
    pub(crate) fn index_axis(mut self, axis: Axis, index: usize) -> Result<Layout<D::Smaller>, ArrayError>
    where
        D: RemoveAxis,
    {
        if self.shape().get(axis.index()).is_none_or(|len| index >= *len) {
            let (axis, shape) = (axis.index(), self.shape().to_vec());
            return Err(ArrayError::Slice { slice: format!("index {index}"), axis, shape });
        }
        self.advance(axis.index(), index);
        let (dim, strides) = (self.dim.remove_axis(axis), self.strides.remove_axis(axis));
        Ok(Layout { dim, strides, offset: self.offset })
    }

    /// The elements before `index` of an axis, and the rest.
    pub(crate) fn split_at(self, axis: Axis, index: usize) -> Result<(Self, Self), ArrayError> {
        if self.shape().get(axis.index()).is_none_or(|len| index > *len) {
            let (axis, shape) = (axis.index(), self.shape().to_vec());
            return Err(ArrayError::Slice { slice: format!("split at {index}"), axis, shape });
        }
        let index = index.cast_signed();
        Ok((
            self.clone().slice_axis(axis, Slice::from(..index))?,
            self.slice_axis(axis, Slice::from(index..))?,
        ))
    }

    /// True if two slices have no common element. Both are valid for this layout.
    pub(crate) fn is_disjoint<I: SliceArg<D>>(&self, left: &I, right: &I) -> bool {
        let is_axis = |element: &&SliceInfoElem| !matches!(element, SliceInfoElem::NewAxis);
        let pairs = left.as_ref().iter().filter(is_axis).zip(right.as_ref().iter().filter(is_axis));
        self.shape().iter().zip(pairs).any(|(len, (left, right))| {
            match (AxisIndices::of(left, *len), AxisIndices::of(right, *len)) {
                (Some(left), Some(right)) => !left.meets(right),
                _ => false,
            }
        })
    }

    /// Moves the first element along an axis, to an index inside it.
    fn advance(&mut self, axis: usize, index: usize) {
        let stride = self.strides.slice()[axis].cast_signed();
        self.offset = self.offset.wrapping_add_signed(stride.wrapping_mul(index.cast_signed()));
    }

    /// The elements with a new axis of length 1 before `axis`.
    pub(crate) fn insert_axis(&self, axis: Axis) -> Result<Layout<D::Larger>, ArrayError> {
        let (axis, ndim) = (axis.index(), self.shape().len());
        if axis > ndim {
            return Err(ArrayError::Slice { slice: "new axis".into(), axis, shape: self.shape().to_vec() });
        }
        let (mut dim, mut strides) = (D::Larger::zeros(ndim + 1), D::Larger::zeros(ndim + 1));
        let insert = |old: &[usize], value: usize, new: &mut [usize]| {
            new[..axis].copy_from_slice(&old[..axis]);
            new[axis] = value;
            new[axis + 1..].copy_from_slice(&old[axis..]);
        };
        insert(self.dim.slice(), 1, dim.slice_mut());
        insert(self.strides.slice(), 0, strides.slice_mut());
        Ok(Layout { dim, strides, offset: self.offset })
    }

    /// The elements with the axes in another order: `axes[i]` becomes axis `i`.
    pub(crate) fn permuted(mut self, axes: &D) -> Result<Self, ArrayError> {
        let mut seen = D::zeros(self.dim.ndim());
        let is_new = |axis: &usize| {
            seen.slice_mut().get_mut(*axis).is_some_and(|seen| core::mem::replace(seen, 1) == 0)
        };
        if axes.ndim() != self.dim.ndim() || !axes.slice().iter().all(is_new) {
            return Err(ArrayError::Shape {
                operation: "permuted_axes",
                left: self.shape().to_vec(),
                right: axes.slice().to_vec(),
                expected: "each axis must be named once",
            });
        }
        let (dim, strides) = (self.dim.clone(), self.strides.clone());
        for (index, axis) in axes.slice().iter().enumerate() {
            self.dim.slice_mut()[index] = dim.slice()[*axis];
            self.strides.slice_mut()[index] = strides.slice()[*axis];
        }
        Ok(self)
    }

    /// The elements in a larger shape: missing axes are added at the front, and axes of length 1 are repeated.
    pub(crate) fn broadcast<E: Dimension>(&self, dim: E) -> Result<Layout<E>, ArrayError> {
        let refuse = |dim: &E| ArrayError::Shape {
            operation: "broadcast",
            left: self.shape().to_vec(),
            right: dim.slice().to_vec(),
            expected: "from the last axis on, lengths must be equal or 1",
        };
        if !has_valid_len(dim.slice()) {
            return Err(ArrayError::TooManyElements { shape: dim.slice().to_vec() });
        }
        let Some(added) = dim.ndim().checked_sub(self.shape().len()) else { return Err(refuse(&dim)) };
        let mut strides = E::zeros(dim.ndim());
        let pairs = dim.slice()[added..].iter().zip(&mut strides.slice_mut()[added..]);
        for ((new, stride), (old, old_stride)) in pairs.zip(self.shape().iter().zip(self.strides.slice())) {
            match (*new, *old) {
                (new, old) if new == old => *stride = *old_stride,
                (_, 1) => {}
                _ => return Err(refuse(&dim)),
            }
        }
        Ok(Layout { dim, strides, offset: self.offset })
    }

    /// Each element once: axes that repeat elements get the length 1.
    pub(crate) fn without_repeats(&self) -> Self {
        let mut once = self.clone();
        for (len, stride) in once.dim.slice_mut().iter_mut().zip(self.strides.slice()) {
            if *stride == 0 {
                *len = (*len).min(1);
            }
        }
        once
    }

    /// The bytes as elements of another size. Sizes are not zero.
    pub(crate) fn reinterpreted(mut self, from: usize, to: usize) -> Option<Self> {
        if from == to {
            return Some(self);
        }
        // Only the last axis changes its length. Along it the elements are contiguous.
        let last = self.dim.ndim().checked_sub(1)?;
        if self.strides.slice()[last] != 1 && self.dim.slice()[last] > 1 {
            return None;
        }
        let scaled = |count: usize| {
            let bytes = count.cast_signed().checked_mul(from.cast_signed())?;
            (bytes % to.cast_signed() == 0).then(|| (bytes / to.cast_signed()).cast_unsigned())
        };
        self.offset = scaled(self.offset)?;
        for axis in 0..last {
            // The step of an axis with one element does not matter.
            let stride = &mut self.strides.slice_mut()[axis];
            *stride = match self.dim.slice()[axis] {
                0 | 1 => 0,
                _ => scaled(*stride)?,
            };
        }
        self.dim.slice_mut()[last] = scaled(self.dim.slice()[last])?;
        self.strides.slice_mut()[last] = 1;
        // A view that repeats elements may have too many smaller ones.
        has_valid_len(self.shape()).then_some(self)
    }

    /// The elements with another shape, in row-major order.
    pub(crate) fn reshaped<E: Dimension>(&self, dim: E, size_bytes: usize) -> Result<Layout<E>, ArrayError> {
        if !self.is_dense(ElementOrder::Row) {
            return Err(self.not_contiguous("reshape", "copy it to row-major order (`as_standard_layout`), or reshape it before slicing or transposing"));
        }
        let layout = Layout::dense(dim, ElementOrder::Row, size_bytes)?;
        if layout.len() != self.len() {
            return Err(ArrayError::Shape {
                operation: "reshape",
                left: self.shape().to_vec(),
                right: layout.shape().to_vec(),
                expected: "the numbers of elements must be equal",
            });
        }
        Ok(Layout { offset: self.offset, ..layout })
    }
}

/// True if the number of elements fits an `isize`. Lengths of zero are skipped, because strides are products of the others.
fn has_valid_len(shape: &[usize]) -> bool {
    let mut lens = shape.iter().copied().filter(|len| *len > 0);
    lens.try_fold(1, usize::checked_mul).is_some_and(|len| isize::try_from(len).is_ok())
}

/// Refuses operands of different shapes.
pub(crate) fn same_shape<D: Dimension, E: Dimension>(
    operation: &'static str,
    left: &Layout<D>,
    right: &Layout<E>,
) -> Result<(), ArrayError> {
    if left.shape() == right.shape() {
        return Ok(());
    }
    let (left, right) = (left.shape().to_vec(), right.shape().to_vec());
    Err(ArrayError::Shape { operation, left, right, expected: "the shapes must be equal" })
}

/// The indices that a slice takes of an axis, in ascending order.
#[derive(Clone, Copy, Debug)]
struct AxisIndices {
    first: usize,
    step: usize,
    count: usize,
}

impl AxisIndices {
    fn of(element: &SliceInfoElem, len: usize) -> Option<Self> {
        match *element {
            SliceInfoElem::Slice { start, end, step } => {
                let (start, end) = ends(Slice { start, end, step }, len)?;
                let (count, step_len) = ((end - start).div_ceil(step.unsigned_abs()), step.unsigned_abs());
                let first = if step < 0 && count > 0 { end - 1 - (count - 1) * step_len } else { start };
                Some(Self { first, step: step_len, count })
            }
            SliceInfoElem::Index(index) => {
                let first = if index < 0 { len.checked_add_signed(index)? } else { index.unsigned_abs() };
                Some(Self { first, step: 1, count: 1 })
            }
            SliceInfoElem::NewAxis => None,
        }
    }

    #[cfg(test)]
    fn contains(self, index: usize) -> bool {
        index
            .checked_sub(self.first)
            .is_some_and(|distance| distance.is_multiple_of(self.step) && distance / self.step < self.count)
    }

    /// True if both have an index in common.
    fn meets(self, other: Self) -> bool {
        let (Some(last), Some(other_last)) = (self.last(), other.last()) else { return false };
        // Lengths fit an `isize`, so the products of two of them fit.
        let [first, step, other_first, other_step] =
            [self.first, self.step, other.first, other.step].map(|value| value as i128);
        let (divisor, factor) = gcd(step, other_step);
        let distance = other_first - first;
        if distance % divisor != 0 {
            return false;
        }
        // Ignoring the ends, the common indices repeat with the least common multiple of the steps.
        let (period, multiple) = (other_step / divisor, step * (other_step / divisor));
        let steps = (distance / divisor).rem_euclid(period) * factor.rem_euclid(period) % period;
        let common = first + steps * step;
        let missing = (other_first - common).max(0);
        let common = common + (missing + multiple - 1) / multiple * multiple;
        common <= last.min(other_last) as i128
    }

    fn last(self) -> Option<usize> {
        Some(self.first + self.count.checked_sub(1)? * self.step)
    }
}

/// The greatest common divisor of two positive numbers, and the factor by which the first gives it, modulo the second.
fn gcd(left: i128, right: i128) -> (i128, i128) {
    let (mut current, mut next) = ((left, 1), (right, 0));
    while next.0 != 0 {
        let quotient = current.0 / next.0;
        (current, next) = (next, (current.0 - quotient * next.0, current.1 - quotient * next.1));
    }
    current
}

/// Start and end counted from the front; `None` if one of them is outside.
fn ends(slice: Slice, len: usize) -> Option<(usize, usize)> {
    let from_front = |index: isize| {
        if index < 0 { len.checked_sub(index.unsigned_abs()) } else { Some(index.unsigned_abs()) }
    };
    let start = from_front(slice.start)?;
    let end = slice.end.map_or(Some(len), from_front)?.max(start);
    (end <= len && slice.step != 0).then_some((start, end))
}

/// True if the elements are contiguous: the axes come from the fastest to the slowest, and each stride must be the product of the lengths
/// of the axes before it. An axis with one element may have any stride.
fn side_by_side(axes: impl Iterator<Item = (usize, isize)>) -> bool {
    let mut expected = 1;
    for (len, stride) in axes.filter(|(len, _)| *len != 1) {
        if stride != expected {
            return false;
        }
        expected *= len.cast_signed();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Array;
    use proptest::prelude::*;

    fn layout(shape: &[usize]) -> Layout<IxDyn> {
        Layout::dense(IxDyn(shape), ElementOrder::Row, 1).unwrap()
    }

    fn slices() -> impl Strategy<Value = (isize, Option<isize>, isize)> {
        (-7_isize..7, proptest::option::of(-7_isize..7), prop_oneof![-5_isize..0, 1_isize..6])
    }

    proptest! {
        /// The offset and strides lead to the very elements that `ndarray` finds.
        #[test]
        fn slicing_agrees_with_ndarray(
            shape in proptest::collection::vec(0_usize..6, 1..4),
            axis in 0_usize..3,
            (start, end, step) in slices(),
            transpose in any::<bool>(),
        ) {
            let axis = axis % shape.len();
            let count = shape.iter().product::<usize>();
            let values: Vec<usize> = (0..count).collect();
            let host = Array::from_shape_vec(IxDyn(&shape), values).unwrap();
            let slice = Slice { start, end, step };
            let len = shape[axis].cast_signed();
            let inside = |index: isize| (-len..=len).contains(&index);
            let ours = layout(&shape).slice_axis(Axis(axis), slice);
            if !inside(start) || !end.is_none_or(inside) {
                prop_assert!(matches!(ours, Err(ArrayError::Slice { .. })), "{ours:?}");
                return Ok(());
            }
            let (mut ours, mut theirs) = (ours.unwrap(), host.slice_axis(Axis(axis), slice));
            if transpose {
                (ours, theirs) = (ours.transposed(), theirs.reversed_axes());
            }
            prop_assert_eq!(ours.shape(), theirs.shape());
            for (index, value) in theirs.indexed_iter() {
                let steps = ours.strides().zip(index.as_array_view().to_vec());
                let place = steps.fold(ours.offset.cast_signed(), |at, (stride, i)| at + stride * i.cast_signed());
                prop_assert_eq!(place.cast_unsigned(), *value);
            }
            prop_assert_eq!(ours.is_dense(ElementOrder::Row), theirs.is_standard_layout());
        }
    }

    proptest! {
        #[test]
        fn slices_meet_if_they_have_an_index_in_common(
            len in 0_usize..12,
            (start, end, step) in slices(),
            (other_start, other_end, other_step) in slices(),
        ) {
            let left = SliceInfoElem::Slice { start, end, step };
            let right = SliceInfoElem::Slice { start: other_start, end: other_end, step: other_step };
            let (Some(left), Some(right)) = (AxisIndices::of(&left, len), AxisIndices::of(&right, len)) else {
                return Ok(());
            };
            let common = (0..len).any(|index| left.contains(index) && right.contains(index));
            prop_assert_eq!(left.meets(right), common);
            let host: Vec<usize> = (0..len).collect();
            let taken = ndarray::ArrayView1::from(&host);
            let taken = taken.slice_axis(Axis(0), Slice { start, end, step });
            prop_assert_eq!((0..len).filter(|index| left.contains(*index)).count(), taken.len());
            prop_assert!(taken.iter().all(|index| left.contains(*index)));
        }
    }

    #[test]
    fn bytes_are_those_from_the_first_to_the_last_element() {
        let whole = layout(&[4, 8]);
        let is = |start, end, gaps| ByteSpan { start, end, gaps };
        assert_eq!(whole.bytes(4, 128), ByteSpan::ALL);
        let rows = whole.clone().slice_axis(Axis(0), Slice::from(1..3)).unwrap();
        assert_eq!(rows.bytes(4, 128), is(32, 96, Gaps::NONE));
        let right = whole.clone().slice_axis(Axis(1), Slice::from(4..)).unwrap();
        assert_eq!(right.bytes(4, 128), is(16, 128, Gaps::every(32)));
        let columns = whole.clone().slice_axis(Axis(1), Slice::from(2..6).step_by(-2)).unwrap();
        assert_eq!(columns.bytes(4, 128), is(12, 120, Gaps::nested(8, 32)));
        // Not all bytes, although the first and the last are among them.
        let ends = whole.slice_axis(Axis(0), Slice::from(..).step_by(3)).unwrap();
        assert_eq!(ends.bytes(4, 128), is(0, 128, Gaps::every(96)));
        assert_eq!(layout(&[0, 8]).bytes(4, 128), is(0, 0, Gaps::NONE));
    }

    #[test]
    fn elements_that_are_repeated_count_once() {
        let right = layout(&[8]).slice_axis(Axis(0), Slice::from(4..)).unwrap();
        for count in [2, 1 << 60] {
            let wide = right.broadcast(IxDyn(&[count, 4])).unwrap();
            assert_eq!(wide.bytes(4, 32), ByteSpan { start: 16, end: 32, gaps: Gaps::NONE });
        }
        let wide = layout(&[1]).broadcast(IxDyn(&[1 << 62])).unwrap();
        assert_eq!(wide.bytes(8, 8), ByteSpan { start: 0, end: 8, gaps: Gaps::NONE });
    }

    proptest! {
        /// Equal bytes mean equal elements. Without gaps, a view has all bytes between the first and the last.
        #[test]
        fn gaps_tell_views_apart(
            shape in proptest::collection::vec(1_usize..7, 1..4),
            turns in proptest::collection::vec(proptest::collection::vec(slices(), 3), 2),
        ) {
            let whole = layout(&shape);
            let views: Vec<_> = turns.iter().filter_map(|turn| {
                let mut axes = turn.iter().take(shape.len()).enumerate();
                axes.try_fold(whole.clone(), |view, (axis, (start, end, step))| {
                    view.slice_axis(Axis(axis), Slice { start: *start, end: *end, step: *step }).ok()
                })
            }).filter(|view| view.len() > 0).collect();
            let storage = u64::MAX;
            let elements = |view: &Layout<IxDyn>| {
                let mut found = vec![view.offset.cast_signed()];
                for (len, stride) in view.shape().iter().zip(view.strides()) {
                    found = found.iter().flat_map(|at| (0..*len).map(move |i| at + stride * i.cast_signed())).collect();
                }
                found.sort_unstable();
                found
            };
            for view in &views {
                let (bytes, found) = (view.bytes(1, storage), elements(view));
                let is_full = found.len() as u64 == bytes.end - bytes.start;
                prop_assert_eq!(bytes.gaps == Gaps::NONE, is_full);
                for other in &views {
                    if bytes.gaps.are_regular() && bytes == other.bytes(1, storage) {
                        prop_assert_eq!(&found, &elements(other));
                    }
                }
            }
        }
    }

    #[test]
    fn distant_slices_meet_without_a_search() {
        let (len, prime) = (isize::MAX.unsigned_abs(), (1_isize << 31) - 1);
        let every =
            |start, step| AxisIndices::of(&SliceInfoElem::Slice { start, end: None, step }, len).unwrap();
        assert!(every(0, prime).meets(every(1, 1 << 31)));
        assert!(!every(0, 1 << 31).meets(every(1, 1 << 31)));
        assert!(!every(0, isize::MAX).meets(every(1, isize::MAX - 1)));
        assert!(every(0, isize::MIN).meets(every(-1, isize::MIN)));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for shape in [vec![usize::MAX, 2], vec![usize::MAX / 2 + 1], vec![1 << 40, 1 << 40, 0]] {
            let refused = Layout::dense(IxDyn(&shape), ElementOrder::Row, 4);
            assert!(matches!(refused, Err(ArrayError::TooManyElements { .. })), "{shape:?}");
        }
        assert!(Layout::dense(IxDyn(&[0, 1 << 40]), ElementOrder::Row, 4).is_ok());
        let wide = layout(&[8]).broadcast(IxDyn(&[1 << 59, 8])).unwrap();
        assert_eq!(wide.clone().reinterpreted(8, 1), None);
        assert!(wide.reinterpreted(8, 4).is_none());
        let wide = layout(&[8]).broadcast(IxDyn(&[1 << 57, 8])).unwrap();
        assert!(wide.reinterpreted(8, 4).is_some());
    }

    #[test]
    fn a_reshape_keeps_the_number_of_elements() {
        let flat = layout(&[2, 3]).reshaped(IxDyn(&[6]), 4).unwrap();
        assert_eq!(flat.shape(), [6]);
        assert!(matches!(layout(&[2, 3]).reshaped(IxDyn(&[7]), 4), Err(ArrayError::Shape { .. })));
        let transposed = layout(&[2, 3]).transposed().reshaped(IxDyn(&[6]), 4);
        assert!(matches!(transposed, Err(ArrayError::NotContiguous { .. })));
    }
}
