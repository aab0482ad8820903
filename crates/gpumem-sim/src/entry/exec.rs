//! Executable graphs.

use crate::base::codes::INVALID_VALUE;
use crate::base::handle::Handle;
use crate::entry::argument::{Source, Target, put, take};
use crate::entry::entries;
use crate::entry::node::{host, kernel, memcpy, memset, newest};
use core::ffi::{c_char, c_uint, c_ulonglong};
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraph,
    CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUgraphInstantiateResult, CUgraphNode,
    CUresult, CUstream, cuuint64_t,
};

entries! {
    fn cuGraphInstantiate(
        call,
        target: Target<CUgraphExec>,
        graph: CUgraph,
        _error_node: *mut CUgraphNode,
        _log: *mut c_char,
        _log_bytes: usize,
    ) {
        put(target, call.graph_instantiate(Handle::from_ptr(graph), 0)?.to_ptr())
    }

    fn cuGraphInstantiate_v2(
        call,
        target: Target<CUgraphExec>,
        graph: CUgraph,
        _error_node: *mut CUgraphNode,
        _log: *mut c_char,
        _log_bytes: usize,
    ) {
        put(target, call.graph_instantiate(Handle::from_ptr(graph), 0)?.to_ptr())
    }

    fn cuGraphInstantiateWithFlags(call, target: Target<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) {
        put(target, call.graph_instantiate(Handle::from_ptr(graph), flags)?.to_ptr())
    }

    fn cuGraphInstantiateWithParams(
        call,
        target: Target<CUgraphExec>,
        graph: CUgraph,
        parameters: Target<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        let mut wish = take(parameters)?;
        let made = call.graph_instantiate(Handle::from_ptr(graph), wish.flags);
        wish.hErrNode_out = null_mut();
        wish.result_out = match made {
            Ok(_) => CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(_) => CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        put(parameters, wish)?;
        put(target, made?.to_ptr())
    }

    fn cuGraphExecDestroy(call, exec: CUgraphExec) {
        call.exec_destroy(Handle::from_ptr(exec))
    }

    fn cuGraphExecGetFlags(call, exec: CUgraphExec, flags: Target<cuuint64_t>) {
        put(flags, call.exec_flags(Handle::from_ptr(exec))?)
    }

    fn cuGraphUpload(call, exec: CUgraphExec, stream: CUstream) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.make_room(stream)?;
        call.exec_upload(Handle::from_ptr(exec))
    }

    fn cuGraphLaunch(call, exec: CUgraphExec, stream: CUstream) {
        let thread = call.thread;
        let stream = call.stream(thread, Handle::from_ptr(stream))?;
        call.make_room(stream)?;
        call.exec_launch(Handle::from_ptr(exec), stream)
    }

    fn cuGraphExecUpdate(
        call,
        exec: CUgraphExec,
        graph: CUgraph,
        error_node: Target<CUgraphNode>,
        result: Target<CUgraphExecUpdateResult>,
    ) {
        let refused = call.exec_update(Handle::from_ptr(exec), Handle::from_ptr(graph)).err();
        let found = refused.as_ref().map_or(UPDATED, |refused| refused.result);
        put(result, found)?;
        put(error_node, refused.as_ref().map_or(null_mut(), |refused| refused.node.to_ptr()))?;
        refused.map_or(Ok(()), |refused| Err(refused.code))
    }

    fn cuGraphExecUpdate_v2(
        call,
        exec: CUgraphExec,
        graph: CUgraph,
        info: Target<CUgraphExecUpdateResultInfo>,
    ) {
        let refused = call.exec_update(Handle::from_ptr(exec), Handle::from_ptr(graph)).err();
        put(info, CUgraphExecUpdateResultInfo {
            result: refused.as_ref().map_or(UPDATED, |refused| refused.result),
            errorNode: refused.as_ref().map_or(null_mut(), |refused| refused.node.to_ptr()),
            errorFromNode: null_mut(),
        })?;
        refused.map_or(Ok(()), |refused| Err(refused.code))
    }

    fn cuGraphExecKernelNodeSetParams(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        parameters: Source<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        let parameters = newest(take(parameters)?);
        // SAFETY: the caller gives the parameters of the function that is named, as for a launch.
        let (context, queue) = unsafe { kernel(call, parameters)? };
        call.exec_set_by(Handle::from_ptr(exec), Handle::from_ptr(node), context, queue)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        parameters: Source<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        let parameters = take(parameters)?;
        // SAFETY: the caller gives the parameters of the function that is named, as for a launch.
        let (context, queue) = unsafe { kernel(call, parameters)? };
        call.exec_set_by(Handle::from_ptr(exec), Handle::from_ptr(node), context, queue)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        parameters: Source<CUDA_MEMCPY3D>,
        context: CUcontext,
    ) {
        let (context, queue) = memcpy(call, take(parameters)?, context)?;
        call.exec_set_by(Handle::from_ptr(exec), Handle::from_ptr(node), context, queue)
    }

    fn cuGraphExecMemsetNodeSetParams(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        parameters: Source<CUDA_MEMSET_NODE_PARAMS>,
        context: CUcontext,
    ) {
        let (context, queue) = memset(call, take(parameters)?, context)?;
        call.exec_set_by(Handle::from_ptr(exec), Handle::from_ptr(node), context, queue)
    }

    fn cuGraphExecHostNodeSetParams(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        parameters: Source<CUDA_HOST_NODE_PARAMS>,
    ) {
        let (context, queue) = host(call, take(parameters)?)?;
        call.exec_set_by(Handle::from_ptr(exec), Handle::from_ptr(node), context, queue)
    }

    fn cuGraphExecEventRecordNodeSetEvent(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        event: CUevent,
    ) {
        let (exec, node) = (Handle::from_ptr(exec), Handle::from_ptr(node));
        call.exec_set_event(exec, node, Handle::from_ptr(event), false)
    }

    fn cuGraphExecEventWaitNodeSetEvent(
        call,
        exec: CUgraphExec,
        node: CUgraphNode,
        event: CUevent,
    ) {
        let (exec, node) = (Handle::from_ptr(exec), Handle::from_ptr(node));
        call.exec_set_event(exec, node, Handle::from_ptr(event), true)
    }

    fn cuGraphNodeSetEnabled(call, exec: CUgraphExec, node: CUgraphNode, is_enabled: c_uint) {
        call.exec_enable(Handle::from_ptr(exec), Handle::from_ptr(node), is_enabled != 0)
    }

    fn cuGraphNodeGetEnabled(call, exec: CUgraphExec, node: CUgraphNode, is_enabled: Target<c_uint>) {
        if is_enabled.is_null() {
            return Err(INVALID_VALUE);
        }
        put(is_enabled, c_uint::from(call.exec_is_enabled(Handle::from_ptr(exec), Handle::from_ptr(node))?))
    }
}

const UPDATED: CUgraphExecUpdateResult = CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS;
