//! A vector store of four times the memory: the nearest vectors of some queries, among chunks that move to the host and back.
//!
//! `cargo run --release -p gpumem --features sim --example vector_store [LIMIT]`, on a GPU or, without one, on the simulator. Compares each
//! result with the host's, and fails if they differ.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::ndarray::{Array2, Axis, Ix1, Ix2};
use gpumem::{Device, Gpu, GpuArray, Pool, Spill};
use std::error::Error;
use std::time::Instant;

const DIMENSIONS: usize = 64;
const CHUNKS: usize = 32;
const QUERIES: usize = 4;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let limit = std::env::args().nth(1).unwrap_or_else(|| "2MiB".into());
    let device = Device::new(&gpumem::sim::driver_or_sim()?, 0)?;
    let builder = Pool::builder(&device).hard_limit(&*limit);
    let gpu = Gpu::new(&builder.spill(Spill::to_host(64 << 30)).build()?)?;
    let limit_bytes = gpu.pool().status()?.hard_limit_bytes.unwrap_or(0);
    let rows = limit_bytes as usize / 8 / (4 * DIMENSIONS);

    let on_host: Vec<Array2<f32>> = (0..CHUNKS).map(|chunk| vectors(chunk * rows, rows)).collect();
    let store: Vec<GpuArray<f32, Ix2>> =
        on_host.iter().map(|chunk| GpuArray::from_array(&gpu, chunk)).collect::<Result<_, _>>()?;
    for round in 0..ROUNDS {
        // Vectors of the store with some noise.
        let wanted: Vec<usize> =
            (0..QUERIES).map(|query| (7919 * (query + QUERIES * round)) % (CHUNKS * rows)).collect();
        let queries = Array2::from_shape_fn((QUERIES, DIMENSIONS), |(query, axis)| {
            number(wanted[query], axis) + 0.1 * number(usize::MAX - query, axis)
        });
        let start = Instant::now();
        let found = nearest(&gpu, &store, &queries)?;
        println!("round {round}: vectors {found:?} in {:.2?}", start.elapsed());
        if found != nearest_on_host(&on_host, &queries) {
            return Err(format!("the device found {found:?} in round {round}, the host others").into());
        }
    }
    let status = gpu.pool().status()?;
    println!(
        "{} MiB of vectors within {} MiB: {} moves to the host, {} MiB copied there and {} MiB back",
        (CHUNKS * rows * 4 * DIMENSIONS) >> 20,
        limit_bytes >> 20,
        status.counters.spill_count,
        status.counters.spilled_down_bytes >> 20,
        status.counters.spilled_up_bytes >> 20
    );
    if status.in_use_peak_bytes > limit_bytes || status.counters.spill_count == 0 {
        return Err("the store should have exceeded the limit, and its memory should not".into());
    }
    Ok(())
}

/// The vector with the largest product with each query. The host waits once, for the results of all chunks.
fn nearest(
    gpu: &Gpu,
    store: &[GpuArray<f32, Ix2>],
    queries: &Array2<f32>,
) -> Result<Vec<usize>, Box<dyn Error>> {
    let queries = GpuArray::from_array(gpu, queries)?;
    let mut best: Vec<(GpuArray<f32, Ix1>, GpuArray<i64, Ix1>)> = Vec::new();
    for chunk in store {
        let products = chunk.dot(&queries.t())?;
        best.push((products.max_axis(Axis(0))?, products.argmax_axis(Axis(0))?));
    }
    let mut found = vec![(f32::MIN, 0); QUERIES];
    for (number, (chunk, (products, rows))) in store.iter().zip(best).enumerate() {
        for ((found, product), row) in found.iter_mut().zip(products.to_vec()?).zip(rows.to_vec()?) {
            if product > found.0 {
                *found = (product, number * chunk.nrows() + row as usize);
            }
        }
    }
    Ok(found.into_iter().map(|(_, vector)| vector).collect())
}

fn nearest_on_host(store: &[Array2<f32>], queries: &Array2<f32>) -> Vec<usize> {
    let rows = store.iter().flat_map(|chunk| chunk.rows());
    let mut found = vec![(f32::MIN, 0); QUERIES];
    for (vector, row) in rows.enumerate() {
        for (found, query) in found.iter_mut().zip(queries.rows()) {
            let product = row.dot(&query);
            if product > found.0 {
                *found = (product, vector);
            }
        }
    }
    found.into_iter().map(|(_, vector)| vector).collect()
}

/// Vectors from `first` on.
fn vectors(first: usize, count: usize) -> Array2<f32> {
    Array2::from_shape_fn((count, DIMENSIONS), |(row, axis)| number(first + row, axis))
}

/// A number between -1 and 1 that looks random.
fn number(vector: usize, axis: usize) -> f32 {
    let mut bits = (vector as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (axis as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits >> 40) as f32) / (1_u64 << 23) as f32 - 1.0
}
