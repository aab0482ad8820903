//! Elements by their indices on an axis.
//!
//! Indices are lists of the host, or arrays on the device. Those on the device cannot be checked without a wait, so kernels check each:
//! one outside of the axis reads zeros, and adds nothing.

use crate::array::{AsView, GpuArray, GpuCow, GpuView, GpuViewMut, readers, writers};
use crate::copy::strided::packed;
use crate::element::Element;
use crate::error::ArrayError;
use crate::expression::{Expression, Lazy, Numeric};
use crate::gpu::Gpu;
use crate::kernel::table::{Kernel, Only, Unit};
use crate::launch::OwnLaunch;
use crate::layout::plan::{AxisStep, merged, unit};
use crate::layout::{ElementOrder, Layout};
use crate::ops::{blocks, operand};
use ndarray::{Axis, Dimension, Ix1, RemoveAxis};

/// Indices on an axis: a slice or `Vec` of `usize`, which is checked and uploaded, or an array on the device with one axis, of `u32`,
/// `i32`, `u64` or `i64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of indices",
    note = "indices are a slice of `usize`, or an array or view with one axis of `u32`, `i32`, `u64` or `i64`"
)]
pub trait Indices {
    #[doc(hidden)]
    type Elem: IndexElement;
    /// The indices on the device of `gpu`, without gaps. Errors name `operation`.
    #[doc(hidden)]
    fn on_device<'a>(
        &'a self,
        gpu: &'a Gpu,
        axis: CheckedAxis<'_>,
        operation: &'static str,
    ) -> Result<GpuCow<'a, Self::Elem, Ix1>, ArrayError>;
}

/// An axis that exists.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct CheckedAxis<'a> {
    shape: &'a [usize],
    index: usize,
}

/// An integer of 32 or 64 bits.
#[doc(hidden)]
pub trait IndexElement: Element {
    /// The number by which kernels know the type.
    const KIND: u64;
}
impl IndexElement for u32 {
    const KIND: u64 = 0;
}
impl IndexElement for i32 {
    const KIND: u64 = 1;
}
impl IndexElement for u64 {
    const KIND: u64 = 2;
}
impl IndexElement for i64 {
    const KIND: u64 = 2;
}

impl<A: AsView<Dim = Ix1, Elem: IndexElement>> Indices for A {
    type Elem = A::Elem;
    fn on_device<'a>(
        &'a self,
        gpu: &'a Gpu,
        _axis: CheckedAxis<'_>,
        operation: &'static str,
    ) -> Result<GpuCow<'a, A::Elem, Ix1>, ArrayError> {
        operand(&self.as_view(), gpu, ElementOrder::Row, operation)
    }
}

impl Indices for [usize] {
    type Elem = u64;
    fn on_device<'a>(
        &'a self,
        gpu: &'a Gpu,
        axis: CheckedAxis<'_>,
        _operation: &'static str,
    ) -> Result<GpuCow<'a, u64, Ix1>, ArrayError> {
        if let Some(outside) = self.iter().find(|index| **index >= axis.len()) {
            return Err(axis.error(format!("index {outside}")));
        }
        let indices: Vec<u64> = self.iter().map(|index| *index as u64).collect();
        Ok(GpuCow::Owned(GpuArray::from_slice(gpu, &indices)?))
    }
}

macro_rules! lists {
    ($([$($parameters:tt)*] $list:ty;)*) => {$(
        impl<$($parameters)*> Indices for $list {
            type Elem = u64;
            fn on_device<'a>(
                &'a self,
                gpu: &'a Gpu,
                axis: CheckedAxis<'_>,
                operation: &'static str,
            ) -> Result<GpuCow<'a, u64, Ix1>, ArrayError> {
                self.as_slice().on_device(gpu, axis, operation)
            }
        }
    )*};
}
lists! {
    [const COUNT: usize] [usize; COUNT];
    [] Vec<usize>;
}

impl<'a> CheckedAxis<'a> {
    fn new(shape: &'a [usize], axis: Axis) -> Result<Self, ArrayError> {
        let checked = Self { shape, index: axis.index() };
        if axis.index() < shape.len() { Ok(checked) } else { Err(checked.error("indices".to_owned())) }
    }

    fn len(self) -> usize {
        self.shape[self.index]
    }

    fn error(self, slice: String) -> ArrayError {
        ArrayError::Slice { slice, axis: self.index, shape: self.shape.to_vec() }
    }

    /// The products of the lengths before and after the axis.
    fn outer_and_inner(self) -> [usize; 2] {
        let (outer, inner) = (&self.shape[..self.index], &self.shape[self.index + 1..]);
        [outer, inner].map(|lens| lens.iter().product())
    }
}

readers! {
    Element;

    /// Copies the elements at these indices of an axis, in their order, on the device. An index may occur several times. The result is in
    /// row-major order.
    ///
    /// Indices of the host are uploaded, 8 bytes each. Those in an array on the device are not checked here, since that would take a wait: an
    /// index outside of the axis selects zeros.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Axis, array}};
    ///
    /// let rows = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4], [5, 6]])?;
    /// assert_eq!(rows.select(Axis(0), &[2, 0])?.to_array()?, array![[5, 6], [1, 2]]);
    ///
    /// let nearest = GpuArray::from_slice(&gpu, &[1_i32, 1, 7])?;
    /// assert_eq!(rows.select(Axis(0), &nearest)?.to_array()?, array![[3, 4], [3, 4], [0, 0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Slice`] if the axis does not exist, or an index of the host is outside it.
    /// - [`ArrayError::TooManyElements`] if the result exceeds the address space.
    /// - [`ArrayError::NoPeerAccess`] if the view is used through a device that has no link to its memory, or to the indices.
    /// - [`ArrayError::WrongDevice`] if it is used through another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails, or if the stream captures and the indices are of the host.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn select[I: Indices + ?Sized](view, axis: Axis, indices: &I) -> Result<GpuArray<T, D>, ArrayError>
    where (D: RemoveAxis) {
        let axis = CheckedAxis::new(view.shape(), axis)?;
        let gpu = view.gpu();
        view.storage().share(gpu, "select")?;
        let indices = indices.on_device(gpu, axis, "select")?;
        let indices = indices.view();
        let mut dim = view.raw_dim();
        dim[axis.index] = indices.len();
        let result = GpuArray::unwritten(gpu, Layout::dense(dim, ElementOrder::Row, size_of::<T>())?)?;
        if result.is_empty() {
            return Ok(result);
        }
        // The axes of the result before and after the indices, with their steps in bytes. Elements are a last axis of bytes.
        let size = size_of::<T>();
        let step = |(len, (to, from)): (&usize, (isize, isize))| {
            let size = size.cast_signed();
            AxisStep { len: *len, to: to * size, from: from * size }
        };
        let pairs = result.layout().strides().zip(view.layout().strides());
        let steps: Vec<_> = result.shape().iter().zip(pairs).map(step).collect();
        let (before, after) = (steps[..axis.index].iter(), steps[axis.index + 1..].iter());
        let bytes = AxisStep { len: size, to: 1, from: 1 };
        let mut axes = merged(before.copied().filter(|step| step.len > 1));
        axes.push(steps[axis.index]);
        let after = merged(after.copied().filter(|step| step.len > 1).chain([bytes]));
        let (run, inner) = after.split_last().unwrap_or((&bytes, &[]));
        axes.extend(inner);
        let unit = unit(run.len, [0, view.planned()], &axes);
        let run = AxisStep { len: run.len / unit, to: unit.cast_signed(), from: unit.cast_signed() };
        axes.extend((run.len > 1).then_some(run));
        let selected = inner.len() + usize::from(run.len > 1);
        let total = result.len() * size / unit;
        let (kernel, grid) = (Kernel::Gather(Unit::of(unit)), [blocks(total, THREADS), 1, 1]);
        let launch = OwnLaunch::new(gpu, kernel, grid, [THREADS as u32, 1, 1])?;
        let launch = with_indices(launch.write(&result).read(view), &indices);
        let launch = launch.words([total, axis.len(), selected, unit.trailing_zeros() as usize]);
        launch.large(&packed(&axes)).queue("select")?;
        Ok(result)
    }

    /// Copies the parts of an axis where `mask` is true, in order. Waits for the number of true elements.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::Axis};
    ///
    /// let x = GpuArray::from_slice(&gpu, &[3.0_f32, -1.0, 2.0])?;
    /// let mask = x.lazy().gt(0.0).eval()?;
    /// assert_eq!(x.compress(Axis(0), &mask)?.to_vec()?, [3.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the mask does not have the length of the axis; those of `select` and [`Lazy::nonzero`].
    pub fn compress[M: AsView<Elem = bool, Dim = Ix1> + ?Sized](view, axis: Axis, mask: &M) -> Result<GpuArray<T, D>, ArrayError>
    where (D: RemoveAxis) {
        let mask = mask.as_view();
        if mask.len() != CheckedAxis::new(view.shape(), axis)?.len() {
            return Err(ArrayError::Shape {
                operation: "compress",
                left: view.shape().to_vec(),
                right: mask.shape().to_vec(),
                expected: "the mask must have the length of the axis",
            });
        }
        view.select(axis, &places(&operand(&mask, view.gpu(), ElementOrder::Row, "compress")?)?)
    }
}

impl<E: Expression<Elem = bool, Dim: Dimension>> Lazy<E> {
    /// The indices of the true elements, in row-major order: of a vector its indices, otherwise those of the elements in one row.
    ///
    /// Waits for their number, which the size of the result depends on. [`sum`](Lazy::sum) of a cast expression, and
    /// [`select`](Lazy::select), do without.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[3.0_f32, -1.0, 2.0])?;
    /// assert_eq!(x.lazy().gt(0.0).nonzero()?.to_vec()?, [0, 2]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if the stream captures; those of [`Lazy::eval`].
    pub fn nonzero(&self) -> Result<GpuArray<u64, Ix1>, ArrayError> {
        let mask = self.eval()?;
        places(&mask.view().dense(ElementOrder::Row)?)
    }
}

/// The places of the true elements.
fn places<D: Dimension>(mask: &GpuCow<'_, bool, D>) -> Result<GpuArray<u64, Ix1>, ArrayError> {
    let mask = mask.view();
    let gpu = mask.gpu();
    let len = mask.len();
    let part = len.div_ceil(PARTS_MAX).max(PART_MIN).next_multiple_of(8 * THREADS);
    let parts = len.div_ceil(part);
    if parts == 0 {
        return GpuArray::zeros(gpu, 0);
    }
    let counts = GpuArray::<u64, _>::unwritten(gpu, Layout::row_major::<u64>(Ix1(parts))?)?;
    let shape = ([parts as u32, 1, 1], [THREADS as u32, 1, 1]);
    let launch = OwnLaunch::new(gpu, Kernel::TrueCount(Only::One), shape.0, shape.1)?;
    launch.write(&counts).read(&mask).words([len, part]).queue("nonzero")?;
    let total = counts.to_vec()?.iter().sum::<u64>();
    let result = GpuArray::unwritten(gpu, Layout::row_major::<u64>(Ix1(total as usize))?)?;
    if total > 0 {
        let launch = OwnLaunch::new(gpu, Kernel::TruePlaces(Only::One), shape.0, shape.1)?;
        let launch = launch.write(&result).read(&mask).read(&counts.view());
        launch.words([len, part]).queue("nonzero")?;
    }
    Ok(result)
}

writers! {
    Numeric;

    /// Adds each part of `values` to the part of this array at its index of an axis: the opposite of `select`. An index may occur several
    /// times. Indices outside of the axis in an array on the device are left out.
    ///
    /// The result is deterministic: additions are sorted by their targets first, so the order of each sum depends
    /// only on the indices.
    ///
    /// While it runs it takes some 16 bytes for each index and, with more than 128 indices, 1/64 to 1/32 of the size of `values`. What is not in
    /// row-major order without gaps, of this array, the indices and `values`, is copied first.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Axis, array}};
    ///
    /// let points = GpuArray::from_array(&gpu, &array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
    /// let clusters = GpuArray::from_slice(&gpu, &[1_u32, 0, 1])?;
    /// let mut sums = GpuArray::<f64, _>::zeros(&gpu, (2, 2))?;
    /// sums.scatter_add(Axis(0), &clusters, &points)?;
    /// assert_eq!(sums.to_array()?, array![[3.0, 4.0], [6.0, 8.0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the shapes differ on another axis, or the length of `values` on this one is not the number of indices.
    /// - [`ArrayError::TooManyElements`] if there are 2³² indices, or elements on the axis.
    /// - Those of `select`.
    pub fn scatter_add<I: Indices + ?Sized, A: AsView<Elem = T, Dim = D> + ?Sized>(
        &mut self,
        axis: Axis,
        indices: &I,
        values: &A,
    ) -> Result<(), ArrayError> {
        let mut target = self.view_mut();
        let (shape, values) = (target.shape().to_vec(), values.as_view());
        let axis = CheckedAxis::new(&shape, axis)?;
        let gpu = target.gpu().clone();
        target.as_view().storage().share(&gpu, "scatter_add")?;
        let indices = indices.on_device(&gpu, axis, "scatter_add")?;
        let count = indices.view().len();
        let mut expected = shape.clone();
        expected[axis.index] = count;
        if values.shape() != expected {
            return Err(ArrayError::Shape {
                operation: "scatter_add",
                left: shape,
                right: values.shape().to_vec(),
                expected: "the values must have the shape of the array, with one part for each index",
            });
        }
        let most = u32::MAX as usize;
        if count >= most || axis.len() >= most {
            return Err(ArrayError::TooManyElements { shape: expected });
        }
        let values = operand(&values, &gpu, ElementOrder::Row, "scatter_add")?;
        if values.view().is_empty() || target.is_empty() {
            return Ok(());
        }
        let sorted = Sorted::new(&gpu, &indices, axis.len())?;
        let [outer, width] = axis.outer_and_inner();
        let add = Additions { sorted: &sorted, values: &values, rows: axis.len(), width, outer };
        if target.is_standard_layout() {
            return add.to(&target);
        }
        let mut dense = target.as_view().to_order(ElementOrder::Row)?;
        add.to(&dense.view_mut())?;
        target.assign(&dense)
    }
}

/// Places of additions, sorted by the rows that they add to.
struct Sorted {
    rows: GpuArray<u32, Ix1>,
    places: GpuArray<u32, Ix1>,
}

impl Sorted {
    fn new<I: IndexElement>(
        gpu: &Gpu,
        indices: &GpuCow<'_, I, Ix1>,
        rows: usize,
    ) -> Result<Self, ArrayError> {
        let indices = indices.view();
        let count = indices.len();
        let pair = || -> Result<Self, ArrayError> {
            let one = || GpuArray::unwritten(gpu, Layout::row_major::<u32>(Ix1(count))?);
            Ok(Self { rows: one()?, places: one()? })
        };
        let (mut now, mut next) = (pair()?, pair()?);
        let (grid, block) = ([blocks(count, THREADS), 1, 1], [THREADS as u32, 1, 1]);
        let launch = OwnLaunch::new(gpu, Kernel::Keys(Only::One), grid, block)?;
        let launch = with_indices(launch.write(&now.rows).write(&now.places), &indices);
        launch.words([count, rows]).queue(ADD)?;
        let part = count.div_ceil(PARTS_MAX).max(PART_MIN).next_multiple_of(THREADS);
        let parts = count.div_ceil(part);
        let counts = GpuArray::<u32, _>::unwritten(gpu, Layout::row_major::<u32>(Ix1(parts * DIGITS))?)?;
        let grid = [parts as u32, 1, 1];
        // `rows` itself stands for indices outside.
        let bits = usize::BITS - rows.leading_zeros();
        for shift in (0..bits as usize).step_by(DIGITS.ilog2() as usize) {
            let launch = OwnLaunch::new(gpu, Kernel::DigitCount(Only::One), grid, block)?;
            launch.write(&counts).read(&now.rows.view()).words([count, shift, part]).queue(ADD)?;
            let launch = OwnLaunch::new(gpu, Kernel::DigitScan(Only::One), [1; 3], [1024, 1, 1])?;
            launch.write(&counts).words([parts * DIGITS]).queue(ADD)?;
            let launch = OwnLaunch::new(gpu, Kernel::DigitMove(Only::One), grid, block)?;
            let launch = launch.write(&next.rows).write(&next.places);
            let launch = launch.read(&now.rows.view()).read(&now.places.view()).read(&counts.view());
            launch.words([count, shift, part]).queue(ADD)?;
            core::mem::swap(&mut now, &mut next);
        }
        Ok(now)
    }
}

/// Groups of `width` elements of `outer` groups that are added to rows.
struct Additions<'a, T, D> {
    sorted: &'a Sorted,
    values: &'a GpuCow<'a, T, D>,
    rows: usize,
    width: usize,
    outer: usize,
}

impl<T: Numeric, D: Dimension> Additions<'_, T, D> {
    /// Adds to elements without gaps.
    fn to(&self, target: &GpuViewMut<'_, T, D>) -> Result<(), ArrayError> {
        let Self { sorted, values, rows, width, outer } = *self;
        let (gpu, count) = (target.gpu(), sorted.rows.len());
        let threads = count.div_ceil(TILE) * width * outer;
        // Rows that go over several parts have sums there.
        let unwritten = || GpuArray::<T, _>::unwritten(gpu, Layout::row_major::<T>(Ix1(2 * threads))?);
        let parts = (count > TILE).then(unwritten).transpose()?;
        let (grid, block) = ([blocks(threads, THREADS), 1, 1], [THREADS as u32, 1, 1]);
        let launch = OwnLaunch::new(gpu, Kernel::Scatter(Only::One), grid, block)?;
        let launch = launch.array((target.writes(), target.planned())).read(&values.view());
        let launch = launch.read(&sorted.rows.view()).read(&sorted.places.view());
        let launch = match &parts {
            Some(parts) => launch.write(parts),
            None => launch.value(0_u64),
        };
        launch.words([count, rows, width, outer, T::KERNELS as usize]).queue(ADD)?;
        let Some(parts) = parts else { return Ok(()) };
        let launch = OwnLaunch::new(gpu, Kernel::ScatterRest(Only::One), grid, block)?;
        let launch = launch.array((target.writes(), target.planned())).read(&sorted.rows.view());
        launch.read(&parts.view()).words([count, rows, width, outer, T::KERNELS as usize]).queue(ADD)
    }
}

fn with_indices<'a, I: IndexElement>(launch: OwnLaunch<'a>, indices: &GpuView<'a, I, Ix1>) -> OwnLaunch<'a> {
    launch.read(indices).value(I::KIND)
}

const ADD: &str = "scatter_add";
const THREADS: usize = 256;
/// Blocks that count or move parts of an array. Each sums what those before it have counted.
const PARTS_MAX: usize = 1024;
const PART_MIN: usize = 4096;
/// The values of a digit, and the sorted additions of a thread, which the kernels are compiled for.
const DIGITS: usize = 256;
const TILE: usize = 128;
