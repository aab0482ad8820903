//! Tickets: 64 bytes that identify an object of an instance to other processes.
//!
//! A ticket is the label of an exported file, and the content of the driver's handles for other processes. The program passes it
//! back and may have changed it: the checksum refuses a ticket that no instance wrote, or that was changed or truncated. This
//! module has no side effects, except for the random number that identifies this process.

use crate::base::codes::{Answer, INVALID_VALUE};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The object of a ticket, and its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) kind: TicketKind,
    /// Identifies the process, even if process numbers are reused.
    pub(crate) process: u64,
    pub(crate) pid: u32,
    pub(crate) instance: u32,
    pub(crate) device: u32,
    /// The object's number in its process. Numbers are never reused.
    pub(crate) id: u64,
    /// The file's descriptor in the process that wrote the ticket, if other processes open the file from there.
    pub(crate) descriptor: u32,
    /// The offset in the file.
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
}

/// The kind of object of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketKind {
    /// A file: one handle of virtual memory management.
    Physical = 1,
    /// A file: the memory of a pool.
    Pool = 2,
    /// A file: a chunk of plain memory.
    Chunk = 3,
    /// An allocation of a pool.
    PoolBlock = 4,
    /// An allocation of plain memory.
    Plain = 5,
    /// An event.
    Event = 6,
}

impl Ticket {
    /// Creates a ticket for an object of an instance of this process, with a new number.
    pub(crate) fn new(kind: TicketKind, instance: u64, device: usize, size_bytes: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            kind,
            process: process(),
            pid: std::process::id(),
            instance: instance as u32,
            device: device as u32,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            descriptor: 0,
            offset_bytes: 0,
            size_bytes,
        }
    }

    /// Creates a ticket for a part of this file, by its offset.
    pub(crate) fn part(&self, kind: TicketKind, offset_bytes: u64, size_bytes: u64) -> Self {
        Self { kind, offset_bytes, size_bytes, ..*self }
    }

    /// True if a part lies in the file that this ticket labels.
    pub(crate) fn has_part(&self, part: &Self) -> bool {
        let end_bytes = part.offset_bytes.checked_add(part.size_bytes);
        self.is_about(part) && part.size_bytes > 0 && end_bytes.is_some_and(|end| end <= self.size_bytes)
    }

    /// True if this process wrote the ticket. A forked child is another process.
    pub(crate) fn is_of(&self, instance: u64) -> bool {
        self.process == process() && self.pid == std::process::id() && self.instance == instance as u32
    }

    /// True if both tickets were written by one instance for one object.
    pub(crate) fn is_about(&self, other: &Self) -> bool {
        (self.process, self.pid, self.id) == (other.process, other.pid, other.id)
    }

    pub(crate) fn encode(&self) -> [u8; TICKET_BYTES] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let words = [
            pair(MAGIC, self.kind as u32),
            self.process,
            pair(self.pid, self.instance),
            pair(self.device, self.descriptor),
            self.id,
            self.offset_bytes,
            self.size_bytes,
        ];
        let mut bytes = [0; TICKET_BYTES];
        for (target, word) in bytes.chunks_exact_mut(8).zip(words.into_iter().chain([checksum(&words)])) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    ///
    /// `INVALID_VALUE` for bytes that [`Ticket::encode`] did not make.
    pub(crate) fn decode(bytes: &[u8; TICKET_BYTES]) -> Answer<Self> {
        let mut words = [0; TICKET_BYTES / 8];
        for (word, source) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*source);
        }
        let [head, process, maker, place, id, offset_bytes, size_bytes, sum] = words;
        let (high, low) = (|word: u64| (word >> 32) as u32, |word: u64| word as u32);
        if high(head) != MAGIC || sum != checksum(&words[..7]) {
            return Err(INVALID_VALUE);
        }
        let kind = KINDS.into_iter().find(|&kind| kind as u32 == low(head)).ok_or(INVALID_VALUE)?;
        Ok(Self {
            kind,
            process,
            pid: high(maker),
            instance: low(maker),
            device: high(place),
            descriptor: low(place),
            id,
            offset_bytes,
            size_bytes,
        })
    }

    /// A ticket of one kind.
    pub(crate) fn decode_as(kind: TicketKind, bytes: &[u8; TICKET_BYTES]) -> Answer<Self> {
        Self::decode(bytes)
            .and_then(|ticket| if ticket.kind == kind { Ok(ticket) } else { Err(INVALID_VALUE) })
    }
}

/// A random number that identifies this process.
fn process() -> u64 {
    static DRAWN: OnceLock<u64> = OnceLock::new();
    *DRAWN.get_or_init(|| RandomState::new().build_hasher().finish())
}

/// A checksum. It does not protect from forgery: the program that passes tickets on may access the memory behind them anyway.
fn checksum(words: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    words.iter().fold(u64::from(MAGIC), mix)
}

/// The size of each of the driver's handles for other processes.
pub(crate) const TICKET_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"gpum");

const KINDS: [TicketKind; 6] = [
    TicketKind::Physical,
    TicketKind::Pool,
    TicketKind::Chunk,
    TicketKind::PoolBlock,
    TicketKind::Plain,
    TicketKind::Event,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_comes_back_as_it_went() {
        for kind in KINDS {
            let ticket = Ticket { descriptor: 7, offset_bytes: 1 << 42, ..Ticket::new(kind, 3, 5, 1 << 20) };
            assert_eq!(Ticket::decode(&ticket.encode()), Ok(ticket));
            assert_eq!(Ticket::decode_as(kind, &ticket.encode()), Ok(ticket));
            assert!(ticket.is_of(3) && !ticket.is_of(4));
            assert!(ticket.is_about(&ticket) && !ticket.is_about(&Ticket::new(kind, 3, 5, 1 << 20)));
        }
        let event = Ticket::new(TicketKind::Event, 0, 0, 0).encode();
        assert_eq!(Ticket::decode_as(TicketKind::Pool, &event), Err(INVALID_VALUE));
    }

    #[test]
    fn one_that_was_changed_in_any_place_or_never_was_one_is_refused() {
        let bytes = Ticket::new(TicketKind::PoolBlock, 1, 0, 4096).encode();
        for index in 0..TICKET_BYTES * 8 {
            let mut changed = bytes;
            changed[index / 8] ^= 1 << (index % 8);
            assert_eq!(Ticket::decode(&changed), Err(INVALID_VALUE), "bit {index}");
        }
        assert_eq!(Ticket::decode(&[0; TICKET_BYTES]), Err(INVALID_VALUE));
        assert_eq!(Ticket::decode(&[255; TICKET_BYTES]), Err(INVALID_VALUE));
    }
}
