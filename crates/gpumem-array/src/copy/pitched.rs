//! The driver's 2D and 3D copies of rows at a pitch.

use crate::layout::plan::Pitched;
use core::ptr::null_mut;
use gpumem_pool::sys::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype, CUstream};
use gpumem_pool::sys::{Driver, DriverError};

#[derive(Clone, Copy, Debug)]
pub(crate) enum CopySide {
    /// Memory of a pool, of any kind.
    Pool(u64),
    /// Memory of the host program.
    Host(usize),
}

impl CopySide {
    fn kind(self) -> CUmemorytype {
        match self {
            // The driver detects the kind of memory.
            Self::Pool(_) => CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            Self::Host(_) => CUmemorytype::CU_MEMORYTYPE_HOST,
        }
    }

    fn device(self) -> u64 {
        if let Self::Pool(address) = self { address } else { 0 }
    }

    fn host(self) -> usize {
        if let Self::Host(address) = self { address } else { 0 }
    }
}

/// Queues the copy in one call.
///
/// # Safety
///
/// - The stream is alive and its context current.
/// - The rows lie in live memory on both sides, from the given address on, until the copy is complete.
/// - The stream is ordered behind the earlier uses of both sides.
pub(crate) unsafe fn queue(
    driver: &Driver,
    stream: CUstream,
    [to, from]: [CopySide; 2],
    pitched: &Pitched,
) -> Result<(), DriverError> {
    let source_host = core::ptr::with_exposed_provenance(from.host());
    let target_host = core::ptr::with_exposed_provenance_mut(to.host());
    if pitched.depth == 1 {
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: from.kind(),
            srcHost: source_host,
            srcDevice: from.device(),
            srcArray: null_mut(),
            srcPitch: pitched.from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: to.kind(),
            dstHost: target_host,
            dstDevice: to.device(),
            dstArray: null_mut(),
            dstPitch: pitched.to_pitch,
            WidthInBytes: pitched.width,
            Height: pitched.height,
        };
        // SAFETY: the caller's promise; the driver reads the description during the call.
        return unsafe { driver.cuMemcpy2DAsync_v2(&copy, stream) };
    }
    let copy = CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: from.kind(),
        srcHost: source_host,
        srcDevice: from.device(),
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: pitched.from_pitch,
        srcHeight: pitched.from_height,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: to.kind(),
        dstHost: target_host,
        dstDevice: to.device(),
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: pitched.to_pitch,
        dstHeight: pitched.to_height,
        WidthInBytes: pitched.width,
        Height: pitched.height,
        Depth: pitched.depth,
    };
    // SAFETY: the caller has the rows on both sides; the driver reads the description during the call.
    unsafe { driver.cuMemcpy3DAsync_v2(&copy, stream) }
}
