//! The number of blocks of a kernel that a multiprocessor can hold: an H200's limits, for a kernel with the registers stated in
//! `module.rs`.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::device::module::{REGISTERS_PER_THREAD, Shape};
use crate::device::{BLOCK_THREADS_MAX, MULTIPROCESSORS, SHARED_BYTES_OPTIN};
use crate::machine::Machine;
use gpumem_sys::types::CUresult;

impl Machine {
    /// The number of blocks with this size and dynamic shared memory that a multiprocessor holds.
    pub(crate) fn occupancy(&self, function: Handle, block_threads: i32, shared_bytes: u64) -> Answer<u32> {
        let function = self.function(function)?;
        let shared_bytes_max = function.shared_bytes_max as u64;
        let threads = u64::try_from(block_threads).map_err(|_| INVALID_VALUE)?;
        if threads == 0 {
            return Err(INVALID_VALUE);
        }
        if threads > BLOCK_THREADS_MAX || shared_bytes > shared_bytes_max {
            return Ok(0);
        }
        let warps = threads.div_ceil(WARP_THREADS);
        let by_registers = REGISTERS / (REGISTERS_PER_THREAD as u64 * WARP_THREADS * warps);
        let declared_bytes = function.body.entry().shared_bytes();
        let by_shared = SHARED_BYTES_TOTAL / (declared_bytes + shared_bytes + SHARED_BYTES_RESERVED);
        Ok((WARPS_MAX / warps).min(by_registers).min(by_shared).min(BLOCKS_MAX) as u32)
    }

    /// Refuses a cooperative launch of more blocks than the device holds, as its blocks may wait for each other.
    pub(crate) fn check_cooperative(&self, function: Handle, shape: &Shape) -> Answer<()> {
        let found = self.function(function)?;
        shape.check(found.body.entry(), found.shared_bytes_max)?;
        let count = |parts: [u32; 3]| parts.into_iter().map(u64::from).fold(1, u64::saturating_mul);
        let threads = i32::try_from(count(shape.block)).map_err(|_| INVALID_VALUE)?;
        let resident = self.occupancy(function, threads, shape.shared_bytes.into())?;
        if count(shape.grid) > u64::from(resident) * MULTIPROCESSORS as u64 {
            return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }

    /// The block size with the most active threads, the largest of several, and the number of such blocks that fills the device.
    /// `sizes` are the allowed sizes in warps, each with its dynamic shared memory.
    pub(crate) fn best_block(&self, function: Handle, sizes: &[(i32, u64)]) -> Answer<(i32, i32)> {
        let mut best = (0, 0, 0);
        for &(threads, shared_bytes) in sizes {
            let blocks = self.occupancy(function, threads, shared_bytes)? as i32;
            if (blocks * threads, threads) > (best.0, best.1) {
                best = (blocks * threads, threads, blocks);
            }
        }
        let (_, threads, blocks) = best;
        Ok((blocks * MULTIPROCESSORS, threads))
    }

    /// The dynamic shared memory available to each of this number of blocks.
    pub(crate) fn shared_for_blocks(&self, function: Handle, blocks: i32, block_threads: i32) -> Answer<u64> {
        if self.occupancy(function, block_threads, 0)? < u32::try_from(blocks).map_err(|_| INVALID_VALUE)? {
            return Err(INVALID_VALUE);
        }
        let each_bytes = SHARED_BYTES_TOTAL.checked_div(blocks as u64).ok_or(INVALID_VALUE)?;
        Ok(each_bytes.saturating_sub(SHARED_BYTES_RESERVED).min(SHARED_BYTES_OPTIN as u64))
    }
}

/// The block sizes up to a limit: whole warps, and the limit itself.
pub(crate) fn block_sizes(limit: i32) -> impl Iterator<Item = i32> {
    let max = if limit <= 0 { BLOCK_THREADS_MAX as i32 } else { limit.min(BLOCK_THREADS_MAX as i32) };
    let is_partial = !(max as u64).is_multiple_of(WARP_THREADS);
    (1..=max / WARP_THREADS as i32).map(|warps| warps * WARP_THREADS as i32).chain(is_partial.then_some(max))
}

const WARP_THREADS: u64 = 32;
const WARPS_MAX: u64 = 64;
const BLOCKS_MAX: u64 = 32;
const REGISTERS: u64 = 65_536;
const SHARED_BYTES_TOTAL: u64 = 228 << 10;
/// The shared memory of each block that the system uses.
const SHARED_BYTES_RESERVED: u64 = 1 << 10;
