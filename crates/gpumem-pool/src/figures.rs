//! The figures of a pool, each declared once: [`figures!`] is the table. [`Status`](crate::Status), the counters behind it, its texts, its
//! serialised form and the structures of C and Python come from there. The room also counts what a pool does.
//!
//! A row reads
//!
//! ```text
//! /// What it is, without names of Rust: the header of C has this sentence up to a colon. Details, and further sentences.
//! name: type, c POSITION;
//! ```
//!
//! A figure with a position is in `gpumem_status`, at that place after the size; a new one takes the next number, and no number changes.
//! `cargo xtask header` writes the structure, and `cargo xtask wheel` the attributes of Python. A counted figure has a unit: `count` and
//! `bytes` are numbers, `time` is a duration. `activity.NAME.add(…)` counts it.

mod activity;

pub(crate) use activity::ActivityCounters;
pub use activity::{PoolCounters, StepCounters};

/// Calls a macro with the table. `measured` are the figures of [`Status`](crate::Status) at one moment, `counted` those of
/// [`PoolCounters`]. `text` are the lines that `{:#}` of a status and of a report print; each counted figure is in one of them.
macro_rules! figures {
    ($then:ident) => {
        $then! {
            measured {
                /// Bytes in live blocks.
                in_use_bytes: u64, c 1;
                /// Bytes that other libraries hold in this pool: the driver's count minus the live blocks, once the pool was made current
                /// ([`Pool::make_current`](crate::Pool::make_current)). It includes freed blocks that wait for work on the device, and up
                /// to 512 bytes for each live block.
                other_libraries_bytes: u64, c 19;
                /// Bytes held from the device: blocks, cached memory, and memory that the driver refused to free.
                reserved_bytes: u64, c 2;
                /// Bytes cached for reuse, including freed memory that waits for work on the device.
                cached_bytes: u64, c 3;
                /// Bytes that sleep, and are not on the device. They are not part of [`reserved_bytes`](Self::reserved_bytes). The blocks
                /// in them count as in use. See [`Pool::sleep`](crate::Pool::sleep).
                asleep_bytes: u64, c 18;
                /// The pinned host memory for the contents of sleeping memory. It stays for the next sleep, until
                /// [`Pool::reclaim`](crate::Pool::reclaim).
                asleep_host_bytes: u64;
                /// Bytes of arrays whose contents are on the host alone, until their next use. They are not part of
                /// [`in_use_bytes`](Self::in_use_bytes).
                spilled_bytes: u64, c 20;
                /// The pinned host memory for such contents. It stays for the next.
                spilled_host_bytes: u64;
                /// Bytes of arrays in the memory of another device ([`Spill::by_neighbour`](crate::Spill::by_neighbour)).
                spilled_neighbour_bytes: u64;
                /// Bytes of arrays in a file ([`Spill::then_file`](crate::Spill::then_file)).
                spilled_file_bytes: u64;
                /// The number of arrays whose contents are on the host alone.
                spilled_array_count: u64, c 24;
                /// Bytes of arrays that a repetition of the program's loop needs at once. `None` if the pool has moved nothing, or recognises no
                /// loop. Arrays count if the repetition has used them, or if they are new, which includes temporary ones.
                spill_needed_bytes: Option<u64>, c 25;
                /// Bytes of arrays that were in device memory at once in such a repetition.
                spill_room_bytes: Option<u64>, c 26;
                /// Bytes that each such repetition has to copy at least, in both directions. What is needed beyond the memory comes back, and
                /// what of it is written goes to the host.
                spill_least_bytes: Option<u64>, c 27;
                /// The least time of the copies of such a repetition, in nanoseconds, at the measured rates. Copies in both directions run at once.
                spill_least_time_ns: Option<u64>, c 28;
                /// The rate of the copies to the host so far, in bytes per second, as measured by the device.
                spilled_down_rate: Option<u64>, c 29;
                /// The rate of the copies from the host so far, in bytes per second, as measured by the device.
                spilled_up_rate: Option<u64>, c 30;
                /// The peak of memory in use. It is that of all time, or since [`Pool::reset_peaks`](crate::Pool::reset_peaks).
                ///
                /// It is exact on `native` and `none`, and an upper bound on `caching`: the memory that its heap has allocated, which never
                /// exceeds [`reserved_peak_bytes`](Self::reserved_peak_bytes). That includes rounding, and the freed blocks in thread caches. For
                /// blocks up to 1 MiB these are bounded in total, by a share of the reserved memory. Each thread retains the last four
                /// larger blocks of each stream, and further ones within memory that was reserved ahead and never needed.
                in_use_peak_bytes: u64, c 4;
                /// The peak of reserved memory.
                reserved_peak_bytes: u64, c 5;
                /// Host memory of the heap's records: about 100 bytes for each block and each free range between blocks, 160 for
                /// each handle of physical memory, 13 for each 2 MiB of addresses, and 5 KiB for each stream and class of blocks,
                /// small or large. In addition, thread caches take 6 KiB for each thread and stream, and 16 bytes for each cached
                /// block.
                record_bytes: u64;
                /// The number of live blocks, empty ones excluded.
                block_count: u64, c 6;
                /// The number of allocations ever made, empty ones excluded.
                allocation_count: u64, c 7;
                /// The hard limit, if any.
                hard_limit_bytes: Option<u64>, c 8;
                /// The soft limit, if any: cached memory above it is released.
                soft_limit_bytes: Option<u64>, c 9;
                /// Memory in use on the whole device, by all processes.
                device_used_bytes: u64, c 10;
                /// The total memory of the device.
                device_total_bytes: u64, c 11;
            }
            counted {
                /// Requests that were refused because memory, a limit, a quota or a budget ran out. Requests that are larger than the
                /// device count too.
                refusal_count: count, c 12;
                /// Allocations that no cache of the calling thread served, including those that the backend refused: with `native` and
                /// `none`, all of them. Each size that [`Pool::alloc_up_to`](crate::Pool::alloc_up_to) tries counts, and each repetition
                /// after the refusal of a budget that reaches the backend. Requests that an adaptor refuses earlier, and parts of a
                /// graph's memory, do not count.
                slow_allocation_count: count, c 13;
                /// Bytes that the pool has returned to the driver. With `native`, without those that the driver releases on its own when
                /// the host waits; with `none`, 0, because it keeps no memory.
                trimmed_bytes: bytes, c 14;
                /// Driver calls that obtain, map, trim or release memory of the pool.
                driver_call_count: count, c 15;
                /// The time in those calls, over all threads. With `none`, a call that frees memory waits for the device.
                #[cfg_attr(feature = "serde", serde(rename = "driver_call_seconds", serialize_with = "seconds"))]
                driver_call_time: time;
                /// Waits that the pool has inserted into streams, on the device: a stream whose request got memory that another stream
                /// freed, and with `native` a free behind work of other streams.
                inserted_wait_count: count, c 16;
                /// Waits of the host for the device: by requests that found no free memory, by reclaims of all memory, and with `none` by
                /// frees.
                host_wait_count: count, c 17;
                /// The time in those waits, over all threads.
                #[cfg_attr(feature = "serde", serde(rename = "host_wait_seconds", serialize_with = "seconds"))]
                host_wait_time: time;
                /// Arrays whose contents were moved to the host to make room.
                spill_count: count, c 21;
                /// Bytes copied to the host to make room. Contents that the host still has are not copied again.
                spilled_down_bytes: bytes, c 22;
                /// Bytes copied back, at the next use or ahead of it.
                spilled_up_bytes: bytes, c 23;
                /// Bytes that made room without a copy, because the host had the contents.
                spill_avoided_bytes: bytes, c 31;
                /// The time that streams waited on the device for copies of contents; in C and Python, in nanoseconds. It is measured by the
                /// device, and added once a wait is over. Waits while streams capture are not part of it.
                #[cfg_attr(feature = "serde", serde(rename = "spill_wait_seconds", serialize_with = "seconds"))]
                spill_wait_time: time, c 32;
            }
            text {
                "Memory pool requests: {refusal_count} refused, {slow_allocation_count} beyond the caches of threads";
                "Memory pool driver calls: {driver_call_count} in {driver_call_time:.1?} ({trimmed_bytes} returned)";
                "Memory pool waits: {inserted_wait_count} in streams, {host_wait_count} of the host in {host_wait_time:.1?}";
                "Memory pool spills: {spill_count} arrays moved, {spilled_down_bytes} to the host ({spill_avoided_bytes} without a copy), {spilled_up_bytes} back, waited {spill_wait_time:.1?}";
            }
        }
    };
}
pub(crate) use figures;
