//! Matrices described by fewer numbers than they have: each wraps an array and keeps its type wherever that goes.

mod diagonal;
mod print;

pub use diagonal::Diagonal;
