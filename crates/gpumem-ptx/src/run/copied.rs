//! The memory of a launch as one of its cores sees it, or one that runs it again: copies of the parts that it accesses.

use crate::memory::{DeviceMemory, Region};
use core::cell::{Cell, OnceCell, RefCell};
use core::ops::Range;
use std::collections::BTreeMap;

/// A part of the memory: what is there before the launch, then what the core has written.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) cells: Vec<Cell<u8>>,
    pub(crate) is_writable: bool,
}

/// Gives a piece with the bytes from an address on, and whether they are to be written.
pub(crate) type Give<'g> = dyn Fn(u64, u64, bool) -> Option<Piece> + 'g;

/// All pieces of a core.
pub(crate) struct Copied<'g> {
    give: Box<Give<'g>>,
    /// The cells of the pieces, in the order in which they came: others never move, so that the kernel may have them.
    cells: Vec<OnceCell<Vec<Cell<u8>>>>,
    /// By their first addresses.
    known: RefCell<BTreeMap<u64, Held>>,
}

/// Where a piece is, and what it was given for.
#[derive(Clone, Copy)]
struct Held {
    index: usize,
    is_writable: bool,
}

impl Piece {
    /// A copy of what a region has around an address, as much as one piece may have.
    pub(crate) fn of(region: &Region<'_>, address: u64) -> Self {
        let window = window(address);
        let start = window.start.max(region.start);
        let end = window.end.min(region.start + region.cells.len() as u64);
        let cells = region.cells[(start - region.start) as usize..(end - region.start) as usize].to_vec();
        Self { start, cells, is_writable: region.is_writable }
    }
}

impl<'g> Copied<'g> {
    pub(crate) fn new(give: impl Fn(u64, u64, bool) -> Option<Piece> + 'g) -> Self {
        let cells = (0..PIECES_MAX).map(|_| OnceCell::new()).collect();
        Self { give: Box::new(give), cells, known: RefCell::default() }
    }

    /// The piece that has the beginning of an access, if it has it whole.
    fn find(&self, address: u64, size_bytes: u64) -> Option<(Held, Region<'_>)> {
        let known = self.known.borrow();
        let (start, known) = known.range(..=address).next_back()?;
        let cells = self.cells[known.index].get()?;
        let offset_bytes = address - start;
        let fits = offset_bytes.checked_add(size_bytes).is_some_and(|end| end <= cells.len() as u64);
        fits.then_some((*known, Region { start: *start, cells, is_writable: known.is_writable }))
    }

    /// Puts a new piece beside the others. `None` if it overlaps one of them, or if there are too many.
    fn add(&self, piece: Piece) -> Option<()> {
        let mut known = self.known.borrow_mut();
        let index = known.len();
        let end = piece.start + piece.cells.len() as u64;
        let before = known.range(..end).next_back();
        let end_before =
            before.and_then(|(start, known)| Some(start + self.cells[known.index].get()?.len() as u64));
        if end_before.is_some_and(|end| end > piece.start) {
            return None;
        }
        self.cells.get(index)?.set(piece.cells).ok()?;
        known.insert(piece.start, Held { index, is_writable: piece.is_writable });
        Some(())
    }

    /// The pieces, in the order of their addresses.
    pub(crate) fn into_pieces(mut self) -> Vec<Piece> {
        let known = core::mem::take(self.known.get_mut());
        let pieces = known.into_iter().filter_map(|(start, Held { index, is_writable })| {
            Some(Piece { start, cells: self.cells[index].take()?, is_writable })
        });
        pieces.collect()
    }
}

impl DeviceMemory for Copied<'_> {
    fn region(&self, address: u64, size_bytes: u64, is_write: bool) -> Option<Region<'_>> {
        let found = self.find(address, size_bytes);
        if let Some((_, region)) = found.filter(|(known, _)| known.is_writable || !is_write) {
            return Some(region);
        }
        if window(address).end < address.checked_add(size_bytes)? {
            // Of several lanes together. Each of them will ask for itself.
            return None;
        }
        let piece = (self.give)(address, size_bytes, is_write)?;
        match found {
            Some((known, region)) => {
                // It was given for reading. The same bytes may be written, too, or the core gives up.
                let is_same = piece.start == region.start && piece.cells.len() == region.cells.len();
                if !is_same || !piece.is_writable {
                    return None;
                }
                self.known.borrow_mut().insert(region.start, Held { is_writable: true, ..known });
            }
            None => self.add(piece)?,
        }
        self.find(address, size_bytes).map(|(_, region)| region)
    }
}

/// The addresses that one piece has, at most, for an address among them.
fn window(address: u64) -> Range<u64> {
    let start = address & !(WINDOW_BYTES - 1);
    start..start.saturating_add(WINDOW_BYTES)
}

const WINDOW_BYTES: u64 = 64 << 10;
/// 256 MiB for each core.
const PIECES_MAX: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn piece(start: u64, len: usize, is_writable: bool) -> Option<Piece> {
        Some(Piece { start, cells: vec![Cell::new(0); len], is_writable })
    }

    /// A core has each byte once.
    #[test]
    fn pieces_do_not_overlap() {
        let (give, given) = channel();
        let memory = Copied::new(|_, _, _| given.try_recv().ok().flatten());
        give.send(piece(0x1_0000, 0x100, false)).unwrap();
        memory.region(0x1_0010, 4, false).unwrap();
        // The bytes that may be written are others than those that may be read.
        give.send(piece(0x1_0010, 0x10, true)).unwrap();
        assert!(memory.region(0x1_0010, 4, true).is_none());
        // Now they are the same. What was read stays where it is.
        give.send(piece(0x1_0000, 0x100, true)).unwrap();
        memory.region(0x1_0010, 1, true).unwrap().cells[0].set(7);
        assert_eq!(memory.region(0x1_0010, 1, false).unwrap().cells[0x10].get(), 0);
        assert_eq!(memory.region(0x1_0000, 1, false).unwrap().cells[0].get(), 7);
        // One that begins before another and ends in it.
        give.send(piece(0x1_0080, 0x200, true)).unwrap();
        assert!(memory.region(0x1_0180, 4, true).is_none());
        give.send(piece(0x1_0100, 0x200, true)).unwrap();
        assert!(memory.region(0x1_0180, 4, true).is_some());
        // Nothing is asked for an access that no piece can have.
        assert!(memory.region(0x1_fffc, 8, false).is_none());
        assert_eq!(memory.into_pieces().len(), 2);
    }
}
