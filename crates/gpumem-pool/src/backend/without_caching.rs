//! Stands for `caching` where it is not built in: caches that are never found, and a pool without values.

use super::allocation::Allocation;
use super::search::Search;
use super::sleeping::{Keep, Slept, Woken};
use crate::error::PoolError;
use core::ops::Range;
use gpumem_device::StreamId;
use gpumem_device::internal::Stamp;
use gpumem_sys::types::CUdeviceptr;

pub(crate) enum CachingPool {}

#[allow(clippy::unused_self, reason = "they have the parameters of the pool that is built in")]
impl CachingPool {
    pub(crate) fn add(&self, _max_bytes: u64) -> Result<(u64, CUdeviceptr), PoolError> {
        match *self {}
    }

    pub(crate) fn grow_to(
        &self,
        _id: u64,
        _size_bytes: u64,
        _climb: impl FnOnce(&mut dyn Search<()>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        match *self {}
    }

    pub(crate) fn shrink_to(&self, _id: u64, _size_bytes: u64, _uses: &[Stamp]) -> Result<(), PoolError> {
        match *self {}
    }

    pub(crate) fn remove(&self, _id: u64, _uses: &[Stamp]) {
        match *self {}
    }

    pub(crate) fn addresses(&self) -> Vec<Range<u64>> {
        match *self {}
    }

    pub(crate) fn prepare_sleep(&self) {
        match *self {}
    }

    pub(crate) fn sleep(&self, _keep: Keep) -> Result<Slept, PoolError> {
        match *self {}
    }

    pub(crate) fn wake(
        &self,
        _climb: impl FnOnce(&mut dyn Search<Woken>) -> Result<Woken, PoolError>,
    ) -> Result<Woken, PoolError> {
        match *self {}
    }

    pub(crate) fn is_asleep(&self) -> bool {
        match *self {}
    }
}

#[inline(always)]
pub(crate) fn hit(_cache_key: u64, _size_bytes: u64, _fast_path_id: u64) -> Option<Allocation> {
    None
}

#[inline(always)]
pub(crate) fn put_back_small(_cache_key: u64, _: &Allocation, _size_bytes: u64, _: StreamId) -> bool {
    false
}

#[derive(Clone, Copy)]
pub(crate) enum FoundCache {}

#[inline(always)]
pub(crate) fn find_for_tagged(_cache_key: u64, _: &Allocation, _: StreamId) -> Option<FoundCache> {
    None
}

/// Like [`put_back_small`], into a cache that [`find_for_tagged`] has found.
///
/// # Safety
///
/// No requirements: there is no such cache.
#[allow(unsafe_code, reason = "it has the contract of the function for caches")]
pub(crate) unsafe fn put_back_found(cache: FoundCache, _: &Allocation, _size_bytes: u64) -> bool {
    match cache {}
}

/// The stream of a cache.
///
/// # Safety
///
/// No requirements: there is no such cache.
#[allow(unsafe_code, reason = "it has the contract of the function for caches")]
pub(crate) unsafe fn stream_of_found(cache: FoundCache) -> StreamId {
    match cache {}
}
