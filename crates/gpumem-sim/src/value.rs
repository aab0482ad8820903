//! Values in memory that streams wait for and write.
//!
//! A wait looks at its value whenever the schedule comes by, so whoever writes it lets the stream go on: work of
//! another stream, or the host through pinned memory. Nothing promises that anybody will: a wait for what nobody
//! writes lasts forever, as it does on a GPU.

use super::codes::{Answer, ILLEGAL_ADDRESS, INVALID_VALUE};
use super::execute::{Fault, read_only};
use super::finding::{Deed, FaultKind};
use super::handle::Handle;
use super::machine::Machine;
use super::operation::Operation;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An unsigned number of four or eight bytes at an address, and what it is compared with or becomes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub(super) address: u64,
    pub(super) is_wide: bool,
    pub(super) value: u64,
}

/// What a wait asks of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Not before it, counting round.
    Reached,
    Equal,
    /// A bit in common.
    AnyBit,
    /// Not all the bits, in either.
    Nor,
}

impl Condition {
    /// What the flags of a call ask for; the flush of remote writes has nothing to do here.
    pub(super) fn from_flags(flags: u32) -> Answer<Self> {
        match flags & !FLUSH {
            0 => Ok(Self::Reached),
            1 => Ok(Self::Equal),
            2 => Ok(Self::AnyBit),
            3 => Ok(Self::Nor),
            _ => Err(INVALID_VALUE),
        }
    }

    fn is_met(self, found: u64, wish: &Value) -> bool {
        let (found, value) = (wish.cut(found), wish.cut(wish.value));
        match self {
            Self::Reached if wish.is_wide => found.wrapping_sub(value).cast_signed() >= 0,
            Self::Reached => (found as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            Self::Equal => found == value,
            Self::AnyBit => found & value != 0,
            Self::Nor => wish.cut(!(found | value)) != 0,
        }
    }
}

impl Value {
    fn size_bytes(&self) -> u64 {
        if self.is_wide { 8 } else { 4 }
    }

    fn cut(&self, value: u64) -> u64 {
        if self.is_wide { value } else { value & u64::from(u32::MAX) }
    }
}

impl Machine {
    /// Queues a wait for a value.
    pub(super) fn value_wait(&mut self, stream: Handle, wish: Value, condition: Condition) -> Answer<()> {
        self.value_check(stream, &wish)?;
        self.enqueue(stream, Operation::WaitValue(wish, condition));
        Ok(())
    }

    /// Queues the writing of a value.
    pub(super) fn value_write(&mut self, stream: Handle, wish: Value) -> Answer<()> {
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

    /// Whether a wait is over. One that can't be kept is over too: it fails when it runs.
    pub(super) fn value_is_met(&self, stream: Handle, wish: &Value, condition: Condition) -> bool {
        let context = self.streams.get(stream).and_then(|stream| self.contexts.get(stream.context));
        if context.is_none_or(|context| context.error.is_some()) {
            return true;
        }
        let Some(found) = self.memory.live(wish.address, wish.size_bytes()) else { return true };
        if self.open_windows(&found, wish.address, wish.size_bytes()).is_err() {
            return true;
        }
        let bytes = found.bytes_at(wish.address).0;
        // SAFETY: the range lies whole in memory that is alive, and the call checked that the address is a multiple of
        // the size. The program may write pinned memory at the same time, so it is read by one atomic access.
        let found = unsafe {
            if wish.is_wide {
                AtomicU64::from_ptr(bytes.cast()).load(Ordering::Acquire)
            } else {
                u64::from(AtomicU32::from_ptr(bytes.cast()).load(Ordering::Acquire))
            }
        };
        condition.is_met(found, wish)
    }

    /// A value is written, or a wait for one is over: its memory has to be there. Such accesses race with nothing; who
    /// waited knows what the writer knew.
    pub(super) fn execute_value(&mut self, wish: &Value, is_write: bool) -> Result<u64, Fault> {
        let size_bytes = wish.size_bytes();
        let Some(found) = self.memory.live(wish.address, size_bytes) else {
            let what = if is_write { "write of a value" } else { "wait for a value" };
            let (kind, why, allocation) = self.memory.describe(wish.address, size_bytes);
            let allocation = self.boxed_origin(allocation);
            let text = format!("{what} of {size_bytes} bytes: {why}");
            return Err(Fault { kind, code: ILLEGAL_ADDRESS, text, allocation });
        };
        if is_write && found.owner.is_read_only() {
            let text = format!("write of a value of {size_bytes} bytes: {}", read_only(wish.address));
            let allocation = self.boxed_origin(Some(found));
            return Err(Fault { kind: FaultKind::ReadOnly, code: ILLEGAL_ADDRESS, text, allocation });
        }
        self.open_windows(&found, wish.address, size_bytes).map_err(Fault::of_host)?;
        let deed = if is_write { Deed::ValueWrite } else { Deed::ValueWait };
        self.note_value(deed, wish.address, &found);
        if !is_write {
            self.clock_learns_value(self.place_of(wish.address, &found), found.owner.is_host());
            return Ok(self.config.costs.mark_ns);
        }
        self.clock_tells_value(self.place_of(wish.address, &found));
        let bytes = found.bytes_at(wish.address).0;
        // SAFETY: the range lies whole in memory that is alive, devices may write it, and the call checked that the
        // address is a multiple of the size. The program may read pinned memory at the same time, so it is one access.
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

const FLUSH: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        let narrow = |value| Value { address: 0, is_wide: false, value };
        let wide = |value| Value { address: 0, is_wide: true, value };
        assert!(Condition::Reached.is_met(3, &narrow(3)) && !Condition::Reached.is_met(2, &narrow(3)));
        assert!(Condition::Reached.is_met(1, &narrow(0xffff_ffff)));
        assert!(!Condition::Reached.is_met(1, &wide(0xffff_ffff)));
        assert!(Condition::Reached.is_met(1, &wide(u64::MAX)));
        assert!(Condition::AnyBit.is_met(6, &narrow(2)) && !Condition::AnyBit.is_met(6, &narrow(1)));
        assert!(Condition::Nor.is_met(1, &narrow(2)) && !Condition::Nor.is_met(0xffff_fff0, &narrow(0xf)));
        assert!(Condition::Nor.is_met(0xffff_fff0, &wide(0xf)));
        assert!(!Condition::Equal.is_met(1, &narrow(2)));
    }
}
