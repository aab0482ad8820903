//! Graph nodes of any kind through one structure: how they are added and changed.

use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, put, take, take_at};
use crate::entry::call::Call;
use crate::entry::node::{Queue, alloc_place, host, kernel, memcpy, memset};
use crate::entry::{entries, handles};
use crate::graph::Work;
use crate::stream::operation::Operation;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUgraph,
    CUgraphChildGraphNodeOwnership as Ownership, CUgraphEdgeData, CUgraphExec, CUgraphNode,
    CUgraphNodeParams, CUgraphNodeType as NodeType, CUresult,
};

entries! {
    fn cuGraphAddNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: Target<CUgraphNodeParams>,
    ) {
        let mut wish = known(parameters)?;
        // SAFETY: the caller has `count` nodes there, and wrote the part of the union that the type names.
        let node = unsafe { add(call, Handle::from_ptr(graph), handles(after, count)?, &mut wish)? };
        put(parameters, wish)?;
        put(target, node.to_ptr())
    }

    fn cuGraphAddNode_v2(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        parameters: Target<CUgraphNodeParams>,
    ) {
        // SAFETY: there are none, or as many edges as nodes.
        unsafe { check_plain(edges, count)? };
        let mut wish = known(parameters)?;
        // SAFETY: the caller has `count` nodes there, and wrote the part of the union that the type names.
        let node = unsafe { add(call, Handle::from_ptr(graph), handles(after, count)?, &mut wish)? };
        put(parameters, wish)?;
        put(target, node.to_ptr())
    }

    fn cuGraphNodeSetParams(call, node: CUgraphNode, parameters: Target<CUgraphNodeParams>) {
        let (node, wish) = (Handle::from_ptr(node), known(parameters)?);
        match event_of(&wish) {
            Some((event, is_wait)) => call.node_set_event(node, event, is_wait),
            None => {
                // SAFETY: the caller wrote the part of the union that the type names.
                let (context, queue) = unsafe { queue(call, &wish)? };
                call.node_set_by(node, context, queue)
            }
        }
    }

    fn cuGraphExecNodeSetParams(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        parameters: Target<CUgraphNodeParams>,
    ) {
        let (exec, node, wish) = (Handle::from_ptr(exec), Handle::from_ptr(node), known(parameters)?);
        match event_of(&wish) {
            Some((event, is_wait)) => call.exec_set_event(exec, node, event, is_wait),
            None => {
                // SAFETY: the caller wrote the part of the union that the type names.
                let (context, queue) = unsafe { queue(call, &wish)? };
                call.exec_set_by(exec, node, context, queue)
            }
        }
    }
}

/// The parameters of the caller, if the reserved fields are zero as required.
fn known(parameters: Target<CUgraphNodeParams>) -> Answer<CUgraphNodeParams> {
    let wish = take(parameters)?;
    if wish.reserved0 == [0; 3] && wish.reserved2 == 0 { Ok(wish) } else { Err(INVALID_VALUE) }
}

/// Edges without data: the only kind that the simulator supports.
///
/// # Safety
///
/// The pointer is null or points to that many edges.
unsafe fn check_plain(edges: *const CUgraphEdgeData, count: usize) -> Answer<()> {
    for index in (0..count).take_while(|_| !edges.is_null()) {
        // SAFETY: not null, so the caller guarantees that many edges.
        let edge = unsafe { take_at(edges.wrapping_add(index))? };
        if (edge.from_port, edge.to_port, edge.type_) != (0, 0, 0) {
            return Err(NOT_SUPPORTED);
        }
    }
    Ok(())
}

/// Adds a node; results of the driver are written to the structure.
///
/// # Safety
///
/// The structure states its type, and the conditions of that type's documentation hold.
unsafe fn add(
    call: &mut Call<'_>,
    graph: Handle,
    after: Vec<Handle>,
    wish: &mut CUgraphNodeParams,
) -> Answer<Handle> {
    if let Some((event, is_wait)) = event_of(wish) {
        return call.graph_add_event(graph, event, after, is_wait);
    }
    let kind = wish.type_;
    let wished = &mut wish.__bindgen_anon_1;
    // SAFETY: the type names the part of the union that was written.
    unsafe {
        match kind {
            NodeType::CU_GRAPH_NODE_TYPE_EMPTY => {
                let context = call.context(call.thread)?;
                call.graph_add(graph, context, Work::Queue(Operation::Nothing), after)
            }
            NodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
                // Callers of an older driver leave zero there.
                if wished.graph.ownership.0 > Ownership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE.0 {
                    return Err(NOT_SUPPORTED);
                }
                let context = call.context(call.thread)?;
                call.graph_add_child(graph, context, Handle::from_ptr(wished.graph.graph), after)
            }
            NodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                let alloc = &mut wished.alloc;
                let descriptions = (alloc.accessDescs, alloc.accessDescCount);
                let place = alloc_place(call, &alloc.poolProps, descriptions)?;
                let (node, base) = call.graph_add_alloc(graph, place, alloc.bytesize as u64, after)?;
                alloc.dptr = base;
                Ok(node)
            }
            NodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
                let context = call.context(call.thread)?;
                call.graph_add_free(graph, context, wished.free.dptr, after)
            }
            _ => {
                let (context, queue) = queue(call, wish)?;
                call.graph_add_by(graph, context, after, queue)
            }
        }
    }
}

/// The event of a node that records or waits for one, and which of the two the node does.
fn event_of(wish: &CUgraphNodeParams) -> Option<(Handle, bool)> {
    // SAFETY: the type names the part of the union that was written.
    unsafe {
        match wish.type_ {
            NodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                Some((Handle::from_ptr(wish.__bindgen_anon_1.eventRecord.event), false))
            }
            NodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                Some((Handle::from_ptr(wish.__bindgen_anon_1.eventWait.event), true))
            }
            _ => None,
        }
    }
}

/// The work of a kernel, a copy, a memset or a host function.
///
/// # Safety
///
/// The conditions of [`add`].
unsafe fn queue(call: &mut Call<'_>, wish: &CUgraphNodeParams) -> Answer<Queue> {
    let wished = &wish.__bindgen_anon_1;
    // SAFETY: the type names the part of the union that was written.
    unsafe {
        match wish.type_ {
            NodeType::CU_GRAPH_NODE_TYPE_KERNEL => {
                let given = wished.kernel;
                kernel(
                    call,
                    CUDA_KERNEL_NODE_PARAMS {
                        func: given.func,
                        gridDimX: given.gridDimX,
                        gridDimY: given.gridDimY,
                        gridDimZ: given.gridDimZ,
                        blockDimX: given.blockDimX,
                        blockDimY: given.blockDimY,
                        blockDimZ: given.blockDimZ,
                        sharedMemBytes: given.sharedMemBytes,
                        kernelParams: given.kernelParams,
                        extra: given.extra,
                        kern: given.kern,
                        ctx: given.ctx,
                    },
                )
            }
            NodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
                let given = wished.memcpy;
                let context = or_current(call, given.copyCtx)?;
                memcpy(call, given.copyParams, context)
            }
            NodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
                let given = wished.memset;
                let context = or_current(call, given.ctx)?;
                memset(
                    call,
                    CUDA_MEMSET_NODE_PARAMS {
                        dst: given.dst,
                        pitch: given.pitch,
                        value: given.value,
                        elementSize: given.elementSize,
                        width: given.width,
                        height: given.height,
                    },
                    context,
                )
            }
            NodeType::CU_GRAPH_NODE_TYPE_HOST => {
                let given = wished.host;
                host(call, CUDA_HOST_NODE_PARAMS { fn_: given.fn_, userData: given.userData })
            }
            other if other.0 <= NodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL.0 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }
}

fn or_current(call: &Call<'_>, context: CUcontext) -> Answer<CUcontext> {
    if context.is_null() { Ok(call.context(call.thread)?.to_ptr()) } else { Ok(context) }
}
