//! [`Status`]: a pool's counters at one moment.

use crate::config::{BackendKind, MemoryKind, PoolId};
use crate::error::PoolUsage;
use crate::figures::{PoolCounters, StepCounters, figures};
use core::fmt;
use core::time::Duration;
use gpumem_device::{Bytes, StreamId};
use gpumem_sys::text::{Shown, columns};

macro_rules! status {
    (
        measured {$( $(#[$meta:meta])* $name:ident: $type:ty $(, c $position:literal)?; )+}
        counted {$( $(#[$_meta:meta])* $counted:ident: $unit:ident $(, c $counted_position:literal)?; )+}
        text { $($_text:tt)* }
    ) => {
        /// A pool's counters at one moment. They are exact while no other thread allocates or frees.
        ///
        /// `Display` prints:
        ///
        /// ```text
        /// Effective GPU memory usage: 16.35% (2.575 GiB/15.744 GiB)
        /// Memory pool usage: 8.000 KiB (32.000 MiB reserved)
        /// Memory limit: hard = 4.000 GiB
        /// Memory pool backend: native on NVIDIA H200 (device 0)
        /// ```
        ///
        /// Tags follow as a table. `{:#}` adds peaks, counts and [`counters`](Self::counters) after the usage. It ends with two tables: the
        /// streams, and the steps that made room.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Status {
            /// The identity of the pool.
            pub id: PoolId,
            /// The name of the pool ([`Pool::name`](crate::Pool::name)).
            pub name: String,
            #[cfg_attr(feature = "serde", serde(skip))]
            pub(crate) is_named: bool,
            /// The backend of the pool.
            pub backend: BackendKind,
            /// The kind of memory.
            pub kind: MemoryKind,
            /// True if the backend `caching` uses plain segments: virtual memory is unavailable, or
            /// the option `expandable_segments:false` is set.
            pub plain_segments: bool,
            /// The reason for plain segments, unless they were requested: what the driver or the device lacks or refuses.
            pub plain_segments_reason: Option<String>,
            /// The vendor's name for the device.
            pub device_name: String,
            /// The ordinal of the device in the driver.
            pub device_ordinal: u32,
            $(
                $(#[$meta])*
                pub $name: $type,
            )+
            /// The counters of the pool's activity since it was built.
            pub counters: PoolCounters,
            #[cfg_attr(feature = "serde", serde(skip))]
            pub(crate) is_soft_limit_idle: bool,
            /// The private pools of this pool ([`Pool::private`](crate::Pool::private)), recursively, in the order of their creation. Their memory
            /// is not part of this pool's figures, but counts against its hard limit.
            pub private_pools: Vec<PoolUsage>,
            /// The usage by tag ([`Pool::scope`](crate::Pool::scope)), in the order of each tag's first scope.
            pub tags: Vec<TagUsage>,
            /// The usage of each stream that has blocks.
            pub streams: Vec<StreamUsage>,
        }

        impl Status {
            /// The number of figures in the C interface.
            #[doc(hidden)]
            pub const C_FIGURES: usize = [$($($position,)?)+ $($($counted_position,)?)+].len();

            /// The figures of the C interface, by position. A limit that is not set is `u64::MAX`.
            #[doc(hidden)]
            #[must_use]
            pub fn c_figures(&self) -> [u64; Self::C_FIGURES] {
                let mut figures = [0; Self::C_FIGURES];
                $($(figures[$position - 1] = Option::<u64>::from(self.$name).unwrap_or(u64::MAX);)?)+
                $($(figures[$counted_position - 1] = self.counters.$counted.in_c();)?)+
                figures
            }

            /// A status whose figures are zero.
            #[cfg(test)]
            fn zero() -> Self {
                Self {
                    $($name: Default::default(),)+
                    id: PoolId::next(),
                    name: "7".into(),
                    is_named: false,
                    backend: BackendKind::Native,
                    kind: MemoryKind::Device,
                    plain_segments: false,
                    plain_segments_reason: None,
                    device_name: "Quadro RTX 5000".into(),
                    device_ordinal: 0,
                    counters: PoolCounters::default(),
                    is_soft_limit_idle: false,
                    private_pools: Vec::new(),
                    tags: Vec::new(),
                    streams: Vec::new(),
                }
            }
        }
    };
}

figures!(status);

/// The form of a figure in C.
trait InC {
    fn in_c(&self) -> u64;
}

impl InC for u64 {
    fn in_c(&self) -> u64 {
        *self
    }
}

impl InC for Duration {
    fn in_c(&self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The memory of one tag's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TagUsage {
    /// The name of the scopes.
    pub tag: String,
    /// Bytes in live blocks.
    pub in_use_bytes: u64,
    /// The peak of memory in use, ever or since [`Pool::reset_peaks`](crate::Pool::reset_peaks). It is exact if one thread allocates for
    /// the tag and frees its blocks, and otherwise off by up to 1 MiB for each thread.
    pub peak_bytes: u64,
    /// The number of live blocks.
    pub block_count: u64,
    /// The number of allocations ever made.
    pub allocation_count: u64,
}

/// The memory of one stream's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StreamUsage {
    /// The owner stream; `None` for all streams that are gone.
    pub stream: Option<StreamId>,
    /// Bytes in live blocks.
    pub in_use_bytes: u64,
    /// The number of live blocks.
    pub block_count: u64,
}

impl Status {
    /// What the loop of the program needs, and the copies that this costs, if the pool knows a loop and it does not fit.
    fn spill_prediction(&self) -> Option<String> {
        let (needed_bytes, room_bytes) = (self.spill_needed_bytes?, self.spill_room_bytes?);
        let least_bytes = self.spill_least_bytes.filter(|bytes| *bytes > 0 && room_bytes > 0)?;
        let (needed, room) = (Bytes(needed_bytes), Bytes(room_bytes));
        let times = needed_bytes as f64 / room_bytes as f64;
        let rates = [self.spilled_up_rate, self.spilled_down_rate].map(|rate| rate.unwrap_or(0) as f64 / 1e9);
        let cost = match self.spill_least_time_ns {
            Some(least_ns) => format!(
                "at least {:.1?} of copies a repetition, at {:.1} GB/s up and {:.1} down",
                Duration::from_nanos(least_ns),
                rates[0],
                rates[1]
            ),
            None => format!("at least {} of copies a repetition", Bytes(least_bytes)),
        };
        Some(format!("Memory pool needs: {times:.2} x its room for arrays ({needed} of {room}), {cost}"))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = match self.device_total_bytes {
            0 => 0.0,
            total => 100.0 * self.device_used_bytes as f64 / total as f64,
        };
        let (used, total) = (Bytes(self.device_used_bytes), Bytes(self.device_total_bytes));
        writeln!(f, "Effective GPU memory usage: {share:.2}% ({used}/{total})")?;
        if self.is_named {
            writeln!(f, "Memory pool name: {}", Shown::name(&self.name))?;
        }
        let (in_use, reserved) = (Bytes(self.in_use_bytes), Bytes(self.reserved_bytes));
        writeln!(f, "Memory pool usage: {in_use} ({reserved} reserved)")?;
        if self.other_libraries_bytes > 0 {
            writeln!(f, "Memory pool usage by other libraries: {}", Bytes(self.other_libraries_bytes))?;
        }
        if self.asleep_bytes > 0 {
            let (asleep, on_host) = (Bytes(self.asleep_bytes), Bytes(self.asleep_host_bytes));
            writeln!(f, "Memory pool asleep: {asleep} ({on_host} of host memory)")?;
        }
        if self.spilled_bytes > 0 {
            let (spilled, on_host) = (Bytes(self.spilled_bytes), Bytes(self.spilled_host_bytes));
            let arrays = if self.spilled_array_count == 1 { "array" } else { "arrays" };
            let count = self.spilled_array_count;
            write!(f, "Memory pool spilled: {spilled} in {count} {arrays} ({on_host} of host memory")?;
            let others = [
                (self.spilled_neighbour_bytes, "of another device's"),
                (self.spilled_file_bytes, "in a file"),
            ];
            for (bytes, place) in others.into_iter().filter(|(bytes, _)| *bytes > 0) {
                write!(f, ", {} {place}", Bytes(bytes))?;
            }
            writeln!(f, ")")?;
        }
        if let Some(line) = self.spill_prediction() {
            writeln!(f, "{line}")?;
        }
        if f.alternate() {
            let (in_use, reserved) = (Bytes(self.in_use_peak_bytes), Bytes(self.reserved_peak_bytes));
            writeln!(f, "Memory pool peaks: {in_use} ({reserved} reserved)")?;
            writeln!(f, "Memory pool blocks: {} (of {} ever)", self.block_count, self.allocation_count)?;
            self.counters.lines().iter().try_for_each(|line| writeln!(f, "{line}"))?;
        }
        match (self.soft_limit_bytes.map(Bytes), self.hard_limit_bytes.map(Bytes)) {
            (Some(soft), Some(hard)) => {
                let note = if self.is_soft_limit_idle { " (no effect: above the hard limit)" } else { "" };
                writeln!(f, "Memory limit: soft = {soft}{note}, hard = {hard}")?;
            }
            (Some(soft), None) => writeln!(f, "Memory limit: soft = {soft}")?,
            (None, Some(hard)) => writeln!(f, "Memory limit: hard = {hard}")?,
            (None, None) => {}
        }
        let kind = match self.kind {
            MemoryKind::Device => "",
            MemoryKind::Unified => " of unified memory",
            MemoryKind::Host => " of host memory",
        };
        let segments = if self.plain_segments { " (plain segments)" } else { "" };
        write!(
            f,
            "Memory pool backend: {}{segments}{kind} on {} (device {})",
            self.backend,
            Shown::name(&self.device_name),
            self.device_ordinal
        )?;
        if let Some(reason) = &self.plain_segments_reason {
            write!(f, "\nPlain segments: {}", Shown::sentence(reason))?;
        }
        let tags = self.tags.iter().map(|tag| {
            let bytes = [tag.in_use_bytes, tag.peak_bytes].map(|bytes| Bytes(bytes).to_string());
            (Shown::name(&tag.tag).to_string(), bytes, tag.block_count)
        });
        table(f, ["tag", "in use", "peak"], "blocks", tags)?;
        let private = self.private_pools.iter().map(|pool| {
            let quota_bytes = pool.hard_limit_bytes.unwrap_or(self.device_total_bytes);
            let bytes = [pool.in_use_bytes, pool.reserved_bytes, quota_bytes];
            (
                Shown::name(&pool.name).to_string(),
                bytes.map(|bytes| Bytes(bytes).to_string()),
                pool.block_count,
            )
        });
        table(f, ["private pool", "in use", "reserved", "quota"], "blocks", private)?;
        if f.alternate() {
            let name =
                |stream: &StreamUsage| stream.stream.map_or("gone".into(), |id| id.as_u64().to_string());
            let streams = self
                .streams
                .iter()
                .map(|stream| (name(stream), [Bytes(stream.in_use_bytes).to_string()], stream.block_count));
            table(f, ["stream", "in use"], "blocks", streams)?;
            let gave = |step: &&StepCounters| step.served_count > 0 || step.gained_bytes > 0;
            let steps = self.counters.steps.iter().filter(gave).map(|step| {
                let cells = [Bytes(step.gained_bytes).to_string(), format!("{:.1?}", step.took)];
                (step.name.into(), cells, step.served_count)
            });
            table(f, ["step to make room", "gained", "time"], "requests", steps)?;
        }
        Ok(())
    }
}

/// Prints a table; nothing without rows. The last column is a count.
fn table<const HEADINGS: usize, const CELLS: usize>(
    f: &mut fmt::Formatter<'_>,
    headings: [&str; HEADINGS],
    counted: &str,
    rows: impl Iterator<Item = (String, [String; CELLS], u64)>,
) -> fmt::Result {
    let rows: Vec<_> = rows.collect();
    let (Some(widest), Some((title, headings))) =
        (rows.iter().map(|(name, ..)| columns(name)).max(), headings.split_first())
    else {
        return Ok(());
    };
    let width = widest.max(title.len());
    write!(f, "\n  {title:<width$}")?;
    headings.iter().try_for_each(|heading| write!(f, " {heading:>14}"))?;
    write!(f, " {counted:>8}")?;
    rows.iter().try_for_each(|(name, cells, block_count)| {
        let gap = width - columns(name);
        write!(f, "\n  {name}{:gap$}", "")?;
        cells.iter().try_for_each(|cell| write!(f, " {cell:>14}"))?;
        write!(f, " {block_count:>8}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_in_use() -> Status {
        Status {
            in_use_bytes: 8 << 10,
            reserved_bytes: 32 << 20,
            cached_bytes: (32 << 20) - (8 << 10),
            in_use_peak_bytes: 8 << 10,
            reserved_peak_bytes: 32 << 20,
            block_count: 1,
            allocation_count: 1,
            device_used_bytes: 2_764_885_200,
            device_total_bytes: 16_904_991_277,
            ..Status::zero()
        }
    }

    #[test]
    fn it_reads_like_the_status_of_cuda_jl() {
        let text = status_in_use().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Effective GPU memory usage: 16.36% (2.575 GiB/15.744 GiB)");
        assert_eq!(lines[1], "Memory pool usage: 8.000 KiB (32.000 MiB reserved)");
        assert_eq!(lines[2], "Memory pool backend: native on Quadro RTX 5000 (device 0)");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn limits_are_named_where_there_are_any() {
        let hard = Status { hard_limit_bytes: Some(4 << 30), ..status_in_use() };
        assert!(hard.to_string().contains("\nMemory limit: hard = 4.000 GiB\n"));
        let both = Status { soft_limit_bytes: Some(1 << 30), ..hard };
        assert!(both.to_string().contains("\nMemory limit: soft = 1.000 GiB, hard = 4.000 GiB\n"));
        let shared = Status { other_libraries_bytes: 1 << 30, ..status_in_use() };
        assert!(
            shared.to_string().contains("reserved)\nMemory pool usage by other libraries: 1.000 GiB\n"),
            "{shared}"
        );
        let none = Status { in_use_bytes: 0, reserved_bytes: 0, device_total_bytes: 0, ..status_in_use() };
        assert!(none.to_string().contains("Memory pool usage: 0 bytes (0 bytes reserved)"), "{none}");
    }

    fn with_usage() -> Status {
        let tag = |tag: &str, in_use_bytes, block_count| TagUsage {
            tag: tag.into(),
            in_use_bytes,
            peak_bytes: 2 * in_use_bytes,
            block_count,
            allocation_count: 9,
        };
        let stream = |stream, in_use_bytes| StreamUsage { stream, in_use_bytes, block_count: 1 };
        let step = |name, gained_bytes, served_count| StepCounters {
            name,
            gained_bytes,
            served_count,
            took: Duration::from_micros(1500),
        };
        let counters = PoolCounters {
            refusal_count: 2,
            slow_allocation_count: 40,
            trimmed_bytes: 64 << 20,
            driver_call_count: 12,
            driver_call_time: Duration::from_micros(1500),
            inserted_wait_count: 3,
            host_wait_count: 1,
            host_wait_time: Duration::from_millis(20),
            steps: vec![step("remap idle memory", 0, 0), step("reserve more memory", 2 << 20, 4)],
            ..PoolCounters::default()
        };
        Status {
            counters,
            tags: vec![tag("weights", 6 << 20, 4), tag("a", 2 << 10, 1)],
            streams: vec![stream(None, 100), stream(Some(StreamId::from_u64(65_537)), 3 << 20)],
            ..status_in_use()
        }
    }

    #[test]
    fn tags_are_a_table_and_peaks_and_streams_more_on_demand() {
        let text = with_usage().to_string();
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "  tag             in use           peak   blocks",
                "  weights      6.000 MiB     12.000 MiB        4",
                "  a            2.000 KiB      4.000 KiB        1",
            ]
        );
        let text = format!("{:#}", with_usage());
        for line in [
            "Memory pool peaks: 8.000 KiB (32.000 MiB reserved)",
            "Memory pool blocks: 1 (of 1 ever)",
            "Memory pool requests: 2 refused, 40 beyond the caches of threads",
            "Memory pool driver calls: 12 in 1.5ms (64.000 MiB returned)",
            "Memory pool waits: 3 in streams, 1 of the host in 20.0ms",
        ] {
            assert!(text.lines().any(|other| other == line), "{text}");
        }
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("  stream ")).collect();
        assert_eq!(
            lines,
            [
                "  stream         in use   blocks",
                "  gone        100 bytes        1",
                "  65537       3.000 MiB        1",
                "  step to make room           gained           time requests",
                "  reserve more memory      2.000 MiB          1.5ms        4",
            ]
        );
    }

    /// Each position has one figure.
    #[test]
    fn the_figures_of_c_have_positions_of_their_own() {
        let status = Status { in_use_bytes: 1, soft_limit_bytes: None, asleep_bytes: 18, ..status_in_use() };
        let figures =
            Status { counters: PoolCounters { host_wait_count: 17, ..PoolCounters::default() }, ..status };
        let figures = figures.c_figures();
        assert_eq!((figures[0], figures[8], figures[16], figures[17]), (1, u64::MAX, 17, 18));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn it_can_be_serialised() {
        let value = serde_json::to_value(with_usage()).unwrap();
        assert_eq!((&value["backend"], &value["kind"]), (&"native".into(), &"device".into()));
        assert_eq!(value["device_total_bytes"], 16_904_991_277_u64);
        assert_eq!((&value["tags"][1]["tag"], &value["tags"][1]["peak_bytes"]), (&"a".into(), &4096.into()));
        assert_eq!(value["streams"][0]["stream"], serde_json::Value::Null);
        assert_eq!(value["streams"][1]["stream"], 65_537);
        assert_eq!(value["hard_limit_bytes"], serde_json::Value::Null);
        let counters = serde_json::json!({
            "refusal_count": 2,
            "slow_allocation_count": 40,
            "trimmed_bytes": 64 << 20,
            "driver_call_count": 12,
            "driver_call_seconds": 0.0015,
            "inserted_wait_count": 3,
            "host_wait_count": 1,
            "host_wait_seconds": 0.02,
            "steps": [
                { "name": "remap idle memory", "gained_bytes": 0, "served_count": 0, "took_seconds": 0.0015 },
                {
                    "name": "reserve more memory",
                    "gained_bytes": 2 << 20,
                    "served_count": 4,
                    "took_seconds": 0.0015,
                },
            ],
        });
        for (name, expected) in counters.as_object().unwrap() {
            assert_eq!(&value["counters"][name], expected, "{name}");
        }
    }
}
