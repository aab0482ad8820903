//! The configuration of a pool: values given by a program or its environment, and their text forms. Pure.

pub(crate) mod alignment;
pub(crate) mod backend_kind;
pub(crate) mod bytes;
pub mod conf;
pub(crate) mod kind;
pub(crate) mod limit;
pub(crate) mod pool_id;
pub(crate) mod size_rounding;
pub(crate) mod text;
pub(crate) mod tuning;

pub(crate) use alignment::ALIGNMENT_MIN;
pub use backend_kind::BackendKind;
pub(crate) use backend_kind::HandleUse;
pub use bytes::Bytes;
pub(crate) use conf::ConfigError;
pub use kind::MemoryKind;
pub(crate) use limit::FORMS;
pub use limit::Limit;
pub(crate) use pool_id::PoolId;
pub use size_rounding::{SizeRounding, SizeRoundingError};
pub use tuning::{Profile, Tuning};

use core::time::Duration;

/// The configuration of a pool, immutable once the pool is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) kind: MemoryKind,
    /// `None` selects the first backend that is built in and works.
    pub(crate) backend: Option<BackendKind>,
    pub(crate) hard_limit: Option<Limit>,
    pub(crate) soft_limit: Option<Limit>,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) tuning: Tuning,
    pub(crate) handle_use: HandleUse,
    pub(crate) plain_segments: bool,
    /// Whether memory that can be remapped was requested explicitly.
    pub(crate) expandable_segments: bool,
    pub(crate) oversubscribes: bool,
    pub(crate) exact_peaks: bool,
    /// Above this fraction of the memory that may be reserved, idle memory is released before the pool grows.
    pub(crate) collect_above: Option<f64>,
    /// The names of the options that were given, among those that some backends ignore.
    pub(crate) asked: Vec<&'static str>,
}
