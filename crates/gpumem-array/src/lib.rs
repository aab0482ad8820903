//! Typed GPU arrays over pool memory, tracked per device and stream.
//!
//! A [`Gpu`] is a pool, a stream and the kernels of this crate. A [`GpuArray<T, D>`](GpuArray) holds elements on it,
//! with the shapes and slicing of [`ndarray`]. Operations are queued and return at once; only uploads, downloads and
//! [`Gpu::synchronize`] wait. Nobody writes a synchronisation: each array knows the stream that wrote it last and the
//! streams that read it since, and a stream that comes to it waits, on the device, for those alone.
//!
//! | module | noun |
//! | --- | --- |
//! | `gpu` | [`Gpu`]: what an array lives on |
//! | `array`, `uninit` | [`GpuArray`], the owner; [`UninitArray`], an owner of memory that may only be written |
//! | `view`, `layout` | [`GpuView`], [`GpuViewMut`]: parts of an array; shapes, strides and slices |
//! | `track` | the memory, and who has to wait for whom |
//! | `copy` | between host and device |
//! | `ops` | arithmetic, sums, products, fill, assign |
//! | `kernel` | [`Module`], [`Function`], [`Launch`]: kernels of ours and of the user |
//! | `element`, `error` | [`Element`], [`Numeric`]; [`ArrayError`] |
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
//! assert_eq!(y.sum()?.item()?, 47.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `backend-caching` and `backend-native` (both default) choose the backends of the pool. `sim` (not default) has the kernels of this
//! crate as Rust functions, for arrays on the simulator of `gpumem-sim`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

pub use gpumem_pool as pool;
pub use ndarray;

mod array;
#[allow(unsafe_code)] // queues copies to and from host memory
mod copy;
#[allow(unsafe_code)] // says which types are plain bytes
mod element;
mod error;
mod gpu;
#[allow(unsafe_code)] // loads and launches kernels
mod kernel;
mod layout;
#[allow(unsafe_code)] // launches kernels with the addresses of arrays
mod ops;
mod track;
#[allow(unsafe_code)] // `assume_init`
mod uninit;
mod view;

pub use array::GpuArray;
pub use element::{Element, Numeric};
pub use error::ArrayError;
pub use gpu::Gpu;
pub use kernel::launch::{Launch, LaunchShape};
pub use kernel::{Function, Module};
pub use uninit::UninitArray;
pub use view::{AsView, AsViewMut, GpuView, GpuViewMut};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
