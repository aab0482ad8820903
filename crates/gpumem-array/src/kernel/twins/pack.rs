//! `pack.cu`.

use super::number::count;
use gpumem_sim::{KernelFault, Launch};

pub(crate) fn unpack(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let buffer: u64 = launch.arg()?;
    let count = count(launch)?;
    for part in launch.read::<[u64; 3]>(buffer, count)? {
        let [to, start, size_bytes] = part.get();
        let from = launch.read::<u8>(buffer + start, size_bytes as usize)?;
        let to = launch.write::<u8>(to, size_bytes as usize)?;
        to.iter().zip(from).for_each(|(to, from)| to.set(from.get()));
    }
    Ok(())
}
