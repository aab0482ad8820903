//! Stands for `native` where it is not built in: a type without values.

use super::figures::DriverPoolUsage;
use gpumem_sys::DriverError;

pub(crate) enum NativeAllocator {}

impl NativeAllocator {
    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        match *self {}
    }

    pub(crate) fn end_current(&self) -> Result<(), DriverError> {
        match *self {}
    }

    pub(crate) fn is_current(&self) -> Result<bool, DriverError> {
        match *self {}
    }

    pub(crate) fn usage(&self) -> Result<DriverPoolUsage, DriverError> {
        match *self {}
    }

    pub(crate) fn has_been_current(&self) -> bool {
        match *self {}
    }
}
