//! Matrices that store fewer numbers than they have elements. Each wraps an array and keeps its type when the array is moved.

mod diagonal;
mod print;

pub use diagonal::Diagonal;
