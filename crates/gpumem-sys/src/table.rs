//! [`Table`]: one optional C function pointer for each function of the driver. All drivers are plugged in here.
//!
//! The vendor's library, the simulator and wrappers of tests fill a table through [`Table::load`] or its fields. A function that a
//! driver lacks is `None`: calling it through a
//! [`Driver`](crate::Driver) returns [`DriverError::Missing`](crate::DriverError::Missing), never a panic.

#![allow(non_snake_case, non_camel_case_types, clippy::too_many_arguments)]

use crate::error::CudaVersion;
use crate::generated::types::*;
use core::ffi::c_void;

/// A function of the driver: its exported name, and the CUDA version that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The exported name, revision suffix included (`cuMemAlloc_v2`).
    pub name: &'static str,
    /// The CUDA version that introduced it.
    pub since: CudaVersion,
}

macro_rules! table {
    ($( [$since:literal] fn $name:ident($($arg:ident: $kind:ty),* $(,)?); )*) => {
        /// The driver's functions; `None` for a function that the driver lacks.
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        #[allow(missing_docs)]
        pub struct Table {
            $(pub $name: Option<unsafe extern "C" fn($($kind),*) -> CUresult>,)*
        }

        impl Table {
            /// Every function of the table, in the order of its fields.
            pub const SYMBOLS: &'static [Symbol] =
                &[$(Symbol { name: stringify!($name), since: CudaVersion($since) }),*];

            /// Fills a table with the addresses that `find` returns; null means that the driver lacks the function.
            ///
            /// # Safety
            ///
            /// Every address that `find` returns is null, or the address of a function with the signature that `cuda.h` declares for
            /// the symbol, callable for as long as the table is used.
            pub unsafe fn load(mut find: impl FnMut(&Symbol) -> *const c_void) -> Self {
                let mut symbols = Self::SYMBOLS.iter();
                let mut next = || symbols.next().map_or(core::ptr::null(), &mut find);
                Self {
                    $($name: {
                        // SAFETY: the caller promises the signature; null becomes `None`, which has the same bits.
                        unsafe {
                            core::mem::transmute::<
                                *const c_void,
                                Option<unsafe extern "C" fn($($kind),*) -> CUresult>,
                            >(next())
                        }
                    },)*
                }
            }

            /// The functions that this table lacks.
            pub fn missing(&self) -> impl Iterator<Item = &'static Symbol> {
                let present = [$(self.$name.is_some()),*];
                Self::SYMBOLS.iter().zip(present).filter(|(_, present)| !present).map(|(symbol, _)| symbol)
            }

            /// The functions that this table has.
            pub fn present(&self) -> impl Iterator<Item = &'static Symbol> {
                let present = [$(self.$name.is_some()),*];
                Self::SYMBOLS.iter().zip(present).filter(|(_, present)| *present).map(|(symbol, _)| symbol)
            }
        }
    };
}

crate::for_each_driver_fn!(table!);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_puts_each_address_into_the_field_of_its_symbol() {
        // SAFETY: the addresses are never called.
        let table = unsafe {
            Table::load(|symbol| match symbol.name {
                "cuInit" | "cuMemAlloc_v2" => core::ptr::without_provenance(16),
                _ => core::ptr::null(),
            })
        };
        assert!(table.cuInit.is_some() && table.cuMemAlloc_v2.is_some());
        assert!(table.cuMemFree_v2.is_none());
        assert_eq!(table.missing().count(), Table::SYMBOLS.len() - 2);
        assert!(table.missing().all(|symbol| symbol.name != "cuInit"));
    }

    #[test]
    fn symbols_carry_the_version_that_introduced_them() {
        let since =
            |name| Table::SYMBOLS.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.since);
        assert_eq!(since("cuMemAllocAsync"), Some(CudaVersion(11020)));
        assert_eq!(since("cuMemAdvise_v2"), Some(CudaVersion(12020)));
        assert_eq!(since("cuNoSuchFunction"), None);
    }
}
