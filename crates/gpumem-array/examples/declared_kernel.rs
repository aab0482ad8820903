//! A kernel that is declared once, as CUDA C++ with its Rust twin, and runs anywhere: an orbit around the sun, all planets at once.
//!
//! `cargo run -p gpumem-array --features sim,nvrtc --example declared_kernel`, on a GPU or, without one, on the simulator. On a GPU the
//! text is compiled at run time, which needs the vendor's library NVRTC. On the simulator the twin runs; if the library is installed, the
//! text is compiled there too and its signature is compared with the twin's.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::pool::{Device, Pool};
use gpumem_array::{Gpu, GpuArray, LaunchShape, kernels};

kernels! {
    /// One leapfrog step of each planet: `place` and `speed` have two coordinates for each of `n` planets.
    static ORBIT = cuda r#"
        extern "C" __global__ void orbit(double2 *place, double2 *speed, double step, unsigned n) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i >= n) return;
            double2 p = place[i], v = speed[i];
            p.x += 0.5 * step * v.x;
            p.y += 0.5 * step * v.y;
            double square = p.x * p.x + p.y * p.y;
            double pull = step / (square * sqrt(square));
            v.x -= pull * p.x;
            v.y -= pull * p.y;
            p.x += 0.5 * step * v.x;
            p.y += 0.5 * step * v.y;
            place[i] = p;
            speed[i] = v;
        }"#;

    fn orbit(launch; place: u64, speed: u64, step: f64, n: u32) {
        let places = launch.write::<[f64; 2]>(place, n as usize)?;
        let speeds = launch.write::<[f64; 2]>(speed, n as usize)?;
        for (place, speed) in places.iter().zip(speeds) {
            let (mut p, mut v) = (place.get(), speed.get());
            p = [p[0] + 0.5 * step * v[0], p[1] + 0.5 * step * v[1]];
            let square = p[0] * p[0] + p[1] * p[1];
            let pull = step / (square * square.sqrt());
            v = [v[0] - pull * p[0], v[1] - pull * p[1]];
            p = [p[0] + 0.5 * step * v[0], p[1] + 0.5 * step * v[1]];
            place.set(p);
            speed.set(v);
        }
    }
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
