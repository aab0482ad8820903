//! Stream-ordered GPU memory: devices, streams, events, and a pool that hands out blocks.
//!
//! A [`Pool`] gives a [`Block`] of device memory that belongs to a [`Stream`]: work queued on that stream may use it at
//! once, and dropping it frees it in the stream's order, without waiting. Which bytes are free, on which stream and
//! when, is this layer's business; what the bytes mean is not: the pool never reads or writes what it hands out.
//!
//! Everything here works on any thread, whatever CUDA context is current there, and leaves that context as it was.
//!
//! | module | noun |
//! | --- | --- |
//! | `device`, `context` | [`Device`], and [`Bound`]: its context, current on a thread for a while |
//! | `stream`, `event` | [`Stream`], [`Event`]: the driver's objects, owned |
//! | `block`, `raw_block`, `alignment`, `pinning` | [`Block`]: what a user holds; drop gives it back in stream order |
//! | `growable` | [`GrowableBlock`]: one that grows in place |
//! | `kind`, `unified`, `account` | [`MemoryKind`]: whose memory it is; where its pages are; how much of it a device bears |
//! | `host_memory`, `sharing` | [`HostMemory`]: the program's own, for devices; blocks in other processes |
//! | `pool`, `state`, `peers`, `private`, `family`, `dues` | [`Pool`]: the front door, and what is behind it for as long as a handle or a block lives |
//! | `clock` | what is ordered and what is done: a free asks the driver nothing |
//! | `graph` | [`Capture`], [`Graph`], [`GraphExec`]: work recorded once and launched often, with its memory |
//! | `options`, `limit`, `dials`, `divisions` | [`PoolBuilder`], [`BackendKind`], [`Limit`], [`Profile`], [`Dials`] and [`Divisions`] |
//! | `status`, `bytes`, `error` | what a pool says of itself; `scope`, `tags`: what for; `out_of_memory`: why it refused, with advice |
//! | `reclaim` | [`Reclaimable`]: what a program can do without when memory is short |
//! | [`adaptor`], [`trace`] | behaviour around a pool: budgets, failures on purpose, guards, fills, tracking, another pool, a record of it all |
//! | `backend` | where the bytes come from: `caching`, `native`, `none`; `upkeep`: what pools leave to their device |
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

#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
mod account;
#[allow(unsafe_code)]
pub mod adaptor;
mod alignment;
mod attention;
mod backend;
#[allow(unsafe_code)]
mod block;
mod bytes;
#[allow(dead_code, reason = "what only the caching backend asks for")]
mod clock;
pub mod conf;
mod contained;
#[allow(unsafe_code)]
mod context;
mod deadline;
#[allow(unsafe_code)]
mod device;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "only the caching backend reads them")
)]
mod dials;
#[cfg_attr(not(feature = "backend-caching"), allow(dead_code, reason = "only the caching backend rounds"))]
mod divisions;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
mod dues;
mod error;
#[allow(unsafe_code)]
mod event;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
mod family;
#[allow(unsafe_code)]
mod graph;
mod growable;
#[allow(unsafe_code)]
mod host_memory;
mod kind;
mod ledger;
mod limit;
mod options;
mod out_of_memory;
#[allow(unsafe_code)]
mod peers;
mod pinning;
#[cfg(gpumem_planted_bugs)]
#[doc(hidden)]
pub use gpumem_heap::injected_bugs;
mod pool;
mod private;
#[allow(unsafe_code)]
mod raw_block;
mod reclaim;
mod scope;
#[cfg(unix)]
#[allow(unsafe_code)]
mod sharing;
#[allow(unsafe_code)]
mod state;
mod status;
#[allow(unsafe_code)]
mod stream;
#[allow(unsafe_code)]
mod tags;
pub mod trace;
#[allow(unsafe_code)]
mod unified;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
mod upkeep;

pub use block::Block;
pub use bytes::Bytes;
pub use clock::StreamId;
pub use conf::{ConfError, Notice};
pub use context::{Bound, Relaxed};
pub use device::{Device, MemoryInfo};
pub use dials::{Dials, Profile};
pub use divisions::{Divisions, DivisionsError};
pub use error::PoolError;
pub use event::Event;
pub use graph::{Capture, CaptureMode, Graph, GraphExec};
pub use growable::GrowableBlock;
pub use host_memory::{BorrowedHostMemory, HostBuffer, HostBufferMut, HostMemory, HostMemoryError};
pub use kind::MemoryKind;
pub use limit::Limit;
pub use options::{BackendKind, PoolBuilder, VARIABLES};
pub use out_of_memory::{
    Advice, Attempt, Growth, Holder, OutOfMemory, ProcessUsage, RefusedBy, UnfinishedStream,
};
pub use pool::Pool;
pub use raw_block::{BlockToken, RawBlock};
pub use reclaim::{Reclaimable, Registration};
pub use scope::{Scope, ScopeUsage};
#[cfg(unix)]
pub use sharing::{ExportedBlock, ExportedHandle, ImportedBlock};
pub use status::{Status, StreamUsage, TagUsage};
pub use stream::{Stream, StreamBuilder};
pub use unified::{Expectation, Location};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
