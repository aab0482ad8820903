//! Memory: the allocated addresses, seen from two sides, and the bytes behind them.
//!
//! The host's view ([`Memory::at_call`]) changes when the program calls: it determines which addresses may be passed to the
//! driver. The device's view ([`Memory::at_run`]) changes when queued work runs: stream-ordered memory appears there when its
//! allocation runs and disappears when its free runs. Work resolves addresses in the device's view when it runs. So a use that is
//! not ordered after the allocation, or before the free, is detected for some seed, and an address can belong to an old block for
//! work queued earlier and to a new block for work queued later.
//!
//! Device addresses start at [`DEVICE_SPACE`], where no host allocation can be. Pinned host memory has the same address on both
//! sides.

pub(crate) mod allocated_by;
pub(crate) mod device;
pub(crate) mod import;
pub(crate) mod managed;
pub(crate) mod pending;
pub(crate) mod plain;
pub(crate) mod pool;
pub(crate) mod pool_file;
pub(crate) mod pool_kind;
pub(crate) mod pool_reuse;
pub(crate) mod virtual_memory;
pub(crate) mod virtual_memory_shared;
#[allow(unsafe_code)]
pub(crate) mod window;

use crate::backing::Bytes;
use crate::base::address::is_device_address;
use crate::base::handle::Handle;
use crate::memory::allocated_by::AllocatedBy;
use crate::order::Point;
use crate::report::finding::FaultKind;
use crate::report::origins::Origins;
use std::collections::{BTreeMap, VecDeque};

/// Both views.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) at_call: BTreeMap<u64, Allocation>,
    pub(crate) at_run: BTreeMap<u64, Allocation>,
    /// Stream-ordered allocations that were freed before they ran, and so never appear.
    pub(crate) stillborn: Vec<Point>,
    /// The addresses that the program freed last.
    pub(crate) retired: VecDeque<u64>,
    /// The last few freed allocations, for reports.
    gone: VecDeque<Allocation>,
    pub(crate) origins: Origins,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size_bytes: u64,
    pub(crate) bytes: Bytes,
    pub(crate) device: usize,
    pub(crate) context: Handle,
    pub(crate) allocated_by: AllocatedBy,
    /// The number of the call that made it.
    pub(crate) call: u64,
    /// The point of its allocation in stream order; `None` if it was available right away.
    pub(crate) born: Option<Point>,
}

impl Allocation {
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.allocated_by, AllocatedBy::Mapped { .. })
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.size_bytes
    }

    fn holds(&self, address: u64, size_bytes: u64) -> bool {
        let offset_bytes = address - self.base;
        offset_bytes <= self.size_bytes && size_bytes <= self.size_bytes - offset_bytes
    }

    /// The location in this process of an address inside of it.
    pub(crate) fn bytes_at(&self, address: u64) -> Bytes {
        self.bytes.at(address - self.base)
    }
}

impl Memory {
    pub(crate) fn new(origins: Origins) -> Self {
        Self { origins, ..Self::default() }
    }

    /// The allocation in which a program may use these bytes now.
    pub(crate) fn known(&self, address: u64, size_bytes: u64) -> Option<Allocation> {
        find(&self.at_call, address, size_bytes)
    }

    /// The allocation that contains these bytes while work runs.
    pub(crate) fn live(&self, address: u64, size_bytes: u64) -> Option<Allocation> {
        find(&self.at_run, address, size_bytes)
    }

    /// Adds memory that is available to host and device right away.
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        self.at_call.insert(allocation.base, allocation);
        self.at_run.insert(allocation.base, allocation);
    }

    /// Removes memory from both views.
    pub(crate) fn remove(&mut self, base: u64) {
        self.at_call.remove(&base);
        self.free_now(base);
    }

    /// Adds a stream-ordered allocation, which now runs, to the device's view. Returns false if it was freed before.
    pub(crate) fn born(&mut self, allocation: Allocation, at: Point) -> bool {
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

    /// Removes memory from the device's view.
    pub(crate) fn free_now(&mut self, base: u64) {
        let Some(allocation) = self.at_run.remove(&base) else { return };
        self.gone.push_back(allocation);
        if self.gone.len() > GONE_MAX
            && let Some(oldest) = self.gone.pop_front()
            && self.at_call.get(&oldest.base).is_none_or(|found| found.call != oldest.call)
        {
            self.origins.forget(oldest.call);
        }
    }

    /// The last freed allocation that contained an address.
    pub(crate) fn gone_at(&self, address: u64) -> Option<Allocation> {
        let covers = |gone: &&Allocation| gone.base <= address && gone.holds(address, 1);
        self.gone.iter().rev().find(covers).copied()
    }

    /// The reason why work could not use an address: the kind of fault, a text, and the allocation that is or was there.
    pub(crate) fn describe(&self, address: u64, size_bytes: u64) -> (FaultKind, String, Option<Allocation>) {
        let covers = |allocation: &&Allocation| {
            allocation.base <= address && address - allocation.base < allocation.size_bytes.max(1)
        };
        let name = |allocation: &Allocation| {
            format!("the allocation of {} bytes at {:#x}", allocation.size_bytes, allocation.base)
        };
        // The address behind an allocation may be that of another one, which is gone.
        let gone = self.gone.iter().rev().find(covers);
        let is_own = |found: &&Allocation| found.holds(address, if gone.is_some() { 1 } else { 0 });
        if let Some(allocation) = below(&self.at_run, address).filter(is_own) {
            let offset_bytes = address - allocation.base;
            let text = format!(
                "{size_bytes} bytes at {address:#x} run past the end of {} (offset {offset_bytes})",
                name(allocation)
            );
            return (FaultKind::OutOfBounds, text, Some(*allocation));
        }
        // An import is available from its call until its source is freed.
        let is_unborn =
            |found: &&Allocation| covers(found) && !matches!(found.allocated_by, AllocatedBy::Imported(_));
        if let Some(allocation) = below(&self.at_call, address).filter(is_unborn) {
            let text = format!(
                "{address:#x} is in {}, whose allocation on its stream nothing orders before this use",
                name(allocation)
            );
            return (FaultKind::UseBeforeAllocation, text, Some(*allocation));
        }
        match gone {
            Some(allocation) => {
                let (kind, what) = match allocation.is_mapped() {
                    true => (FaultKind::UseAfterUnmap, "unmapped"),
                    false => (FaultKind::UseAfterFree, "freed"),
                };
                let text = format!("{address:#x} is in {}, which was {what}", name(allocation));
                (kind, text, Some(*allocation))
            }
            None => {
                let nearest = self.nearest(address, size_bytes, name);
                (FaultKind::NoAllocation, format!("{address:#x} is in no allocation{nearest}"), None)
            }
        }
    }

    /// How far an access to no allocation is from the nearest ones, below and above, on its side of the machine.
    fn nearest(&self, address: u64, size_bytes: u64, name: impl Fn(&Allocation) -> String) -> String {
        let is_here = |found: &&Allocation| is_device_address(found.base) == is_device_address(address);
        let end = address.saturating_add(size_bytes);
        let below = below(&self.at_run, address).filter(is_here);
        let above = self.at_run.range(address..).next().map(|(_, allocation)| allocation).filter(is_here);
        let below = below.map(|found| {
            format!("{} bytes past the end of {}", address.saturating_sub(found.end()), name(found))
        });
        let above = above.map(|found| match found.base.checked_sub(end) {
            Some(distance) => format!("{distance} bytes before {}", name(found)),
            None => format!("reaches into {}", name(found)),
        });
        match below.into_iter().chain(above).collect::<Vec<_>>().join(", and ") {
            nearest if nearest.is_empty() => nearest,
            nearest => format!(": {nearest}"),
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

/// Handles mapped side by side form one range of memory, in this process too. A device can access the range if it can access all
/// of it.
fn side_by_side(
    view: &BTreeMap<u64, Allocation>,
    first: &Allocation,
    address: u64,
    size_bytes: u64,
) -> Option<Allocation> {
    let AllocatedBy::Mapped { handle, mut devices } = first.allocated_by else { return None };
    let mut whole = *first;
    for next in view.range(first.end()..).map(|(_, next)| next) {
        let AllocatedBy::Mapped { devices: also, .. } = next.allocated_by else { break };
        if next.base != whole.end() {
            break;
        }
        devices &= also;
        whole.size_bytes += next.size_bytes;
        if whole.holds(address, size_bytes) {
            return Some(Allocation { allocated_by: AllocatedBy::Mapped { handle, devices }, ..whole });
        }
    }
    None
}

fn below(view: &BTreeMap<u64, Allocation>, address: u64) -> Option<&Allocation> {
    view.range(..=address).next_back().map(|(_, allocation)| allocation)
}

pub(crate) const GONE_MAX: usize = 256;
