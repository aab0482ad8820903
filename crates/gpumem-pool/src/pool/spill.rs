//! Spilling: while device memory is short, the contents of blocks that are not in use move to pinned host memory, and return before
//! their next use.
//!
//! A [`SpillableBlock`] has an identity, and an address that may change. Work finds the address inside the call that queues it, and a
//! block moves only while no such call is active:
//!
//! 1. The pool's ladder finds no memory and asks the [`Spiller`] for room (`make_room`). The spiller takes its turn: one thread at a time
//!    moves contents.
//! 2. The plan chooses blocks ([`SpillPlan`]). They are closed: calls that begin from now on do not use them. Then all earlier calls on the
//!    device's streams end, so that all uses of the blocks are recorded.
//! 3. Contents that the host has no copy of are copied down, behind the uses, on a stream of the spiller. The block is freed in stream
//!    order. The host waits for nothing.
//! 4. The request finds the memory, and waits for its last uses on the device.
//!
//! A call that finds a block closed ends without any work, and its caller *settles* the blocks ([`SpillableBlock::settle`]): in a turn, new
//! memory is allocated and filled on another stream of the spiller, and the caller's stream waits for that. The caller keeps the turn
//! until its work is queued, so that nothing moves out in between.
//!
//! Code that keeps the address beyond a call *pins* the block.

mod block;
mod plan;
mod turn;

pub use block::{Settled, SpillPin, SpillableBlock};

use crate::backend::MemorySource;
use crate::config::{MemoryKind, Spill};
use crate::error::PoolError;
use crate::figures::ActivityCounters;
use crate::limits::spills::Spills;
use crate::pool::Pool;
use crate::pool::hub::Hub;
use crate::pool::request::ahead::ahead_of_use;
use block::Movable;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::{Device, Stream};
use gpumem_sys::fork;
use plan::{SpillPlan, SpillUse};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use turn::{Turn, Turns};

/// Moves the contents of one pool's spillable blocks.
pub(crate) struct Spiller {
    device: Device,
    /// The limit of the host memory.
    limit_bytes: u64,
    /// Smaller blocks stay.
    size_bytes_min: u64,
    /// The pinned memory that contents move to.
    host: Pool,
    activity: Arc<ActivityCounters>,
    /// For copies to the host, for copies from it, and behind the uses of contents that need no copy. Created at the first move.
    streams: OnceLock<[Stream; 3]>,
    turns: Turns,
    /// True once anything has moved: operations are recorded from then on.
    is_active: AtomicBool,
    plan: Lock<SpillPlan>,
    blocks: Lock<BTreeMap<u64, Weak<Movable>>>,
    away_bytes: AtomicU64,
    /// In a turn: contents that are expected within as many operations stay.
    nearest: AtomicU64,
    /// In a turn: contents are about to return, and room is made for them.
    is_returning: AtomicBool,
}

impl Spiller {
    /// `None` if the option is off, or if the pool's memory is not that of the device.
    pub(super) fn open(hub: &Hub) -> Result<Option<Arc<Self>>, PoolError> {
        let (device, config) = (hub.device(), hub.config());
        let Spill::Host { limit_bytes } = config.spill else { return Ok(None) };
        if config.kind != MemoryKind::Device {
            return Ok(None);
        }
        let host =
            Pool::builder(device).kind(MemoryKind::Host).hard_limit(limit_bytes).name("spilled").build()?;
        Ok(Some(Arc::new(Self {
            device: device.clone(),
            limit_bytes,
            size_bytes_min: config.spill_bytes_min.unwrap_or(SIZE_BYTES_MIN).max(1),
            host,
            activity: Arc::clone(&hub.activity),
            streams: OnceLock::new(),
            turns: Turns::default(),
            is_active: AtomicBool::new(false),
            plan: Lock::default(),
            blocks: Lock::default(),
            away_bytes: AtomicU64::new(0),
            nearest: AtomicU64::new(0),
            is_returning: AtomicBool::new(false),
        })))
    }

    fn of(pool: &Pool) -> Option<Arc<Self>> {
        let spiller: Arc<dyn Any + Send + Sync> = Arc::<dyn Spills>::clone(pool.0.spiller()?);
        spiller.downcast().ok()
    }

    #[inline]
    fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn streams(&self) -> Result<&[Stream; 3], PoolError> {
        if let Some(streams) = self.streams.get() {
            return Ok(streams);
        }
        let made = [Stream::new(&self.device)?, Stream::new(&self.device)?, Stream::new(&self.device)?];
        Ok(self.streams.get_or_init(|| made))
    }

    fn block(&self, number: u64) -> Option<Arc<Movable>> {
        self.blocks.lock().get(&number)?.upgrade()
    }

    /// Moves contents out until `size_bytes` are freed. Returns the freed bytes.
    fn free(&self, turn: &Turn<'_>, size_bytes: u64) -> u64 {
        let chosen = self.choose(turn, size_bytes);
        let taken: Vec<_> = chosen.into_iter().filter(|block| block.close()).collect();
        if taken.is_empty() {
            return 0;
        }
        self.is_active.store(true, Ordering::Relaxed);
        self.device.sleepers().let_calls_end();
        let mut freed_bytes = 0;
        for block in &taken {
            if self.move_out(block).unwrap_or(false) {
                freed_bytes += block.size_bytes;
                self.plan.lock().set_resident(block.number, false, false);
            } else {
                block.open();
            }
        }
        self.note_away();
        freed_bytes
    }

    fn choose(&self, turn: &Turn<'_>, size_bytes: u64) -> Vec<Arc<Movable>> {
        // Upgraded outside the lock of the plan, which the drop of a block takes.
        let live: BTreeMap<u64, Arc<Movable>> = {
            let blocks = self.blocks.lock();
            blocks.iter().filter_map(|(number, block)| Some((*number, block.upgrade()?))).collect()
        };
        let cost = |number| {
            let block = live.get(&number).filter(|block| block.may_move(turn.number()))?;
            Some(if block.is_saved() { 1.0 } else { DIRTY_COST })
        };
        let numbers = self.plan.lock().victims(size_bytes, self.nearest.load(Ordering::Relaxed), cost);
        numbers.iter().filter_map(|number| live.get(number).cloned()).collect()
    }

    /// Copies the contents down unless the host has them, and frees the memory. False if they must stay.
    fn move_out(&self, block: &Movable) -> Result<bool, PoolError> {
        if block.is_pinned() {
            return Ok(false);
        }
        let [down, _, uses] = self.streams()?;
        if block.is_saved() {
            block.free_device_memory(uses)?;
        } else {
            if !block.has_copy() && !self.has_host_room(block.size_bytes) {
                return Ok(false);
            }
            let saved = block.save(&self.host, down);
            if saved.is_err() && self.drop_copies(|_| true) {
                block.save(&self.host, down)?;
            } else {
                saved?;
            }
            self.activity.spilled_down_bytes.add(block.size_bytes);
            block.free_device_memory(down)?;
        }
        self.activity.spill_count.add(1);
        Ok(true)
    }

    /// True if the host has room for a copy of such a size, and, unless contents are about to return, for another one: what is away can
    /// return only if something else can leave.
    fn has_host_room(&self, size_bytes: u64) -> bool {
        let copies = if self.is_returning.load(Ordering::Relaxed) { 1 } else { 2 };
        let needed_bytes = copies * size_bytes.max(self.plan.lock().largest_away_bytes());
        let fits =
            || self.host.0.backend.counts().in_use_bytes.saturating_add(needed_bytes) <= self.limit_bytes;
        fits() || self.drop_copies(Movable::has_stale_copy) && fits() || self.drop_copies(|_| true) && fits()
    }

    /// Frees the host memory of contents that the device has, too. True if there was any.
    fn drop_copies(&self, which: impl Fn(&Movable) -> bool) -> bool {
        let live: Vec<_> = self.blocks.lock().values().filter_map(Weak::upgrade).collect();
        live.iter().filter(|block| which(block) && block.drop_copy()).count() > 0
    }

    /// Brings contents back, if they are away.
    fn bring_back(&self, block: &Movable, is_early: bool) -> Result<(), PoolError> {
        if !block.is_away() {
            return Ok(());
        }
        let [_, up, _] = self.streams()?;
        let outer = self.is_returning.swap(true, Ordering::Relaxed);
        let returned = block.bring_back(up);
        self.is_returning.store(outer, Ordering::Relaxed);
        let copied_bytes = returned?;
        self.activity.spilled_up_bytes.add(copied_bytes);
        self.plan.lock().set_resident(block.number, true, is_early);
        self.note_away();
        Ok(())
    }

    /// Frees memory ahead of the next requests, of contents that are not expected soon: copies down then run beside the work.
    fn keep_reserve(&self, pool: &Pool) {
        let wanted_bytes = self.plan.lock().reserve_bytes();
        if wanted_bytes == 0 {
            return;
        }
        let Ok(free_bytes) = free_bytes(&pool.0) else { return };
        if free_bytes >= wanted_bytes {
            return;
        }
        let Some(turn) = self.turns.try_begin() else { return };
        self.nearest.store(RESERVE_DISTANCE, Ordering::Relaxed);
        self.free(&turn, wanted_bytes - free_bytes);
        self.nearest.store(0, Ordering::Relaxed);
    }

    fn note_away(&self) {
        self.away_bytes.store(self.plan.lock().away_bytes(), Ordering::Relaxed);
    }

    /// Records an operation that has been queued, and brings contents back that the next ones are expected to use.
    fn note_operation(&self, uses: &[SpillUse]) {
        let returning = {
            let mut plan = self.plan.lock();
            plan.note(uses);
            plan.returning()
        };
        if returning.is_empty() {
            return;
        }
        // Another thread that moves contents knows better what is needed now.
        let Some(turn) = self.turns.try_begin() else { return };
        for number in returning {
            let Some(block) = self.block(number) else { continue };
            block.protect(&turn);
            let nearest = self.plan.lock().expected_in(number).unwrap_or(0);
            self.nearest.store(nearest, Ordering::Relaxed);
            let returned = ahead_of_use(|| self.bring_back(&block, true));
            self.nearest.store(0, Ordering::Relaxed);
            // Without memory for it, it returns at its use.
            if returned.is_err() {
                return;
            }
        }
    }
}

impl Spills for Spiller {
    fn make_room(&self, size_bytes: u64) -> u64 {
        // In a call on a stream, this thread would wait for itself.
        if fork::is_child() || self.device.sleepers().check_not_in_call().is_err() {
            return 0;
        }
        let turn = self.turns.begin();
        self.free(&turn, size_bytes)
    }

    fn away_bytes(&self) -> u64 {
        self.away_bytes.load(Ordering::Relaxed)
    }

    fn host_bytes(&self) -> u64 {
        self.host.0.reserved_bytes().unwrap_or(0)
    }
}

/// The memory that the pool can hand out without moving anything.
fn free_bytes(hub: &Hub) -> Result<u64, PoolError> {
    let room_bytes = match hub.limits.hard_bytes() {
        Some(_) => hub.limits.node.room_bytes(),
        None => hub.device().memory_info()?.free_bytes,
    };
    let cached_bytes = hub.reserved_bytes()?.saturating_sub(hub.backend.counts().in_use_bytes);
    Ok(room_bytes.saturating_add(cached_bytes))
}

/// The reserve takes no block that is expected within this number of operations.
const RESERVE_DISTANCE: u64 = 32;
/// Moving smaller blocks frees little, and each move costs some microseconds.
const SIZE_BYTES_MIN: u64 = 64 << 10;
/// The relative cost of moving contents that the host has no copy of.
const DIRTY_COST: f64 = 1.5;
