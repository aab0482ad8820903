//! [`FlightRecorder`]: selects whether a pool keeps its last events in memory, and the file for them.

use crate::config::ConfigError;
use core::fmt;
use core::str::FromStr;
use gpumem_sys::text::Shown;
use std::path::PathBuf;

/// Selects whether the last events of a pool are kept in memory and written to a file when a request is refused.
///
/// The report of the refusal names the file ([`OutOfMemory::flight_record`](crate::OutOfMemory::flight_record)), which
/// [`trace::Recording`](crate::trace::Recording) and `gpumem replay` read. It has the last 4095 events of each thread, for up to 64
/// threads (further threads share one space), the settings of the pools, and the report. A later refusal replaces the file; a file of an
/// earlier program is kept as `FILE.1`, up to `FILE.3`.
///
/// A recorder needs 160 KiB of host memory for each thread, and like an adaptor it makes each allocation and free take the
/// slow path.
///
/// ```
/// use gpumem_pool::trace::{Recording, What};
/// use gpumem_pool::{Device, FlightRecorder, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// # let path = std::env::temp_dir().join(format!("gpumem-doc-flight-{}.trace", std::process::id()));
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let builder = Pool::builder(&device).hard_limit(64 << 20);
/// let pool = builder.flight_recorder(FlightRecorder::File(path)).build()?;
/// let stream = Stream::new(&device)?;
/// let held = pool.alloc(48 << 20, &stream)?;
/// let error = pool.alloc(32 << 20, &stream).unwrap_err();
///
/// let Some(Ok(file)) = &error.out_of_memory().unwrap().flight_record else { panic!("{error}") };
/// let recording = Recording::read(file)?;
/// assert!(matches!(recording.events[0].what, What::Alloc { size_bytes: 0x300_0000, .. }));
/// println!("{}", recording.reports[0].text);
/// # std::fs::remove_file(file)?;
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlightRecorder {
    /// No events are kept.
    #[default]
    Off,
    /// The file is `gpumem-PID.trace` in the folder for temporary files ([`std::env::temp_dir`]).
    On,
    /// The path of the file. `%p` in its name is the process id. In text, it has a dot or a slash.
    File(PathBuf),
}

const FORMS: &str = "`off`, `on`, or the path of a file (flight.trace)";

impl FromStr for FlightRecorder {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Ok(match text.trim().to_lowercase().as_str() {
            "off" | "false" | "0" => Self::Off,
            "on" | "true" | "1" => Self::On,
            // A single word is a mistyped value, not a file.
            path if path.contains(['.', '/', '\\']) => Self::File(text.trim().into()),
            _ => return Err(ConfigError::bad_value("flight_recorder", text, String::new(), FORMS)),
        })
    }
}

impl fmt::Display for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::On => f.pad("on"),
            Self::File(path) => Shown::path(path).fmt(f),
        }
    }
}
