//! Generated traces: programs of the kinds that strain an allocator, and random programs.

mod numbers;
mod random;
mod synthetic;

pub use random::random_program;
pub use synthetic::Synthetic;
