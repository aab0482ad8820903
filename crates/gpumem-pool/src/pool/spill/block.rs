//! [`SpillableBlock`]: a block whose contents may move to the host and back.

use super::Spiller;
use super::file::{FileMemory, FilePart};
use super::plan::SpillUse;
use super::timing::Interval;
use super::turn::{Turn, announce};
use crate::backend::MemorySource;
use crate::error::{KeptBy, PoolError};
use crate::pool::Pool;
use crate::pool::block::Block;
use crate::pool::observer::{MoveKind, SpillMove};
use crate::pool::request;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::sync::{Lock, MovableAddress};
use gpumem_device::internal::{Order, Stamp, not_forked};
use gpumem_device::{Device, DeviceError, Stream, StreamError, StreamPoint};
use gpumem_sys::fork;
use gpumem_sys::text::debug_fields;
use std::sync::Arc;

/// A block of a pool that spills. Dropping it frees its memory in stream order, wherever it is.
#[doc(hidden)]
pub struct SpillableBlock(Arc<Movable>);

/// Keeps a block in device memory, at its address, until it is dropped.
#[doc(hidden)]
#[must_use = "the block may move as soon as this is dropped"]
pub struct SpillPin {
    block: Arc<Movable>,
    holder: KeptBy,
}

/// Keeps the contents of settled blocks in device memory until it is dropped.
#[doc(hidden)]
#[must_use = "the blocks may move as soon as this is dropped"]
pub struct Settled<'a> {
    turns: Vec<Turn<'a>>,
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        // All turns end before anything is told of the moves.
        let moves: Vec<_> = self.turns.iter_mut().rev().flat_map(Turn::end).collect();
        announce(moves);
    }
}

/// A block, its place, and its uses.
pub(crate) struct Movable {
    pool: Pool,
    spiller: Arc<Spiller>,
    pub(super) number: u64,
    pub(super) size_bytes: u64,
    pub(super) tag: u16,
    address: MovableAddress<{ KeptBy::HOLDER_COUNT }>,
    /// The point of the copy that brought the contents back. Uses wait for it.
    arrived: AtomicU64,
    /// True if the device has contents that the host has no copy of.
    is_changed: AtomicBool,
    /// The point of the latest copy to the host; 0 for none that may still run. Writes wait for it.
    saved: AtomicU64,
    /// The point behind the latest use on the stream that used the block last; 0 for none. [`Places::points`] has those of other streams.
    latest: AtomicU64,
    /// The turn that must not move the block.
    protected: AtomicU64,
    places: Lock<Places>,
}

/// The memory of a block. A block whose contents were never written may have none.
#[derive(Default)]
struct Places {
    device: Option<Block>,
    /// The copy on the host, or in the memory of a neighbour.
    host: Option<Block>,
    /// The contents of the latest copy on the host, in a file. Without another copy, they are read back before they return.
    file: Option<FilePart>,
    /// True while the contents are about to return: the copy on the host is needed for that.
    is_returning: bool,
    /// The points behind the latest uses of the device memory on further streams.
    points: Vec<StreamPoint>,
}

/// Where the contents of a block in device memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    /// On the host, too, or nowhere: nothing was written.
    Complete,
    /// On the way to the host.
    UnderWay,
    /// On the device alone.
    Missing,
}

impl SpillableBlock {
    /// Makes a block spillable; returns it if its pool does not spill, or if the block is too small. `is_written`: it has contents.
    ///
    /// # Errors
    ///
    /// The block.
    pub fn new(pool: &Pool, block: Block, is_written: bool) -> Result<Self, Block> {
        // A block of another pool may have outlived all handles of that pool.
        let is_own = block.pool == *pool.0 && !fork::is_child();
        let fits = |spiller: &Arc<Spiller>| is_own && block.size_bytes() >= spiller.size_bytes_min;
        let Some(spiller) = Spiller::of(pool).filter(fits) else {
            return Err(block);
        };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Behind the allocation, and behind what others have done with the block.
        let points = block.use_points().collect();
        let movable = Arc::new(Movable {
            pool: pool.clone(),
            number,
            size_bytes: block.size_bytes(),
            tag: block.tag_number(),
            address: MovableAddress::new(block.address()),
            arrived: AtomicU64::new(0),
            is_changed: AtomicBool::new(is_written),
            saved: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            protected: AtomicU64::new(0),
            places: Lock::new(Places { device: Some(block), points, ..Places::default() }),
            spiller,
        });
        let spiller = &movable.spiller;
        spiller.plan.lock().add(number, movable.size_bytes);
        spiller.blocks.lock().insert(number, Arc::downgrade(&movable));
        Ok(Self(movable))
    }

    /// A number that no other block has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    /// The device of the pool.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.pool.device()
    }

    /// The address for work that is queued in the current call on a stream, whose blocks are ready or settled; for a pinned block, at any time.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.address.get()
    }

    /// True, in a call on a stream, if the block has an address until the call ends.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.address.is_open()
    }

    /// True, in a call on `stream`, if the block has an address until the call ends, and the stream is behind its contents; for a write,
    /// behind their copy to the host, too.
    #[inline]
    #[must_use]
    pub fn is_ready(&self, stream: &Stream, is_write: bool) -> bool {
        let is_behind = |word: &AtomicU64| {
            let point = word.load(Ordering::Acquire);
            point == 0 || stream.is_behind(StreamPoint::from_bits(point))
        };
        self.is_open() && is_behind(&self.0.arrived) && (!is_write || is_behind(&self.0.saved))
    }

    /// Brings the contents of all blocks back, and makes `stream` wait for them, on the device: for those that it will write, behind their
    /// copies to the host, too. Until the result is dropped, none of them moves. Call it outside of calls on streams.
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::alloc`], if there is no memory for all of them at once. The errors of
    /// [`Stream::wait_for_point_outside_captures`].
    pub fn settle<'a>(
        blocks: impl IntoIterator<Item = (&'a Self, bool)>,
        stream: Option<&Stream>,
    ) -> Result<Settled<'a>, PoolError> {
        // A thread that does not exist in the child may have the turn.
        not_forked()?;
        let mut blocks: Vec<(&Movable, bool)> =
            blocks.into_iter().map(|(block, is_write)| (&*block.0, is_write)).collect();
        // In one order for all threads.
        blocks.sort_by_key(|(block, _)| Arc::as_ptr(&block.spiller.turns).addr());
        let mut turns: Vec<Turn<'a>> = Vec::new();
        let mut before = None;
        for (block, _) in &blocks {
            let turns_of = Arc::as_ptr(&block.spiller.turns);
            if before != Some(turns_of) {
                turns.push(block.spiller.turns.begin());
                before = Some(turns_of);
            }
            if let Some(turn) = turns.last() {
                block.protect(turn);
            }
        }
        for (block, _) in &blocks {
            block.spiller.bring_back(block, false)?;
        }
        if let Some(stream) = stream {
            let points = blocks.iter().flat_map(|(block, is_write)| {
                let saved = is_write.then_some(&block.saved);
                [&block.arrived].into_iter().chain(saved).filter_map(point_in)
            });
            let points: Vec<_> = points.collect();
            let waits = points.iter().any(|point| !stream.is_behind(*point));
            let timings = blocks.first().map(|(block, _)| &block.spiller.timings).filter(|_| waits);
            let start = timings.and_then(|timings| timings.begin(stream));
            wait_for_all(stream, points)?;
            if let Some(timings) = timings {
                timings.end(start, stream, Interval::Wait);
            }
        }
        Ok(Settled { turns })
    }

    /// Records that work which was queued in the current call uses the block.
    #[inline]
    pub fn note_use(&self, stream: &Stream, is_write: bool) {
        let (block, point) = (&*self.0, stream.point());
        let (now, before) = (point.to_bits(), block.latest.load(Ordering::Relaxed));
        // Points of one stream are in the order of their words.
        let is_noted = before != 0
            && StreamPoint::from_bits(before).has_stream_of(point)
            && (before >= now
                || block.latest.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        if !is_noted {
            block.note_stream(stream, point);
        }
        if is_write && !block.is_changed.load(Ordering::Relaxed) {
            block.is_changed.store(true, Ordering::Relaxed);
        }
    }

    /// True if operations are recorded ([`SpillableBlock::note_operation`]).
    #[inline]
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.spiller.is_active()
    }

    /// Records an operation that has been queued, with the blocks that it uses and writes. The blocks of the pool that the first belongs to
    /// may move in this call.
    pub fn note_operation<'a>(stream: &Stream, uses: impl IntoIterator<Item = (&'a Self, bool)>) {
        let mut spiller: Option<&Arc<Spiller>> = None;
        let mut noted = Vec::new();
        for (block, is_write) in uses {
            let first = spiller.get_or_insert(&block.0.spiller);
            if Arc::ptr_eq(first, &block.0.spiller) {
                noted.push(SpillUse { array: block.0.number, is_write });
            }
        }
        let Some(spiller) = spiller.filter(|spiller| spiller.is_active()) else { return };
        // Copies wait for this operation, and not for what is queued after it.
        let _marked = stream.mark();
        spiller.note_operation(&noted);
    }

    /// Says that a repetition of the program's loop begins.
    pub fn begin_iteration(pool: &Pool) {
        if let Some(spiller) = Spiller::of(pool).filter(|spiller| spiller.is_active()) {
            spiller.plan.lock().begin_iteration();
        }
    }

    /// Says that arrays of a pool may be made. The reports of a pool that does not spill mention spilling only then.
    pub fn expect_in(pool: &Pool) {
        pool.0.has_arrays.store(true, Ordering::Relaxed);
    }

    /// Keeps the block in device memory until the result is dropped, and makes `stream` wait for its contents. Reports name the holder.
    ///
    /// # Errors
    ///
    /// Those of [`SpillableBlock::settle`].
    pub fn pin(&self, stream: Option<&Stream>, holder: KeptBy) -> Result<SpillPin, PoolError> {
        // The count comes first: a block that is about to move sees it.
        self.0.add_pin(holder);
        let pinned = SpillPin { block: Arc::clone(&self.0), holder };
        // The holder may write.
        let _settled = Self::settle([(self, true)], stream)?;
        Ok(pinned)
    }

    /// Records a use by a captured graph, which keeps the block, and pins it for good.
    pub fn keep_for_graph(&self, stream: &Stream) {
        self.0.add_pin(KeptBy::Graph);
        self.0.record_use(stream);
    }

    /// Gives a peer device access; the block does not move from now on.
    ///
    /// # Errors
    ///
    /// Those of [`Block::enable_peer_access`] and [`SpillableBlock::settle`].
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.pin(None, KeptBy::PeerDevice)?.for_good();
        match &self.0.places.lock().device {
            Some(block) => block.enable_peer_access(peer),
            None => Ok(()),
        }
    }

    /// Calls `read` with a part of the contents at a time, in order, if they are on the host alone. Waits until they are. False if the rest
    /// has to be read from the device.
    ///
    /// # Errors
    ///
    /// Those of [`Device::synchronize_point`].
    pub fn read_away(&self, range: Range<u64>, mut read: impl FnMut(&[u8])) -> Result<bool, PoolError> {
        not_forked()?;
        let (block, mut start) = (&*self.0, range.start);
        if range.end > block.size_bytes || !block.is_away() {
            return Ok(false);
        }
        while start < range.end {
            let places = block.places.lock();
            if block.host_copy() == CopyState::UnderWay {
                drop(places);
                match point_in(&block.saved) {
                    Some(saved) if !block.pool.device().synchronize_point(saved)? => return Ok(false),
                    _ => continue,
                }
            }
            // The lock is held for one part, because decisions of other threads wait for it.
            let end = range.end.min(start + READ_BYTES);
            if places.device.is_some() {
                return Ok(false);
            }
            match (&places.host, &places.file) {
                // SAFETY: the copy that wrote them is complete.
                (Some(host), _) => match unsafe { contents_of(host, start..end) } {
                    Some(contents) => read(contents),
                    None => return Ok(false),
                },
                (None, Some(file)) => {
                    let mut contents = vec![0; (end - start) as usize];
                    file.read(start, &mut contents)?;
                    read(&contents);
                }
                (None, None) => return Ok(false),
            }
            start = end;
        }
        Ok(true)
    }

    /// Ends spilling, and returns the block with its contents, which `stream` waits for.
    ///
    /// # Errors
    ///
    /// Those of [`SpillableBlock::settle`], with the block.
    pub fn into_block(self, stream: &Stream) -> Result<Block, (PoolError, Self)> {
        match self.pin(Some(stream), KeptBy::Address) {
            Ok(pinned) => pinned.for_good(),
            Err(error) => return Err((error, self)),
        }
        let block = self.0.places.lock().device.take();
        match block {
            Some(block) => {
                self.0.free_behind_save(&block);
                Ok(block)
            }
            None => Err((PoolError::Device(DeviceError::Forked), self)),
        }
    }
}

impl Movable {
    pub(super) fn protect(&self, turn: &Turn<'_>) {
        self.protected.store(turn.number(), Ordering::Relaxed);
    }

    pub(super) fn may_move(&self, turn: u64) -> bool {
        self.address.is_open() && self.protected.load(Ordering::Relaxed) != turn && !self.is_pinned()
    }

    pub(super) fn address(&self) -> u64 {
        self.address.get()
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.address.is_pinned()
    }

    /// The first kind of holder of the address.
    pub(super) fn holder(&self) -> Option<KeptBy> {
        self.address.holder().and_then(|kind| KeptBy::ALL.get(kind).copied())
    }

    fn add_pin(&self, holder: KeptBy) {
        self.address.pin(holder as usize);
    }

    pub(super) fn is_protected_in(&self, turn: Option<u64>) -> bool {
        turn == Some(self.protected.load(Ordering::Relaxed))
    }

    /// After how many operations of its pool the block is expected to be used.
    pub(super) fn expected_distance(&self) -> f64 {
        self.spiller.plan.lock().distance_of(self.number)
    }

    pub(super) fn host_copy(&self) -> CopyState {
        match self.saved.load(Ordering::Acquire) {
            _ if self.is_changed.load(Ordering::Relaxed) => CopyState::Missing,
            saved if saved != 0 && !self.pool.device().clocks().is_complete(Stamp::from(saved)) => {
                CopyState::UnderWay
            }
            _ => CopyState::Complete,
        }
    }

    /// Notes a use on a stream, or a later one, and keeps the latest of the stream before.
    #[cold]
    fn note_stream(&self, stream: &Stream, point: StreamPoint) {
        let mut places = self.places.lock();
        if let Some(block) = &places.device {
            block.record_use(stream);
        }
        let mut before = self.latest.load(Ordering::Relaxed);
        loop {
            let (other, now) = (StreamPoint::from_bits(before), point.to_bits());
            let is_same = before != 0 && other.has_stream_of(point);
            let next = if is_same { before.max(now) } else { now };
            match self.latest.compare_exchange(before, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if is_same || before == 0 => return,
                Ok(_) => {
                    places.points.retain(|kept| !kept.has_stream_of(other) && !kept.has_stream_of(point));
                    places.points.push(other);
                    return;
                }
                Err(now) => before = now,
            }
        }
    }

    /// Makes a stream wait, on the device, for all uses of the device memory. No call uses the block.
    fn order(&self, stream: &Stream) -> Result<(), PoolError> {
        let points = self.places.lock().points.clone();
        let latest = [&self.latest, &self.arrived, &self.saved].into_iter().filter_map(point_in);
        wait_for_all(stream, latest.chain(points))
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.pool.is_asleep()
    }

    pub(super) fn pool_in_use_bytes(&self) -> u64 {
        self.pool.0.backend.counts().in_use_bytes
    }

    pub(super) fn is_away(&self) -> bool {
        self.places.lock().device.is_none()
    }

    /// Closes the block for calls that begin from now on. In a turn. False if it was closed.
    pub(super) fn close(&self) -> bool {
        self.address.close()
    }

    pub(super) fn open(&self) {
        self.address.open();
    }

    /// Copies the contents behind all uses, to the memory of an earlier copy, or else to new `memory`. No call uses the block.
    pub(super) fn save(
        &self,
        memory: impl FnOnce() -> Result<Block, PoolError>,
        down: &Stream,
    ) -> Result<(), PoolError> {
        let kept = self.places.lock().host.take();
        self.order(down)?;
        // Outside the lock: a reclaim callback of the program may use this block.
        let mut to = match kept {
            Some(kept) => kept,
            None => memory()?,
        };
        let mut places = self.places.lock();
        let Some(device) = &places.device else { return Ok(()) };
        let timings = &self.spiller.timings;
        let start = timings.begin(down);
        to.copy_from_ordered(device, down)?;
        timings.end(start, down, Interval::Down(self.size_bytes));
        // A marker behind the point: who waits for it does not wait for later copies.
        (places.host, places.file) = (Some(to), None);
        self.saved.store(down.point().to_bits(), Ordering::Release);
        let _marked = down.mark();
        self.is_changed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Frees the device memory behind a stream, which is made to wait for all uses. The contents are saved, or there are none.
    pub(super) fn free_device_memory(&self, behind: &Stream) -> Result<(), PoolError> {
        self.order(behind)?;
        let freed = {
            let mut places = self.places.lock();
            places.points.clear();
            places.device.take()
        };
        if let Some(freed) = freed {
            freed.free_behind(behind);
        }
        // A marker behind the free: who takes the memory does not wait for later work of the stream.
        let _marked = behind.mark();
        self.address.leave();
        self.latest.store(0, Ordering::Relaxed);
        self.arrived.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Allocates memory and fills it from the host. Returns the copied bytes. In a turn.
    pub(super) fn bring_back(&self, up: &Stream) -> Result<u64, PoolError> {
        let state = *self.pool.0;
        let mut block = match self.tag {
            0 => self.pool.alloc(self.size_bytes, up)?,
            tag => request::alloc_tagged(state, self.size_bytes, up, tag)?,
        };
        let places = &mut *self.places.lock();
        if places.device.is_some() {
            // A reclaim callback has used the block.
            return Ok(0);
        }
        let mut copied_bytes = 0;
        if let Some(host) = &places.host {
            wait_for_all(up, point_in(&self.saved))?;
            host.record_use(up);
            let timings = &self.spiller.timings;
            let start = timings.begin(up);
            block.copy_from_ordered(host, up)?;
            timings.end(start, up, Interval::Up(self.size_bytes));
            copied_bytes = self.size_bytes;
        }
        self.arrived.store(up.point().to_bits(), Ordering::Release);
        self.saved.store(0, Ordering::Release);
        let _marked = up.mark();
        let address = block.address();
        places.device = Some(block);
        self.address.arrive(address);
        Ok(copied_bytes)
    }

    /// True if there is memory for the contents on the host, or of a neighbour.
    pub(super) fn has_copy(&self) -> bool {
        self.copy_is(|_| true)
    }

    /// True if the contents can leave the device without more host memory.
    pub(super) fn needs_no_room(&self) -> bool {
        let places = self.places.lock();
        places.host.is_some() || places.file.is_some() && !self.has_stale_copy()
    }

    /// The contents that are in a file alone.
    pub(super) fn is_in_file(&self) -> bool {
        let places = self.places.lock();
        places.device.is_none() && places.host.is_none() && places.file.is_some()
    }

    /// The copy on the host does not move on from now on, or may again.
    pub(super) fn set_returning(&self, is_returning: bool) {
        self.places.lock().is_returning = is_returning;
    }

    /// Writes contents that are on the host alone to a file, and frees the host memory. Waits for their copy to the host. False if the file
    /// has no room.
    pub(super) fn move_to_file(&self, file: &Arc<FileMemory>) -> Result<bool, PoolError> {
        while self.host_copy() == CopyState::UnderWay {
            let Some(saved) = point_in(&self.saved) else { break };
            self.pool.device().synchronize_point(saved)?;
        }
        let mut places = self.places.lock();
        if places.device.is_some() || places.is_returning {
            return Ok(false);
        }
        if places.file.is_none() {
            // SAFETY: the copy that wrote them is complete.
            let contents =
                places.host.as_ref().and_then(|host| unsafe { contents_of(host, 0..self.size_bytes) });
            places.file = contents.and_then(|contents| file.write(contents));
        }
        let freed = if places.file.is_some() { places.host.take() } else { None };
        drop(places);
        Ok(freed.is_some())
    }

    /// Reads contents that are in a file alone back to host memory. In a turn.
    pub(super) fn read_back(&self, to: Block) -> Result<(), PoolError> {
        let mut places = self.places.lock();
        if let Some(file) = &places.file
            && places.host.is_none()
        {
            // SAFETY: the block is new, so nothing else uses it.
            if let Some(contents) = unsafe { contents_of(&to, 0..self.size_bytes) } {
                file.read(0, contents)?;
                places.host = Some(to);
            }
        }
        Ok(())
    }

    /// Frees the part of a file with contents that are elsewhere, too. True if there was any.
    pub(super) fn drop_file_copy(&self) -> bool {
        let mut places = self.places.lock();
        let is_elsewhere = places.device.is_some() || places.host.is_some();
        let part = if is_elsewhere { places.file.take() } else { None };
        if part.is_some() && places.host.is_none() {
            self.is_changed.store(true, Ordering::Relaxed);
        }
        drop(places);
        part.is_some()
    }

    /// True if there is memory for the contents outside of the device, of which this is true.
    pub(super) fn copy_is(&self, of: impl FnOnce(&Block) -> bool) -> bool {
        self.places.lock().host.as_ref().is_some_and(of)
    }

    /// Copies contents that are away to other memory, and frees where they were.
    pub(super) fn move_copy(&self, mut to: Block, down: &Stream) -> Result<(), PoolError> {
        let before = {
            let mut places = self.places.lock();
            let Some(from) = &places.host else { return Ok(()) };
            to.copy_from_ordered(from, down)?;
            self.saved.store(down.point().to_bits(), Ordering::Release);
            let _marked = down.mark();
            places.host.replace(to)
        };
        drop(before);
        Ok(())
    }

    /// True if the host has contents that are older than the device's.
    pub(super) fn has_stale_copy(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    /// Frees the host memory of contents that the device has, too. They are copied down again before they leave. True if there was any.
    pub(super) fn drop_copy(&self) -> bool {
        let mut places = self.places.lock();
        if self.has_stale_copy() {
            places.file = None;
        }
        let copy = if places.device.is_some() { places.host.take() } else { None };
        if copy.is_some() && places.file.is_none() {
            self.is_changed.store(true, Ordering::Relaxed);
        }
        drop(places);
        copy.is_some()
    }

    /// Orders the free of the block behind the copy of its contents to the host.
    fn free_behind_save(&self, block: &Block) {
        if let Some([down, ..]) = self.spiller.streams.get()
            && self.saved.load(Ordering::Acquire) != 0
        {
            block.record_use(down);
        }
    }

    /// Notes a move on a stream, which is told when the turn ends.
    pub(super) fn note_move(&self, kind: MoveKind, address: u64, stream: &Stream) {
        let (size_bytes, tag, stream) = (self.size_bytes, self.tag, stream.id());
        self.spiller.turns.note(&self.pool.0, SpillMove { kind, address, size_bytes, stream, tag });
    }

    fn record_use(&self, stream: &Stream) {
        if let Some(block) = &self.places.lock().device {
            block.record_use(stream);
        }
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if let Some(block) = &self.places.lock().device {
            self.free_behind_save(block);
        }
        self.spiller.blocks.lock().remove(&self.number);
        self.spiller.plan.lock().remove(self.number);
    }
}

impl SpillPin {
    /// The block does not move any more.
    pub fn for_good(self) {
        self.block.add_pin(self.holder);
    }
}

impl Drop for SpillPin {
    fn drop(&mut self) {
        self.block.address.unpin(self.holder as usize);
    }
}

/// What [`SpillableBlock::read_away`] reads at a time.
const READ_BYTES: u64 = 4 << 20;

debug_fields!(SpillableBlock, it, size_bytes: it.0.size_bytes);

/// A part of a block of host memory. `None` for memory that the host cannot access.
///
/// # Safety
///
/// Nothing writes these bytes while the result exists, and only the caller if it does.
#[expect(clippy::mut_from_ref, reason = "the block is a handle of the memory")]
unsafe fn contents_of(block: &Block, range: Range<u64>) -> Option<&mut [u8]> {
    let address = block.host_ptr().filter(|_| range.end <= block.size_bytes())?;
    let start = address.as_ptr().wrapping_add(range.start as usize);
    let bytes = core::ptr::slice_from_raw_parts_mut(start, (range.end - range.start) as usize);
    // SAFETY: the block has these bytes. The caller guarantees the rest.
    Some(unsafe { &mut *bytes })
}

/// The point in a word; `None` for 0.
fn point_in(word: &AtomicU64) -> Option<StreamPoint> {
    let bits = word.load(Ordering::Acquire);
    (bits != 0).then(|| StreamPoint::from_bits(bits))
}

/// Makes a stream wait for points, on the device.
fn wait_for_all(stream: &Stream, points: impl IntoIterator<Item = StreamPoint>) -> Result<(), PoolError> {
    for point in points {
        if !stream.wait_for_point_outside_captures(point)? {
            // Work of another library's stream without a marker.
            let stream = stream.clocks().stream_in(point.stream_index());
            return Err(PoolError::Device(DeviceError::Stream(StreamError::NotOrdered { stream })));
        }
    }
    Ok(())
}
