//! [`Backend`] supplies a pool with device memory: `caching`, `native` or `none`, which implement [`MemorySource`].
//!
//! The pool validates each request before it calls the backend: the stream belongs to the pool's device, and the size
//! is neither zero nor larger than the device. The backend applies the limits and keeps the counters. A request that finds no
//! free memory becomes a [`Search`], which the pool's ladder continues. `native` and `none` call the driver for each block, and
//! share that code in `direct`.

mod allocation;
#[cfg(feature = "backend-caching")]
mod caching;
mod direct;
mod figures;
#[cfg(feature = "backend-native")]
#[allow(unsafe_code)]
mod native;
#[allow(unsafe_code)]
mod none;
#[allow(unsafe_code)]
mod plain;
mod search;
mod sleeping;
mod source;
#[cfg(not(feature = "backend-caching"))]
mod without_caching;
#[cfg(not(feature = "backend-native"))]
mod without_native;

#[cfg(unix)]
pub(crate) use allocation::Underlying;
pub(crate) use allocation::{Allocation, FreeOutcome, FreeRequest};
#[cfg(feature = "backend-caching")]
pub(crate) use caching::{
    CachingPool, FoundCache, find_for_tagged, hit, put_back_found, put_back_small, stream_of_found,
};
pub use figures::DriverPoolUsage;
pub(crate) use figures::{Counts, Reserved};
#[cfg(feature = "backend-native")]
pub(crate) use native::NativeAllocator;
pub(crate) use search::{Outcome, Search, Shortage, waits_on_host};
pub use sleeping::{Keep, Slept, Woken};
pub(crate) use source::{BackendSetup, MemorySource};
#[cfg(not(feature = "backend-caching"))]
pub(crate) use without_caching::{
    CachingPool, FoundCache, find_for_tagged, hit, put_back_found, put_back_small, stream_of_found,
};
#[cfg(not(feature = "backend-native"))]
pub(crate) use without_native::NativeAllocator;

use crate::config::{BackendKind, HandleUse};
use crate::error::{OutOfMemory, PoolError, Unsupported};
use direct::DirectBackend;
use enum_dispatch::enum_dispatch;
use gpumem_base::counters::Counters;
use gpumem_device::internal::PeerDevice;
use gpumem_device::{Stream, StreamId};
use none::PlainAllocator;
use std::sync::Arc;

#[enum_dispatch(MemorySource)]
#[derive(Clone)]
pub(crate) enum Backend {
    #[cfg(feature = "backend-caching")]
    Caching(Arc<CachingPool>),
    #[cfg(feature = "backend-native")]
    Native(Arc<DirectBackend<NativeAllocator>>),
    None(Arc<DirectBackend<PlainAllocator>>),
}

impl Backend {
    pub(crate) fn kind(&self) -> BackendKind {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(_) => BackendKind::Caching,
            #[cfg(feature = "backend-native")]
            Self::Native(_) => BackendKind::Native,
            Self::None(_) => BackendKind::None,
        }
    }

    /// True if the backend counts its blocks; otherwise the pool counts each block.
    pub(crate) fn counts_blocks(&self) -> bool {
        self.kind() == BackendKind::Caching
    }

    /// True if freed memory stays reserved by the backend. Such a backend is one of its device's trimmables.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.kind() != BackendKind::None
    }

    /// The key of this backend's thread caches, for [`hit`] and [`put_back_small`]. [`NO_CACHE`] if it has none.
    pub(crate) fn cache_key(&self) -> u64 {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(pool) => pool.cache_key,
            _ => NO_CACHE,
        }
    }

    /// The address and the size of each live block, if the backend knows them. The size may be rounded up.
    #[cfg(feature = "status-socket")]
    pub(crate) fn live_blocks(&self) -> Option<Vec<(u64, u64)>> {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(pool) => Some(pool.live_blocks()),
            _ => None,
        }
    }

    pub(crate) fn growing(&self) -> Option<&CachingPool> {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(pool) => Some(&**pool).filter(|pool| pool.is_virtual()),
            _ => None,
        }
    }

    /// The pool whose memory can sleep.
    ///
    /// # Errors
    ///
    /// `PoolError::Unsupported` if the memory cannot sleep.
    pub(crate) fn sleeping(&self) -> Result<&CachingPool, PoolError> {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(pool) => pool.check_sleeps().map(|()| &**pool),
            _ => Err(PoolError::not_on(self.kind(), "sleep", "`caching`")),
        }
    }

    /// The driver's pool behind this backend, which a device can allocate others' memory from.
    ///
    /// # Errors
    ///
    /// `PoolError::Unsupported` if there is none, or none that can enforce
    /// the hard limit.
    pub(crate) fn device_pool(&self) -> Result<&NativeAllocator, PoolError> {
        match self {
            #[cfg(feature = "backend-native")]
            Self::Native(direct) => direct.calls().check_current().map(|()| direct.calls()),
            _ => Err(PoolError::not_on(
                self.kind(),
                "be the device's current pool",
                "`native` (option backend:native)",
            )),
        }
    }
}

/// The key of a backend without thread caches. It matches no cache.
pub(crate) const NO_CACHE: u64 = u64::MAX;

/// Creates the configured backend, or by default the best one that is compiled in and that the device supports.
pub(crate) fn open(setup: BackendSetup<'_>) -> Result<Backend, PoolError> {
    match setup.config.backend {
        Some(BackendKind::Caching) => caching(setup),
        Some(BackendKind::Native) => native(setup),
        Some(BackendKind::None) => none(setup),
        None => caching(setup)
            .or_else(|error| instead(error, || native(setup)))
            .or_else(|error| instead(error, || none(setup))),
    }
}

/// Tries the next backend if this one is not compiled in or the device does not support it.
fn instead(
    error: PoolError,
    next: impl FnOnce() -> Result<Backend, PoolError>,
) -> Result<Backend, PoolError> {
    match error {
        PoolError::Unsupported(
            Unsupported::NotBuilt { .. } | Unsupported::Backend { .. } | Unsupported::OnBackend { .. },
        ) => next(),
        other => Err(other),
    }
}

#[cfg(feature = "backend-caching")]
fn caching(setup: BackendSetup<'_>) -> Result<Backend, PoolError> {
    Ok(CachingPool::new(setup)?.into())
}

#[cfg(not(feature = "backend-caching"))]
fn caching(_: BackendSetup<'_>) -> Result<Backend, PoolError> {
    Err(PoolError::Unsupported(Unsupported::NotBuilt {
        backend: BackendKind::Caching,
        feature: "backend-caching",
    }))
}

fn none(setup: BackendSetup<'_>) -> Result<Backend, PoolError> {
    check_not_exported(BackendKind::None, setup.config.handle_use)?;
    Ok(DirectBackend::new(setup, PlainAllocator::new(setup.config.kind, setup.activity)).into())
}

fn check_not_exported(backend: BackendKind, handle_use: HandleUse) -> Result<(), PoolError> {
    match handle_use.exportable {
        true => Err(PoolError::not_on(backend, "export blocks (exportable:true)", "`caching`")),
        false => Ok(()),
    }
}

#[cfg(feature = "backend-native")]
fn native(setup: BackendSetup<'_>) -> Result<Backend, PoolError> {
    check_not_exported(BackendKind::Native, setup.config.handle_use)?;
    if setup.config.handle_use.rdma {
        return Err(PoolError::not_on(
            BackendKind::Native,
            "pin memory for network cards (rdma:true)",
            "`caching` or `none`",
        ));
    }
    Ok(DirectBackend::new(setup, NativeAllocator::new(setup)?).into())
}

#[cfg(not(feature = "backend-native"))]
fn native(_: BackendSetup<'_>) -> Result<Backend, PoolError> {
    Err(PoolError::Unsupported(Unsupported::NotBuilt {
        backend: BackendKind::Native,
        feature: "backend-native",
    }))
}
