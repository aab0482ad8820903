//! Where a pool's bytes come from: one enum, and the trait that its variants share.
//!
//! A backend asks the driver and does nothing else: the pool has checked the request and holds it to the limit. It
//! answers in the driver's terms, so that the pool can tell a full device from a lost one.

#[cfg(feature = "backend-caching")]
mod caching;
#[cfg(feature = "backend-native")]
#[allow(unsafe_code)]
mod native;
#[allow(unsafe_code)]
mod none;

use crate::device::Device;
use crate::error::PoolError;
use crate::options::BackendKind;
use crate::stream::Stream;
use enum_dispatch::enum_dispatch;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
#[cfg(feature = "backend-native")]
use native::NativeBackend;
use none::NoneBackend;

/// A source of device memory. Every method may be called by any threads at once, with any context current.
#[enum_dispatch]
pub(crate) trait Source {
    fn kind(&self) -> BackendKind;

    /// Memory for work queued on `stream` from now on. `size_bytes` is not zero.
    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError>;

    /// Takes back what [`Source::acquire`] gave on `home`, once everything queued so far on `home` and `uses` is done.
    /// After an error nothing was freed.
    fn release(&self, address: CUdeviceptr, home: &Stream, uses: &[Stream]) -> Result<(), DriverError>;

    /// Whether freed memory stays reserved, so that reclaiming can make room.
    fn keeps_memory(&self) -> bool;

    /// Gives back what is free beyond `keep_bytes`.
    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError>;

    /// What is held from the device; `None` where that is what the blocks hold.
    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError>;
}

/// What a backend holds from the device, for blocks and for reuse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) current_bytes: u64,
    pub(crate) peak_bytes: u64,
}

#[enum_dispatch(Source)]
pub(crate) enum Backend {
    #[cfg(feature = "backend-native")]
    Native(NativeBackend),
    None(NoneBackend),
}

impl Backend {
    /// The one that was asked for, else the best that is built and that the device can carry.
    pub(crate) fn new(
        asked: Option<BackendKind>,
        device: &Device,
        hard_limit_bytes: Option<u64>,
        soft_limit_bytes: Option<u64>,
    ) -> Result<Self, PoolError> {
        match asked {
            Some(BackendKind::None) => Ok(NoneBackend.into()),
            Some(BackendKind::Native) => native(device, hard_limit_bytes, soft_limit_bytes),
            None => match native(device, hard_limit_bytes, soft_limit_bytes) {
                Err(PoolError::BackendNotBuilt { .. } | PoolError::BackendUnsupported { .. }) => {
                    Ok(NoneBackend.into())
                }
                other => other,
            },
        }
    }
}

#[cfg(feature = "backend-native")]
fn native(device: &Device, hard: Option<u64>, soft: Option<u64>) -> Result<Backend, PoolError> {
    Ok(NativeBackend::new(device, hard, soft)?.into())
}

#[cfg(not(feature = "backend-native"))]
fn native(_: &Device, _: Option<u64>, _: Option<u64>) -> Result<Backend, PoolError> {
    Err(PoolError::BackendNotBuilt { backend: BackendKind::Native, feature: "backend-native" })
}
