//! The live blocks by address, so that a program frees memory by its pointer alone. Two threads rarely meet at one lock.

use crate::error::{Failure, Outcome, gpumem_result};
use core::hash::{BuildHasherDefault, Hasher};
use gpumem_pool::Block;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cache line of its own for each lock.
#[repr(align(128))]
struct Shard(Mutex<HashMap<u64, Block, BuildHasherDefault<AddressHasher>>>);

static SHARDS: [Shard; SHARD_COUNT] =
    [const { Shard(Mutex::new(HashMap::with_hasher(BuildHasherDefault::new()))) }; SHARD_COUNT];

const SHARD_BITS: u32 = 6;
const SHARD_COUNT: usize = 1 << SHARD_BITS;

/// Keeps a block until its address is taken, and returns the address; 0 for an empty block, which needs no free.
#[inline]
pub(crate) fn keep(block: Block) -> u64 {
    let address = block.address();
    if address != 0 {
        let before = shard(address).insert(address, block);
        debug_assert!(before.is_none(), "two live blocks begin at {address:#x}");
    }
    address
}

/// Takes the block that begins at an address.
#[inline]
pub(crate) fn take(address: u64) -> Outcome<Block> {
    let taken = shard(address).remove(&address);
    taken.ok_or_else(|| unknown(address))
}

/// Calls `work` with the block that begins at an address. No other thread can free it meanwhile.
pub(crate) fn with<R>(address: u64, work: impl FnOnce(&Block) -> Outcome<R>) -> Outcome<R> {
    shard(address).get(&address).map_or_else(|| Err(unknown(address)), work)
}

#[cold]
fn unknown(address: u64) -> Failure {
    let text = format!(
        "no live block begins at {address:#x}: it was freed before, lies inside of a block, or came from another allocator"
    );
    Failure { code: gpumem_result::GPUMEM_ERROR_UNKNOWN_ADDRESS, text }
}

#[inline]
fn shard(address: u64) -> MutexGuard<'static, HashMap<u64, Block, BuildHasherDefault<AddressHasher>>> {
    let index = spread(address) >> (u64::BITS - SHARD_BITS);
    SHARDS[index as usize].0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fibonacci hashing: addresses are multiples of large powers of two.
#[inline]
fn spread(address: u64) -> u64 {
    address.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Hashes one address. The map uses the lowest and the highest bits.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, address: u64) {
        self.0 = spread(address).rotate_left(32);
    }
}
