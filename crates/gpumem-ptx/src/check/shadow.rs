//! Shadow memory: for each byte that a launch accesses, the accesses that later ones are compared with, and whether it was written.

use crate::program::Scope;
use core::ops::Range;
use std::collections::HashMap;

const PAGE_BYTES: u64 = 1024;
pub(super) const WORD_BYTES: u64 = 4;

/// An earlier access to a byte. A time of 0 is none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) time: u64,
    pub(super) thread: u64,
    pub(super) step: u32,
    /// The scope of a strong access.
    pub(super) strong: Option<Scope>,
}

/// The accesses to a byte, or to four bytes that are accessed together.
#[derive(Clone, Copy, Default)]
pub(super) struct History {
    pub(super) write: Earlier,
    pub(super) reads: [Earlier; 2],
}

/// The histories of `PAGE_BYTES` bytes: one for each four bytes until a part of four is accessed, then one for each byte.
struct Page {
    histories: Vec<History>,
    written: [u64; PAGE_BYTES as usize / 64],
}

#[derive(Default)]
pub(super) struct Shadow(HashMap<u64, Page>);

impl Page {
    fn new() -> Self {
        Self { histories: Vec::new(), written: [0; PAGE_BYTES as usize / 64] }
    }

    fn histories(&mut self, bytes: Range<u64>) -> &mut [History] {
        if self.histories.is_empty() {
            self.histories = vec![History::default(); (PAGE_BYTES / WORD_BYTES) as usize];
        }
        let is_words = self.histories.len() < PAGE_BYTES as usize;
        if is_words && (bytes.start | bytes.end) & (WORD_BYTES - 1) != 0 {
            self.histories =
                (0..PAGE_BYTES).map(|byte| self.histories[(byte / WORD_BYTES) as usize]).collect();
        }
        let unit = PAGE_BYTES / self.histories.len() as u64;
        &mut self.histories[(bytes.start / unit) as usize..(bytes.end / unit) as usize]
    }

    fn set_written(&mut self, bytes: Range<u64>) {
        bytes.for_each(|byte| self.written[byte as usize / 64] |= 1 << (byte % 64));
    }

    fn set_unwritten(&mut self, bytes: Range<u64>) {
        bytes.for_each(|byte| self.written[byte as usize / 64] &= !(1 << (byte % 64)));
    }

    fn is_written(&self, byte: u64) -> bool {
        self.written[byte as usize / 64] >> (byte % 64) & 1 == 1
    }
}

impl Shadow {
    /// The pages of an access, each with the bytes in it.
    fn pages(&mut self, address: u64, size_bytes: u64, mut f: impl FnMut(&mut Page, Range<u64>)) {
        let (mut at, end) = (address, address.saturating_add(size_bytes));
        while at < end {
            let start = at - at % PAGE_BYTES;
            let stop = end.min(start.saturating_add(PAGE_BYTES));
            f(self.0.entry(start).or_insert_with(Page::new), at - start..stop - start);
            at = stop;
        }
    }

    /// The histories of the bytes of an access.
    pub(super) fn histories(&mut self, address: u64, size_bytes: u64, mut f: impl FnMut(&mut History)) {
        self.pages(address, size_bytes, |page, bytes| page.histories(bytes).iter_mut().for_each(&mut f));
    }

    /// True if the launch has written none of these bytes.
    pub(super) fn is_unwritten(&mut self, address: u64, size_bytes: u64) -> bool {
        let mut is_unwritten = true;
        self.pages(address, size_bytes, |page, mut bytes| {
            is_unwritten &= !bytes.any(|byte| page.is_written(byte))
        });
        is_unwritten
    }

    pub(super) fn set_written(&mut self, address: u64, size_bytes: u64) {
        self.pages(address, size_bytes, Page::set_written);
    }

    pub(super) fn set_unwritten(&mut self, address: u64, size_bytes: u64) {
        let end = address.saturating_add(size_bytes);
        let mut start = address - address % PAGE_BYTES;
        while start < end {
            if let Some(page) = self.0.get_mut(&start) {
                page.set_unwritten(address.max(start) - start..end.min(start + PAGE_BYTES) - start);
            }
            start += PAGE_BYTES;
        }
    }
}
