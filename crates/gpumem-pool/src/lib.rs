//! Stream-ordered GPU memory: devices, streams, events, and a pool of memory blocks.
//!
//! A [`Pool`] allocates [`Block`]s of device memory, each on a [`Stream`]. Work queued on that stream may use the block immediately, and
//! dropping the block frees it in the stream's order, without waiting. The pool tracks which bytes are free on which stream. It reads or
//! writes their contents only in explicit calls such as [`Block::copy_from_host`] and [`Block::fill`].
//!
//! Every function works on any thread with any current CUDA context, and restores that context.
//!
//! The rooms of this crate. A room imports only rooms of earlier rows of this table, which
//! `cargo xtask tidy` checks:
//!
//! | room | content |
//! | --- | --- |
//! | `config` | the configuration of a pool: [`Limit`], [`MemoryKind`], [`BackendKind`], [`Profile`], options by name ([`conf`]) |
//! | `figures` | the table of the figures of [`Status`]; [`PoolCounters`] |
//! | `error` | [`PoolError`]; [`OutOfMemory`], the report of a refused request, with advice |
//! | `stats` | counters of blocks, tags, [`Status`] |
//! | `limits` | how many bytes a pool may hold, alone and together with other pools; [`Reclaimable`]: callbacks that release memory of the program |
//! | `backend` | the sources of memory: `caching`, `native`, `none` |
//! | `pool` | [`Pool`], [`Block`], and how a request runs: adaptors, backend, graphs |
//! | [`trace`] | recording and reading the requests of pools |
//! | [`adaptor`] | behaviours around a pool: budgets, injected failures, guard bytes, fills, tracking, fallback to another pool |
//! | `graph` | [`Capture`], [`Graph`], [`GraphExec`]: work recorded once and launched often, with its memory |
//! | `status_socket` | a Unix socket that answers questions about the pools of the process while it runs |
//! | `builder` | [`PoolBuilder`], and the environment variables |
//!
//! ```
//! use gpumem_pool::{Device, Pool, Stream};
//! use gpumem_sim::SimConfig;
//!
//! let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
//! let pool = Pool::builder(&device).hard_limit("50%").build()?;
//! let stream = Stream::new(&device)?;
//!
//! let block = pool.alloc(8 << 10, &stream)?;
//! assert_eq!(pool.status()?.in_use_bytes, 8 << 10);
//! drop(block);
//! assert_eq!(pool.status()?.in_use_bytes, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

//! # Features
//!
//! | feature | default | meaning |
//! | --- | --- | --- |
//! | `backend-caching` | yes | [`BackendKind::Caching`]: thread caches and a heap over the driver's virtual memory |
//! | `backend-native` | yes | [`BackendKind::Native`]: the driver's stream-ordered pool |
//! | `ipc` | no | on Linux, `Block::send` and `ImportedBlock::receive`: a block goes to another process over a Unix socket, in one call |
//! | `serde` | no | [`Status`], [`OutOfMemory`] and their parts implement `Serialize` |
//! | `tracing` | no | events of the crate `tracing` with the target `gpumem_pool`: refusals (`warn`), returned memory (`info`), steps that made room (`debug`), slow allocations (`trace`) |
//! | `prometheus` | no | `prometheus_text`: the figures of pools in the text format of Prometheus |
//! | `status-socket` | no | on Linux, `GPUMEM_STATUS`: a running process answers questions about its pools over a Unix socket |
//! | `nvml` | no | [`OutOfMemory`] names the other processes on the device |
//!
//! # Systems
//!
//! Linux supports everything. On other systems:
//!
//! - The simulator has no virtual memory management, so [`BackendKind::Caching`] uses plain segments with it;
//!   [`Status::plain_segments`] is true. With the vendor's driver on Windows it works as on Linux.
//! - Blocks cannot be exported to other processes, and on Windows `ExportedBlock` and `ImportedBlock` do not exist.
//! - A [`trace::Trace`] does not lock its file: two processes that use one file corrupt it, so put `%p` into the name.
//! - Thread caches cannot use the system's process-wide memory barrier, and execute fences instead.
//!
//! # Forked processes
//!
//! A driver does not survive `fork`. In a child that was forked after the first [`Device`] was opened, every operation returns
//! [`DeviceError::Forked`], even with cached memory, and drops do nothing, so the child can end normally. Neither takes a lock, because a
//! thread that does not exist in the child may hold it. Start workers that use the GPU with `exec`, or fork before the first [`Device`].

#![cfg_attr(docsrs, feature(doc_cfg))]
// `unsafe` is limited to the modules that call the driver, each of which owns one kind of driver object.
#![deny(unsafe_code)]
// Work goes through `Stream::queue_work` or `Stream::run_borrowed`, which refuse memory that sleeps.
#![deny(clippy::disallowed_methods)]

pub use gpumem_sys as sys;

#[allow(unsafe_code)]
pub mod adaptor;
mod backend;
mod builder;
mod config;
mod error;
mod figures;
#[allow(unsafe_code)]
mod graph;
mod limits;
#[allow(unsafe_code)]
mod pool;
mod stats;
#[cfg(all(feature = "status-socket", target_os = "linux"))]
mod status_socket;
pub mod trace;

pub use backend::{DriverPoolUsage, Keep, Slept, Woken};
pub use builder::PoolBuilder;
#[doc(hidden)]
pub use config::tuning_options;
pub use config::{
    BackendKind, ConfigError, FlightRecorder, IgnoredOption, Interface, IntoLimit, Limit, MemoryKind, PoolId,
    Profile, Spill, SpillFile, SpillNeighbour, VARIABLES, conf,
};
pub use error::{
    Advice, Attempt, BadArgument, Growth, Holder, KeptArrays, KeptBy, NoRoom, OutOfMemory, PoolError,
    PoolUsage, ProcessUsage, RefusedBy, RequestOrigin, SpillFileReport, SpillReport, UnfinishedStream,
    Unsupported,
};
pub use figures::{PoolCounters, StepCounters};
#[cfg(gpumem_planted_bugs)]
#[doc(hidden)]
pub use gpumem_base::injected_bugs;
#[doc(hidden)]
pub use gpumem_device::internal::{LentMemory, PeerDevice, RecentStreams, not_forked};
pub use gpumem_device::{
    BorrowedHostMemory, Bytes, CaptureError, CaptureModeGuard, Completion, ContextGuard, Device, DeviceError,
    Event, HostBuffer, HostBufferMut, HostMemory, HostMemoryError, MemoryInfo, MemoryRange, Stream,
    StreamBuilder, StreamError, StreamId, StreamPoint,
};
pub use graph::{Capture, CaptureMode, ForeignCaptures, Graph, GraphExec};
pub use limits::reclaim::{Reclaimable, Registration};
#[cfg(all(feature = "ipc", target_os = "linux"))]
pub use pool::SocketError;
pub use pool::{
    Block, BlockToken, CurrentPool, GrowableBlock, Location, MemoryAdvice, Pool, RawBlock, Reservation, Room,
    RoomFuture, Scope, ScopeUsage, Tag,
};
#[cfg(unix)]
pub use pool::{ExportedBlock, ExportedHandle, ImportedBlock};
#[doc(hidden)]
pub use pool::{Settled, SpillPin, SpillableBlock};
#[cfg(feature = "prometheus")]
pub use stats::prometheus_text;
pub use stats::{Status, StreamUsage, TagUsage};
