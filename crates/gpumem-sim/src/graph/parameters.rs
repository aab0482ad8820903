//! Returns the parameters of graph nodes to the program.
//!
//! Nodes keep operations, not the structures passed by the program. So the parameters of a copy have the offsets of its box added
//! to the addresses, and a captured node looks like one that was added explicitly.

use core::ffi::c_void;

/// Pointers to the parameters of a kernel, as last returned to the program, which may keep them until the node changes.
#[derive(Default)]
pub(crate) struct ParameterPointers(pub(crate) Vec<*mut c_void>);

// SAFETY: the list is only kept alive; this crate does not dereference its pointers.
unsafe impl Send for ParameterPointers {}

pub(crate) type PlainFunction = unsafe extern "C" fn(*mut c_void);
