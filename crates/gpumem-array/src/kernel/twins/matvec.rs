//! `matvec.cu`.

use super::number::{TwinNumber, count};
use super::reduce::{plain_sum, product_sum};
use gpumem_sim::{KernelFault, Launch};
use std::cell::Cell;

pub(crate) fn rows<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let matrix = Matrix { address: launch.arg()?, row_step: count(launch)? };
    let v: u64 = launch.arg()?;
    let (row_count, column_count) = (count(launch)?, count(launch)?);
    let x = matrix.cells::<T>(launch, row_count, column_count)?;
    let (out, v) = (launch.write::<T>(out, row_count)?, launch.read::<T>(v, column_count)?);
    for (row, out) in out.iter().enumerate() {
        out.set(product_sum(&x[row * matrix.row_step..][..column_count], v));
    }
    Ok(())
}

pub(crate) fn rows_in_parts<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let matrix = Matrix { address: launch.arg()?, row_step: count(launch)? };
    let v: u64 = launch.arg()?;
    let (row_count, column_count, columns_a_part) = (count(launch)?, count(launch)?, count(launch)?);
    let x = matrix.cells::<T>(launch, row_count, column_count)?;
    let part_count = launch.grid()[1] as usize;
    let (out, v) = (launch.write::<T>(out, row_count * part_count)?, launch.read::<T>(v, column_count)?);
    for (row, out) in out.chunks_exact(part_count).enumerate() {
        let line = &x[row * matrix.row_step..][..column_count];
        let parts = line.chunks(columns_a_part).zip(v.chunks(columns_a_part));
        out.iter().zip(parts).for_each(|(out, (x, v))| out.set(product_sum(x, v)));
    }
    Ok(())
}

pub(crate) fn rows_sum<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let matrix = Matrix { address: launch.arg()?, row_step: count(launch)? };
    let (row_count, column_count) = (count(launch)?, count(launch)?);
    let x = matrix.cells::<T>(launch, row_count, column_count)?;
    for (row, out) in launch.write::<T>(out, row_count)?.iter().enumerate() {
        out.set(plain_sum(&x[row * matrix.row_step..][..column_count]));
    }
    Ok(())
}

pub(crate) fn columns<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let matrix = Matrix { address: launch.arg()?, row_step: count(launch)? };
    let v: u64 = launch.arg()?;
    let (row_count, column_count, rows_a_part) = (count(launch)?, count(launch)?, count(launch)?);
    let v = launch.read::<T>(v, row_count)?;
    let sums = ColumnSums { out, row_count, column_count, rows_a_part };
    sums.write(launch, matrix, |row, x: T| x.times(v[row].get()))
}

pub(crate) fn columns_sum<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let matrix = Matrix { address: launch.arg()?, row_step: count(launch)? };
    let (row_count, column_count, rows_a_part) = (count(launch)?, count(launch)?, count(launch)?);
    let sums = ColumnSums { out, row_count, column_count, rows_a_part };
    sums.write(launch, matrix, |_, x: T| x)
}

/// Contiguous rows, `row_step` elements apart.
#[derive(Clone, Copy)]
struct Matrix {
    address: u64,
    row_step: usize,
}

impl Matrix {
    /// From the first element to the last.
    fn cells<'a, T: TwinNumber>(
        &self,
        launch: &'a Launch<'_>,
        row_count: usize,
        column_count: usize,
    ) -> Result<&'a [Cell<T>], KernelFault> {
        // A repeated row, and a single one, may have any step.
        if self.row_step < column_count {
            return launch.read::<T>(self.address, (row_count - 1) * self.row_step + column_count);
        }
        launch.read_rows::<T>(self.address, [row_count, self.row_step], [column_count, 1])
    }
}

/// The destination of the sums along columns: a row for each part of the matrix.
struct ColumnSums {
    out: u64,
    row_count: usize,
    column_count: usize,
    rows_a_part: usize,
}

impl ColumnSums {
    fn write<T: TwinNumber>(
        &self,
        launch: &Launch<'_>,
        matrix: Matrix,
        term: impl Fn(usize, T) -> T,
    ) -> Result<(), KernelFault> {
        let x = matrix.cells::<T>(launch, self.row_count, self.column_count)?;
        let part_count = launch.grid()[1] as usize;
        let out = launch.write::<T>(self.out, part_count * self.column_count)?;
        let mut sums = vec![T::ZERO; self.column_count];
        for (part, out) in out.chunks_exact(self.column_count).enumerate() {
            sums.fill(T::ZERO);
            let first = (part * self.rows_a_part).min(self.row_count);
            for row in first..(first + self.rows_a_part).min(self.row_count) {
                let line = &x[row * matrix.row_step..][..self.column_count];
                sums.iter_mut().zip(line).for_each(|(sum, x)| *sum = sum.plus(term(row, x.get())));
            }
            out.iter().zip(&sums).for_each(|(out, sum)| out.set(*sum));
        }
        Ok(())
    }
}
