//! Files that are made from other files: the driver's types from `cuda.h`, PTX from the CUDA sources.

pub(crate) mod bindgen;
pub(crate) mod kernels;
