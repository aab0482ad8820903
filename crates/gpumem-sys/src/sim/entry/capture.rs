//! Stream capture.

use super::{entries, handles, put};
use crate::sim::call::Call;
use crate::sim::capture::CaptureInfo;
use crate::sim::codes::{Answer, INVALID_VALUE};
use crate::sim::handle::Handle;
use crate::table::Table;
use crate::types::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    cuuint64_t,
};
use core::ffi::c_uint;
use core::ptr::{null, null_mut};

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
        call.capture_begin(stream, thread, mode, Some((Handle::from_ptr(graph), handles(nodes, count)?)))
    }

    fn cuStreamEndCapture(call, stream: CUstream, target: *mut CUgraph) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        put(target, null_mut())?;
        put(target, call.capture_end(stream, thread)?.to_ptr())
    }

    fn cuStreamIsCapturing(call, stream: CUstream, status: *mut CUstreamCaptureStatus) {
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
        info(call, stream, (status, id, null_mut(), null_mut(), null_mut()))
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
        info(call, stream, (status, id, graph, nodes, count))
    }

    fn cuStreamGetCaptureInfo_v3(
        call,
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut cuuint64_t,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) {
        // No edge carries data here.
        put_if_wanted(edges, null())?;
        info(call, stream, (status, id, graph, nodes, count))
    }

    fn cuStreamUpdateCaptureDependencies(
        call,
        stream: CUstream,
        nodes: *mut CUgraphNode,
        count: usize,
        flags: c_uint,
    ) {
        set_after(call, stream, handles(nodes, count)?, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        call,
        stream: CUstream,
        nodes: *mut CUgraphNode,
        _edges: *const CUgraphEdgeData,
        count: usize,
        flags: c_uint,
    ) {
        set_after(call, stream, handles(nodes, count)?, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(call, mode: *mut CUstreamCaptureMode) {
        let thread = call.thread;
        let wanted = super::take(mode)?;
        put(mode, call.capture_exchange_mode(thread, wanted)?)
    }
}

type InfoTargets =
    (*mut CUstreamCaptureStatus, *mut cuuint64_t, *mut CUgraph, *mut *const CUgraphNode, *mut usize);

/// Writes what is known about the capture on a stream; all but the status only where it is wanted.
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
    // SAFETY: the caller's promise.
    unsafe { put(status, found)? };
    let Some(CaptureInfo { id: found, graph: of, after, after_count }) = call.capture_info(stream)? else {
        return Ok(());
    };
    // SAFETY: the caller's promise.
    unsafe {
        put_if_wanted(id, found)?;
        put_if_wanted(graph, of.to_ptr())?;
        put_if_wanted(nodes, after)?;
        put_if_wanted(count, after_count)
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

/// # Safety
///
/// The pointer is null or may be written.
unsafe fn put_if_wanted<T>(target: *mut T, value: T) -> Answer<()> {
    // SAFETY: the caller's promise.
    if target.is_null() { Ok(()) } else { unsafe { put(target, value) } }
}
