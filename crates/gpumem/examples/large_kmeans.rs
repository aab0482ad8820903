//! Lloyd's algorithm on points of four times the memory: the points are arrays that move to the host and back.
//!
//! `cargo run --release -p gpumem --features sim --example large_kmeans [LIMIT]`, on a GPU or, without one, on the simulator. Fails unless the
//! clusters are those that the points were drawn from.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::ndarray::{Array2, Axis, Ix2};
use gpumem::{Device, Gpu, GpuArray, Pool, Spill};
use std::error::Error;
use std::time::Instant;

const DIMENSIONS: usize = 32;
const CLUSTERS: usize = 8;
const CHUNKS: usize = 32;
const PASSES: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let limit = std::env::args().nth(1).unwrap_or_else(|| "2MiB".into());
    let device = Device::new(&gpumem::sim::driver_or_sim()?, 0)?;
    let builder = Pool::builder(&device).hard_limit(&*limit);
    let gpu = Gpu::new(&builder.spill(Spill::to_host(64 << 30)).build()?)?;
    let limit_bytes = gpu.pool().status()?.hard_limit_bytes.unwrap_or(0);
    let rows = limit_bytes as usize / 8 / (4 * DIMENSIONS);

    let points: Vec<GpuArray<f32, Ix2>> = (0..CHUNKS)
        .map(|chunk| {
            let of_chunk = |(row, axis)| point(chunk * rows + row, axis);
            GpuArray::from_array(&gpu, &Array2::from_shape_fn((rows, DIMENSIONS), of_chunk))
        })
        .collect::<Result<_, _>>()?;
    let ones = GpuArray::from_elem(&gpu, rows, 1.0_f32)?;
    // The first points are of different clusters.
    let mut centres = points[0].select(Axis(0), &core::array::from_fn::<usize, CLUSTERS, _>(|row| row))?;
    let mut sizes = GpuArray::zeros(&gpu, CLUSTERS)?;
    for pass in 0..PASSES {
        let start = Instant::now();
        let squares = (centres.lazy() * &centres).sum_axis(Axis(1))?;
        let mut sums = GpuArray::zeros(&gpu, (CLUSTERS, DIMENSIONS))?;
        sizes = GpuArray::zeros(&gpu, CLUSTERS)?;
        for x in &points {
            let nearest = (squares.lazy() - x.dot(&centres.t())?.lazy() * 2.0).argmin_axis(Axis(1))?;
            sums.scatter_add(Axis(0), &nearest, x)?;
            sizes.scatter_add(Axis(0), &nearest, &ones)?;
        }
        centres = (sums.lazy() / sizes.lazy().insert_axis(Axis(1))).eval()?;
        gpu.synchronize()?;
        println!("pass {pass}: {:.2?}", start.elapsed());
    }

    let status = gpu.pool().status()?;
    println!(
        "{} MiB of points within {} MiB: {} moves to the host, {} MiB copied there and {} MiB back",
        (CHUNKS * rows * 4 * DIMENSIONS) >> 20,
        limit_bytes >> 20,
        status.counters.spill_count,
        status.counters.spilled_down_bytes >> 20,
        status.counters.spilled_up_bytes >> 20
    );
    if status.in_use_peak_bytes > limit_bytes || status.counters.spill_count == 0 {
        return Err("the points should have exceeded the limit, and their memory should not".into());
    }
    // Each cluster has as many points, with the mean of what they were drawn from.
    let (centres, sizes) = (centres.to_array()?, sizes.to_vec()?);
    for (cluster, size) in sizes.iter().enumerate() {
        let off = (0..DIMENSIONS)
            .map(|axis| (centres[(cluster, axis)] - centre(cluster, axis)).abs())
            .fold(0.0, f32::max);
        if *size != (CHUNKS * rows / CLUSTERS) as f32 || off > 0.05 {
            return Err(
                format!("cluster {cluster} has {size} points, and a centre that is off by {off}").into()
            );
        }
    }
    println!("{CLUSTERS} clusters of {} points each, as drawn", sizes[0]);
    Ok(())
}

/// Points of all clusters in turn, around the centres.
fn point(index: usize, axis: usize) -> f32 {
    centre(index % CLUSTERS, axis) + 0.5 * noise(index, axis)
}

fn centre(cluster: usize, axis: usize) -> f32 {
    4.0 * noise(usize::MAX - cluster, axis)
}

/// A number between -1 and 1 that looks random.
fn noise(index: usize, axis: usize) -> f32 {
    let mut bits = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (axis as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits >> 40) as f32) / (1_u64 << 23) as f32 - 1.0
}
