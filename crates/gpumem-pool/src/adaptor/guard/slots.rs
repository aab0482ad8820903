//! [`Slots`]: pinned host memory into which the edges of dropped blocks are copied.
//!
//! Each device has a slab. A drop takes a slot, the device fills it, and the check frees it. When a guard is dropped, its devices take the
//! slabs and free them once all copies are complete.

use super::{BACK_BYTES_MAX, FRONT_BYTES, PoolId, Release};
use crate::error::PoolError;
use core::ffi::c_void;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{Clocks, Handle, HowFar, Order, Stamp, WeakDevice};
use gpumem_device::{Device, StreamId};
use gpumem_sys::Driver;
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Slots(Lock<Vec<Slab>>);

/// The edges of a freed block that are being copied.
#[derive(Clone)]
pub(crate) struct Edges {
    pub(super) address: CUdeviceptr,
    pub(super) size_bytes: u64,
    pub(super) back_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
    pub(super) pool_name: Arc<str>,
    pub(super) tag: Option<Arc<str>>,
}

struct Slab {
    device: WeakDevice,
    memory: Handle<c_void>,
    free: Vec<usize>,
    filling: Vec<Filling>,
}

struct Filling {
    slot: usize,
    /// Covers the copies.
    stamp: Stamp,
    edges: Edges,
}

/// A block, and the guard bytes before and after it.
pub(super) type Done = (Edges, Vec<u8>, Vec<u8>);

impl Slots {
    pub(super) fn prepare(&self, device: &Device) -> Result<(), PoolError> {
        let mut slabs = self.0.lock();
        if !slabs.iter().any(|slab| slab.is_of(device)) {
            slabs.push(Slab::new(device)?);
        }
        Ok(())
    }

    /// Queues copies of a block's guard bytes behind its uses. False if that is impossible now.
    pub(super) fn fill(&self, release: &Release<'_>, edges: Edges) -> bool {
        let mut slabs = self.0.lock();
        let Some(slab) = slabs.iter_mut().find(|slab| slab.is_of(release.device())) else { return false };
        let Some(slot) = slab.free.pop() else { return false };
        let Edges { address, size_bytes, back_bytes, stream, .. } = edges;
        let (start, end) = (address - FRONT_BYTES, address + size_bytes);
        let (front, back) = (slab.at(slot), slab.at(slot).wrapping_byte_add(FRONT_BYTES as usize));
        let mut is_tried = false;
        let queued = release.queue(|driver, owner_stream| {
            is_tried = true;
            // SAFETY: the slot is as long as both parts together, and does not move until the copies are known to be
            // complete. The block's edges are granted with it, and released behind these copies.
            unsafe {
                driver.cuMemcpyAsync(place(front), start, FRONT_BYTES as usize, owner_stream)?;
                driver.cuMemcpyAsync(place(back), end, back_bytes as usize, owner_stream)
            }
        });
        if !queued {
            // After a failed attempt, one of the copies may be queued: the slot is not used again.
            slab.free.extend((!is_tried).then_some(slot));
            return false;
        }
        let clocks = release.device().clocks();
        let stamp = clocks.stamp_of(stream);
        slab.filling.push(Filling { slot, stamp, edges });
        // Without a marker, the copies are known to be complete once the stream or the device has been waited for.
        let _ = clocks.record_marker(stream.stream_index());
        true
    }

    pub(super) fn done(&self) -> Vec<Done> {
        let mut slabs = self.0.lock();
        slabs.iter_mut().flat_map(Slab::done).collect()
    }
}

impl Slab {
    fn new(device: &Device) -> Result<Self, PoolError> {
        let _entered = device.enter_relaxed()?;
        let mut memory = core::ptr::null_mut();
        // SAFETY: `memory` outlives the call, and the context is current.
        unsafe { device.driver().cuMemHostAlloc(&mut memory, SLOT_COUNT * SLOT_BYTES, 0)? };
        let (device, memory) = (device.downgrade(), Handle(memory));
        Ok(Self { device, memory, free: (0..SLOT_COUNT).collect(), filling: Vec::new() })
    }

    fn is_of(&self, device: &Device) -> bool {
        self.device.is_same(&device.downgrade())
    }

    fn at(&self, slot: usize) -> *mut c_void {
        self.memory.0.wrapping_byte_add(slot * SLOT_BYTES)
    }

    fn done(&mut self) -> Vec<Done> {
        if self.filling.is_empty() {
            return Vec::new();
        }
        let Some(device) = self.device.upgrade() else { return Vec::new() };
        // A failed query completes nothing.
        let _ = device.clocks().poll_next(POLLED_AT_ONCE);
        let is_complete = |filling: &mut Filling| device.clocks().is_complete(filling.stamp);
        let done: Vec<Filling> = self.filling.extract_if(.., is_complete).collect();
        let done = done.into_iter().map(|Filling { slot, edges, .. }| {
            let read = |offset_bytes: u64, size_bytes: u64| -> Vec<u8> {
                let bytes: *const u8 = self.at(slot).wrapping_byte_add(offset_bytes as usize).cast();
                // SAFETY: the copies into the slot are complete, no other code writes it, and it is at least this long.
                unsafe { core::slice::from_raw_parts(bytes, size_bytes as usize).to_vec() }
            };
            let edge_bytes = (read(0, FRONT_BYTES), read(FRONT_BYTES, edges.back_bytes));
            self.free.push(slot);
            (edges, edge_bytes.0, edge_bytes.1)
        });
        done.collect()
    }
}

impl Slab {
    /// See `Maintenance::defer_release`.
    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
        let is_complete = |filling: &mut Filling| clocks.is_complete(filling.stamp);
        let done = self.filling.extract_if(.., is_complete).map(|filling| filling.slot);
        self.free.extend(done);
        if !(how == HowFar::All || self.free.len() == SLOT_COUNT) {
            return false;
        }
        // SAFETY: no copy is pending, and no other code has the address. A failure is retried later.
        unsafe { driver.cuMemFreeHost(self.memory.0) }.is_ok()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for mut slab in self.0.lock().drain(..) {
            // Without its context, the memory no longer exists.
            if let Some(device) = slab.device.upgrade() {
                let release =
                    move |driver: &Driver, clocks: &Clocks, how| slab.give_back(driver, clocks, how);
                device.maintenance().defer_release(true, true, release);
            }
        }
    }
}

/// The destination of a copy as the driver's address type. The driver determines from the address that it is host
/// memory.
fn place(host: *mut c_void) -> CUdeviceptr {
    host.expose_provenance() as CUdeviceptr
}

const SLOT_BYTES: usize = (FRONT_BYTES + BACK_BYTES_MAX) as usize;
const SLOT_COUNT: usize = 1024;

/// The number of streams queried at an allocation. A number instead of a time, so that a program under investigation behaves reproducibly.
const POLLED_AT_ONCE: usize = 16;
