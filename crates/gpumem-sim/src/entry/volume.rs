//! Copies of boxes, and of several ranges at once.

use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Source, Target, put_if_wanted, take, take_at};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::machine::stream::copy::Direction;
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUmemcpyAttributes, CUmemorytype, CUresult,
    CUstream,
};

entries! {
    fn cuMemcpy3D_v2(call, copy: Source<CUDA_MEMCPY3D>) {
        let copy = take(copy)?;
        copy_3d(call, null_mut(), &copy, Direction::of(&copy), true)
    }

    fn cuMemcpy3DAsync_v2(call, copy: Source<CUDA_MEMCPY3D>, stream: CUstream) {
        let copy = take(copy)?;
        copy_3d(call, stream, &copy, Direction::of(&copy), false)
    }

    fn cuMemcpy3DPeer(call, copy: Source<CUDA_MEMCPY3D_PEER>) {
        let copy = of_peers(call, &take(copy)?)?;
        copy_3d(call, null_mut(), &copy, between_contexts(&copy), true)
    }

    fn cuMemcpy3DPeerAsync(call, copy: Source<CUDA_MEMCPY3D_PEER>, stream: CUstream) {
        let copy = of_peers(call, &take(copy)?)?;
        copy_3d(call, stream, &copy, between_contexts(&copy), false)
    }

    fn cuMemcpyBatchAsync(
        call,
        targets: *mut CUdeviceptr,
        sources: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        attribute_starts: *mut usize,
        attribute_count: usize,
        failed: Target<usize>,
        stream: CUstream,
    ) {
        // Reports no particular copy until one fails.
        put_if_wanted(failed, usize::MAX)?;
        // SAFETY: there are `attribute_count` starts, or none.
        unsafe { check_attributes(attributes, attribute_starts, attribute_count, count)? };
        for index in 0..count {
            // SAFETY: each of the three lists has `count` elements, or is null.
            let copied = unsafe { copy_one(call, (targets, sources, sizes), index, stream) };
            if copied.is_err() {
                put_if_wanted(failed, index)?;
                return copied;
            }
        }
        Ok(())
    }

    fn cuMemcpyBatchAsync_v2(
        call,
        targets: *mut CUdeviceptr,
        sources: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        attribute_starts: *mut usize,
        attribute_count: usize,
        stream: CUstream,
    ) {
        // SAFETY: there are `attribute_count` starts, or none.
        unsafe { check_attributes(attributes, attribute_starts, attribute_count, count)? };
        // SAFETY: each of the three lists has `count` elements, or is null.
        (0..count).try_for_each(|index| unsafe { copy_one(call, (targets, sources, sizes), index, stream) })
    }
}

/// The direction of a copy that names the contexts of ends on devices.
fn between_contexts(copy: &CUDA_MEMCPY3D) -> Direction {
    match Direction::of(copy) {
        Direction::DeviceToDevice => Direction::Peers,
        other => other,
    }
}

fn copy_3d(
    call: &mut Call<'_>,
    stream: CUstream,
    copy: &CUDA_MEMCPY3D,
    direction: Direction,
    is_blocking: bool,
) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    let point = call.copy_3d(stream, copy, direction, is_blocking)?;
    call.wait_for(point)
}

/// The copy without its contexts, which follow from the addresses. The contexts must exist.
fn of_peers(call: &Call<'_>, copy: &CUDA_MEMCPY3D_PEER) -> Answer<CUDA_MEMCPY3D> {
    check_context(call, copy.srcMemoryType, copy.srcContext)?;
    check_context(call, copy.dstMemoryType, copy.dstContext)?;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcLOD: copy.srcLOD,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        reserved0: null_mut(),
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstLOD: copy.dstLOD,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        reserved1: null_mut(),
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
    })
}

fn check_context(call: &Call<'_>, kind: CUmemorytype, context: CUcontext) -> Answer<()> {
    let is_device = kind == CUmemorytype::CU_MEMORYTYPE_DEVICE;
    let is_known = call.contexts.get(Handle::from_ptr(context)).is_some();
    if is_device && !is_known { Err(INVALID_CONTEXT) } else { Ok(()) }
}

/// Checks that attributes are well formed. They have no other effect: they are guarantees about the sources, and pageable sources
/// are always read during the call.
///
/// # Safety
///
/// The starts are null, or as many as `attribute_count` says.
unsafe fn check_attributes(
    attributes: *mut CUmemcpyAttributes,
    starts: *mut usize,
    attribute_count: usize,
    count: usize,
) -> Answer<()> {
    if attributes.is_null() || !(1..=count).contains(&attribute_count) {
        return Err(INVALID_VALUE);
    }
    let mut before = None;
    for index in 0..attribute_count {
        // SAFETY: null, or the caller guarantees `attribute_count` of them.
        let start = unsafe { take_at(starts.wrapping_add(index))? };
        let is_next = before.map_or(start == 0, |before| before < start && start < count);
        if !is_next {
            return Err(INVALID_VALUE);
        }
        before = Some(start);
    }
    Ok(())
}

/// # Safety
///
/// The lists are null or longer than `index`.
unsafe fn copy_one(
    call: &mut Call<'_>,
    (targets, sources, sizes): (*mut CUdeviceptr, *mut CUdeviceptr, *mut usize),
    index: usize,
    stream: CUstream,
) -> Answer<()> {
    if targets.is_null() || sources.is_null() || sizes.is_null() || stream.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller guarantees that many elements.
    let (target, source, size_bytes) = unsafe {
        (
            take_at(targets.wrapping_add(index))?,
            take_at(sources.wrapping_add(index))?,
            take_at(sizes.wrapping_add(index))?,
        )
    };
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    let point = call.copy(stream, (target, source, size_bytes as u64), Direction::Any, false)?;
    call.wait_for(point)
}
