//! The naive twin: the expected state of the pools, as a sorted list and plain sums. Pure.
//!
//! Blocks allocated in a capture are *parts*: the pool requests them in chunks whose size is an internal decision. So a sum has a
//! lower bound, the known bytes, and a spare that parts may take in addition. A block that is dropped while a graph may use it is
//! *kept*: the program has lost it, but its memory must not be reused.

mod contents;
mod parts;
#[cfg(test)]
mod tests;

pub use contents::{copyable_bytes, windows};
use std::collections::BTreeMap;

/// The counters of one pool.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The hard limit.
    pub limit_bytes: Option<u64>,
    /// The parent of a private pool.
    pub above: Option<usize>,
    /// The bytes of live and kept blocks.
    pub in_use_bytes: u64,
    /// The bytes that the chunks of parts may take in addition.
    pub spare_bytes: u64,
    /// The peak of the bytes in use, without and with the spare.
    pub peak_bytes: (u64, u64),
    /// The number of live and kept blocks, without parts.
    pub block_count: u64,
    /// The number of blocks allocated so far, without parts.
    pub allocation_count: u64,
    /// The number of parts allocated so far.
    pub part_count: u64,
    /// The number of blocks that the pool may have counted and then released because an adaptor failed.
    pub undone_count: u64,
    /// The usage of each tag, by scope name.
    pub tags: BTreeMap<&'static str, Tagged>,
}

/// The usage of a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tagged {
    /// The bytes of its live blocks.
    pub in_use_bytes: u64,
    /// The peak of those bytes.
    pub peak_bytes: u64,
    /// The number of its live blocks.
    pub block_count: u64,
    /// The number of its blocks allocated so far.
    pub allocation_count: u64,
}

/// All live blocks, by address, and the counters of all pools so far.
#[derive(Clone, Debug, Default)]
pub struct Twin {
    /// The live blocks, sorted by address.
    blocks: Vec<TwinBlock>,
    kept: Vec<TwinBlock>,
    /// For each graph and pool: the number of live parts, and the bytes that all its chunks may take.
    parts: BTreeMap<(u32, usize), (u64, u64)>,
    /// Graphs that are alive, or have a live executable.
    graphs: Vec<u32>,
    /// The graph of the open capture. It may keep memory that is freed during the capture.
    capture: Option<u32>,
    /// The counters of the pools, in order of creation.
    pub pools: Vec<Books>,
}

/// A new block.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock {
    /// A unique number.
    pub name: u32,
    /// The address.
    pub address: u64,
    /// The requested bytes.
    pub size_bytes: u64,
    /// The bytes that count as in use.
    pub counted_bytes: u64,
    /// The bytes that its chunk may take, if it is a part.
    pub chunk_bytes: u64,
    /// The alignment of the address.
    pub alignment: u64,
    /// The index of the pool's counters.
    pub pool: usize,
    /// The capture that it was allocated in.
    pub part_of: Option<u32>,
    /// The name of the scope that it was allocated in.
    pub tag: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct TwinBlock {
    made: NewBlock,
    /// The bytes in the block's [`windows`]; `None` before the first write.
    contents: Option<Vec<u8>>,
}

/// The state of the memory after a block is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Returned to the pool.
    Free,
    /// Retained by a graph.
    Retained,
    /// Possibly kept by the graph of the open capture.
    Unsure,
}

impl NewBlock {
    fn overlaps(&self, other: &Self) -> bool {
        self.address < other.address + other.size_bytes && other.address < self.address + self.size_bytes
    }
}

impl Twin {
    /// Opens the counters of a new pool. Returns their index.
    pub fn open(&mut self, limit_bytes: Option<u64>, above: Option<usize>) -> usize {
        self.pools.push(Books { limit_bytes, above, ..Books::default() });
        self.pools.len() - 1
    }

    /// True if the limits of a pool and its parents may have room, if chunks take no spare bytes.
    #[must_use]
    pub fn admits(&self, pool: usize, size_bytes: u64) -> bool {
        self.has_room(pool, size_bytes, |counters| counters.in_use_bytes)
    }

    /// True if the limits have room even if chunks take all their spare bytes.
    #[must_use]
    pub fn surely_admits(&self, pool: usize, size_bytes: u64) -> bool {
        self.has_room(pool, size_bytes, |counters| counters.in_use_bytes + counters.spare_bytes)
    }

    fn has_room(&self, pool: usize, size_bytes: u64, held: impl Fn(&Books) -> u64 + Copy) -> bool {
        let under = (0..self.pools.len()).filter(|other| self.is_under(*other, pool));
        let held_bytes: u64 = under.map(|other| held(&self.pools[other])).sum();
        let after = u128::from(held_bytes) + u128::from(size_bytes);
        let Books { limit_bytes, above, .. } = self.pools[pool];
        limit_bytes.is_none_or(|limit| after <= u128::from(limit))
            && above.is_none_or(|above| self.has_room(above, size_bytes, held))
    }

    /// The limits of a pool and its parents.
    #[must_use]
    pub fn limits(&self, pool: usize) -> Vec<u64> {
        let Books { limit_bytes, above, .. } = self.pools[pool];
        let above = above.map(|above| self.limits(above)).unwrap_or_default();
        limit_bytes.into_iter().chain(above).collect()
    }

    /// The lowest of [`Twin::limits`].
    #[must_use]
    pub fn limit_bytes(&self, pool: usize) -> Option<u64> {
        self.limits(pool).into_iter().min()
    }

    /// True if the program and the graphs have no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.kept.is_empty() && self.parts.is_empty()
    }

    /// True if a pool is `root` or one of its private pools.
    #[must_use]
    pub fn is_under(&self, pool: usize, root: usize) -> bool {
        pool == root || self.pools[pool].above.is_some_and(|above| self.is_under(above, root))
    }

    /// Adds a block that a pool returned.
    ///
    /// # Errors
    ///
    /// If the block overlaps another one, has a null address, or is not aligned.
    pub fn allocate(&mut self, made: NewBlock) -> Result<(), String> {
        let NewBlock { address, size_bytes, pool, .. } = made;
        if address == 0 || !address.is_multiple_of(made.alignment.max(256)) {
            return Err(format!("a block of {size_bytes} bytes lies at {address:#x}"));
        }
        let place = self.blocks.partition_point(|block| block.made.address < address);
        let near = place.saturating_sub(1)..self.blocks.len().min(place + 1);
        // A later part of a capture may reuse the memory of a dropped one.
        let kept =
            self.kept.iter().filter(|kept| made.part_of.is_none() || kept.made.part_of != made.part_of);
        if let Some(other) = self.blocks[near].iter().chain(kept).find(|other| other.made.overlaps(&made)) {
            return Err(format!(
                "a block of {size_bytes} bytes at {address:#x} overlaps one of {} at {:#x}, b{}",
                other.made.size_bytes, other.made.address, other.made.name
            ));
        }
        self.blocks.insert(place, TwinBlock { made, contents: None });
        match made.part_of {
            Some(graph) => self.count_part(graph, &made),
            None => {
                self.pools[pool].block_count += 1;
                self.pools[pool].allocation_count += 1;
            }
        }
        if let Some(tag) = made.tag {
            let tagged = self.pools[pool].tags.entry(tag).or_default();
            tagged.in_use_bytes += size_bytes;
            tagged.peak_bytes = tagged.peak_bytes.max(tagged.in_use_bytes);
            tagged.block_count += 1;
            tagged.allocation_count += 1;
        }
        self.change(pool, made.counted_bytes.cast_signed());
        Ok(())
    }

    /// Notes a failed allocation that the pool may have counted.
    pub fn note_undone(&mut self, pool: usize, counted_bytes: u64) {
        self.pools[pool].undone_count += 1;
        let counters = &mut self.pools[pool];
        let most_bytes = (counters.in_use_bytes + counters.spare_bytes).saturating_add(counted_bytes);
        counters.peak_bytes.1 = counters.peak_bytes.1.max(most_bytes);
    }

    /// The sizes of all live and kept blocks without parts, each rounded up to 256 bytes.
    #[must_use]
    pub fn whole_bytes(&self) -> u64 {
        let blocks = self.blocks.iter().chain(&self.kept).filter(|block| block.made.part_of.is_none());
        blocks.map(|block| block.made.size_bytes.next_multiple_of(256)).sum()
    }

    /// Adds to the bytes in use of a pool.
    pub fn change(&mut self, pool: usize, more_bytes: i64) {
        let counters = &mut self.pools[pool];
        counters.in_use_bytes = counters.in_use_bytes.saturating_add_signed(more_bytes);
        let (known, most) = counters.peak_bytes;
        let in_use_bytes = counters.in_use_bytes;
        counters.peak_bytes = (known.max(in_use_bytes), most.max(in_use_bytes + counters.spare_bytes));
    }

    /// The index of the counters of a block's pool.
    #[must_use]
    pub fn pool_of(&self, address: u64) -> Option<usize> {
        self.place(address).map(|place| self.blocks[place].made.pool)
    }

    /// Removes a block that was dropped.
    pub fn free(&mut self, address: u64, fate: Fate) {
        let Some(place) = self.place(address) else { return };
        let block = self.blocks.remove(place);
        let NewBlock { pool, size_bytes, counted_bytes, part_of, tag, .. } = block.made;
        if let Some(tagged) = tag.and_then(|tag| self.pools[pool].tags.get_mut(tag)) {
            tagged.in_use_bytes -= size_bytes;
            tagged.block_count -= 1;
        }
        if let Some(graph) = part_of {
            // The chunk still holds the memory of the part.
            self.pools[pool].spare_bytes += counted_bytes;
            self.change(pool, -counted_bytes.cast_signed());
            if let Some((live_count, _)) = self.parts.get_mut(&(graph, pool)) {
                *live_count -= 1;
            }
        }
        match fate {
            Fate::Retained => self.kept.push(block),
            Fate::Free | Fate::Unsure if part_of.is_some() => {}
            Fate::Free => self.count_off(&block.made),
            Fate::Unsure => self.count_unsure(&block.made),
        }
        self.settle_parts();
    }

    fn count_off(&mut self, made: &NewBlock) {
        self.pools[made.pool].block_count -= 1;
        self.change(made.pool, -made.counted_bytes.cast_signed());
    }

    fn place(&self, address: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&address, |block| block.made.address).ok()
    }
}
