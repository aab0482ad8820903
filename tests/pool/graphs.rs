//! The pool during captures, and the memory of graphs: on both drivers, with every backend. The cases run one at a time: on a GPU
//! they share a process, and driver calls of one case would break the capture of another.

mod course;
mod fixture;
mod foreign;
mod memory;
