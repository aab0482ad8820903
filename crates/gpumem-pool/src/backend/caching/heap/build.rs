//! [`row`]: makes a row of windows at the end of a space, with the driver's help, or leaves everything as it was.
//!
//! The driver is asked first, and what is known here changes only once all of it has succeeded. When it fails half way,
//! what was done is undone. Where even that fails, what stays mapped or created counts as reserved for good and is
//! never touched again: its addresses are not used twice.

use super::super::vmm::{Backing, RawHandle};
use super::Heap;
use super::frames::{move_frames, ones};
use super::plan::Part;
use super::space::{FRAME_BYTES, FRAME_SHIFT};
use super::stamps::Pending;
use gpumem_sys::DriverError;

/// A row of windows to be made, from left to right.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) parts: Vec<Part>,
    /// The sizes of new handles, in frames, which stand behind the parts.
    pub(super) new: Vec<u32>,
    /// The start of a handle, behind the new ones.
    pub(super) last: Option<Part>,
}

impl Row {
    fn frame_count(&self, sizes: impl Fn(u32) -> u32) -> u64 {
        let known: u32 = self.parts.iter().chain(&self.last).map(|part| sizes(part.handle)).sum();
        u64::from(known) + u64::from(self.new.iter().sum::<u32>())
    }
}

/// What the driver has been asked for, in case it has to be undone.
#[derive(Default)]
struct Done {
    created: Vec<(RawHandle, u32)>,
    /// Address and size.
    mapped: Vec<(u64, u64)>,
}

/// Makes the windows and moves what the parts name into them. False when the space has no room.
pub(super) fn row(
    heap: &mut Heap,
    space: usize,
    row: &Row,
    backing: &mut impl Backing,
) -> Result<bool, DriverError> {
    let sizes = |handle| heap.frames.handle(handle).frame_count;
    let size_bytes = row.frame_count(sizes) << FRAME_SHIFT;
    if heap.spaces[space].room_bytes() < size_bytes {
        return Ok(false);
    }
    if size_bytes == 0 {
        return Ok(true);
    }
    let mut done = Done::default();
    if let Err(error) = ask(heap, space, row, backing, &mut done) {
        undo(heap, space, size_bytes, done, backing);
        return Err(error);
    }
    commit(heap, space, row, &done.created, size_bytes);
    Ok(true)
}

fn ask(
    heap: &Heap,
    space: usize,
    row: &Row,
    backing: &mut impl Backing,
    done: &mut Done,
) -> Result<(), DriverError> {
    for frame_count in &row.new {
        done.created.push((backing.create(u64::from(*frame_count) << FRAME_SHIFT)?, *frame_count));
    }
    let base = heap.spaces[space].base + heap.spaces[space].end();
    let mut address = base;
    let known = |part: &Part| {
        let handle = heap.frames.handle(part.handle);
        (handle.raw, handle.frame_count)
    };
    let handles: Vec<(RawHandle, u32)> = row
        .parts
        .iter()
        .map(known)
        .chain(done.created.iter().copied())
        .chain(row.last.iter().map(known))
        .collect();
    for (raw, frame_count) in handles {
        let size_bytes = u64::from(frame_count) << FRAME_SHIFT;
        backing.map(address, size_bytes, raw)?;
        done.mapped.push((address, size_bytes));
        address += size_bytes;
    }
    backing.set_access(base, address - base)
}

fn undo(heap: &mut Heap, space: usize, size_bytes: u64, done: Done, backing: &mut impl Backing) {
    let unmapped = done
        .mapped
        .iter()
        .fold(true, |all, (address, size_bytes)| backing.unmap(*address, *size_bytes).is_ok() && all);
    for (raw, frame_count) in done.created {
        if backing.release(raw).is_err() || !unmapped {
            heap.lost_bytes += u64::from(frame_count) << FRAME_SHIFT;
        }
    }
    if !unmapped {
        heap.spaces[space].extend(&mut heap.records, size_bytes);
    }
}

fn commit(heap: &mut Heap, space: usize, row: &Row, created: &[(RawHandle, u32)], size_bytes: u64) {
    let Heap { spaces, frames, records, .. } = heap;
    let mut slot = spaces[space].end() >> FRAME_SHIFT;
    spaces[space].extend(records, size_bytes);
    let mut window = |frames: &mut super::frames::Frames, handle: u32| {
        let window = frames.add_window(handle, space as u8, slot);
        slot += u64::from(frames.handle(handle).frame_count);
        window
    };
    for part in &row.parts {
        let to = window(frames, part.handle);
        move_frames(frames, spaces, records, to, ones(part.first, part.count));
    }
    for (raw, frame_count) in created {
        let handle = frames.add_handle(*raw, *frame_count);
        let id = window(frames, handle);
        frames.window_mut(id).resident = ones(0, *frame_count);
        let start = u64::from(frames.window(id).slot) << FRAME_SHIFT;
        spaces[space].occupy(records, start, start + u64::from(*frame_count) * FRAME_BYTES, Pending::READY);
    }
    if let Some(part) = &row.last {
        let to = window(frames, part.handle);
        move_frames(frames, spaces, records, to, ones(part.first, part.count));
    }
}
