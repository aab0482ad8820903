//! Moves whole values to and from the GPU and keeps their type.
//!
//! [`Adapt`] rebuilds a value with its arrays moved to a target: a [`Gpu`](array::Gpu), the [`Host`] as `ndarray` arrays, or
//! [`HostVec`] as `Vec`s. Tuples, options, wrappers such as [`Diagonal`] and structs generic over their storage keep their type.
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
//! This crate launches no kernels and allocates no memory itself: [`mod@array`] and its [`array::pool`] do.
//!
//! # Features
//!
//! The features of [`mod@array`]: `backend-caching` and `backend-native` (both default), and `sim`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod adapt;
mod arrays;
mod containers;
mod error;
mod storage;
mod wrappers;

pub use adapt::Adapt;
pub use error::AdaptError;
pub use gpumem_array as array;
pub use storage::{Host, HostVec, Storage};
pub use wrappers::Diagonal;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
