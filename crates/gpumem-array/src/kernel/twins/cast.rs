//! `cast.cu`.

use super::number::count;
use crate::element::{Cast, Element};
use bytemuck::Pod;
use gpumem_sim::{KernelFault, Launch};

pub(crate) fn cast<T: Pod + Cast<U>, U: Pod + Element>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (out, from): (u64, u64) = (launch.arg()?, launch.arg()?);
    let n = count(launch)?;
    let (out, from) = (launch.write::<U>(out, n)?, launch.read::<T>(from, n)?);
    out.iter().zip(from).for_each(|(out, from)| out.set(from.get().cast()));
    Ok(())
}
