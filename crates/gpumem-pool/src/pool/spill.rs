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
//!
//! Each pool has a spiller. Pools beneath one share its host memory, and all pools of a GPU share the turns: a request that a shared limit,
//! or the device, refuses asks the spillers of other pools, too.

mod block;
mod file;
mod neighbour;
mod plan;
mod timing;
mod turn;

pub use block::{Settled, SpillPin, SpillableBlock};

use crate::backend::MemorySource;
use crate::config::{MemoryKind, PoolId, Spill};
use crate::error::{KeptBy, PoolError, SpillReport};
use crate::figures::ActivityCounters;
use crate::limits::spills::{SpillFigures, Spills};
use crate::limits::{HARD_LIMIT_MIN_BYTES, LimitNode, WeakList};
use crate::pool::Pool;
use crate::pool::hub::Hub;
use crate::pool::observer::MoveKind;
use crate::pool::request::ahead::ahead_of_use;
use crate::pool::rooms::Rooms;
use block::{CopyState, Movable};
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use file::FileMemory;
use gpumem_base::sync::Lock;
use gpumem_device::{Device, Stream};
use gpumem_sys::fork;
use neighbour::{Guest, NeighbourMemory};
use plan::{SpillPlan, SpillUse};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use timing::Timings;
use turn::{Turn, Turns};

/// Moves the contents of one pool's spillable blocks.
pub(crate) struct Spiller {
    device: Device,
    /// The limit of the host memory.
    limit_bytes: u64,
    /// Smaller blocks stay.
    size_bytes_min: u64,
    /// The pinned memory that contents move to. Pools beneath one share it.
    host: Pool,
    /// Memory of another device that they move to first. Shared like that.
    neighbour: Option<Arc<NeighbourMemory>>,
    /// A file that they move on to when the host memory is full. Shared like that.
    file: Option<Arc<FileMemory>>,
    /// The limits that the pool's memory counts against.
    limits: Arc<LimitNode>,
    activity: Arc<ActivityCounters>,
    timings: Timings,
    rooms: Arc<Rooms>,
    /// For copies to the host, for copies from it, and for frees: of contents that the host has, and of those that are on the way there.
    /// Created at the first move.
    streams: OnceLock<[Stream; 4]>,
    /// Of all pools of the GPU: a thread that moves contents of one may need memory of another.
    turns: Arc<Turns>,
    /// True once anything has moved: operations are recorded from then on.
    is_active: AtomicBool,
    plan: Lock<SpillPlan>,
    blocks: Lock<BTreeMap<u64, Weak<Movable>>>,
    /// In a turn: contents return ahead of their use, and make room by dropping contents that the host has, which are not expected within
    /// as many operations; 0 in other turns.
    early_distance: AtomicU64,
    /// In a turn: 1 while contents are about to return, and room is made for them; otherwise 0.
    returning: AtomicU64,
    /// True if the host has refused memory for the last contents that needed some.
    is_host_short: AtomicBool,
}

impl Spiller {
    /// `None` if the option is off, or if the pool's memory is not that of the device. `parent`: that of the pool above.
    pub(super) fn open(
        hub: &Hub,
        parent: Option<&Arc<dyn Spills>>,
    ) -> Result<Option<Arc<dyn Spills>>, PoolError> {
        let (device, config) = (hub.device(), hub.config());
        let Spill::Host { limit_bytes, neighbour, file } = config.spill.clone() else { return Ok(None) };
        if config.kind != MemoryKind::Device {
            return Ok(None);
        }
        if limit_bytes < HARD_LIMIT_MIN_BYTES {
            return Err(Spill::too_small(limit_bytes, HARD_LIMIT_MIN_BYTES).into());
        }
        let (host, neighbour, file) = match parent.and_then(Self::from_dyn) {
            Some(parent) => (parent.host.clone(), parent.neighbour.clone(), parent.file.clone()),
            None => {
                let builder = Pool::builder(device).kind(MemoryKind::Host).hard_limit(limit_bytes);
                let neighbour = neighbour.map(|of| NeighbourMemory::open(device, of)).transpose()?;
                let file = file.map(FileMemory::open).transpose()?;
                (builder.name("spilled").not_recorded().build()?, neighbour.map(Arc::new), file.map(Arc::new))
            }
        };
        let spiller = Arc::new(Self {
            device: device.clone(),
            limit_bytes,
            neighbour,
            file,
            size_bytes_min: config.spill_bytes_min.unwrap_or(SIZE_BYTES_MIN).max(1),
            host,
            limits: Arc::clone(&hub.limits.node),
            activity: Arc::clone(&hub.activity),
            timings: Timings::new(device, &hub.activity),
            rooms: Arc::clone(&hub.rooms),
            streams: OnceLock::new(),
            turns: device.extension(Turns::default),
            is_active: AtomicBool::new(false),
            plan: Lock::default(),
            blocks: Lock::default(),
            early_distance: AtomicU64::new(0),
            returning: AtomicU64::new(0),
            is_host_short: AtomicBool::new(false),
        });
        if let Some(neighbour) = &spiller.neighbour {
            let guest: Weak<Self> = Arc::downgrade(&spiller);
            neighbour.serve(guest);
        }
        let spiller: Arc<dyn Spills> = spiller;
        WeakList::on(device).add(Arc::downgrade(&spiller));
        Ok(Some(spiller))
    }

    fn of(pool: &Pool) -> Option<Arc<Self>> {
        Self::from_dyn(pool.0.spiller()?)
    }

    fn from_dyn(spiller: &Arc<dyn Spills>) -> Option<Arc<Self>> {
        let spiller: Arc<dyn Any + Send + Sync> = Arc::<dyn Spills>::clone(spiller);
        spiller.downcast().ok()
    }

    #[inline]
    fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn streams(&self) -> Result<&[Stream; 4], PoolError> {
        if let Some(streams) = self.streams.get() {
            return Ok(streams);
        }
        let stream = || Stream::new(&self.device);
        let made = [stream()?, stream()?, stream()?, stream()?];
        Ok(self.streams.get_or_init(|| made))
    }

    fn block(&self, number: u64) -> Option<Arc<Movable>> {
        self.blocks.lock().get(&number)?.upgrade()
    }

    /// Moves contents out until `size_bytes` are freed. Returns the freed bytes.
    fn free(&self, turn: &Turn<'_>, size_bytes: u64) -> u64 {
        self.move_all_out(self.choose(turn, size_bytes))
    }

    /// Moves contents out that may move in this turn. Returns the freed bytes.
    fn move_all_out(&self, chosen: Vec<Arc<Movable>>) -> u64 {
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
        freed_bytes
    }

    fn choose(&self, turn: &Turn<'_>, size_bytes: u64) -> Vec<Arc<Movable>> {
        // Upgraded outside the lock of the plan, which the drop of a block takes.
        let live: BTreeMap<u64, Arc<Movable>> =
            self.live().into_iter().map(|block| (block.number, block)).collect();
        // A free in memory that sleeps makes no room.
        if live.values().next().is_some_and(|block| block.is_asleep()) {
            return Vec::new();
        }
        if let Some([down, ..]) = self.streams.get() {
            // A failure shows in the next call that needs the stream.
            let _ = self.device.clocks().poll_one(down.stream_index());
        }
        let early_distance = self.early_distance.load(Ordering::Relaxed);
        let reserved_tags = self.rooms.tags();
        let place = |number| {
            let block = live.get(&number).filter(|block| block.may_move(turn.number()))?;
            let cost = match block.host_copy() {
                CopyState::Complete => 1.0,
                _ if early_distance > 0 => return None,
                CopyState::UnderWay => UNDER_WAY_COST,
                CopyState::Missing => MISSING_COST,
            };
            match reserved_tags.contains(&block.tag) {
                // Work that runs needs it; what would return early may not.
                true if early_distance > 0 => None,
                is_reserved => {
                    Some((block.address(), if is_reserved { RESERVED_FACTOR * cost } else { cost }))
                }
            }
        };
        let numbers = self.plan.lock().victims(size_bytes, early_distance, place);
        numbers.iter().filter_map(|number| live.get(number).cloned()).collect()
    }

    /// Copies the contents down unless the host has them, and frees the memory. False if they must stay.
    fn move_out(&self, block: &Movable) -> Result<bool, PoolError> {
        if block.is_pinned() {
            return Ok(false);
        }
        let [down, _, saved, under_way] = self.streams()?;
        let (stream, is_copied) = match block.host_copy() {
            CopyState::Missing if !self.save(block, true)? => return Ok(false),
            CopyState::Missing => (down, true),
            CopyState::UnderWay => (under_way, false),
            CopyState::Complete => (saved, false),
        };
        let address = block.address();
        block.free_device_memory(stream)?;
        block.note_move(MoveKind::Out { is_copied }, address, stream);
        self.activity.spill_avoided_bytes.add(if is_copied { 0 } else { block.size_bytes });
        self.activity.spill_count.add(1);
        Ok(true)
    }

    /// Copies the contents to the neighbour or down. False if the host has no room for them. `is_needed`: copies of contents that the device
    /// has make way.
    fn save(&self, block: &Movable, is_needed: bool) -> Result<bool, PoolError> {
        let [down, ..] = self.streams()?;
        let has_copy = block.has_copy();
        let near = self.neighbour.as_ref().filter(|_| !has_copy);
        if let Some(near) = near.and_then(|near| near.alloc(block.size_bytes, down)) {
            block.save(|| Ok(near), down)?;
            self.activity.spilled_down_bytes.add(block.size_bytes);
            return Ok(true);
        }
        if !has_copy && !self.has_host_room(block.size_bytes, is_needed) {
            return Ok(false);
        }
        let host_memory = || self.host.alloc(block.size_bytes, down);
        let mut saved = block.save(host_memory, down);
        if saved.is_err() && is_needed && self.drop_copies(|_| true) {
            saved = block.save(host_memory, down);
        }
        let is_short = saved.as_ref().is_err_and(PoolError::is_want_of_memory);
        self.is_host_short.store(is_short, Ordering::Relaxed);
        saved?;
        self.activity.spilled_down_bytes.add(block.size_bytes);
        Ok(true)
    }

    /// The host memory that has to be free for a copy of such a size: unless contents are about to return, as much again, because what is
    /// away can return only if something else can leave.
    fn host_bytes_for(&self, size_bytes: u64) -> u64 {
        let copies = if self.returning.load(Ordering::Relaxed) == 1 { 1 } else { 2 };
        copies * size_bytes.max(self.plan.lock().largest_away_bytes())
    }

    /// True if the host has room for a copy of such a size.
    fn has_host_room(&self, size_bytes: u64, is_needed: bool) -> bool {
        let needed_bytes = self.host_bytes_for(size_bytes);
        let fits =
            || self.host.0.backend.counts().in_use_bytes.saturating_add(needed_bytes) <= self.limit_bytes;
        let drop_and_fit = |which: fn(&Movable) -> bool| self.drop_copies(which) && fits();
        fits()
            || is_needed
                && (drop_and_fit(Movable::has_stale_copy)
                    || drop_and_fit(|_| true)
                    || self.move_to_file_until(fits))
    }

    /// Moves contents that are on the host alone on to the file, those first that are used last.
    fn move_to_file_until(&self, fits: impl Fn() -> bool) -> bool {
        let Some(file) = &self.file else { return false };
        let (live, turn) = (self.live_of_all(), self.turns.own_number());
        let mut away: Vec<_> = live
            .iter()
            .filter(|block| block.is_away() && self.is_host_copy(block))
            .map(|block| (block.is_protected_in(turn), block.expected_distance(), block))
            .collect();
        away.sort_by(|one, other| one.0.cmp(&other.0).then(other.1.total_cmp(&one.1)));
        for (_, _, block) in away {
            let moved = |block: &Movable| block.move_to_file(file).unwrap_or(false);
            if !moved(block) && live.iter().any(|other| other.drop_file_copy()) {
                moved(block);
            }
            if fits() {
                return true;
            }
        }
        false
    }

    /// Frees the host memory of contents that the device has, too, of all pools that share it. True if there was any.
    fn drop_copies(&self, which: impl Fn(&Movable) -> bool) -> bool {
        let live = self.live_of_all();
        live.iter().filter(|block| which(block) && self.is_host_copy(block) && block.drop_copy()).count() > 0
    }

    /// True if host memory has a copy of the contents.
    fn is_host_copy(&self, block: &Movable) -> bool {
        block.copy_is(|copy| !self.neighbour.as_ref().is_some_and(|near| near.has(copy)))
    }

    /// The blocks of all pools that share the host memory.
    fn live_of_all(&self) -> Vec<Arc<Movable>> {
        let all = WeakList::<dyn Spills>::on(&self.device).live();
        let sharing = all.iter().filter_map(Self::from_dyn).filter(|one| one.host.id() == self.host.id());
        sharing.flat_map(|one| one.live()).collect()
    }

    fn live(&self) -> Vec<Arc<Movable>> {
        self.blocks.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Brings contents back, if they are away.
    fn bring_back(&self, block: &Movable, is_early: bool) -> Result<(), PoolError> {
        if !block.is_away() {
            return Ok(());
        }
        let [_, up, ..] = self.streams()?;
        let returning = Restored::new(&self.returning, 1);
        block.set_returning(true);
        let returned = self.read_back(block, up).and_then(|()| block.bring_back(up));
        block.set_returning(false);
        drop(returning);
        let copied_bytes = returned?;
        block.note_move(MoveKind::Back { is_early }, block.address(), up);
        self.activity.spilled_up_bytes.add(copied_bytes);
        self.plan.lock().set_resident(block.number, true, is_early);
        Ok(())
    }

    /// Reads contents that are in the file alone back to host memory.
    fn read_back(&self, block: &Movable, up: &Stream) -> Result<(), PoolError> {
        if !block.is_in_file() {
            return Ok(());
        }
        // Without room, the error of the allocation says so.
        let _has_room = self.has_host_room(block.size_bytes, true);
        block.read_back(self.host.alloc(block.size_bytes, up)?)
    }

    /// Records an operation that has been queued. Copies contents down that are expected to move out before their next use, and brings
    /// contents back that the next operations are expected to use.
    fn note_operation(&self, uses: &[SpillUse]) {
        let (leaving, returning) = {
            let mut plan = self.plan.lock();
            (plan.note(uses), plan.returning())
        };
        if leaving.is_empty() && returning.is_empty() {
            return;
        }
        // Another thread that moves contents knows better what is needed now.
        let Some(turn) = self.turns.try_begin() else { return };
        self.save_ahead(&leaving);
        let reserved_tags = self.rooms.tags();
        for number in returning {
            let Some(block) = self.block(number) else { continue };
            // Those that were not admitted wait for room.
            if !reserved_tags.is_empty() && !reserved_tags.contains(&block.tag) {
                continue;
            }
            block.protect(&turn);
            let distance = self.plan.lock().expected_in(number).unwrap_or(0);
            let early = Restored::new(&self.early_distance, EARLY_FACTOR * distance.max(1));
            let returned = ahead_of_use(|| self.bring_back(&block, true));
            drop(early);
            // Without memory for it, it returns at its use.
            if returned.is_err() {
                return;
            }
        }
    }

    /// Copies contents down that stay on the device. In a turn.
    fn save_ahead(&self, numbers: &[u64]) {
        let blocks = numbers.iter().filter_map(|number| self.block(*number));
        let may_move = |block: &Arc<Movable>| !block.is_pinned() && block.host_copy() == CopyState::Missing;
        let closed: Vec<_> = blocks.filter(may_move).filter(|block| block.close()).collect();
        if closed.is_empty() {
            return;
        }
        self.device.sleepers().let_calls_end();
        for block in &closed {
            // Without a copy, the contents are copied when they move out.
            let _ = self.save(block, false);
            block.open();
        }
    }
}

impl Guest for Spiller {
    fn leave_neighbour(&self) -> Result<(), PoolError> {
        let Some(near) = &self.neighbour else { return Ok(()) };
        if fork::is_child() || self.device.sleepers().check_not_in_call().is_err() {
            return Ok(());
        }
        // The thread that moves contents now may wait for this one.
        let Some(turn) = self.turns.try_begin() else { return Ok(()) };
        let [down, up, ..] = self.streams()?;
        let live = self.live();
        for block in live.iter().filter(|block| block.copy_is(|copy| near.has(copy))) {
            if !block.drop_copy() && self.has_host_room(block.size_bytes, true) {
                block.move_copy(self.host.alloc(block.size_bytes, down)?, down)?;
            }
        }
        drop((live, turn));
        // The memory is needed at once, by another pool.
        down.synchronize()?;
        up.synchronize()?;
        near.release()
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

    fn bring_back_all(&self, tag: u16) {
        if self.plan.lock().largest_away_bytes() == 0
            || fork::is_child()
            || self.device.sleepers().check_not_in_call().is_err()
        {
            return;
        }
        let live = self.live();
        let mut away: Vec<_> = live.iter().filter(|block| block.tag == tag && block.is_away()).collect();
        // As they were used last, they are likely to be used again.
        {
            let plan = self.plan.lock();
            away.sort_by_key(|block| plan.used_at(block.number));
        }
        let turn = self.turns.begin();
        away.iter().for_each(|block| block.protect(&turn));
        // Room for all of them at once: neighbours, after one wait for calls.
        let needed_bytes: u64 = away.iter().map(|block| block.size_bytes).sum();
        let in_use_bytes = away.first().map_or(0, |block| block.pool_in_use_bytes());
        let free_bytes = self.limits.limit_bytes().saturating_sub(in_use_bytes);
        if needed_bytes > free_bytes {
            self.free(&turn, needed_bytes - free_bytes);
        }
        for block in away {
            // Without memory for it, it returns at its use.
            if ahead_of_use(|| self.bring_back(block, false)).is_err() {
                return;
            }
        }
    }

    fn helps(&self, owner: Option<PoolId>) -> bool {
        owner.is_none_or(|owner| self.limits.of(owner).is_some())
    }

    fn prepare_sleep(&self, keeps_contents: bool) {
        let turn = self.turns.begin();
        let mut saved = self.live();
        saved.retain(|block| {
            block.may_move(turn.number()) && block.needs_no_room() && block.host_copy() != CopyState::Missing
        });
        self.move_all_out(saved);
        if !keeps_contents {
            for block in self.live() {
                block.drop_copy();
            }
        }
    }

    fn movable_bytes(&self) -> BTreeMap<u16, u64> {
        let live = self.live();
        let mut room_bytes = self.limit_bytes.saturating_sub(self.host.0.backend.counts().in_use_bytes);
        room_bytes += self.neighbour.as_ref().map_or(0, |near| near.room_bytes());
        room_bytes += self.file.as_ref().map_or(0, |file| file.room_bytes());
        let mut sums = BTreeMap::new();
        for block in live.iter().filter(|block| !block.is_pinned() && !block.is_away()) {
            if !block.needs_no_room() {
                let Some(left_bytes) = room_bytes.checked_sub(block.size_bytes) else { continue };
                room_bytes = left_bytes;
            }
            *sums.entry(block.tag).or_insert(0) += block.size_bytes;
        }
        sums
    }

    fn report(&self, in_use_bytes: u64) -> SpillReport {
        let live: Vec<_> = self.blocks.lock().values().filter_map(Weak::upgrade).collect();
        let host_in_use_bytes = self.host.0.backend.counts().in_use_bytes;
        let mut report = SpillReport {
            away_bytes: self.plan.lock().away().0,
            host_limit_bytes: self.limit_bytes,
            host_in_use_bytes,
            file: self.file.as_ref().map(|file| file.report()),
            ..SpillReport::default()
        };
        let turn = self.turns.own_number();
        let of_operation = live.iter().filter(|block| block.is_protected_in(turn));
        report.operation_bytes = of_operation.map(|block| block.size_bytes).sum();
        for block in live.iter().filter(|block| !block.is_away()) {
            let needed_bytes = self.host_bytes_for(block.size_bytes);
            report.add(
                match block.holder() {
                    Some(holder) => holder,
                    None if block.is_protected_in(turn) => KeptBy::Operation,
                    None if block.needs_no_room() => KeptBy::Nothing,
                    None if host_in_use_bytes.saturating_add(needed_bytes) > self.limit_bytes => {
                        KeptBy::HostLimit
                    }
                    None if self.is_host_short.load(Ordering::Relaxed) => KeptBy::HostRefusal,
                    None => KeptBy::Nothing,
                },
                block.size_bytes,
            );
        }
        report.other_bytes = in_use_bytes.saturating_sub(report.kept_bytes());
        report
    }

    fn figures(&self) -> SpillFigures {
        let ((away_bytes, away_count), repetition) = {
            let plan = self.plan.lock();
            (plan.away(), plan.repetition())
        };
        let [down_rate, up_rate] = self.timings.rates();
        SpillFigures {
            away_bytes,
            away_count,
            host_bytes: self.host.0.reserved_bytes().unwrap_or(0),
            neighbour_bytes: self.neighbour.as_ref().map_or(0, |near| near.in_use_bytes()),
            file_bytes: self.file.as_ref().map_or(0, |file| file.in_use_bytes()),
            repetition,
            down_rate,
            up_rate,
        }
    }
}

/// Gives a word its earlier value back when it is dropped, also if a reclaim callback of the program panics.
struct Restored<'a> {
    word: &'a AtomicU64,
    before: u64,
}

impl<'a> Restored<'a> {
    /// Sets the word.
    fn new(word: &'a AtomicU64, value: u64) -> Self {
        Self { word, before: word.swap(value, Ordering::Relaxed) }
    }
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        self.word.store(self.before, Ordering::Relaxed);
    }
}

/// Moving smaller blocks frees little, and each move costs some microseconds.
const SIZE_BYTES_MIN: u64 = 64 << 10;
/// What moves contents out, relative to contents that the host has: their memory is free once the copy is complete.
const UNDER_WAY_COST: f64 = 2.0;
const MISSING_COST: f64 = 3.0;
/// Contents of reservations stay while those of others can move: work that runs needs them.
const RESERVED_FACTOR: f64 = 16.0;
/// What returns early takes the memory of contents that are expected so many times later.
const EARLY_FACTOR: u64 = 8;
