//! [`Heap`]: all of a device's cached memory, shared by its streams. Called under one lock.
//!
//! Addresses are reserved once, in two spaces: one for blocks up to 1 MiB, one for larger ones, so that no small block
//! holds a large stretch. A request looks at what its own stream has freed and at what is ready for all, by size. Only
//! when that finds nothing does it look further, each step dearer than the one before:
//!
//! 1. free stretches of several streams side by side, all ordered before the request (`take_ready`);
//! 2. stretches of addresses whose memory is idle under other addresses: it moves back, without a driver call;
//! 3. a new window over idle parts of handles (both `take_recycled`);
//! 4. new handles, up to the bytes that the caller allows (`take_grown`).
//!
//! Nothing here knows a driver: the calls go through [`Backing`], and what streams have done is asked of [`Order`].

mod build;
mod check;
mod fit;
mod frames;
mod pinning;
mod plan;
mod record;
mod revival;
mod shares;
mod space;
mod stamps;
mod survey;
#[cfg(test)]
mod tests;
mod trim;
mod waits;

use super::magazine::Piece;
use super::vmm::{self, Backing};
use crate::clock::{Order, Slot, Stamp};
use crate::dials::Dials;
use build::Row;
use fit::{UNIT_BYTES, place};
use frames::{Frames, move_frames};
use gpumem_sys::DriverError;
use plan::Part;
use record::{Kind, Record, Records};
use revival::revival;
use shares::Shares;
use space::{FRAME_BYTES, FRAME_SHIFT, Space};
use stamps::Owner;
use survey::{Idle, Survey, View, stretches};

/// What a block is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Not zero; rounded up to 256.
    pub(super) size_bytes: u64,
    /// A power of two.
    pub(super) alignment: u64,
    /// The stream that will use it first.
    pub(super) slot: Slot,
}

#[derive(Debug)]
pub(super) struct Heap {
    spaces: [Space; 2],
    frames: Frames,
    records: Records,
    dials: Dials,
    shares: Shares,
    /// What blocks have, by the sizes that they were given.
    used_bytes: u64,
    used_peak_bytes: u64,
    reserved_peak_bytes: u64,
    /// What the driver would not take back after a failure.
    lost_bytes: u64,
    /// What others hold under the same limit.
    outside_bytes: u64,
    /// Windows that may yet be made anew before the heap grows instead, in thousandths.
    window_credit: u32,
    /// How many windows have to be empty before those that could not be unmapped are tried again.
    empty_retry: usize,
}

impl Heap {
    /// A heap over two reserved ranges of addresses, given by their starts and sizes: for small blocks and for others.
    pub(super) fn new(dials: Dials, ranges: [(u64, u64); 2]) -> Self {
        let space = |index: usize| {
            let (base, size_bytes) = ranges[index];
            Space::new(index as u8, base, size_bytes / FRAME_BYTES * FRAME_BYTES)
        };
        Self {
            spaces: [space(0), space(1)],
            frames: Frames::new(),
            records: Records::new(),
            dials,
            shares: Shares::default(),
            used_bytes: 0,
            used_peak_bytes: 0,
            reserved_peak_bytes: 0,
            lost_bytes: 0,
            outside_bytes: 0,
            window_credit: WINDOW_CREDIT_MAX,
            empty_retry: 0,
        }
    }

    /// A piece that is free already. Asks the driver for nothing.
    pub(super) fn take_ready(&mut self, request: &Request, order: &impl Order) -> Option<Piece> {
        let with_ready = self.may_take_ready(request);
        self.take_free(space_of(request), request, order, with_ready)
    }

    /// The same among the larger blocks, for a small one that would not be met otherwise.
    pub(super) fn take_leftover(&mut self, request: &Request, order: &impl Order) -> Option<Piece> {
        self.take_free(LARGE_SPACE, request, order, true)
    }

    fn may_take_ready(&self, request: &Request) -> bool {
        let Request { slot, size_bytes, .. } = *request;
        size_bytes <= SMALL_MAX_BYTES
            || self.shares.may_take_ready(slot, size_bytes, self.dials.growth_slack_per_mille, &self.spaces)
    }

    fn take_free(
        &mut self,
        index: usize,
        request: &Request,
        order: &impl Order,
        with_ready: bool,
    ) -> Option<Piece> {
        let size_bytes = rounded(request.size_bytes)?;
        let space = &self.spaces[index];
        let find = |owner| {
            let id = space.fit(owner)?.find(&self.records, size_bytes, space.base, request.alignment)?;
            Some((self.records[id].size_bytes, id))
        };
        let ready = if with_ready { find(Owner::READY) } else { None };
        let found = match (find(Owner::of(request.slot)), ready) {
            (Some(own), Some(ready)) => Some(if own.0 <= ready.0 { own } else { ready }),
            (own, ready) => own.or(ready),
        };
        if let Some((_, id)) = found {
            let start = place(&self.records[id], size_bytes, space.base, request.alignment)?;
            let id = self.spaces[index].take(&mut self.records, id, start, size_bytes);
            return Some(self.taken(index, id, request.slot));
        }
        let view = View { records: &self.records, slot: request.slot, order, with_ready };
        let start = smallest_stretch(space, size_bytes, request.alignment, &view)?;
        Some(self.claimed(index, start, size_bytes, request.slot))
    }

    /// A piece of memory that is free under other addresses: it moves back where it has been before, or is mapped anew.
    ///
    /// # Errors
    ///
    /// What the driver says; nothing has changed then.
    pub(super) fn take_recycled(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
    ) -> Result<Option<Piece>, DriverError> {
        if self.may_take_ready(request) {
            return self.take_idle(request, order, backing, true);
        }
        if let Some(piece) = self.take_idle(request, order, backing, false)? {
            return Ok(Some(piece));
        }
        if let Some(piece) = self.take_own_first(request, order, backing)? {
            return Ok(Some(piece));
        }
        match self.take_free(space_of(request), request, order, true) {
            Some(piece) => Ok(Some(piece)),
            None => self.take_idle(request, order, backing, true),
        }
    }

    fn take_idle(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
        with_ready: bool,
    ) -> Result<Option<Piece>, DriverError> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let index = space_of(request);
        let view = View { records: &self.records, slot: request.slot, order, with_ready };
        let survey = Survey::movable(&self.frames, &self.spaces, &view);
        // The block's first and last frame need not be idle.
        if survey.idle.is_empty() || survey.frame_count() + 2 < frames_in(size_bytes) {
            return Ok(None);
        }
        let place = (size_bytes, request.alignment);
        let found = revival(&survey, &self.frames, (index, &self.spaces[index]), place, &view);
        if let Some(found) = found {
            for (window, mask) in found.moves {
                move_frames(&mut self.frames, &mut self.spaces, &mut self.records, window, mask);
            }
            return Ok(Some(self.claimed(index, found.start, size_bytes, request.slot)));
        }
        let Some((start, parts)) = self.plan(index, (size_bytes, request.alignment), &survey, &view) else {
            return Ok(None);
        };
        let row = Row { parts, ..Row::default() };
        let piece = self.build(index, &Request { size_bytes, ..*request }, start, &row, backing)?;
        self.count_recycled(&row, piece.is_some());
        Ok(piece)
    }

    /// All that is the stream's own and idle, and of what is ready for all only the rest.
    fn take_own_first(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
    ) -> Result<Option<Piece>, DriverError> {
        let Some(size_bytes) = rounded(request.size_bytes).filter(|_| request.alignment <= FRAME_BYTES)
        else {
            return Ok(None);
        };
        let own = View { records: &self.records, slot: request.slot, order, with_ready: false };
        let own_idle = Survey::movable(&self.frames, &self.spaces, &own);
        let all_idle = Survey::movable(&self.frames, &self.spaces, &View { with_ready: true, ..own });
        let sizes = |handle| self.frames.handle(handle).frame_count;
        let (mut parts, _) = plan::reach(&own_idle.idle, sizes, false);
        let own_count: u32 = parts.iter().map(|part| part.count).sum();
        let Some(rest) = frames_in(size_bytes).checked_sub(own_count).filter(|_| own_count > 0) else {
            return Ok(None);
        };
        let Some(ready) = plan::plan(&all_idle.without(&own_idle).idle, sizes, rest, true) else {
            return Ok(None);
        };
        parts.extend(ready);
        let (index, end) = (space_of(request), self.spaces[space_of(request)].end());
        let row = Row { parts, ..Row::default() };
        let piece = self.build(index, &Request { size_bytes, ..*request }, end, &row, backing)?;
        self.count_recycled(&row, piece.is_some());
        Ok(piece)
    }

    /// The fewest windows that would make room: behind what is free at the end of the space, or on their own.
    fn plan(
        &self,
        index: usize,
        (size_bytes, alignment): (u64, u64),
        survey: &Survey,
        view: &View<impl Order>,
    ) -> Option<(u64, Vec<Part>)> {
        let sizes = |handle| self.frames.handle(handle).frame_count;
        let tail = self.tail(index, (size_bytes, alignment), view)?;
        let rest = survey.without(&tail.survey);
        let extended =
            plan::plan(&rest.idle, sizes, tail.missing_frames, true).map(|parts| (tail.start, parts));
        if alignment > FRAME_BYTES {
            return extended;
        }
        let end = self.spaces[index].end();
        let fresh = plan::plan(&survey.idle, sizes, frames_in(size_bytes), false).map(|parts| (end, parts));
        match (extended, fresh) {
            (Some(extended), Some(fresh)) if fresh.1.len() < extended.1.len() => Some(fresh),
            (extended, fresh) => extended.or(fresh),
        }
    }

    /// A piece that new handles are part of. No more than `reserved_max_bytes` are reserved afterwards.
    ///
    /// # Errors
    ///
    /// What the driver says, that it has no more memory included; nothing has changed then.
    pub(super) fn take_grown(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
        reserved_max_bytes: u64,
    ) -> Result<Option<Piece>, DriverError> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let index = space_of(request);
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> FRAME_SHIFT;
        let view = View { records: &self.records, slot: request.slot, order, with_ready: true };
        let Some(tail) = self.tail(index, (size_bytes, request.alignment), &view) else { return Ok(None) };
        let missing = tail.missing_frames;
        if missing == 0 {
            return Ok(Some(self.claimed(index, tail.start, size_bytes, request.slot)));
        }
        let target = self.growth_target_bytes(request).saturating_sub(self.reserved_bytes()) >> FRAME_SHIFT;
        let row = if u64::from(missing) <= room.min(target) {
            let frame_count = missing
                .max(self.growth_frames(index))
                .min(u32::try_from(room.min(target)).unwrap_or(u32::MAX));
            Row { new: self.new_handles(frame_count), ..Row::default() }
        } else {
            let survey = Survey::movable(&self.frames, &self.spaces, &view);
            let from_start = tail.start != self.spaces[index].end() || request.alignment > FRAME_BYTES;
            match self.mixed_row(&survey.without(&tail.survey).idle, missing, room, from_start) {
                Some(row) => row,
                None => return Ok(None),
            }
        };
        let piece = self.build(index, &Request { size_bytes, ..*request }, tail.start, &row, backing)?;
        if piece.is_some() {
            self.spend_credit(&row);
        }
        Ok(piece)
    }

    /// All that is idle and can stand in a row, and new handles for the rest.
    fn mixed_row(&self, idle: &[Idle], missing: u32, room: u64, from_start: bool) -> Option<Row> {
        let sizes = |handle| self.frames.handle(handle).frame_count;
        let (mut parts, last) = plan::reach(idle, sizes, from_start);
        let mut missing = missing.checked_sub(last.map_or(0, |part| part.count))?;
        parts.retain_mut(|part| {
            part.count = part.count.min(missing);
            missing -= part.count;
            part.count > 0
        });
        (missing > 0 && u64::from(missing) <= room).then(|| Row {
            parts,
            new: self.new_handles(missing),
            last,
        })
    }

    /// Makes new handles for so many bytes more, which are ready for all. False when that would reserve more than
    /// `reserved_max_bytes`.
    ///
    /// # Errors
    ///
    /// What the driver says; nothing has changed then.
    pub(super) fn reserve(
        &mut self,
        size_bytes: u64,
        backing: &mut impl Backing,
        reserved_max_bytes: u64,
    ) -> Result<bool, DriverError> {
        let frame_count = frames_in(size_bytes);
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> FRAME_SHIFT;
        if u64::from(frame_count) > room {
            return Ok(false);
        }
        let row = Row { new: self.new_handles(frame_count), ..Row::default() };
        let is_made = build::row(self, (LARGE_SPACE, self.spaces[LARGE_SPACE].end()), &row, backing)?;
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        Ok(is_made)
    }

    /// Takes back what a piece had: it waits for these uses, of which none are left when there are none.
    ///
    /// `uses` covers the stream that the piece was taken for, unless all work that was queued there before the piece was
    /// taken is complete too.
    pub(super) fn give(&mut self, record: u32, uses: &[Stamp]) {
        let Some(Record { kind: Kind::Live, space, size_bytes, owner, .. }) =
            self.records.get(record).copied()
        else {
            debug_assert!(false, "record {record} is not live");
            return;
        };
        self.used_bytes -= size_bytes;
        if let Some(slot) = owner.slot() {
            self.shares.give(slot, size_bytes);
        }
        let pending = match *uses {
            [stamp] if stamp != Stamp::NONE => stamps::Pending { owner: Owner::of(stamp.slot()), stamp },
            _ => self.records.sets.pending(uses),
        };
        self.spaces[usize::from(space)].give(&mut self.records, record, pending);
    }

    /// Physical memory that the driver has made for this heap and that it has not got back.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.frames.reserved_bytes + self.lost_bytes + self.outside_bytes
    }

    /// Physical memory that the caller holds beside the heap: it counts as reserved too.
    pub(super) fn set_outside_bytes(&mut self, size_bytes: u64) {
        self.outside_bytes = size_bytes;
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
    }

    pub(super) fn outside_bytes(&self) -> u64 {
        self.outside_bytes
    }

    pub(super) fn reserved_peak_bytes(&self) -> u64 {
        self.reserved_peak_bytes
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// How far the heap may grow for this request before anything dearer than a new handle is worth trying.
    pub(super) fn growth_target_bytes(&self, request: &Request) -> u64 {
        let used = self.used_bytes.saturating_add(request.size_bytes).max(self.used_peak_bytes);
        let is_spent = self.window_credit < 1000;
        let slack_per_mille =
            if is_spent { self.dials.growth_slack_max_per_mille } else { self.dials.growth_slack_per_mille };
        used.saturating_add((used / 1000).saturating_mul(u64::from(slack_per_mille)))
    }

    #[cfg(test)]
    pub(super) fn window_count(&self) -> usize {
        self.frames.window_count()
    }

    /// The host memory of all records.
    pub(super) fn record_bytes(&self) -> usize {
        let tables: usize = self.spaces.iter().map(Space::table_bytes).sum();
        self.records.size_bytes() + self.frames.size_bytes() + tables
    }

    fn build(
        &mut self,
        index: usize,
        request: &Request,
        start: u64,
        row: &Row,
        backing: &mut impl Backing,
    ) -> Result<Option<Piece>, DriverError> {
        let end = self.spaces[index].end();
        // What continues nothing may stand where something was unmapped.
        let is_free = start == end && request.alignment <= FRAME_BYTES;
        let hole = is_free.then(|| self.frames.hole(index, row.size_bytes(&self.frames) >> FRAME_SHIFT));
        let row_start = hole.flatten().map_or(end, |slot| slot << FRAME_SHIFT);
        if !build::row(self, (index, row_start), row, backing)? {
            return Ok(None);
        }
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        // The first part may be the end of its handle: the block starts there.
        let skipped = row.parts.first().map_or(0, |part| u64::from(part.first) << FRAME_SHIFT);
        let start = if is_free { row_start + skipped } else { start };
        Ok(Some(self.claimed(index, start, request.size_bytes, request.slot)))
    }

    fn count_recycled(&mut self, row: &Row, is_built: bool) {
        if is_built {
            self.spend_credit(row);
        }
    }

    fn spend_credit(&mut self, row: &Row) {
        let window_count = row.parts.len() as u32 + u32::from(row.last.is_some());
        self.window_credit = self.window_credit.saturating_sub(1000 * window_count);
    }

    fn claimed(&mut self, index: usize, start: u64, size_bytes: u64, slot: Slot) -> Piece {
        let id = self.spaces[index].claim(&mut self.records, start, size_bytes);
        self.taken(index, id, slot)
    }

    fn taken(&mut self, index: usize, record: u32, slot: Slot) -> Piece {
        let Record { start, size_bytes, owner, .. } = &mut self.records[record];
        *owner = Owner::of(slot);
        let (start, size_bytes) = (*start, *size_bytes);
        self.shares.take(slot, size_bytes);
        if index == LARGE_SPACE {
            let credit = self.window_credit.saturating_add(self.dials.window_allowance_per_mille);
            self.window_credit = credit.min(WINDOW_CREDIT_MAX);
        }
        self.used_bytes += size_bytes;
        self.used_peak_bytes = self.used_peak_bytes.max(self.used_bytes);
        Piece { address: self.spaces[index].base + start, record }
    }

    /// Where a block would start whose end is behind the end of the space.
    fn tail(
        &self,
        index: usize,
        (size_bytes, alignment): (u64, u64),
        view: &View<impl Order>,
    ) -> Option<Tail> {
        let space = &self.spaces[index];
        let end = space.end();
        let start =
            space.base.checked_add(space.tail_start(view))?.checked_next_multiple_of(alignment)? - space.base;
        let missing_frames = frames_in(start.checked_add(size_bytes)?.saturating_sub(end));
        let survey = Survey::of_stretch(&self.frames, index, start.min(end), end);
        Some(Tail { start, missing_frames, survey })
    }

    /// How much a space grows by at least: few handles for a large heap, little waste in a small one.
    fn growth_frames(&self, index: usize) -> u32 {
        let reserved = self.spaces[index].end().min(self.reserved_bytes());
        let bytes = reserved / u64::from(self.dials.growth_divisor);
        let frames = (bytes >> FRAME_SHIFT).max(1).next_power_of_two();
        (frames as u32).min(self.dials.handle_max_frames)
    }

    fn new_handles(&self, frame_count: u32) -> Vec<u32> {
        let largest = self.dials.handle_max_frames;
        let mut handles = vec![largest; (frame_count / largest) as usize];
        let rest = frame_count % largest;
        handles.extend((rest > 0).then_some(rest));
        handles
    }
}

/// The smallest stretch of neighbours that wait for different streams, all ordered before the request.
fn smallest_stretch(space: &Space, size_bytes: u64, alignment: u64, view: &View<impl Order>) -> Option<u64> {
    if !space.has_pending_of_others(Owner::READY) {
        return None;
    }
    let align = |start: u64| Some((space.base + start).checked_next_multiple_of(alignment)? - space.base);
    let found = stretches(space, size_bytes, view).into_iter().filter_map(|(start, end)| {
        let place = align(start)?;
        (place.checked_add(size_bytes)? <= end).then_some((end - start, place))
    });
    found.min().map(|(_, start)| start)
}

struct Tail {
    start: u64,
    /// What has to be mapped behind the end of the space.
    missing_frames: u32,
    /// What is idle from the start on, and can't be mapped elsewhere for this block.
    survey: Survey,
}

/// Small blocks have a space of their own.
fn space_of(request: &Request) -> usize {
    usize::from(request.size_bytes > SMALL_MAX_BYTES)
}

fn rounded(size_bytes: u64) -> Option<u64> {
    size_bytes.max(1).checked_next_multiple_of(UNIT_BYTES).filter(|size| *size <= SIZE_MAX_BYTES)
}

fn frames_in(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(FRAME_BYTES)).unwrap_or(u32::MAX)
}

/// What a program may use up before its first large blocks have earned any.
const WINDOW_CREDIT_MAX: u32 = 512 * 1000;
const LARGE_SPACE: usize = 1;
const SMALL_MAX_BYTES: u64 = 1 << 20;
/// More than any device has; sums of a few such sizes fit a word.
const SIZE_MAX_BYTES: u64 = 1 << 50;
