//! The naive twin: what a pool should say, kept in a sorted list and plain sums. Pure.

/// The books of one pool.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The hard limit.
    pub limit_bytes: Option<u64>,
    /// In blocks that are alive.
    pub in_use_bytes: u64,
    /// The most that ever was.
    pub peak_bytes: u64,
    /// Blocks that are alive.
    pub block_count: u64,
    /// Blocks ever handed out.
    pub allocation_count: u64,
}

/// Every block that is alive, by address, and the books of every pool that there was.
#[derive(Clone, Debug, Default)]
pub struct Twin {
    /// Sorted by address.
    blocks: Vec<TwinBlock>,
    /// In the order in which the pools were made.
    pub pools: Vec<Books>,
}

#[derive(Clone, Debug)]
struct TwinBlock {
    address: u64,
    size_bytes: u64,
    pool: usize,
    /// The bytes that are followed, see [`windows`]; `None` until something was written.
    contents: Option<Vec<u8>>,
}

impl Twin {
    /// Books of a new pool.
    pub fn open(&mut self, limit_bytes: Option<u64>) {
        self.pools.push(Books { limit_bytes, ..Books::default() });
    }

    /// Whether the newest pool's limit has room.
    #[must_use]
    pub fn admits(&self, size_bytes: u64) -> bool {
        let Some(books) = self.pools.last() else { return false };
        let after = u128::from(books.in_use_bytes) + u128::from(size_bytes);
        books.limit_bytes.is_none_or(|limit| after <= u128::from(limit))
    }

    /// A block that the newest pool handed out.
    ///
    /// # Errors
    ///
    /// When it overlaps another, lies nowhere or is not aligned.
    pub fn allocate(&mut self, address: u64, size_bytes: u64) -> Result<(), String> {
        if address == 0 || !address.is_multiple_of(256) {
            return Err(format!("a block of {size_bytes} bytes lies at {address:#x}"));
        }
        let place = self.blocks.partition_point(|block| block.address < address);
        let before = place.checked_sub(1).map(|before| &self.blocks[before]);
        let clash = before.filter(|before| before.address + before.size_bytes > address);
        let clash = clash.or(self.blocks.get(place).filter(|after| address + size_bytes > after.address));
        if let Some(other) = clash {
            return Err(format!(
                "a block of {size_bytes} bytes at {address:#x} overlaps one of {} at {:#x}",
                other.size_bytes, other.address
            ));
        }
        let pool = self.pools.len() - 1;
        self.blocks.insert(place, TwinBlock { address, size_bytes, pool, contents: None });
        let books = &mut self.pools[pool];
        books.in_use_bytes += size_bytes;
        books.peak_bytes = books.peak_bytes.max(books.in_use_bytes);
        books.block_count += 1;
        books.allocation_count += 1;
        Ok(())
    }

    /// Whether the pool that a block is of still has a handle.
    #[must_use]
    pub fn is_of_newest_pool(&self, address: u64) -> bool {
        self.place(address).is_some_and(|place| self.blocks[place].pool + 1 == self.pools.len())
    }

    /// A block was dropped.
    pub fn free(&mut self, address: u64) {
        if let Some(place) = self.place(address) {
            let block = self.blocks.remove(place);
            self.pools[block.pool].in_use_bytes -= block.size_bytes;
            self.pools[block.pool].block_count -= 1;
        }
    }

    /// A block was filled.
    pub fn fill(&mut self, address: u64, value: u8) {
        if let Some(place) = self.place(address) {
            let block = &mut self.blocks[place];
            let followed: u64 = windows(block.size_bytes).iter().map(|(_, length)| length).sum();
            block.contents = Some(vec![value; followed as usize]);
        }
    }

    /// How many bytes a copy between two blocks moves; `None` when its result could not be followed.
    #[must_use]
    pub fn copyable_bytes(&self, source: u64, target: u64) -> Option<u64> {
        let (source, target) = (&self.blocks[self.place(source)?], &self.blocks[self.place(target)?]);
        let count = source.size_bytes.min(target.size_bytes);
        let followed = source.size_bytes.max(target.size_bytes) <= 2 * WINDOW_BYTES;
        let known = source.contents.is_some() && (target.contents.is_some() || count == target.size_bytes);
        (followed && known && source.address != target.address).then_some(count)
    }

    /// A copy of that many bytes was made.
    pub fn copy(&mut self, source: u64, target: u64, count: u64) {
        let bytes = self.contents(source).map(|bytes| bytes[..count as usize].to_vec());
        let (Some(bytes), Some(place)) = (bytes, self.place(target)) else { return };
        let target = &mut self.blocks[place];
        let contents = target.contents.get_or_insert_with(|| vec![0; target.size_bytes as usize]);
        contents[..bytes.len()].copy_from_slice(&bytes);
    }

    /// What a block holds in its windows, if anything was written.
    #[must_use]
    pub fn contents(&self, address: u64) -> Option<&[u8]> {
        self.blocks[self.place(address)?].contents.as_deref()
    }

    fn place(&self, address: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&address, |block| block.address).ok()
    }
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

    #[test]
    fn overlaps_are_seen_from_both_sides() {
        let mut twin = Twin::default();
        twin.open(Some(10_000));
        twin.allocate(0x1000, 256).unwrap();
        assert!(twin.allocate(0x1000, 1).is_err() && twin.allocate(0xf00, 257).is_err());
        assert!(twin.allocate(0, 1).is_err() && twin.allocate(0x1081, 1).is_err());
        twin.allocate(0x1100, 256).unwrap();
        assert!(twin.allocate(0x1000 - 256, 300).is_err());
        assert!(twin.admits(10_000 - 512) && !twin.admits(10_000 - 511) && !twin.admits(u64::MAX));
        twin.free(0x1000);
        twin.allocate(0xf00, 0x200).unwrap();
        let books = &twin.pools[0];
        assert_eq!((books.in_use_bytes, books.peak_bytes, books.block_count), (768, 768, 2));
        assert_eq!(books.allocation_count, 3);
    }

    #[test]
    fn contents_follow_fills_and_copies() {
        let mut twin = Twin::default();
        twin.open(None);
        for (address, size_bytes) in [(0x1000, 256), (0x2000, 512), (0x10000, 1 << 20)] {
            twin.allocate(address, size_bytes).unwrap();
        }
        assert_eq!(twin.copyable_bytes(0x1000, 0x2000), None, "nothing to copy yet");
        twin.fill(0x1000, 7);
        assert_eq!(twin.copyable_bytes(0x1000, 0x2000), None, "the rest of the target is unknown");
        twin.fill(0x2000, 8);
        twin.fill(0x10000, 9);
        assert_eq!(twin.copyable_bytes(0x1000, 0x10000), None, "only its ends are followed");
        assert_eq!(twin.copyable_bytes(0x1000, 0x2000), Some(256));
        twin.copy(0x1000, 0x2000, 256);
        let contents = twin.contents(0x2000).unwrap();
        assert!(
            contents[..256].iter().all(|byte| *byte == 7) && contents[256..].iter().all(|byte| *byte == 8)
        );
        assert_eq!(twin.contents(0x10000).map(<[u8]>::len), Some(8192));
    }
}
