//! `strided.cu`.

use super::count;
use crate::kernel::library::AXES_MAX;
use bytemuck::Pod;
use gpumem_sim::{KernelFault, Launch};
use std::cell::Cell;

/// The innermost axis, by itself, then the outer axes from the fastest to the slowest. Steps are in bytes.
struct Axes {
    row: Axis,
    row_count: usize,
    outer: Vec<Axis>,
}

#[derive(Clone, Copy)]
struct Axis {
    len: usize,
    /// In the target and in the source.
    steps: [i64; 2],
}

impl Axes {
    fn outer(words: &[u64; 1 + 3 * AXES_MAX]) -> Vec<Axis> {
        let axis = |axis: usize| Axis {
            len: words[1 + axis] as usize,
            steps: [1, 2].map(|side| words[1 + side * AXES_MAX + axis].cast_signed()),
        };
        (0..words[0] as usize).map(axis).collect()
    }

    /// The start of a row, in the target and in the source.
    fn start(&self, mut index: usize) -> [i64; 2] {
        let mut start = [0; 2];
        for (position, axis) in self.outer.iter().enumerate() {
            let is_last = position + 1 == self.outer.len();
            let place = if is_last { index } else { index % axis.len };
            index /= axis.len;
            start[0] += place as i64 * axis.steps[0];
            start[1] += place as i64 * axis.steps[1];
        }
        start
    }

    /// The cells of a side from its lowest to its highest address, for each row or, if there are many, of all rows at once.
    fn for_each_row<'a, T: Pod>(
        &self,
        launch: &Launch<'a>,
        addresses: [u64; 2],
        sides: usize,
        mut row: impl FnMut([&'a [Cell<T>]; 2], [i64; 2]),
    ) -> Result<(), KernelFault> {
        let unit = size_of::<T>() as i64;
        let window = |start: [i64; 2], axes: &[Axis]| -> Result<Window<'a, T>, KernelFault> {
            let mut found: Window<'a, T> = ([&[]; 2], [0; 2]);
            for side in 0..sides {
                let reach = |axis: &Axis| (axis.len as i64 - 1) * axis.steps[side];
                let low: i64 = axes.iter().map(|axis| reach(axis).min(0)).sum();
                let high: i64 = axes.iter().map(|axis| reach(axis).max(0)).sum();
                let address = addresses[side].wrapping_add_signed(start[side] + low);
                // One row has its elements at one distance; several rows are taken as a whole.
                let (count, step) = match axes {
                    [row] if row.steps[side] != 0 => {
                        (row.len, (row.steps[side] / unit).unsigned_abs() as usize)
                    }
                    _ => (((high - low) / unit + 1) as usize, 1),
                };
                found.0[side] = match side {
                    0 => launch.write_strided(address, count, step)?,
                    _ => launch.read_strided(address, count, step)?,
                };
                found.1[side] = -low / unit;
            }
            Ok(found)
        };
        let all: Vec<Axis> = self.outer.iter().copied().chain([self.row]).collect();
        let whole = if self.row_count > ROWS_MAX { Some(window([0; 2], &all)?) } else { None };
        for index in 0..self.row_count {
            let start = self.start(index);
            match whole {
                Some((cells, first)) => row(cells, [first[0] + start[0] / unit, first[1] + start[1] / unit]),
                None => {
                    let (cells, first) = window(start, &[self.row])?;
                    row(cells, first);
                }
            }
        }
        Ok(())
    }
}

/// The cells of both sides, and the index of the first element in each.
type Window<'a, T> = ([&'a [Cell<T>]; 2], [i64; 2]);

pub(super) fn copy<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let addresses: [u64; 2] = [launch.arg()?, launch.arg()?];
    let row = Axis { len: count(launch)?, steps: [launch.arg()?, launch.arg()?] };
    let axes = Axes { row, row_count: count(launch)?, outer: Axes::outer(&launch.arg()?) };
    move_elements::<T>(launch, addresses, &axes)
}

pub(super) fn transpose<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let addresses: [u64; 2] = [launch.arg()?, launch.arg()?];
    let axis =
        |[len, to, from]: [u64; 3]| Axis { len: len as usize, steps: [to, from].map(u64::cast_signed) };
    let (row, column) = (axis(launch.arg()?), axis(launch.arg()?));
    let count = count(launch)?;
    let outer = [column].into_iter().chain(Axes::outer(&launch.arg()?)).collect();
    move_elements::<T>(launch, addresses, &Axes { row, row_count: column.len * count, outer })
}

fn move_elements<T: Pod>(launch: &Launch<'_>, addresses: [u64; 2], axes: &Axes) -> Result<(), KernelFault> {
    let row = axes.row;
    let steps = row.steps.map(|step| step / size_of::<T>() as i64);
    axes.for_each_row::<T>(launch, addresses, 2, |[to, from], [to_first, from_first]| {
        for i in 0..row.len as i64 {
            to[(to_first + i * steps[0]) as usize].set(from[(from_first + i * steps[1]) as usize].get());
        }
    })
}

pub(super) fn fill<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let to: u64 = launch.arg()?;
    let words: [u64; 2] = [launch.arg()?, launch.arg()?];
    let row = Axis { len: count(launch)?, steps: [launch.arg()?, 0] };
    let axes = Axes { row, row_count: count(launch)?, outer: Axes::outer(&launch.arg()?) };
    let value: T = bytemuck::pod_read_unaligned(&bytemuck::bytes_of(&words)[..size_of::<T>()]);
    let step = row.steps[0] / size_of::<T>() as i64;
    axes.for_each_row::<T>(launch, [to, 0], 1, |[to, _], [first, _]| {
        for i in 0..row.len as i64 {
            to[(first + i * step) as usize].set(value);
        }
    })
}

/// More rows are requested at once, with what lies between them.
const ROWS_MAX: usize = 1024;
