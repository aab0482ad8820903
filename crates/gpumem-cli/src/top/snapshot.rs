//! The answers of processes as rows of tables.

use crate::output::{BAD, HEADING, NOTE, styled};
use crate::table;
use gpumem_trace::pool::Bytes;
use gpumem_trace::pool::sys::text::Shown;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One process at one moment.
pub(super) struct Process {
    pub(super) socket: PathBuf,
    pub(super) at: Instant,
    /// Its answer, or an object with `error`.
    pub(super) value: Value,
}

/// One pool at one moment.
#[derive(Clone, Copy)]
pub(super) struct PoolView<'a>(pub(super) &'a Value);

impl Process {
    pub(super) fn new(socket: PathBuf, value: Value) -> Self {
        Self { socket, at: Instant::now(), value }
    }

    pub(super) fn silent(socket: PathBuf, problem: &str) -> Self {
        let value = json!({ "socket": socket, "error": problem, "pools": [] });
        Self::new(socket, value)
    }

    pub(super) fn is_silent(&self) -> bool {
        self.problem().is_some()
    }

    pub(super) fn problem(&self) -> Option<String> {
        self.value["error"].as_str().map(|problem| Shown::sentence(problem).to_string())
    }

    pub(super) fn pid(&self) -> Option<u64> {
        self.value["pid"].as_u64()
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = PoolView<'_>> {
        self.value["pools"].as_array().into_iter().flatten().map(PoolView)
    }

    pub(super) fn recording(&self) -> Option<String> {
        self.value["recording"].as_str().map(|path| Shown::path(Path::new(path)).to_string())
    }

    /// A line about the process.
    pub(super) fn title(&self) -> String {
        match (self.pid(), self.problem()) {
            (_, Some(problem)) => format!("{}: {problem}", Shown::path(&self.socket)),
            (pid, None) => {
                let program = Shown::name(self.value["program"].as_str().unwrap_or("?")).to_string();
                let up = time(self.value["uptime_seconds"].as_f64().unwrap_or(0.0));
                let recording = self.recording().map(|path| format!(", recording into {path}"));
                format!("{program} ({}), up {up}{}", pid.unwrap_or(0), recording.unwrap_or_default())
            }
        }
    }
}

impl<'a> PoolView<'a> {
    pub(super) fn number(self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap_or(0)
    }

    pub(super) fn id(self) -> u64 {
        self.number("id")
    }

    pub(super) fn name(self) -> String {
        Shown::name(self.0["name"].as_str().unwrap_or("?")).to_string()
    }

    pub(super) fn tags(self) -> impl Iterator<Item = &'a Value> {
        self.0["tags"].as_array().into_iter().flatten()
    }

    /// The bytes in use, those of other libraries included.
    pub(super) fn in_use_bytes(self) -> u64 {
        self.number("in_use_bytes").saturating_add(self.number("other_libraries_bytes"))
    }

    pub(super) fn limit(self) -> Option<u64> {
        self.0["hard_limit_bytes"].as_u64()
    }

    /// The cells of its row. `before` is the same pool, some seconds ago.
    pub(super) fn cells(self, before: Option<(Self, f64)>) -> [String; CELL_COUNT] {
        if let Some(problem) = self.0["error"].as_str() {
            let mut cells = [const { String::new() }; CELL_COUNT];
            (cells[0], cells[1]) = (self.name(), Shown::sentence(problem).to_string());
            return cells;
        }
        let bytes = |key| Bytes(self.number(key)).to_string();
        let limit = self.limit().map_or("-".into(), |limit| Bytes(limit).to_string());
        let share = self.limit().filter(|limit| *limit > 0).map_or(String::new(), |limit| {
            format!("{:.0} %", 100.0 * self.number("reserved_bytes") as f64 / limit as f64)
        });
        [
            self.name(),
            format!("{} {}", self.number("device_ordinal"), self.0["backend"].as_str().unwrap_or_default()),
            Bytes(self.in_use_bytes()).to_string(),
            bytes("reserved_bytes"),
            bytes("reserved_peak_bytes"),
            limit,
            share,
            before.map_or(String::new(), |before| rate(self, before)),
            before.map_or(String::new(), |before| {
                growth(self.in_use_bytes(), before.0.in_use_bytes(), before.1)
            }),
            self.0["counters"]["refusal_count"].as_u64().unwrap_or(0).to_string(),
            if self.number("spilled_bytes") > 0 { bytes("spilled_bytes") } else { String::new() },
        ]
    }
}

pub(super) const CELL_COUNT: usize = 11;
pub(super) const HEADINGS: [&str; CELL_COUNT] = [
    "pool", "device", "in use", "reserved", "peak", "limit", "used", "allocs/s", "growth/s", "refused",
    "spilled",
];

/// The cells of a tag's row.
pub(super) fn tag_cells(tag: &Value, before: Option<(PoolView<'_>, f64)>) -> [String; 5] {
    let number = |tag: &Value, key: &str| tag[key].as_u64().unwrap_or(0);
    let name = tag["tag"].as_str().unwrap_or("?");
    let in_use = number(tag, "in_use_bytes");
    let grew = before.and_then(|(pool, seconds)| {
        let earlier = pool.tags().find(|one| one["tag"] == tag["tag"])?;
        Some(growth(in_use, number(earlier, "in_use_bytes"), seconds))
    });
    [
        Shown::name(name).to_string(),
        Bytes(in_use).to_string(),
        Bytes(number(tag, "peak_bytes")).to_string(),
        number(tag, "block_count").to_string(),
        grew.unwrap_or_default(),
    ]
}

pub(super) const TAG_HEADINGS: [&str; 5] = ["tag", "in use", "peak", "blocks", "growth/s"];

fn rate(pool: PoolView<'_>, (before, seconds): (PoolView<'_>, f64)) -> String {
    let key = "allocation_count";
    let count = pool.number(key).saturating_sub(before.number(key));
    format!("{:.0}", count as f64 / seconds.max(0.001))
}

fn growth(now: u64, before: u64, seconds: f64) -> String {
    let by = |bytes: u64| Bytes((bytes as f64 / seconds.max(0.001)) as u64);
    match now.cmp(&before) {
        core::cmp::Ordering::Equal => String::new(),
        core::cmp::Ordering::Greater => format!("+{}", by(now - before)),
        core::cmp::Ordering::Less => format!("-{}", by(before - now)),
    }
}

fn time(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// All processes, once.
pub(super) fn text(processes: &[Process]) -> String {
    let mut text = String::new();
    for process in processes {
        let style = if process.is_silent() { BAD } else { HEADING };
        text += &format!("{}\n", styled(style, process.title()));
        let rows: Vec<_> = process.pools().map(|pool| pool.cells(None)).collect();
        if process.is_silent() {
            continue;
        }
        if rows.is_empty() {
            text += &format!("{}\n", styled(NOTE, "no pools"));
            continue;
        }
        // Without rates.
        let headings = HEADINGS.map(String::from);
        let keep = |cells: &[String; CELL_COUNT]| -> [String; CELL_COUNT - 2] {
            core::array::from_fn(|index| cells[if index < 7 { index } else { index + 2 }].clone())
        };
        let headings = keep(&headings);
        let rows: Vec<_> = rows.iter().map(keep).collect();
        text += &table::render(headings.each_ref().map(String::as_str), &rows);
        for pool in process.pools() {
            let tags: Vec<_> = pool.tags().map(|tag| tag_cells(tag, None)).collect();
            if !tags.is_empty() {
                let tags: Vec<[String; 4]> =
                    tags.iter().map(|cells| core::array::from_fn(|index| cells[index].clone())).collect();
                text += &format!("\ntags of {}\n", pool.name());
                let [tag, in_use, peak, blocks, _] = TAG_HEADINGS;
                text += &table::render([tag, in_use, peak, blocks], &tags);
            }
        }
        text += "\n";
    }
    text
}
