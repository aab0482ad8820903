//! The bugs of others: what users of RMM, CuPy, PyTorch and CUDA.jl met, as tests that hold for every backend. Each
//! names the thread that tells of it. `orders`: who waits for whom; `room`: what fits; `refusals`: errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod orders;
mod refusals;
mod room;
