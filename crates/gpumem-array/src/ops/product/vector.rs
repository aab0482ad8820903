//! Matrix times vector, for matrices in row-major and column-major order.
//!
//! Some kernels sum along contiguous rows, others along columns. If there are too few blocks to fill a device, the sums are split
//! into parts, which a second launch adds.

use crate::array::{GpuArray, GpuView};
use crate::element::{Element, NumericType, ProductKernels};
use crate::error::ArrayError;
use crate::expression::Factor;
use crate::gpu::Gpu;
use crate::kernel::table::Kernel;
use crate::launch::OwnLaunch;
use crate::layout::Layout;
use crate::ops::blocks;
use ndarray::{Dimension, Ix1, Ix2};

/// The product of operands that are not empty and fit. `None` if no kernel for vectors has this element type, or if neither the rows nor the
/// columns are contiguous.
pub(super) fn product<T: Factor>(
    matrix: &GpuView<'_, T, Ix2>,
    vector: &GpuView<'_, T, Ix1>,
) -> Result<Option<GpuArray<T, Ix1>>, ArrayError> {
    let (row_count, column_count) = matrix.raw_dim().into_pattern();
    let (Some(path), ProductKernels::Numeric(number)) = (Path::of(matrix.layout()), T::PRODUCTS) else {
        return Ok(None);
    };
    let vector = vector.on(matrix.gpu());
    match path {
        Path::One => {
            let row = matrix.reshape(column_count)?;
            Ok(row.dot(&vector)?.into_shape(1)?)
        }
        Path::Rows { row_step } => along_rows(matrix, number, row_step, &vector, [row_count, column_count]),
        Path::Columns { row_step } => {
            along_columns(matrix, number, row_step, &vector, [column_count, row_count])
        }
    }
    .map(Some)
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

/// The matrix has `row_count` contiguous rows of `column_count` elements, `row_step` apart, and the vector `column_count` elements. A warp
/// sums a row, or a whole block sums a part of one.
fn along_rows<T: Factor>(
    matrix: &GpuView<'_, T, Ix2>,
    number: NumericType,
    row_step: u64,
    v: &GpuView<'_, T, Ix1>,
    [row_count, column_count]: [usize; 2],
) -> Result<GpuArray<T, Ix1>, ArrayError> {
    let gpu = matrix.gpu();
    let is_long = column_count > LONG_ROW || row_count < FEW_ROWS && column_count > SHORT_ROW;
    let parts = match is_long {
        true => BLOCKS_WANTED.div_ceil(row_count).min(column_count.div_ceil(COLUMNS_A_PART_MIN)),
        false => 1,
    };
    // A multiple of every pack, so that parts are aligned like rows.
    let columns_a_part = column_count.div_ceil(parts).next_multiple_of(16);
    let parts = column_count.div_ceil(columns_a_part);
    let partial = GpuArray::<T, Ix2>::unwritten(gpu, Layout::row_major::<T>(Ix2(parts, row_count))?)?;
    let block = if is_long { [ROW_LANES * 32, 1, 1] } else { [32, ROW_LANES, 1] };
    let grid = [blocks(row_count, block[1] as usize), parts as u32, 1];
    let launch = OwnLaunch::new(gpu, Kernel::Rows(number), grid, block)?.write(&partial);
    let launch = launch.read(matrix).value(row_step).read(v).value(step(v));
    let launch = launch.words([row_count, column_count, columns_a_part]);
    if parts == 1 {
        launch.queue("dot")?;
        return Ok(partial.into_shape(row_count)?);
    }
    let result = GpuArray::unwritten(gpu, Layout::row_major::<T>(Ix1(row_count))?)?;
    launch.queue_before(sum_of_parts(&result, &partial.view(), number)?, "dot")?;
    Ok(result)
}

/// Like [`along_rows`], but the vector has `row_count` elements, and the results are the sums of columns.
fn along_columns<T: Factor>(
    matrix: &GpuView<'_, T, Ix2>,
    number: NumericType,
    row_step: u64,
    v: &GpuView<'_, T, Ix1>,
    [row_count, column_count]: [usize; 2],
) -> Result<GpuArray<T, Ix1>, ArrayError> {
    let column_blocks = column_count.div_ceil(COLUMN_BYTES / size_of::<T>());
    let parts = row_count.div_ceil(ROWS_A_PART_MIN).min(BLOCKS_WANTED.div_ceil(column_blocks));
    let rows_a_part = row_count.div_ceil(parts);
    let parts = row_count.div_ceil(rows_a_part);
    let partial =
        GpuArray::<T, Ix2>::unwritten(matrix.gpu(), Layout::row_major::<T>(Ix2(parts, column_count))?)?;
    let launch = columns(matrix.gpu(), number, [column_count, parts], size_of::<T>())?.write(&partial);
    let launch = launch.read(matrix).value(row_step).read(v).value(step(v));
    let launch = launch.words([row_count, column_count, rows_a_part]);
    if parts == 1 {
        launch.queue("dot")?;
        return Ok(partial.into_shape(column_count)?);
    }
    let result = GpuArray::unwritten(matrix.gpu(), Layout::row_major::<T>(Ix1(column_count))?)?;
    launch.queue_before(sum_of_parts(&result, &partial.view(), number)?, "dot")?;
    Ok(result)
}

/// The elements between two of a vector that is not empty.
fn step<T: Element>(v: &GpuView<'_, T, Ix1>) -> i64 {
    // That of one element does not matter.
    if v.len() == 1 { 1 } else { v.layout().strides().next().unwrap_or(1) as i64 }
}

/// A launch of the kernel that sums columns, in parts of the rows.
fn columns(
    gpu: &Gpu,
    number: NumericType,
    [column_count, parts]: [usize; 2],
    element_bytes: usize,
) -> Result<OwnLaunch<'_>, ArrayError> {
    let too_many = |_| ArrayError::TooManyElements { shape: vec![column_count] };
    let blocks = u32::try_from(column_count.div_ceil(COLUMN_BYTES / element_bytes)).map_err(too_many)?;
    OwnLaunch::new(gpu, Kernel::Columns(number), [blocks, parts as u32, 1], [32, ROW_LANES, 1])
}

/// A launch that adds the rows of a matrix. Results and columns are as many.
pub(super) fn sum_of_parts<'a, T: Element, D: Dimension>(
    result: &'a GpuArray<T, D>,
    partial: &GpuView<'a, T, Ix2>,
    number: NumericType,
) -> Result<OwnLaunch<'a>, ArrayError> {
    let (parts, column_count) = partial.raw_dim().into_pattern();
    let launch = columns(partial.gpu(), number, [column_count, 1], size_of::<T>())?.write(result);
    // No vector: each row counts once.
    let launch = launch.read(partial).value(column_count as u64).value(0_u64).value(1_i64);
    Ok(launch.words([parts, column_count, parts]))
}

/// The rows of a block of `rows` if a warp sums each, and the row lanes of `columns`.
const ROW_LANES: u32 = 8;
/// The bytes of a row that a block of `columns` works on: 16 for each thread of a warp.
const COLUMN_BYTES: usize = 32 * 16;
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
