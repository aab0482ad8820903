//! The memory of a launch as one of its cores sees it: copies of the parts that it accesses. Another thread gives them.

use crate::memory::{DeviceMemory, Region};
use core::cell::{Cell, OnceCell, RefCell};
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};

/// A part that a core needs.
pub(crate) struct Wanted {
    pub(crate) core: usize,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) is_write: bool,
}

/// A part of the memory: what is there before the launch, then what the core has written.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) cells: Vec<Cell<u8>>,
    pub(crate) is_writable: bool,
}

/// All pieces of a core.
pub(crate) struct Copied {
    core: usize,
    wanted: Sender<Wanted>,
    given: Receiver<Option<Piece>>,
    /// The cells of the pieces, in the order in which they came: others never move, so that the kernel may have them.
    cells: Vec<OnceCell<Vec<Cell<u8>>>>,
    /// By their first addresses.
    known: RefCell<BTreeMap<u64, Known>>,
}

#[derive(Clone, Copy)]
struct Known {
    index: usize,
    is_writable: bool,
}

impl Copied {
    pub(crate) fn new(core: usize, wanted: Sender<Wanted>, given: Receiver<Option<Piece>>) -> Self {
        let cells = (0..PIECES_MAX).map(|_| OnceCell::new()).collect();
        Self { core, wanted, given, cells, known: RefCell::default() }
    }

    /// The piece that has the beginning of an access, if it has it whole.
    fn find(&self, address: u64, size_bytes: u64) -> Option<(Known, Region<'_>)> {
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
        known.insert(piece.start, Known { index, is_writable: piece.is_writable });
        Some(())
    }

    /// The pieces, in the order of their addresses.
    pub(crate) fn into_pieces(mut self) -> Vec<Piece> {
        let known = core::mem::take(self.known.get_mut());
        let pieces = known.into_iter().filter_map(|(start, Known { index, is_writable })| {
            Some(Piece { start, cells: self.cells[index].take()?, is_writable })
        });
        pieces.collect()
    }
}

impl DeviceMemory for Copied {
    fn region(&self, address: u64, size_bytes: u64, is_write: bool) -> Option<Region<'_>> {
        let found = self.find(address, size_bytes);
        if let Some((_, region)) = found.filter(|(known, _)| known.is_writable || !is_write) {
            return Some(region);
        }
        if window(address).end < address.checked_add(size_bytes)? {
            // Of several lanes together. Each of them will ask for itself.
            return None;
        }
        self.wanted.send(Wanted { core: self.core, address, size_bytes, is_write }).ok()?;
        let piece = self.given.recv().ok().flatten()?;
        match found {
            Some((known, region)) => {
                // It was given for reading. The same bytes may be written, too, or the core gives up.
                let is_same = piece.start == region.start && piece.cells.len() == region.cells.len();
                if !is_same || !piece.is_writable {
                    return None;
                }
                self.known.borrow_mut().insert(region.start, Known { is_writable: true, ..known });
            }
            None => self.add(piece)?,
        }
        self.find(address, size_bytes).map(|(_, region)| region)
    }
}

/// The addresses that one piece has, at most, for an address among them.
pub(crate) fn window(address: u64) -> Range<u64> {
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
        let (wanted, _asked) = channel();
        let (give, given) = channel();
        let memory = Copied::new(0, wanted, given);
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
