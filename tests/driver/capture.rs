//! Stream capture and graphs, on both drivers.

mod fixture;
mod forks;
mod graphs;
mod modes;
mod nodes;
