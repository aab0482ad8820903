//! Random numbers: the published vectors, the same numbers however they are drawn, and their distribution.

use crate::support::gpu;
use gpumem_array::{GpuArray, PinnedArray, Random, RandomNormal, Rng};
use std::collections::HashSet;

/// `kat_vectors` of Random123, for `philox4x32 10`: counter, key, result.
#[test]
fn the_published_vectors() {
    let gpu = gpu();
    let pi: ([u64; 2], u64) = ([0x85a3_08d3_243f_6a88, 0x0370_7344_1319_8a2e], 0x299f_31d0_a409_3822);
    for ((counter, key), expected) in [
        (([0, 0], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        (([u64::MAX, u64::MAX], u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
    ] {
        let mut rng = Rng::with_stream(key, counter[1]);
        rng.advance(counter[0]);
        let words = GpuArray::<u32, _>::random(&gpu, 4, &mut rng).unwrap();
        assert_eq!(words.to_vec().unwrap(), expected);
    }
}

/// The first numbers of seed 42, so that no change alters them by mistake. A GPU has the same bits.
#[test]
fn numbers_stay_as_they_are() {
    let gpu = gpu();
    let words = GpuArray::<u32, _>::random(&gpu, 4, &mut Rng::new(42)).unwrap().to_vec().unwrap();
    assert_eq!(words, [2632642643, 2012563771, 314527917, 1463989207]);
    let normals = GpuArray::<f64, _>::random_normal(&gpu, 2, &mut Rng::new(42)).unwrap().to_vec().unwrap();
    assert_eq!(
        normals.iter().map(|normal| normal.to_bits()).collect::<Vec<_>>(),
        [13827540420413489964, 4607344655611254626]
    );
    let floats = GpuArray::<f32, _>::random(&gpu, 4, &mut Rng::new(42)).unwrap().to_vec().unwrap();
    let wide = GpuArray::<u64, _>::random(&gpu, 2, &mut Rng::new(42)).unwrap().to_vec().unwrap();
    let doubles = GpuArray::<f64, _>::random(&gpu, 2, &mut Rng::new(42)).unwrap().to_vec().unwrap();
    let signed = GpuArray::<i32, _>::random(&gpu, 4, &mut Rng::new(42)).unwrap().to_vec().unwrap();
    assert_eq!(floats, [0, 1, 2, 3].map(|k| (words[k] >> 8) as f32 / 16_777_216.0));
    assert_eq!(wide, [0, 2].map(|k| u64::from(words[k]) | u64::from(words[k + 1]) << 32));
    assert_eq!(doubles, [0, 1].map(|k| (wide[k] >> 11) as f64 / 9_007_199_254_740_992.0));
    assert_eq!(signed, [0, 1, 2, 3].map(|k| words[k].cast_signed()));
}

/// An array has the same numbers if it is drawn at once, or in parts at multiples of 16 bytes, of any length.
fn parts_are_equal<T: Random + PartialEq + core::fmt::Debug>() {
    let gpu = gpu();
    let whole = GpuArray::<T, _>::random(&gpu, 1000, &mut Rng::with_stream(7, 3)).unwrap().to_vec().unwrap();
    let mut rng = Rng::with_stream(7, 3);
    let mut parts = Vec::new();
    while parts.len() < 1000 {
        let len = 16.min(1000 - parts.len());
        parts.extend(PinnedArray::<T, _>::random(&gpu.pinned(), len, &mut rng).unwrap().to_vec().unwrap());
    }
    assert_eq!(parts, whole);
    for len in [0, 1, 2, 3, 5, 999] {
        let mut rng = Rng::with_stream(7, 3);
        assert_eq!(GpuArray::<T, _>::random(&gpu, len, &mut rng).unwrap().to_vec().unwrap(), whole[..len]);
        let mut expected = Rng::with_stream(7, 3);
        expected.advance((len * size_of::<T>()).div_ceil(16) as u64);
        assert_eq!(rng, expected);
    }
}

#[test]
fn numbers_depend_on_seed_stream_and_position_alone() {
    parts_are_equal::<f32>();
    parts_are_equal::<f64>();
    parts_are_equal::<i32>();
    parts_are_equal::<i64>();
    parts_are_equal::<u32>();
    parts_are_equal::<u64>();
    let gpu = gpu();
    let mut seen = HashSet::new();
    for (seed, stream) in [(1, 0), (2, 0), (1, 1), (1 << 32, 0), (1, 1 << 32)] {
        let drawn = GpuArray::<u64, _>::random(&gpu, 1000, &mut Rng::with_stream(seed, stream)).unwrap();
        assert!(drawn.to_vec().unwrap().into_iter().all(|number| seen.insert(number)), "{seed} {stream}");
    }
    let mut array = GpuArray::<f32, _>::zeros(&gpu, (3, 5)).unwrap();
    let mut rng = Rng::new(1);
    array.fill_random(&mut rng).unwrap();
    let first = array.to_vec().unwrap();
    array.fill_random_normal(&mut rng).unwrap();
    assert_ne!(array.to_vec().unwrap(), first);
}

const N: usize = 1 << 16;

/// Mean, variance, and the largest distance of the distribution function from the expected one (Kolmogorov and Smirnov).
fn moments(mut drawn: Vec<f64>, distribution: impl Fn(f64) -> f64) -> [f64; 3] {
    let n = drawn.len() as f64;
    let mean = drawn.iter().sum::<f64>() / n;
    let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    drawn.sort_by(f64::total_cmp);
    let distance = drawn.iter().enumerate().map(|(i, x)| (distribution(*x) - (i as f64 + 0.5) / n).abs());
    [mean, variance, distance.fold(0.0, f64::max) * n.sqrt()]
}

fn assert_near(found: [f64; 3], mean: f64, variance: f64) {
    let sigma = variance.sqrt() / (N as f64).sqrt();
    assert!((found[0] - mean).abs() < 4.0 * sigma, "{found:?}");
    assert!((found[1] / variance - 1.0).abs() < 0.03, "{found:?}");
    assert!(found[2] < 1.95, "{found:?}: beyond the 0.1 % quantile");
}

#[test]
fn uniform_numbers_are_uniform() {
    let gpu = gpu();
    let mut rng = Rng::new(0);
    let single = GpuArray::<f32, _>::random(&gpu, N, &mut rng).unwrap().to_vec().unwrap();
    let double = GpuArray::<f64, _>::random(&gpu, N, &mut rng).unwrap().to_vec().unwrap();
    let whole = GpuArray::<i64, _>::random(&gpu, N, &mut rng).unwrap().to_vec().unwrap();
    assert!(single.iter().all(|x| (0.0..1.0).contains(x)) && double.iter().all(|x| (0.0..1.0).contains(x)));
    let whole = whole.into_iter().map(|x| x as f64 / 2.0_f64.powi(64) + 0.5).collect();
    for drawn in [single.into_iter().map(f64::from).collect(), double, whole] {
        assert_near(moments(drawn, |x| x), 0.5, 1.0 / 12.0);
    }
}

/// The normal distribution function, by its series.
fn normal(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for k in 1..200 {
        term *= x * x / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / core::f64::consts::TAU.sqrt()
}

/// The textbook formula on the uniform words of the same position.
fn box_muller(u: f64, turns: f64) -> [f64; 2] {
    let (sin, cos) = (turns * core::f64::consts::TAU).sin_cos();
    let radius = (-2.0 * u.ln()).sqrt();
    [radius * cos, radius * sin]
}

fn drawn_normals<T: RandomNormal + Into<f64>>(seed: u64) -> Vec<f64> {
    let drawn = GpuArray::<T, _>::random_normal(&gpu(), N, &mut Rng::new(seed)).unwrap();
    drawn.to_vec().unwrap().into_iter().map(Into::into).collect()
}

#[test]
fn normal_numbers_are_normal() {
    for drawn in [drawn_normals::<f32>(5), drawn_normals::<f64>(6)] {
        assert!(drawn.iter().all(|x| x.is_finite()));
        assert_near(moments(drawn, normal), 0.0, 1.0);
    }
}

#[test]
fn normal_numbers_are_those_of_the_formula() {
    let gpu = gpu();
    let words = GpuArray::<u32, _>::random(&gpu, N, &mut Rng::new(5)).unwrap().to_vec().unwrap();
    for (drawn, words) in drawn_normals::<f32>(5).chunks(2).zip(words.chunks(2)) {
        let expected = box_muller(
            f64::from(words[0] as f32 / 4_294_967_296.0 + 0.5 / 4_294_967_296.0),
            f64::from(words[1]) / 2.0_f64.powi(32),
        );
        for (drawn, expected) in drawn.iter().zip(expected) {
            assert!((drawn - expected).abs() < 2e-6, "{drawn} {expected}");
        }
    }
    let words = GpuArray::<u64, _>::random(&gpu, N, &mut Rng::new(6)).unwrap().to_vec().unwrap();
    for (drawn, words) in drawn_normals::<f64>(6).chunks(2).zip(words.chunks(2)) {
        let expected = box_muller(
            ((words[0] >> 11) as f64 + 0.5) / 2.0_f64.powi(53),
            words[1] as f64 / 2.0_f64.powi(64),
        );
        for (drawn, expected) in drawn.iter().zip(expected) {
            assert!((drawn - expected).abs() < 1e-13, "{drawn} {expected}");
        }
    }
}
