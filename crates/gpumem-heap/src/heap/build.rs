//! [`make`]: makes a row of windows, with the driver's help, or leaves everything as it was.
//!
//! The driver is asked first, and what is known here changes only once all of it has succeeded. When it fails half way,
//! what was done is undone. Where even that fails, what stays mapped or created counts as reserved for good and is
//! never touched again: its addresses are not used twice.

use super::extension::Extension;
use super::frames::{Frames, move_frames, ones};
use super::odd::{Odd, move_odd};
use super::plan::Part;
use super::space::{FRAME_BYTES, FRAME_SHIFT};
use super::stamps::Pending;
use super::windows::HANDLES_MAX;
use super::{Heap, LARGE_SPACE, Request};
use crate::block::Piece;
use crate::memory::{PhysicalMemory, RawHandle};

/// A row of windows to be made, from left to right.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// What the block starts with.
    pub(super) odd: Option<Odd>,
    pub(super) parts: Vec<Part>,
    /// The sizes of new handles, in frames, which stand behind the parts.
    pub(super) new: Vec<u32>,
    /// The start of a handle, behind the new ones.
    pub(super) last: Option<Part>,
    /// The free start of a page that another block uses in part: the block's last bytes, behind the new handles.
    pub(super) head: Option<Odd>,
}

impl Row {
    /// How many windows are made of memory that there is.
    pub(super) fn window_count(&self) -> usize {
        self.parts.len()
            + [self.last.is_some(), self.odd.is_some(), self.head.is_some()]
                .map(usize::from)
                .iter()
                .sum::<usize>()
    }

    /// Where the block starts that it is made for.
    fn block_start(&self, frames: &Frames) -> u64 {
        match (self.odd, self.parts.first()) {
            (Some(odd), _) => odd.start(frames),
            // It may be the end of its handle.
            (None, Some(part)) => u64::from(part.first) << FRAME_SHIFT,
            (None, None) => 0,
        }
    }

    /// What its windows take of a space.
    pub(super) fn size_bytes(&self, frames: &Frames) -> u64 {
        let known = self.parts.iter().chain(&self.last).map(|part| part.handle);
        let known = known
            .chain(self.odd.iter().chain(&self.head).map(|odd| odd.handle))
            .map(|handle| frames.handle(handle).frame_count);
        let frame_count: u64 = known.chain(self.new.iter().copied()).map(u64::from).sum();
        frame_count << FRAME_SHIFT
    }
}

impl Heap {
    /// A piece over a row of windows, behind what it continues, or on its own.
    pub(super) fn build<M: PhysicalMemory>(
        &mut self,
        index: usize,
        request: &Request,
        place: Option<Extension>,
        row: &Row,
        backing: &mut M,
    ) -> Result<Option<Piece>, M::Error> {
        let row_start = match &place {
            Some(extension) => extension.row_start,
            None => self.own_place(index, row),
        };
        if !make(self, (index, row_start), row, backing)? {
            return Ok(None);
        }
        self.spend_credit(row);
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        let start = match place {
            Some(Extension { start, moves, .. }) => {
                for (window, mask) in moves {
                    move_frames(&mut self.frames, &mut self.spaces, &mut self.records, window, mask);
                }
                start
            }
            None => row_start + row.block_start(&self.frames),
        };
        Ok(Some(self.claimed(index, start, request.size_bytes, request.slot)))
    }

    /// Where a row stands that continues nothing: where much was unmapped, else at the end of the space. Behind a gap, into
    /// which the row before can be continued, unless it is one of new handles only: those are better side by side. Where
    /// addresses are short, gaps are used up.
    fn own_place(&self, index: usize, row: &Row) -> u64 {
        let (space, row_bytes) = (&self.spaces[index], row.size_bytes(&self.frames));
        let hole = |size_bytes: u64| self.frames.holes(index).find(size_bytes >> FRAME_SHIFT);
        let is_anew = row.window_count() == 0;
        let gap_bytes = if is_anew || index != LARGE_SPACE { 0 } else { GAP_BYTES };
        if let Some(slot) = hole(row_bytes + 2 * GAP_BYTES) {
            return (slot << FRAME_SHIFT) + gap_bytes;
        }
        let end = space.end();
        let behind_gap = if end == 0 { 0 } else { end + gap_bytes };
        let taken_bytes = behind_gap + row_bytes;
        let is_roomy = taken_bytes <= (self.reserved_bytes() + row_bytes).saturating_mul(SPAN)
            && taken_bytes <= space.size_bytes() / 2;
        if is_roomy { behind_gap } else { hole(row_bytes).map_or(end, |slot| slot << FRAME_SHIFT) }
    }

    fn spend_credit(&mut self, row: &Row) {
        self.window_credit = self.window_credit.saturating_sub(1000 * row.window_count() as u32);
    }
}

/// What the driver has been asked for, in case it has to be undone.
#[derive(Default)]
struct Done {
    created: Vec<(RawHandle, u32)>,
    /// Address and size.
    mapped: Vec<(u64, u64)>,
}

impl Done {
    /// Each handle with its size.
    fn created_bytes(&self) -> impl Iterator<Item = (RawHandle, u64)> {
        self.created.iter().map(|(raw, frame_count)| (*raw, u64::from(*frame_count) << FRAME_SHIFT))
    }
}

/// Makes the windows, from a place on that is a hole or the end of the space, and moves what the parts name into them.
/// False when the space has no room, or handles no numbers.
pub(super) fn make<M: PhysicalMemory>(
    heap: &mut Heap,
    (space, start): (usize, u64),
    row: &Row,
    backing: &mut M,
) -> Result<bool, M::Error> {
    let size_bytes = row.size_bytes(&heap.frames);
    if size_bytes == 0 {
        return Ok(true);
    }
    let end = heap.spaces[space].end();
    let more_bytes = (start + size_bytes).saturating_sub(end);
    let has_numbers = heap.frames.handles.len() + row.new.len() < HANDLES_MAX;
    if heap.spaces[space].room_bytes() < more_bytes || !has_numbers {
        return Ok(false);
    }
    let mut done = Done::default();
    let asked = ask(heap, heap.spaces[space].base + start, row, backing, &mut done);
    let still_mapped = if asked.is_ok() { Vec::new() } else { undo(heap, &done, backing) };
    let is_undone = still_mapped.is_empty();
    if more_bytes > 0 && (asked.is_ok() || !is_undone) {
        heap.spaces[space].extend(&mut heap.records, more_bytes);
        if start > end {
            heap.frames.holes_mut(space).add(end >> FRAME_SHIFT, (start - end) >> FRAME_SHIFT);
        }
    }
    match asked {
        Ok(()) => commit(heap, (space, start), row, &done.created),
        // What could not be undone is no hole any more.
        Err(_) if !is_undone => {
            heap.frames.holes_mut(space).fill(start >> FRAME_SHIFT, size_bytes >> FRAME_SHIFT);
            heap.lose_row((space, start), size_bytes, still_mapped, done.created_bytes().collect());
            heap.reserved_peak_bytes = heap.reserved_peak_bytes.max(heap.reserved_bytes());
        }
        Err(_) => {}
    }
    asked.map(|()| true)
}

fn ask<M: PhysicalMemory>(
    heap: &Heap,
    base: u64,
    row: &Row,
    backing: &mut M,
    done: &mut Done,
) -> Result<(), M::Error> {
    for frame_count in &row.new {
        done.created.push((backing.create(u64::from(*frame_count) << FRAME_SHIFT)?, *frame_count));
    }
    let mut address = base;
    let known = |handle: u32| {
        let handle = heap.frames.handle(handle);
        (handle.raw, handle.frame_count)
    };
    let first = row.odd.iter().map(|odd| odd.handle).chain(row.parts.iter().map(|part| part.handle));
    let last = row.last.iter().map(|part| part.handle).chain(row.head.iter().map(|head| head.handle));
    let handles: Vec<(RawHandle, u32)> =
        first.map(known).chain(done.created.iter().copied()).chain(last.map(known)).collect();
    for (raw, frame_count) in handles {
        let size_bytes = u64::from(frame_count) << FRAME_SHIFT;
        backing.map(address, size_bytes, raw)?;
        done.mapped.push((address, size_bytes));
        address += size_bytes;
    }
    backing.set_access(base, address - base)
}

/// What is still mapped of it. Where that is anything, the handles stay too.
fn undo(heap: &mut Heap, done: &Done, backing: &mut impl PhysicalMemory) -> Vec<(u64, u64)> {
    let mut mapped = done.mapped.clone();
    mapped.retain(|(address, size_bytes)| backing.unmap(*address, *size_bytes).is_err());
    if mapped.is_empty() {
        for (raw, size_bytes) in done.created_bytes() {
            if backing.release(raw, size_bytes).is_err() {
                heap.lost.add(raw, size_bytes);
            }
        }
        heap.reserved_peak_bytes = heap.reserved_peak_bytes.max(heap.reserved_bytes());
    }
    mapped
}

fn commit(heap: &mut Heap, (space, start): (usize, u64), row: &Row, created: &[(RawHandle, u32)]) {
    let Heap { spaces, frames, records, .. } = heap;
    let mut slot = start >> FRAME_SHIFT;
    let mut window = |frames: &mut Frames, handle: u32| {
        let window = frames.add_window(handle, space, slot);
        slot += u64::from(frames.handle(handle).frame_count);
        window
    };
    if let Some(odd) = &row.odd {
        let to = window(frames, odd.handle);
        move_odd(frames, spaces, records, (odd, to));
    }
    for part in &row.parts {
        let to = window(frames, part.handle);
        move_frames(frames, spaces, records, to, ones(part.first, part.count));
    }
    for (raw, frame_count) in created {
        let handle = frames.add_handle(*raw, *frame_count);
        let id = window(frames, handle);
        frames.set_resident(id, (ones(0, *frame_count), 0));
        let start = u64::from(id.slot()) << FRAME_SHIFT;
        spaces[space].occupy(records, start, start + u64::from(*frame_count) * FRAME_BYTES, Pending::READY);
    }
    if let Some(part) = &row.last {
        let to = window(frames, part.handle);
        move_frames(frames, spaces, records, to, ones(part.first, part.count));
    }
    if let Some(head) = &row.head {
        let to = window(frames, head.handle);
        move_odd(frames, spaces, records, (head, to));
    }
}

/// Room for what a row will miss the next time.
const GAP_BYTES: u64 = 32 << 20;
/// Addresses that are tiled, of what is reserved; each frame of them takes 12 bytes of tables.
const SPAN: u64 = 16;
