//! `reduce.cu`: each block of the grid sums a stretch of the input.

use super::number::{TwinNumber, count};
use gpumem_sim::{KernelFault, Launch};
use std::cell::Cell;

pub(crate) fn sum<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (out, a): (u64, u64) = (launch.arg()?, launch.arg()?);
    let n = count(launch)?;
    let a = launch.read::<T>(a, n)?;
    blocks(launch, out, n, |stretch| plain_sum(&a[stretch]))
}

pub(crate) fn dot<T: TwinNumber>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (out, a, b): (u64, u64, u64) = (launch.arg()?, launch.arg()?, launch.arg()?);
    let n = count(launch)?;
    let (a, b) = (launch.read::<T>(a, n)?, launch.read::<T>(b, n)?);
    blocks(launch, out, n, |stretch| product_sum(&a[stretch.clone()], &b[stretch]))
}

/// The sum of the products of two slices of one length.
pub(super) fn product_sum<T: TwinNumber>(a: &[Cell<T>], b: &[Cell<T>]) -> T {
    let mut sums = [T::ZERO; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] = sums[lane].plus(a[lane].get().times(b[lane].get()));
        }
    }
    rest.map(|(a, b)| a.get().times(b.get())).chain(sums).fold(T::ZERO, T::plus)
}

/// The sum of a slice.
pub(super) fn plain_sum<T: TwinNumber>(cells: &[Cell<T>]) -> T {
    let mut sums = [T::ZERO; LANES];
    let chunks = cells.chunks_exact(LANES);
    let rest = chunks.remainder().iter();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] = sums[lane].plus(chunk[lane].get());
        }
    }
    rest.map(Cell::get).chain(sums).fold(T::ZERO, T::plus)
}

fn blocks<T: TwinNumber>(
    launch: &Launch<'_>,
    out: u64,
    n: usize,
    sum: impl Fn(core::ops::Range<usize>) -> T,
) -> Result<(), KernelFault> {
    let block_count = launch.grid()[0] as usize;
    let stretch = n.div_ceil(block_count);
    for (block, out) in launch.write::<T>(out, block_count)?.iter().enumerate() {
        out.set(sum((block * stretch).min(n)..((block + 1) * stretch).min(n)));
    }
    Ok(())
}

const LANES: usize = 16;
