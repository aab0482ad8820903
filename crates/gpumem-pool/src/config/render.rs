//! Values of options in text form: the inverse of the parsers of the same names.

use super::Limit;
use core::fmt;
use core::time::Duration;

pub(super) fn named(value: &impl fmt::Display) -> String {
    value.to_string()
}

pub(super) fn limit(value: &Limit) -> String {
    value.to_string()
}

pub(super) fn number(value: &u32) -> String {
    value.to_string()
}

pub(super) fn boolean(value: &bool) -> String {
    value.to_string()
}

pub(super) fn share(value: &f64) -> String {
    value.to_string()
}

pub(super) fn byte_count(value: &u64) -> String {
    value.to_string()
}

pub(super) fn handle_pages(value: &u32) -> String {
    format!("{}MiB", 2 * value)
}

pub(super) fn split_bytes(value: &u64) -> String {
    (value >> 20).to_string()
}

pub(super) fn milliseconds(value: &Duration) -> String {
    value.as_millis().to_string()
}

pub(super) fn microseconds(value: &Duration) -> String {
    value.as_micros().to_string()
}

pub(super) fn divisions(value: &u32) -> String {
    value.to_string()
}

#[cfg(test)]
mod tests {
    use crate::config::Options;

    /// The text of parsed options parses to the same options.
    #[test]
    fn options_are_read_as_they_were_written() {
        for text in [
            "",
            "kind:unified,backend:native,profile:tight,hard_limit:50%,soft_limit:1536MiB",
            "hard_limit:10001,garbage_collection_threshold:0.75,trim_when_idle_ms:5",
            "peers:all",
            "peers:[0,1]",
            "flight_recorder:a.trace,spill:host:1073741824,oversubscribe:true,exportable:true",
            "spill:off",
            "flight_recorder:off,oversubscribe:false,expandable_segments:false,wait_deadline_ms:100,growth_slack:7,handle_bytes_max:4MiB",
            "roundup_power2_divisions:32,max_split_size_mb:64,magazine_bytes_min:2097152,poll_budget_us:15",
            "inserted_waits:true,roundup_power2_divisions:0",
        ] {
            let options = Options::parse(text).unwrap();
            assert_eq!(options.text(), text);
        }
    }
}
