//! Matrix times vector, for matrices in row-major and column-major order.
//!
//! Some kernels sum along contiguous rows, others along columns. If there are too few blocks to fill a device, the sums are split
//! into parts, which a second launch adds.

use crate::array::{GpuArray, GpuView, Vector, readers};
use crate::error::ArrayError;
use crate::expression::Numeric;
use crate::gpu::Gpu;
use crate::kernel::table::Kernel;
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout};
use crate::ops::{blocks, operand};
use ndarray::{Dimension, Ix1, Ix2};

readers! {
    Numeric, Ix2;

    /// Multiplies the matrix by a vector. Both `x.dot(&w)` and `x.t().dot(&r)` read the matrix in place, without a copy. Non-contiguous
    /// operands are copied first.
    ///
    /// Floats are summed in an order that depends only on the shape; integers wrap.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let a = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4]])?;
    /// let x = GpuArray::from_slice(&gpu, &[10, 1])?;
    /// assert_eq!(a.dot(&x)?.to_vec()?, [12, 34]);
    /// assert_eq!(a.t().dot(&x)?.to_vec()?, [13, 24]); // no copy of the matrix
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the length of the vector is not the number of columns.
    /// - [`ArrayError::NoPeerAccess`] if `vector` is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if `vector` belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn dot[B: Vector<Elem = T>](view, vector: &B) -> Result<GpuArray<T, Ix1>, ArrayError> {
        let vector = vector.as_view();
        let (row_count, column_count) = view.raw_dim().into_pattern();
        if vector.len() != column_count {
            return Err(ArrayError::Shape {
                operation: "dot",
                left: view.shape().to_vec(),
                right: vector.shape().to_vec(),
                expected: "the length of the vector must equal the number of columns",
            });
        }
        let gpu = view.gpu();
        view.storage().share(gpu, "dot")?;
        let vector = operand(&vector, gpu, ElementOrder::Row, "dot")?;
        if row_count == 0 || column_count == 0 {
            return GpuArray::zeros(gpu, row_count);
        }
        let vector = vector.view();
        match Path::of(view.layout()) {
            None => view.to_order(ElementOrder::Row)?.view().dot(&vector),
            Some(Path::One) => {
                let row = view.reshape(column_count)?;
                Ok(row.dot(&vector)?.into_shape(1)?)
            }
            Some(Path::Rows { row_step }) => along_rows(view, row_step, &vector, [row_count, column_count]),
            Some(Path::Columns { row_step }) => {
                along_columns(view, row_step, &vector, [column_count, row_count])
            }
        }
    }
}

/// The kernel that reads a matrix in place. Steps are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// A single contiguous row: a dot product.
    One,
    /// Rows are contiguous: each result is the sum along one row.
    Rows { row_step: u64 },
    /// Columns are contiguous: they are the rows of the matrix in memory.
    Columns { row_step: u64 },
}

impl Path {
    /// For a matrix that is not empty; `None` if neither its rows nor its columns are contiguous.
    fn of(layout: &Layout<Ix2>) -> Option<Self> {
        let (row_count, column_count) = layout.dim.into_pattern();
        // The step of an axis with one element does not matter.
        let step = |(len, stride): (&usize, isize)| match len {
            1 => Some(None),
            _ => u64::try_from(stride).ok().map(Some),
        };
        let mut steps = layout.shape().iter().zip(layout.strides()).map(step);
        let mut next = || steps.next().unwrap_or(Some(None));
        match (next()?, next()?) {
            (None, None | Some(1)) => Some(Self::One),
            (Some(1), columns) => Some(Self::Columns { row_step: columns.unwrap_or(row_count as u64) }),
            (rows, None | Some(1)) => Some(Self::Rows { row_step: rows.unwrap_or(column_count as u64) }),
            (None, Some(columns)) => Some(Self::Columns { row_step: columns }),
            _ => None,
        }
    }
}

/// The matrix has `row_count` contiguous rows of `column_count` elements, `row_step` apart, and the vector `column_count` elements.
fn along_rows<T: Numeric>(
    matrix: &GpuView<'_, T, Ix2>,
    row_step: u64,
    v: &GpuView<'_, T, Ix1>,
    [row_count, column_count]: [usize; 2],
) -> Result<GpuArray<T, Ix1>, ArrayError> {
    let long = column_count > LONG_ROW || row_count < FEW_ROWS && column_count > SHORT_ROW;
    if long {
        return along_long_rows(matrix, row_step, v, [row_count, column_count]);
    }
    let result = vector::<T>(matrix.gpu(), row_count)?;
    let launch = warp_a_row(matrix.gpu(), Kernel::RowsWarp(T::KERNELS), row_count)?.write(&result);
    let launch = launch.read(matrix).value(row_step).read(v);
    words(launch, [row_count, column_count]).queue("dot")?;
    Ok(result)
}

/// One block for each row, or several if there are few rows.
fn along_long_rows<T: Numeric>(
    matrix: &GpuView<'_, T, Ix2>,
    row_step: u64,
    v: &GpuView<'_, T, Ix1>,
    [row_count, column_count]: [usize; 2],
) -> Result<GpuArray<T, Ix1>, ArrayError> {
    let gpu = matrix.gpu();
    let parts = BLOCKS_WANTED.div_ceil(row_count).min(column_count.div_ceil(COLUMNS_A_PART_MIN));
    // A multiple of every pack, so that parts are aligned like rows.
    let columns_a_part = column_count.div_ceil(parts).next_multiple_of(16);
    let parts = column_count.div_ceil(columns_a_part);
    let partial = GpuArray::<T, Ix2>::unwritten(gpu, dense::<T, _>(Ix2(row_count, parts))?)?;
    let grid = [blocks(row_count, 1), parts as u32, 1];
    let launch = OwnLaunch::new(gpu, Kernel::RowsBlock(T::KERNELS), grid, [WIDE, 1, 1])?.write(&partial);
    let launch = launch.read(matrix).value(row_step).read(v);
    let sum_parts = words(launch, [row_count, column_count, columns_a_part]);
    if parts == 1 {
        sum_parts.queue("dot")?;
        return Ok(partial.into_shape(row_count)?);
    }
    let result = vector::<T>(gpu, row_count)?;
    let launch =
        warp_a_row(gpu, Kernel::RowsSum(T::KERNELS), row_count)?.write(&result).read(&partial.view());
    sum_parts.queue_before(words(launch, [parts, row_count, parts]), "dot")?;
    Ok(result)
}

/// Like [`along_rows`], but the vector has `row_count` elements, and the results are the sums of columns.
fn along_columns<T: Numeric>(
    matrix: &GpuView<'_, T, Ix2>,
    row_step: u64,
    v: &GpuView<'_, T, Ix1>,
    [row_count, column_count]: [usize; 2],
) -> Result<GpuArray<T, Ix1>, ArrayError> {
    let gpu = matrix.gpu();
    let column_blocks = column_count.div_ceil(32 * 16 / size_of::<T>());
    let parts = row_count.div_ceil(ROWS_A_PART_MIN).min(BLOCKS_WANTED.div_ceil(column_blocks));
    let rows_a_part = row_count.div_ceil(parts);
    let parts = row_count.div_ceil(rows_a_part);
    let partial = GpuArray::<T, Ix2>::unwritten(gpu, dense::<T, _>(Ix2(parts, column_count))?)?;
    let too_many = |_| ArrayError::TooManyElements { shape: vec![column_count] };
    let grid_columns = u32::try_from(column_blocks).map_err(too_many)?;
    let block = [32, ROW_LANES, 1];
    let launch = OwnLaunch::new(gpu, Kernel::Columns(T::KERNELS), [grid_columns, parts as u32, 1], block)?;
    let launch = launch.write(&partial).read(matrix).value(row_step).read(v);
    let sum_parts = words(launch, [row_count, column_count, rows_a_part]);
    if parts == 1 {
        sum_parts.queue("dot")?;
        return Ok(partial.into_shape(column_count)?);
    }
    let result = vector::<T>(gpu, column_count)?;
    let launch = OwnLaunch::new(gpu, Kernel::ColumnsSum(T::KERNELS), [grid_columns, 1, 1], block)?;
    let launch = launch.write(&result).read(&partial.view());
    sum_parts.queue_before(words(launch, [column_count, parts, column_count, parts]), "dot")?;
    Ok(result)
}

fn words<const COUNT: usize>(launch: OwnLaunch<'_>, words: [usize; COUNT]) -> OwnLaunch<'_> {
    words.into_iter().fold(launch, |launch, word| launch.value(word as u64))
}

fn vector<T: Numeric>(gpu: &Gpu, len: usize) -> Result<GpuArray<T, Ix1>, ArrayError> {
    GpuArray::unwritten(gpu, dense::<T, _>(Ix1(len))?)
}

fn dense<T, D: Dimension>(dim: D) -> Result<Layout<D>, ArrayError> {
    Layout::dense(dim, ElementOrder::Row, size_of::<T>())
}

fn warp_a_row(gpu: &Gpu, kernel: Kernel, row_count: usize) -> Result<OwnLaunch<'_>, ArrayError> {
    OwnLaunch::new(gpu, kernel, [blocks(row_count, ROW_LANES as usize), 1, 1], [32, ROW_LANES, 1])
}

/// The rows of a block of `rows_warp`, and the row lanes of `columns`. The kernels are compiled for this number.
const ROW_LANES: u32 = 8;
/// Threads on one row in `rows_block`.
const WIDE: u32 = 256;
/// A whole block sums each longer row.
const LONG_ROW: usize = 4096;
/// With fewer rows, one warp for each leaves the device idle, unless the rows are short.
const FEW_ROWS: usize = 1024;
const SHORT_ROW: usize = 512;
/// Eight loads of four elements for each thread.
const COLUMNS_A_PART_MIN: usize = 8192;
/// Eight loads for each row lane.
const ROWS_A_PART_MIN: usize = 64;
/// About four blocks for each multiprocessor of a large GPU.
const BLOCKS_WANTED: usize = 528;
