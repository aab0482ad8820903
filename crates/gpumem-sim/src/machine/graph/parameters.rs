//! Parameters of nodes: decoded when a node is added or set.

use crate::base::address::is_device_address;
use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::graph::parameters::PlainFunction;
use crate::graph::{Node, Work};
use crate::machine::Machine;
use crate::stream::operation::{CopyRows, Fill, HostCall, HostFunction, Operation};
use core::ffi::c_void;
use core::ptr::null_mut;
use gpumem_sys::types::{CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUmemorytype};
use std::sync::Arc;

impl Machine {
    pub(crate) fn node_kernel(&mut self, node: Handle) -> Answer<CUDA_KERNEL_NODE_PARAMS> {
        let Node { work: Work::Queue(Operation::Launch(launch)), parameter_pointers, .. } =
            self.graphs.nodes.get_mut(node).ok_or(INVALID_VALUE)?
        else {
            return Err(INVALID_VALUE);
        };
        let start = Arc::make_mut(launch).parameters.as_mut_ptr();
        let offsets = launch.body.entry().parameters().iter().map(|parameter| parameter.offset_bytes);
        parameter_pointers.0 = offsets.map(|offset_bytes| start.wrapping_add(offset_bytes).cast()).collect();
        let (shape, [grid_x, grid_y, grid_z]) = (&launch.shape, launch.shape.grid);
        let [block_x, block_y, block_z] = shape.block;
        Ok(CUDA_KERNEL_NODE_PARAMS {
            func: launch.function.to_ptr(),
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: shape.shared_bytes,
            kernelParams: parameter_pointers.0.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        })
    }

    pub(crate) fn node_copy(&self, node: Handle) -> Answer<CUDA_MEMCPY3D> {
        match &self.node(node)?.work {
            Work::Queue(Operation::Copy { target, source, size_bytes, .. }) => {
                Ok(self.copy_told((*target, 0, 0), (*source, 0, 0), [*size_bytes, 1, 1]))
            }
            Work::Queue(Operation::CopyRows(copy)) => {
                let CopyRows { target, target_pitch, target_slice_bytes, width_bytes, height, depth, .. } =
                    **copy;
                let CopyRows { source, source_pitch, source_slice_bytes, .. } = **copy;
                let target = (target, target_pitch, target_slice_bytes);
                let source = (source, source_pitch, source_slice_bytes);
                Ok(self.copy_told(target, source, [width_bytes, height, depth]))
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// A copy between two locations: of each the address, the pitch of rows, and the bytes of a slice.
    fn copy_told(
        &self,
        target: (u64, u64, u64),
        source: (u64, u64, u64),
        [width_bytes, height, depth]: [u64; 3],
    ) -> CUDA_MEMCPY3D {
        let rows = |(_, pitch, slice_bytes): (u64, u64, u64)| slice_bytes.checked_div(pitch).unwrap_or(0);
        let mut copy = CUDA_MEMCPY3D {
            srcMemoryType: self.memory_type(source.0),
            srcPitch: source.1 as usize,
            srcHeight: rows(source) as usize,
            dstMemoryType: self.memory_type(target.0),
            dstPitch: target.1 as usize,
            dstHeight: rows(target) as usize,
            WidthInBytes: width_bytes as usize,
            Height: height as usize,
            Depth: depth as usize,
            ..CUDA_MEMCPY3D::default()
        };
        match copy.srcMemoryType {
            CUmemorytype::CU_MEMORYTYPE_HOST => copy.srcHost = host_pointer(source.0),
            _ => copy.srcDevice = source.0,
        }
        match copy.dstMemoryType {
            CUmemorytype::CU_MEMORYTYPE_HOST => copy.dstHost = host_pointer(target.0).cast_mut(),
            _ => copy.dstDevice = target.0,
        }
        copy
    }

    fn memory_type(&self, address: u64) -> CUmemorytype {
        let is_managed = self.memory.known(address, 1).is_some_and(|found| found.allocated_by.is_managed());
        match is_device_address(address) || is_managed {
            true => CUmemorytype::CU_MEMORYTYPE_DEVICE,
            false => CUmemorytype::CU_MEMORYTYPE_HOST,
        }
    }

    pub(crate) fn node_fill(&self, node: Handle) -> Answer<Fill> {
        match self.node(node)?.work {
            Work::Queue(Operation::Fill(fill)) => Ok(fill),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn node_call(&self, node: Handle) -> Answer<(PlainFunction, *mut c_void)> {
        match self.node(node)?.work {
            Work::Queue(Operation::Call(HostCall { run: HostFunction::Plain(run), data })) => Ok((run, data)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The device, size and address of an allocation node.
    pub(crate) fn node_alloc(&self, node: Handle) -> Answer<(usize, u64, u64)> {
        let Work::Alloc(base) = self.node(node)?.work else { return Err(INVALID_VALUE) };
        let found = self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?;
        Ok((found.device, found.size_bytes, base))
    }

    /// Replaces the event of a node that records one or waits for one.
    pub(crate) fn node_set_event(&mut self, node: Handle, event: Handle, is_wait: bool) -> Answer<()> {
        self.events.get(event).ok_or(INVALID_HANDLE)?;
        self.graphs.nodes.get_mut(node).ok_or(INVALID_VALUE)?.work.set_event(event, is_wait)
    }
}

fn host_pointer(address: u64) -> *const c_void {
    core::ptr::with_exposed_provenance(address as usize)
}
