//! [`ProcessUsage`]: a process and its memory on a device.

use core::fmt;

/// A process that has memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessUsage {
    /// Its process number, as the system of the management library counts: a container may have others.
    pub id: Option<u32>,
    /// Its name, if this system knows its number.
    pub name: Option<String>,
    /// Its memory on the device, if the device's owner reports it.
    pub in_use_bytes: Option<u64>,
}

impl fmt::Display for ProcessUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.id) {
            (Some(name), Some(id)) => write!(f, "{name} (process {id})"),
            (Some(name), None) => f.write_str(name),
            (None, Some(id)) => write!(f, "process {id}"),
            (None, None) => f.write_str("a process"),
        }
    }
}
