//! `strided.cu`.

use super::number::count;
use crate::kernel::parameters::{AXES_MAX, OuterAxes};
use bytemuck::Pod;
use gpumem_sim::{KernelFault, Launch};
use std::cell::Cell;

/// The innermost axis, then the outer axes from the fastest to the slowest. Steps are in bytes.
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
    fn outer(words: &OuterAxes) -> Vec<Axis> {
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

    /// Visits every row, with the cells of both sides. Many rows are requested along the longest outer axis at once.
    fn for_each_row<'a, T: Pod>(
        mut self,
        launch: &Launch<'a>,
        addresses: [u64; 2],
        sides: usize,
        mut visit: impl FnMut([&'a [Cell<T>]; 2], [i64; 2]),
    ) -> Result<(), KernelFault> {
        let unit = size_of::<T>() as i64;
        let row = self.row;
        let longest = (0..self.outer.len()).max_by_key(|&axis| self.outer[axis].len);
        let is_apart =
            |&axis: &usize| (0..sides).all(|side| are_rows_apart(row, self.outer[axis], side, unit));
        let mut along = Axis { len: 1, steps: [0; 2] };
        if let Some(axis) = longest.filter(|_| self.row_count > ROWS_MAX).filter(is_apart) {
            along = self.outer.remove(axis);
            self.row_count = self.outer.iter().map(|axis| axis.len).product();
        }
        for index in 0..self.row_count {
            let start = self.start(index);
            let (mut cells, mut first) = ([&[][..]; 2], [0; 2]);
            for side in 0..sides {
                let low = row.reach(side).min(0) + along.reach(side).min(0);
                let address = addresses[side].wrapping_add_signed(start[side] + low);
                let [elements, rows] = by_step(row, along, side).map(|axis| axis.units(side, unit));
                cells[side] = match side {
                    0 => launch.write_rows(address, rows, elements)?,
                    _ => launch.read_rows(address, rows, elements)?,
                };
                first[side] = -low / unit;
            }
            for place in 0..along.len as i64 {
                visit(cells, [0, 1].map(|side| first[side] + place * along.steps[side] / unit));
            }
        }
        Ok(())
    }
}

impl Axis {
    /// The distance in bytes from its first element to its last.
    fn reach(&self, side: usize) -> i64 {
        (self.len as i64 - 1) * self.steps[side]
    }

    /// The number of its different places, and their distance, in units.
    fn units(&self, side: usize, unit: i64) -> [usize; 2] {
        match self.steps[side] {
            0 => [1, 1],
            step => [self.len, (step / unit).unsigned_abs() as usize],
        }
    }
}

/// The axis with smaller steps on a side comes first.
fn by_step(row: Axis, along: Axis, side: usize) -> [Axis; 2] {
    if row.steps[side].unsigned_abs() <= along.steps[side].unsigned_abs() {
        [row, along]
    } else {
        [along, row]
    }
}

/// True if the places on the axis with smaller steps end before the next place on the other axis.
fn are_rows_apart(row: Axis, along: Axis, side: usize, unit: i64) -> bool {
    let [inner, outer] = by_step(row, along, side);
    inner.steps[side] == 0 || inner.reach(side).abs() + unit <= outer.steps[side].abs()
}

pub(crate) fn copy<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let addresses: [u64; 2] = [launch.arg()?, launch.arg()?];
    let row = Axis { len: count(launch)?, steps: [launch.arg()?, launch.arg()?] };
    let axes = Axes { row, row_count: count(launch)?, outer: Axes::outer(&launch.arg()?) };
    move_elements::<T>(launch, addresses, axes)
}

pub(crate) fn transpose<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let addresses: [u64; 2] = [launch.arg()?, launch.arg()?];
    let axis =
        |[len, to, from]: [u64; 3]| Axis { len: len as usize, steps: [to, from].map(u64::cast_signed) };
    let (row, column) = (axis(launch.arg()?), axis(launch.arg()?));
    let count = count(launch)?;
    let outer = [column].into_iter().chain(Axes::outer(&launch.arg()?)).collect();
    move_elements::<T>(launch, addresses, Axes { row, row_count: column.len * count, outer })
}

fn move_elements<T: Pod>(launch: &Launch<'_>, addresses: [u64; 2], axes: Axes) -> Result<(), KernelFault> {
    let row = axes.row;
    let steps = row.steps.map(|step| step / size_of::<T>() as i64);
    axes.for_each_row::<T>(launch, addresses, 2, |[to, from], [to_first, from_first]| {
        for i in 0..row.len as i64 {
            to[(to_first + i * steps[0]) as usize].set(from[(from_first + i * steps[1]) as usize].get());
        }
    })
}

pub(crate) fn fill<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
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

/// Above this number, many rows are requested at a time. Below it, each row has its own history, at any length.
const ROWS_MAX: usize = 1024;
