//! Returns the parameters of graph nodes to the program.
//!
//! Nodes keep operations, not the structures that they were made of. So the parameters of a copy have the offsets of its box
//! added to the addresses, and a captured node looks like one that was added explicitly.

use core::ffi::c_void;

/// Pointers to the parameters of a kernel, as they were last told. The program may keep them until the node changes.
#[derive(Default)]
pub(crate) struct Told(pub(crate) Vec<*mut c_void>);

// SAFETY: the list only keeps alive what it was told; nobody here follows its pointers.
unsafe impl Send for Told {}

pub(crate) type PlainFunction = unsafe extern "C" fn(*mut c_void);
