//! The live blocks by address, so that a program frees memory by its pointer alone. Two threads rarely meet at one lock.

use crate::error::{CallResult, Failure, gpumem_result};
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_pool::sys::fork;
use gpumem_pool::{Block, DeviceError, PoolError, RawBlock};

/// Some of the blocks, on a cache line of their own.
///
/// Behind a lock that is held for a few nanoseconds: a thread that does not get it polls, and then yields. Its unlock is a plain store,
/// whereas the standard mutex must look for waiting threads.
#[repr(align(128))]
struct Shard {
    is_locked: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

// SAFETY: the blocks are accessed through `LockedShard` alone, which one thread has at a time; a block may move between threads.
unsafe impl Sync for Shard where Blocks: Send {}

static SHARDS: [Shard; SHARD_COUNT] =
    [const { Shard { is_locked: AtomicBool::new(false), blocks: UnsafeCell::new(Blocks::new()) } };
        SHARD_COUNT];

const SHARD_BITS: u32 = 6;
const SHARD_COUNT: usize = 1 << SHARD_BITS;

/// Access to a shard, until it is dropped.
struct LockedShard(&'static Shard);

impl Shard {
    /// `None` in a forked child if another thread held the lock at the fork: it stays locked.
    #[inline]
    fn lock(&'static self) -> Option<LockedShard> {
        while self.is_locked.swap(true, Ordering::Acquire) {
            if !self.wait() {
                return None;
            }
        }
        Some(LockedShard(self))
    }

    /// Returns false if the lock stays locked.
    #[cold]
    fn wait(&self) -> bool {
        let mut looks = 0_u32;
        while self.is_locked.load(Ordering::Relaxed) {
            if fork::is_child() {
                return false;
            }
            match looks {
                0..LOOKS_MAX => core::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
            looks = looks.saturating_add(1);
        }
        true
    }
}

/// After this many polls the holder is not running.
const LOOKS_MAX: u32 = 100;

impl Deref for LockedShard {
    type Target = Blocks;

    #[inline]
    fn deref(&self) -> &Blocks {
        // SAFETY: this thread has the lock.
        unsafe { &*self.0.blocks.get() }
    }
}

impl DerefMut for LockedShard {
    #[inline]
    fn deref_mut(&mut self) -> &mut Blocks {
        // SAFETY: this thread has the lock, and the borrow of the guard is exclusive.
        unsafe { &mut *self.0.blocks.get() }
    }
}

impl Drop for LockedShard {
    #[inline]
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}

/// Keeps a block until its address is freed, and returns the address; 0 for an empty block, which needs no free.
#[inline(always)]
pub(crate) fn keep(block: Block) -> u64 {
    let address = block.address();
    if address != 0 {
        let block = block.into_raw();
        // No block is allocated in a forked child, so the lock is available.
        if let Some(mut blocks) = shard(address) {
            blocks.insert(block);
        }
    }
    address
}

/// Removes the block that begins at an address, and passes it to `end`. A forked child keeps its copies of blocks.
#[inline(always)]
pub(crate) fn end(address: u64, end: impl FnOnce(Block)) -> CallResult {
    let Some(mut blocks) = shard(address) else { return Ok(()) };
    let Some(taken) = blocks.remove(address) else { return Err(unknown(address)) };
    drop(blocks);
    // SAFETY: `keep` and `with` made it by `into_raw`, and `remove` gives it out once.
    end(unsafe { Block::from_raw(taken) });
    Ok(())
}

/// Calls `work` with the block that begins at an address. No other thread can free it during the call.
pub(crate) fn with<R>(address: u64, work: impl FnOnce(&Block) -> CallResult<R>) -> CallResult<R> {
    let mut blocks = shard(address).ok_or(PoolError::Device(DeviceError::Forked))?;
    let Some(place) = blocks.get_mut(address) else { return Err(unknown(address)) };
    // SAFETY: `keep` and `with` made it by `into_raw`. It is not dropped here, and the line below writes it back to the table. If the work
    // panics, the table still has the block in its earlier state.
    let block = ManuallyDrop::new(unsafe { Block::from_raw(*place) });
    let result = work(&block);
    *place = ManuallyDrop::into_inner(block).into_raw();
    result
}

/// Calls `visit` with each live block, for as long as no other thread can free it.
pub(crate) fn for_each(mut visit: impl FnMut(&Block)) -> CallResult {
    for shard in &SHARDS {
        let blocks = shard.lock().ok_or(PoolError::Device(DeviceError::Forked))?;
        for raw in blocks.places.iter().flatten() {
            // SAFETY: `keep` and `with` made it by `into_raw`. It is not dropped here, and nothing is recorded in it: the table has its state.
            visit(&ManuallyDrop::new(unsafe { Block::from_raw(*raw) }));
        }
    }
    Ok(())
}

#[cold]
fn unknown(address: u64) -> Failure {
    let text = format!(
        "no live block begins at {address:#x}: it was freed before, lies inside of a block, or came from another allocator; pass the \
         address of an allocation, until its free only"
    );
    Failure { code: gpumem_result::GPUMEM_ERROR_UNKNOWN_ADDRESS, text }
}

#[inline]
fn shard(address: u64) -> Option<LockedShard> {
    let index = spread(address) >> (u64::BITS - SHARD_BITS);
    SHARDS[index as usize].lock()
}

/// Fibonacci hashing: addresses are multiples of large powers of two.
#[inline]
fn spread(address: u64) -> u64 {
    address.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A hash table by address, with linear probing. The fields of a new block go from registers straight to its place. `HashMap::insert` would
/// first write them to the stack, field by field, and then read them back in wider pieces: a store-forwarding stall.
struct Blocks {
    /// A power of two, or zero. At most half of the places are taken.
    places: Vec<Option<RawBlock>>,
    count: usize,
}

impl Blocks {
    const fn new() -> Self {
        Self { places: Vec::new(), count: 0 }
    }

    /// Adds a block. No other block begins at its address.
    #[inline(always)]
    fn insert(&mut self, block: RawBlock) {
        if 2 * self.count >= self.places.len() {
            self.grow();
        }
        self.count += 1;
        let mut index = self.home(block.address);
        while self.places[index].is_some() {
            debug_assert!(!self.is_at(index, block.address), "two live blocks begin at one address");
            index = self.next(index);
        }
        self.places[index] = Some(block);
    }

    #[inline(always)]
    fn remove(&mut self, address: u64) -> Option<RawBlock> {
        let index = self.find(address)?;
        let block = self.places[index].take();
        self.count -= 1;
        if self.places[self.next(index)].is_some() {
            self.close_gap(index);
        }
        block
    }

    fn get_mut(&mut self, address: u64) -> Option<&mut RawBlock> {
        self.find(address).and_then(|index| self.places[index].as_mut())
    }

    #[inline(always)]
    fn find(&self, address: u64) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut index = self.home(address);
        while self.places[index].is_some() {
            if self.is_at(index, address) {
                return Some(index);
            }
            index = self.next(index);
        }
        None
    }

    /// Moves blocks back to an emptied place, so that a search for them does not end there.
    #[inline(never)]
    fn close_gap(&mut self, mut gap: usize) {
        let mut index = self.next(gap);
        while let Some(block) = &self.places[index] {
            // A block may move to the gap if that is not before its home.
            let mask = self.places.len() - 1;
            let from_home = index.wrapping_sub(self.home(block.address)) & mask;
            if from_home >= index.wrapping_sub(gap) & mask {
                self.places.swap(index, gap);
                gap = index;
            }
            index = self.next(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let place_count = (2 * self.places.len()).max(PLACES_MIN);
        let old = core::mem::replace(&mut self.places, (0..place_count).map(|_| None).collect());
        self.count = 0;
        for block in old.into_iter().flatten() {
            self.insert(block);
        }
    }

    #[inline]
    fn is_at(&self, index: usize, address: u64) -> bool {
        self.places[index].as_ref().is_some_and(|block| block.address == address)
    }

    /// The upper bits of the hash choose the shard.
    #[inline]
    fn home(&self, address: u64) -> usize {
        (spread(address) >> HOME_SHIFT) as usize & (self.places.len() - 1)
    }

    #[inline]
    fn next(&self, index: usize) -> usize {
        (index + 1) & (self.places.len() - 1)
    }
}

const PLACES_MIN: usize = 16;
/// Leaves 32 bits below those of the shard.
const HOME_SHIFT: u32 = u64::BITS - SHARD_BITS - 32;

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_pool::{Device, Pool, Stream};
    use std::collections::BTreeMap;

    /// Random inserts and removals, compared with a map. Addresses of one segment lie close together, so that probes are long.
    #[test]
    fn a_table_finds_what_a_map_finds() -> Result<(), Box<dyn std::error::Error>> {
        let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
        let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
        let (mut table, mut map) = (Blocks::new(), BTreeMap::new());
        let mut random = 7_u64;
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let grows = turn % 4_000 < 2_000;
            if map.is_empty() || (random >> 33) % 100 < if grows { 60 } else { 40 } {
                let block = pool.alloc(512, &stream)?;
                map.insert(block.address(), block.size_bytes());
                table.insert(block.into_raw());
            } else {
                let from = map.range(random..).next().or_else(|| map.iter().nth(random as usize % map.len()));
                let address = *from.ok_or("an address")?.0;
                assert!(table.get_mut(address + 1).is_none());
                let taken = table.remove(address).ok_or("a block")?;
                assert_eq!(map.remove(&address), Some(taken.size_bytes));
                assert!(table.get_mut(address).is_none());
                // SAFETY: it came from `into_raw`, and the table gave it out once.
                drop(unsafe { Block::from_raw(taken) });
            }
            assert_eq!(table.count, map.len());
        }
        for address in map.keys() {
            let block = table.remove(*address).ok_or("a block")?;
            assert_eq!(block.address, *address);
            // SAFETY: it came from `into_raw`, and the table gave it out once.
            drop(unsafe { Block::from_raw(block) });
        }
        Ok(())
    }
}
