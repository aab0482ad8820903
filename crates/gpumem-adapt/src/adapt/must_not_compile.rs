//! Types that cannot be adapted: the compiler refuses them.
//!
//! A field that cannot hold device memory.
//!
//! ```compile_fail,E0277
//! use gpumem_adapt::Adapt;
//! use gpumem_adapt::array::ndarray::Array2;
//!
//! #[derive(Adapt)]
//! struct Model {
//!     rate: f32,
//!     weight: Array2<f32>,
//! }
//! # fn main() {}
//! ```
//!
//! A field that contains a type without the derive.
//!
//! ```compile_fail,E0277
//! use gpumem_adapt::array::ndarray::Ix1;
//! use gpumem_adapt::{Adapt, Storage};
//!
//! struct Layer<S: Storage> {
//!     weight: S::Array<f32, Ix1>,
//! }
//!
//! #[derive(Adapt)]
//! struct Model<S: Storage>(Vec<Layer<S>>, f32);
//! # fn main() {}
//! ```
//!
//! A parameter that is used as a family of arrays, without the bound.
//!
//! ```compile_fail,E0220
//! use gpumem_adapt::Adapt;
//! use gpumem_adapt::array::ndarray::Ix2;
//!
//! #[derive(Adapt)]
//! struct Layer<S> {
//!     weight: S::Array<f32, Ix2>,
//! }
//! # fn main() {}
//! ```
//!
//! A field that is skipped and cannot be cloned.
//!
//! ```compile_fail,E0277
//! use gpumem_adapt::Adapt;
//!
//! struct Connection;
//!
//! #[derive(Adapt)]
//! struct Model {
//!     #[adapt(skip)]
//!     connection: Connection,
//! }
//! # fn main() {}
//! ```
//!
//! A field's function that returns a different type than the field has.
//!
//! ```compile_fail,E0308
//! use gpumem_adapt::{Adapt, AdaptError, Context};
//!
//! fn doubled<To>(rate: &f32, _: &mut Context<'_, To>) -> Result<f64, AdaptError> {
//!     Ok(f64::from(*rate) * 2.0)
//! }
//!
//! #[derive(Adapt)]
//! struct Settings {
//!     #[adapt(with = doubled)]
//!     rate: f32,
//! }
//! # fn main() {}
//! ```
