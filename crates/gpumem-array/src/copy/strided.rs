//! Launches of the kernels that copy and transpose strided ranges.

use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::kernel::parameters::{AXES_MAX, AxisWords, OuterAxes};
use crate::kernel::table::{Kernel, Only, Unit};
use crate::launch::OwnLaunch;
use crate::layout::plan::{AxisStep, Strided};
use crate::storage::Use;

/// A kernel that copies all rows, from and to addresses in arrays.
pub(crate) fn copy<'a>(
    gpu: &'a Gpu,
    strided: Strided,
    [to, from]: [(Use<'a>, u64); 2],
) -> Result<OwnLaunch<'a>, ArrayError> {
    let (row_len, count) = (strided.row.len, rows(&strided));
    if let Some(column) = strided.column {
        let (grid, block) = tiles(strided.unit, row_len, column.len, count);
        let launch = OwnLaunch::new(gpu, Kernel::Transpose(Unit::of(strided.unit)), grid, block)?;
        let launch = launch.array(to).array(from).value(words(strided.row)).value(words(column));
        return Ok(launch.value(count as u64).large(&packed(&strided.outer)).without_prefetch());
    }
    let is_dense = is_dense(&strided);
    let strided = if is_dense { in_bytes(strided) } else { strided };
    let (kernel, (grid, block)) = match is_dense {
        true => (Kernel::Dense(Only::One), shape(strided.row.len.div_ceil(DENSE_BYTES), count, 1)),
        false => (Kernel::Copy(Unit::of(strided.unit)), shape(row_len, count, IN_FLIGHT)),
    };
    let launch = OwnLaunch::new(gpu, kernel, grid, block)?.array(to).array(from);
    let launch = words(strided.row).into_iter().fold(launch, OwnLaunch::value);
    Ok(launch.value(count as u64).large(&packed(&strided.outer)).without_prefetch())
}

/// The number of positions on the outer axes.
fn rows(strided: &Strided) -> usize {
    strided.outer.iter().map(|axis| axis.len).product()
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
    let row = AxisStep { len: strided.row.len * strided.unit, to: 1, from: 1 };
    Strided { unit: 1, row, ..strided }
}

type Shape = ([u32; 3], [u32; 3]);

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
    (grid.map(|blocks| blocks as u32), [x as u32, y as u32, 1])
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
    (grid.map(|blocks| blocks as u32), [WARP as u32, (THREADS / WARP) as u32, 1])
}

/// The length, and the steps in target and source, as the kernels take them.
fn words(axis: AxisStep) -> AxisWords {
    [axis.len as u64, (axis.to as i64).cast_unsigned(), (axis.from as i64).cast_unsigned()]
}

/// Axes from the slowest to the fastest, as the kernels take them.
pub(crate) fn packed(outer: &[AxisStep]) -> OuterAxes {
    debug_assert!(outer.len() <= AXES_MAX, "more elements than addresses");
    let mut axes: OuterAxes = [0; 1 + 3 * AXES_MAX];
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

    /// The units that the kernel `copy` moves in a grid of this shape, by row, in the order of the loops in `strided.cu`.
    fn visits(([grid_x, grid_y, _], [x, y, _]): Shape, len: usize, rows: usize, is_copy: bool) -> Vec<u32> {
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
            row: AxisStep { len, to, from },
            column: None,
            outer: vec![AxisStep { len: 3, to: 10_001, from: 10_003 }],
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
        assert_eq!((bytes.unit, bytes.row), (1, AxisStep { len: 1000, to: 1, from: 1 }));
    }

    #[test]
    fn grids_stay_within_the_limits_of_the_device() {
        let rows = 1 << 40;
        assert_eq!(shape(1, rows, IN_FLIGHT), ([1, 65_535, 1], [1, 256, 1]));
        assert_eq!(shape(32, 65_537, IN_FLIGHT), ([1, 2_049, 1], [32, 8, 1]));
        assert_eq!(shape(32, 65_537, 1), ([1, 8_193, 1], [32, 8, 1]));
        assert_eq!(shape(33, 65_537, IN_FLIGHT), ([1, 8_193, 1], [32, 8, 1]));
        assert_eq!(tiles(1, 257, 129, 1), ([2, 2, 1], [32, 8, 1]));
        assert_eq!(tiles(1, 1 << 40, 1 << 40, 1 << 20), ([1 << 20, 65_535, 65_535], [32, 8, 1]));
    }
}
