//! The first line of a trace: a description of the program, and the memory that other allocators reserved for the same run.

use super::event::Peaks;
use crate::error::Problem;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The first line of a trace. Only the version of the format is required.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Header {
    /// The name of the trace; the name of the file, if the header has none.
    #[serde(default)]
    pub name: String,
    /// The program that was recorded.
    #[serde(default)]
    pub what: String,
    /// The duration of the recorded steps.
    pub run_seconds: Option<f64>,
    events: Option<u64>,
    peak_live_bytes: Option<u64>,
    peak_live_bytes_incl_deferred: Option<u64>,
    #[serde(default)]
    peak_reserved_bytes: BTreeMap<String, u64>,
}

/// Another allocator, and its peak of reserved memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The peak of the memory that it held from the device.
    pub peak_reserved_bytes: u64,
}

impl Header {
    /// The header of a trace recorded with `GPUMEM_TRACE`.
    pub(crate) fn recorded(name: &str, run_seconds: f64, peak_reserved_bytes: Option<u64>) -> Self {
        let what = "recorded with GPUMEM_TRACE".into();
        Self::of_program(name, what, Some(run_seconds), peak_reserved_bytes.map(|bytes| ("recorded", bytes)))
    }

    /// The header of a trace of a program, and the memory that an allocator reserved for it.
    pub(crate) fn of_program(
        name: &str,
        what: String,
        run_seconds: Option<f64>,
        reserved: Option<(&str, u64)>,
    ) -> Self {
        let peak_reserved_bytes = reserved.into_iter().map(|(name, bytes)| (name.into(), bytes)).collect();
        Self { name: name.into(), what, run_seconds, peak_reserved_bytes, ..Self::default() }
    }

    pub(crate) fn parse(line: &[u8], file_name: &str) -> Result<Self, Problem> {
        let json = line.strip_prefix(b"#").ok_or(Problem::NoHeader)?;
        // The version is parsed first: all other fields may differ in another version.
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

    /// The memory that other allocators reserved for this run.
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
