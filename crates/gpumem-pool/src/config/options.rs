//! One table of all options of a pool. An entry of [`options!`] reads
//!
//! ```text
//! name: Type = parser("expected values") default "default" => place in `Config` on SCOPE: "description";
//! ```
//!
//! and generates the field of [`Options`], the key of `GPUMEM_CONF`, the row of the documentation of [`conf`], and the value in [`Config`].
//! With `setter(Type)` it also generates a method of [`PoolBuilder`](crate::PoolBuilder), and with `variable "GPUMEM_…"` an environment
//! variable. Marks stand before `=>`. `preset`: profiles set the option, and
//! [`Profile::options`] lists it. `hidden`: the option is for benches, and its text is on the hidden page [`tuning_options`].

use crate::config::ignored::{ALL, CACHES, CACHING, Instead, MAPPED, SEGMENTS, VIRTUAL};
use crate::config::values::{
    boolean, byte_count, divisions, fraction, handle_pages, limit, microseconds, milliseconds, named,
    no_caching, number, share, split_bytes,
};
use crate::config::{
    BackendKind, Config, FlightRecorder, Limit, MemoryKind, PeerOption, Profile, Spill, render,
};
use core::time::Duration;
use gpumem_sys::env::Variable;

/// A given value, and the name under which it was given: a key, or an environment variable.
pub(crate) type Given<T> = Option<(T, &'static str)>;

pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) expected: &'static str,
    pub(crate) variable: Option<&'static str>,
    pub(crate) marks: &'static [&'static str],
    #[cfg(test)]
    pub(crate) default: &'static str,
    pub(crate) instead: Instead,
    /// The name under which the option was given.
    pub(crate) given: fn(&Options) -> Option<&'static str>,
    /// Parses and sets a value. The error is the mistake, or empty.
    pub(crate) set: fn(&mut Options, &str, &'static str) -> Result<(), String>,
}

/// The backends on which an option has an effect, for the documentation.
#[rustfmt::skip]
macro_rules! scope {
    (ALL) => { "all" };
    (CACHES) => { "`caching`, `native`" };
    (CACHING) => { "`caching`" };
    (MAPPED) => { "`caching` over virtual memory" };
    (SEGMENTS) => { "`caching` over plain segments" };
    (VIRTUAL) => { "`caching`" };
}

/// A name that sets a field of [`Options`].
macro_rules! key {
    (
        $name:ident sets $field:ident = $parser:ident($expected:expr), $default:literal, $scope:ident,
        [$($mark:ident)*], $($variable:literal)?
    ) => {
        Key {
            name: stringify!($name),
            expected: $expected,
            variable: first(&[$($variable)?]),
            marks: &[$(stringify!($mark)),*],
            #[cfg(test)]
            default: $default,
            instead: $scope,
            given: |options| options.$field.as_ref().map(|(_, given_as)| *given_as),
            set: |options, value, given_as| {
                options.$field = Some(($parser(value)?, given_as));
                Ok(())
            },
        }
    };
}

/// The text that a mistake shows: the documented one, or another one.
macro_rules! expected {
    ($documented:literal) => {
        $documented
    };
    ($documented:literal, $shown:expr) => {
        $shown
    };
}

/// The row of a public option, and the text of a hidden one. Empty lines follow a table and separate items.
#[rustfmt::skip]
macro_rules! row {
    ([$(preset)? hidden] $($text:expr),+) => { "" };
    ([$(preset)?] $($text:expr),+) => { concat!($($text),+) };
}

#[rustfmt::skip]
macro_rules! item {
    ([$(preset)? hidden] $($text:expr),+) => { concat!($($text),+) };
    ([$(preset)?] $($text:expr),+) => { "" };
}

macro_rules! list_preset {
    ([preset $(hidden)?] $items:ident, $name:ident, $parser:ident($value:expr)) => {
        $items.push(format!("{}:{}", stringify!($name), render::$parser(&$value)));
    };
    ([$(hidden)?] $($rest:tt)*) => {};
}

macro_rules! value_of {
    ($value:ident) => {
        Ok::<_, ConfigError>($value.into())
    };
    ($value:ident, $into:ident) => {
        $value.$into()
    };
}
pub(crate) use value_of;

macro_rules! setter {
    ($name:ident(), $text:literal, $values:expr) => {};
    ($name:ident($argument:ty $(, $convert:ident)?), $text:literal, $values:expr) => {
        #[doc = concat!("Sets the option `", stringify!($name), "`: ", $text, ".")]
        ///
        #[doc = $values]
        pub fn $name(mut self, value: $argument) -> Self {
            match value_of!(value $(, $convert)?) {
                Ok(value) => self.options.$name = Some((value, stringify!($name))),
                Err(mistake) => self.mistake = self.mistake.or(Some(mistake)),
            }
            self
        }
    };
}
pub(crate) use setter;

macro_rules! options {
    (
        $(#[$before:meta])*
        table {$(
            $name:ident: $type:ty = $parser:ident($expected:literal $(, mistake $shown:expr)?)
                default $default:literal $($mark:ident)* => $($place:ident).+ on $scope:ident $(, setter($argument:ty $(=> $convert:ident)?))?
                $(, variable $variable:literal)?: $text:literal;
        )+}
        other names {$(
            $alias:ident for $option:ident = $alias_parser:ident($alias_expected:literal): $alias_text:literal;
        )+}
        $(#[$after:meta])*
        pub mod conf;
    ) => {
        /// The options that were given. Values are valid, except for shares of [`Limit`], which [`Config::new`] checks.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Options { $(pub(crate) $name: Given<$type>,)+ }

        impl Options {
            pub(crate) fn update(&mut self, later: Self) {
                $(self.$name = later.$name.or(self.$name.take());)+
            }

            /// The options of `GPUMEM_CONF`, for errors and advice that name where an option was set.
            pub(crate) fn of_variable(mut self) -> Self {
                $(if let Some((_, given_as)) = &mut self.$name
                    && *given_as == stringify!($name)
                {
                    *given_as = concat!(stringify!($name), " in GPUMEM_CONF");
                })+
                self
            }

            pub(crate) fn text(&self) -> String {
                let mut items = Vec::new();
                $(items.extend(self.$name.as_ref().map(|(value, _)| {
                    format!("{}:{}", stringify!($name), render::$parser(value))
                }));)+
                items.join(",")
            }

            /// Sets the values in a configuration, in the table's order: the profile before the options that it presets.
            pub(crate) fn apply(self, config: &mut Config) {
                $(if let Some((value, _)) = self.$name {
                    config.$($place).+ = value.into();
                })+
            }
        }

        pub(crate) const KEYS: &[Key] = &[
            $(key!(
                $name sets $name = $parser(expected!($expected $(, $shown)?)), $default, $scope, [$($mark)*],
                $($variable)?
            ),)+
            $(key!($alias sets $option = $alias_parser($alias_expected), "", ALL, [],),)+
        ];

        impl Profile {
            /// The options that the profile presets, as `key:value,…`.
            ///
            /// ```
            /// use gpumem_pool::Profile;
            ///
            /// assert!(Profile::Tight.options().contains("growth_slack:0,"));
            /// assert!(Profile::Fast.options().contains("inserted_waits:false"));
            /// ```
            #[must_use]
            pub fn options(self) -> String {
                let config = Config { tuning: self.into(), ..Config::default() };
                let mut items = Vec::new();
                $(list_preset!([$($mark)*] items, $name, $parser(config.$($place).+));)+
                items.join(",")
            }
        }

        /// The variables that [`PoolBuilder::from_env`](crate::PoolBuilder::from_env) reads.
        pub const VARIABLES: &[Variable] = &[
            $($(Variable {
                name: $variable,
                meaning: concat!($expected, "; default ", $default, ": ", $text),
            },)?)+
            Variable {
                name: "GPUMEM_CONF",
                meaning: "`key:value,…`: any options of a pool by name, including PyTorch's allocator options; the page \
                          `gpumem_pool::conf` lists them",
            },
            Variable {
                name: "GPUMEM_TRACE",
                meaning: "a file into which pools record their requests, for `gpumem replay`; `%p` in its name is the \
                          process ID. An earlier trace is kept as `FILE.1`, up to `FILE.3`. A symbolic link is refused, and \
                          so is an existing file that is not a trace",
            },
            Variable {
                name: "GPUMEM_TRACE_LIMIT",
                meaning: "bytes, with or without a unit (64MiB); default none, minimum 4MiB: the size limit of `GPUMEM_TRACE`, \
                          earlier files included. The oldest events are deleted",
            },
            Variable {
                name: "GPUMEM_STATUS",
                meaning: "`off`, `on`, or a path; default `off`: on Linux, whether the process can be looked into while it runs, with `gpumem top` \
                          and over a Unix socket, which only its own user can use. `on` is `gpumem-PID.sock` in `$XDG_RUNTIME_DIR/gpumem`, or in \
                          `/tmp/gpumem-UID` without that variable. A path is that of the socket, with `%p` for the process ID, or of a folder for it",
            },
        ];

        /// The setters of [`PoolBuilder`](crate::PoolBuilder) for options of the table. [`PoolBuilder::build`](crate::PoolBuilder::build)
        /// returns the first mistake.
        macro_rules! setters {
            () => {
                $(setter!(
                    $name($($argument $(, $convert)?)?), $text,
                    concat!("In text: ", $expected, ". Default: ", $default, "." $(, " Variable: `", $variable, "`.")?)
                );)+
            };
        }
        pub(crate) use setters;

        $(#[$before])*
        ///
        /// | option | value | default | backends | meaning |
        /// | --- | --- | --- | --- | --- |
        $(#[doc = row!(
            [$($mark)*]
            "| `", stringify!($name), "` | ", $expected, " | ", $default, " | ", scope!($scope), " | ", $text, " |"
        )])+
        ///
        /// # Other names
        ///
        /// | name | value | meaning |
        /// | --- | --- | --- |
        $(#[doc = concat!("| `", stringify!($alias), "` | ", $alias_expected, " | ", $alias_text, " |")])+
        ///
        $(#[$after])*
        pub mod conf {
            /// The names of the options of this page, and those of the hidden ones.
            #[doc(hidden)]
            pub fn names() -> [Vec<&'static str>; 2] {
                let (hidden, public) = super::KEYS.iter().partition(|key| key.marks.contains(&"hidden"));
                [public, hidden].map(|keys: Vec<&super::Key>| keys.iter().map(|key| key.name).collect())
            }
        }

        /// Options by name for benches. A profile presets most of them.
        ///
        $(#[doc = item!(
            [$($mark)*]
            "- `", stringify!($name), "` (", scope!($scope), "): ", $expected, "; default ", $default, ": ", $text, "."
        )])+
        #[doc(hidden)]
        pub mod tuning_options {}
    };
}

const fn first(names: &[&'static str]) -> Option<&'static str> {
    match names {
        [name, ..] => Some(*name),
        [] => None,
    }
}

options! {
    /// The options of a pool by name: `key:value,…`, for [`PoolBuilder::conf`](crate::PoolBuilder::conf) and
    /// `GPUMEM_CONF`.
    ///
    /// Keys and values are case-insensitive, and spaces around them are ignored. Later calls on the builder override earlier ones. In the
    /// environment, a variable for one option (`GPUMEM_POOL`) overrides `GPUMEM_CONF`. Options by name override the values of a profile, in
    /// any order. An option without effect on the pool's backend is accepted, and [`Pool::ignored_options`](crate::Pool::ignored_options)
    /// lists it. The table leaves out the options that only benches vary; [`Profile::options`](crate::Profile::options) has their values.
    table {
    kind: MemoryKind = named("`device`, `unified` or `host`") default "`device`"
        => kind on ALL, setter(MemoryKind), variable "GPUMEM_KIND":
        "the kind of memory. `native` has device memory only. Host-accessible memory is reused only when every use is complete. Until then \
         the pool grows, and waits only at its hard limit. Nothing else bounds host memory, so set a hard limit for it";
    backend: BackendKind = named("`caching`, `native` or `none`") default "the first that is built in and works"
        => backend on ALL, setter(BackendKind), variable "GPUMEM_POOL":
        "the source of the memory. Creating the pool fails if the backend is not built in or the device does not support it. \
         PyTorch's `cudaMallocAsync` is `native`, and PyTorch's `native` is `caching`";
    profile: Profile = named("the name of a `Profile`, such as `tight`", mistake Profile::NAMES) default "`balanced`"
        => tuning on CACHING, setter(Profile), variable "GPUMEM_PROFILE":
        "a preset of the options that trade memory against driver calls and time";
    hard_limit: Limit = limit("bytes (10000), with a unit (100M, 1.5GiB), or a share of the device's memory (50%) or of its free memory (50%free)")
        default "none" => hard_limit on ALL, setter(impl IntoLimit => into_limit), variable "GPUMEM_HARD_LIMIT":
        "the memory that the pool never exceeds: what `caching` reserves, and what is in use with the other backends. Each \
         pool has its own limit, for its kind of memory. A limit of host memory is given in bytes";
    soft_limit: Limit = limit("bytes (10000), with a unit (100M, 1.5GiB), or a share of the device's memory (50%) or of its free memory (50%free)")
        default "none" => soft_limit on CACHES, setter(impl IntoLimit => into_limit), variable "GPUMEM_SOFT_LIMIT":
        "at synchronisation points, cached memory is released until at most this much is reserved";

    garbage_collection_threshold: f64 = share("a number between 0 and 1") default "none" => collect_above on CACHES:
        "while more than this share of the hard limit (of the device, if there is none) is reserved, an allocation that finds \
         no cached block releases idle memory first. `native` cannot see what the driver's pool has cached: it releases idle \
         memory when the driver's pool grows beyond the threshold, shortly before or after";
    trim_when_idle_ms: Duration = milliseconds("milliseconds") default "never" => idle_after on CACHES:
        "all cached memory is released once this time has passed without an allocation. There is no background thread: the \
         time is checked when the host waits for a stream or the device, when it queries whether work is complete, and when \
         another pool of the device allocates on the slow path. It begins at the first such moment after an allocation";
    flight_recorder: FlightRecorder = named("`off`, `on`, or the path of a file (flight.trace)") default "`off`"
        => flight_recorder on ALL, setter(impl Into<FlightRecorder>), variable "GPUMEM_FLIGHT_RECORDER":
        "whether the last events of each thread are kept in memory, and written to a file when a request is refused with a report; \
         `on` is `gpumem-PID.trace` in the folder for temporary files, and `%p` in a path is the process ID. The cost: every \
         allocation and free takes the slow path and records an event, as with a trace";
    spill: Spill = named("`off`, or `host:` and the bytes of host memory (host:32GiB), before that bytes of another device's, and behind it those of \
        a file (host:32GiB+device1:16GiB+file:200GiB:/scratch)")
        default "`off`"
        => spill on ALL, setter(Spill), variable "GPUMEM_SPILL":
        "whether arrays move to pinned host memory while device memory is short, instead of a refusal. An array moves back at its \
         next use. Arrays of less than 64 KiB stay, and so do those whose address other code has";
    spill_bytes_min: u64 = byte_count("bytes (4096, 1MiB)") default "64KiB" hidden => spill_bytes_min on ALL:
        "smaller arrays do not move: moving them frees little, and each move costs some microseconds";
    oversubscribe: bool = boolean("`true` or `false`") default "`false`" => oversubscribes on ALL:
        "whether the pool may exceed the margin of unified memory. Otherwise unified memory and all pools of a \
         [`Device`] together stay below 15/16 of its memory. Beyond the device's free memory, pages move back \
         and forth, and a program that uses them all at once may stall. A block may be larger than the device";
    peers: PeerOption = named("`none`, `all`, an ordinal (1), or a list of them (`[0,1]`)") default "`none`"
        => peers on ALL, variable "GPUMEM_PEERS":
        "the other devices that may use the memory: `all` that have a link, or these, which must have one; see \
         `Pool::enable_peer_access`. Each growth costs access calls for all of them, whether or not the program uses them; no context is created for them, except with the backend `none` and over plain segments";
    expandable_segments: bool = boolean("`true` or `false`") default "`true` where the driver maps memory"
        => expandable_segments on VIRTUAL:
        "`false` selects plain segments (`cuMemAlloc`), for software that cannot handle mapped memory, such as \
         `cuIpcGetMemHandle` or older tools. Free memory between their blocks stays there, only a segment that is free as a \
         whole can be released, and releasing waits for the device; see below. A pool has them too on a device where memory cannot \
          be mapped and written, and, for the pools of PyTorch, CuPy and RMM and [`Pool::for_device`], on one without a \
          link to each other device. `Status::plain_segments` reports which applies, and `Status::plain_segments_reason` why";
    exportable: bool = boolean("`true` or `false`") default "`false`" => handle_use.exportable on ALL:
        "whether memory can be handed to other processes as file descriptors, which only `caching` supports. The driver finds \
         the handle under a block's address (`cuMemRetainAllocationHandle`) and exports it (`cuMemExportToShareableHandle`), \
         with all blocks that lie in it; see [`Block::pin_backing`]";
    rdma: bool = boolean("`true` or `false`") default "`false`" => handle_use.rdma on ALL:
        "whether network cards can access the memory directly once it is pinned \
         ([`Block::pin_backing`]). `none` and plain segments of `caching` always support this, \
         mapped memory of `caching` where the device does (elsewhere the pool uses plain segments, and `Status` states why), and \
         `native` never";
    wait_deadline_ms: Duration = milliseconds("milliseconds") default "10000" => tuning.wait_deadline on ALL:
        "how long an allocation may wait for running work when memory is out, over all its attempts; see below";

    inserted_waits: bool = boolean("`true` or `false`") default "by [profile](crate::Profile::options)" preset
        => tuning.inserted_waits on CACHING:
        "whether the pool may make one stream wait for another on the device rather than exceed the slack. Streams that allow \
         no waits never get any. `true` costs concurrency of streams; `false`, memory";

    growth_slack: u32 = number("thousandths of the peak in use") default "by profile" preset hidden
        => tuning.heap.growth_slack_per_mille on CACHING:
        "how far reserved memory may exceed the peak in use before idle memory is remapped instead. Larger costs memory; \
         smaller, driver calls. With 0, streams that share the heap do not share pages of 2 MiB";
    growth_slack_max: u32 = number("thousandths of the peak in use") default "by profile" preset hidden
        => tuning.heap.growth_slack_max_per_mille on CACHING:
        "replaces `growth_slack` for a program whose requests keep changing, once its allowance of mappings is used up. Larger \
         costs memory";
    mapping_allowance: u32 = number("thousandths") default "by profile" preset hidden
        => tuning.heap.mapping_allowance_per_mille on MAPPED:
        "mappings created over idle memory, per allocated block above 1 MiB: 40 is one mapping per 25 blocks. A program \
         starts with an allowance of 512 mappings and accumulates no more. Larger costs driver calls; smaller, memory. No \
         effect while `growth_slack_max` is not above `growth_slack`";
    handle_bytes_max: u32 = handle_pages("bytes, with or without a unit (2097152, 64MiB)") default "by profile" preset hidden
        => tuning.heap.handle_max_pages on CACHING:
        "the largest handle of physical memory that is created at once; rounded to 2 MiB, and clamped to 2 to 128 MiB. Larger \
         costs idle memory that cannot be released beside memory in use; smaller, driver calls";
    growth_divisor: u32 = number("a number") default "by profile" preset hidden => tuning.heap.growth_divisor on CACHING:
        "the heap grows by at least its size divided by this number. Larger costs driver calls; smaller, memory";
    roundup_power2_divisions: u32 = divisions("a power of two up to 64, or 0") default "by profile" preset hidden
        => tuning.size_divisor on CACHING:
        "block sizes above 1 MiB are rounded up to a multiple of this part of their power of two; 0 rounds to 256 bytes only. \
         Larger costs exact fits, so driver calls; smaller, memory";
    max_split_size_mb: u64 = split_bytes("MiB, 20 or more") default "none" hidden => tuning.heap.split_bytes_max on SEGMENTS:
        "over plain segments, each larger block has its own segment, which no smaller block shares; it may leave at most this \
         much of the segment unused. Larger keeps large segments from being reused or released, because small blocks lie in \
         them; smaller costs memory, where sizes vary";
    magazine_share: u32 = number("thousandths of the reserved memory") default "by profile" preset hidden
        => tuning.heap.magazine_share_per_mille on CACHING:
        "how much all threads together may cache in blocks up to 1 MiB. Larger costs memory; smaller, locks";
    magazine_bytes_min: u64 = byte_count("bytes, with or without a unit (2097152, 64MiB)") default "by profile" preset hidden
        => tuning.heap.magazine_bytes_min on CACHING:
        "the lower bound of that cache. Larger costs memory in small heaps";
    empty_mappings_max: u32 = number("a number") default "by profile" preset hidden
        => tuning.heap.empty_mappings_max on MAPPED:
        "mappings kept after their memory moved on, so that it can move back without a driver call; at most 8 for each 2 MiB \
         of memory, or 256. Mappings beyond this number are removed in turn, once the last uses of the memory that left them \
         are known to be complete. Larger costs host memory, 12 bytes for each page of 2 MiB; smaller, driver calls";
    poll_budget_us: Duration = microseconds("microseconds") default "by profile" preset hidden => tuning.poll_budget on CACHING:
        "how long one allocation may query the driver for completed work; `native` never does. \
         Larger costs time; smaller delays the reuse of memory freed on other streams. With 0, that memory is reused only \
         where the program itself orders or observes streams";
    release_budget_us: Duration = microseconds("microseconds") default "by profile" preset hidden
        => tuning.release_budget on CACHING:
        "how long an allocation on the slow path, or the start of a host wait, may release memory above the soft limit. Larger \
         costs time; smaller keeps memory above the soft limit longer. With 0, only the ends of waits release it";
    }
    other names {
    per_process_memory_fraction for hard_limit = fraction("a number above 0, up to 1"):
        "PyTorch's name of a hard limit that is a share of the device's memory: 0.5 is `hard_limit:50%`";
    no_caching for backend = no_caching("`true`"): "`no_caching:true` is `backend:none`";
    }

    /// # Limits
    ///
    /// In a pool with a hard limit, serving a request that fits takes precedence over speed, in every profile and with any
    /// tuning. Handles are at most 1/2048 of the limit, and blocks are not rounded up. Once blocks have needed 1/32 of the
    /// limit, there is no slack. Once they have needed half of it, handles, growth and magazines are those of `tight`. A few
    /// thousand misses after the blocks were freed, the profile's own values apply again.
    ///
    /// # The deadline
    ///
    /// With `wait_deadline_ms:0`, an allocation never waits. A request that reaches the deadline is refused, and its report names the
    /// streams with unfinished work ([`OutOfMemory::unfinished`](crate::OutOfMemory::unfinished)). The deadline bounds
    /// [`Pool::alloc`](crate::Pool::alloc) and its variants, [`Pool::reserve`](crate::Pool::reserve) and
    /// [`GrowableBlock::grow_to`](crate::GrowableBlock::grow_to), including reclaim callbacks and other pools that they use. It does not
    /// bound:
    ///
    /// - waits that the caller requests (`synchronize`, [`Pool::reclaim`](crate::Pool::reclaim));
    /// - drops of [`HostMemory`](crate::HostMemory) and [`ImportedBlock`](crate::ImportedBlock), and frees of the backend
    ///   `none`;
    /// - driver calls that wait internally (as `cuMemAlloc` may);
    /// - with drivers before CUDA 12.5, work on other libraries' streams.
    ///
    /// # Memory over plain segments
    ///
    /// A free segment cannot serve a larger block. Before the pool grows beyond 1.5 times the memory that blocks have needed, segments that
    /// are smaller than the new one and free as a whole are returned to the driver, whose free waits for the device. With a repeating
    /// pattern of sizes such exchanges stop. These options bound the remaining waste:
    ///
    /// - `growth_slack:0`, or the profile `tight`: segments are returned as soon as the pool would exceed its peak in use. This costs waits
    ///   for the device while sizes still grow.
    /// - `max_split_size_mb`: small blocks do not hold large segments. Segments above that size do not serve smaller blocks, so if sizes
    ///   vary, also set:
    /// - `garbage_collection_threshold` or `hard_limit`: beyond that share, free segments of any size are returned.
    ///
    /// # Small blocks in large segments
    ///
    /// In PyTorch, `max_split_size_mb` prevents small blocks from splitting large ones. Over virtual memory, `caching` remaps the idle
    /// memory around a small block to where it is needed, so the option has no effect there; `profile` and `growth_slack` bound the memory
    /// that is reserved beyond the blocks. Plain segments, which also hold the other kinds of memory, are split like PyTorch's, and there
    /// the option works as in PyTorch.
    ///
    /// # Examples
    ///
    /// Cached memory is released when the program is idle:
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    /// use std::time::Duration;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).conf("trim_when_idle_ms:5")?.build()?;
    /// let stream = Stream::new(&device)?;
    /// drop(pool.alloc(5 << 20, &stream)?);
    /// stream.synchronize()?;
    /// std::thread::sleep(Duration::from_millis(10));
    /// stream.synchronize()?;
    /// assert_eq!(pool.status()?.reserved_bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Plain segments:
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).conf("backend:caching, expandable_segments:false")?.build()?;
    /// let block = pool.alloc(5 << 20, &Stream::new(&device)?)?;
    /// assert!(pool.status()?.to_string().contains("caching (plain segments)"));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`Device`]: crate::Device
    /// [`Pool::for_device`]: crate::Pool::for_device
    /// [`Block::pin_backing`]: crate::Block::pin_backing
    pub mod conf;
}
