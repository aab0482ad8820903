//! Graphs: their nodes and edges, and the memory of their allocation nodes.

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, put, put_at, take, take_at};
use crate::entry::{entries, handles};
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdevice, CUgraph, CUgraphEdgeData, CUgraphMem_attribute, CUgraphNode, CUgraphNodeType, CUresult,
};

entries! {
    fn cuGraphCreate(call, target: Target<CUgraph>, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(target, call.graph_create()?.to_ptr())
    }

    fn cuGraphDestroy(call, graph: CUgraph) {
        call.graph_destroy(Handle::from_ptr(graph))
    }

    fn cuGraphDestroyNode(call, node: CUgraphNode) {
        call.graph_destroy_node(Handle::from_ptr(node))
    }

    fn cuGraphClone(call, target: Target<CUgraph>, original: CUgraph) {
        put(target, call.graph_clone(Handle::from_ptr(original))?.to_ptr())
    }

    fn cuGraphNodeFindInClone(call, target: Target<CUgraphNode>, node: CUgraphNode, clone: CUgraph) {
        put(target, call.node_in_clone(Handle::from_ptr(node), Handle::from_ptr(clone))?.to_ptr())
    }

    fn cuGraphGetNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_all(&call.graph_nodes(Handle::from_ptr(graph))?, nodes, count) }
    }

    fn cuGraphGetRootNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_all(&call.graph_roots(Handle::from_ptr(graph))?, nodes, count) }
    }

    fn cuGraphGetEdges(
        call,
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: *mut usize,
    ) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_edges(&call.graph_edges(Handle::from_ptr(graph))?, (from, to), null_mut(), count) }
    }

    fn cuGraphGetEdges_v2(
        call,
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_edges(&call.graph_edges(Handle::from_ptr(graph))?, (from, to), data, count) }
    }

    fn cuGraphAddDependencies(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) {
        // SAFETY: the caller has `count` nodes at each end.
        let edges = unsafe { edges(from, to, count)? };
        call.graph_connect(Handle::from_ptr(graph), &edges)
    }

    fn cuGraphAddDependencies_v2(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        _data: *const CUgraphEdgeData,
        count: usize,
    ) {
        // SAFETY: the caller has `count` nodes at each end.
        let edges = unsafe { edges(from, to, count)? };
        call.graph_connect(Handle::from_ptr(graph), &edges)
    }

    fn cuGraphRemoveDependencies(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) {
        // SAFETY: the caller has `count` nodes at each end.
        let edges = unsafe { edges(from, to, count)? };
        call.graph_disconnect(Handle::from_ptr(graph), &edges)
    }

    fn cuGraphRemoveDependencies_v2(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        _data: *const CUgraphEdgeData,
        count: usize,
    ) {
        // SAFETY: the caller has `count` nodes at each end.
        let edges = unsafe { edges(from, to, count)? };
        call.graph_disconnect(Handle::from_ptr(graph), &edges)
    }

    fn cuGraphNodeGetType(call, node: CUgraphNode, target: Target<CUgraphNodeType>) {
        put(target, call.node_type(Handle::from_ptr(node))?)
    }

    fn cuGraphNodeGetDependencies(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_all(&call.node_dependencies(Handle::from_ptr(node))?, nodes, count) }
    }

    fn cuGraphNodeGetDependencies_v2(
        call,
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_all_with_edges(&call.node_dependencies(Handle::from_ptr(node))?, nodes, data, count) }
    }

    fn cuGraphNodeGetDependentNodes(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_all(&call.node_dependents(Handle::from_ptr(node))?, nodes, count) }
    }

    fn cuGraphNodeGetDependentNodes_v2(
        call,
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        // SAFETY: the caller has room for as many as `count` says, and has `count` itself.
        unsafe { put_all_with_edges(&call.node_dependents(Handle::from_ptr(node))?, nodes, data, count) }
    }

    fn cuDeviceGraphMemTrim(call, device: CUdevice) {
        let device = call.device_index(device)?;
        call.graph_memory_trim(device);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(
        call,
        device: CUdevice,
        attribute: CUgraphMem_attribute,
        value: Target<c_void>,
    ) {
        let device = call.device_index(device)?;
        // SAFETY: every attribute is a number of 64 bits.
        put(unsafe { value.cast() }, call.graph_memory_attribute(device, attribute)?)
    }

    fn cuDeviceSetGraphMemAttribute(
        call,
        device: CUdevice,
        attribute: CUgraphMem_attribute,
        value: Target<c_void>,
    ) {
        let device = call.device_index(device)?;
        // SAFETY: every attribute is a number of 64 bits.
        let value = take(unsafe { value.cast() })?;
        call.graph_memory_set_attribute(device, attribute, value)
    }
}

/// Writes nodes: only their number if `nodes` is null, otherwise as many as there is room for.
///
/// # Safety
///
/// `count` is null or may be read and written; `nodes` is null or has room for that many.
unsafe fn put_all(found: &[Handle], nodes: *mut CUgraphNode, count: *mut usize) -> Answer<()> {
    // SAFETY: the caller guarantees `count`, and room for as many nodes as it says.
    unsafe {
        if nodes.is_null() {
            return put_at(count, found.len());
        }
        let room = take_at(count)?;
        for index in 0..room {
            put_at(nodes.add(index), found.get(index).map_or(null_mut(), |node| node.to_ptr()))?;
        }
        put_at(count, found.len().min(room))
    }
}

/// Writes edges, like [`put_all`].
///
/// # Safety
///
/// `count` is null or may be read and written; each other pointer is null or has room for as many as it says.
unsafe fn put_edges(
    found: &[(Handle, Handle)],
    (from, to): (*mut CUgraphNode, *mut CUgraphNode),
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer<()> {
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    let (sources, targets): (Vec<Handle>, Vec<Handle>) = found.iter().copied().unzip();
    // SAFETY: the caller guarantees room for as many as `count` says, which is written back before it is read again.
    unsafe {
        let room = if from.is_null() { 0 } else { take_at(count)? };
        put_plain_edges(data, found.len(), count)?;
        put_all(&sources, from, count)?;
        if !to.is_null() {
            put_at(count, room)?;
            put_all(&targets, to, count)?;
        }
        Ok(())
    }
}

/// Writes some nodes and the edges that lead to them.
///
/// # Safety
///
/// `count` is null or may be read and written; `nodes` and `data` are null or have room for as many as it says.
unsafe fn put_all_with_edges(
    found: &[Handle],
    nodes: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer<()> {
    // SAFETY: the caller guarantees room for as many as `count` says, which is written last.
    unsafe {
        put_plain_edges(data, found.len(), count)?;
        put_all(found, nodes, count)
    }
}

/// Edges without data: the only kind that the simulator supports.
///
/// # Safety
///
/// `count` is null or may be read, `data` is null or has room for that many.
unsafe fn put_plain_edges(data: *mut CUgraphEdgeData, found: usize, count: *mut usize) -> Answer<()> {
    if data.is_null() {
        return Ok(());
    }
    // SAFETY: not null, so the caller guarantees room for as many as `count` says.
    unsafe {
        for index in 0..take_at(count)?.min(found) {
            put_at(data.add(index), CUgraphEdgeData::default())?;
        }
    }
    Ok(())
}

/// # Safety
///
/// Each pointer is null or points to that many nodes.
unsafe fn edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Answer<Vec<(Handle, Handle)>> {
    // SAFETY: the caller guarantees of each that it is null or points to `count` nodes.
    unsafe { Ok(handles(from, count)?.into_iter().zip(handles(to, count)?).collect()) }
}
