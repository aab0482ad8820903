//! The order of calls and operations: methods of the machine.

pub(crate) mod clock;
pub(crate) mod happens_before;
pub(crate) mod races;
pub(crate) mod usage;
