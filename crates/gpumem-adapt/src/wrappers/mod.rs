//! Matrices that store fewer numbers than they have elements. Each wraps an array and keeps its type when the array is moved.

mod diagonal;
mod matrices;
mod print;
mod sparse;

pub use diagonal::Diagonal;
pub use matrices::{Banded, Lower, PermutedRows, Symmetric, Transposed, UnitLower, UnitUpper, Upper};
pub use sparse::{Coo, Csc, Csr};
