//! Waits for values in memory, and writes of them.

use crate::base::codes::{Answer, ILLEGAL_ADDRESS, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::machine::stream::execute::{Fault, read_only};
use crate::report::finding::{AccessKind, FaultKind};
use crate::stream::operation::Operation;
use crate::stream::value::{Condition, Value};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

impl Machine {
    /// Queues a wait for a value.
    pub(crate) fn value_wait(&mut self, stream: Handle, wish: Value, condition: Condition) -> Answer<()> {
        self.value_check(stream, &wish)?;
        self.enqueue(stream, Operation::WaitValue(wish, condition));
        Ok(())
    }

    /// Queues a write of a value.
    pub(crate) fn value_write(&mut self, stream: Handle, wish: Value) -> Answer<()> {
        self.value_check(stream, &wish)?;
        self.enqueue(stream, Operation::WriteValue(wish));
        Ok(())
    }

    fn value_check(&self, stream: Handle, wish: &Value) -> Answer<()> {
        if !wish.address.is_multiple_of(wish.size_bytes()) {
            return Err(INVALID_VALUE);
        }
        let found = self.memory.known(wish.address, wish.size_bytes()).ok_or(INVALID_VALUE)?;
        self.check_access(stream, &found)
    }

    /// True if a wait is complete. A wait for invalid memory is complete too: it fails when it runs.
    pub(crate) fn value_is_met(&self, stream: Handle, wish: &Value, condition: Condition) -> bool {
        let context = self.streams.get(stream).and_then(|stream| self.contexts.get(stream.context));
        if context.is_none_or(|context| context.error.is_some()) {
            return true;
        }
        let Some(found) = self.memory.live(wish.address, wish.size_bytes()) else { return true };
        if self.open_windows(&found, wish.address, wish.size_bytes()).is_err() {
            return true;
        }
        let bytes = found.bytes_at(wish.address).0;
        // SAFETY: the range lies in live memory, and the call checked that the address is a multiple of the size. The program may
        // write pinned memory concurrently, so it is read by one atomic access.
        let found = unsafe {
            if wish.is_wide {
                AtomicU64::from_ptr(bytes.cast()).load(Ordering::Acquire)
            } else {
                u64::from(AtomicU32::from_ptr(bytes.cast()).load(Ordering::Acquire))
            }
        };
        condition.is_met(found, wish)
    }

    /// Writes a value, or ends a wait for one. The memory must exist. Such accesses are not races; the clock of a waiting stream
    /// includes that of the writer.
    pub(crate) fn execute_value(&mut self, wish: &Value, is_write: bool) -> Result<u64, Fault> {
        let size_bytes = wish.size_bytes();
        let Some(found) = self.memory.live(wish.address, size_bytes) else {
            let what = if is_write { "write of a value" } else { "wait for a value" };
            let (kind, why, allocation) = self.memory.describe(wish.address, size_bytes);
            let allocation = self.boxed_origin(allocation);
            let text = format!("{what} of {size_bytes} bytes: {why}");
            return Err(Fault { kind, code: ILLEGAL_ADDRESS, text, allocation, place: None });
        };
        if is_write && found.allocated_by.is_read_only() {
            let text = format!("write of a value of {size_bytes} bytes: {}", read_only(wish.address));
            let allocation = self.boxed_origin(Some(found));
            return Err(Fault {
                kind: FaultKind::ReadOnly,
                code: ILLEGAL_ADDRESS,
                text,
                allocation,
                place: None,
            });
        }
        self.open_windows(&found, wish.address, size_bytes).map_err(Fault::of_host)?;
        let access = if is_write { AccessKind::ValueWrite } else { AccessKind::ValueWait };
        self.note_value(access, wish.address, &found);
        if !is_write {
            self.clock_learns_value(self.place_of(wish.address, &found), found.allocated_by.is_host());
            return Ok(self.config.costs.mark_ns);
        }
        self.clock_tells_value(self.place_of(wish.address, &found));
        let bytes = found.bytes_at(wish.address).0;
        // SAFETY: the range lies in live memory that devices may write, and the call checked that the address is a multiple of
        // the size. The program may read pinned memory concurrently, so this is one access.
        unsafe {
            if wish.is_wide {
                AtomicU64::from_ptr(bytes.cast()).store(wish.value, Ordering::Release);
            } else {
                AtomicU32::from_ptr(bytes.cast()).store(wish.value as u32, Ordering::Release);
            }
        }
        Ok(self.config.costs.mark_ns)
    }
}
