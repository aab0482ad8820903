//! Typed GPU arrays over pool memory, tracked per device and stream.
//!
//! A [`Gpu`] is a pool, a stream and the kernels of this crate. A [`GpuArray<T, D>`](GpuArray) holds elements on it, with the shapes and
//! slicing of [`ndarray`]. Operations are queued and return immediately. Only these wait: uploads (until the elements have been read),
//! downloads, [`Gpu::synchronize`], host access to unified and pinned arrays, and the end of a closure over host memory.
//! [`GpuArray::upload`] and [`GpuArray::download`] can be awaited instead. Programs need no explicit synchronisation: each array records
//! its last write and the reads since, with their streams. Another stream that uses the array first waits, on the device, for conflicting
//! uses.
//!
//! ```
//! use gpumem_array::{Gpu, GpuArray, ndarray::array, pool::{Device, Pool}};
//! use gpumem_sim::SimConfig;
//!
//! let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
//! let gpu = Gpu::new(&Pool::new(&device)?)?;
//!
//! let x = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
//! let w = GpuArray::from_slice(&gpu, &[10.0, 1.0])?;
//! let y = x.dot(&w)? + 0.5;
//! assert_eq!(y.to_vec()?, [12.5, 34.5]);
//! assert_eq!(y.sum()?.into_scalar()?, 47.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Graphs
//!
//! A step that is repeated often costs less as a graph: [`Gpu::capture`] records the operations of a closure once, and each launch queues
//! all of them in one call. The closure uses its own `Gpu`. A launch borrows the outside arrays that the closure used, and gives access to
//! the arrays that the closure returned.
//!
//! A captured number keeps its value. [`CaptureGpu::scalar`] makes one that [`GraphLaunch::set`] changes between launches, and
//! [`GpuGraph::update`] captures again, with other arrays.
//!
//! # Features
//!
//! `backend-caching` and `backend-native` (both default) choose the backends of the pool. `sim` (not default) is for the simulator of
//! `gpumem-sim`: [`Gpu::open`] starts it for `GPUMEM_DRIVER=sim`, and kernels are stopped if they leave the arrays of their launch.
//! `nvrtc` (not default) compiles CUDA text at run time ([`Gpu::compile`]) where the vendor's library is
//! installed. `cudarc` (not default) passes arrays to cudarc's functions, and uses its slices as arrays ([`cudarc`]). `dlpack` (not
//! default) exchanges arrays with other libraries as DLPack tensors ([`dlpack`]). `half` and `complex` (not default) allow elements of the
//! crates `half` and `num-complex`: `f16`, `bf16`, `Complex<f32>`, `Complex<f64>`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
// Work goes through `Stream::queue_work` or `Stream::run_borrowed`, which refuse memory that sleeps.
#![deny(clippy::disallowed_methods)]

pub use bytemuck;
pub use gpumem_pool as pool;
pub use ndarray;

mod array;
#[allow(unsafe_code)] // queues copies to and from host memory
mod copy;
mod element;
mod error;
mod expression;
mod gpu;
#[allow(unsafe_code)] // launches graphs
mod graph;
#[allow(unsafe_code)] // loads and launches kernels
mod kernel;
#[allow(unsafe_code)] // launches kernels with the addresses of arrays
mod launch;
mod layout;
mod ops;
mod storage;

#[cfg(any(feature = "cudarc", feature = "dlpack"))]
pub use array::interop::*;
pub use array::{
    AsView, AsViewMut, GpuArray, GpuArray1, GpuArray2, GpuArrayD, GpuCow, GpuView, GpuViewMut, HostIndex,
    OnStream, PinnedArray, ReadOn, UnifiedArray, UninitArray, WriteOn,
};
pub use copy::{
    Download, DownloadTarget, Pack, PackedArray, Upload, UploadSource, Uploaded, concatenate, stack,
};
pub use element::{Cast, Element, kind};
pub use error::{ArrayError, GraphError, Rejected};
pub use expression::{
    Arithmetic, Axes, Broadcast, Comparable, ConvertsTo, Expression, Factor, Lazy, NoAxes, Numeric, Operand,
    Real, ReducedAxes, Scalar, Together, Truth, Updated, Updates, update,
};
pub use gpu::staging::{StagingOptions, VARIABLES};
#[doc(hidden)]
pub use gpu::transfers::{GpuStatus, Transfers};
pub use gpu::{Gpu, Memory, Place};
pub use graph::{CaptureGpu, GpuGraph, GraphLaunch, GraphScalar, Launched, Number, Out, Outputs};
pub use kernel::source::KernelSource;
pub use kernel::{Function, Module};
pub use launch::{Launch, LaunchShape};
#[cfg(feature = "cudarc")]
pub use ops::{Cublas, CublasElement};
pub use ops::{DotWith, Indices, Random, RandomNormal, Rng};

#[cfg(feature = "sim")]
#[doc(hidden)]
pub use gpu::example_gpu;
#[doc(hidden)] // `gpumem-adapt` has the matrix
pub use ops::compressed_rows_product;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
