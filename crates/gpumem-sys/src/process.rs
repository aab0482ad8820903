//! [`ProcessUsage`]: a process and its memory on a device.

use crate::text::Shown;
use core::fmt;

/// A process that has memory on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessUsage {
    /// The process ID on the host of the management library, which may differ from the ID in a container.
    pub id: Option<u32>,
    /// The process name, if the ID exists on this system.
    pub name: Option<String>,
    /// The bytes on the device, if the management library reports them.
    pub in_use_bytes: Option<u64>,
}

impl fmt::Display for ProcessUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.id) {
            (Some(name), Some(id)) => write!(f, "{} (process {id})", Shown::name(name)),
            (Some(name), None) => Shown::name(name).fmt(f),
            (None, Some(id)) => write!(f, "process {id}"),
            (None, None) => f.write_str("a process"),
        }
    }
}
