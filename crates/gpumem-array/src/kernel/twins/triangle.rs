//! `triangle.cu`. The two kernels differ only in the order of their loads.

use super::number::{TwinNumber, count};
use gpumem_sim::{KernelFault, Launch};

const UPPER: u64 = 1;
const STRICT: u64 = 2;
const UNIT: u64 = 4;
const ADDS: u64 = 8;

pub(crate) fn triangle<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (out, x): (u64, u64) = (launch.arg()?, launch.arg()?);
    let (row_step, column_step) = (count(launch)?, count(launch)?);
    let v: u64 = launch.arg()?;
    let n = count(launch)?;
    let form: u64 = launch.arg()?;
    let (inner, outer) = (row_step.min(column_step), row_step.max(column_step));
    let x = if outer > (n - 1) * inner {
        launch.read_rows::<T>(x, [n, outer], [n, inner])?
    } else {
        launch.read::<T>(x, (n - 1) * (row_step + column_step) + 1)?
    };
    let (out, v) = (launch.write::<T>(out, n)?, launch.read::<T>(v, n)?);
    let strict = usize::from(form & (STRICT | UNIT) != 0);
    for (row, out) in out.iter().enumerate() {
        let columns = if form & UPPER != 0 { row + strict..n } else { 0..row + 1 - strict };
        let products =
            columns.map(|column| x[row * row_step + column * column_step].get().times(v[column].get()));
        let mut sum = products.fold(T::ZERO, T::plus);
        if form & UNIT != 0 {
            sum = sum.plus(v[row].get());
        }
        out.set(if form & ADDS != 0 { out.get().plus(sum) } else { sum });
    }
    Ok(())
}
