//! Arrays exchanged with other libraries, one module each.

#[cfg(feature = "cudarc")]
#[allow(unsafe_code)] // handles and traits of cudarc
pub mod cudarc;
#[cfg(feature = "dlpack")]
#[allow(unsafe_code)] // C structures of other libraries
pub mod dlpack;
