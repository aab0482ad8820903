//! The nodes of graphs: adding them by hand, and what they do.

use super::module::packed;
use super::{entries, handles, put, take};
use crate::sim::call::Call;
use crate::sim::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::sim::graph::Work;
use crate::sim::handle::Handle;
use crate::sim::machine::Machine;
use crate::sim::module::Shape;
use crate::sim::operation::{Fill, HostCall, HostFunction, Operation};
use crate::table::Table;
use crate::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUgraph,
    CUgraphNode, CUgraphNodeType, CUmemLocationType, CUresult,
};
use core::ptr::null_mut;

entries! {
    fn cuGraphAddEmptyNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
    ) {
        let context = call.context(call.thread)?;
        let work = Work::Queue(Operation::Nothing);
        put(target, call.graph_add(Handle::from_ptr(graph), context, work, handles(after, count)?)?.to_ptr())
    }

    fn cuGraphAddKernelNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        let work = kernel(call, newest(take(parameters)?))?;
        add(call, target, (graph, after, count), work)
    }

    fn cuGraphAddKernelNode_v2(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        let work = kernel(call, take(parameters)?)?;
        add(call, target, (graph, after, count), work)
    }

    fn cuGraphKernelNodeSetParams(
        call,
        node: CUgraphNode,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        let (context, queue) = kernel(call, newest(take(parameters)?))?;
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphKernelNodeSetParams_v2(call, node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS) {
        let (context, queue) = kernel(call, take(parameters)?)?;
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphAddMemcpyNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) {
        let work = memcpy(call, take(parameters)?, context)?;
        add(call, target, (graph, after, count), work)
    }

    fn cuGraphMemcpyNodeSetParams(call, node: CUgraphNode, parameters: *const CUDA_MEMCPY3D) {
        let context = call.context(call.thread)?;
        let (context, queue) = memcpy(call, take(parameters)?, context.to_ptr())?;
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphAddMemsetNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) {
        let work = memset(call, take(parameters)?, context)?;
        add(call, target, (graph, after, count), work)
    }

    fn cuGraphMemsetNodeSetParams(call, node: CUgraphNode, parameters: *const CUDA_MEMSET_NODE_PARAMS) {
        let context = call.context(call.thread)?;
        let (context, queue) = memset(call, take(parameters)?, context.to_ptr())?;
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphAddHostNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: *const CUDA_HOST_NODE_PARAMS,
    ) {
        let work = host(call, take(parameters)?)?;
        add(call, target, (graph, after, count), work)
    }

    fn cuGraphHostNodeSetParams(call, node: CUgraphNode, parameters: *const CUDA_HOST_NODE_PARAMS) {
        let (context, queue) = host(call, take(parameters)?)?;
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphAddChildGraphNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        child: CUgraph,
    ) {
        let context = call.context(call.thread)?;
        let (graph, child) = (Handle::from_ptr(graph), Handle::from_ptr(child));
        put(target, call.graph_add_child(graph, context, child, handles(after, count)?)?.to_ptr())
    }

    fn cuGraphChildGraphNodeGetGraph(call, node: CUgraphNode, target: *mut CUgraph) {
        put(target, call.node_child(Handle::from_ptr(node))?.to_ptr())
    }

    fn cuGraphAddEventRecordNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) {
        let (graph, event) = (Handle::from_ptr(graph), Handle::from_ptr(event));
        put(target, call.graph_add_event(graph, event, handles(after, count)?, false)?.to_ptr())
    }

    fn cuGraphAddEventWaitNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) {
        let (graph, event) = (Handle::from_ptr(graph), Handle::from_ptr(event));
        put(target, call.graph_add_event(graph, event, handles(after, count)?, true)?.to_ptr())
    }

    fn cuGraphEventRecordNodeGetEvent(call, node: CUgraphNode, target: *mut CUevent) {
        let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        put(target, call.node_event(Handle::from_ptr(node), kind)?.to_ptr())
    }

    fn cuGraphEventWaitNodeGetEvent(call, node: CUgraphNode, target: *mut CUevent) {
        let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        put(target, call.node_event(Handle::from_ptr(node), kind)?.to_ptr())
    }

    fn cuGraphAddMemAllocNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) {
        let context = call.context(call.thread)?;
        let (mut wish, after) = (take(parameters)?, handles(after, count)?);
        if wish.poolProps.location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = call.device_index(wish.poolProps.location.id)?;
        let is_own = (0..wish.accessDescCount)
            .map(|index| take(wish.accessDescs.wrapping_add(index)))
            .all(|wish| wish.is_ok_and(|wish| usize::try_from(wish.location.id) == Ok(device)));
        if !is_own {
            return Err(NOT_SUPPORTED);
        }
        let place = (device, context);
        let (node, base) = call.graph_add_alloc(Handle::from_ptr(graph), place, wish.bytesize as u64, after)?;
        wish.dptr = base;
        put(parameters, wish)?;
        put(target, node.to_ptr())
    }

    fn cuGraphAddMemFreeNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        address: CUdeviceptr,
    ) {
        let context = call.context(call.thread)?;
        let after = handles(after, count)?;
        put(target, call.graph_add_free(Handle::from_ptr(graph), context, address, after)?.to_ptr())
    }

    fn cuGraphMemFreeNodeGetParams(call, node: CUgraphNode, target: *mut CUdeviceptr) {
        put(target, call.node_memory(Handle::from_ptr(node), CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE)?)
    }
}

/// Adds the node that some queueing is captured as.
///
/// # Safety
///
/// `target` is null or may be written; `after` is null or leads to `count` nodes.
unsafe fn add(
    call: &mut Call<'_>,
    target: *mut CUgraphNode,
    (graph, after, count): (CUgraph, *const CUgraphNode, usize),
    (context, queue): (Handle, impl FnOnce(&mut Machine, Handle) -> Answer<()>),
) -> Answer<()> {
    // SAFETY: the caller's promise.
    unsafe {
        put(target, null_mut())?;
        let after = handles(after, count)?;
        put(target, call.graph_add_by(Handle::from_ptr(graph), context, after, queue)?.to_ptr())
    }
}

/// The context of a kernel, and its launch.
///
/// # Safety
///
/// The parameters are what `cuLaunchKernel` asks for.
pub(super) unsafe fn kernel(
    call: &mut Call<'_>,
    parameters: CUDA_KERNEL_NODE_PARAMS,
) -> Answer<(Handle, impl FnOnce(&mut Machine, Handle) -> Answer<()> + use<>)> {
    let function = Handle::from_ptr(parameters.func);
    let context = call.function(function)?.context;
    let shape = Shape {
        grid: [parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ],
        block: [parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ],
        shared_bytes: parameters.sharedMemBytes,
    };
    // SAFETY: the caller's promise.
    let packed = unsafe { packed(call, function, parameters.kernelParams, parameters.extra)? };
    Ok((context, move |machine: &mut Machine, stream| machine.launch(stream, function, shape, packed)))
}

pub(super) fn newest(parameters: CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: parameters.func,
        gridDimX: parameters.gridDimX,
        gridDimY: parameters.gridDimY,
        gridDimZ: parameters.gridDimZ,
        blockDimX: parameters.blockDimX,
        blockDimY: parameters.blockDimY,
        blockDimZ: parameters.blockDimZ,
        sharedMemBytes: parameters.sharedMemBytes,
        kernelParams: parameters.kernelParams,
        extra: parameters.extra,
        kern: null_mut(),
        ctx: null_mut(),
    }
}

/// The context of a copy, and the copy.
pub(super) fn memcpy(
    call: &mut Call<'_>,
    copy: CUDA_MEMCPY3D,
    context: CUcontext,
) -> Answer<(Handle, impl FnOnce(&mut Machine, Handle) -> Answer<()> + use<>)> {
    let context = Handle::from_ptr(context);
    call.contexts.get(context).ok_or(INVALID_CONTEXT)?;
    if copy.Depth != 1 || copy.srcZ != 0 || copy.dstZ != 0 {
        return Err(NOT_SUPPORTED);
    }
    let rows = CUDA_MEMCPY2D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        srcPitch: copy.srcPitch,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        dstPitch: copy.dstPitch,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
    };
    Ok((context, move |machine: &mut Machine, stream| machine.copy_2d(stream, &rows, false).map(drop)))
}

/// The context of a memset, and the memset.
pub(super) fn memset(
    call: &mut Call<'_>,
    parameters: CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Answer<(Handle, impl FnOnce(&mut Machine, Handle) -> Answer<()> + use<>)> {
    let context = Handle::from_ptr(context);
    call.contexts.get(context).ok_or(INVALID_CONTEXT)?;
    if !matches!(parameters.elementSize, 1 | 2 | 4) {
        return Err(INVALID_VALUE);
    }
    let fill = Fill {
        target: parameters.dst,
        pitch: parameters.pitch as u64,
        pattern: parameters.value,
        pattern_bytes: u64::from(parameters.elementSize),
        width: parameters.width as u64,
        height: parameters.height as u64,
    };
    Ok((context, move |machine: &mut Machine, stream| machine.fill(stream, fill, false).map(drop)))
}

/// The context that a host function is put on, and the call.
pub(super) fn host(
    call: &mut Call<'_>,
    parameters: CUDA_HOST_NODE_PARAMS,
) -> Answer<(Handle, impl FnOnce(&mut Machine, Handle) -> Answer<()> + use<>)> {
    let context = call.context(call.thread)?;
    let run = HostFunction::Plain(parameters.fn_.ok_or(INVALID_VALUE)?);
    let called = HostCall { run, data: parameters.userData };
    Ok((context, move |machine: &mut Machine, stream| {
        machine.enqueue(stream, Operation::Call(called));
        Ok(())
    }))
}
