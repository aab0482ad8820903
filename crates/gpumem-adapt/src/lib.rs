//! Whole values to and from the GPU.
pub use gpumem_array as array;
