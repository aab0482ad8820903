//! A row: one figure that a bench prints when it is asked with `--rows`, as tab-separated fields of a line.
//!
//! ```text
//! row   BENCH   VALUE   UNIT            a figure of ours
//! row   BENCH   VALUE   UNIT   PEER     a peer's, measured by the same program
//! ```
//!
//! `BENCH` is `AREA/WORKLOAD/…`, for the pool `pool/WORKLOAD/THREADS` with the names of workloads that RMM's bench uses;
//! `WORKLOAD@VARIANT` is this work in another setting, which is compared with the figures of `WORKLOAD`.

use crate::runs::Figure;
use anyhow::{Context, Result, ensure};

/// Parses the row in a line. Returns `None` if the line is not a row.
pub(crate) fn parse(line: &str) -> Result<Option<Figure>> {
    let mut fields = line.split('\t');
    if fields.next() != Some("row") {
        return Ok(None);
    }
    let mut field = |what| fields.next().with_context(|| format!("{line:?} has no {what}"));
    let (bench, value, unit) = (field("name")?.to_string(), field("value")?, field("unit")?.to_string());
    let value = number(value).with_context(|| format!("{line:?} has no number"))?;
    ensure!(is_known(&unit), "{line:?}: the unit is none of {} {}", LESS.join(" "), MORE.join(" "));
    let peer = fields.next().map(str::to_string);
    ensure!(fields.next().is_none(), "{line:?} has too many fields");
    Ok(Some(Figure { bench, value, unit, peer }))
}

/// The name that selects the peers' figures: without the variant.
pub(crate) fn subject(row: &Figure) -> String {
    let parts = row.bench.split('/').map(|part| part.split_once('@').map_or(part, |(part, _)| part));
    parts.collect::<Vec<_>>().join("/")
}

/// Parses a finite figure.
pub(crate) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|value: &f64| value.is_finite())
}

/// Returns whether the first figure is better than the second.
pub(crate) fn is_better(one: f64, other: f64, unit: &str) -> bool {
    if MORE.contains(&unit) { one > other } else { one < other }
}

/// The factor by which the first figure is better; `None` if the ratio is meaningless.
pub(crate) fn times_better(ours: f64, peers: f64, unit: &str) -> Option<f64> {
    let ratio = if MORE.contains(&unit) { ours / peers } else { peers / ours };
    Some(ratio).filter(|ratio| ratio.is_finite())
}

fn is_known(unit: &str) -> bool {
    LESS.contains(&unit) || MORE.contains(&unit)
}

/// Units in which less is better, and units in which more is better.
const LESS: [&str; 7] = ["ns", "us", "ms", "s", "ratio", "%", "calls"];
const MORE: [&str; 2] = ["GB/s", "Mop/s"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_from_other_lines() {
        let row = parse("row\tpool/churn@fast/8\t118.5\tns").unwrap().unwrap();
        assert_eq!((row.bench.as_str(), row.value, row.peer.as_deref()), ("pool/churn@fast/8", 118.5, None));
        assert_eq!(subject(&row), "pool/churn/8");
        let peer = parse("row\tpool/pair_1MiB/1\t432\tns\tcuMemAllocAsync").unwrap().unwrap();
        assert_eq!(peer.peer.as_deref(), Some("cuMemAllocAsync"));
        assert_eq!(parse("device 0").unwrap(), None);
        for broken in
            ["row", "row\tx\t1", "row\tx\tfast\tns", "row\tx\tNaN\tns", "row\tx\t1\tm", "row\tx\t1\tns\ta\tb"]
        {
            assert!(parse(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn better_is_less_time_or_more_throughput() {
        assert_eq!(times_better(10.0, 300.0, "ns"), Some(30.0));
        assert_eq!(times_better(50.0, 10.0, "GB/s"), Some(5.0));
        assert_eq!(times_better(0.0, 10.0, "ns"), None);
    }
}
