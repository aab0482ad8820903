//! Matrices that store fewer numbers than they have elements. Each wraps an array, and keeps its type when it is moved.
//!
//! Products with vectors read the stored elements in place. Like `gpumem-array`, they have no product of two matrices, except
//! [`Diagonal::dot_matrix`].

mod diagonal;
mod matrices;
mod print;
mod sparse;

pub use diagonal::Diagonal;
pub use matrices::{
    Adjoint, Banded, Conjugate, Hermitian, Lower, PermutedRows, Symmetric, Transposed, UnitLower, UnitUpper,
    Upper,
};
pub use sparse::{Coo, Csc, Csr};
