//! Settings of a context that a program can write and read back. They have no effect on the simulator.

use crate::base::codes::{Answer, INVALID_VALUE};
use gpumem_sys::types::{CUfunc_cache, CUlimit};

/// The settings of a context.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) flags: u32,
    pub(crate) cache: CUfunc_cache,
    /// By the number of the limit.
    limits: [usize; LIMIT_DEFAULTS.len()],
}

impl Settings {
    pub(crate) fn limit(&self, limit: CUlimit) -> Answer<usize> {
        self.limits.get(limit.0 as usize).copied().ok_or(INVALID_VALUE)
    }

    pub(crate) fn set_limit(&mut self, limit: CUlimit, value: usize) -> Answer<()> {
        if limit == CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > L2_FETCH_BYTES_MAX {
            return Err(INVALID_VALUE);
        }
        *self.limits.get_mut(limit.0 as usize).ok_or(INVALID_VALUE)? = value;
        Ok(())
    }

    pub(crate) fn set_flags(&mut self, flags: u32) -> Answer<()> {
        if flags & !FLAGS_KNOWN != 0 {
            return Err(INVALID_VALUE);
        }
        self.flags = flags;
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { flags: 0, cache: CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE, limits: LIMIT_DEFAULTS }
    }
}

/// Stack of a thread, buffer of `printf`, heap of `malloc`, depth of nested synchronisation, pending nested launches, bytes of an
/// L2 fetch, persisting L2 bytes.
const LIMIT_DEFAULTS: [usize; 7] = [1 << 10, 1 << 20, 8 << 20, 2, 2048, 64, 0];
const L2_FETCH_BYTES_MAX: usize = 128;

/// The flags for waits, mapped host memory, retained local memory, and core dumps.
const FLAGS_KNOWN: u32 = 0x1ff;
