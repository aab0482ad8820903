//! Ten programs of arrays, none with a kernel of its own, each beside its lines in CuPy.
//!
//! `cargo run --release -p gpumem --features sim --example programs [NAME…]`, on a GPU or, without one, on the simulator. Each compares its
//! result with what is known about it, and fails if they differ.

#![allow(clippy::print_stdout)] // printing is what it is for

mod black_scholes;
mod data;
#[allow(clippy::reversed_empty_ranges)] // `1..-1` ends before the last element
mod heat;
mod images;
mod kmeans;
mod logistic;
mod n_body;
mod network;
mod pagerank;
mod pca;
mod softmax;

use gpumem::{Device, Gpu, Pool};
use std::error::Error;
use std::time::Instant;

/// Runs on a `Gpu`, and returns its result in words.
type Program = fn(&Gpu) -> Result<String, Box<dyn Error>>;

const PROGRAMS: [(&str, Program); 10] = [
    ("kmeans", kmeans::run),
    ("softmax", softmax::run),
    ("network", network::run),
    ("pca", pca::run),
    ("heat", heat::run),
    ("black_scholes", black_scholes::run),
    ("n_body", n_body::run),
    ("images", images::run),
    ("pagerank", pagerank::run),
    ("logistic", logistic::run),
];

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(name) = names.iter().find(|name| !PROGRAMS.iter().any(|(known, _)| known == name)) {
        let known = PROGRAMS.map(|(name, _)| name).join(", ");
        return Err(format!("there is no program `{name}`; there are {known}").into());
    }
    let device = Device::new(&gpumem::sim::driver_or_sim()?, 0)?;
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    for (name, program) in
        PROGRAMS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|n| n == name))
    {
        let start = Instant::now();
        let result = program(&gpu).map_err(|error| format!("{name}: {error}"))?;
        println!("{name:14} {:6.2} s  {result}", start.elapsed().as_secs_f64());
    }
    println!("{}", gpu.pool().status()?);
    Ok(())
}

/// An error unless two numbers differ by at most `tolerance` of the second.
fn check(what: &str, found: f64, known: f64, tolerance: f64) -> Result<(), String> {
    // NaN is no match.
    if (found - known).abs() <= tolerance * known.abs() {
        Ok(())
    } else {
        Err(format!("{what} is {found}, which should be {known}"))
    }
}
