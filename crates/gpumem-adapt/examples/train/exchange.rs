//! Sums over the ranks: NCCL, or blocks that the devices copy from each other. The user chooses, and the program prints the choice.

mod nccl;
#[cfg(target_os = "linux")]
mod rendezvous;
#[cfg(target_os = "linux")]
mod shared;

pub(crate) use nccl::set_environment;

use crate::options::{Options, Ranks};
use anyhow::Result;
use gpumem_adapt::array::ndarray::Ix1;
use gpumem_adapt::array::{Gpu, GpuArray, Numeric};
use std::fmt;

/// How the user wants it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Way {
    /// By NVIDIA's library, between GPUs only.
    Nccl,
    /// By copies between the devices of one process, or through a block that rank 0 exports to the other processes.
    Blocks,
}

/// The numbers of elements that are summed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    pub(crate) gradient: usize,
    pub(crate) losses: usize,
}

/// How the ranks sum.
pub(crate) enum Exchange {
    /// There is one rank.
    Alone,
    /// All ranks are in this process.
    Copies,
    Nccl(nccl::Communicators),
    /// There is one rank in each process.
    #[cfg(target_os = "linux")]
    Shared(shared::SharedBlocks),
}

/// Elements that are summed over the ranks.
#[cfg(target_os = "linux")]
pub(crate) trait Summed: Numeric + nccl::DataType + shared::Slots {}
#[cfg(target_os = "linux")]
impl<T: Numeric + nccl::DataType + shared::Slots> Summed for T {}
/// Elements that are summed over the ranks.
#[cfg(not(target_os = "linux"))]
pub(crate) trait Summed: Numeric + nccl::DataType {}
#[cfg(not(target_os = "linux"))]
impl<T: Numeric + nccl::DataType> Summed for T {}

impl Exchange {
    /// Connects the ranks. With several processes, returns once all of them are there.
    pub(crate) fn connect(options: &Options, ranks: &Ranks, gpus: &[Gpu], lengths: Lengths) -> Result<Self> {
        let Some(way) = options.exchange() else { return Ok(Self::Alone) };
        if let Some(rank) = ranks.own {
            return Self::of_processes(options, way, rank, ranks.count, &gpus[0], lengths);
        }
        Ok(match way {
            Way::Nccl => Self::Nccl(nccl::Communicators::in_one_process(gpus)?),
            Way::Blocks => Self::Copies,
        })
    }

    #[cfg(target_os = "linux")]
    fn of_processes(
        options: &Options,
        way: Way,
        rank: usize,
        count: usize,
        gpu: &Gpu,
        lengths: Lengths,
    ) -> Result<Self> {
        use anyhow::Context;
        if let Way::Nccl = way {
            nccl::check(gpu)?;
        }
        let path = options.rendezvous().context("--rank needs --rendezvous")?;
        let sockets = rendezvous::meet(path, rank, count, options.fingerprint())?;
        Ok(match way {
            Way::Nccl => Self::Nccl(nccl::Communicators::of_process(gpu, rank, count, sockets)?),
            Way::Blocks => Self::Shared(shared::SharedBlocks::new(gpu, rank, count, lengths, sockets)?),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn of_processes(_: &Options, _: Way, _: usize, _: usize, _: &Gpu, _: Lengths) -> Result<Self> {
        anyhow::bail!("--rank: processes meet on Linux only; leave it out for all devices in one process")
    }

    /// Replaces arrays by their sums over all ranks. Each rank of this process has the same number of arrays, as long as those of the
    /// other ranks.
    pub(crate) fn sum<T: Summed>(&mut self, ranks: &mut [Vec<&mut GpuArray<T, Ix1>>]) -> Result<()> {
        match self {
            Self::Alone => Ok(()),
            Self::Copies => sum_by_copies(ranks),
            Self::Nccl(communicators) => communicators.sum(ranks),
            #[cfg(target_os = "linux")]
            Self::Shared(blocks) => ranks.iter_mut().try_for_each(|arrays| blocks.sum(arrays)),
        }
    }

    /// Waits until no rank needs memory of this process.
    pub(crate) fn finish(self) -> Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Shared(blocks) => blocks.finish(),
            Self::Nccl(communicators) => communicators.finish(),
            Self::Alone | Self::Copies => Ok(()),
        }
    }
}

/// Sums on the first rank's device, in the order of the ranks, and copies the sums to the others.
fn sum_by_copies<T: Numeric>(ranks: &mut [Vec<&mut GpuArray<T, Ix1>>]) -> Result<()> {
    let Some((first, others)) = ranks.split_first_mut() else { return Ok(()) };
    for (index, total) in first.iter_mut().enumerate() {
        for arrays in others.iter() {
            let theirs = arrays[index].copy_to(total.gpu())?;
            total.try_add_assign(&theirs)?;
        }
        for arrays in others.iter_mut() {
            arrays[index].assign(&**total)?;
        }
    }
    Ok(())
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("none"),
            Self::Copies => f.write_str("blocks, copied between the devices of one process"),
            Self::Nccl(communicators) => communicators.fmt(f),
            #[cfg(target_os = "linux")]
            Self::Shared(_) => f.write_str("blocks, which rank 0 exports to the other processes"),
        }
    }
}
