//! The table of an [`OutOfMemory`]: the holders of the memory.

use super::words::blocks;
use super::{KeptArrays, KeptBy, OutOfMemory, RefusedBy, SpillReport};
use crate::config::{BackendKind, MemoryKind};
use crate::error::PoolUsage;
use gpumem_device::Bytes;
use gpumem_sys::text::{Shown, columns};

/// A line: its subject, its bytes if known, and a remark.
struct Row {
    name: String,
    bytes: Option<u64>,
    remark: String,
}

fn row(name: impl Into<String>, bytes: u64, remark: impl Into<String>) -> Row {
    Row { name: name.into(), bytes: Some(bytes), remark: remark.into() }
}

impl OutOfMemory {
    /// One line for each row, with its line break.
    pub(super) fn table(&self) -> String {
        let rows = self.rows();
        let widest = rows.iter().map(|row| columns(&row.name)).max();
        let width = widest.unwrap_or_default().max(WIDTH_MIN);
        let mut text = String::new();
        for Row { name, bytes, remark } in rows {
            let amount = bytes.map_or("unknown".into(), |bytes| Bytes(bytes).to_string());
            let gap = width - columns(&name);
            let line = format!("  {name}{:gap$} {amount:>14}  {remark}", "");
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn rows(&self) -> Vec<Row> {
        let is_awake = self.asleep_bytes == 0 || self.in_use_bytes > 0;
        let in_use = if is_awake { self.blocks() } else { String::new() };
        let mut rows = vec![row("in use", self.in_use_bytes, in_use)];
        if self.asleep_bytes > 0 {
            rows.push(row(
                "asleep",
                self.asleep_bytes,
                self.facts.interface.translate("in blocks that Pool::wake brings back to the device"),
            ));
        }
        if self.graph_bytes > 0 {
            rows.push(row("  graphs", self.graph_bytes, self.retainers()));
        }
        if self.other_libraries_bytes > 0 {
            rows.push(row(
                "  other libraries",
                self.other_libraries_bytes,
                "allocated from this pool, which is current",
            ));
        }
        for holder in &self.holders {
            let name = format!("  {}", Shown::name(&holder.tag));
            rows.push(row(name, holder.in_use_bytes, blocks(holder.block_count)));
        }
        rows.extend(self.spilling.iter().flat_map(spilling));
        let largest = self.largest_free_bytes.filter(|largest| *largest > 0 && self.cached_bytes() > 0);
        let largest =
            largest.map_or(String::new(), |largest| format!("; largest free block {}", Bytes(largest)));
        // The backend `none` caches nothing.
        if self.facts.backend == Some(BackendKind::None) {
            if self.rounding_bytes > 0 {
                rows.push(row(
                    "rounding",
                    self.rounding_bytes,
                    "by the driver, which gives whole pages of 2 MiB",
                ));
            }
        } else {
            let remark = format!("free, kept for the next requests{largest}");
            rows.push(row("cached", self.cached_bytes(), remark));
        }
        if self.pending_bytes > 0 {
            rows.push(row("  pending", self.pending_bytes, "freed, waiting for work on the device"));
        }
        if self.facts.backend != Some(BackendKind::None)
            && self.rounding_bytes > self.reserved_bytes / NOTABLE
        {
            rows.push(row("  rounding", self.rounding_bytes, "after blocks whose sizes are rounded up"));
        }
        let reserved = match self.facts.backend {
            Some(BackendKind::None) if self.rounding_bytes > 0 => "in use, with rounding",
            Some(BackendKind::None) => "in use",
            _ => "in use and cached",
        };
        rows.push(row("reserved", self.reserved_bytes, reserved));
        if self.refused_by == RefusedBy::Budget {
            let limit = self.limit_bytes.map_or(String::new(), |limit| format!("of {} ", Bytes(limit)));
            let remark = format!("{limit}in use by all pools that share the budget");
            rows.push(row("budget", self.limit_others_bytes, remark));
        } else if self.limit_others_bytes > 0 {
            rows.push(row("sharers", self.limit_others_bytes, "in other pools that share the limit"));
            rows.extend(largest_of(&self.limit_sharers, |pool| pool.counted_bytes));
        }
        // Pinned host memory is not device memory.
        if self.kind == MemoryKind::Host {
            rows.extend(self.host_free_bytes.map(|free_bytes| row("host free", free_bytes, "")));
        } else {
            // The driver does not report how much unified memory is on the device.
            if self.kind == MemoryKind::Device {
                rows.push(row("others", self.others_bytes(), "other pools, libraries and processes"));
            }
            if self.other_pools_bytes > 0 {
                rows.push(row("  pools", self.other_pools_bytes, "in other pools of this program"));
                let pools = self.other_pools.iter().filter(|pool| pool.kind == MemoryKind::Device);
                let pools: Vec<_> = pools.filter(|pool| !self.shares_the_limit(pool)).cloned().collect();
                rows.extend(largest_of(&pools, |pool| pool.reserved_bytes));
            }
            if let Some(own_bytes) = self.own_outside_bytes.filter(|own_bytes| *own_bytes > 0) {
                rows.push(row(
                    "  this program",
                    own_bytes,
                    "outside of its pools: libraries, its own cuMemAlloc, the context",
                ));
            }
            for process in &self.processes {
                rows.push(Row {
                    name: "  process".into(),
                    bytes: process.in_use_bytes,
                    remark: process.to_string(),
                });
            }
            let mut total = format!("of {}", Bytes(self.device_total_bytes));
            if self.kind == MemoryKind::Unified {
                total += "; unified memory counts once it is on the device";
            }
            rows.push(row("device free", self.device_free_bytes, total));
        }
        rows
    }

    fn retainers(&self) -> &'static str {
        match self.capture_bytes {
            0 => "freed by the program, retained by captures and graphs",
            _ => "freed by the program, retained by an open capture",
        }
    }

    /// True if the pool is already listed below the limit.
    fn shares_the_limit(&self, pool: &PoolUsage) -> bool {
        self.limit_sharers.iter().any(|sharer| sharer.id == pool.id)
    }
}

/// What has moved to the host, and who keeps the rest.
fn spilling(report: &SpillReport) -> Vec<Row> {
    let SpillReport {
        away_bytes,
        host_limit_bytes,
        host_in_use_bytes,
        ref file,
        ref kept,
        operation_bytes,
        other_bytes,
    } = *report;
    let of = |used_bytes, limit_bytes| format!("{} of {} used", Bytes(used_bytes), Bytes(limit_bytes));
    let host = format!("of arrays on the host ({})", of(host_in_use_bytes, host_limit_bytes));
    let mut rows = vec![row("spilled", away_bytes, host)];
    rows.extend(file.as_ref().map(|file| {
        let failure =
            file.failure.as_ref().map(|failure| format!("; a write failed: {}", Shown::sentence(failure)));
        let used = of(file.in_use_bytes, file.limit_bytes);
        row("  in a file", file.in_use_bytes, format!("({used}{})", failure.unwrap_or_default()))
    }));
    let kept_bytes = report.kept_bytes().saturating_add(other_bytes);
    if kept_bytes > 0 {
        rows.push(row("not spilled", kept_bytes, "of the memory in use"));
    }
    rows.extend(kept.iter().map(|KeptArrays { by, bytes, array_count }| {
        let arrays = if *array_count == 1 { "array" } else { "arrays" };
        let more = match by {
            KeptBy::Address | KeptBy::PeerDevice | KeptBy::Graph => ", which is for good".into(),
            KeptBy::Operation => format!(", whose arrays need {} together", Bytes(operation_bytes)),
            _ => String::new(),
        };
        row(format!("  {}", by.name()), *bytes, format!("in {array_count} {arrays}: {by}{more}"))
    }));
    if other_bytes > 0 {
        rows.push(row("  other", other_bytes, "in blocks that are no arrays, and in small arrays"));
    }
    rows
}

/// The largest pools by name, and the sum of the others.
fn largest_of(pools: &[PoolUsage], bytes: impl Fn(&PoolUsage) -> u64) -> Vec<Row> {
    let of = |pool: &PoolUsage| match pool.kind {
        MemoryKind::Device => "",
        MemoryKind::Unified => ", unified memory",
        MemoryKind::Host => ", pinned memory",
    };
    let named = |pool: &PoolUsage| {
        let in_use = Bytes(pool.in_use_bytes);
        let remark = format!("{in_use} in use {}{}", blocks(pool.block_count), of(pool));
        row(format!("    pool {}", Shown::name(&pool.name)), bytes(pool), remark)
    };
    let (shown, rest) = pools.split_at(pools.len().min(POOLS_SHOWN));
    let mut rows: Vec<_> = shown.iter().map(named).collect();
    if !rest.is_empty() {
        let rest_bytes = rest.iter().map(&bytes).fold(0, u64::saturating_add);
        rows.push(row(format!("    {} more", rest.len()), rest_bytes, ""));
    }
    rows
}

/// The width of the first column in most reports, so that reports align.
const WIDTH_MIN: usize = "device free".len();

const POOLS_SHOWN: usize = 4;

/// Rounding gets a row if it exceeds this fraction (1/64) of the reserved bytes.
const NOTABLE: u64 = 64;
