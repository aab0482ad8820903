//! The largest eigenvalue of a symmetric matrix by power iteration. Every step is queued on the device; only the eigenvalue of
//! the last step is read back.
//!
//! `cargo run -p gpumem-array --features sim --example power_iteration`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::Array2;
use gpumem_array::pool::{Device, Limit, Pool};
use gpumem_array::{Gpu, GpuArray};

const SIZE: usize = 64;
const STEPS: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let pool = Pool::builder(&device).hard_limit(Limit::Bytes(64 << 20)).build()?;
    let gpu = Gpu::new(&pool)?;

    // All ones, with 2 on the diagonal: the largest eigenvalue is SIZE + 1.
    let matrix =
        Array2::from_shape_fn((SIZE, SIZE), |(row, column)| if row == column { 2.0_f64 } else { 1.0 });
    let matrix = GpuArray::from_array(&gpu, &matrix)?;
    let start: Vec<f64> = (0..SIZE).map(|index| 1.0 + index as f64).collect();
    let mut vector = GpuArray::from_slice(&gpu, &start)?;
    // Divided by an upper bound of the eigenvalues, so that numbers stay small without reading them back.
    let scale = 1.0 / (2 * SIZE) as f64;
    for _ in 0..STEPS {
        vector = matrix.dot(&vector)? * scale;
    }
    let image = matrix.dot(&vector)?;
    let eigenvalue = vector.dot(&image)?.into_scalar()? / vector.dot(&vector)?.into_scalar()?;
    println!("largest eigenvalue: {eigenvalue:.6}, expected {}", SIZE + 1);
    assert!((eigenvalue - (SIZE + 1) as f64).abs() < 1e-6);
    println!("{}", pool.status()?);
    Ok(())
}
