//! The functions of cuBLAS, cuRAND and CUDA's runtime library that candle calls, on the driver API alone.
//!
//! NVIDIA's libraries have machine code, which only a GPU runs, and ask the driver for tables that are not documented, so they do not
//! start on gpumem's simulator. This library does the same work with kernels that have PTX. Products of matrices and launches have the
//! results that the libraries document; random numbers have the documented distributions, and are others than cuRAND's.
//!
//! A function that is not here is a symbol that the loader does not find, and a form of a call that is not here returns the library's
//! status for what is not supported.

mod blas;
mod device;
mod driver;
mod errors;
mod rand;
mod runtime;
