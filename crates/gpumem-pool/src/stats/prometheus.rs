//! [`prometheus_text`]: the figures of pools in the text format of Prometheus.

use super::Status;
use core::fmt::Write;
use std::collections::BTreeSet;

/// Returns the figures of pools in the text format of Prometheus (version 0.0.4), for the answer to `GET /metrics`. `statuses` are those of
/// all pools of the process, each once: a metric has one `HELP` and one `TYPE`, before the lines of all pools.
///
/// Each line has the labels `device`, the ordinal, `pool`, the name, and `id`, the number of the pool, because two pools may have one name.
/// Limits that are not set have no line.
///
/// ```
/// use gpumem_pool::{Device, Pool, prometheus_text};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).name("serving").hard_limit(64 << 20).build()?;
/// let text = prometheus_text(&[pool.status()?]);
/// assert!(text.contains("# TYPE gpumem_hard_limit_bytes gauge"));
/// assert!(text.lines().any(|line| line.starts_with("gpumem_hard_limit_bytes{") && line.ends_with("} 67108864")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "prometheus")))]
#[must_use]
pub fn prometheus_text(statuses: &[Status]) -> String {
    let mut text = Text(String::new());
    let labels: Vec<String> = statuses.iter().map(labels).collect();
    let labelled = || statuses.iter().zip(&labels);
    for Metric { name, kind, help, value } in METRICS {
        text.family(name, kind, help);
        for (status, labels) in labelled() {
            if let Some(value) = value(status) {
                text.line(name, labels, value);
            }
        }
    }
    for StepMetric { name, help, value } in STEP_METRICS {
        text.family(name, COUNTER, help);
        for (status, labels) in labelled() {
            for step in &status.counters.steps {
                text.line(name, &format!("{labels},step=\"{}\"", escaped(step.name)), value(step));
            }
        }
    }
    for TagMetric { name, kind, help, value } in TAG_METRICS {
        text.family(name, kind, help);
        for (status, labels) in labelled() {
            for tag in &status.tags {
                text.line(name, &format!("{labels},tag=\"{}\"", escaped(&tag.tag)), value(tag));
            }
        }
    }
    for (name, help, value) in DEVICE_METRICS {
        text.family(name, GAUGE, help);
        let mut known = BTreeSet::new();
        for status in statuses.iter().filter(|status| known.insert(status.device_ordinal)) {
            let labels =
                format!("device=\"{}\",name=\"{}\"", status.device_ordinal, escaped(&status.device_name));
            text.line(name, &labels, value(status));
        }
    }
    text.0
}

struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Status) -> Option<f64>,
}

struct StepMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&crate::figures::StepCounters) -> f64,
}

struct TagMetric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&super::TagUsage) -> f64,
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _written = writeln!(self.0, "# HELP gpumem_{name} {help}\n# TYPE gpumem_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _written = writeln!(self.0, "gpumem_{name}{{{labels}}} {value}");
    }
}

fn labels(status: &Status) -> String {
    let (ordinal, name, id) = (status.device_ordinal, escaped(&status.name), status.id.number());
    format!("device=\"{ordinal}\",pool=\"{name}\",id=\"{id}\"")
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Status) -> Option<f64>) -> Metric {
    Metric { name, kind: GAUGE, help, value }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Status) -> Option<f64>) -> Metric {
    Metric { name, kind: COUNTER, help, value }
}

const METRICS: [Metric; 29] = [
    gauge("in_use_bytes", "Bytes in live blocks.", |status| Some(status.in_use_bytes as f64)),
    gauge("in_use_peak_bytes", "The peak of bytes in live blocks.", |status| {
        Some(status.in_use_peak_bytes as f64)
    }),
    gauge("reserved_bytes", "Bytes held from the device.", |status| Some(status.reserved_bytes as f64)),
    gauge("reserved_peak_bytes", "The peak of bytes held from the device.", |status| {
        Some(status.reserved_peak_bytes as f64)
    }),
    gauge("cached_bytes", "Bytes cached for reuse.", |status| Some(status.cached_bytes as f64)),
    gauge("other_libraries_bytes", "Bytes that other libraries hold in the pool.", |status| {
        Some(status.other_libraries_bytes as f64)
    }),
    gauge("asleep_bytes", "Bytes that sleep and are not on the device.", |status| {
        Some(status.asleep_bytes as f64)
    }),
    gauge("hard_limit_bytes", "The bytes that the pool never exceeds.", |status| {
        status.hard_limit_bytes.map(|bytes| bytes as f64)
    }),
    gauge("soft_limit_bytes", "The bytes above which cached memory is released.", |status| {
        status.soft_limit_bytes.map(|bytes| bytes as f64)
    }),
    gauge("blocks", "The number of live blocks.", |status| Some(status.block_count as f64)),
    gauge("record_bytes", "Host memory of the records of the heap.", |status| {
        Some(status.record_bytes as f64)
    }),
    gauge("spilled_bytes", "Bytes of arrays that are on the host alone.", |status| {
        Some(status.spilled_bytes as f64)
    }),
    gauge("spilled_arrays", "The number of arrays that are on the host alone.", |status| {
        Some(status.spilled_array_count as f64)
    }),
    gauge("spilled_host_bytes", "Pinned host memory for the contents of arrays.", |status| {
        Some(status.spilled_host_bytes as f64)
    }),
    gauge("spilled_neighbour_bytes", "Bytes of arrays in the memory of another device.", |status| {
        Some(status.spilled_neighbour_bytes as f64)
    }),
    gauge("spilled_file_bytes", "Bytes of arrays in a file.", |status| {
        Some(status.spilled_file_bytes as f64)
    }),
    counter("allocations_total", "Allocations.", |status| Some(status.allocation_count as f64)),
    counter("refusals_total", "Requests that were refused because memory or a limit ran out.", |status| {
        Some(status.counters.refusal_count as f64)
    }),
    counter("slow_allocations_total", "Allocations that no cache of a thread served.", |status| {
        Some(status.counters.slow_allocation_count as f64)
    }),
    counter("trimmed_bytes_total", "Bytes returned to the driver.", |status| {
        Some(status.counters.trimmed_bytes as f64)
    }),
    counter("driver_calls_total", "Driver calls for memory.", |status| {
        Some(status.counters.driver_call_count as f64)
    }),
    counter("driver_seconds_total", "The time in driver calls for memory.", |status| {
        Some(status.counters.driver_call_time.as_secs_f64())
    }),
    counter("inserted_waits_total", "Waits that the pool has inserted into streams.", |status| {
        Some(status.counters.inserted_wait_count as f64)
    }),
    counter("host_waits_total", "Waits of the host for the device.", |status| {
        Some(status.counters.host_wait_count as f64)
    }),
    counter("host_wait_seconds_total", "The time in waits of the host for the device.", |status| {
        Some(status.counters.host_wait_time.as_secs_f64())
    }),
    counter("spills_total", "Arrays moved to the host.", |status| Some(status.counters.spill_count as f64)),
    counter("spilled_down_bytes_total", "Bytes copied to the host to make room.", |status| {
        Some(status.counters.spilled_down_bytes as f64)
    }),
    counter("spilled_up_bytes_total", "Bytes copied back from the host.", |status| {
        Some(status.counters.spilled_up_bytes as f64)
    }),
    counter("spill_wait_seconds_total", "The time that streams waited for such copies.", |status| {
        Some(status.counters.spill_wait_time.as_secs_f64())
    }),
];

const STEP_METRICS: [StepMetric; 3] = [
    StepMetric {
        name: "step_gained_bytes_total",
        help: "Bytes that a step to make room has gained.",
        value: |step| step.gained_bytes as f64,
    },
    StepMetric {
        name: "step_served_total",
        help: "Requests that a step to make room has served.",
        value: |step| step.served_count as f64,
    },
    StepMetric {
        name: "step_seconds_total",
        help: "The time in a step to make room.",
        value: |step| step.took.as_secs_f64(),
    },
];

const TAG_METRICS: [TagMetric; 4] = [
    TagMetric {
        name: "tag_in_use_bytes",
        kind: GAUGE,
        help: "Bytes in live blocks of a tag.",
        value: |tag| tag.in_use_bytes as f64,
    },
    TagMetric {
        name: "tag_peak_bytes",
        kind: GAUGE,
        help: "The peak of bytes in live blocks of a tag.",
        value: |tag| tag.peak_bytes as f64,
    },
    TagMetric {
        name: "tag_blocks",
        kind: GAUGE,
        help: "The number of live blocks of a tag.",
        value: |tag| tag.block_count as f64,
    },
    TagMetric {
        name: "tag_allocations_total",
        kind: COUNTER,
        help: "Allocations of a tag.",
        value: |tag| tag.allocation_count as f64,
    },
];

type DeviceMetric = (&'static str, &'static str, fn(&Status) -> f64);

const DEVICE_METRICS: [DeviceMetric; 2] = [
    ("device_total_bytes", "The memory of the device.", |status| status.device_total_bytes as f64),
    ("device_free_bytes", "The free memory of the device, as the driver states it.", |status| {
        status.device_total_bytes.saturating_sub(status.device_used_bytes) as f64
    }),
];

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";
