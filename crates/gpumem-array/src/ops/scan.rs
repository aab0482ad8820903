//! Sums of all elements up to each one.

use crate::array::{GpuArray, GpuCow, GpuView, readers};
use crate::error::ArrayError;
use crate::expression::Numeric;
use crate::kernel::table::Kernel;
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout};
use crate::ops::operand;
use ndarray::{Axis, Dimension, Ix1};

readers! {
    Numeric;

    /// The sums of all elements up to each one, in row-major order, on the device. Integers wrap. The order of the additions depends on the
    /// number of elements alone. A view that is not in row-major order without gaps is copied into the result first.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let counts = GpuArray::from_slice(&gpu, &[3, 0, 2, 4])?;
    /// let ends = counts.cumsum()?;
    /// assert_eq!(ends.to_vec()?, [3, 3, 5, 9]);
    /// let starts = &ends - &counts;
    /// assert_eq!(starts.to_vec()?, [0, 3, 3, 5]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn cumsum(view) -> Result<GpuArray<T, Ix1>, ArrayError> {
        let len = view.len();
        Ok(Lines { outer: 1, len, width: 1 }.sums(view, "cumsum")?.into_shape(len)?)
    }

    /// The sums of all elements up to each one along an axis, on the device. Integers wrap. The order of the additions depends on the shape
    /// alone. A view that is not in row-major order without gaps is copied into the result first.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::{Axis, array};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// assert_eq!(x.cumsum_axis(Axis(0))?.to_array()?, array![[1.0, 2.0, 3.0], [5.0, 7.0, 9.0]]);
    /// assert_eq!(x.cumsum_axis(Axis(1))?.to_array()?, array![[1.0, 3.0, 6.0], [4.0, 9.0, 15.0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if there is no such axis.
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn cumsum_axis(view, axis: Axis) -> Result<GpuArray<T, D>, ArrayError> {
        let shape = view.shape();
        let Some(len) = shape.get(axis.index()).copied() else {
            return Err(ArrayError::Shape {
                operation: "cumsum_axis",
                left: shape.to_vec(),
                right: vec![axis.index()],
                expected: "the index of an axis",
            });
        };
        let (outer, width) = (shape[..axis.index()].iter().product(), shape[axis.index() + 1..].iter().product());
        Lines { outer, len, width }.sums(view, "cumsum_axis")
    }
}

/// An axis of elements that are `width` apart, at `outer` places on the axes before it.
#[derive(Clone, Copy)]
struct Lines {
    outer: usize,
    len: usize,
    width: usize,
}

impl Lines {
    fn sums<T: Numeric, D: Dimension>(
        self,
        view: &GpuView<'_, T, D>,
        operation: &'static str,
    ) -> Result<GpuArray<T, D>, ArrayError> {
        match operand(view, view.gpu(), ElementOrder::Row, operation)? {
            GpuCow::Owned(copy) => {
                self.scan(&copy, &copy.view())?;
                Ok(copy)
            }
            GpuCow::View(source) => {
                let result = GpuArray::unwritten(source.gpu(), Layout::row_major::<T>(view.raw_dim())?)?;
                self.scan(&result, &source)?;
                Ok(result)
            }
        }
    }

    /// Each element of `to` may be that of `from` at its place: a thread has read it before it writes it.
    fn scan<T: Numeric, D: Dimension, E: Dimension>(
        self,
        to: &GpuArray<T, D>,
        from: &GpuView<'_, T, E>,
    ) -> Result<(), ArrayError> {
        if from.is_empty() {
            return Ok(());
        }
        let parts = self.parts();
        if parts == 1 {
            return self.launch(to, from, None, false)?.queue("cumsum");
        }
        let of_parts = Self { len: parts, ..self };
        let totals = || {
            GpuArray::<T, _>::unwritten(from.gpu(), Layout::row_major::<T>(Ix1(of_parts.element_count()))?)
        };
        let (totals, ends) = (totals()?, totals()?);
        self.launch(&totals, from, None, true)?.queue("cumsum")?;
        of_parts.scan(&ends, &totals.view())?;
        self.launch(to, from, Some(&ends.view()), false)?.queue("cumsum")
    }

    /// A launch that writes all sums, or of each part the last. A part begins with that of `ends` before it.
    fn launch<'a, T: Numeric, D: Dimension, E: Dimension>(
        self,
        to: &'a GpuArray<T, D>,
        from: &GpuView<'a, T, E>,
        ends: Option<&GpuView<'a, T, Ix1>>,
        is_total: bool,
    ) -> Result<OwnLaunch<'a>, ArrayError> {
        let Self { outer, len, width } = self;
        let (parts, lines) = (self.parts(), outer * self.parts());
        let (kernel, grid, block) = match self.is_row() {
            true => (Kernel::ScanRows(T::KERNELS), [lines.min(GRID_X_MAX), 1, 1], [THREADS, 1, 1]),
            false => {
                let x = width.next_power_of_two().min(THREADS);
                let y = THREADS / x;
                let grid = [width.div_ceil(x).min(GRID_X_MAX), lines.div_ceil(y).min(GRID_Y_MAX), 1];
                (Kernel::ScanColumns(T::KERNELS), grid, [x, y, 1])
            }
        };
        let [grid, block] = [grid, block].map(|shape| shape.map(|size| size as u32));
        let launch = OwnLaunch::new(to.gpu(), kernel, grid, block)?.write(to).read(from);
        let launch = match ends {
            Some(ends) => launch.read(ends),
            None => launch.value(0_u64),
        };
        let launch = launch.words([len, self.part(), parts, lines, usize::from(is_total)]);
        Ok(if self.is_row() { launch } else { launch.words([width]) })
    }

    /// True if a block scans each part, not a thread.
    fn is_row(self) -> bool {
        self.width == 1 && self.len > SHORT
    }

    /// The length of a part.
    fn part(self) -> usize {
        let (least, multiple) = if self.is_row() { (ROW_PART_MIN, ROW_TILE) } else { (COLUMN_PART_MIN, 1) };
        self.len.div_ceil(PARTS_MAX).max(least).next_multiple_of(multiple)
    }

    fn parts(self) -> usize {
        self.len.div_ceil(self.part())
    }

    fn element_count(self) -> usize {
        self.outer * self.len * self.width
    }
}

const THREADS: usize = 256;
const GRID_X_MAX: usize = 1 << 20;
const GRID_Y_MAX: usize = 65_535;
/// A thread scans each line that is not longer.
const SHORT: usize = 32;
const PARTS_MAX: usize = 1024;
const ROW_PART_MIN: usize = 8192;
const COLUMN_PART_MIN: usize = 64;
/// A multiple of the elements that a block scans at a time.
const ROW_TILE: usize = 1024;
