//! The naive twin: what a pool should say, kept in a sorted list and plain sums. Pure.
//!
//! What captures allocate are *parts*: the pool asks for them in chunks whose size is its own business, so the sums have
//! a lower end, what is known, and a spare that parts may take beyond it. A block that is dropped while a graph may use
//! it is *kept*: the program has it no more, and nobody else may have its memory.

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
    /// How many bytes were asked for.
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

    /// The most that all chunks may have.
    #[must_use]
    pub fn chunks_bytes_max(&self) -> u64 {
        self.parts.values().map(|(_, all_bytes)| all_bytes).sum()
    }

    fn count_part(&mut self, graph: u32, made: &NewBlock) {
        let most_bytes = made.chunk_bytes;
        let (live_count, all_bytes) = self.parts.entry((graph, made.pool)).or_default();
        *live_count += 1;
        *all_bytes += most_bytes;
        let books = &mut self.pools[made.pool];
        books.part_count += 1;
        books.spare_bytes += most_bytes - made.counted_bytes;
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

    /// No graph keeps a block any more that was dropped before.
    pub fn let_go(&mut self, name: u32) {
        let Some(at) = self.kept.iter().position(|kept| kept.made.name == name) else { return };
        let block = self.kept.remove(at);
        match block.made.part_of {
            Some(_) => self.settle_parts(),
            None => self.count_unsure(&block.made),
        }
    }

    /// A capture has begun.
    pub fn begin_capture(&mut self, graph: u32) {
        self.graphs.push(graph);
        self.capture = Some(graph);
    }

    /// It has ended.
    pub fn end_capture(&mut self) {
        self.capture = None;
    }

    /// Nothing is left of a graph.
    pub fn close_graph(&mut self, graph: u32) {
        self.graphs.retain(|other| *other != graph);
        self.settle_parts();
    }

    fn count_off(&mut self, made: &NewBlock) {
        self.pools[made.pool].block_count -= 1;
        self.change(made.pool, -made.counted_bytes.cast_signed());
    }

    /// The same where a capture that goes on may keep it.
    fn count_unsure(&mut self, made: &NewBlock) {
        self.count_off(made);
        if let Some(graph) = self.capture {
            self.pools[made.pool].part_count += 1;
            self.pools[made.pool].spare_bytes += made.counted_bytes;
            self.parts.entry((graph, made.pool)).or_default().1 += made.counted_bytes;
        }
    }

    /// The chunks of graphs that are gone go with their last parts.
    fn settle_parts(&mut self) {
        let Self { parts, graphs, pools, kept, capture, .. } = self;
        let is_kept = |graph: u32| kept.iter().any(|kept| kept.made.part_of == Some(graph));
        let mut over = Vec::new();
        parts.retain(|(graph, pool), (live_count, all_bytes)| {
            let is_over = *live_count == 0 && !graphs.contains(graph) && !is_kept(*graph);
            over.extend(is_over.then_some((*pool, *all_bytes)));
            !is_over
        });
        for (pool, all_bytes) in over {
            match *capture {
                Some(graph) => parts.entry((graph, pool)).or_default().1 += all_bytes,
                None => pools[pool].spare_bytes -= all_bytes,
            }
        }
    }

    /// Blocks that stand for all parts of a pool: at least, and at most.
    #[must_use]
    pub fn chunk_counts(&self, pool: usize) -> (u64, u64) {
        let of_pool = self.parts.iter().filter(|((_, other), _)| *other == pool);
        let has_live = of_pool.clone().any(|(_, (live_count, _))| *live_count > 0);
        let most = if of_pool.count() > 0 { self.pools[pool].part_count } else { 0 };
        (u64::from(has_live), most)
    }

    /// A block was filled.
    pub fn fill(&mut self, name: u32, value: u8) {
        if let Some(block) = self.named(name) {
            let followed: u64 = windows(block.made.size_bytes).iter().map(|(_, length)| length).sum();
            block.contents = Some(vec![value; followed as usize]);
        }
    }

    /// What a block holds is not known any more.
    pub fn forget(&mut self, name: u32) {
        if let Some(block) = self.named(name) {
            block.contents = None;
        }
    }

    /// The blocks that are alive where some of those that are kept lie: parts that were dropped make room for later ones.
    #[must_use]
    pub fn overlapped_by_kept(&self, names: &[u32]) -> Vec<u32> {
        let kept = || self.kept.iter().filter(|kept| names.contains(&kept.made.name));
        let is_overlapped = |block: &&TwinBlock| kept().any(|kept| kept.made.overlaps(&block.made));
        self.blocks.iter().filter(is_overlapped).map(|block| block.made.name).collect()
    }

    /// A copy of that many bytes was made.
    pub fn copy(&mut self, source: u32, target: u32, count: u64) {
        let Some(bytes) = self.contents(source).map(|bytes| bytes[..count as usize].to_vec()) else {
            return self.forget(target);
        };
        let Some(target) = self.named(target) else { return };
        let contents = target.contents.get_or_insert_with(|| vec![0; target.made.size_bytes as usize]);
        contents[..bytes.len()].copy_from_slice(&bytes);
    }

    /// What a block holds in its windows, if anything was written.
    #[must_use]
    pub fn contents(&self, name: u32) -> Option<&[u8]> {
        let all = self.blocks.iter().chain(&self.kept);
        all.into_iter().find(|block| block.made.name == name)?.contents.as_deref()
    }

    fn named(&mut self, name: u32) -> Option<&mut TwinBlock> {
        self.blocks.iter_mut().chain(&mut self.kept).find(|block| block.made.name == name)
    }

    fn place(&self, address: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&address, |block| block.made.address).ok()
    }
}

/// How many bytes a copy between two blocks moves; `None` when its result could not be followed. What is known of the
/// two is whether anything was written.
#[must_use]
pub fn copyable_bytes(
    (source_bytes, source_known): (u64, bool),
    (target_bytes, target_known): (u64, bool),
) -> Option<u64> {
    let count = source_bytes.min(target_bytes);
    let is_followed = source_bytes.max(target_bytes) <= 2 * WINDOW_BYTES;
    (is_followed && source_known && (target_known || count == target_bytes)).then_some(count)
}

/// The parts of a block whose bytes are followed, as offset and length: all of a small one, both ends of a large one.
#[must_use]
pub fn windows(size_bytes: u64) -> Vec<(u64, u64)> {
    if size_bytes <= 2 * WINDOW_BYTES {
        vec![(0, size_bytes)]
    } else {
        vec![(0, WINDOW_BYTES), (size_bytes - WINDOW_BYTES, WINDOW_BYTES)]
    }
}

const WINDOW_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: u32, address: u64, size_bytes: u64) -> NewBlock {
        NewBlock {
            name,
            address,
            size_bytes,
            counted_bytes: size_bytes,
            chunk_bytes: size_bytes.next_multiple_of(256),
            alignment: 256,
            pool: 0,
            part_of: None,
            tag: None,
        }
    }

    #[test]
    fn overlaps_are_seen_from_both_sides() {
        let mut twin = Twin::default();
        twin.open(Some(10_000), None);
        twin.allocate(block(0, 0x1000, 256)).unwrap();
        assert!(twin.allocate(block(1, 0x1000, 1)).is_err() && twin.allocate(block(1, 0xf00, 257)).is_err());
        assert!(twin.allocate(block(1, 0, 1)).is_err() && twin.allocate(block(1, 0x1081, 1)).is_err());
        assert!(twin.allocate(NewBlock { alignment: 8192, ..block(1, 0x5000, 1) }).is_err());
        twin.allocate(block(1, 0x1100, 256)).unwrap();
        assert!(twin.allocate(block(2, 0x1000 - 256, 300)).is_err());
        assert!(twin.admits(0, 10_000 - 512) && !twin.admits(0, 10_000 - 511) && !twin.admits(0, u64::MAX));
        twin.free(0x1000, Fate::Free);
        twin.allocate(block(2, 0xf00, 0x200)).unwrap();
        let books = &twin.pools[0];
        assert_eq!((books.in_use_bytes, books.peak_bytes, books.block_count), (768, (768, 768), 2));
        assert_eq!(books.allocation_count, 3);
    }

    #[test]
    fn contents_follow_fills_and_copies() {
        let mut twin = Twin::default();
        twin.open(None, None);
        for (name, address, size_bytes) in [(1, 0x1000, 256), (2, 0x2000, 512), (3, 0x10000, 1 << 20)] {
            twin.allocate(block(name, address, size_bytes)).unwrap();
        }
        assert_eq!(copyable_bytes((256, false), (512, true)), None, "nothing to copy yet");
        assert_eq!(copyable_bytes((256, true), (512, false)), None, "the rest of the target is unknown");
        assert_eq!(copyable_bytes((256, true), (1 << 20, true)), None, "only its ends are followed");
        assert_eq!(copyable_bytes((256, true), (512, true)), Some(256));
        assert_eq!(copyable_bytes((512, true), (256, false)), Some(256));
        twin.fill(1, 7);
        twin.fill(2, 8);
        twin.fill(3, 9);
        twin.copy(1, 2, 256);
        let contents = twin.contents(2).unwrap();
        assert!(
            contents[..256].iter().all(|byte| *byte == 7) && contents[256..].iter().all(|byte| *byte == 8)
        );
        assert_eq!(twin.contents(3).map(<[u8]>::len), Some(8192));
    }

    #[test]
    fn a_private_pool_counts_with_the_one_above() {
        let mut twin = Twin::default();
        let root = twin.open(Some(1000), None);
        let inner = twin.open(Some(600), Some(root));
        twin.allocate(NewBlock { pool: inner, ..block(0, 0x1000, 500) }).unwrap();
        assert!(twin.admits(inner, 100) && !twin.admits(inner, 101));
        assert!(twin.admits(root, 500) && !twin.admits(root, 501));
        assert_eq!((twin.pools[root].in_use_bytes, twin.pools[inner].in_use_bytes), (0, 500));
    }

    #[test]
    fn a_tag_has_what_was_allocated_for_it() {
        let mut twin = Twin::default();
        twin.open(None, None);
        for (name, address) in [(0, 0x1000), (1, 0x2000)] {
            twin.allocate(NewBlock { tag: Some("forward"), ..block(name, address, 300) }).unwrap();
        }
        twin.allocate(block(2, 0x3000, 300)).unwrap();
        twin.free(0x1000, Fate::Kept);
        twin.free(0x3000, Fate::Free);
        let expected = Tagged { in_use_bytes: 300, peak_bytes: 600, block_count: 1, allocation_count: 2 };
        assert_eq!(twin.pools[0].tags, BTreeMap::from([("forward", expected)]));
        assert_eq!((twin.whole_bytes(), twin.pools[0].in_use_bytes), (1024, 600));
    }

    #[test]
    fn what_a_graph_keeps_is_nobody_elses_and_its_parts_are_spare() {
        let mut twin = Twin::default();
        twin.open(None, None);
        twin.begin_capture(1);
        twin.allocate(block(0, 0x1000, 256)).unwrap();
        let part = NewBlock { part_of: Some(1), ..block(1, 0x2000, 300) };
        twin.allocate(part).unwrap();
        assert_eq!((twin.pools[0].in_use_bytes, twin.pools[0].spare_bytes), (556, 212));
        twin.free(0x1000, Fate::Kept);
        twin.free(0x2000, Fate::Kept);
        assert_eq!((twin.pools[0].in_use_bytes, twin.pools[0].spare_bytes), (256, 512));
        assert!(twin.allocate(block(2, 0x1000, 1)).is_err() && twin.allocate(block(2, 0x2000, 1)).is_err());
        twin.allocate(NewBlock { name: 3, ..part }).unwrap();
        assert_eq!(twin.overlapped_by_kept(&[0, 1]), [3]);
        twin.end_capture();
        twin.let_go(0);
        twin.let_go(1);
        twin.close_graph(1);
        assert_eq!(twin.chunk_counts(0), (1, 2), "the program has the second part");
        twin.free(0x2000, Fate::Free);
        let books = &twin.pools[0];
        assert_eq!((books.in_use_bytes, books.spare_bytes, books.block_count), (0, 0, 0));
        assert_eq!(twin.chunk_counts(0), (0, 0));
    }
}
