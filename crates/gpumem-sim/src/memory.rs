//! Memory: which addresses are allocated, seen from two sides, and the bytes behind them.
//!
//! The host's view ([`Memory::at_call`]) changes when the program calls: it says what may be passed to the driver.
//! The device's view ([`Memory::at_run`]) changes when queued work runs: stream-ordered memory appears there when its
//! allocation's turn comes and vanishes at its free's. Work looks addresses up in the second when it runs, so a use
//! that nothing orders after the allocation, or before the free, is found out for some seed, and the same address can
//! belong to an old block for work queued earlier and to a new one for work queued later.
//!
//! Device addresses start at [`DEVICE_SPACE`], where no host allocation can be. Host memory that the program pins
//! has the same address on both sides.

use super::backing::Bytes;
use super::codes::{Answer, INVALID_VALUE};
use super::finding::FaultKind;
use super::handle::Handle;
use super::machine::Machine;
use super::origins::Origins;
use super::owner::Owner;
use super::stream::Point;
use std::collections::{BTreeMap, VecDeque};

/// Both views.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) at_call: BTreeMap<u64, Allocation>,
    pub(super) at_run: BTreeMap<u64, Allocation>,
    /// Allocations in stream order that were freed before their turn came, and so never appear.
    stillborn: Vec<Point>,
    /// The addresses that the program has given back last.
    pub(super) retired: VecDeque<u64>,
    /// The last few that are gone, to name them in a report.
    gone: VecDeque<Allocation>,
    pub(super) origins: Origins,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    pub(super) base: u64,
    pub(super) size_bytes: u64,
    pub(super) bytes: Bytes,
    pub(super) device: usize,
    pub(super) context: Handle,
    pub(super) owner: Owner,
    /// The call that made it.
    pub(super) call: u64,
    /// The end of its allocation in stream order; none where it was there at once.
    pub(super) born: Option<Point>,
}

impl Allocation {
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Mapped { .. })
    }

    pub(super) fn end(&self) -> u64 {
        self.base + self.size_bytes
    }

    fn holds(&self, address: u64, size_bytes: u64) -> bool {
        let offset_bytes = address - self.base;
        offset_bytes <= self.size_bytes && size_bytes <= self.size_bytes - offset_bytes
    }

    /// Where an address inside it lies in this process.
    pub(super) fn bytes_at(&self, address: u64) -> Bytes {
        self.bytes.at(address - self.base)
    }
}

impl Memory {
    pub(super) fn new(origins: Origins) -> Self {
        Self { origins, ..Self::default() }
    }

    /// The allocation that a program may use these bytes of, as of now.
    pub(super) fn known(&self, address: u64, size_bytes: u64) -> Option<Allocation> {
        find(&self.at_call, address, size_bytes)
    }

    /// The allocation that holds these bytes while work runs.
    pub(super) fn live(&self, address: u64, size_bytes: u64) -> Option<Allocation> {
        find(&self.at_run, address, size_bytes)
    }

    /// Memory that is there for the host and the device at once.
    pub(super) fn insert(&mut self, allocation: Allocation) {
        self.at_call.insert(allocation.base, allocation);
        self.at_run.insert(allocation.base, allocation);
    }

    /// Memory that both sides lose at once.
    pub(super) fn remove(&mut self, base: u64) {
        self.at_call.remove(&base);
        self.free_now(base);
    }

    /// The device's side of an allocation in stream order, whose turn has come. Whether it was not freed before.
    pub(super) fn born(&mut self, allocation: Allocation, at: Point) -> bool {
        match self.stillborn.iter().position(|&stillborn| stillborn == at) {
            Some(index) => {
                self.stillborn.swap_remove(index);
                false
            }
            None => {
                self.at_run.insert(allocation.base, allocation);
                true
            }
        }
    }

    /// The device's side of a free.
    pub(super) fn free_now(&mut self, base: u64) {
        let Some(allocation) = self.at_run.remove(&base) else { return };
        self.gone.push_back(allocation);
        if self.gone.len() > GONE_MAX
            && let Some(oldest) = self.gone.pop_front()
            && self.at_call.get(&oldest.base).is_none_or(|found| found.call != oldest.call)
        {
            self.origins.forget(oldest.call);
        }
    }

    /// The last that is gone of what held an address.
    pub(super) fn gone_at(&self, address: u64) -> Option<Allocation> {
        let covers = |gone: &&Allocation| gone.base <= address && gone.holds(address, 1);
        self.gone.iter().rev().find(covers).copied()
    }

    /// Why work could not use an address: the kind of fault, in words, and the allocation that is or was there.
    pub(super) fn describe(&self, address: u64, size_bytes: u64) -> (FaultKind, String, Option<Allocation>) {
        let covers = |allocation: &&Allocation| {
            allocation.base <= address && address - allocation.base < allocation.size_bytes.max(1)
        };
        let name = |allocation: &Allocation| {
            format!("the allocation of {} bytes at {:#x}", allocation.size_bytes, allocation.base)
        };
        if let Some(allocation) = below(&self.at_run, address).filter(|a| a.holds(address, 0)) {
            let offset_bytes = address - allocation.base;
            let text = format!(
                "{size_bytes} bytes at {address:#x} run past the end of {} (offset {offset_bytes})",
                name(allocation)
            );
            return (FaultKind::OutOfBounds, text, Some(*allocation));
        }
        // An import is there from its call on, until what it is of goes.
        let is_unborn = |found: &&Allocation| covers(found) && !matches!(found.owner, Owner::Imported(_));
        if let Some(allocation) = below(&self.at_call, address).filter(is_unborn) {
            let text = format!(
                "{address:#x} is in {}, whose allocation on its stream nothing orders before this use",
                name(allocation)
            );
            return (FaultKind::UseBeforeAllocation, text, Some(*allocation));
        }
        match self.gone.iter().rev().find(covers) {
            Some(allocation) => {
                let (kind, what) = match allocation.is_mapped() {
                    true => (FaultKind::UseAfterUnmap, "unmapped"),
                    false => (FaultKind::UseAfterFree, "freed"),
                };
                let text = format!("{address:#x} is in {}, which was {what}", name(allocation));
                (kind, text, Some(*allocation))
            }
            None => (FaultKind::NoAllocation, format!("{address:#x} is in no allocation"), None),
        }
    }
}

fn find(view: &BTreeMap<u64, Allocation>, address: u64, size_bytes: u64) -> Option<Allocation> {
    let first = below(view, address)?;
    if first.holds(address, size_bytes) {
        Some(*first)
    } else {
        side_by_side(view, first, address, size_bytes)
    }
}

/// Handles mapped side by side are one range of memory, in this process too. Devices reach it that reach all of it.
fn side_by_side(
    view: &BTreeMap<u64, Allocation>,
    first: &Allocation,
    address: u64,
    size_bytes: u64,
) -> Option<Allocation> {
    let Owner::Mapped { handle, mut devices } = first.owner else { return None };
    let mut whole = *first;
    for next in view.range(first.end()..).map(|(_, next)| next) {
        let Owner::Mapped { devices: also, .. } = next.owner else { break };
        if next.base != whole.end() {
            break;
        }
        devices &= also;
        whole.size_bytes += next.size_bytes;
        if whole.holds(address, size_bytes) {
            return Some(Allocation { owner: Owner::Mapped { handle, devices }, ..whole });
        }
    }
    None
}

fn below(view: &BTreeMap<u64, Allocation>, address: u64) -> Option<&Allocation> {
    view.range(..=address).next_back().map(|(_, allocation)| allocation)
}

impl Machine {
    /// Takes away what a context owns, and with a primary context what its device's pools have handed out.
    pub(super) fn memory_forget(&mut self, context: Handle, device: Option<usize>) {
        let owned = |allocation: &&Allocation| match allocation.owner {
            Owner::Pool(_) | Owner::PinnedPool(_) | Owner::ManagedPool(_) | Owner::Imported(_) => {
                Some(allocation.device) == device
            }
            // Handles belong to no context.
            Owner::Mapped { .. } => false,
            _ => allocation.context == context,
        };
        let bases: Vec<u64> = self.memory.at_call.values().filter(owned).map(|found| found.base).collect();
        for base in bases {
            // Each is known, so none can be refused.
            let _ = self.free_any(base);
        }
        if let Some(device) = device {
            self.pools_trim(device);
        }
    }

    /// Frees device memory or pinned memory of either kind, once nothing uses it.
    fn free_any(&mut self, base: u64) -> Answer<()> {
        let owner = self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?.owner;
        match owner {
            Owner::Plain
            | Owner::Pool(_)
            | Owner::PinnedPool(_)
            | Owner::ManagedPool(_)
            | Owner::Imported(_)
            | Owner::Managed
            | Owner::Mapped { .. } => self.free(base),
            Owner::Opened => {
                self.import_close(base);
                Ok(())
            }
            Owner::Graph => {
                self.graph_memory_remove(base);
                Ok(())
            }
            Owner::Host { .. } => self.host_free(base),
            Owner::Registered { .. } => self.host_unregister(base),
        }
    }

    /// Frees device memory for the host and the device at once. The device's work has run.
    pub(super) fn free(&mut self, base: u64) -> Answer<()> {
        let allocation = self.device_allocation(base)?;
        self.retire(base);
        self.release(&allocation, None);
        Ok(())
    }

    /// The device memory that begins at an address and can be freed there. What is mapped is unmapped instead.
    pub(super) fn device_allocation(&self, base: u64) -> Answer<Allocation> {
        let found = *self.memory.at_call.get(&base).ok_or(INVALID_VALUE)?;
        match found.owner {
            Owner::Plain
            | Owner::Pool(_)
            | Owner::PinnedPool(_)
            | Owner::ManagedPool(_)
            | Owner::Imported(_)
            | Owner::Managed => Ok(found),
            Owner::Graph if self.graph_memory_is_live(base) => Ok(found),
            Owner::Host { .. }
            | Owner::Registered { .. }
            | Owner::Mapped { .. }
            | Owner::Opened
            | Owner::Graph => Err(INVALID_VALUE),
        }
    }

    /// The host's side of a free: the address may not be passed to the driver any more.
    pub(super) fn retire(&mut self, base: u64) {
        // A graph keeps its addresses.
        if self.memory.at_call.get(&base).is_some_and(|found| found.owner == Owner::Graph) {
            return self.graph_memory_retire(base);
        }
        let Some(allocation) = self.memory.at_call.remove(&base) else { return };
        if self.memory.retired.len() == GONE_MAX {
            self.memory.retired.pop_front();
        }
        self.memory.retired.push_back(base);
        if let Some(pool) = allocation.owner.pool() {
            self.pool_retire(pool, allocation.size_bytes);
        }
    }

    /// The point at which the device will have the memory, if it has not been there yet.
    pub(super) fn unborn(&self, allocation: &Allocation) -> Option<Point> {
        allocation.born.filter(|&born| !self.is_done(born))
    }

    /// The device's side: the bytes may be handed out again. `at` is the point of a free in stream order.
    pub(super) fn release(&mut self, allocation: &Allocation, at: Option<Point>) {
        match self.unborn(allocation) {
            Some(born) => self.memory.stillborn.push(born),
            None => self.memory.free_now(allocation.base),
        }
        self.note_free(allocation);
        match allocation.owner {
            Owner::Plain => self.plain_release(allocation),
            Owner::Graph => self.graph_memory_released(allocation.base),
            Owner::Pool(pool) => {
                self.imports_lose(allocation);
                self.pool_release(pool, allocation.base, allocation.size_bytes, at);
            }
            Owner::PinnedPool(pool) | Owner::ManagedPool(pool) => {
                self.pool_release(pool, allocation.base, allocation.size_bytes, at);
            }
            Owner::Imported(_) | Owner::Opened => self.import_release(allocation.base),
            Owner::Managed => self.managed_release(allocation.base),
            Owner::Host { .. } | Owner::Registered { .. } | Owner::Mapped { .. } => {}
        }
    }
}

/// The first device address: beyond what a host's pointer can be, and with the bit set that sends ARM processors
/// (which ignore the top byte) into the kernel's half, so that following one faults everywhere.
pub(super) const DEVICE_SPACE: u64 = 0x4080_0000_0000_0000;

/// The addresses of one device, and so the most memory it can have (half of it, so that addresses never run out).
pub(super) const DEVICE_SPACE_BYTES: u64 = 1 << 43;

/// The first address of a device of an instance.
pub(super) fn device_space(slot: usize, device: usize) -> u64 {
    DEVICE_SPACE + ((slot as u64) << 49) + device as u64 * DEVICE_SPACE_BYTES
}

pub(super) fn is_device_address(address: u64) -> bool {
    address >= DEVICE_SPACE
}

/// The first address of the ranges that an instance's programs reserve, behind every device's.
pub(super) fn reserved_space(slot: usize) -> u64 {
    DEVICE_SPACE + (1 << 56) + ((slot as u64) << 49)
}

/// The addresses that an instance's programs can reserve.
pub(super) const RESERVED_SPACE_BYTES: u64 = 1 << 49;

const GONE_MAX: usize = 256;
