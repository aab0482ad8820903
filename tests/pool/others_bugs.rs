//! Bugs reported by users of RMM, CuPy, PyTorch and CUDA.jl, as tests for every backend. Each test names the report. `orders`:
//! waits between streams; `room`: requests that must fit; `refusals`: errors.

mod orders;
mod refusals;
mod room;
