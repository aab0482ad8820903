//! Counters of a pool's memory, by tag and by stream, and the [`Status`] that sums them up.

#[cfg(feature = "prometheus")]
mod prometheus;
pub(crate) mod status;
#[allow(unsafe_code)]
pub(crate) mod tags;
pub(crate) mod usage_counters;
#[cfg(feature = "prometheus")]
pub use prometheus::prometheus_text;
pub use status::{Status, StreamUsage, TagUsage};
pub(crate) use tags::{Name, Names, Share, TagSum, Tags};
pub(crate) use usage_counters::Usage;
