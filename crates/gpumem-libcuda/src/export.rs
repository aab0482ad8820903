//! Every function of the driver API as an exported symbol that forwards to the process's table.

#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::process;
use gpumem_sim::sys::types::*;

macro_rules! export {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the process's simulator.")]
            ///
            /// # Safety
            ///
            /// The requirements of the driver's documentation for this function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> CUresult {
                let Some(table) = process::table() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
                match table.$name {
                    // SAFETY: the caller guarantees what the table's function requires.
                    Some(function) => unsafe { function($($arg),*) },
                    None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                }
            }
        )*
    };
}

gpumem_sim::sys::for_each_driver_fn!(export!);
