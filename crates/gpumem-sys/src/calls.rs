//! The driver's functions as methods of [`Driver`], each with its result code as a `Result`.

#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::driver::Driver;
use crate::error::{CudaVersion, DriverError};
use crate::generated::types::*;

macro_rules! calls {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        /// The driver's functions by their own names, with the result code as a `Result`.
        ///
        /// What each does, and what it asks of its caller, is on its page of the vendor's
        /// [driver API](https://docs.nvidia.com/cuda/cuda-driver-api/).
        impl Driver {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                ///
                /// # Errors
                ///
                /// The driver's result code, or [`DriverError::Missing`] where the driver has no such function.
                ///
                /// # Safety
                ///
                /// What the driver's documentation asks: valid handles, pointers to memory of the right size that
                /// lives as long as the call (or the work it queues) needs it.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), DriverError> {
                    let Some(function) = self.table().$name else {
                        return Err(DriverError::Missing {
                            call: stringify!($name),
                            since: CudaVersion($since),
                        });
                    };
                    // SAFETY: the caller's promise is the one that this function asks for.
                    let code = unsafe { function($($arg),*) };
                    DriverError::check(stringify!($name), code)
                }
            )*
        }
    };
}

crate::for_each_driver_fn!(calls!);
