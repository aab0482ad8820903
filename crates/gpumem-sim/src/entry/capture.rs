//! Stream capture.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, put, put_at, put_if_wanted, take};
use crate::entry::call::Call;
use crate::entry::{entries, handles};
use crate::stream::capture::CaptureInfo;
use core::ffi::c_uint;
use core::ptr::{null, null_mut};
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    cuuint64_t,
};

entries! {
    fn cuStreamBeginCapture_v2(call, stream: CUstream, mode: CUstreamCaptureMode) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.capture_begin(stream, thread, mode, None)
    }

    fn cuStreamBeginCaptureToGraph(
        call,
        stream: CUstream,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        _edges: *const CUgraphEdgeData,
        count: usize,
        mode: CUstreamCaptureMode,
    ) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(nodes, count)? };
        call.capture_begin(stream, thread, mode, Some((Handle::from_ptr(graph), after)))
    }

    fn cuStreamEndCapture(call, stream: CUstream, target: Target<CUgraph>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        put(target, null_mut())?;
        put(target, call.capture_end(stream, thread)?.to_ptr())
    }

    fn cuStreamIsCapturing(call, stream: CUstream, status: Target<CUstreamCaptureStatus>) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        put(status, call.capture_status(stream)?)
    }

    fn cuStreamGetCaptureInfo(
        call,
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut cuuint64_t,
    ) {
        // SAFETY: the caller has room for a value behind each pointer that is not null.
        unsafe { info(call, stream, (status, id, null_mut(), null_mut(), null_mut())) }
    }

    fn cuStreamGetCaptureInfo_v2(
        call,
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut cuuint64_t,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        count: *mut usize,
    ) {
        // SAFETY: the caller has room for a value behind each pointer that is not null.
        unsafe { info(call, stream, (status, id, graph, nodes, count)) }
    }

    fn cuStreamGetCaptureInfo_v3(
        call,
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut cuuint64_t,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        edges: Target<*const CUgraphEdgeData>,
        count: *mut usize,
    ) {
        // No edge has data.
        put_if_wanted(edges, null())?;
        // SAFETY: the caller has room for a value behind each pointer that is not null.
        unsafe { info(call, stream, (status, id, graph, nodes, count)) }
    }

    fn cuStreamUpdateCaptureDependencies(
        call,
        stream: CUstream,
        nodes: *mut CUgraphNode,
        count: usize,
        flags: c_uint,
    ) {
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(nodes, count)? };
        set_after(call, stream, after, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        call,
        stream: CUstream,
        nodes: *mut CUgraphNode,
        _edges: *const CUgraphEdgeData,
        count: usize,
        flags: c_uint,
    ) {
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(nodes, count)? };
        set_after(call, stream, after, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(call, mode: Target<CUstreamCaptureMode>) {
        let thread = call.thread;
        let wanted = take(mode)?;
        put(mode, call.capture_exchange_mode(thread, wanted)?)
    }
}

type InfoTargets =
    (*mut CUstreamCaptureStatus, *mut cuuint64_t, *mut CUgraph, *mut *const CUgraphNode, *mut usize);

/// Writes the state of a capture. Only the status is required; other null pointers are skipped.
///
/// # Safety
///
/// Each pointer is null or may be written.
unsafe fn info(
    call: &mut Call<'_>,
    stream: CUstream,
    (status, id, graph, nodes, count): InfoTargets,
) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    let found = call.capture_status(stream)?;
    // SAFETY: the caller guarantees that it is null or may be written.
    unsafe { put_at(status, found)? };
    let Some(CaptureInfo { id: found, graph: of, after, after_count }) = call.capture_info(stream)? else {
        return Ok(());
    };
    // SAFETY: the caller guarantees that each is null or may be written.
    unsafe {
        put_if_wanted(Target::new(id), found)?;
        put_if_wanted(Target::new(graph), of.to_ptr())?;
        put_if_wanted(Target::new(nodes), after)?;
        put_if_wanted(Target::new(count), after_count)
    }
}

fn set_after(call: &mut Call<'_>, stream: CUstream, nodes: Vec<Handle>, flags: c_uint) -> Answer<()> {
    let thread = call.thread;
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    match flags {
        0 | 1 => call.capture_set_after(stream, nodes, flags == 1),
        _ => Err(INVALID_VALUE),
    }
}
