//! A safe CUDA runtime: devices, streams, events, host memory and futures, with the order between their work.
//!
//! A [`Device`] holds a GPU's primary context. Work is queued on a [`Stream`], which may be the program's own or another library's. The
//! crate keeps track of the order between streams: a [`StreamPoint`] is a place in a stream's work that other streams wait for and that
//! may be known to be complete. [`HostMemory`] and [`Device::with_host_memory`] give devices access to host memory, and a [`Completion`]
//! is a future of queued work.
//!
//! Every function works on any thread with any current CUDA context, and restores that context. Errors are [`DeviceError`]s.
//!
//! ```
//! use gpumem_device::{Device, Event, Stream};
//! use gpumem_sim::SimConfig;
//!
//! let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
//! let (writer, reader) = (Stream::new(&device)?, Stream::new(&device)?);
//! let written = Event::new(&device)?;
//! // … queue work on `writer` …
//! written.record(&writer)?;
//! reader.wait(&written)?;
//! // … queue work on `reader` that uses the results …
//! reader.synchronize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Memory pools are in the crate `gpumem-pool`, which exports these types too.
//!
//! # Rooms
//!
//! A room imports only rooms before it in this table, which `cargo xtask tidy` checks.
//!
//! | room | content |
//! | --- | --- |
//! | [`Bytes`] | a number of bytes, printed in binary units |
//! | `error` | [`DeviceError`]; what the driver's codes mean |
//! | `device` | all other types |
//!
//! # Features
//!
//! | feature | default | meaning |
//! | --- | --- | --- |
//! | `nvml` | no | the processes on a device and their memory are read from the vendor's management library |
//!
//! # Forked processes
//!
//! A driver does not survive `fork`. In a child that was forked after the first [`Device`] was opened, every operation returns
//! [`DeviceError::Forked`], and drops do nothing.

#![cfg_attr(docsrs, feature(doc_cfg))]
// `unsafe` is limited to the modules that call the driver, each of which owns one kind of driver object.
#![deny(unsafe_code)]

pub use gpumem_sys as sys;

mod bytes;
#[allow(unsafe_code)]
mod device;
mod error;

pub use bytes::Bytes;
pub use device::{
    BorrowedHostMemory, CaptureModeGuard, Completion, ContextGuard, Device, Event, HostBuffer, HostBufferMut,
    HostMemory, HostMemoryError, MemoryInfo, MemoryRange, Stream, StreamBuilder, StreamId, StreamPoint,
};
pub use error::{CaptureError, DeviceError, StreamError};

/// The parts that `gpumem-pool` uses besides the interface. They are no part of it, and may change in every version.
#[doc(hidden)]
pub mod internal {
    pub use crate::device::any_stream::{AnyStream, close_for_end};
    pub use crate::device::capture_end::{end_of, run_again};
    pub use crate::device::catch_panic::{ReentrancyGuard, catch_panic, forget};
    pub use crate::device::order::uses;
    pub use crate::device::{
        CapturePart, Clocks, GRAPH_BIT, Handle, HowFar, Idle, KeptMemory, LentMemory, MarkerEvent, Object,
        Order, OrderEvent, OrderObserver, Owned, Patience, PeerDevice, PoolMaintenance, RecentStreams, Stamp,
        StreamIndex, WeakDevice, Work, deadline, host, processes,
    };
    pub use crate::error::{RESET, Verdict, is_sticky, not_forked};
}
