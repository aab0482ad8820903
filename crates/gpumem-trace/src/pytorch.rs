//! A model of PyTorch's own allocator, to find the memory that it would reserve for a trace. It needs no device.
//!
//! The rules are those of `CUDACachingAllocator.cpp` with its default settings, read in PyTorch 2.11: sizes are multiples of 512 bytes; up to
//! 1 MiB they come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, and larger ones from segments of their own in steps of 2 MiB.
//! The smallest free block of the same stream that suffices is taken, and split if 512 bytes are left in a small segment, or more than 1 MiB
//! in another. Free neighbours within a segment are joined. Segments stay until memory is short.

use crate::trace::{Event, Trace};
use std::collections::{BTreeMap, BTreeSet};

const STEP_BYTES: u64 = 512;
const SMALL_BYTES_MAX: u64 = 1 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// Requests from here on have a segment of their own.
const OWN_SEGMENT_BYTES_MIN: u64 = 10 << 20;

impl Trace {
    /// The most that PyTorch's own allocator, with its default settings, would reserve for this program with so much memory: a device's, or a
    /// limit. `None` if it would run out of it, though it gives back all segments that are free as a whole. Streams of the program are
    /// PyTorch's streams; private pools of captures are not told apart.
    ///
    /// ```
    /// use gpumem_trace::Trace;
    ///
    /// // Eight blocks of 16 MiB, and then four of 32 MiB: segments are never joined.
    /// let mut text = String::from("#{\"format\":1}\n");
    /// (0..8).for_each(|id| text += &format!("a,{id},16777216,0\n"));
    /// (0..8).for_each(|id| text += &format!("f,{id},0\n"));
    /// (0..4).for_each(|id| text += &format!("a,{id},33554432,0\n"));
    /// let trace = Trace::read_from(text.as_bytes(), "twice")?;
    /// assert_eq!(trace.pytorch_reserved_bytes(1 << 30), Some(256 << 20));
    /// // With less memory, what was cached is given back first.
    /// assert_eq!(trace.pytorch_reserved_bytes(200 << 20), Some(192 << 20));
    /// assert_eq!(trace.pytorch_reserved_bytes(100 << 20), None);
    /// # Ok::<(), gpumem_trace::TraceError>(())
    /// ```
    #[must_use]
    pub fn pytorch_reserved_bytes(&self, memory_bytes: u64) -> Option<u64> {
        let mut allocator = Allocator { memory_bytes, ..Allocator::default() };
        let mut addresses = vec![None; self.slot_count() as usize];
        for event in self.events() {
            match *event {
                Event::Alloc { slot, stream, size_bytes } => {
                    addresses[slot as usize] = match size_bytes {
                        0 => None,
                        _ => Some(allocator.allocate(stream, size_bytes)?),
                    };
                }
                // A block that another stream uses is free once that stream has done so.
                Event::Free { slot } | Event::Complete { slot } => {
                    if let Some(address) = addresses[slot as usize].take() {
                        allocator.free(address);
                    }
                }
                Event::FreeUsed { .. } | Event::Refused { .. } => {}
            }
        }
        Some(allocator.peak_bytes)
    }
}

/// The blocks of one stream, for small or for other requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pool {
    stream: u16,
    is_small: bool,
}

struct Block {
    size_bytes: u64,
    /// The first address of its segment.
    segment: u64,
    pool: Pool,
    is_free: bool,
}

#[derive(Default)]
struct Allocator {
    memory_bytes: u64,
    reserved_bytes: u64,
    peak_bytes: u64,
    /// Where the next segment begins.
    next: u64,
    /// By address. Those of a segment follow each other.
    blocks: BTreeMap<u64, Block>,
    /// Pool, size and address.
    free: BTreeSet<(Pool, u64, u64)>,
}

impl Allocator {
    fn allocate(&mut self, stream: u16, size_bytes: u64) -> Option<u64> {
        let size_bytes = size_bytes.checked_next_multiple_of(STEP_BYTES)?;
        let pool = Pool { stream, is_small: size_bytes <= SMALL_BYTES_MAX };
        let found = self.free.range((pool, size_bytes, 0)..).next().filter(|(of, ..)| *of == pool).copied();
        let address = match found {
            Some((.., address)) => address,
            None => self.add_segment(pool, size_bytes)?,
        };
        self.take(address, size_bytes);
        Some(address)
    }

    fn add_segment(&mut self, pool: Pool, size_bytes: u64) -> Option<u64> {
        let segment_bytes = if pool.is_small {
            SMALL_SEGMENT_BYTES
        } else if size_bytes < OWN_SEGMENT_BYTES_MIN {
            LARGE_SEGMENT_BYTES
        } else {
            size_bytes.checked_next_multiple_of(SMALL_SEGMENT_BYTES)?
        };
        if self.reserved_bytes.checked_add(segment_bytes)? > self.memory_bytes {
            self.release_free_segments();
        }
        self.reserved_bytes = self.reserved_bytes.checked_add(segment_bytes)?;
        if self.reserved_bytes > self.memory_bytes {
            return None;
        }
        self.peak_bytes = self.peak_bytes.max(self.reserved_bytes);
        let address = self.next;
        self.next = self.next.checked_add(segment_bytes)?;
        self.add_free(address, Block { size_bytes: segment_bytes, segment: address, pool, is_free: true });
        Some(address)
    }

    fn add_free(&mut self, address: u64, block: Block) {
        self.free.insert((block.pool, block.size_bytes, address));
        self.blocks.insert(address, block);
    }

    /// Takes a free block, or its beginning.
    fn take(&mut self, address: u64, size_bytes: u64) {
        let Some(block) = self.blocks.get_mut(&address) else { return };
        let (whole_bytes, segment, pool) = (block.size_bytes, block.segment, block.pool);
        self.free.remove(&(pool, whole_bytes, address));
        block.is_free = false;
        let rest_bytes = whole_bytes - size_bytes;
        let is_split = if pool.is_small { rest_bytes >= STEP_BYTES } else { rest_bytes > SMALL_BYTES_MAX };
        if is_split {
            block.size_bytes = size_bytes;
            let rest = Block { size_bytes: rest_bytes, segment, pool, is_free: true };
            self.add_free(address + size_bytes, rest);
        }
    }

    fn free(&mut self, address: u64) {
        let Some(mut block) = self.blocks.remove(&address) else { return };
        let is_joined = |other: &Block| other.is_free && other.segment == block.segment;
        let after = self.blocks.range(address..).next().filter(|(_, other)| is_joined(other));
        let before = self.blocks.range(..address).next_back().filter(|(_, other)| is_joined(other));
        let (after, before) = (after.map(|(address, _)| *address), before.map(|(address, _)| *address));
        let mut start = address;
        for neighbour in [after, before].into_iter().flatten() {
            if let Some(other) = self.blocks.remove(&neighbour) {
                self.free.remove(&(other.pool, other.size_bytes, neighbour));
                block.size_bytes += other.size_bytes;
                start = start.min(neighbour);
            }
        }
        block.is_free = true;
        self.add_free(start, block);
    }

    /// Gives back each segment that is one free block.
    fn release_free_segments(&mut self) {
        let next = self.next;
        let starts = self.blocks.iter().map(|(address, block)| (*address, block.segment));
        let ends = starts.clone().skip(1).map(|(_, segment)| segment).chain([next]);
        // A block is a whole segment if it begins one, and the block behind it begins another.
        let whole =
            starts.zip(ends).filter(|((address, segment), after)| address == segment && after != segment);
        let whole: Vec<u64> = whole.map(|((address, _), _)| address).collect();
        for address in whole {
            if let Some(block) = self.blocks.get(&address)
                && block.is_free
            {
                self.free.remove(&(block.pool, block.size_bytes, address));
                self.reserved_bytes -= block.size_bytes;
                self.blocks.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocations and frees of one stream in bytes: a free has the number of the allocation.
    fn reserved(lines: &[&str]) -> Option<u64> {
        let text = format!("#{{\"format\":1}}\n{}\n", lines.join("\n"));
        Trace::read_from(text.as_bytes(), "test").unwrap().pytorch_reserved_bytes(1 << 40)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn segments_are_those_of_the_size() {
        for (size_bytes, segment_bytes) in [
            (1, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 1, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (11 * MIB, 12 * MIB),
        ] {
            assert_eq!(reserved(&[&format!("a,1,{size_bytes},0")]), Some(segment_bytes), "{size_bytes}");
        }
        assert_eq!(reserved(&["a,1,0,0"]), Some(0));
    }

    #[test]
    fn the_rest_of_a_block_is_used_by_its_stream_alone() {
        // Two halves of a small segment; the third needs another one.
        let halves = ["a,1,1048576,0", "a,2,1048576,0"];
        assert_eq!(reserved(&halves), Some(2 * MIB));
        assert_eq!(reserved(&["a,1,1048576,0", "a,2,1048576,1"]), Some(4 * MIB));
        // 19 MiB leave 1 MiB, which is not split off.
        let rest = ["a,1,9437184,0", "a,2,9437184,0", "a,3,2097152,0"];
        assert_eq!(reserved(&rest), Some(20 * MIB));
        assert_eq!(reserved(&["a,1,9437184,0", "a,2,10485760,0"]), Some(20 * MIB));
    }

    #[test]
    fn free_neighbours_are_joined() {
        let all =
            ["a,1,5242880,0", "a,2,5242880,0", "a,3,5242880,0", "f,1,0", "f,3,0", "f,2,0", "a,4,20971520,0"];
        assert_eq!(reserved(&all), Some(20 * MIB));
        let apart = ["a,1,5242880,0", "a,2,5242880,0", "a,3,5242880,0", "f,1,0", "f,3,0", "a,4,20971520,0"];
        assert_eq!(reserved(&apart), Some(40 * MIB));
    }

    #[test]
    fn a_used_block_is_free_when_its_use_is_over() {
        let text = ["a,1,20971520,0", "f,1,0", "a,2,20971520,0", "c,1"];
        assert_eq!(reserved(&text), Some(40 * MIB));
        let text = ["a,1,20971520,0", "f,1,0", "c,1", "a,2,20971520,0"];
        assert_eq!(reserved(&text), Some(20 * MIB));
    }
}
