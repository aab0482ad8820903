//! GPU memory management: a stream-ordered pool with limits, typed arrays, and a simulator to test without a GPU.
//!
//! This crate re-exports the layers of gpumem. Its features choose layers and backends; the names that most programs need are at the
//! root, and each layer is a module with all its items.
//!
//! | module | feature | crate | contents |
//! | --- | --- | --- | --- |
//! | [`sys`] | | `gpumem-sys` | the CUDA driver API, loaded at run time |
//! | [`mod@pool`] | `pool` (default) | `gpumem-pool` | devices, streams, events, and the pool |
//! | [`mod@array`] | `array` (default) | `gpumem-array` | typed arrays, tracked across streams |
//! | [`adapt`] | `adapt` (default) | `gpumem-adapt` | whole values to the GPU and back |
//! | `sim` | `sim` | `gpumem-sim` | a driver without a GPU, for tests |
//!
//! A layer turns on those that it needs. `backend-caching` and `backend-native` (both default) select the pool's backends; without
//! them it has only `none`. `derive` (default) has `#[derive(Adapt)]`, `futures` feeds as streams, `safetensors` checkpoints, and `nalgebra`
//! and `sprs` have the matrices of those crates. `half` and `complex` allow elements of the crates `half` and `num-complex`. `dlpack`
//! exchanges arrays with other libraries, `cudarc` with the crate of that name. `nvrtc`
//! compiles kernels from CUDA C++ text at run time. `ipc`, `serde`, `tracing` and `nvml` are features of the pool. No feature links to CUDA: the libraries
//! of the driver and of the compiler are loaded at run time.
//!
//! # A pool
//!
//! ```
//! use gpumem::{Device, Pool, Stream};
//!
//! let driver = gpumem::sim::driver_or_sim()?; // a GPU, or without one the simulator; `Driver::cuda()` for a GPU alone
//! let device = Device::new(&driver, 0)?;
//! let pool = Pool::builder(&device).hard_limit("50%").build()?;
//! let stream = Stream::new(&device)?;
//!
//! let block = pool.alloc(64 << 20, &stream)?;
//! assert_eq!(pool.status()?.in_use_bytes, 64 << 20);
//! drop(block); // free once the work on `stream` that uses it is done; the host does not wait
//! assert_eq!(pool.status()?.in_use_bytes, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Arrays
//!
//! ```
//! use gpumem::{Device, Gpu, GpuArray, Pool, ndarray::array};
//!
//! let device = Device::new(&gpumem::sim::driver_or_sim()?, 0)?;
//! let gpu = Gpu::new(&Pool::new(&device)?)?;
//!
//! let x = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
//! let w = GpuArray::from_slice(&gpu, &[10.0, 1.0])?;
//! let y = x.dot(&w)? + 0.5; // queued, no wait
//! assert_eq!(y.to_vec()?, [12.5, 34.5]); // waits for the result
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "adapt")]
pub use gpumem_adapt as adapt;
#[cfg(feature = "array")]
pub use gpumem_array as array;
#[cfg(feature = "pool")]
pub use gpumem_pool as pool;
#[cfg(feature = "sim")]
pub use gpumem_sim as sim;
pub use gpumem_sys as sys;

#[cfg(feature = "adapt")]
pub use gpumem_adapt::{Adapt, AdaptError, Destination, Diagonal, Host, HostVec, Storage, cu};
#[cfg(feature = "array")]
pub use gpumem_array::{
    ArrayError, Element, Expression, Gpu, GpuArray, GpuArray1, GpuArray2, GpuArrayD, GpuGraph, GpuView,
    GpuViewMut, Indices, LaunchShape, Lazy, Numeric, Operand, PinnedArray, Real, Rejected, Rng, UnifiedArray,
    UninitArray, concatenate, kernels, kind, ndarray, stack, update,
};
#[cfg(feature = "pool")]
pub use gpumem_pool::{
    BackendKind, Block, Bytes, Device, DeviceError, Event, Limit, MemoryKind, OutOfMemory, Pool, PoolBuilder,
    PoolError, Profile, Spill, Status, Stream,
};
pub use gpumem_sys::{Driver, DriverError, DriverKind, LoadError};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
