//! The functions of the driver API that the drop-in has, a line each: `+` before one that works, `-` before one that returns
//! `CUDA_ERROR_NOT_SUPPORTED`. `cargo xtask drop-in` counts them.

#![allow(clippy::print_stdout)] // what it is for

use gpumem_sim::SimConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver(SimConfig::new())?;
    driver.table().present().for_each(|symbol| println!("+{}", symbol.name));
    driver.table().missing().for_each(|symbol| println!("-{}", symbol.name));
    Ok(())
}
