//! Occupancy.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::base::thread::Inside;
use crate::entry::argument::{Target, put};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::machine::device::occupancy::block_sizes;
use core::ffi::{c_int, c_uint};
use gpumem_sys::Table;
use gpumem_sys::types::{CUfunction, CUoccupancy_flags, CUoccupancyB2DSize, CUresult};

entries! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        call,
        blocks: Target<c_int>,
        function: CUfunction,
        block_threads: c_int,
        shared_bytes: usize,
    ) {
        let function = launchable(call, function)?;
        let found = call.occupancy(function, block_threads, shared_bytes as u64)?;
        put(blocks, found as c_int)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        call,
        blocks: Target<c_int>,
        function: CUfunction,
        block_threads: c_int,
        shared_bytes: usize,
        flags: c_uint,
    ) {
        let function = launchable(call, function)?;
        check_flags(flags)?;
        let found = call.occupancy(function, block_threads, shared_bytes as u64)?;
        put(blocks, found as c_int)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        call,
        grid_blocks: Target<c_int>,
        block_threads: Target<c_int>,
        function: CUfunction,
        shared_of_block: CUoccupancyB2DSize,
        shared_bytes: usize,
        limit: c_int,
    ) {
        // SAFETY: the function is null or accepts any block size.
        let found = unsafe { best_block(call, function, (shared_of_block, shared_bytes), limit)? };
        put(grid_blocks, found.0)?;
        put(block_threads, found.1)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        call,
        grid_blocks: Target<c_int>,
        block_threads: Target<c_int>,
        function: CUfunction,
        shared_of_block: CUoccupancyB2DSize,
        shared_bytes: usize,
        limit: c_int,
        flags: c_uint,
    ) {
        check_flags(flags)?;
        // SAFETY: the function is null or accepts any block size.
        let found = unsafe { best_block(call, function, (shared_of_block, shared_bytes), limit)? };
        put(grid_blocks, found.0)?;
        put(block_threads, found.1)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        call,
        shared_bytes: Target<usize>,
        function: CUfunction,
        blocks: c_int,
        block_threads: c_int,
    ) {
        let function = launchable(call, function)?;
        let found = call.shared_for_blocks(function, blocks, block_threads)?;
        put(shared_bytes, found as usize)
    }
}

/// The grid and block with the highest occupancy.
///
/// # Safety
///
/// The function, if there is one, accepts any block size.
unsafe fn best_block(
    call: &mut Call<'_>,
    function: CUfunction,
    (shared_of_block, shared_bytes): (CUoccupancyB2DSize, usize),
    limit: c_int,
) -> Answer<(c_int, c_int)> {
    let function = launchable(call, function)?;
    // The program's function must not call the driver, which is locked.
    let _inside = Inside::enter();
    let shared = |threads| match shared_of_block {
        // SAFETY: the caller guarantees that the function accepts any block size.
        Some(shared_of_block) => unsafe { shared_of_block(threads) },
        None => shared_bytes,
    };
    let sizes: Vec<_> = block_sizes(limit).map(|threads| (threads, shared(threads) as u64)).collect();
    call.best_block(function, &sizes)
}

/// A function, or a kernel of a library in the current context.
fn launchable(call: &mut Call<'_>, function: CUfunction) -> Answer<Handle> {
    let context = call.context(call.thread)?;
    call.launchable(Handle::from_ptr(function), |_| Ok(context))
}

fn check_flags(flags: c_uint) -> Answer<()> {
    let known = CUoccupancy_flags::CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE.0;
    if flags & !known == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}
