//! The order of calls and operations, as the machine keeps it.

pub(crate) mod clock;
pub(crate) mod happens_before;
pub(crate) mod races;
pub(crate) mod usage;
