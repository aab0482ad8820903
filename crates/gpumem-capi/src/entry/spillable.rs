//! Memory of a library that says when it uses it: between uses it may move to the host, in a pool that spills.

#![allow(non_camel_case_types)]

use super::arguments::{check, put};
use super::memory::check_device;
use super::pools::{self, gpumem_pool};
use super::streams::{self, gpumem_stream};
use crate::blocks;
use crate::error::{CallResult, Failure, ending, gpumem_result, guarded};
use crate::handles::HandleTable;
use ::gpumem_pool::{Block, KeptBy, MemoryRange, SpillPin, SpillableBlock, Stream};
use core::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Memory that may move between its uses. The pointer is a number that only this library reads.
pub struct gpumem_spillable {
    _private: [u8; 0],
}

/// The work of a use only reads the memory.
pub const GPUMEM_USE_READ: u32 = 0;
/// The work of a use may write the memory.
pub const GPUMEM_USE_WRITE: u32 = 1;

/// Memory behind a handle.
#[derive(Default)]
struct SpillableEntry {
    /// Set before the handle is known outside.
    memory: OnceLock<SpillableMemory>,
    open_uses: Mutex<Vec<BegunUse>>,
}

enum SpillableMemory {
    Spillable(SpillableBlock),
    /// The pool does not spill, or the block is too small to move.
    Fixed(Block),
}

/// A use that has begun. The memory stays where it is until it ends.
struct BegunUse {
    stream: Stream,
    is_write: bool,
    pinned: Option<SpillPin>,
}

static SPILLABLES: HandleTable<SpillableEntry> = HandleTable::new(6, "spillable memory");

impl SpillableEntry {
    fn open_uses(&self) -> MutexGuard<'_, Vec<BegunUse>> {
        self.open_uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> CallResult<&SpillableMemory> {
        self.memory.get().ok_or_else(|| {
            Failure::state("the memory is not spillable yet; wait for the call that makes it so")
        })
    }

    fn begin(&self, stream: &Stream, is_write: bool) -> CallResult<u64> {
        let (address, pinned) = match self.memory()? {
            SpillableMemory::Spillable(block) => {
                let pinned = block.pin(Some(stream), KeptBy::Guard)?;
                (block.address(), Some(pinned))
            }
            SpillableMemory::Fixed(block) => (block.address(), None),
        };
        self.open_uses().push(BegunUse { stream: stream.clone(), is_write, pinned });
        Ok(address)
    }

    fn end(&self, stream: &Stream) -> CallResult {
        let mut open_uses = self.open_uses();
        let last = open_uses.iter().rposition(|open| open.stream == *stream);
        let Some(last) = last else {
            return Err(Failure::state(
                "no use of the memory on this stream has begun; begin one before its work is queued",
            ));
        };
        let BegunUse { is_write, pinned, .. } = open_uses.swap_remove(last);
        drop(open_uses);
        let memory = self.memory()?;
        // In a call that a retirement waits for.
        let noted = stream.queue_work(MemoryRange::NONE, |_| match memory {
            SpillableMemory::Spillable(block) => block.note_use(stream, is_write),
            SpillableMemory::Fixed(block) => block.record_use(stream),
        });
        if let Err(error) = noted {
            // What the stream still does with the memory is unknown.
            pinned.into_iter().for_each(SpillPin::for_good);
            return Err(error.into());
        }
        if let SpillableMemory::Spillable(block) = memory
            && block.is_recorded()
        {
            SpillableBlock::note_operation(stream, [(block, is_write)]);
        }
        Ok(())
    }
}

/// Makes the block at an address spillable: while the pool is short of memory, its contents may move to the host, unless a use is open. The
/// block has no fixed address from now on, and `address` is unknown to other functions: `gpumem_spillable_begin` returns the address of a
/// use, `gpumem_spillable_free` frees the memory. In a pool that does not spill, and for blocks of less than 64 KiB, all of this works, and
/// the address stays. Up to 4096 blocks may be spillable at a time. Call it once the work that is queued on the block has been recorded
/// (`gpumem_record_use`).
///
/// Errors: `UNKNOWN_ADDRESS` for an address without a live block; `INVALID_ARGUMENT` for a null pointer; `STATE` for too many. Then the block is
/// as it was.
///
/// # Safety
///
/// `memory` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_spillable_create(
    pool: *mut gpumem_pool,
    address: *mut c_void,
    memory: *mut *mut gpumem_spillable,
) -> gpumem_result {
    guarded(|| {
        check(address.cast::<u8>(), "address")?;
        check(memory, "memory")?;
        let handle = pools::with(pool, |pool_entry| {
            let handle = SPILLABLES.add(SpillableEntry::default())?;
            let made = SPILLABLES.with(handle, |entry| {
                blocks::end(address.addr() as u64, |block| {
                    SpillableBlock::expect_in(&pool_entry.pool);
                    let spillable = SpillableBlock::new(&pool_entry.pool, block, true);
                    let _first = entry
                        .memory
                        .set(spillable.map_or_else(SpillableMemory::Fixed, SpillableMemory::Spillable));
                })
            });
            if made.is_err() {
                SPILLABLES.remove(handle)?;
            }
            made.map(|()| handle)
        })?;
        // SAFETY: the caller promises a place.
        unsafe { put(memory, core::ptr::without_provenance_mut(handle as usize), "memory") }
    })
}

/// Begins a use by work that will be queued on `stream`: brings the contents back if they are on the host, makes the stream wait for them on the
/// device, and returns their address, which is valid until `gpumem_spillable_end` with this stream. `access` is `GPUMEM_USE_READ` or
/// `GPUMEM_USE_WRITE`. Several uses may be open at once, on one stream or several; as with other memory, the caller orders the streams of
/// conflicting uses.
///
/// Errors: `OUT_OF_MEMORY`, with the report as text; `STATE` for a stream that was retired, belongs to another device, or is part of an announced
/// capture (`gpumem_captures_expect`), whose graph would keep the address; `INVALID_HANDLE`. No use has then begun.
///
/// # Safety
///
/// `address` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_spillable_begin(
    memory: *mut gpumem_spillable,
    stream: *mut gpumem_stream,
    access: u32,
    address: *mut *mut c_void,
) -> gpumem_result {
    guarded(|| {
        check(address, "address")?;
        if access > GPUMEM_USE_WRITE {
            return Err(Failure::argument("an unknown access; pass 0 for work that only reads, or 1"));
        }
        let found = streams::with(stream, |stream_entry| {
            let stream = stream_entry.stream();
            stream.check_usable()?;
            // A graph would use the address in each launch.
            stream.check_runs("a use of spillable memory")?;
            SPILLABLES.with(memory.addr() as u64, |entry| {
                match entry.memory()? {
                    SpillableMemory::Spillable(block) => check_device(block.device(), stream)?,
                    SpillableMemory::Fixed(block) => check_device(block.device(), stream)?,
                }
                entry.begin(stream, access == GPUMEM_USE_WRITE)
            })
        })?;
        // SAFETY: the caller promises a place.
        unsafe { put(address, core::ptr::with_exposed_provenance_mut(found as usize), "address") }
    })
}

/// Ends the latest open use on `stream`: its work has been queued. Moves of the contents, and their end, are ordered behind it.
///
/// Errors: `STATE` if no use is open on the stream, or for a stream that was retired: then the memory does not move any more;
/// `INVALID_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_spillable_end(
    memory: *mut gpumem_spillable,
    stream: *mut gpumem_stream,
) -> gpumem_result {
    guarded(|| {
        streams::with(stream, |stream_entry| {
            SPILLABLES.with(memory.addr() as u64, |entry| entry.end(stream_entry.stream()))
        })
    })
}

/// Frees the memory, wherever it is, in the order of the streams that used it; see `gpumem_free`. Null is ignored.
///
/// Errors: `STATE` while a use is open; `INVALID_HANDLE` for memory that was freed.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_spillable_free(memory: *mut gpumem_spillable) -> gpumem_result {
    ending(|| {
        if memory.is_null() {
            return Ok(());
        }
        SPILLABLES.with(memory.addr() as u64, |entry| match entry.open_uses().is_empty() {
            true => Ok(()),
            false => Err(Failure::state("a use of the memory is open; end it before the memory is freed")),
        })?;
        SPILLABLES.remove(memory.addr() as u64)
    })
}
