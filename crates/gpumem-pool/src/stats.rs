//! Counters of what a pool hands out, by tag and by stream, and the [`Status`] that they add up to.

pub(crate) mod status;
#[allow(unsafe_code)]
pub(crate) mod tags;
pub(crate) mod usage_counters;
pub use status::{Status, StreamUsage, TagUsage};
pub(crate) use tags::{Names, TagSum, Tags};
pub(crate) use usage_counters::UsageCounters;
