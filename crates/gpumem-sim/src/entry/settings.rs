//! Settings of contexts and functions.

use crate::base::codes::INVALID_CONTEXT;
use crate::base::handle::Handle;
use crate::entry::argument::{Target, put};
use crate::entry::entries;
use core::ffi::c_uint;
use gpumem_sys::Table;
use gpumem_sys::types::{CUfunc_cache, CUfunction, CUlimit, CUresult, CUsharedconfig};

entries! {
    fn cuCtxGetFlags(call, flags: Target<c_uint>) {
        let context = call.context(call.thread)?;
        put(flags, call.contexts.get(context).ok_or(INVALID_CONTEXT)?.settings.flags)
    }

    fn cuCtxSetFlags(call, flags: c_uint) {
        let context = call.context(call.thread)?;
        call.contexts.get_mut(context).ok_or(INVALID_CONTEXT)?.settings.set_flags(flags)
    }

    fn cuCtxGetLimit(call, value: Target<usize>, limit: CUlimit) {
        let context = call.context(call.thread)?;
        put(value, call.contexts.get(context).ok_or(INVALID_CONTEXT)?.settings.limit(limit)?)
    }

    fn cuCtxSetLimit(call, limit: CUlimit, value: usize) {
        let context = call.context(call.thread)?;
        call.contexts.get_mut(context).ok_or(INVALID_CONTEXT)?.settings.set_limit(limit, value)
    }

    fn cuCtxGetCacheConfig(call, config: Target<CUfunc_cache>) {
        let context = call.context(call.thread)?;
        put(config, call.contexts.get(context).ok_or(INVALID_CONTEXT)?.settings.cache)
    }

    fn cuCtxSetCacheConfig(call, config: CUfunc_cache) {
        let context = call.context(call.thread)?;
        call.contexts.get_mut(context).ok_or(INVALID_CONTEXT)?.settings.cache = config;
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(call, config: Target<CUsharedconfig>) {
        call.context(call.thread)?;
        put(config, CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE)
    }

    // All current devices have one bank size: the call is accepted and has no effect.
    fn cuCtxSetSharedMemConfig(call, _config: CUsharedconfig) {
        call.context(call.thread).map(drop)
    }

    fn cuFuncSetCacheConfig(call, function: CUfunction, _config: CUfunc_cache) {
        call.context(call.thread)?;
        call.function(Handle::from_ptr(function)).map(drop)
    }

    fn cuFuncSetSharedMemConfig(call, function: CUfunction, _config: CUsharedconfig) {
        call.context(call.thread)?;
        call.function(Handle::from_ptr(function)).map(drop)
    }
}
