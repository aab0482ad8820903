//! [`Frames`]: physical memory, and the addresses that it is reached by.
//!
//! A *handle* is 1 to 64 frames of 2 MiB, mapped whole or not at all. A *window* is one mapping of a handle; a handle may
//! have many ([`Windows`]). Each frame is *resident* in one of its handle's windows: only there do records stand for its
//! bytes, so no byte can be in two blocks. (Or it is in several in part, each byte in one: [`odd`](super::odd).) A frame moves to another window of its handle when nobody holds any of it;
//! the window that it left stays mapped, and moving back costs no driver call. A handle remembers what was in use where its
//! frames moved away, because the driver may unmap those windows only when that is complete.

use super::holes::Holes;
use super::record::Records;
use super::space::{FRAME_BYTES, FRAME_SHIFT, Space};
use super::stamps::{Pending, join};
use super::windows::{Entry, WindowId, Windows};
use crate::memory::RawHandle;
use crate::order::Stamp;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) raw: RawHandle,
    /// 1 to 64; 0 marks a number that is unused.
    pub(super) frame_count: u32,
    newest: Option<WindowId>,
    /// The last uses of what has moved away, through any window.
    departed: Vec<Stamp>,
}

const _: () = assert!(size_of::<Handle>() <= 48);

#[derive(Debug, Default)]
pub(super) struct Frames {
    pub(super) handles: Vec<Handle>,
    unused_handles: Vec<u32>,
    /// Of each space.
    windows: [Windows; 2],
    /// Of each space, the frames of addresses where a window was unmapped.
    holes: [Holes; 2],
    window_count: usize,
    empty_count: usize,
    /// Where the next empty windows are looked for.
    hand: u32,
    /// Handles that are mapped in no more windows than they are, and move to none.
    pinned: BTreeSet<u32>,
    /// Frames that are in several windows, in part: handle and frame.
    shared: BTreeSet<(u32, u32)>,
    pub(super) reserved_bytes: u64,
}

impl Frames {
    pub(super) fn handle(&self, handle: u32) -> &Handle {
        &self.handles[handle as usize]
    }

    pub(super) fn handle_of(&self, id: WindowId) -> u32 {
        self.windows[id.space()].entry(u64::from(id.slot())).map_or(0, Entry::handle)
    }

    /// Which of the handle's frames are resident in a window as a whole.
    pub(super) fn resident(&self, id: WindowId) -> u64 {
        self.resident_of(id, self.handle_of(id)).0
    }

    /// And which in part.
    pub(super) fn resident_of(&self, id: WindowId, handle: u32) -> (u64, u64) {
        self.windows[id.space()].resident(id.slot(), self.handle(handle).frame_count)
    }

    /// The numbers of the handles that there are.
    pub(super) fn handle_ids(&self) -> impl Iterator<Item = u32> {
        (0..self.handles.len() as u32).filter(|handle| self.handle(*handle).frame_count > 0)
    }

    /// A handle's windows, newest first.
    pub(super) fn windows_of(&self, handle: u32) -> impl Iterator<Item = WindowId> {
        core::iter::successors(self.handle(handle).newest, |id| self.windows[id.space()].older(id.slot()))
    }

    /// A space's windows by address, and their handles.
    pub(super) fn windows_in(&self, space: usize) -> impl Iterator<Item = (WindowId, u32)> {
        self.windows[space]
            .from(0, |handle| self.handle(handle).frame_count)
            .map(move |(slot, handle)| (WindowId::new(space, slot), handle))
    }

    pub(super) fn window_count(&self) -> usize {
        self.window_count
    }

    /// The window at a frame of addresses.
    pub(super) fn window_at(&self, space: usize, slot: u64) -> Option<WindowId> {
        self.windows[space].entry(slot).map(|entry| WindowId::new(space, slot as u32 - entry.frame()))
    }

    /// What is mapped at a frame of addresses.
    #[inline]
    pub(super) fn entry(&self, space: usize, slot: u64) -> Option<Entry> {
        self.windows[space].entry(slot)
    }

    pub(super) fn add_handle(&mut self, raw: RawHandle, frame_count: u32) -> u32 {
        self.reserved_bytes += u64::from(frame_count) << FRAME_SHIFT;
        let handle = Handle { raw, frame_count, newest: None, departed: Vec::new() };
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
        handle.departed = Vec::new();
        self.pinned.remove(&id);
        self.unused_handles.push(id);
    }

    /// A handle has been mapped at `slot`; nothing is resident there yet.
    pub(super) fn add_window(&mut self, handle: u32, space: usize, slot: u64) -> WindowId {
        let Handle { frame_count, newest, .. } = *self.handle(handle);
        let id = WindowId::new(space, slot as u32);
        self.holes[space].fill(slot, u64::from(frame_count));
        self.windows[space].add(id.slot(), handle, frame_count);
        self.windows[space].set_older(id.slot(), newest);
        self.handles[handle as usize].newest = Some(id);
        self.window_count += 1;
        self.empty_count += 1;
        id
    }

    /// A window where nothing is resident has been unmapped.
    pub(super) fn remove_window(&mut self, id: WindowId) {
        let handle = self.handle_of(id);
        let older = self.windows[id.space()].older(id.slot());
        let newer =
            self.windows_of(handle).find(|newer| self.windows[newer.space()].older(newer.slot()) == Some(id));
        match newer {
            Some(newer) => self.windows[newer.space()].set_older(newer.slot(), older),
            None => self.handles[handle as usize].newest = older,
        }
        let frame_count = self.handle(handle).frame_count;
        self.windows[id.space()].remove(id.slot(), frame_count);
        self.holes[id.space()].add(u64::from(id.slot()), u64::from(frame_count));
        self.window_count -= 1;
        self.empty_count -= 1;
    }

    /// Windows where nothing is resident, and their handles, round by round: each is kept for a round.
    pub(super) fn empty_windows(&self) -> impl Iterator<Item = (WindowId, u32)> {
        let sizes = |handle| self.handle(handle).frame_count;
        let rest = self.windows[1].from(self.hand, sizes);
        let large = rest.chain(self.windows[1].from(0, sizes).take_while(|(slot, _)| *slot < self.hand));
        let all = large.map(|(slot, handle)| (WindowId::new(1, slot), handle)).chain(self.windows_in(0));
        all.filter(|(id, handle)| self.resident_of(*id, *handle) == (0, 0))
    }

    /// The next round goes on behind this one.
    pub(super) fn move_hand(&mut self, behind: WindowId) {
        if behind.space() == 1 {
            self.hand = behind.slot() + 1;
        }
    }

    pub(super) fn empty_count(&self) -> usize {
        self.empty_count
    }

    /// Frames of its handle become resident in a window, as a whole or in part, or leave it.
    pub(super) fn set_resident(&mut self, id: WindowId, resident: (u64, u64)) {
        let frame_count = self.handle(self.handle_of(id)).frame_count;
        let windows = &mut self.windows[id.space()];
        self.empty_count += usize::from(resident == (0, 0));
        self.empty_count -= usize::from(windows.resident(id.slot(), frame_count) == (0, 0));
        windows.set_resident(id.slot(), frame_count, resident);
    }

    /// What has moved away from one of the handle's windows was last used so.
    pub(super) fn note_departed(&mut self, handle: u32, stamps: &[Stamp]) {
        join(&mut self.handles[handle as usize].departed, stamps);
    }

    /// A part of a frame has moved from one window, which may have another part left, to one that had none.
    pub(super) fn share(&mut self, handle: u32, frame: u32, (from, is_left): (WindowId, bool), to: WindowId) {
        let bit = ones(frame, 1);
        let (wholes, parts) = self.resident_of(from, handle);
        self.set_resident(from, (wholes & !bit, if is_left { parts | bit } else { parts & !bit }));
        let (wholes, parts) = self.resident_of(to, handle);
        self.set_resident(to, (wholes, parts | bit));
        self.shared.insert((handle, frame));
    }

    /// Frames that are in several windows, and where the parts of each are.
    pub(super) fn shared(&self) -> impl Iterator<Item = (u32, u32, impl Iterator<Item = WindowId>)> {
        self.shared.iter().map(|(handle, frame)| {
            let has_part = |id: &WindowId| self.resident_of(*id, *handle).1 & ones(*frame, 1) != 0;
            (*handle, *frame, self.windows_of(*handle).filter(has_part))
        })
    }

    /// Whether all uses are over of what has moved away from the handle's windows.
    pub(super) fn are_departed(&self, handle: u32, is_complete: impl Fn(Stamp) -> bool) -> bool {
        self.handle(handle).departed.iter().all(|stamp| is_complete(*stamp))
    }

    pub(super) fn holes(&self, space: usize) -> &Holes {
        &self.holes[space]
    }

    pub(super) fn holes_mut(&mut self, space: usize) -> &mut Holes {
        &mut self.holes[space]
    }

    /// The host memory that they take.
    pub(super) fn size_bytes(&self) -> usize {
        let departed: usize = self.handles.iter().map(|handle| handle.departed.capacity()).sum();
        self.handles.capacity() * size_of::<Handle>()
            + self.shared.len() * size_of::<(u32, u32)>() * 3 / 2
            + self.unused_handles.capacity() * size_of::<u32>()
            + departed * size_of::<Stamp>()
            + self.windows.iter().map(Windows::size_bytes).sum::<usize>()
            + self.holes.iter().map(Holes::size_bytes).sum::<usize>()
    }
}

/// Moves frames that are free, whole, to another window of their handle: what they wait for goes along.
pub(super) fn move_frames(
    frames: &mut Frames,
    spaces: &mut [Space; 2],
    records: &mut Records,
    to: WindowId,
    mask: u64,
) {
    let handle = frames.handle_of(to);
    let mut moved: Vec<(u64, u64, Pending)> = Vec::new();
    let mut stamps: Vec<Stamp> = Vec::new();
    let others =
        frames.windows_of(handle).filter(|id| *id != to).map(|id| (id, frames.resident_of(id, handle)));
    let left: Vec<_> = others.filter(|(_, (wholes, parts))| (wholes | parts) & mask != 0).collect();
    for (id, (wholes, parts)) in left {
        let leaving = (wholes | parts) & mask;
        frames.set_resident(id, (wholes & !mask, parts & !mask));
        let base = u64::from(id.slot()) << FRAME_SHIFT;
        for (first, count) in runs(leaving) {
            let start = base + u64::from(first) * FRAME_BYTES;
            let end = start + u64::from(count) * FRAME_BYTES;
            spaces[id.space()].vacate(records, start, end, |records, start, end, pending| {
                stamps.extend_from_slice(records.sets.stamps(&pending));
                moved.push((start - base, end - base, pending));
            });
        }
    }
    frames.note_departed(handle, &stamps);
    let (wholes, parts) = frames.resident_of(to, handle);
    frames.set_resident(to, (wholes | mask, parts & !mask));
    frames.shared.retain(|(of, frame)| *of != handle || mask >> frame & 1 == 0);
    let base = u64::from(to.slot()) << FRAME_SHIFT;
    for (start, end, pending) in moved {
        spaces[to.space()].occupy(records, base + start, base + end, pending);
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
