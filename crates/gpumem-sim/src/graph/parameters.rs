//! What the nodes of a graph were given, told back to the program.
//!
//! Nodes keep operations, not the structures that they were made of, so a copy is told with the offsets of its box
//! taken into the addresses, and one that was captured looks like one made by hand.

use core::ffi::c_void;

/// Pointers to the parameters of a kernel, as they were last told. The program may keep them until the node changes.
#[derive(Default)]
pub(crate) struct Told(pub(crate) Vec<*mut c_void>);

// SAFETY: the list only keeps alive what it was told; nobody here follows its pointers.
unsafe impl Send for Told {}

pub(crate) type PlainFunction = unsafe extern "C" fn(*mut c_void);
