//! The checks of a request before anything is allocated.

use super::report;
use crate::backend::Shortage;
use crate::config::MemoryKind;
use crate::error::{PoolError, Refusal, Requested};
use crate::pool::hub::Hub;
use gpumem_device::Stream;

pub(crate) fn usable(hub: &Hub, stream: &Stream) -> Result<(), PoolError> {
    hub.check_usable()?;
    hub.check_stream(stream)
}

pub(crate) fn size(hub: &Hub, size_bytes: u64) -> Result<(), PoolError> {
    let device_bytes = hub.device().total_bytes();
    // Unified memory with oversubscription and host memory need not fit into the device; the driver decides
    // about them.
    let is_bounded_by_device = match hub.config().kind {
        MemoryKind::Device => true,
        MemoryKind::Unified => !hub.config().oversubscribes,
        MemoryKind::Host => false,
    };
    match size_bytes > device_bytes {
        true if is_bounded_by_device => Err(PoolError::too_large(size_bytes, device_bytes)),
        true => computation(hub, size_bytes),
        false => Ok(()),
    }
}

/// Refuses a size that only an arithmetic bug can produce: the ladder would uselessly release all cached memory for it.
#[cold]
fn computation(hub: &Hub, size_bytes: u64) -> Result<(), PoolError> {
    if !Requested(size_bytes).is_miscomputed() {
        return Ok(());
    }
    let shortage = Shortage {
        requested_bytes: size_bytes,
        alignment: 0,
        admitted_bytes: hub.reserved_bytes()?,
        refusal: hub.limits.node.limit_exceeded_by(size_bytes).map(Refusal::Limit),
    };
    Err(report::out_of_memory_error(hub, &shortage, Vec::new()))
}
