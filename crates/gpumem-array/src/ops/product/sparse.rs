//! Products of sparse matrices in compressed rows with vectors and matrices.

use crate::array::{GpuArray, GpuView};
use crate::element::Element;
use crate::error::ArrayError;
use crate::expression::Numeric;
use crate::kernel::table::Kernel;
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout};
use crate::ops::{blocks, operand};
use ndarray::{Dimension, Ix1};

/// The product of a sparse matrix in compressed rows and a vector or a matrix. Offsets of rows and indices of columns are integers of 4 or 8
/// bytes; an element outside the matrix is left out.
///
/// # Errors
///
/// [`ArrayError::Shape`] if the lengths do not fit; otherwise the errors of [`GpuView::dot`].
pub fn product<T: Numeric, I: Element, D: Dimension>(
    shape: [usize; 2],
    [offsets, indices]: [&GpuView<'_, I, Ix1>; 2],
    values: &GpuView<'_, T, Ix1>,
    right: &GpuView<'_, T, D>,
) -> Result<GpuArray<T, D>, ArrayError> {
    const { assert!(size_of::<I>() == 4 || size_of::<I>() == 8) };
    let [rows, terms] = shape;
    let fits = right.shape().first() == Some(&terms) && right.ndim() <= 2;
    if !fits || rows.checked_add(1) != Some(offsets.len()) || indices.len() != values.len() {
        return Err(ArrayError::Shape {
            operation: "dot",
            left: shape.to_vec(),
            right: right.shape().to_vec(),
            expected: "the first axis of the right operand must be as long as the matrix has columns",
        });
    }
    let gpu = values.gpu();
    right.storage().share(gpu, "dot")?;
    let mut dim = right.raw_dim();
    dim[0] = rows;
    let result = GpuArray::unwritten(gpu, Layout::row_major::<T>(dim)?)?;
    if result.is_empty() {
        return Ok(result);
    }
    let dense = |view| operand(view, gpu, ElementOrder::Row, "dot");
    let (offsets, indices) = (dense(offsets)?, dense(indices)?);
    let values = operand(values, gpu, ElementOrder::Row, "dot")?;
    let (offsets, indices, values) = (offsets.view(), indices.view(), values.view());
    let mut steps = right.layout().strides().map(|step| step as i64);
    let columns = right.shape().get(1).copied().unwrap_or(1);
    let grid = [blocks(rows, ROWS_A_BLOCK as usize), 1, 1];
    let launch = OwnLaunch::new(gpu, Kernel::SparseRows(T::KERNELS), grid, [32, ROWS_A_BLOCK, 1])?;
    let index_bytes = size_of::<I>() as u64;
    let launch = launch.write(&result).read(&offsets).value(index_bytes).read(&indices).value(index_bytes);
    let launch = launch.read(&values).read(right).words([rows, terms, columns, values.len()]);
    let launch = launch.value(steps.next().unwrap_or(0)).value(steps.next().unwrap_or(0));
    launch.queue("dot")?;
    Ok(result)
}

/// A warp sums a row.
const ROWS_A_BLOCK: u32 = 8;
