//! The configuration of a pool: values given by a program or its environment, and their text forms. Pure.

pub(crate) mod alignment;
pub(crate) mod backend_kind;
mod error;
mod flight_recorder;
pub(crate) mod ignored;
mod interface;
pub(crate) mod kind;
pub(crate) mod limit;
pub(crate) mod options;
pub(crate) mod parse;
mod peers;
pub(crate) mod pool_id;
mod render;
mod spill;
pub(crate) mod text;
pub(crate) mod tuning;
pub(crate) mod values;

pub(crate) use alignment::ALIGNMENT_MIN;
pub use backend_kind::BackendKind;
pub(crate) use backend_kind::HandleUse;
pub use error::ConfigError;
pub use flight_recorder::FlightRecorder;
pub use ignored::IgnoredOption;
pub use interface::Interface;
pub use kind::MemoryKind;
pub use limit::{IntoLimit, Limit};
pub(crate) use options::Options;
pub use options::{VARIABLES, conf, tuning_options};
pub(crate) use peers::PeerOption;
pub use pool_id::PoolId;
pub(crate) use pool_id::PoolName;
pub use spill::{Spill, SpillFile, SpillNeighbour};
#[cfg(feature = "serde")]
pub(crate) use text::seconds;
pub use tuning::Profile;
pub(crate) use tuning::Tuning;

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
    /// `Some(false)` selects plain segments; `None` selects them where memory cannot be mapped.
    pub(crate) expandable_segments: Option<bool>,
    pub(crate) oversubscribes: bool,
    pub(crate) peers: PeerOption,
    pub(crate) flight_recorder: FlightRecorder,
    pub(crate) spill: Spill,
    /// Smaller arrays stay; `None` for the default.
    pub(crate) spill_bytes_min: Option<u64>,
    /// Above this fraction of the memory that may be reserved, idle memory is released before the pool grows.
    pub(crate) collect_above: Option<f64>,
    pub(crate) interface: Interface,
    /// Other libraries copy the memory between devices by its address alone (`cudaMemcpyAsync`).
    #[cfg_attr(
        not(feature = "backend-caching"),
        allow(dead_code, reason = "the others have no plain segments")
    )]
    pub(crate) is_copied_by_address: bool,
    pub(crate) given: Options,
}

impl Config {
    /// The configuration with the given options, and the defaults of all others.
    pub(crate) fn new(given: &Options) -> Result<Self, ConfigError> {
        let mut config = Self { given: given.clone(), ..Self::default() };
        given.clone().apply(&mut config);
        for (limit, limit_option) in [given.hard_limit, given.soft_limit].into_iter().flatten() {
            // Whether a limit is valid does not depend on the size of the device.
            limit.check_for(config.kind).map_err(|error| match error {
                ConfigError::ShareOfHost { limit, .. } => {
                    let kind_option = given.kind.map(|(_, given_as)| given_as);
                    ConfigError::ShareOfHost { limit, limit_option: Some(limit_option), kind_option }
                }
                other => other,
            })?;
        }
        // Memory in plain segments cannot be exported.
        if let (Some((true, key)), Some((false, other))) = (given.exportable, given.expandable_segments) {
            return Err(ConfigError::Twice { key, other });
        }
        Ok(config)
    }
}
