//! Work that uses memory which may sleep or be lent: the check before it is queued, and [`LentMemory`].

use super::Device;
use super::sleepers::MemoryRange;
use crate::error::DeviceError;
use core::ops::Range;
use gpumem_base::order::{Stamp, StreamId};
use gpumem_sys::types::CUstream;
use gpumem_sys::{DriverError, fork};

impl Device {
    /// Refuses work that uses `memory` if a part of it sleeps, if the device was reset, and in a forked child. Called within a call on the
    /// stream that the work is queued on, so the result stays valid until that call ends.
    #[inline(always)]
    pub(crate) fn check_work(
        &self,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
    ) -> Result<(), DeviceError> {
        if !fork::is_child() && self.sleepers().is_empty() {
            return Ok(());
        }
        self.check_work_slow(memory)
    }

    #[cold]
    #[inline(never)]
    fn check_work_slow(&self, memory: impl IntoIterator<Item: Into<MemoryRange>>) -> Result<(), DeviceError> {
        self.check_open()?;
        self.sleepers().check(memory)
    }

    /// Calls `call`, which queues work that uses `memory` on a stream, behind the work of `stamps`; see
    /// [`Clocks::queue_behind`](crate::device::Clocks::queue_behind). Returns false if the memory sleeps or the wait is impossible now.
    #[doc(hidden)]
    pub fn queue_behind(
        &self,
        stamps: impl Iterator<Item = Stamp>,
        stream: StreamId,
        memory: impl IntoIterator<Item: Into<MemoryRange>>,
        call: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<bool, DriverError> {
        let mut is_awake = true;
        let queued = self.clocks().queue_behind(stamps, stream, |raw| {
            // The stream's state is locked, which a pool that goes to sleep waits for.
            is_awake = self.check_work(memory).is_ok();
            if is_awake { call(raw) } else { Ok(()) }
        })?;
        Ok(queued && is_awake)
    }

    /// Keeps memory awake while another library may queue work that uses it. Call it inside
    /// [`Stream::queue_work`](crate::Stream::queue_work) for the same memory.
    #[doc(hidden)]
    pub fn lend(&self, memory: MemoryRange) -> LentMemory {
        let range = if fork::is_child() { 0..0 } else { self.sleepers().lend(memory) };
        LentMemory { device: self.clone(), range }
    }
}

/// Memory that another library uses, until this is dropped: the pool does not sleep (`Pool::sleep`).
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "dropping it ends the loan"]
pub struct LentMemory {
    device: Device,
    range: Range<u64>,
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.device.sleepers().end_loan(&self.range);
    }
}
