//! Products of two matrices, or of stacks of them, by tiles of the result.
//!
//! If there are too few tiles to fill a device, the sums are split into parts, which a second launch adds.

use crate::array::{GpuArray, GpuView};
use crate::copy::strided::packed;
use crate::element::{NumericType, ProductKernels};
use crate::error::ArrayError;
use crate::expression::Factor;
use crate::kernel::table::{Kernel, Only};
use crate::launch::OwnLaunch;
use crate::layout::Layout;
use crate::layout::plan::{AxisStep, merged};
use crate::ops::product::vector;
use ndarray::{DimMax, Dimension, Ix2};

/// The product of two matrices that fit.
pub(super) fn product<T: Factor>(
    left: &GpuView<'_, T, Ix2>,
    right: &GpuView<'_, T, Ix2>,
) -> Result<GpuArray<T, Ix2>, ArrayError> {
    let lengths = Lengths { rows: left.nrows(), columns: right.ncols(), terms: left.ncols() };
    let steps = [left.layout(), right.layout()].map(|layout| {
        let mut strides = layout.strides();
        [strides.next().unwrap_or(0), strides.next().unwrap_or(0)]
    });
    let result = Ix2(lengths.rows, lengths.columns);
    multiply(left, right, &ProductWork { lengths, steps, stacks: &[], operation: "dot" }, result)
}

/// The products of stacks of matrices.
pub(super) fn stacks<T: Factor, D: Dimension + DimMax<E>, E: Dimension>(
    left: &GpuView<'_, T, D>,
    right: &GpuView<'_, T, E>,
) -> Result<GpuArray<T, <D as DimMax<E>>::Output>, ArrayError> {
    let refused = |expected| ArrayError::Shape {
        operation: "matmul",
        left: left.shape().to_vec(),
        right: right.shape().to_vec(),
        expected,
    };
    let ([left_outer @ .., rows, terms], [right_outer @ .., right_terms, columns]) =
        (left.shape(), right.shape())
    else {
        return Err(refused("an operand of `matmul` must have two or more axes; `dot` multiplies vectors"));
    };
    if terms != right_terms {
        return Err(refused(
            "the last axis of the left operand must be as long as the last but one of the right operand",
        ));
    }
    // From the fastest axis to the slowest. A missing axis has the length 1.
    let outer_count = left_outer.len().max(right_outer.len());
    let mut dim = <D as DimMax<E>>::Output::zeros(outer_count + 2);
    let (left_strides, right_strides): (Vec<isize>, Vec<isize>) =
        (left.layout().strides().rev().collect(), right.layout().strides().rev().collect());
    let mut outer = Vec::with_capacity(outer_count);
    for axis in 0..outer_count {
        let of = |lens: &[usize], strides: &[isize]| {
            let len = lens.iter().rev().nth(axis).copied().unwrap_or(1);
            // The only element of an axis is repeated.
            (len, if len == 1 { 0 } else { strides.get(axis + 2).copied().unwrap_or(0) })
        };
        let ((left_len, left_step), (right_len, right_step)) =
            (of(left_outer, &left_strides), of(right_outer, &right_strides));
        let len = match (left_len, right_len) {
            (1, len) | (len, 1) => len,
            (len, other) if len == other => len,
            _ => return Err(refused("before the last two axes, lengths must be equal or 1")),
        };
        dim[outer_count - 1 - axis] = len;
        outer.push(AxisStep { len, to: left_step, from: right_step });
    }
    (dim[outer_count], dim[outer_count + 1]) = (*rows, *columns);
    Layout::row_major::<T>(dim.clone())?;
    let outer = merged(outer.into_iter().rev().filter(|axis| axis.len > 1));
    let lengths = Lengths { rows: *rows, columns: *columns, terms: *terms };
    let steps = [[left_strides[1], left_strides[0]], [right_strides[1], right_strides[0]]];
    multiply(left, right, &ProductWork { lengths, steps, stacks: &outer, operation: "matmul" }, dim)
}

/// The lengths of the axes of a product.
#[derive(Clone, Copy)]
struct Lengths {
    rows: usize,
    columns: usize,
    /// The elements of an axis that is summed.
    terms: usize,
}

/// The lengths and steps of one product, or of a stack of them.
struct ProductWork<'a> {
    lengths: Lengths,
    /// The steps of the rows and the columns of both operands.
    steps: [[isize; 2]; 2],
    /// From the slowest to the fastest, with the steps of the left and of the right operand.
    stacks: &'a [AxisStep],
    operation: &'static str,
}

fn multiply<T: Factor, D: Dimension, E: Dimension, F: Dimension>(
    left: &GpuView<'_, T, D>,
    right: &GpuView<'_, T, E>,
    work: &ProductWork<'_>,
    dim: F,
) -> Result<GpuArray<T, F>, ArrayError> {
    let gpu = left.gpu();
    left.storage().share(gpu, work.operation)?;
    right.storage().share(gpu, work.operation)?;
    let len = Layout::row_major::<T>(dim.clone())?.len();
    let Lengths { rows, columns, terms } = work.lengths;
    if len == 0 || terms == 0 {
        return GpuArray::zeros(gpu, dim);
    }
    let grid = Grid::of(work.lengths, len / rows / columns, T::PRODUCTS);
    let brain = match T::PRODUCTS {
        ProductKernels::Numeric(number) => {
            return summed(left, right, work, &grid, dim, (None, number));
        }
        ProductKernels::F16 => 0,
        ProductKernels::Bf16 => IS_BF16,
    };
    if gpu.device().compute_capability() < TENSOR_CORES {
        return Err(ArrayError::NoTensorCores { device: gpu.device().to_string() });
    }
    if grid.parts == 1 {
        return summed(left, right, work, &grid, dim, (Some(brain), NumericType::F32));
    }
    // Rounded once all parts have been added.
    let kind = Some(brain | IS_FLOAT_RESULT);
    let sums: GpuArray<f32, F> = summed(left, right, work, &grid, dim, (kind, NumericType::F32))?;
    sums.lazy().cast::<T>().eval()
}

/// The product with elements of type `S`. The kernel of half-precision numbers takes a `kind`. Parts are added as numbers of a type.
fn summed<T: Factor, S: Factor, D: Dimension, E: Dimension, F: Dimension>(
    left: &GpuView<'_, T, D>,
    right: &GpuView<'_, T, E>,
    work: &ProductWork<'_>,
    grid: &Grid,
    dim: F,
    (kind, number): (Option<u64>, NumericType),
) -> Result<GpuArray<S, F>, ArrayError> {
    let (gpu, layout) = (left.gpu(), Layout::row_major::<S>(dim)?);
    let Lengths { rows, columns, terms } = work.lengths;
    let (len, stack_count) = (layout.len(), layout.len() / rows / columns);
    let too_many = || ArrayError::TooManyElements { shape: vec![rows, columns] };
    let tiles = i32::try_from(grid.tiles).map_err(|_| too_many())?;
    let blocks = [tiles.cast_unsigned(), grid.parts as u32, stack_count.min(GRID_Z_MAX) as u32];
    let partial = GpuArray::<S, Ix2>::unwritten(gpu, Layout::row_major::<S>(Ix2(grid.parts, len))?)?;
    let launch = OwnLaunch::new(gpu, grid.kernel, blocks, [THREADS, 1, 1])?;
    let launch = launch.write(&partial).read(left).read(right);
    let launch = launch.words([rows, columns, terms, grid.terms_a_part, stack_count]);
    let steps = work.steps.into_iter().flatten().map(|step| step as i64);
    let launch = kind.into_iter().fold(steps.fold(launch, OwnLaunch::value), OwnLaunch::value);
    let launch = launch.large(&packed(work.stacks));
    if grid.parts == 1 {
        launch.queue(work.operation)?;
        return Ok(partial.into_shape(layout.dim)?);
    }
    let result = GpuArray::unwritten(gpu, layout)?;
    launch.queue_before(vector::sum_of_parts(&result, &partial.view(), number)?, work.operation)?;
    Ok(result)
}

/// How the work is divided among blocks. It depends on the lengths alone, because the order of the sums does too.
struct Grid {
    kernel: Kernel,
    tiles: usize,
    parts: usize,
    terms_a_part: usize,
}

impl Grid {
    fn of(lengths: Lengths, stack_count: usize, kernels: ProductKernels) -> Self {
        let parts_max = (lengths.terms / TERMS_A_PART_MIN).max(1);
        let tiles = |tile: usize| lengths.rows.div_ceil(tile).saturating_mul(lengths.columns.div_ceil(tile));
        let (wide, small) = (tiles(WIDE), tiles(SMALL));
        let is_wide = wide.saturating_mul(stack_count).saturating_mul(parts_max) >= BLOCKS_WIDE_MIN;
        let (kernel, tiles, wanted) = match kernels {
            ProductKernels::Numeric(NumericType::F32) if is_wide => {
                (Kernel::ProductWide(Only::One), wide, BLOCKS_WIDE)
            }
            ProductKernels::Numeric(number) => (Kernel::Product(number), small, BLOCKS_SMALL),
            ProductKernels::F16 | ProductKernels::Bf16 => (Kernel::ProductHalf(Only::One), wide, BLOCKS_WIDE),
        };
        let parts = (wanted / tiles.saturating_mul(stack_count)).clamp(1, parts_max);
        // A multiple of the steps between two loads, so that parts are aligned like rows.
        let terms_a_part = lengths.terms.div_ceil(parts).next_multiple_of(TERMS_ALIGNMENT);
        Self { kernel, tiles, parts: lengths.terms.div_ceil(terms_a_part), terms_a_part }
    }
}

/// The first compute capability whose tensor cores the kernel `product_half` uses.
const TENSOR_CORES: (u32, u32) = (8, 0);
/// Kinds of the kernel `product_half`.
const IS_BF16: u64 = 1;
const IS_FLOAT_RESULT: u64 = 2;
/// The rows and columns of a tile of the kernels `product_wide` and `product_half`, and of `product`.
const WIDE: usize = 128;
const SMALL: usize = 64;
const THREADS: u32 = 256;
const GRID_Z_MAX: usize = 65_535;
/// With fewer blocks, the small tiles keep more of a large GPU busy.
const BLOCKS_WIDE_MIN: usize = 96;
/// The blocks that a large GPU runs at the same time: two, or four small ones, on each of 132 multiprocessors.
const BLOCKS_WIDE: usize = 264;
const BLOCKS_SMALL: usize = 528;
/// Sums of fewer terms are not split.
const TERMS_A_PART_MIN: usize = 256;
const TERMS_ALIGNMENT: usize = 16;
