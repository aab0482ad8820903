//! Pools: create, configure, limit, trim.

#![allow(non_camel_case_types)]

use super::arguments::{self, Versioned, check, put, put_if_asked};
use super::interface_of;
use crate::error::{CallResult, Failure, ending, gpumem_result, guarded, terminated};
use crate::handles::HandleTable;
use ::gpumem_pool::sys::Driver;
use ::gpumem_pool::sys::text::Shown;
use ::gpumem_pool::trace::Trace;
use ::gpumem_pool::{
    CurrentPool, Device, Interface, Keep, Limit, Pool, PoolBuilder, PoolError, PoolId, RecentStreams,
};
use core::ffi::{c_char, c_void};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool of GPU memory. The pointer is a number that only this library reads.
pub struct gpumem_pool {
    _private: [u8; 0],
}

/// Receives the report of each request that is refused for lack of memory, before the request returns.
///
/// It runs on the requesting thread, without a lock, and may call any function of this library, for example to free memory or to destroy
/// the pool. Requests inside it are not reported. The text is valid during the call. It must return: no exception or `longjmp` may leave
/// it.
pub type gpumem_out_of_memory_fn =
    Option<unsafe extern "C" fn(report: *const c_char, user_data: *mut c_void)>;

/// The options of a new pool. Set all bytes to 0, then `struct_size`, then what you need.
#[repr(C)]
pub struct gpumem_pool_options {
    /// `sizeof(gpumem_pool_options)`
    pub struct_size: usize,
    /// The device, counted from 0.
    pub ordinal: u32,
    /// `GPUMEM_FROM_ENVIRONMENT`, or 0.
    pub flags: u32,
    /// Options by name, `key:value,…`, as in the environment variable `GPUMEM_CONF`: `"backend:caching,kind:host"`. Null for none.
    pub conf: *const c_char,
    /// The hard limit in bytes; 0 for none.
    pub hard_limit_bytes: u64,
    /// The soft limit in bytes, above which cached memory is released; 0 for none.
    pub soft_limit_bytes: u64,
    /// The path of a file in which the pool records all of its requests, for `gpumem replay`, or null for none. `%p` in it is the process
    /// ID. Pools of one process with the same path record into one file.
    pub trace_path: *const c_char,
    /// Receives the reports of refused requests; null for none.
    pub on_out_of_memory: gpumem_out_of_memory_fn,
    /// Passed to `on_out_of_memory`. It must stay valid while the pool or one of its blocks exists.
    pub user_data: *mut c_void,
    /// The hard limit as a text, instead of `hard_limit_bytes`: `"2GiB"`, `"50%"` of the device's memory, or `"80%free"` of its free
    /// memory. Null for none.
    pub hard_limit: *const c_char,
    /// The soft limit as a text, instead of `soft_limit_bytes`. Null for none.
    pub soft_limit: *const c_char,
    /// The interface whose functions and options reports name: `GPUMEM_INTERFACE_C`, or the one of a program that wraps this interface.
    pub interface: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The other devices that may use the memory: `"all"` with a link, an ordinal (`"1"`), or a list of ordinals (`"[0,1]"`), which must
    /// have a link. Null for none. Default pools without this option (`"none"` is a value) are open to the default pools of devices with a
    /// link.
    pub peers: *const c_char,
}

// SAFETY: pointers, numbers and an optional function may be zero; pairs of 32-bit fields leave no padding; the size is first.
unsafe impl Versioned for gpumem_pool_options {
    const SIZES: &[usize] = &[size_of::<Self>()];
}

/// Flag: `GPUMEM_CONF`, `GPUMEM_HARD_LIMIT` and the other variables of gpumem set options that the structure leaves unset.
pub const GPUMEM_FROM_ENVIRONMENT: u32 = 1;

/// A pool behind a handle. Its fields end in this order.
pub(super) struct PoolEntry {
    /// The guards of `gpumem_pool_make_current`.
    current: Mutex<Vec<CurrentPool>>,
    pub(super) pool: Pool,
    /// The streams that requests have named by the driver's handle.
    pub(super) borrowed: RecentStreams,
    traces: Vec<Arc<Trace>>,
}

static POOLS: HandleTable<PoolEntry> = HandleTable::new(1, "pool");

/// Calls `work` with the pool of a handle.
#[inline]
pub(super) fn with<R>(
    pool: *mut gpumem_pool,
    work: impl FnOnce(&PoolEntry) -> CallResult<R>,
) -> CallResult<R> {
    POOLS.with(pool.addr() as u64, work)
}

fn add(pool: Pool, traces: Vec<Arc<Trace>>) -> CallResult<*mut gpumem_pool> {
    let handle = POOLS.add(PoolEntry {
        current: Mutex::default(),
        pool,
        borrowed: RecentStreams::default(),
        traces,
    })?;
    Ok(core::ptr::without_provenance_mut(handle as usize))
}

/// Creates a pool on a device of the driver that `GPUMEM_DRIVER` names: `cuda`, the default, or `drop-in`, a simulator.
///
/// Errors: `INVALID_ARGUMENT` for a null pointer or an invalid option, `NO_DEVICE` without a driver or a device of that ordinal,
/// `UNSUPPORTED` for a backend or a kind that the device lacks, `ENVIRONMENT` for an unknown or invalid environment variable.
///
/// # Safety
///
/// `options` is null, or points to a `struct_size` and to as many bytes as that states, with texts that end with a zero byte; `pool` is
/// null or points to a place. `on_out_of_memory` may be called with `user_data` on any thread while the pool or one of its blocks exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_create(
    options: *const gpumem_pool_options,
    pool: *mut *mut gpumem_pool,
) -> gpumem_result {
    guarded(|| {
        check(pool, "pool")?;
        // SAFETY: the caller promises the bytes of `options`.
        let options = unsafe { arguments::read(options, "options") }?;
        // SAFETY: the caller promises the texts and the callback.
        let (built, traces) = unsafe { build(&options) }?;
        // SAFETY: the caller promises a place.
        unsafe { put(pool, add(built, traces)?, "pool") }
    })
}

/// # Safety
///
/// The texts end with a zero byte, and the callback may be called on any thread.
unsafe fn build(options: &gpumem_pool_options) -> CallResult<(Pool, Vec<Arc<Trace>>)> {
    // SAFETY: the caller promises a text.
    let conf = unsafe { arguments::text(options.conf, "conf") }?;
    // SAFETY: the caller promises a text.
    let trace_path = unsafe { arguments::text(options.trace_path, "trace_path") }?;
    let from_environment = match options.flags {
        0 => false,
        GPUMEM_FROM_ENVIRONMENT => true,
        other => {
            let text = format!("unknown flags {other:#x}; set GPUMEM_FROM_ENVIRONMENT or 0");
            return Err(Failure::argument(text));
        }
    };
    let driver = Driver::from_env().map_err(PoolError::from)?;
    let device = Device::new(&driver, options.ordinal)?;
    let mut builder = if from_environment { PoolBuilder::from_env(&device)? } else { Pool::builder(&device) };
    if let Some(conf) = conf {
        builder = builder.conf(conf).map_err(PoolError::from)?;
    }
    // SAFETY: the caller promises a text.
    if let Some(peers) = unsafe { arguments::text(options.peers, "peers") }? {
        builder = builder.peers(peers).map_err(PoolError::from)?;
    }
    builder = builder.interface(interface(options)?);
    // SAFETY: the caller promises a text.
    if let Some(limit) = unsafe { limit(options.hard_limit_bytes, options.hard_limit, "hard_limit") }? {
        builder = builder.hard_limit(limit);
    }
    // SAFETY: the caller promises a text.
    if let Some(limit) = unsafe { limit(options.soft_limit_bytes, options.soft_limit, "soft_limit") }? {
        builder = builder.soft_limit(limit);
    }
    if let Some(notify) = options.on_out_of_memory {
        let user_data = UserData(options.user_data);
        builder = builder.on_out_of_memory(move |error| {
            let (text, user_data) = (terminated(error.to_string()), &user_data);
            // SAFETY: the creator of the pool promised that the function may be called with this pointer on any thread; the text
            // outlives the call.
            unsafe { notify(text.as_ptr(), user_data.0) };
        });
    }
    let mut traces: Vec<_> = builder.trace().cloned().into_iter().collect();
    if let Some(path) = trace_path {
        let trace = Trace::shared(path, None).map_err(|error| {
            let path = Shown::sentence(path);
            Failure::argument(format!(
                "the trace {path:?} cannot be recorded: {error}; name a file that can be written"
            ))
        })?;
        // `GPUMEM_TRACE` may name the same file. A pool records into it once.
        if !traces.iter().any(|known| Arc::ptr_eq(known, &trace)) {
            builder = builder.adaptor(trace.clone());
            traces.push(trace);
        }
    }
    Ok((builder.build()?, traces))
}

/// The interface whose names the pool's reports use.
fn interface(options: &gpumem_pool_options) -> CallResult<Interface> {
    if options.reserved != 0 {
        let text = format!("reserved is {}; set all bytes of the options to 0 first", options.reserved);
        return Err(Failure::argument(text));
    }
    interface_of(options.interface).ok_or_else(|| {
        Failure::argument(format!("unknown interface {}; set GPUMEM_INTERFACE_C", options.interface))
    })
}

/// A limit, as a number of bytes or as a text.
///
/// # Safety
///
/// `text` is null, or ends with a zero byte.
unsafe fn limit(limit_bytes: u64, text: *const c_char, name: &str) -> CallResult<Option<Limit>> {
    // SAFETY: the caller promises a text.
    match (unsafe { arguments::text(text, name) }?, limit_bytes) {
        (None, 0) => Ok(None),
        (None, _) => Ok(Some(Limit::Bytes(limit_bytes))),
        (Some(text), 0) => Ok(Some(text.parse().map_err(PoolError::from)?)),
        (Some(_), _) => Err(Failure::argument(format!("{name} and {name}_bytes are set; keep one of them"))),
    }
}

/// A pointer of the program for its callback.
pub(super) struct UserData(pub(super) *mut c_void);

// SAFETY: the pointer is only passed to the program's function, which the program allows on any thread.
unsafe impl Send for UserData {}
// SAFETY: like `Send`: nothing here dereferences it.
unsafe impl Sync for UserData {}

/// Ends the use of a pool. Its blocks stay alive until they are freed, and the pool's memory returns to the driver after the last of
/// them. A call on another thread that uses the pool finishes first.
///
/// Errors: `INVALID_HANDLE` for a null pointer or a pool that was destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_destroy(pool: *mut gpumem_pool) -> gpumem_result {
    ending(|| POOLS.remove(pool.addr() as u64))
}

/// Returns the device's default pool in this process, which the first call creates from the environment. Every call returns the same
/// handle, until it is destroyed; the default pool itself lives until the process ends. After a reset of the device there is a new one.
///
/// Errors: `NO_DEVICE` without a driver or a device of that ordinal, `ENVIRONMENT` for an unknown or invalid environment variable.
///
/// # Safety
///
/// `pool` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_for_device(ordinal: u32, pool: *mut *mut gpumem_pool) -> gpumem_result {
    guarded(|| {
        check(pool, "pool")?;
        let default = Pool::for_device(ordinal)?;
        let mut known = defaults();
        if known.get(&ordinal).is_some_and(|known| known.id != default.id()) {
            // The device was reset, and has another default pool.
            known.remove(&ordinal);
        }
        let known = known.entry(ordinal).or_insert_with(|| DefaultPool {
            id: default.id(),
            handle: 0,
            // The pool was made from the environment, whose trace serves the whole process.
            traces: PoolBuilder::from_env(default.device())
                .map_or_else(|_| Vec::new(), |builder| builder.trace().cloned().into_iter().collect()),
        });
        let before = core::ptr::without_provenance_mut(known.handle);
        let handle = match with(before, |_| Ok(())) {
            Ok(()) => before,
            Err(_) => add(default, known.traces.clone())?,
        };
        known.handle = handle.addr();
        // SAFETY: the caller promises a place.
        unsafe { put(pool, handle, "pool") }
    })
}

/// A device's default pool as this interface knows it.
struct DefaultPool {
    id: PoolId,
    /// The handle that `gpumem_pool_for_device` returned last; 0 for none.
    handle: usize,
    traces: Vec<Arc<Trace>>,
}

/// The default pools by ordinal.
fn defaults() -> MutexGuard<'static, BTreeMap<u32, DefaultPool>> {
    static KNOWN: Mutex<BTreeMap<u32, DefaultPool>> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the part of a pool with a name, as a handle of its own. The first call with a name creates the part: a pool with the same
/// options and with memory of its own, so `gpumem_pool_sleep` lets it sleep while the rest works. Its memory counts against the pool's hard
/// limit, if there is one. It lives as long as the pool or one of its blocks.
///
/// Errors: `INVALID_ARGUMENT` for a null pointer or a name that is not UTF-8.
///
/// # Safety
///
/// `name` is null or a text that ends with a zero byte; `part` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_part(
    pool: *mut gpumem_pool,
    name: *const c_char,
    part: *mut *mut gpumem_pool,
) -> gpumem_result {
    guarded(|| {
        check(part, "part")?;
        // SAFETY: the caller promises a text.
        let name = unsafe { arguments::needed_text(name, "name") }?;
        let (found, traces) = with(pool, |entry| Ok((entry.pool.part(name)?, entry.traces.clone())))?;
        // SAFETY: the caller promises a place.
        unsafe { put(part, add(found, traces)?, "part") }
    })
}

/// Makes a pool the device's default pool, which `gpumem_pool_for_device` returns and which lives until the process ends.
///
/// Errors: `STATE` if the device already has a default pool.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_set_default(pool: *mut gpumem_pool) -> gpumem_result {
    guarded(|| {
        with(pool, |entry| {
            let mut known = defaults();
            entry.pool.set_default()?;
            known.insert(
                entry.pool.device().ordinal(),
                DefaultPool { id: entry.pool.id(), handle: 0, traces: entry.traces.clone() },
            );
            Ok(())
        })
    })
}

/// Makes a pool of the backend `native` the device's current pool, from which every `cuMemAllocAsync` of the process allocates.
/// `gpumem_pool_end_current` or `gpumem_pool_destroy` ends it; calls nest.
///
/// Errors: `UNSUPPORTED` for another backend or kind of memory, or for a limit that an old driver cannot enforce.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_make_current(pool: *mut gpumem_pool) -> gpumem_result {
    guarded(|| {
        with(pool, |entry| {
            let guard = entry.pool.make_current()?;
            entry.current.lock().unwrap_or_else(PoisonError::into_inner).push(guard);
            Ok(())
        })
    })
}

/// Ends the latest `gpumem_pool_make_current` of this pool. The pool that was made current before it, or the device's default pool, is
/// current again.
///
/// Errors: `STATE` if the pool was not made current.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_end_current(pool: *mut gpumem_pool) -> gpumem_result {
    guarded(|| {
        with(pool, |entry| {
            let guard = entry.current.lock().unwrap_or_else(PoisonError::into_inner).pop();
            guard.map(drop).ok_or_else(|| Failure {
                code: gpumem_result::GPUMEM_ERROR_STATE,
                text: "the pool was not made current, or no longer is; make it current before its end".into(),
            })
        })
    })
}

/// Changes the hard limit. Cached memory beyond a lower limit is released. `UINT64_MAX` removes the limit.
///
/// Errors: `INVALID_ARGUMENT` for a limit below 2 MiB.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_set_hard_limit(pool: *mut gpumem_pool, limit_bytes: u64) -> gpumem_result {
    guarded(|| with(pool, |entry| Ok(entry.pool.set_hard_limit(limit_bytes)?)))
}

/// Changes the soft limit, above which cached memory is released. `UINT64_MAX` removes the limit.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_set_soft_limit(pool: *mut gpumem_pool, limit_bytes: u64) -> gpumem_result {
    guarded(|| with(pool, |entry| Ok(entry.pool.set_soft_limit(limit_bytes)?)))
}

/// Like `gpumem_pool_set_hard_limit`, with a text: `"2GiB"`, `"50%"` of the device's memory, or `"80%free"` of its free memory.
///
/// Errors: `INVALID_ARGUMENT` for a text that is not a limit, or a limit below 2 MiB.
///
/// # Safety
///
/// `limit` is null, or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_set_hard_limit_text(
    pool: *mut gpumem_pool,
    limit: *const c_char,
) -> gpumem_result {
    guarded(|| {
        // SAFETY: the caller promises a text.
        let limit = unsafe { limit_text(limit) }?;
        with(pool, |entry| Ok(entry.pool.set_hard_limit(limit)?))
    })
}

/// Like `gpumem_pool_set_soft_limit`, with a text like the one of `gpumem_pool_set_hard_limit_text`.
///
/// Errors: `INVALID_ARGUMENT` for a text that is not a limit.
///
/// # Safety
///
/// `limit` is null, or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_set_soft_limit_text(
    pool: *mut gpumem_pool,
    limit: *const c_char,
) -> gpumem_result {
    guarded(|| {
        // SAFETY: the caller promises a text.
        let limit = unsafe { limit_text(limit) }?;
        with(pool, |entry| Ok(entry.pool.set_soft_limit(limit)?))
    })
}

/// # Safety
///
/// `text` is null, or ends with a zero byte.
unsafe fn limit_text(text: *const c_char) -> CallResult<Limit> {
    // SAFETY: the caller promises a text.
    Ok(unsafe { arguments::needed_text(text, "limit") }?.parse().map_err(PoolError::from)?)
}

/// Releases cached memory until `keep_bytes` are reserved, without waiting. `released_bytes` may be null.
///
/// # Safety
///
/// `released_bytes` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_trim(
    pool: *mut gpumem_pool,
    keep_bytes: u64,
    released_bytes: *mut u64,
) -> gpumem_result {
    guarded(|| {
        let released = with(pool, |entry| Ok(entry.pool.trim_to(keep_bytes)?))?;
        // SAFETY: the caller promises a place, or null.
        unsafe { put_if_asked(released_bytes, released) };
        Ok(())
    })
}

/// Waits for the device, then releases all memory that no block holds. `released_bytes` may be null.
///
/// # Safety
///
/// `released_bytes` is null or points to a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumem_pool_reclaim(
    pool: *mut gpumem_pool,
    released_bytes: *mut u64,
) -> gpumem_result {
    guarded(|| {
        let released = with(pool, |entry| Ok(entry.pool.reclaim()?))?;
        // SAFETY: the caller promises a place, or null.
        unsafe { put_if_asked(released_bytes, released) };
        Ok(())
    })
}

/// `gpumem_pool_sleep` copies the contents of all blocks to pinned host memory, and `gpumem_pool_wake` copies them back.
pub const GPUMEM_KEEP_ON_HOST: u32 = 0;
/// The contents are lost: the memory is zero after `gpumem_pool_wake`.
pub const GPUMEM_KEEP_NOTHING: u32 = 1;

/// Releases the physical memory of the pool to the device, after a wait for the device. Blocks keep their addresses, so captured graphs and
/// stored addresses are valid again after `gpumem_pool_wake`. A server that alternates between training and inference lets the memory of
/// one phase sleep during the other. `keep` is `GPUMEM_KEEP_ON_HOST` or `GPUMEM_KEEP_NOTHING`.
///
/// While the pool sleeps, blocks may be freed, and allocations are errors (`STATE`). The program must queue no work that uses the memory.
///
/// Errors: `UNSUPPORTED` unless the backend is `caching` over virtual memory of the device; `STATE` if the pool sleeps already, during a
/// capture, or for a pool whose memory other processes use; `DRIVER` if a call fails, for example because the host has too little memory.
/// The pool is then awake, or `gpumem_pool_wake` wakes it.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_sleep(pool: *mut gpumem_pool, keep: u32) -> gpumem_result {
    guarded(|| {
        let keep = match keep {
            GPUMEM_KEEP_ON_HOST => Keep::OnHost,
            GPUMEM_KEEP_NOTHING => Keep::Nothing,
            other => {
                let text = format!("keep is {other}; pass Keep::OnHost or Keep::Nothing");
                return Err(Failure::argument(text));
            }
        };
        with(pool, |entry| Ok(entry.pool.sleep(keep).map(drop)?))
    })
}

/// Creates the memory of a sleeping pool again, at the same addresses. Does nothing if the pool is awake.
///
/// Errors: `OUT_OF_MEMORY`, with the report as text, if the device or a limit refuses; `STATE` if another thread is putting the pool to
/// sleep or waking it; `DRIVER` if a call fails. The pool then still sleeps: call it again, for example after memory was freed.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_wake(pool: *mut gpumem_pool) -> gpumem_result {
    guarded(|| with(pool, |entry| Ok(entry.pool.wake().map(drop)?)))
}

/// Waits until everything that the pool has recorded is in its trace file (`trace_path` or `GPUMEM_TRACE`).
///
/// Errors: `STATE` for a pool without a trace, after the timeout, or if the file cannot be written.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_pool_flush_trace(pool: *mut gpumem_pool, timeout_ms: u64) -> gpumem_result {
    guarded(|| {
        with(pool, |entry| {
            let failed = |text: &str| Failure { code: gpumem_result::GPUMEM_ERROR_STATE, text: text.into() };
            if entry.traces.is_empty() {
                return Err(failed(
                    "the pool has no trace; set trace_path when you create it, or GPUMEM_TRACE",
                ));
            }
            let timeout = Duration::from_millis(timeout_ms);
            match entry.traces.iter().all(|trace| trace.flush(timeout)) {
                true => Ok(()),
                false => Err(failed("the trace was not written in time; check the disk, or wait longer")),
            }
        })
    })
}
