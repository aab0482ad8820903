//! The first line of a trace: what it is, and what others reserved for the very same run.

use super::Peaks;
use super::error::Problem;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What the first line of a trace says, besides the version of the format, which is all that is required of it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Header {
    /// What the trace is called; its file's name, if it does not say.
    #[serde(default)]
    pub name: String,
    /// The program that was recorded.
    #[serde(default)]
    pub what: String,
    /// How long the recorded steps took.
    pub run_seconds: Option<f64>,
    events: Option<u64>,
    peak_live_bytes: Option<u64>,
    peak_live_bytes_incl_deferred: Option<u64>,
    #[serde(default)]
    peak_reserved_bytes: BTreeMap<String, u64>,
}

/// Another allocator, and what it reserved at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it is called.
    pub name: String,
    /// The most that it held from the device.
    pub peak_reserved_bytes: u64,
}

impl Header {
    /// For a trace that is made up.
    pub(super) fn made_up(name: &str, what: &str) -> Self {
        Self { name: name.into(), what: what.into(), ..Self::default() }
    }

    /// For one that `GPUMEM_TRACE` recorded.
    pub(super) fn recorded(name: &str, run_seconds: f64) -> Self {
        let what = "recorded with GPUMEM_TRACE".into();
        Self { name: name.into(), what, run_seconds: Some(run_seconds), ..Self::default() }
    }

    pub(super) fn parse(line: &[u8], file_name: &str) -> Result<Self, Problem> {
        let json = line.strip_prefix(b"#").ok_or(Problem::NoHeader)?;
        // The version first: another one may look different in every other way.
        let version: Version = serde_json::from_slice(json).map_err(Problem::Header)?;
        if version.format != 1 {
            return Err(Problem::Format(version.format));
        }
        let mut header: Self = serde_json::from_slice(json).map_err(Problem::Header)?;
        if header.name.is_empty() {
            header.name = file_name.into();
        }
        Ok(header)
    }

    /// The memory that the peers reserved for this run.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.peak_reserved_bytes.iter().map(|(key, peak_reserved_bytes)| Peer {
            name: PEERS.iter().find(|(known, _)| known == key).map_or(key.as_str(), |(_, name)| name).into(),
            peak_reserved_bytes: *peak_reserved_bytes,
        })
    }

    pub(super) fn disagreements(&self, event_count: u64, peaks: Peaks) -> Vec<String> {
        let stated = [
            ("events", self.events, event_count),
            ("peak_live_bytes", self.peak_live_bytes, peaks.live_bytes),
            (
                "peak_live_bytes_incl_deferred",
                self.peak_live_bytes_incl_deferred,
                peaks.live_incl_deferred_bytes,
            ),
        ];
        let differ = stated.into_iter().filter_map(|(key, stated, counted)| {
            let stated = stated.filter(|stated| *stated != counted)?;
            Some(format!("the header says {key} {stated}, the events make it {counted}"))
        });
        differ.collect()
    }
}

#[derive(Deserialize)]
struct Version {
    format: u64,
}

const PEERS: [(&str, &str); 3] = [
    ("pytorch_native", "PyTorch"),
    ("pytorch_expandable_segments", "expandable"),
    ("pytorch_cuda_malloc_async", "cudaMallocAsync"),
];
