//! [`Spill`]: whether and how far the contents of arrays may move out of device memory.

use crate::config::{ConfigError, Limit};
use core::fmt;
use core::str::FromStr;
use gpumem_device::Bytes;
use gpumem_sys::text::Shown;
use std::path::PathBuf;

/// Selects where the contents of arrays move while device memory is short. By default they do not move, and the request is refused.
///
/// ```
/// use gpumem_pool::{Device, Pool, Spill};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit("1GiB").spill("host:4GiB".parse::<Spill>()?).build()?;
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spill {
    /// Contents stay where they are.
    #[default]
    Off,
    /// Contents move to pinned host memory.
    Host {
        /// The limit of the pinned memory, in bytes.
        limit_bytes: u64,
        /// Memory of another device that contents move to first.
        neighbour: Option<SpillNeighbour>,
        /// A file that contents move to when the pinned memory is full.
        file: Option<SpillFile>,
    },
}

/// Memory of another device that contents may move to. It is several times as fast as host memory where a link joins the two devices. If
/// the other device is short of memory, the contents make way to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillNeighbour {
    /// The driver's number of the other device.
    pub ordinal: u32,
    /// The limit of the memory there, in bytes.
    pub limit_bytes: u64,
}

/// A file that contents may move to. It has no name in its directory, so that it is gone when the process ends, however that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillFile {
    /// An existing directory, on a local disk.
    pub directory: PathBuf,
    /// The largest size of the file, in bytes.
    pub limit_bytes: u64,
}

impl Spill {
    /// Contents move to at most `limit_bytes` bytes of pinned host memory.
    #[must_use]
    pub const fn to_host(limit_bytes: u64) -> Self {
        Self::Host { limit_bytes, neighbour: None, file: None }
    }

    /// Contents move to at most `limit_bytes` bytes of another device's memory first, and to the host only beyond that.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Spill};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().devices(2))?, 0)?;
    /// let spill = Spill::to_host(4 << 30).by_neighbour(1, 1 << 30);
    /// assert_eq!("host:4GiB+device1:1GiB".parse::<Spill>()?, spill);
    /// let pool = Pool::builder(&device).hard_limit("1GiB").spill(spill).build()?;
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn by_neighbour(mut self, ordinal: u32, limit_bytes: u64) -> Self {
        if let Self::Host { neighbour, .. } = &mut self {
            *neighbour = Some(SpillNeighbour { ordinal, limit_bytes });
        }
        self
    }

    /// Contents that the host memory has no room for move on to a file of at most `limit_bytes` bytes in `directory`, those first that are
    /// used last. The thread that needs the memory waits for the disk. Contents that do not change are written once.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Spill};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let spill = Spill::to_host(1 << 30).then_file("/tmp", 64 << 30);
    /// assert_eq!("host:1GiB+file:64GiB:/tmp".parse::<Spill>()?, spill);
    /// let pool = Pool::builder(&device).hard_limit("1GiB").spill(spill).build()?;
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn then_file(mut self, directory: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        if let Self::Host { file, .. } = &mut self {
            *file = Some(SpillFile { directory: directory.into(), limit_bytes });
        }
        self
    }
}

impl SpillNeighbour {
    /// The error for a neighbour that is the pool's own device.
    pub(crate) fn own_device(self) -> ConfigError {
        refused(&self, format!("where device {} is the pool's own", self.ordinal))
    }
}

impl SpillFile {
    /// The error for a directory in which no file can be made.
    pub(crate) fn refused(&self, error: &std::io::Error) -> ConfigError {
        refused(self, error.to_string())
    }
}

fn refused(value: &dyn fmt::Display, reason: String) -> ConfigError {
    ConfigError::bad_value("spill", &value.to_string(), reason, FORMS)
}

const FORMS: &str = "`off`, or `host:` with the bytes of host memory (host:32GiB), which `+device1:` with bytes of another device's memory \
    precedes and `+file:` with bytes and an existing directory follows (host:32GiB+device1:16GiB+file:200GiB:/scratch)";

impl FromStr for Spill {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let trimmed = text.trim();
        if ["off", "false", "0"].iter().any(|word| trimmed.eq_ignore_ascii_case(word)) {
            return Ok(Self::Off);
        }
        Self::parse(trimmed).ok_or_else(|| refused(&text, String::new()))
    }
}

impl Spill {
    /// The error for a limit of host memory that is too small for a pool.
    pub(crate) fn too_small(limit_bytes: u64, least_bytes: u64) -> ConfigError {
        refused(&Self::to_host(limit_bytes), format!("which is less than {}", Bytes(least_bytes)))
    }

    fn parse(text: &str) -> Option<Self> {
        let (mut place, mut rest) = next_place(text);
        let mut spill = Self::to_host(bytes_in(after(place, "host:")?)?);
        while let Some(text) = rest {
            // A path may contain anything, so it comes last.
            if let Some(file) = after(text, "file:") {
                let (bytes, directory) = file.split_once(':').filter(|(_, path)| !path.is_empty())?;
                return Some(spill.then_file(directory, bytes_in(bytes)?));
            }
            (place, rest) = next_place(text);
            let (ordinal, bytes) = after(place, "device")?.split_once(':')?;
            spill = spill.by_neighbour(ordinal.parse().ok()?, bytes_in(bytes)?);
        }
        Some(spill)
    }
}

fn next_place(text: &str) -> (&str, Option<&str>) {
    text.split_once('+').map_or((text, None), |(place, rest)| (place, Some(rest)))
}

/// The rest of a text that begins with a word, in upper or lower case.
fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(word.len())?;
    start.eq_ignore_ascii_case(word).then_some(rest)
}

fn bytes_in(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(Limit::Bytes(bytes)) if bytes > 0 => Some(bytes),
        _ => None,
    }
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Host { limit_bytes, neighbour, file } => {
                write!(f, "host:{limit_bytes}")?;
                if let Some(neighbour) = neighbour {
                    write!(f, "+{neighbour}")?;
                }
                file.iter().try_for_each(|file| write!(f, "+{file}"))
            }
        }
    }
}

impl fmt::Display for SpillNeighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device{}:{}", self.ordinal, self.limit_bytes)
    }
}

impl fmt::Display for SpillFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}:{}", self.limit_bytes, Shown::path(&self.directory))
    }
}
