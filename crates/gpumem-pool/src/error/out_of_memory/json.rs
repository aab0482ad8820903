//! The serialised form of [`OutOfMemory`]: its fields, and the texts that people read.

use super::{Advice, OutOfMemory, ProcessUsage};
use crate::config::seconds;
use core::time::Duration;
use serde::{Serialize, Serializer};

impl Serialize for OutOfMemory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Report<'a> {
            headline: String,
            advice: Advice,
            advice_text: String,
            #[serde(flatten, serialize_with = "OutOfMemory::serialize")]
            fields: &'a OutOfMemory,
        }
        let (headline, advice_text) = (self.headline(), self.advice_text());
        Report { headline, advice: self.advice(), advice_text, fields: self }.serialize(serializer)
    }
}

/// `ProcessUsage` belongs to a crate that does not serialise.
pub(super) fn processes<S: Serializer>(processes: &[ProcessUsage], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Process<'a> {
        id: Option<u32>,
        name: Option<&'a str>,
        in_use_bytes: Option<u64>,
    }
    serializer.collect_seq(processes.iter().map(|process| Process {
        id: process.id,
        name: process.name.as_deref(),
        in_use_bytes: process.in_use_bytes,
    }))
}

pub(super) fn optional_seconds<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => seconds(time, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Attempt, Growth, Holder, RefusedBy, UnfinishedStream};
    use gpumem_device::StreamId;
    use serde_json::{Value, json};

    fn report() -> OutOfMemory {
        let mut process = ProcessUsage::default();
        (process.id, process.in_use_bytes) = (Some(7), Some(512));
        OutOfMemory {
            requested_bytes: 2 << 30,
            pool: "training".into(),
            stream: Some(StreamId::from_u64(65_536)),
            refused_by: RefusedBy::HardLimit,
            limit_bytes: Some(4 << 30),
            in_use_bytes: 3 << 30,
            reserved_bytes: 3 << 30,
            device_free_bytes: 5 << 30,
            device_total_bytes: 8 << 30,
            processes: vec![process],
            attempts: vec![Attempt {
                name: "reserve more memory",
                gained_bytes: 0,
                took: Duration::from_micros(1500),
                failures: vec!["a holder: busy".into()],
            }],
            unfinished: vec![
                UnfinishedStream { stream: StreamId::from_u64(3), queued_ago: Some(Duration::from_secs(2)) },
                UnfinishedStream { stream: StreamId::from_u64(4), queued_ago: None },
            ],
            holders: vec![Holder { tag: "weights".into(), in_use_bytes: 3 << 30, block_count: 2 }],
            growth: Some(Growth {
                from_bytes: 1,
                to_bytes: 2,
                allocation_count: 40,
                kept_count: 10,
                tag: None,
                is_leak: true,
            }),
            ..OutOfMemory::default()
        }
    }

    #[test]
    fn a_report_has_its_fields_and_its_texts() {
        let (report, value) = (report(), serde_json::to_value(report()).unwrap());
        let text = report.to_string();
        let headline = value["headline"].as_str().unwrap();
        assert_eq!(text.lines().next(), Some(headline));
        assert!(text.contains(value["advice_text"].as_str().unwrap()), "{text}");
        assert_eq!(value["advice"], "find_the_leak");
        assert_eq!((&value["requested_bytes"], &value["pool"]), (&json!(2_u64 << 30), &json!("training")));
        assert_eq!((&value["refused_by"], &value["kind"]), (&json!("hard_limit"), &json!("device")));
        assert_eq!((&value["stream"], &value["tag"]), (&json!(65_536), &Value::Null));
        assert_eq!(value["processes"], json!([{ "id": 7, "name": null, "in_use_bytes": 512 }]));
        let attempt = json!({
            "name": "reserve more memory", "gained_bytes": 0, "took_seconds": 0.0015, "failures": ["a holder: busy"],
        });
        assert_eq!(value["attempts"], json!([attempt]));
        let unfinished = json!([
            { "stream": 3, "queued_ago_seconds": 2.0 },
            { "stream": 4, "queued_ago_seconds": null },
        ]);
        assert_eq!(value["unfinished"], unfinished);
        assert_eq!(
            value["holders"],
            json!([{ "tag": "weights", "in_use_bytes": 3_u64 << 30, "block_count": 2 }])
        );
        assert_eq!(value["growth"]["is_leak"], true);
        assert!(value.get("facts").is_none());
    }

    /// Dashboards find these names. A new field needs an entry here; a name that is gone breaks them.
    #[test]
    fn the_names_of_the_fields_are_stable() {
        let value = serde_json::to_value(report()).unwrap();
        let names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "added_bytes advice advice_text alignment asleep_bytes attempts block_count capture_bytes capture_stream counters \
                        device_free_bytes device_ordinal device_total_bytes driver_error fallbacks flight_record graph_bytes growable_bytes growth \
                        headline holders host_free_bytes in_use_bytes kind largest_free_bytes limit_bytes limit_name \
                        limit_others_bytes limit_pool limit_sharers other_libraries_bytes other_pools other_pools_bytes own_outside_bytes \
                        pending_bytes pool processes refused_by requested_bytes reserved_bytes rounding_bytes spilling stream tag \
                        unfinished unspilled_bytes_max";
        assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    }
}
