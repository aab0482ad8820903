//! The counters of pools in the text format of Prometheus. A program passes the pools that it has made, and returns this text for
//! `GET /metrics`.
//!
//! The export is about ten lines, [`metrics`], and one line for each figure, [`FIGURES`]. Pools may have one name, so each series has the
//! number of its pool too.
//!
//! `cargo run -p gpumem-pool --example prometheus`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_pool::{Device, Pool, PoolError, Status, Stream};
use std::collections::BTreeMap;
use std::error::Error;

/// Name, type and value of a figure.
type Figure = (&'static str, &'static str, fn(&Status) -> f64);

const FIGURES: [Figure; 10] = [
    ("in_use_bytes", "gauge", |status| status.in_use_bytes as f64),
    ("reserved_bytes", "gauge", |status| status.reserved_bytes as f64),
    ("refusals_total", "counter", |status| status.counters.refusal_count as f64),
    ("slow_allocations_total", "counter", |status| status.counters.slow_allocation_count as f64),
    ("trimmed_bytes_total", "counter", |status| status.counters.trimmed_bytes as f64),
    ("driver_calls_total", "counter", |status| status.counters.driver_call_count as f64),
    ("driver_seconds_total", "counter", |status| status.counters.driver_call_time.as_secs_f64()),
    ("inserted_waits_total", "counter", |status| status.counters.inserted_wait_count as f64),
    ("host_waits_total", "counter", |status| status.counters.host_wait_count as f64),
    ("host_wait_seconds_total", "counter", |status| status.counters.host_wait_time.as_secs_f64()),
];

/// The text for these pools.
pub(crate) fn metrics(pools: &[Pool]) -> Result<String, PoolError> {
    let mut text = BTreeMap::new();
    let mut add = |name, kind, labels: String, value: f64| {
        let lines: &mut String = text.entry(name).or_insert_with(|| format!("# TYPE gpumem_{name} {kind}\n"));
        *lines += &format!("gpumem_{name}{{{labels}}} {value}\n");
    };
    for pool in pools {
        let (status, id) = (pool.status()?, pool.id().to_string());
        // A name has no line breaks.
        let name = status.name.replace('\\', "\\\\").replace('"', "\\\"");
        let number = id.trim_start_matches("pool ");
        let pool = format!("device=\"{}\",pool=\"{name}\",id=\"{number}\"", pool.device().ordinal());
        FIGURES.iter().for_each(|(name, kind, value)| add(*name, *kind, pool.clone(), value(&status)));
        for step in &status.counters.steps {
            let labels = format!("{pool},step=\"{}\"", step.name);
            add("gained_bytes_total", "counter", labels.clone(), step.gained_bytes as f64);
            add("served_by_step_total", "counter", labels.clone(), step.served_count as f64);
            add("step_seconds_total", "counter", labels, step.took.as_secs_f64());
        }
    }
    Ok(text.into_values().collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::new(&gpumem_sim::driver_or_sim()?, 0)?;
    let stream = Stream::new(&device)?;
    let pools = [
        Pool::builder(&device).name("training").hard_limit(1 << 30).build()?,
        Pool::builder(&device).name("serving").build()?,
    ];
    let _held = pools[0].alloc(600 << 20, &stream)?;
    if let Err(error) = pools[0].alloc(600 << 20, &stream) {
        println!("# {}", error.to_string().lines().next().unwrap_or_default());
    }
    print!("{}", metrics(&pools)?);
    Ok(())
}
