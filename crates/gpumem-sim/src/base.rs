//! Items that all rooms use: result codes, handles, the address space, free ranges, random numbers, names of
//! functions, and the calling thread.

pub(crate) mod address;
pub(crate) mod codes;
pub(crate) mod extents;
pub(crate) mod handle;
pub(crate) mod random;
#[allow(unsafe_code)]
pub(crate) mod symbol;
pub(crate) mod thread;
