//! Graph nodes: one function for each kind that adds a node, and one that changes it.

use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::device::module::Shape;
use crate::entry::argument::{Source, Target, put, put_at, take, take_at};
use crate::entry::call::Call;
use crate::entry::module::packed;
use crate::entry::{entries, handles};
use crate::graph::Work;
use crate::machine::Machine;
use crate::machine::stream::copy::Direction;
use crate::stream::operation::{Fill, HostCall, HostFunction, Operation};
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphNode,
    CUmemAccessDesc, CUmemLocationType, CUmemPoolProps, CUresult,
};

entries! {
    fn cuGraphAddEmptyNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
    ) {
        let context = call.context(call.thread)?;
        let work = Work::Queue(Operation::Nothing);
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(after, count)? };
        put(target, call.graph_add(Handle::from_ptr(graph), context, work, after)?.to_ptr())
    }

    fn cuGraphAddKernelNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: Source<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        let parameters = newest(take(parameters)?);
        // SAFETY: the caller gives the parameters of the function that is named, as for a launch.
        let work = unsafe { kernel(call, parameters)? };
        // SAFETY: the caller has room for a node at `target`, and `count` nodes at `after`.
        unsafe { add(call, target, (graph, after, count), work) }
    }

    fn cuGraphAddKernelNode_v2(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: Source<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        let parameters = take(parameters)?;
        // SAFETY: the caller gives the parameters of the function that is named, as for a launch.
        let work = unsafe { kernel(call, parameters)? };
        // SAFETY: the caller has room for a node at `target`, and `count` nodes at `after`.
        unsafe { add(call, target, (graph, after, count), work) }
    }

    fn cuGraphKernelNodeSetParams(
        call,
        node: CUgraphNode,
        parameters: Source<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        let parameters = newest(take(parameters)?);
        // SAFETY: the caller gives the parameters of the function that is named, as for a launch.
        let (context, queue) = unsafe { kernel(call, parameters)? };
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphKernelNodeSetParams_v2(call, node: CUgraphNode, parameters: Source<CUDA_KERNEL_NODE_PARAMS>) {
        let parameters = take(parameters)?;
        // SAFETY: the caller gives the parameters of the function that is named, as for a launch.
        let (context, queue) = unsafe { kernel(call, parameters)? };
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphAddMemcpyNode(
        call,
        target: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: Source<CUDA_MEMCPY3D>,
        context: CUcontext,
    ) {
        let work = memcpy(call, take(parameters)?, context)?;
        // SAFETY: the caller has room for a node at `target`, and `count` nodes at `after`.
        unsafe { add(call, target, (graph, after, count), work) }
    }

    fn cuGraphMemcpyNodeSetParams(call, node: CUgraphNode, parameters: Source<CUDA_MEMCPY3D>) {
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
        parameters: Source<CUDA_MEMSET_NODE_PARAMS>,
        context: CUcontext,
    ) {
        let work = memset(call, take(parameters)?, context)?;
        // SAFETY: the caller has room for a node at `target`, and `count` nodes at `after`.
        unsafe { add(call, target, (graph, after, count), work) }
    }

    fn cuGraphMemsetNodeSetParams(call, node: CUgraphNode, parameters: Source<CUDA_MEMSET_NODE_PARAMS>) {
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
        parameters: Source<CUDA_HOST_NODE_PARAMS>,
    ) {
        let work = host(call, take(parameters)?)?;
        // SAFETY: the caller has room for a node at `target`, and `count` nodes at `after`.
        unsafe { add(call, target, (graph, after, count), work) }
    }

    fn cuGraphHostNodeSetParams(call, node: CUgraphNode, parameters: Source<CUDA_HOST_NODE_PARAMS>) {
        let (context, queue) = host(call, take(parameters)?)?;
        call.node_set_by(Handle::from_ptr(node), context, queue)
    }

    fn cuGraphAddChildGraphNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        child: CUgraph,
    ) {
        let context = call.context(call.thread)?;
        let (graph, child) = (Handle::from_ptr(graph), Handle::from_ptr(child));
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(after, count)? };
        put(target, call.graph_add_child(graph, context, child, after)?.to_ptr())
    }

    fn cuGraphAddEventRecordNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) {
        let (graph, event) = (Handle::from_ptr(graph), Handle::from_ptr(event));
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(after, count)? };
        put(target, call.graph_add_event(graph, event, after, false)?.to_ptr())
    }

    fn cuGraphAddEventWaitNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) {
        let (graph, event) = (Handle::from_ptr(graph), Handle::from_ptr(event));
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(after, count)? };
        put(target, call.graph_add_event(graph, event, after, true)?.to_ptr())
    }

    fn cuGraphEventRecordNodeSetEvent(call, node: CUgraphNode, event: CUevent) {
        call.node_set_event(Handle::from_ptr(node), Handle::from_ptr(event), false)
    }

    fn cuGraphEventWaitNodeSetEvent(call, node: CUgraphNode, event: CUevent) {
        call.node_set_event(Handle::from_ptr(node), Handle::from_ptr(event), true)
    }

    fn cuGraphAddMemAllocNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        parameters: Target<CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) {
        let mut wish = take(parameters)?;
        // SAFETY: the caller has `count` nodes there, and as many access descriptions as the parameters say.
        let (after, place) = unsafe {
            let descriptions = (wish.accessDescs, wish.accessDescCount);
            (handles(after, count)?, alloc_place(call, &wish.poolProps, descriptions)?)
        };
        let (node, base) = call.graph_add_alloc(Handle::from_ptr(graph), place, wish.bytesize as u64, after)?;
        wish.dptr = base;
        put(parameters, wish)?;
        put(target, node.to_ptr())
    }

    fn cuGraphAddMemFreeNode(
        call,
        target: Target<CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        address: CUdeviceptr,
    ) {
        let context = call.context(call.thread)?;
        // SAFETY: the caller has `count` nodes there.
        let after = unsafe { handles(after, count)? };
        put(target, call.graph_add_free(Handle::from_ptr(graph), context, address, after)?.to_ptr())
    }
}

/// Adds a node for work that a stream would queue.
///
/// # Safety
///
/// `target` is null or may be written; `after` is null or points to `count` nodes.
unsafe fn add(
    call: &mut Call<'_>,
    target: *mut CUgraphNode,
    (graph, after, count): (CUgraph, *const CUgraphNode, usize),
    (context, queue): Queue,
) -> Answer<()> {
    // SAFETY: the caller guarantees both: the target may be written, and there are that many nodes.
    unsafe {
        put_at(target, null_mut())?;
        let after = handles(after, count)?;
        put_at(target, call.graph_add_by(Handle::from_ptr(graph), context, after, queue)?.to_ptr())
    }
}

/// The location of an allocation node: a device, with access for that device.
///
/// # Safety
///
/// The descriptions are null, or as many as `count` says.
pub(crate) unsafe fn alloc_place(
    call: &Call<'_>,
    props: &CUmemPoolProps,
    (descriptions, count): (*const CUmemAccessDesc, usize),
) -> Answer<(usize, Handle)> {
    let context = call.context(call.thread)?;
    if props.location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID_VALUE);
    }
    let device = call.device_index(props.location.id)?;
    for index in 0..count {
        // SAFETY: the caller guarantees `count` descriptions, or none, which is refused as null.
        let wish = unsafe { take_at(descriptions.wrapping_add(index))? };
        if usize::try_from(wish.location.id) != Ok(device) {
            return Err(NOT_SUPPORTED);
        }
    }
    Ok((device, context))
}

/// The context of some work, and the operation that the work queues.
pub(crate) type Queue = (Handle, Box<dyn FnOnce(&mut Machine, Handle) -> Answer<()>>);

/// The context of a kernel, and its launch.
///
/// # Safety
///
/// The parameters satisfy the conditions of `cuLaunchKernel`.
pub(crate) unsafe fn kernel(call: &mut Call<'_>, parameters: CUDA_KERNEL_NODE_PARAMS) -> Answer<Queue> {
    let mut function = Handle::from_ptr(parameters.func);
    if parameters.func.is_null() {
        let context = match parameters.ctx.is_null() {
            true => call.context(call.thread)?,
            false => Handle::from_ptr(parameters.ctx),
        };
        function = call.kernel_function(Handle::from_ptr(parameters.kern), context)?;
    }
    let context = call.function(function)?.context;
    let shape = Shape {
        grid: [parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ],
        block: [parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ],
        shared_bytes: parameters.sharedMemBytes,
    };
    // SAFETY: the caller guarantees the conditions of `cuLaunchKernel`.
    let packed = unsafe { packed(call, function, parameters.kernelParams, parameters.extra)? };
    Ok((context, Box::new(move |machine, stream| machine.launch(stream, function, shape, packed))))
}

pub(crate) fn newest(parameters: CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
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
pub(crate) fn memcpy(call: &mut Call<'_>, copy: CUDA_MEMCPY3D, context: CUcontext) -> Answer<Queue> {
    let context = Handle::from_ptr(context);
    call.contexts.get(context).ok_or(INVALID_CONTEXT)?;
    let queue = move |machine: &mut Machine, stream| {
        machine.copy_3d(stream, &copy, Direction::of(&copy), false).map(drop)
    };
    Ok((context, Box::new(queue)))
}

/// The context of a memset, and the memset.
pub(crate) fn memset(
    call: &mut Call<'_>,
    parameters: CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Answer<Queue> {
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
    Ok((context, Box::new(move |machine, stream| machine.fill(stream, fill, false).map(drop))))
}

/// The context of a host function, and the call.
pub(crate) fn host(call: &mut Call<'_>, parameters: CUDA_HOST_NODE_PARAMS) -> Answer<Queue> {
    let context = call.context(call.thread)?;
    let run = HostFunction::Plain(parameters.fn_.ok_or(INVALID_VALUE)?);
    let called = HostCall { run, data: parameters.userData };
    Ok((
        context,
        Box::new(move |machine, stream| {
            machine.enqueue(stream, Operation::Call(called));
            Ok(())
        }),
    ))
}
