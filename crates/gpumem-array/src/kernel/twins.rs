//! The kernels of this crate in Rust, for the simulator, with the same names, parameters and results.
//!
//! Sums may be taken in another order than on a GPU, so floats agree within rounding; everything else agrees exactly. Elements are cells
//! because operands may be the same memory, and loops run over fixed numbers of lanes so that the compiler can vectorise them.

pub(super) mod cast;
pub(super) mod elementwise;
pub(super) mod gather;
pub(super) mod matvec;
mod number;
pub(super) mod pack;
pub(super) mod pattern;
pub(super) mod random;
pub(super) mod reduce;
pub(super) mod strided;
