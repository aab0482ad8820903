//! The driver's functions as methods of [`Driver`], which return a `Result`.

#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::driver::Driver;
use crate::error::{CudaVersion, DriverError};
use crate::generated::types::*;

macro_rules! calls {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        /// The driver's functions under their own names, with the result code as a `Result`.
        ///
        /// The vendor documents behaviour and conditions of each in the
        /// [driver API](https://docs.nvidia.com/cuda/cuda-driver-api/).
        impl Driver {
            $(
                #[doc = concat!("Calls `", stringify!($name), "`.")]
                ///
                /// # Errors
                ///
                /// [`DriverError::Failed`] if the driver returns an error code, [`DriverError::Missing`] if it lacks the function.
                ///
                /// # Safety
                ///
                /// The conditions of the driver's documentation hold: handles are valid, and pointers are to memory of the right size that
                /// lives as long as the call, or the work that it queues, needs it.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), DriverError> {
                    let Some(function) = self.table().$name else {
                        return Err(DriverError::Missing {
                            call: stringify!($name),
                            since: CudaVersion($since),
                        });
                    };
                    // SAFETY: the caller guarantees the conditions of this function.
                    let code = unsafe { function($($arg),*) };
                    DriverError::check(stringify!($name), code)
                }
            )*
        }
    };
}

crate::for_each_driver_fn!(calls!);
