//! Sums through memory that rank 0 exports to the other processes: a row for each rank. Each rank writes its row, rank 0 adds them up
//! and writes the total into its own row, and all others copy it from there. A byte in the socket says that a row is complete: an event
//! cannot, because the processes have a driver each.

use super::Lengths;
use super::rendezvous::{barrier, tell, wait};
use anyhow::{Context, Result};
use gpumem_adapt::array::ndarray::{Ix1, Ix2, s};
use gpumem_adapt::array::pool::{ImportedBlock, Pool};
use gpumem_adapt::array::{Gpu, GpuArray, Numeric};
use std::os::unix::net::UnixStream;

/// The memory, and the sockets to the other ranks: on rank 0 to all of them, otherwise to rank 0.
pub(crate) struct SharedBlocks {
    gpu: Gpu,
    sockets: Vec<UnixStream>,
    side: Side,
}

pub(crate) enum Side {
    Owner(Box<Owned>),
    Guest { rank: usize, gradients: ImportedBlock, losses: ImportedBlock },
}

/// The memory, on rank 0.
pub(crate) struct Owned {
    gradients: GpuArray<f32, Ix2>,
    losses: GpuArray<f64, Ix2>,
}

/// The rows for elements of one type.
pub(crate) enum Rows<'a, T> {
    Owned(&'a mut GpuArray<T, Ix2>),
    Imported { rank: usize, block: &'a ImportedBlock },
}

/// Elements that have rows.
pub(crate) trait Slots: Sized {
    fn rows(side: &mut Side) -> Rows<'_, Self>;
}

impl Slots for f32 {
    fn rows(side: &mut Side) -> Rows<'_, Self> {
        match side {
            Side::Owner(owned) => Rows::Owned(&mut owned.gradients),
            Side::Guest { rank, gradients, .. } => Rows::Imported { rank: *rank, block: gradients },
        }
    }
}

impl Slots for f64 {
    fn rows(side: &mut Side) -> Rows<'_, Self> {
        match side {
            Side::Owner(owned) => Rows::Owned(&mut owned.losses),
            Side::Guest { rank, losses, .. } => Rows::Imported { rank: *rank, block: losses },
        }
    }
}

impl SharedBlocks {
    pub(crate) fn new(
        gpu: &Gpu,
        rank: usize,
        count: usize,
        lengths: Lengths,
        sockets: Vec<UnixStream>,
    ) -> Result<Self> {
        let device = gpu.device();
        let side = if rank == 0 {
            let pool = Pool::builder(device).conf("backend:caching, exportable:true")?.build()?;
            Side::Owner(Box::new(Owned {
                gradients: exported(gpu, &pool, (count, lengths.gradient), &sockets)?,
                losses: exported(gpu, &pool, (count, lengths.losses), &sockets)?,
            }))
        } else {
            let receive =
                || ImportedBlock::receive(device, &sockets[0]).context("receiving a block of rank 0");
            Side::Guest { rank, gradients: receive()?, losses: receive()? }
        };
        Ok(Self { gpu: gpu.clone(), sockets, side })
    }

    /// Replaces arrays by their sums over all ranks.
    pub(crate) fn sum<T: Slots + Numeric>(&mut self, arrays: &mut [&mut GpuArray<T, Ix1>]) -> Result<()> {
        let Self { gpu, sockets, side } = self;
        match T::rows(side) {
            Rows::Owned(rows) => {
                for (rank, socket) in (1..).zip(sockets.iter_mut()) {
                    wait(socket)?;
                    let mut start = 0;
                    for array in &mut *arrays {
                        let end = start + array.len();
                        array.try_add_assign(&rows.slice(s![rank, start..end])?)?;
                        start = end;
                    }
                }
                let mut start = 0;
                for array in &mut *arrays {
                    let end = start + array.len();
                    rows.slice_mut(s![0, start..end])?.assign(&**array)?;
                    start = end;
                }
                gpu.synchronize()?;
                sockets.iter_mut().try_for_each(tell)
            }
            Rows::Imported { rank, block } => {
                let row_bytes: usize = arrays.iter().map(|array| array.len() * size_of::<T>()).sum();
                let row = block.address() + (rank * row_bytes) as u64;
                copy(gpu, arrays, row, Direction::ToRow)?;
                // Also the copies from rank 0's row in the round before are complete then.
                gpu.synchronize()?;
                tell(&mut sockets[0])?;
                wait(&mut sockets[0])?;
                copy(gpu, arrays, block.address(), Direction::FromRow)
            }
        }
    }

    /// Waits until all ranks have copied the last sums.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.gpu.synchronize()?;
        barrier(&mut self.sockets, matches!(self.side, Side::Owner(_)))
    }
}

/// An array whose memory the other processes receive.
fn exported<T: Numeric>(
    gpu: &Gpu,
    pool: &Pool,
    shape: (usize, usize),
    sockets: &[UnixStream],
) -> Result<GpuArray<T, Ix2>> {
    let block = pool.alloc_zeroed((shape.0 * shape.1 * size_of::<T>()) as u64, gpu.stream())?;
    // Before another process writes its row.
    gpu.synchronize()?;
    for socket in sockets {
        block.send(socket)?;
    }
    let array = GpuArray::from_block(gpu, block, shape).map_err(|rejected| rejected.into_parts().0)?;
    // SAFETY: the block was zeroed, and zero is a number.
    Ok(unsafe { array.assume_init() })
}

#[derive(Clone, Copy)]
enum Direction {
    ToRow,
    FromRow,
}

/// Copies arrays to a row of the imported memory, one behind the other, or from there.
fn copy<T: Numeric>(
    gpu: &Gpu,
    arrays: &mut [&mut GpuArray<T, Ix1>],
    mut row: u64,
    direction: Direction,
) -> Result<()> {
    for array in arrays {
        let size_bytes = array.len() * size_of::<T>();
        let guard = array.write_on(gpu)?;
        let (to, from) = match direction {
            Direction::ToRow => (row, guard.address()),
            Direction::FromRow => (guard.address(), row),
        };
        let _bound = gpu.device().bind()?;
        // SAFETY: the guard orders the stream behind the uses of the array, which has these bytes. So has the row, which the block
        // keeps mapped. The bytes in the sockets order the accesses of the processes.
        unsafe { gpu.device().driver().cuMemcpyDtoDAsync_v2(to, from, size_bytes, guard.stream().raw())? };
        row += size_bytes as u64;
    }
    Ok(())
}
