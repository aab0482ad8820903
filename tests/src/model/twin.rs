//! The naive twin: what a pool should say, kept in a sorted list and plain sums. Pure.
//!
//! What captures allocate are *parts*: the pool asks for them in chunks whose size is its own business, so the sums have
//! a lower end, what is known, and a spare that parts may take beyond it. A block that is dropped while a graph may use
//! it is *kept*: the program has it no more, and nobody else may have its memory.

mod contents;
mod parts;
#[cfg(test)]
mod tests;

pub use contents::{copyable_bytes, windows};
use std::collections::BTreeMap;

/// The books of one pool.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The hard limit.
    pub limit_bytes: Option<u64>,
    /// The pool that this one is a private pool of.
    pub above: Option<usize>,
    /// In blocks that are alive or kept.
    pub in_use_bytes: u64,
    /// What parts may take beyond that.
    pub spare_bytes: u64,
    /// The most that ever was in use, and with what parts may have taken.
    pub peak_bytes: (u64, u64),
    /// Blocks that are alive or kept, without parts.
    pub block_count: u64,
    /// Blocks ever handed out, without parts.
    pub allocation_count: u64,
    /// Parts ever handed out.
    pub part_count: u64,
    /// Blocks that the pool may have counted before an adaptor failed, and gave them back.
    pub undone_count: u64,
    /// What was allocated in scopes, by their names.
    pub tags: BTreeMap<&'static str, Tagged>,
}

/// What the blocks of one tag come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tagged {
    /// In blocks that the program has.
    pub in_use_bytes: u64,
    /// The most there ever was.
    pub peak_bytes: u64,
    /// Such blocks.
    pub block_count: u64,
    /// Blocks ever handed out.
    pub allocation_count: u64,
}

/// Every block that is alive, by address, and the books of every pool that there was.
#[derive(Clone, Debug, Default)]
pub struct Twin {
    /// Sorted by address.
    blocks: Vec<TwinBlock>,
    kept: Vec<TwinBlock>,
    /// Of each graph and pool: the parts that the program has, and what all parts may take.
    parts: BTreeMap<(u32, usize), (u64, u64)>,
    /// Graphs of which the program still has something.
    graphs: Vec<u32>,
    /// The one whose capture goes on: what is given back meanwhile may stay for it.
    capture: Option<u32>,
    /// In the order in which the pools were made.
    pub pools: Vec<Books>,
}

/// A block as it was handed out.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock {
    /// A number of its own.
    pub name: u32,
    /// Where it lies.
    pub address: u64,
    /// The requested bytes.
    pub size_bytes: u64,
    /// How many count as in use.
    pub counted_bytes: u64,
    /// As many may count for its chunk, if it is a part.
    pub chunk_bytes: u64,
    /// What its address must be a multiple of.
    pub alignment: u64,
    /// The place of its pool's books.
    pub pool: usize,
    /// The capture that it was allocated in.
    pub part_of: Option<u32>,
    /// The name of the scope that it was allocated in.
    pub tag: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct TwinBlock {
    made: NewBlock,
    /// The bytes that are followed, see [`windows`]; `None` until something was written.
    contents: Option<Vec<u8>>,
}

/// What becomes of a block that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The pool has it again.
    Free,
    /// A graph keeps it.
    Kept,
    /// The graph of the capture that goes on may keep it, though it need not.
    Unsure,
}

impl NewBlock {
    fn overlaps(&self, other: &Self) -> bool {
        self.address < other.address + other.size_bytes && other.address < self.address + self.size_bytes
    }
}

impl Twin {
    /// Books of a new pool; says their place.
    pub fn open(&mut self, limit_bytes: Option<u64>, above: Option<usize>) -> usize {
        self.pools.push(Books { limit_bytes, above, ..Books::default() });
        self.pools.len() - 1
    }

    /// Whether a pool's limit, and those above, may have room, as far as is known.
    #[must_use]
    pub fn admits(&self, pool: usize, size_bytes: u64) -> bool {
        self.has_room(pool, size_bytes, |books| books.in_use_bytes)
    }

    /// Whether they have it whatever parts take.
    #[must_use]
    pub fn surely_admits(&self, pool: usize, size_bytes: u64) -> bool {
        self.has_room(pool, size_bytes, |books| books.in_use_bytes + books.spare_bytes)
    }

    fn has_room(&self, pool: usize, size_bytes: u64, held: impl Fn(&Books) -> u64 + Copy) -> bool {
        let under = (0..self.pools.len()).filter(|other| self.is_under(*other, pool));
        let held_bytes: u64 = under.map(|other| held(&self.pools[other])).sum();
        let after = u128::from(held_bytes) + u128::from(size_bytes);
        let Books { limit_bytes, above, .. } = self.pools[pool];
        limit_bytes.is_none_or(|limit| after <= u128::from(limit))
            && above.is_none_or(|above| self.has_room(above, size_bytes, held))
    }

    /// The limits that a pool keeps.
    #[must_use]
    pub fn limits(&self, pool: usize) -> Vec<u64> {
        let Books { limit_bytes, above, .. } = self.pools[pool];
        let above = above.map(|above| self.limits(above)).unwrap_or_default();
        limit_bytes.into_iter().chain(above).collect()
    }

    /// The least of them.
    #[must_use]
    pub fn limit_bytes(&self, pool: usize) -> Option<u64> {
        self.limits(pool).into_iter().min()
    }

    /// Whether neither program nor graphs have anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.kept.is_empty() && self.parts.is_empty()
    }

    /// Whether a pool is another or one of its private pools.
    #[must_use]
    pub fn is_under(&self, pool: usize, root: usize) -> bool {
        pool == root || self.pools[pool].above.is_some_and(|above| self.is_under(above, root))
    }

    /// A block that a pool handed out.
    ///
    /// # Errors
    ///
    /// When it overlaps another, lies nowhere or is not aligned.
    pub fn allocate(&mut self, made: NewBlock) -> Result<(), String> {
        let NewBlock { address, size_bytes, pool, .. } = made;
        if address == 0 || !address.is_multiple_of(made.alignment.max(256)) {
            return Err(format!("a block of {size_bytes} bytes lies at {address:#x}"));
        }
        let place = self.blocks.partition_point(|block| block.made.address < address);
        let near = place.saturating_sub(1)..self.blocks.len().min(place + 1);
        // A part that the program has dropped serves others of its capture.
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

    /// An allocation failed that the pool may have counted.
    pub fn note_undone(&mut self, pool: usize, counted_bytes: u64) {
        self.pools[pool].undone_count += 1;
        self.note_undone_growth(pool, counted_bytes);
    }

    /// A growth failed, likewise.
    pub fn note_undone_growth(&mut self, pool: usize, counted_bytes: u64) {
        let books = &mut self.pools[pool];
        let most_bytes = (books.in_use_bytes + books.spare_bytes).saturating_add(counted_bytes);
        books.peak_bytes.1 = books.peak_bytes.1.max(most_bytes);
    }

    /// The sizes of all blocks that are alive or kept, without parts, each in whole units.
    #[must_use]
    pub fn whole_bytes(&self) -> u64 {
        let blocks = self.blocks.iter().chain(&self.kept).filter(|block| block.made.part_of.is_none());
        blocks.map(|block| block.made.size_bytes.next_multiple_of(256)).sum()
    }

    /// More is in use, or less.
    pub fn change(&mut self, pool: usize, more_bytes: i64) {
        let books = &mut self.pools[pool];
        books.in_use_bytes = books.in_use_bytes.saturating_add_signed(more_bytes);
        let (known, most) = books.peak_bytes;
        let in_use_bytes = books.in_use_bytes;
        books.peak_bytes = (known.max(in_use_bytes), most.max(in_use_bytes + books.spare_bytes));
    }

    /// The place of the books of a block's pool.
    #[must_use]
    pub fn pool_of(&self, address: u64) -> Option<usize> {
        self.place(address).map(|place| self.blocks[place].made.pool)
    }

    /// A block was dropped.
    pub fn free(&mut self, address: u64, fate: Fate) {
        let Some(place) = self.place(address) else { return };
        let block = self.blocks.remove(place);
        let NewBlock { pool, size_bytes, counted_bytes, part_of, tag, .. } = block.made;
        if let Some(tagged) = tag.and_then(|tag| self.pools[pool].tags.get_mut(tag)) {
            tagged.in_use_bytes -= size_bytes;
            tagged.block_count -= 1;
        }
        if let Some(graph) = part_of {
            // Its chunk goes on to hold it.
            self.pools[pool].spare_bytes += counted_bytes;
            self.change(pool, -counted_bytes.cast_signed());
            if let Some((live_count, _)) = self.parts.get_mut(&(graph, pool)) {
                *live_count -= 1;
            }
        }
        match fate {
            Fate::Kept => self.kept.push(block),
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
