//! Asynchronous copies (`cp.async`) that were not waited for.

use crate::check::noted::Noted;
use crate::check::shadow::{Earlier, WORD_BYTES};
use std::collections::HashMap;

/// The copies of one thread that are known at the same time.
const COPIES_MAX: usize = 1 << 14;

/// The asynchronous copies of a block that were not waited for.
#[derive(Default)]
pub(super) struct Copies {
    /// By threads: the groups that are complete, and the copies with their groups.
    of_threads: HashMap<u32, (u64, Vec<(u64, PendingCopy)>)>,
    /// By words of the shared memory: the thread of the copy, and its step.
    words: HashMap<u64, (u32, u32)>,
}

#[derive(Clone, Copy)]
pub(super) struct PendingCopy {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) earlier: Earlier,
}

impl Copies {
    /// A thread copies to shared memory.
    pub(super) fn issue(&mut self, noted: &Noted, earlier: Earlier) {
        let copy = PendingCopy { address: noted.address, size_bytes: noted.size_bytes, earlier };
        let (group, list) = self.of_threads.entry(noted.thread).or_default();
        if list.len() < COPIES_MAX {
            list.push((*group, copy));
            let of = (noted.thread, noted.step);
            self.words.extend(words(noted.address, noted.size_bytes).map(|word| (word, of)));
        }
    }

    /// The thread and the step of a copy to one of the words of an access.
    pub(super) fn pending_at(&self, noted: &Noted) -> Option<(u32, u32)> {
        if self.words.is_empty() {
            return None;
        }
        words(noted.address, noted.size_bytes).find_map(|word| self.words.get(&word).copied())
    }

    /// The copies of a thread become a group.
    pub(super) fn commit(&mut self, thread: u32) {
        self.of_threads.entry(thread).or_default().0 += 1;
    }

    /// A thread has waited for its copies, except for those of its last `pending` groups. Gives those that are done.
    pub(super) fn complete(&mut self, thread: u32, pending: Option<u32>) -> Vec<PendingCopy> {
        let mut done = Vec::new();
        let Some((group, copies)) = self.of_threads.get_mut(&thread) else { return done };
        // Copies of the group that is open are waited for by a wait for all alone.
        let end = pending.map_or(u64::MAX, |pending| group.saturating_sub(pending.into()));
        copies.retain(|(group, copy)| {
            let is_pending = *group >= end;
            done.extend((!is_pending).then_some(*copy));
            is_pending
        });
        for word in done.iter().flat_map(|copy| words(copy.address, copy.size_bytes)) {
            self.words.remove(&word);
        }
        done
    }
}

/// The words of bytes of shared memory.
fn words(address: u64, size_bytes: u64) -> impl Iterator<Item = u64> {
    address / WORD_BYTES..address.saturating_add(size_bytes).div_ceil(WORD_BYTES)
}
