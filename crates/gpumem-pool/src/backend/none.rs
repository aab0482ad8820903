//! `none`: every block is an allocation of its own, and nothing is kept.
//!
//! For debugging tools that watch allocations, for interfaces that refuse stream-ordered memory, and for drivers without
//! pools. A free waits for the streams that used the block: the plain free has no place in any stream's order, and that
//! it waits for the device by itself is what drivers do, not what they promise.

use super::{Reserved, Source};
use crate::device::Device;
use crate::options::BackendKind;
use crate::stream::Stream;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;

#[derive(Debug)]
pub(crate) struct NoneBackend;

impl Source for NoneBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::None
    }

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        let device = stream.device();
        let _bound = device.enter()?;
        let mut address = 0;
        // SAFETY: `address` outlives the call, and the context is current.
        unsafe { device.driver().cuMemAlloc_v2(&mut address, size_bytes as usize)? };
        Ok(address)
    }

    fn release(&self, address: CUdeviceptr, home: &Stream, uses: &[Stream]) -> Result<(), DriverError> {
        home.finish()?;
        uses.iter().try_for_each(Stream::finish)?;
        let device = home.device();
        let _bound = device.enter()?;
        // SAFETY: the address came from `acquire`, its one block is being dropped, and every stream that used it is done.
        unsafe { device.driver().cuMemFree_v2(address) }
    }

    fn keeps_memory(&self) -> bool {
        false
    }

    fn trim_to(&self, _device: &Device, _keep_bytes: u64) -> Result<(), DriverError> {
        Ok(())
    }

    fn reserved(&self, _device: &Device) -> Result<Option<Reserved>, DriverError> {
        Ok(None)
    }
}
