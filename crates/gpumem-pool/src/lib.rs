//! Stream-ordered GPU memory.
pub use gpumem_sys as sys;
