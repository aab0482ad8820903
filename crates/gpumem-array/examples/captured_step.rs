//! A training step that is captured once and launched many times: least squares by gradient descent. The host queues one launch for each
//! step, whatever the number of kernels in it, and reads the loss every few steps.
//!
//! `cargo run -p gpumem-array --features sim --example captured_step`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Array1, Array2};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{Gpu, GpuArray};
use std::time::{Duration, Instant};

const ROWS: usize = 256;
const COLUMNS: usize = 16;
const STEPS: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    gpu.preload::<f32>()?;

    // y = X·w for known weights, which the steps must find.
    let inputs = Array2::from_shape_fn((ROWS, COLUMNS), |(row, column)| {
        (((row * 31 + column * 17) % 23) as f32 - 11.0) / 11.0
    });
    let known = Array1::from_shape_fn(COLUMNS, |column| column as f32 / 4.0 - 2.0);
    let x = GpuArray::from_array(&gpu, &inputs)?;
    let y = GpuArray::from_array(&gpu, &inputs.dot(&known))?;
    let mut weights = GpuArray::<f32, _>::zeros(&gpu, COLUMNS)?;
    // An array of one element, so that it can change between launches.
    let mut rate = GpuArray::from_elem(&gpu, (), 1.0 / ROWS as f32)?;

    // Nothing runs here. The closure's `c` is the `Gpu` of the capture; temporaries belong to the graph.
    let begin = Instant::now();
    let (mut step, loss) = gpu.capture(|c| {
        let error = x.on(c).dot(&weights)?.try_sub(&y)?;
        let gradient = x.on(c).t().dot(&error)?;
        weights.on_mut(c).try_sub_assign(&gradient.try_mul(&rate)?)?;
        error.dot(&error)
    })?;
    println!("captured in {:?}", begin.elapsed());

    let (mut queued, mut first, mut last) = (Duration::ZERO, None, 0.0);
    for round in 0..STEPS {
        if round == STEPS / 2 {
            rate.fill(0.5 / ROWS as f32)?;
        }
        let begin = Instant::now();
        let done = step.launch(&gpu).write(&mut weights).read(&x).read(&y).read(&rate).run()?;
        queued += begin.elapsed();
        if round % 50 == 0 || round + 1 == STEPS {
            last = done.get(&loss)?.into_scalar()?;
            first.get_or_insert(last);
            println!("step {round:3}: loss {last:.3e}");
        }
    }
    println!("a launch is queued in {:?}", queued / STEPS as u32);

    // The operations of a step without a graph, for comparison.
    let mut others = GpuArray::<f32, _>::zeros(&gpu, COLUMNS)?;
    gpu.synchronize()?;
    let begin = Instant::now();
    for _ in 0..STEPS {
        let error = x.dot(&others)?.try_sub(&y)?;
        let gradient = x.t().dot(&error)?;
        others.try_sub_assign(&gradient.try_mul(&rate)?)?;
        error.dot(&error)?;
    }
    println!("its operations one by one are queued in {:?}", begin.elapsed() / STEPS as u32);

    let found = weights.to_array()?;
    let largest = (&found - &known).iter().fold(0.0_f32, |largest, error| largest.max(error.abs()));
    println!("largest error of a weight: {largest:.1e}");
    assert!(largest < 1e-2 && first.is_some_and(|first| last < first / 1e4));
    Ok(())
}
