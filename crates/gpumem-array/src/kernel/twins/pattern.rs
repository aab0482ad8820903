//! The twins of the fills with patterns in `fill.cu`.

use super::number::count;
use crate::kernel::parameters::PatternBytes;
use bytemuck::Pod;
use gpumem_sim::{KernelFault, Launch};

/// `T` is the store of the kernel, which its target is aligned to.
pub(crate) fn repeat<T: Pod>(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let out: u64 = launch.arg()?;
    let (size_bytes, period) = (count(launch)?, count(launch)?);
    let pattern: PatternBytes = launch.arg()?;
    let stores = launch.write::<T>(out, size_bytes / size_of::<T>())?;
    let bytes = launch.write::<u8>(out, size_bytes)?;
    let pattern: &[u8] = bytemuck::cast_slice(&pattern);
    let Some(pattern) = pattern.get(..period * size_of::<T>()).filter(|pattern| !pattern.is_empty()) else {
        return Err(KernelFault::new("the pattern is longer than its parameter"));
    };
    let done = stores.len() * size_of::<T>();
    for (out, word) in stores.iter().zip(pattern.chunks_exact(size_of::<T>()).cycle()) {
        out.set(bytemuck::pod_read_unaligned(word));
    }
    bytes[done..]
        .iter()
        .zip(pattern.iter().cycle().skip(done % pattern.len()))
        .for_each(|(out, byte)| out.set(*byte));
    Ok(())
}
