//! [`Guard`]: guard bytes before and after each block, checked when the block is freed.
//!
//! ```text
//! granted: [ front: 256, or the alignment ][ the block ][ to the next 256, and 256 more ]
//! ```
//!
//! Dropping a block must not wait. The drop queues copies of its edges into pinned host memory, behind all uses, and releases the block
//! behind the copies. The next allocation, or a call of [`Guard::settle`], checks the completed copies.

mod slots;

use super::fill::set_now;
use super::{Adaptor, Damage, Grant, Next, PoolId, Release, Request, Side};
use crate::config::ALIGNMENT_MIN;
use crate::error::PoolError;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_sys::fork;
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::CUdeviceptr;
use slots::{Edges, Slots};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Detects writes past the ends of blocks, up to 256 bytes before and after, to the byte.
///
/// Damage is reported to the observer ([`Guard::on_damage`]). Without an observer, the next allocation returns [`PoolError::Damaged`], once
/// for each block. Damage is detected once the device has completed the block's uses, so wait for the device and call [`Guard::settle`] to
/// get all reports.
///
/// Each block costs its alignment plus 512 bytes, which the pool counts as in use, four small driver calls, and a marker in the stream at
/// the free. A block is not checked in these cases ([`Guard::unchecked_count`]):
///
/// - at the free, its owner stream is gone, belongs to another library, is capturing, or cannot wait for the block's
///   other users;
/// - 1024 checks are pending.
///
/// A graph's memory is checked as a whole when the graph is dropped. Growable blocks are refused
/// ([`PoolError::Refused`]).
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream, adaptor::{Guard, Side}};
/// use gpumem_sim::SimConfig;
/// use std::sync::{Arc, Mutex};
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let guard = Arc::new(Guard::new());
/// let pool = Pool::builder(&device).adaptor(guard.clone()).build()?;
/// let stream = Stream::new(&device)?;
///
/// let block = pool.alloc(1000, &stream)?;
/// let _bound = device.bind()?;
/// // SAFETY: none, to show the damage: one byte too many overwrites a guard byte.
/// unsafe { device.driver().cuMemsetD8Async(block.address(), 7, 1001, stream.raw())? };
/// drop(block);
/// device.synchronize()?;
/// let damage = &guard.settle()[0];
/// assert_eq!((damage.side, damage.distance_bytes, damage.found), (Side::Behind, 0, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Guard {
    slots: Slots,
    live: Lock<Live>,
    found: Lock<Vec<Damage>>,
    on_damage: Option<Box<OnDamage>>,
    unchecked_count: AtomicU64,
    checked_count: AtomicU64,
}

type OnDamage = dyn Fn(&Damage) + Send + Sync;

/// The live blocks, each with the name of its pool and its tag.
type Live = BTreeMap<(PoolId, CUdeviceptr), (Arc<str>, Option<Arc<str>>)>;

impl Guard {
    /// Creates a guard without an observer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `callback` for every damage instead of failing an allocation, on the thread that detects it, with no lock
    /// held.
    #[must_use]
    pub fn on_damage(mut self, callback: impl Fn(&Damage) + Send + Sync + 'static) -> Self {
        self.on_damage = Some(Box::new(callback));
        self
    }

    /// Checks all completed copies, without waiting, and returns the damage detected since the last call. With an
    /// observer the result is empty.
    #[must_use]
    pub fn settle(&self) -> Vec<Damage> {
        if fork::is_child() {
            return Vec::new();
        }
        self.look();
        core::mem::take(&mut *self.found.lock())
    }

    /// The number of checked blocks, damaged or not.
    #[must_use]
    pub fn checked_count(&self) -> u64 {
        self.checked_count.load(Ordering::Relaxed)
    }

    /// The number of blocks that could not be checked.
    #[must_use]
    pub fn unchecked_count(&self) -> u64 {
        self.unchecked_count.load(Ordering::Relaxed)
    }

    fn look(&self) {
        for (edges, front, back) in self.slots.done() {
            self.checked_count.fetch_add(1, Ordering::Relaxed);
            // Nearest byte first: the front in reverse.
            let front = front.iter().rev();
            for damage in [edges.damage(Side::Before, front), edges.damage(Side::Behind, back.iter())] {
                match (damage, &self.on_damage) {
                    (Some(damage), Some(callback)) => callback(&damage),
                    (Some(damage), None) => self.found.lock().push(damage),
                    (None, _) => {}
                }
            }
        }
    }
}

impl Adaptor for Guard {
    fn name(&self) -> &str {
        "guard"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.look();
        if let Some(damage) = self.found.lock().pop() {
            return Err(PoolError::Damaged(Box::new(damage)));
        }
        self.slots.prepare(request.device())?;
        let (front_bytes, back_bytes) = (request.alignment(), back_bytes(request.size_bytes()));
        let more_bytes = front_bytes.saturating_add(back_bytes);
        let whole = request.with_size(request.size_bytes().saturating_add(more_bytes));
        let mut grant = next.alloc(&whole)?;
        if !grant.narrow(front_bytes, request.size_bytes()) {
            // Only for requests of more than 2^63 bytes.
            return Err(PoolError::too_large(whole.size_bytes(), request.device().total_bytes()));
        }
        let (start, end) = (grant.address(), grant.address() + grant.size_bytes());
        set_now(request.stream(), &grant, start - FRONT_BYTES, PATTERN, FRONT_BYTES)?;
        set_now(request.stream(), &grant, end, PATTERN, back_bytes)?;
        self.live.lock().insert((request.pool(), start), (request.pool_name(), request.tag()));
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        // The fill at allocation may still be queued.
        release.set_used();
        let (address, size_bytes) = (release.address(), release.size_bytes());
        let (stream, pool) = (release.stream_id(), release.pool());
        let back_bytes = back_bytes(size_bytes);
        // An outer adaptor may forward the free of a block whose allocation this guard did not see. That block has no guard bytes, and the
        // memory around it belongs to other blocks.
        let whole = release.whole();
        let is_own = address.checked_sub(FRONT_BYTES).is_some_and(|start| whole.start <= start)
            && (address + size_bytes).checked_add(back_bytes).is_some_and(|end| end <= whole.end);
        let known = self.live.lock().remove(&(pool, address));
        let is_checked = known.is_some_and(|(pool_name, tag)| {
            let edges = Edges { address, size_bytes, back_bytes, stream, pool, pool_name, tag };
            is_own && self.slots.fill(release, edges)
        });
        if !is_checked {
            self.unchecked_count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Edges {
    /// The damage among the guard bytes of one side, the nearest first.
    fn damage<'a>(
        &self,
        side: Side,
        mut bytes: impl ExactSizeIterator<Item = &'a u8> + Clone,
    ) -> Option<Damage> {
        let count = bytes.clone().filter(|byte| **byte != PATTERN).count() as u64;
        let distance_bytes = bytes.clone().position(|byte| *byte != PATTERN)?;
        let found = *bytes.nth(distance_bytes)?;
        let Self { address, size_bytes, stream, pool, ref pool_name, ref tag, .. } = *self;
        let (distance_bytes, pool_name, tag) = (distance_bytes as u64, pool_name.clone(), tag.clone());
        Some(Damage { address, size_bytes, stream, pool, pool_name, tag, side, distance_bytes, count, found })
    }
}

debug_fields!(Guard, it, checked_count: it.checked_count(), unchecked_count: it.unchecked_count());

/// The guard bytes after a block: the rest of its last unit of 256 bytes, and one more unit.
fn back_bytes(size_bytes: u64) -> u64 {
    (size_bytes.wrapping_neg() & (ALIGNMENT_MIN - 1)) + ALIGNMENT_MIN
}

const FRONT_BYTES: u64 = ALIGNMENT_MIN;

const BACK_BYTES_MAX: u64 = 2 * ALIGNMENT_MIN;

/// The value of the guard bytes: a value that memory rarely holds.
const PATTERN: u8 = 0xFB;
