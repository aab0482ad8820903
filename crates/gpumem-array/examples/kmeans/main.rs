//! k-means with kernels of its own: points around known centres, whose centroids it finds again. The points are generated on the
//! device and stay there; of each step, only the number of points that changed their centroid is read. The result is compared with that
//! of the host.
//!
//! `cargo run --release -p gpumem-array --features sim --example kmeans`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

mod kernels;
mod reference;

use gpumem_array::ndarray::{Array2, Axis, s};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{Gpu, GpuArray, GpuArray2, Rng};
use kernels::{Clusters, DIMS, Kernels};
use reference::Point;
use std::time::Instant;

const CENTRES: usize = 16;
const STEPS_MAX: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let is_gpu = gpumem_sim::Sim::of(&driver).is_none();
    let n = if is_gpu { 4_000_000 } else { 100_000 };
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}: {n} points of {DIMS} numbers, {CENTRES} centres", driver.kind());
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let kernels = Kernels::load(&gpu)?;

    // Normally distributed around the centres: point i belongs to centre i mod 16.
    let centres = Array2::from_shape_fn(
        (CENTRES, DIMS),
        |(centre, d)| if centre >> (d % 4) & 1 == 0 { -2.0 } else { 2.0 },
    );
    let centres = GpuArray::from_array(&gpu, &centres)?;
    let mut points: GpuArray2<f32> = GpuArray::random_normal(&gpu, (n, DIMS), &mut Rng::new(7))?;
    for centre in 0..CENTRES {
        let shift = centres.index_axis(Axis(0), centre)?;
        points.slice_mut(s![centre..;CENTRES, ..])?.try_add_assign(&shift)?;
    }
    // The first points are one of each centre, in the order of the centres.
    let mut centroids = points.slice(s![..CENTRES, ..])?.to_owned()?;
    let host: Vec<Point> = points.to_vec()?.as_chunks().0.to_vec();

    let begin = Instant::now();
    let (labels, distances) = (GpuArray::from_elem(&gpu, n, u32::MAX)?, GpuArray::zeros(&gpu, n)?);
    let mut clusters = Clusters { labels, distances };
    let mut steps = 1;
    loop {
        let changed = kernels.assign(&gpu, &mut clusters, &points, &centroids)?.to_vec()?[0];
        println!("step {steps}: {changed} points changed their centroid");
        if changed == 0 || steps == STEPS_MAX {
            break;
        }
        kernels.update(&gpu, &mut centroids, &points, &clusters)?;
        steps += 1;
    }
    let inertia = f64::from(clusters.distances.sum()?.into_scalar()?);
    println!("{steps} steps in {:?}, sum of squared distances {inertia:.4e}", begin.elapsed());

    let begin = Instant::now();
    let (expected, expected_inertia, expected_steps) =
        reference::kmeans(&host, host[..CENTRES].to_vec(), STEPS_MAX);
    println!("{expected_steps} steps in {:?} on the host, {expected_inertia:.4e}", begin.elapsed());

    let expected = Array2::from(expected);
    let largest = |difference: Array2<f32>| {
        difference.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()))
    };
    let from_host = largest(&centroids.to_array()? - &expected);
    let from_centre = largest((&centroids - &centres).to_array()?);
    println!(
        "largest difference of a centroid: {from_host:.1e} from the host's, {from_centre:.1e} from its centre"
    );
    // The clusters overlap a little, which moves their means apart.
    assert!(from_centre < 0.1 + 10.0 / ((n / CENTRES) as f32).sqrt(), "the centroids are not at the centres");
    assert!(
        from_host < 1e-3 && (inertia / expected_inertia - 1.0).abs() < 1e-3,
        "the host has another result"
    );
    Ok(())
}
