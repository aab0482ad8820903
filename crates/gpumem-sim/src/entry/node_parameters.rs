//! Returns the parameters of graph nodes.

use crate::base::handle::Handle;
use crate::entry::argument::{Target, put};
use crate::entry::entries;
use core::ptr::null;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUgraphNodeType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps, CUresult,
};

entries! {
    fn cuGraphKernelNodeGetParams(call, node: CUgraphNode, target: Target<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let found = call.node_kernel(Handle::from_ptr(node))?;
        put(target, CUDA_KERNEL_NODE_PARAMS_v1 {
            func: found.func,
            gridDimX: found.gridDimX,
            gridDimY: found.gridDimY,
            gridDimZ: found.gridDimZ,
            blockDimX: found.blockDimX,
            blockDimY: found.blockDimY,
            blockDimZ: found.blockDimZ,
            sharedMemBytes: found.sharedMemBytes,
            kernelParams: found.kernelParams,
            extra: found.extra,
        })
    }

    fn cuGraphKernelNodeGetParams_v2(call, node: CUgraphNode, target: Target<CUDA_KERNEL_NODE_PARAMS>) {
        put(target, call.node_kernel(Handle::from_ptr(node))?)
    }

    fn cuGraphMemcpyNodeGetParams(call, node: CUgraphNode, target: Target<CUDA_MEMCPY3D>) {
        put(target, call.node_copy(Handle::from_ptr(node))?)
    }

    fn cuGraphMemsetNodeGetParams(call, node: CUgraphNode, target: Target<CUDA_MEMSET_NODE_PARAMS>) {
        let found = call.node_fill(Handle::from_ptr(node))?;
        put(target, CUDA_MEMSET_NODE_PARAMS {
            dst: found.target,
            pitch: found.pitch as usize,
            value: found.pattern,
            elementSize: found.pattern_bytes as u32,
            width: found.width as usize,
            height: found.height as usize,
        })
    }

    fn cuGraphHostNodeGetParams(call, node: CUgraphNode, target: Target<CUDA_HOST_NODE_PARAMS>) {
        let (run, data) = call.node_call(Handle::from_ptr(node))?;
        put(target, CUDA_HOST_NODE_PARAMS { fn_: Some(run), userData: data })
    }

    fn cuGraphMemAllocNodeGetParams(call, node: CUgraphNode, target: Target<CUDA_MEM_ALLOC_NODE_PARAMS>) {
        let (device, size_bytes, base) = call.node_alloc(Handle::from_ptr(node))?;
        let location = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        put(target, CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                location: CUmemLocation { type_: location, id: device as i32 },
                ..CUmemPoolProps::default()
            },
            accessDescs: null(),
            accessDescCount: 0,
            bytesize: size_bytes as usize,
            dptr: base,
        })
    }

    fn cuGraphChildGraphNodeGetGraph(call, node: CUgraphNode, target: Target<CUgraph>) {
        put(target, call.node_child(Handle::from_ptr(node))?.to_ptr())
    }

    fn cuGraphEventRecordNodeGetEvent(call, node: CUgraphNode, target: Target<CUevent>) {
        let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        put(target, call.node_event(Handle::from_ptr(node), kind)?.to_ptr())
    }

    fn cuGraphEventWaitNodeGetEvent(call, node: CUgraphNode, target: Target<CUevent>) {
        let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        put(target, call.node_event(Handle::from_ptr(node), kind)?.to_ptr())
    }

    fn cuGraphMemFreeNodeGetParams(call, node: CUgraphNode, target: Target<CUdeviceptr>) {
        put(target, call.node_memory(Handle::from_ptr(node), CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE)?)
    }
}
