//! `gather.cu`.

use super::number::count;
use bytemuck::Pod;
use gpumem_sim::{KernelFault, Launch};

pub(crate) fn gather<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (out, from, index): (u64, u64, u64) = (launch.arg()?, launch.arg()?, launch.arg()?);
    let (rows, len, width, outer) = (count(launch)?, count(launch)?, count(launch)?, count(launch)?);
    let index = launch.read::<u64>(index, rows)?;
    let (out, from) =
        (launch.write::<T>(out, outer * rows * width)?, launch.read::<T>(from, outer * len * width)?);
    for (position, out) in out.chunks_exact(width).enumerate() {
        let (group, row) = (position / rows, position % rows);
        let from = &from[(group * len + index[row].get() as usize) * width..][..width];
        out.iter().zip(from).for_each(|(out, from)| out.set(from.get()));
    }
    Ok(())
}
