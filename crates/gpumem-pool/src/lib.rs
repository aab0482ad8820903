//! Stream-ordered GPU memory: devices, streams, events, and a pool that hands out blocks.
//!
//! A [`Pool`] gives a [`Block`] of device memory that belongs to a [`Stream`]: work queued on that stream may use it at
//! once, and dropping it frees it in the stream's order, without waiting. Which bytes are free, on which stream and
//! when, is this layer's business; what the bytes mean is not: the pool never reads or writes what it hands out.
//!
//! Everything here works on any thread, whatever CUDA context is current there, and leaves that context as it was.
//!
//! The rooms of this crate, the lowest first. A room imports only from rooms above it in this table, which `cargo xtask tidy`
//! checks:
//!
//! | room | what is in it |
//! | --- | --- |
//! | `config` | how a pool is set up: [`Limit`], [`MemoryKind`], [`BackendKind`], [`Profile`], [`Tuning`], options by name ([`conf`]) |
//! | `error` | [`PoolError`]; [`OutOfMemory`], why a request was refused, with advice |
//! | `limits` | how many bytes a pool may hold, alone and together with others |
//! | `stats` | counters, tags, [`Status`] |
//! | `reclaim` | [`Reclaimable`]: what a program can do without when memory is short |
//! | `device` | [`Device`], [`Stream`], [`Event`], [`HostMemory`]; which work is ordered and which is complete; maintenance while the host waits |
//! | `backend` | where the bytes come from: `caching`, `native`, `none` |
//! | `pool` | [`Pool`], [`Block`], and how a request runs: adaptors, backend, graphs |
//! | [`trace`] | a record of all that a pool does |
//! | [`adaptor`] | behaviour around a pool: budgets, injected failures, guards, fills, tracking, another pool |
//! | `graph` | [`Capture`], [`Graph`], [`GraphExec`]: work recorded once and launched often, with its memory |
//! | `builder` | [`PoolBuilder`], and the environment variables |
//!
//! ```
//! use gpumem_pool::{Device, Limit, Pool, Stream};
//! use gpumem_sim::SimConfig;
//!
//! let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
//! let pool = Pool::builder(&device).hard_limit("50%".parse::<Limit>()?).build()?;
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
//! | `serde` | no | [`Status`] and its parts implement `Serialize` |
//! | `nvml` | no | [`OutOfMemory`] names the other processes on the device |
//!
//! # Systems
//!
//! Everything is there on Linux. Elsewhere:
//!
//! - the simulator has no virtual memory management, so [`BackendKind::Caching`] works over plain segments there; the
//!   status says so. Over the vendor's driver on Windows it works as on Linux;
//! - blocks can't be exported to other processes, and on Windows `ExportedBlock` and `ImportedBlock` don't exist;
//! - a [`trace::Trace`] does not lock its file: two processes that name one file spoil it, so put `%p` into the name;
//! - the threads' caches have no barrier of the system's, and make fences of their own instead.
//!
//! # Forked processes
//!
//! A driver does not survive `fork`: every call of it answers `CUDA_ERROR_NOT_INITIALIZED` in the child. The child has copies
//! of the locks, too, some of them held by threads that it lacks. It must neither use nor drop devices, streams, pools and
//! blocks of its parent: it may `exec`, or leave by `_exit`. Fork before the first [`Device`] is made, or start a new process.

#![cfg_attr(docsrs, feature(doc_cfg))]
// `unsafe` is calling the driver, in the modules that own one kind of its objects each.
#![deny(unsafe_code)]

pub use gpumem_sys as sys;

#[allow(unsafe_code)]
pub mod adaptor;
mod backend;
mod builder;
mod config;
#[allow(unsafe_code)]
mod device;
mod error;
#[allow(unsafe_code)]
mod graph;
mod limits;
#[allow(unsafe_code)]
mod pool;
mod reclaim;
mod stats;
pub mod trace;

pub use builder::{PoolBuilder, VARIABLES};
pub use config::conf::{ConfigError, IgnoredOption};
pub use config::{
    BackendKind, Bytes, Limit, MemoryKind, Profile, SizeRounding, SizeRoundingError, Tuning, conf,
};
pub use device::{
    BorrowedHostMemory, CaptureModeGuard, ContextGuard, Device, Event, HostBuffer, HostBufferMut, HostMemory,
    HostMemoryError, MemoryInfo, Stream, StreamBuilder, StreamId,
};
pub use error::{
    Advice, Attempt, Growth, Holder, OutOfMemory, PoolError, ProcessUsage, RefusedBy, UnfinishedStream,
};
#[cfg(gpumem_planted_bugs)]
#[doc(hidden)]
pub use gpumem_heap::injected_bugs;
pub use graph::{Capture, CaptureMode, Graph, GraphExec};
pub use pool::{Block, BlockToken, GrowableBlock, Location, MemoryAdvice, Pool, RawBlock, Scope, ScopeUsage};
#[cfg(unix)]
pub use pool::{ExportedBlock, ExportedHandle, ImportedBlock};
pub use reclaim::{Reclaimable, Registration};
pub use stats::{Status, StreamUsage, TagUsage};
