//! [`Frames`]: physical memory, and the addresses that it is reached by.
//!
//! A *handle* is 1 to 64 frames of 2 MiB, mapped whole or not at all. A *window* is one mapping of a handle; a handle may
//! have many. Each frame is *resident* in at most one of its handle's windows: only there do records stand for its
//! bytes, so no byte can be in two blocks. A frame moves to another window of its handle when nobody holds any of it;
//! the window that it left stays mapped, and moving back costs no driver call. A window remembers what it was last used
//! for, because the driver may unmap it only when that is complete.

use super::super::vmm::RawHandle;
use super::record::{NONE, Records};
use super::space::{FRAME_BYTES, FRAME_SHIFT, Space};
use super::stamps::{Pending, join};
use crate::clock::Stamp;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    pub(super) raw: RawHandle,
    /// 1 to 64; 0 marks a name that is unused.
    pub(super) frame_count: u32,
    /// The newest of its windows.
    pub(super) first_window: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) handle: u32,
    /// The first of its frames of addresses.
    pub(super) slot: u32,
    /// Which of the handle's frames are resident here.
    pub(super) resident: u64,
    /// The last uses of what has moved away.
    pub(super) departed: Vec<Stamp>,
    /// The handle's next older window.
    pub(super) next: u32,
    /// When the last frame moved away, counted in such events.
    pub(super) emptied_at: u32,
    pub(super) space: u8,
}

const _: () = assert!(size_of::<Window>() <= 56 && size_of::<Handle>() <= 16);

#[derive(Debug)]
pub(super) struct Frames {
    pub(super) handles: Vec<Handle>,
    unused_handles: Vec<u32>,
    windows: Vec<Window>,
    unused_windows: Vec<u32>,
    /// Of each space, which window each frame of addresses belongs to.
    slots: [Vec<u32>; 2],
    /// Of each space, its windows by address.
    by_place: [Vec<u32>; 2],
    /// Of each space, the frames of addresses where a window was unmapped: first and count.
    holes: [BTreeMap<u64, u64>; 2],
    /// How often a window has been left empty.
    emptied: u32,
    /// Handles that are mapped in no more windows than they are, and move to none.
    pinned: BTreeSet<u32>,
    empty_count: u32,
    pub(super) reserved_bytes: u64,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            handles: Vec::new(),
            unused_handles: Vec::new(),
            windows: Vec::new(),
            unused_windows: Vec::new(),
            slots: [Vec::new(), Vec::new()],
            by_place: [Vec::new(), Vec::new()],
            holes: [BTreeMap::new(), BTreeMap::new()],
            emptied: 0,
            pinned: BTreeSet::new(),
            empty_count: 0,
            reserved_bytes: 0,
        }
    }

    pub(super) fn handle(&self, handle: u32) -> &Handle {
        &self.handles[handle as usize]
    }

    pub(super) fn window(&self, window: u32) -> &Window {
        &self.windows[window as usize]
    }

    pub(super) fn window_mut(&mut self, window: u32) -> &mut Window {
        &mut self.windows[window as usize]
    }

    /// The names of the handles that there are.
    pub(super) fn handle_ids(&self) -> impl Iterator<Item = u32> {
        (0..self.handles.len() as u32).filter(|handle| self.handle(*handle).frame_count > 0)
    }

    /// A handle's windows, newest first.
    pub(super) fn windows_of(&self, handle: u32) -> impl Iterator<Item = u32> {
        let some = |window: u32| (window != NONE).then_some(window);
        core::iter::successors(some(self.handle(handle).first_window), move |window| {
            some(self.window(*window).next)
        })
    }

    /// A space's windows by address.
    pub(super) fn windows_in(&self, space: usize) -> &[u32] {
        &self.by_place[space]
    }

    pub(super) fn window_count(&self) -> usize {
        self.windows.len() - self.unused_windows.len()
    }

    /// The window at a frame of addresses.
    pub(super) fn window_at(&self, space: usize, slot: u64) -> Option<u32> {
        self.slots[space].get(slot as usize).copied().filter(|window| *window != NONE)
    }

    pub(super) fn add_handle(&mut self, raw: RawHandle, frame_count: u32) -> u32 {
        self.reserved_bytes += u64::from(frame_count) << FRAME_SHIFT;
        let handle = Handle { raw, frame_count, first_window: NONE };
        match self.unused_handles.pop() {
            Some(id) => {
                self.handles[id as usize] = handle;
                id
            }
            None => {
                self.handles.push(handle);
                (self.handles.len() - 1) as u32
            }
        }
    }

    /// For as long as there is the handle.
    pub(super) fn pin(&mut self, handle: u32) {
        self.pinned.insert(handle);
    }

    pub(super) fn pins_any(&self) -> bool {
        !self.pinned.is_empty()
    }

    pub(super) fn is_pinned(&self, handle: u32) -> bool {
        self.pinned.contains(&handle)
    }

    /// A handle that is mapped nowhere and was given back to the driver.
    pub(super) fn remove_handle(&mut self, id: u32) {
        let handle = &mut self.handles[id as usize];
        self.reserved_bytes -= u64::from(handle.frame_count) << FRAME_SHIFT;
        handle.frame_count = 0;
        self.pinned.remove(&id);
        self.unused_handles.push(id);
    }

    /// A handle has been mapped at `slot`; nothing is resident there yet.
    pub(super) fn add_window(&mut self, handle: u32, space: u8, slot: u64) -> u32 {
        self.fill_hole(usize::from(space), slot, u64::from(self.handle(handle).frame_count));
        let next = self.handle(handle).first_window;
        let slot = slot as u32;
        let window = Window { handle, slot, resident: 0, departed: Vec::new(), next, emptied_at: 0, space };
        let id = match self.unused_windows.pop() {
            Some(id) => {
                self.windows[id as usize] = window;
                id
            }
            None => {
                self.windows.push(window);
                (self.windows.len() - 1) as u32
            }
        };
        self.empty_count += 1;
        self.handles[handle as usize].first_window = id;
        self.set_slots(id, id);
        let index = self.place_of(usize::from(space), slot);
        self.by_place[usize::from(space)].insert(index, id);
        id
    }

    /// A window where nothing is resident has been unmapped.
    pub(super) fn remove_window(&mut self, id: u32) {
        self.set_slots(id, NONE);
        let Window { handle, next, .. } = self.windows[id as usize];
        let newer = self.windows_of(handle).find(|newer| self.window(*newer).next == id);
        match newer {
            Some(newer) => self.windows[newer as usize].next = next,
            None => self.handles[handle as usize].first_window = next,
        }
        let window = &mut self.windows[id as usize];
        window.departed = Vec::new();
        let (space, slot) = (usize::from(window.space), u64::from(window.slot));
        self.empty_count -= 1;
        self.unused_windows.push(id);
        let index = self.place_of(space, slot as u32);
        self.by_place[space].remove(index);
        self.add_hole(space, slot, u64::from(self.handle(handle).frame_count));
    }

    /// Windows where nothing is resident, longest empty first.
    pub(super) fn empty_windows(&self) -> Vec<u32> {
        let windows = self.handle_ids().flat_map(|handle| self.windows_of(handle));
        let mut empty: Vec<u32> = windows.filter(|id| self.window(*id).resident == 0).collect();
        empty.sort_unstable_by_key(|id| self.window(*id).emptied_at.wrapping_sub(self.emptied));
        empty
    }

    pub(super) fn empty_count(&self) -> usize {
        self.empty_count as usize
    }

    /// Frames of its handle become resident in a window, or leave it.
    pub(super) fn set_resident(&mut self, id: u32, resident: u64) {
        let window = &mut self.windows[id as usize];
        if window.resident == 0 && resident != 0 {
            self.empty_count -= 1;
        } else if window.resident != 0 && resident == 0 {
            self.empty_count += 1;
            self.emptied = self.emptied.wrapping_add(1);
            window.emptied_at = self.emptied;
        }
        window.resident = resident;
    }

    /// So many frames of addresses that were in use and are not any more.
    pub(super) fn hole(&self, space: usize, frame_count: u64) -> Option<u64> {
        self.holes[space].iter().find(|(_, count)| **count >= frame_count).map(|(slot, _)| *slot)
    }

    pub(super) fn holes(&self, space: usize) -> &BTreeMap<u64, u64> {
        &self.holes[space]
    }

    pub(super) fn add_hole(&mut self, space: usize, mut slot: u64, mut count: u64) {
        let holes = &mut self.holes[space];
        if let Some(behind) = holes.remove(&(slot + count)) {
            count += behind;
        }
        if let Some((before, before_count)) =
            holes.range(..slot).next_back().map(|(slot, count)| (*slot, *count))
            && before + before_count == slot
        {
            (slot, count) = (before, before_count + count);
        }
        holes.insert(slot, count);
    }

    pub(super) fn fill_hole(&mut self, space: usize, slot: u64, count: u64) {
        let holes = &mut self.holes[space];
        let Some((start, hole_count)) = holes.range(..=slot).next_back().map(|(slot, count)| (*slot, *count))
        else {
            return;
        };
        let (end, hole_end) = (slot + count, start + hole_count);
        if end > hole_end {
            return;
        }
        holes.remove(&start);
        if start < slot {
            holes.insert(start, slot - start);
        }
        if end < hole_end {
            holes.insert(end, hole_end - end);
        }
    }

    /// How many of a space's windows lie before a frame of addresses.
    fn place_of(&self, space: usize, slot: u32) -> usize {
        self.by_place[space].partition_point(|id| self.window(*id).slot < slot)
    }

    fn set_slots(&mut self, id: u32, value: u32) {
        let Window { handle, slot, space, .. } = self.windows[id as usize];
        let slots = &mut self.slots[usize::from(space)];
        let end = (slot + self.handles[handle as usize].frame_count) as usize;
        if slots.len() < end {
            slots.resize(end, NONE);
        }
        slots[slot as usize..end].fill(value);
    }

    /// The host memory that they take.
    pub(super) fn size_bytes(&self) -> usize {
        let slots: usize = self.slots.iter().map(|slots| slots.capacity() * size_of::<u32>()).sum();
        let departed: usize =
            self.windows.iter().map(|window| window.departed.capacity() * size_of::<Stamp>()).sum();
        let by_place: usize = self.by_place.iter().map(Vec::capacity).sum();
        let names =
            (self.unused_handles.capacity() + self.unused_windows.capacity() + by_place) * size_of::<u32>();
        // Nodes of such a tree are two thirds full.
        let holes: usize = self.holes.iter().map(|holes| holes.len() * size_of::<(u64, u64)>() * 3 / 2).sum();
        holes
            + self.handles.capacity() * size_of::<Handle>()
            + self.windows.capacity() * size_of::<Window>()
            + slots
            + departed
            + names
    }
}

/// Moves frames that are free, whole, to another window of their handle: what they wait for goes along.
pub(super) fn move_frames(
    frames: &mut Frames,
    spaces: &mut [Space; 2],
    records: &mut Records,
    to: u32,
    mask: u64,
) {
    let mut moved: Vec<(u64, u64, Pending)> = Vec::new();
    let ids: Vec<u32> = frames.windows_of(frames.window(to).handle).filter(|id| *id != to).collect();
    for id in ids {
        let resident = frames.window(id).resident;
        let leaving = resident & mask;
        if leaving == 0 {
            continue;
        }
        frames.set_resident(id, resident & !leaving);
        let window = frames.window_mut(id);
        let base = u64::from(window.slot) << FRAME_SHIFT;
        for (first, count) in runs(leaving) {
            let start = base + u64::from(first) * FRAME_BYTES;
            let end = start + u64::from(count) * FRAME_BYTES;
            spaces[usize::from(window.space)].vacate(records, start, end, |records, start, end, pending| {
                join(&mut window.departed, records.sets.stamps(&pending));
                moved.push((start - base, end - base, pending));
            });
        }
    }
    frames.set_resident(to, frames.window(to).resident | mask);
    let window = frames.window(to);
    let base = u64::from(window.slot) << FRAME_SHIFT;
    for (start, end, pending) in moved {
        spaces[usize::from(window.space)].occupy(records, base + start, base + end, pending);
    }
}

/// The runs of ones in a word, lowest first: where each starts, and how long it is.
pub(super) fn runs(mut mask: u64) -> impl Iterator<Item = (u32, u32)> {
    core::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let first = mask.trailing_zeros();
        let count = (mask >> first).trailing_ones();
        mask &= !ones(first, count);
        Some((first, count))
    })
}

/// `count` ones from bit `first` on.
pub(super) fn ones(first: u32, count: u32) -> u64 {
    let ones = u64::MAX.checked_shr(64 - count).unwrap_or(0);
    ones << first
}
