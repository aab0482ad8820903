//! Copies and memsets.

use crate::base::codes::{Answer, INVALID_CONTEXT};
use crate::base::handle::Handle;
use crate::entry::argument::{Source, take};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::machine::stream::copy::Direction;
use crate::stream::operation::Fill;
use core::ffi::{c_uchar, c_uint, c_ushort, c_void};
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUresult, CUstream};

entries! {
    fn cuMemcpy(call, target: CUdeviceptr, source: CUdeviceptr, size_bytes: usize) {
        copy(call, null_mut(), (target, source, size_bytes), Direction::Any, true)
    }

    fn cuMemcpyAsync(
        call,
        target: CUdeviceptr,
        source: CUdeviceptr,
        size_bytes: usize,
        stream: CUstream,
    ) {
        copy(call, stream, (target, source, size_bytes), Direction::Any, false)
    }

    fn cuMemcpyHtoD_v2(call, target: CUdeviceptr, source: *const c_void, size_bytes: usize) {
        let source = source.expose_provenance() as u64;
        copy(call, null_mut(), (target, source, size_bytes), Direction::HostToDevice, true)
    }

    fn cuMemcpyHtoDAsync_v2(
        call,
        target: CUdeviceptr,
        source: *const c_void,
        size_bytes: usize,
        stream: CUstream,
    ) {
        let source = source.expose_provenance() as u64;
        copy(call, stream, (target, source, size_bytes), Direction::HostToDevice, false)
    }

    fn cuMemcpyDtoH_v2(call, target: *mut c_void, source: CUdeviceptr, size_bytes: usize) {
        let target = target.expose_provenance() as u64;
        copy(call, null_mut(), (target, source, size_bytes), Direction::DeviceToHost, true)
    }

    fn cuMemcpyDtoHAsync_v2(
        call,
        target: *mut c_void,
        source: CUdeviceptr,
        size_bytes: usize,
        stream: CUstream,
    ) {
        let target = target.expose_provenance() as u64;
        copy(call, stream, (target, source, size_bytes), Direction::DeviceToHost, false)
    }

    fn cuMemcpyDtoD_v2(call, target: CUdeviceptr, source: CUdeviceptr, size_bytes: usize) {
        copy(call, null_mut(), (target, source, size_bytes), Direction::DeviceToDevice, true)
    }

    fn cuMemcpyDtoDAsync_v2(
        call,
        target: CUdeviceptr,
        source: CUdeviceptr,
        size_bytes: usize,
        stream: CUstream,
    ) {
        copy(call, stream, (target, source, size_bytes), Direction::DeviceToDevice, false)
    }

    fn cuMemcpyPeer(
        call,
        target: CUdeviceptr,
        target_context: CUcontext,
        source: CUdeviceptr,
        source_context: CUcontext,
        size_bytes: usize,
    ) {
        check_contexts(call, [target_context, source_context])?;
        copy(call, null_mut(), (target, source, size_bytes), Direction::Peers, true)
    }

    fn cuMemcpyPeerAsync(
        call,
        target: CUdeviceptr,
        target_context: CUcontext,
        source: CUdeviceptr,
        source_context: CUcontext,
        size_bytes: usize,
        stream: CUstream,
    ) {
        check_contexts(call, [target_context, source_context])?;
        copy(call, stream, (target, source, size_bytes), Direction::Peers, false)
    }

    fn cuMemcpy2D_v2(call, copy: Source<CUDA_MEMCPY2D>) {
        copy_2d(call, null_mut(), take(copy)?, true)
    }

    fn cuMemcpy2DUnaligned_v2(call, copy: Source<CUDA_MEMCPY2D>) {
        copy_2d(call, null_mut(), take(copy)?, true)
    }

    fn cuMemcpy2DAsync_v2(call, copy: Source<CUDA_MEMCPY2D>, stream: CUstream) {
        copy_2d(call, stream, take(copy)?, false)
    }

    fn cuMemsetD8_v2(call, target: CUdeviceptr, value: c_uchar, count: usize) {
        fill(call, null_mut(), row(target, value, 1, count), true)
    }

    fn cuMemsetD16_v2(call, target: CUdeviceptr, value: c_ushort, count: usize) {
        fill(call, null_mut(), row(target, value, 2, count), true)
    }

    fn cuMemsetD32_v2(call, target: CUdeviceptr, value: c_uint, count: usize) {
        fill(call, null_mut(), row(target, value, 4, count), true)
    }

    fn cuMemsetD8Async(call, target: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(call, stream, row(target, value, 1, count), false)
    }

    fn cuMemsetD16Async(call, target: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(call, stream, row(target, value, 2, count), false)
    }

    fn cuMemsetD32Async(call, target: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(call, stream, row(target, value, 4, count), false)
    }

    fn cuMemsetD2D8_v2(
        call,
        target: CUdeviceptr,
        pitch: usize,
        value: c_uchar,
        width: usize,
        height: usize,
    ) {
        fill(call, null_mut(), rows(row(target, value, 1, width), pitch, height), true)
    }

    fn cuMemsetD2D16_v2(
        call,
        target: CUdeviceptr,
        pitch: usize,
        value: c_ushort,
        width: usize,
        height: usize,
    ) {
        fill(call, null_mut(), rows(row(target, value, 2, width), pitch, height), true)
    }

    fn cuMemsetD2D32_v2(
        call,
        target: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
    ) {
        fill(call, null_mut(), rows(row(target, value, 4, width), pitch, height), true)
    }

    fn cuMemsetD2D8Async(
        call,
        target: CUdeviceptr,
        pitch: usize,
        value: c_uchar,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(call, stream, rows(row(target, value, 1, width), pitch, height), false)
    }

    fn cuMemsetD2D16Async(
        call,
        target: CUdeviceptr,
        pitch: usize,
        value: c_ushort,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(call, stream, rows(row(target, value, 2, width), pitch, height), false)
    }

    fn cuMemsetD2D32Async(
        call,
        target: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(call, stream, rows(row(target, value, 4, width), pitch, height), false)
    }
}

fn copy(
    call: &mut Call<'_>,
    stream: CUstream,
    (target, source, size_bytes): (u64, u64, usize),
    direction: Direction,
    is_blocking: bool,
) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    let point = call.copy(stream, (target, source, size_bytes as u64), direction, is_blocking)?;
    call.wait_for(point)
}

fn copy_2d(call: &mut Call<'_>, stream: CUstream, copy: CUDA_MEMCPY2D, is_blocking: bool) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    let point = call.copy_2d(stream, &copy, is_blocking)?;
    call.wait_for(point)
}

fn fill(call: &mut Call<'_>, stream: CUstream, fill: Fill, is_blocking: bool) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    call.make_room(stream)?;
    let point = call.fill(stream, fill, is_blocking)?;
    call.wait_for(point)
}

fn row(target: CUdeviceptr, pattern: impl Into<u32>, pattern_bytes: u64, width: usize) -> Fill {
    Fill { target, pitch: 0, pattern: pattern.into(), pattern_bytes, width: width as u64, height: 1 }
}

fn rows(row: Fill, pitch: usize, height: usize) -> Fill {
    Fill { pitch: pitch as u64, height: height as u64, ..row }
}

fn check_contexts(call: &mut Call<'_>, contexts: [CUcontext; 2]) -> Answer<()> {
    for context in contexts {
        call.contexts.get(Handle::from_ptr(context)).ok_or(INVALID_CONTEXT)?;
    }
    Ok(())
}
