//! Moves whole values to and from the GPU and keeps their types.
//!
//! [`Adapt`] rebuilds a value with its arrays at a target: a [`Gpu`](array::Gpu), memory of another kind, the [`Host`] as `ndarray`
//! arrays, or [`HostVec`] as `Vec`s. Containers, wrappers such as [`Diagonal`] and structs generic over their [`Storage`] keep
//! their type.
//!
//! ```
//! use gpumem_sim::SimConfig;
//! use gpumem_adapt::array::pool::{Device, Pool};
//! use gpumem_adapt::array::{Gpu, GpuArray, ndarray::Ix1};
//! use gpumem_adapt::{Adapt, Diagonal, HostVec};
//!
//! let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
//! let gpu = Gpu::new(&Pool::new(&device)?)?;
//!
//! let cpu = Diagonal::new(vec![1.0_f32, 2.0]);
//! let on_gpu: Diagonal<GpuArray<f32, Ix1>> = cpu.adapt(&gpu)?;
//! assert_eq!(on_gpu.to_string(), "2×2 Diagonal<GpuArray<f32, Ix1>>:\n 1.0   ⋅\n  ⋅   2.0");
//! assert_eq!(on_gpu.adapt(&HostVec)?, cpu);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`batches`] and [`feed`] upload data sets ahead of their use; [`fit_batch_size`] finds the largest batch that fits.
//!
//! This crate launches no kernels and allocates no memory itself: [`mod@array`] and its [`array::pool`] do.
//!
//! # Features
//!
//! `derive` enables `#[derive(Adapt)]`, and `futures` feeds as asynchronous streams. `nalgebra` and `sprs` support the dense and sparse
//! matrices of those crates, and `safetensors` enables checkpoints (it turns on `half`). None of them is a default. The other features are
//! passed on to [`mod@array`]: `backend-caching` and `backend-native` (both default), `sim`, `half` and `complex`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
// Work goes through `Stream::queue_work` or `Stream::run_borrowed`, which refuse memory that sleeps.
#![deny(clippy::disallowed_methods)]

mod adapt;
#[cfg(feature = "safetensors")]
mod checkpoint;
mod containers;
mod context;
mod cu;
mod error;
mod feed;
mod policy;
mod storage;
mod target;
mod wrappers;

pub use adapt::{Adapt, Collect, Collected, Merged, Separate};
#[cfg(feature = "safetensors")]
pub use checkpoint::{
    Checkpoint, CheckpointElement, CheckpointError, Dtype, SaveTensor, Tensor, TensorInfo, Tensors, save,
    save_with_metadata,
};
#[cfg(feature = "nalgebra")]
pub use containers::Nalgebra;
pub use context::{Context, Plan};
pub use cu::{Cu, cu};
pub use error::{AdaptError, Part};
pub use feed::{
    BatchItems, Batches, Feed, FeedTarget, Feeder, Groups, Infallibly, Rows, Source, batches, feed, try_feed,
};
#[cfg(feature = "futures")]
pub use feed::{FeedStream, feed_stream};
pub use feed::{Fit, FitAttempt, fit_batch_size, halve_on_out_of_memory};
#[cfg(feature = "derive")]
#[doc(inline)]
pub use gpumem_adapt_derive::Adapt;
pub use gpumem_array as array;
#[cfg(feature = "half")]
pub use policy::{Bf16, F16};
pub use policy::{F32, F64, PlainElement, Policy, Single, Unchanged};
pub use storage::{Host, HostAs, HostVec, Shaped, Storable, Storage};
pub use target::{Destination, Receive, Target};
pub use wrappers::{
    Adjoint, Banded, Conjugate, Coo, Csc, Csr, Diagonal, Hermitian, Lower, PermutedRows, Symmetric,
    Transposed, UnitLower, UnitUpper, Upper,
};

/// Items that the code of `#[derive(Adapt)]` uses beyond the public ones.
#[doc(hidden)]
pub mod derived;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
