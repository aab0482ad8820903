//! Typed GPU arrays.
pub use gpumem_pool as pool;
pub use ndarray;
