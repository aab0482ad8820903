//! The counters of every pool of a device in the text format of Prometheus. A program returns this text for `GET /metrics`.
//!
//! `cargo run -p gpumem-pool --example prometheus`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_pool::{Device, Pool, PoolError, Status, Stream};
use std::error::Error;
use std::fmt::Write;

/// The text for these pools.
pub(crate) fn metrics(pools: &[Pool]) -> Result<String, PoolError> {
    let statuses = pools.iter().map(Pool::status).collect::<Result<Vec<_>, _>>()?;
    let mut text = String::new();
    // A name has no line breaks.
    let pool = |status: &Status| status.name.replace('\\', "\\\\").replace('"', "\\\"");
    let mut metric = |name: &str, kind: &str, value: fn(&Status) -> f64| {
        let _ = writeln!(text, "# TYPE gpumem_{name} {kind}");
        for status in &statuses {
            let _ = writeln!(text, "gpumem_{name}{{pool=\"{}\"}} {}", pool(status), value(status));
        }
    };
    metric("in_use_bytes", "gauge", |status| status.in_use_bytes as f64);
    metric("reserved_bytes", "gauge", |status| status.reserved_bytes as f64);
    metric("refusals_total", "counter", |status| status.counters.refusal_count as f64);
    metric("slow_allocations_total", "counter", |status| status.counters.slow_allocation_count as f64);
    metric("trimmed_bytes_total", "counter", |status| status.counters.trimmed_bytes as f64);
    metric("driver_calls_total", "counter", |status| status.counters.driver_call_count as f64);
    metric("driver_seconds_total", "counter", |status| status.counters.driver_call_time.as_secs_f64());
    metric("inserted_waits_total", "counter", |status| status.counters.inserted_wait_count as f64);
    metric("host_waits_total", "counter", |status| status.counters.host_wait_count as f64);
    metric("host_wait_seconds_total", "counter", |status| status.counters.host_wait_time.as_secs_f64());
    // What each step to make room has given.
    text += "# TYPE gpumem_gained_bytes_total counter\n";
    for status in &statuses {
        for step in &status.counters.steps {
            let labels = format!("pool=\"{}\",step=\"{}\"", pool(status), step.name);
            let _ = writeln!(text, "gpumem_gained_bytes_total{{{labels}}} {}", step.gained_bytes);
        }
    }
    Ok(text)
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
