//! [`Refusal`]: a limit or the driver refused memory.

use super::{LimitExceeded, PoolError};
use gpumem_device::internal::Verdict;
use gpumem_sys::DriverError;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// A limit refused it, and the driver was not called.
    Limit(LimitExceeded),
    Driver(DriverError),
}

impl Refusal {
    /// Returns the refusal if memory is short, which the ladder may change.
    ///
    /// # Errors
    ///
    /// `DeviceError::Driver` or `DeviceError::DeviceLost` if a driver call failed for another reason.
    pub(crate) fn if_out_of_memory(self) -> Result<Self, PoolError> {
        match self {
            Self::Driver(error) if Verdict::of(&error) != Verdict::Shortage => Err(error.into()),
            shortage => Ok(shortage),
        }
    }

    pub(crate) fn limit(self) -> Option<LimitExceeded> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Driver(_) => None,
        }
    }
}

impl From<DriverError> for Refusal {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}
