//! [`RowsLaunch`]: launches of the kernels that copy, transpose and fill strided ranges.

use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::Function;
use crate::kernel::library::{AXES_MAX, StridedKernel, launch, parameter};
use crate::layout::plan::{Step, Strided};
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::types::CUstream;

/// The outer axes as the kernels take them: a count, then lengths, steps in the target and steps in the source, each from the fastest
/// axis to the slowest.
type Axes = [u64; 1 + 3 * AXES_MAX];

/// The launch of a kernel that copies or fills all rows.
pub(crate) struct RowsLaunch<'a> {
    function: &'a Function,
    strided: Strided,
    is_dense: bool,
}

impl<'a> RowsLaunch<'a> {
    pub(crate) fn copy(gpu: &'a Gpu, strided: Strided) -> Result<Self, ArrayError> {
        let is_dense = is_dense(&strided);
        let (kernel, strided) = match strided.column {
            Some(_) => (StridedKernel::Transpose, strided),
            None if is_dense => (StridedKernel::Dense, in_bytes(strided)),
            None => (StridedKernel::Copy, strided),
        };
        Ok(Self { function: gpu.library().strided(kernel, strided.unit)?, strided, is_dense })
    }

    pub(crate) fn fill(gpu: &'a Gpu, strided: Strided) -> Result<Self, ArrayError> {
        let function = gpu.library().strided(StridedKernel::Fill, strided.unit)?;
        Ok(Self { function, strided, is_dense: false })
    }

    /// # Safety
    ///
    /// - The context of the stream is current, and belongs to the device.
    /// - From the addresses on, both sides have the elements that the plan describes, in live memory of the device, which the stream
    ///   has been ordered to write and to read.
    pub(crate) unsafe fn queue_copy(
        &self,
        stream: CUstream,
        [to, from]: [u64; 2],
    ) -> Result<(), DriverError> {
        let row = words(self.strided.row);
        let (count, axes) = (self.rows() as u64, packed(&self.strided.outer));
        let Some(column) = self.strided.column.map(words) else {
            let [len, to_step, from_step] = row;
            let mut parameters = [
                parameter(&to),
                parameter(&from),
                parameter(&len),
                parameter(&to_step),
                parameter(&from_step),
                parameter(&count),
                parameter(&axes),
            ];
            // SAFETY: the caller's promise; the parameters are those of the kernel.
            return unsafe { launch(self.function, stream, self.shape(IN_FLIGHT), &mut parameters) };
        };
        let mut parameters = [
            parameter(&to),
            parameter(&from),
            parameter(&row),
            parameter(&column),
            parameter(&count),
            parameter(&axes),
        ];
        // SAFETY: the caller's promise; the parameters are those of the kernel that transposes.
        unsafe { launch(self.function, stream, self.shape(1), &mut parameters) }
    }

    /// # Safety
    ///
    /// The requirements of [`RowsLaunch::queue_copy`] apply to the target.
    pub(crate) unsafe fn queue_fill(
        &self,
        stream: CUstream,
        to: u64,
        words: [u64; 2],
    ) -> Result<(), DriverError> {
        let (len, step) = (self.strided.row.len as u64, self.strided.row.to as i64);
        let (rows, axes) = (self.rows() as u64, packed(&self.strided.outer));
        let mut parameters = [
            parameter(&to),
            parameter(&words[0]),
            parameter(&words[1]),
            parameter(&len),
            parameter(&step),
            parameter(&rows),
            parameter(&axes),
        ];
        // SAFETY: the caller's promise; the parameters are those of the kernel.
        unsafe { launch(self.function, stream, self.shape(1), &mut parameters) }
    }

    /// The number of positions on the outer axes.
    fn rows(&self) -> usize {
        self.strided.outer.iter().map(|axis| axis.len).product()
    }

    /// `short_rows` is the number of short rows that a thread moves at a time.
    fn shape(&self, short_rows: usize) -> Shape {
        let (rows, row) = (self.rows(), self.strided.row.len);
        match self.strided.column {
            Some(column) => tiles(self.strided.unit, row, column.len, rows),
            None if self.is_dense => shape(row.div_ceil(DENSE_BYTES), rows, 1),
            None => shape(row, rows, short_rows),
        }
    }
}

/// True if rows have no gaps and units so small that a thread should move several at a time.
fn is_dense(strided: &Strided) -> bool {
    let (row, unit) = (strided.row, strided.unit);
    let step = unit as isize;
    strided.column.is_none()
        && unit <= DENSE_UNIT_MAX
        && (row.to, row.from) == (step, step)
        && row.len >= DENSE_LEN_MIN
}

/// Converts a copy to elements of one byte. Each row keeps its size in bytes.
fn in_bytes(strided: Strided) -> Strided {
    let row = Step { len: strided.row.len * strided.unit, to: 1, from: 1 };
    Strided { unit: 1, row, ..strided }
}

type Shape = ([u32; 3], [u32; 3], u32);

/// The threads of a block are laid out along a row, up to its length. In a long row, each thread moves four units. In short rows, with at
/// most one unit per thread, each thread moves one unit in each of `short_rows` rows.
fn shape(len: usize, rows: usize, short_rows: usize) -> Shape {
    let warp = len.next_power_of_two().min(WARP);
    let x = len.div_ceil(IN_FLIGHT).next_power_of_two().clamp(warp, THREADS);
    let y = THREADS / x;
    let rows_each = if len <= x { short_rows } else { 1 };
    let grid = [
        len.div_ceil(x * IN_FLIGHT).clamp(1, GRID_X_MAX),
        rows.div_ceil(y * rows_each).clamp(1, GRID_Y_MAX),
        1,
    ];
    (grid.map(|blocks| blocks as u32), [x as u32, y as u32, 1], 0)
}

/// A block for each tile.
fn tiles(unit: usize, row: usize, column: usize, count: usize) -> Shape {
    // As in `strided.cu`.
    let (rows, columns) = match unit {
        1 => (256, 128),
        2 => (128, 128),
        4 => (64, 64),
        _ => (32, 32),
    };
    let grid =
        [row.div_ceil(rows).min(GRID_X_MAX), column.div_ceil(columns).min(GRID_Y_MAX), count.min(GRID_Y_MAX)];
    (grid.map(|blocks| blocks as u32), [WARP as u32, (THREADS / WARP) as u32, 1], 0)
}

/// The length, and the steps in target and source, as the kernels take them.
fn words(axis: Step) -> [u64; 3] {
    [axis.len as u64, (axis.to as i64).cast_unsigned(), (axis.from as i64).cast_unsigned()]
}

fn packed(outer: &[Step]) -> Axes {
    debug_assert!(outer.len() <= AXES_MAX, "more elements than addresses");
    let mut axes = [0; 1 + 3 * AXES_MAX];
    axes[0] = outer.len() as u64;
    for (index, axis) in outer.iter().rev().take(AXES_MAX).enumerate() {
        axes[1 + index] = axis.len as u64;
        axes[1 + AXES_MAX + index] = (axis.to as i64).cast_unsigned();
        axes[1 + 2 * AXES_MAX + index] = (axis.from as i64).cast_unsigned();
    }
    axes
}

const IN_FLIGHT: usize = 4;
/// The bytes that a thread of the kernel `dense` stores at a time.
const DENSE_BYTES: usize = 16;
/// Wider units are already fast.
const DENSE_UNIT_MAX: usize = 2;
/// In units. Threads move single bytes at the ends of a row, which dominate in shorter rows.
const DENSE_LEN_MIN: usize = 448;
const THREADS: usize = 256;
const WARP: usize = 32;
const GRID_X_MAX: usize = 1 << 20;
const GRID_Y_MAX: usize = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    /// The units that the kernel `copy` or `fill` moves in a grid of this shape, by row, in the order of the loops in `strided.cu`.
    fn visits(
        ([grid_x, grid_y, _], [x, y, _], _): Shape,
        len: usize,
        rows: usize,
        is_copy: bool,
    ) -> Vec<u32> {
        let [grid_x, grid_y, x, y] = [grid_x, grid_y, x, y].map(|size| size as usize);
        let mut visits = vec![0; len * rows];
        let is_short = is_copy && len <= x;
        let each = if is_short { y * IN_FLIGHT } else { y };
        for (block, thread) in (0..grid_y).flat_map(|block| (0..y).map(move |thread| (block, thread))) {
            for first in (block * each + thread..rows).step_by(grid_y * each) {
                for row in (first..rows).step_by(y).take(each / y) {
                    let columns = if is_short { x } else { grid_x * x };
                    for unit in (0..columns).flat_map(|first| (first..len).step_by(columns)) {
                        visits[row * len + unit] += 1;
                    }
                }
            }
        }
        // The kernel for short rows does not divide them among blocks.
        assert!(!is_short || grid_x == 1);
        visits
    }

    #[test]
    fn each_unit_falls_to_one_thread() {
        for len in [1, 2, 3, 5, 8, 16, 31, 32, 33, 64, 129, 1025, 5000] {
            for rows in [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 127, 1023, 1025] {
                for (is_copy, short_rows) in [(true, IN_FLIGHT), (false, 1)] {
                    let visits = visits(shape(len, rows, short_rows), len, rows, is_copy);
                    assert!(visits.iter().all(|count| *count == 1), "{len} {rows} {is_copy}");
                }
            }
        }
    }

    /// The bytes that a thread of the kernel `dense` stores at a time: pieces of 16 at addresses that are multiples of 16, and what the row
    /// has of the first and the last; and the bytes that it loads.
    fn dense_pieces(
        target: usize,
        source: usize,
        len: usize,
    ) -> Vec<(core::ops::Range<usize>, core::ops::Range<usize>)> {
        let aligned = target / DENSE_BYTES * DENSE_BYTES;
        let count = (target + len - aligned).div_ceil(DENSE_BYTES);
        let piece = |index: usize| {
            let store = aligned + index * DENSE_BYTES;
            let load = source.wrapping_add(store).wrapping_sub(target);
            let word = load / 4 * 4;
            let is_whole = store >= target && store + DENSE_BYTES <= target + len;
            if is_whole && load.is_multiple_of(DENSE_BYTES) {
                return (store..store + DENSE_BYTES, load..load + DENSE_BYTES);
            }
            if is_whole && word >= source && word + DENSE_BYTES + 4 <= source + len {
                return (store..store + DENSE_BYTES, word..word + DENSE_BYTES + 4);
            }
            let (start, end) = (store.max(target), (store + DENSE_BYTES).min(target + len));
            (start..end, source + start - target..source + end - target)
        };
        (0..count).map(piece).collect()
    }

    #[test]
    fn dense_rows_are_stored_once_and_loaded_from_the_row_alone() {
        for len in [448, 449, 463, 511, 4095] {
            for (target, source) in (0..16).flat_map(|to| (0..16).map(move |from| (4096 + to, 8192 + from))) {
                let mut next = target;
                for (stored, loaded) in dense_pieces(target, source, len) {
                    assert_eq!(stored.start, next);
                    assert!(loaded.start >= source && loaded.end <= source + len, "{loaded:?}");
                    next = stored.end;
                }
                assert_eq!(next, target + len);
            }
        }
    }

    #[test]
    fn long_rows_of_narrow_units_without_gaps_are_dense() {
        let rows = |unit: usize, len: usize, to: isize, from: isize| Strided {
            unit,
            row: Step { len, to, from },
            column: None,
            outer: vec![Step { len: 3, to: 10_001, from: 10_003 }],
        };
        assert!(is_dense(&rows(1, DENSE_LEN_MIN, 1, 1)) && is_dense(&rows(2, DENSE_LEN_MIN, 2, 2)));
        for other in [
            rows(1, DENSE_LEN_MIN - 1, 1, 1),
            rows(4, DENSE_LEN_MIN, 4, 4),
            rows(1, DENSE_LEN_MIN, 1, 2),
            rows(1, DENSE_LEN_MIN, 1, -1),
            rows(1, DENSE_LEN_MIN, 2, 1),
        ] {
            assert!(!is_dense(&other), "{other:?}");
        }
        let bytes = in_bytes(rows(2, 500, 2, 2));
        assert_eq!((bytes.unit, bytes.row), (1, Step { len: 1000, to: 1, from: 1 }));
    }

    #[test]
    fn grids_stay_within_the_limits_of_the_device() {
        let rows = 1 << 40;
        assert_eq!(shape(1, rows, IN_FLIGHT), ([1, 65_535, 1], [1, 256, 1], 0));
        assert_eq!(shape(32, 65_537, IN_FLIGHT), ([1, 2_049, 1], [32, 8, 1], 0));
        assert_eq!(shape(32, 65_537, 1), ([1, 8_193, 1], [32, 8, 1], 0));
        assert_eq!(shape(33, 65_537, IN_FLIGHT), ([1, 8_193, 1], [32, 8, 1], 0));
        assert_eq!(tiles(1, 257, 129, 1), ([2, 2, 1], [32, 8, 1], 0));
        assert_eq!(tiles(1, 1 << 40, 1 << 40, 1 << 20), ([1 << 20, 65_535, 65_535], [32, 8, 1], 0));
    }
}
