//! A kernel of the program's own, in CUDA C++, that runs anywhere: an orbit around the sun, all planets at once.
//!
//! `cargo run -p gpumem-array --features sim --example declared_kernel`, on a GPU or, without one, on the simulator. Both load the PTX that
//! is beside the text, so neither needs a compiler. `kernels!` also takes the text itself (`cuda include_str!("orbit.cu")`), which the
//! feature `nvrtc` then compiles at run time.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::pool::{Device, Pool};
use gpumem_array::{Gpu, GpuArray, LaunchShape, kernels};

kernels! {
    /// One step of each planet.
    static ORBIT = ptx include_str!("orbit.ptx");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let orbit = gpu.compile(&ORBIT)?.function("orbit")?;

    // Circles: at distance r the speed is 1/√r, and a year takes 2π·r^1.5.
    let distances = [0.39_f64, 0.72, 1.0, 1.52];
    let places: Vec<[f64; 2]> = distances.iter().map(|r| [*r, 0.0]).collect();
    let speeds: Vec<[f64; 2]> = distances.iter().map(|r| [0.0, r.sqrt().recip()]).collect();
    let mut place = GpuArray::from_slice(&gpu, &places)?;
    let mut speed = GpuArray::from_slice(&gpu, &speeds)?;

    let (steps, n) = (5000, place.len());
    let step = core::f64::consts::TAU / f64::from(steps);
    for _ in 0..steps {
        let launch = orbit.launch(LaunchShape::for_len(n)).write(&mut place).write(&mut speed);
        // SAFETY: the arguments are those of the kernel, and both arrays have `n` elements of two numbers.
        unsafe { launch.scalar(step).scalar(n as u32).enqueue(&gpu)? };
    }

    // After one year of the earth.
    for (distance, [x, y]) in distances.iter().zip(place.to_vec()?) {
        println!("at distance {distance:.2}: ({x:6.3}, {y:6.3})");
        assert!((x.hypot(y) - distance).abs() < 1e-3, "it left its circle");
        assert!(*distance != 1.0 || (x - 1.0).hypot(y) < 1e-3, "the earth is not where it began");
    }
    Ok(())
}
