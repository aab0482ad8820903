//! Graphs: their nodes and edges, and the memory of their allocation nodes.

use super::{entries, handles, put, take};
use crate::sim::codes::{Answer, INVALID_VALUE};
use crate::sim::handle::Handle;
use crate::table::Table;
use crate::types::{
    CUdevice, CUgraph, CUgraphEdgeData, CUgraphMem_attribute, CUgraphNode, CUgraphNodeType, CUresult,
};
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;

entries! {
    fn cuGraphCreate(call, target: *mut CUgraph, flags: c_uint) {
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

    fn cuGraphClone(call, target: *mut CUgraph, original: CUgraph) {
        put(target, call.graph_clone(Handle::from_ptr(original))?.to_ptr())
    }

    fn cuGraphNodeFindInClone(call, target: *mut CUgraphNode, node: CUgraphNode, clone: CUgraph) {
        put(target, call.node_in_clone(Handle::from_ptr(node), Handle::from_ptr(clone))?.to_ptr())
    }

    fn cuGraphGetNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        put_all(&call.graph_nodes(Handle::from_ptr(graph))?, nodes, count)
    }

    fn cuGraphGetRootNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        put_all(&call.graph_roots(Handle::from_ptr(graph))?, nodes, count)
    }

    fn cuGraphGetEdges(
        call,
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: *mut usize,
    ) {
        put_edges(&call.graph_edges(Handle::from_ptr(graph))?, (from, to), null_mut(), count)
    }

    fn cuGraphGetEdges_v2(
        call,
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        put_edges(&call.graph_edges(Handle::from_ptr(graph))?, (from, to), data, count)
    }

    fn cuGraphAddDependencies(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) {
        call.graph_connect(Handle::from_ptr(graph), &edges(from, to, count)?)
    }

    fn cuGraphAddDependencies_v2(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        _data: *const CUgraphEdgeData,
        count: usize,
    ) {
        call.graph_connect(Handle::from_ptr(graph), &edges(from, to, count)?)
    }

    fn cuGraphRemoveDependencies(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) {
        call.graph_disconnect(Handle::from_ptr(graph), &edges(from, to, count)?)
    }

    fn cuGraphRemoveDependencies_v2(
        call,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        _data: *const CUgraphEdgeData,
        count: usize,
    ) {
        call.graph_disconnect(Handle::from_ptr(graph), &edges(from, to, count)?)
    }

    fn cuGraphNodeGetType(call, node: CUgraphNode, target: *mut CUgraphNodeType) {
        put(target, call.node_type(Handle::from_ptr(node))?)
    }

    fn cuGraphNodeGetDependencies(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        put_all(&call.node_dependencies(Handle::from_ptr(node))?, nodes, count)
    }

    fn cuGraphNodeGetDependencies_v2(
        call,
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        put_all_with_edges(&call.node_dependencies(Handle::from_ptr(node))?, nodes, data, count)
    }

    fn cuGraphNodeGetDependentNodes(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        put_all(&call.node_dependents(Handle::from_ptr(node))?, nodes, count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        call,
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        put_all_with_edges(&call.node_dependents(Handle::from_ptr(node))?, nodes, data, count)
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
        value: *mut c_void,
    ) {
        let device = call.device_index(device)?;
        put(value.cast(), call.graph_memory_attribute(device, attribute)?)
    }

    fn cuDeviceSetGraphMemAttribute(
        call,
        device: CUdevice,
        attribute: CUgraphMem_attribute,
        value: *mut c_void,
    ) {
        let device = call.device_index(device)?;
        call.graph_memory_set_attribute(device, attribute, take(value.cast())?)
    }
}

/// Writes some nodes: their number if there is nowhere for themselves, else as many as there is room for.
///
/// # Safety
///
/// `count` is null or may be read and written; `nodes` is null or has room for that many.
unsafe fn put_all(found: &[Handle], nodes: *mut CUgraphNode, count: *mut usize) -> Answer<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if nodes.is_null() {
            return put(count, found.len());
        }
        let room = take(count)?;
        for index in 0..room {
            put(nodes.add(index), found.get(index).map_or(null_mut(), |node| node.to_ptr()))?;
        }
        put(count, found.len().min(room))
    }
}

/// As [`put_all`], for edges.
///
/// # Safety
///
/// As for [`put_all`].
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
    // SAFETY: the caller's promise. The number is written last, after it was read.
    unsafe {
        let room = if from.is_null() { 0 } else { take(count)? };
        put_plain_edges(data, found.len(), count)?;
        put_all(&sources, from, count)?;
        if !to.is_null() {
            put(count, room)?;
            put_all(&targets, to, count)?;
        }
        Ok(())
    }
}

/// The same with the edges that lead to them.
///
/// # Safety
///
/// As [`put_all`]; `data` is null or has room for as many.
unsafe fn put_all_with_edges(
    found: &[Handle],
    nodes: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer<()> {
    // SAFETY: the caller's promise. The number is written last, after it was read.
    unsafe {
        put_plain_edges(data, found.len(), count)?;
        put_all(found, nodes, count)
    }
}

/// Edges here are all plain ones.
///
/// # Safety
///
/// `count` is null or may be read, `data` is null or has room for that many.
unsafe fn put_plain_edges(data: *mut CUgraphEdgeData, found: usize, count: *mut usize) -> Answer<()> {
    if data.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe {
        for index in 0..take(count)?.min(found) {
            put(data.add(index), CUgraphEdgeData::default())?;
        }
    }
    Ok(())
}

/// # Safety
///
/// Each pointer is null or leads to that many nodes.
unsafe fn edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Answer<Vec<(Handle, Handle)>> {
    // SAFETY: the caller's promise.
    unsafe { Ok(handles(from, count)?.into_iter().zip(handles(to, count)?).collect()) }
}
