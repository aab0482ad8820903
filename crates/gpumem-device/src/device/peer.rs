//! [`PeerDevice`]: another device that may use a device's memory.

use crate::device::Device;
use crate::device::primary::raw_device;
use crate::error::DeviceError;
use core::ffi::c_int;
use core::fmt;
use gpumem_sys::types::CUdevice;
use gpumem_sys::{Driver, DriverError};

/// Another device of a driver. Naming it opens no context, unlike a [`Device`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDevice {
    ordinal: u32,
    raw: CUdevice,
}

impl PeerDevice {
    #[inline]
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self, DeviceError> {
        Ok(Self { ordinal, raw: raw_device(driver, ordinal)? })
    }

    #[inline]
    pub fn of(device: &Device) -> Self {
        Self { ordinal: device.ordinal(), raw: device.raw() }
    }

    #[inline]
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    #[inline]
    pub fn raw(self) -> CUdevice {
        self.raw
    }

    /// True if a link lets it use the memory of `device`, which belongs to the same driver.
    pub fn reaches(self, device: &Device) -> Result<bool, DriverError> {
        let mut can: c_int = 0;
        // SAFETY: `can` outlives the call.
        unsafe { device.driver().cuDeviceCanAccessPeer(&mut can, self.raw, device.raw())? };
        Ok(can != 0)
    }

    /// Returns a device that `device` has no link to, if any.
    pub fn without_link_to(device: &Device) -> Result<Option<Self>, DeviceError> {
        let driver = device.driver();
        for ordinal in (0..Device::count(driver)?).filter(|ordinal| *ordinal != device.ordinal()) {
            let other = Self::new(driver, ordinal)?;
            if !other.reaches(device)? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Opens the device if its primary context exists; without one it has no work.
    pub fn open_if_active(self, driver: &Driver) -> Result<Option<Device>, DeviceError> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: locals outlive the call.
        unsafe { driver.cuDevicePrimaryCtxGetState(self.raw, &mut flags, &mut active)? };
        (active != 0).then(|| Device::new(driver, self.ordinal)).transpose()
    }
}

impl fmt::Display for PeerDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.ordinal)
    }
}
