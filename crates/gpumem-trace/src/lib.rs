//! Records of the allocations of GPU programs, and replays of them.
//!
//! A [`Trace`] has the allocations and frees of one program in order. It is read from a file ([`Trace::read`]). [`replay()`] runs it through a pool with other settings, on a GPU or on the simulator, and measures
//! the memory that the pool reserves, its driver calls and their time. [`fit`] finds the settings and the smallest limit that the program
//! runs with.
//!
//! ```
//! use gpumem_sim::{Sim, SimConfig};
//! use gpumem_trace::pool::trace::Trace as Recorder;
//! use gpumem_trace::pool::{Device, Pool, Stream};
//! use gpumem_trace::{Setup, Trace, replay};
//!
//! # let path = std::env::temp_dir().join(format!("gpumem-doc-lib-{}.trace", std::process::id()));
//! let driver = gpumem_sim::driver(SimConfig::new())?;
//! // A program records what it does. `GPUMEM_TRACE=FILE` records a program that builds its pool with `from_env`.
//! let device = Device::new(&driver, 0)?;
//! let pool = Pool::builder(&device).adaptor(Recorder::create(&path)?).build()?;
//! let stream = Stream::new(&device)?;
//! let kept = pool.alloc(40 << 20, &stream)?;
//! drop(pool.alloc(10 << 20, &stream)?);
//! drop((kept, pool));
//!
//! // Does it run with a limit of 48 MiB?
//! let trace = Trace::read(&path)?;
//! let setup = Setup { hard_limit: Some("48MiB".parse()?), ..Setup::default() };
//! let refused = replay(&trace, &driver, &setup, |_| ()).unwrap_err();
//! assert!(refused.to_string().contains("limit of 48.000 MiB"));
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//!
//! | file | made by |
//! | --- | --- |
//! | a recording of gpumem | `GPUMEM_TRACE=FILE`, the flight recorder, or [`pool::trace::Trace`]; [`pool::trace::Recording`] has all that is in it |
//! | a memory snapshot of PyTorch | `torch.cuda.memory._dump_snapshot`; [`snapshot()`] writes a recording as one |
//! | a log of RMM | `RMM_LOG_FILE` and `logging_resource_adaptor` |
//! | a trace in text | any program; the format is below |
//!
//! A file is recognised by its first bytes, and may be compressed with gzip. A malformed one is a [`TraceError`] with the line.
//! A trace in text has one event a line, numbers in decimal digits:
//!
//! ```text
//! #{json}                   first line: `"format":1` and, if known, the fields below
//! a,<id>,<bytes>,<stream>   allocation of a block of <bytes> on <stream>
//! f,<id>,<stream>           free of the block; <stream> is the stream of its allocation
//! c,<id>                    the free takes effect: up to this line another stream used the block
//! ```
//!
//! Ids and streams are whole numbers. An id may be used again once its block is freed. Blocks without a free are live at the end. The
//! header may have `name`, `what`, `run_seconds` (the duration of the recorded program) and `peak_reserved_bytes` by allocator. With
//! `events`, `peak_live_bytes` (between `a` and `f`) and `peak_live_bytes_incl_deferred` (until `c`) it is checked against the events
//! ([`Trace::disagreements`]).
//!
//! # Features
//!
//! `backend-caching` and `backend-native` (both default) are the backends that a replay can use besides `none`.

#![cfg_attr(docsrs, feature(doc_cfg))]
// `unsafe` is limited to the driver whose calls are counted, and to the streams and frees of a replay.
#![deny(unsafe_code)]
#![deny(clippy::disallowed_methods)]

pub use gpumem_pool as pool;

#[allow(unsafe_code)]
pub mod calls;
mod error;
pub mod fit;
mod pytorch;
mod read;
#[allow(unsafe_code)]
mod replay;
mod snapshot;
mod trace;

pub use error::{Problem, TraceError, UnknownName};
pub use replay::{Outcome, ReplayError, Setup, StreamKind, TraceLimit, Waits, replay};
pub use snapshot::snapshot;
pub use trace::{
    Event, Frame, Growth, Header, HolderName, Holders, Holding, MoveSums, OpenEnd, Origin, Peaks, Peer,
    RealRun, StackNode, Stacks, TagSum, Trace,
};
