//! The largest batch that fits, on every backend and under limits of every kind.

use gpumem_adapt::array::pool::{BackendKind, Device, DeviceError, Limit, Pool, PoolError, Stream};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray};
use gpumem_adapt::{Adapt, AdaptError, fit_batch_size, halve_on_out_of_memory};
use gpumem_sim::{Effect, Rule, SimConfig};

const MIB: usize = 1 << 20;

fn device(memory_bytes: u64) -> Device {
    let driver =
        gpumem_sim::driver(SimConfig::new().memory_bytes(memory_bytes)).expect("an instance is free");
    Device::new(&driver, 0).expect("there is one")
}

/// Those that the pool is built with.
fn backends() -> impl Iterator<Item = BackendKind> {
    let is_built = |backend: &BackendKind| match backend {
        BackendKind::Caching => cfg!(feature = "backend-caching"),
        BackendKind::Native => cfg!(feature = "backend-native"),
        _ => true,
    };
    [BackendKind::Caching, BackendKind::Native, BackendKind::None].into_iter().filter(is_built)
}

/// A step that holds as many MiB as the batch has items, in two parts.
fn step(gpu: &Gpu, size: usize) -> Result<(), ArrayError> {
    let first = GpuArray::<u8, _>::uninit(gpu, size * MIB / 2)?;
    let second = GpuArray::<u8, _>::uninit(gpu, size * MIB / 2)?;
    drop((first, second));
    Ok(())
}

/// The largest size by trying each, with a pool of its own.
fn largest(gpu: impl Fn() -> Gpu, last: usize) -> Option<usize> {
    (1..=last).rev().find(|size| step(&gpu(), *size).is_ok())
}

#[test]
fn the_largest_batch_is_found_on_every_backend() {
    for backend in backends() {
        for (limit, last) in [(None, 200), (Some(40 << 20), 200), (Some(40 << 20), 25), (Some(2 << 20), 7)] {
            let gpu = || {
                let device = device(100 << 20);
                let builder = Pool::builder(&device).backend(backend);
                let builder = match limit {
                    Some(bytes) => builder.hard_limit(Limit::Bytes(bytes)),
                    None => builder,
                };
                Gpu::new(&builder.build().unwrap()).unwrap()
            };
            let expected = largest(gpu, last);
            let gpu = gpu();
            let fit = fit_batch_size(&gpu, 1..=last, |size| step(&gpu, size)).unwrap();
            assert_eq!(fit.batch_size, expected, "{backend}, limit {limit:?}, up to {last}: {fit}");
            assert!(
                fit.attempts.len() <= 2 + 2 * usize::BITS as usize - 2 * last.leading_zeros() as usize,
                "{fit}"
            );
            assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
        }
    }
}

#[test]
fn a_quota_limits_the_batch() {
    let pool = Pool::builder(&device(1 << 30)).hard_limit(Limit::Bytes(64 << 20)).build().unwrap();
    let private = pool.private(Limit::Bytes(24 << 20)).unwrap();
    let gpu = Gpu::new(&private).unwrap();
    let fit = fit_batch_size(&gpu, 1..=64, |size| step(&gpu, size)).unwrap();
    assert_eq!(fit.batch_size, Some(24), "{fit}");
}

/// A quota, a limit of the pool above it, and memory of others, on every backend.
#[test]
fn the_largest_batch_is_found_beside_memory_that_stays() {
    for backend in backends() {
        for kept_mib in [0, 6, 18] {
            let pool = || {
                let builder = Pool::builder(&device(128 << 20)).backend(backend);
                builder.hard_limit(Limit::Bytes(48 << 20)).build().unwrap()
            };
            let keep =
                |pool: &Pool| pool.alloc(kept_mib << 20, &Stream::new(pool.device()).unwrap()).unwrap();
            let expected = (1..=64).rev().find(|size| {
                let pool = pool();
                let kept = keep(&pool);
                let fits = step(&Gpu::new(&pool).unwrap(), *size).is_ok();
                drop(kept);
                fits
            });
            let pool = pool();
            let kept = keep(&pool);
            let gpu = Gpu::new(&pool).unwrap();
            let fit = fit_batch_size(&gpu, 1..=usize::MAX, |size| step(&gpu, size)).unwrap();
            assert_eq!(fit.batch_size, expected, "{backend}, {kept_mib} MiB kept: {fit}");
            assert!(fit.batch_size.unwrap() >= 40 - kept_mib as usize, "{fit}");
            drop(kept);
        }
    }
}

/// Up to the largest number, and with every bound that a step can have.
#[test]
fn every_bound_of_a_range_is_found() {
    let gpu = Gpu::new(&Pool::new(&device(1 << 30)).unwrap()).unwrap();
    let too_large = || ArrayError::HostFull { size_bytes: 1 };
    for first in [0, 1, 7, usize::MAX - 1, usize::MAX] {
        for last in [0, 1, 8, 1000, usize::MAX / 2, usize::MAX - 1, usize::MAX] {
            for bound in [0, 1, 6, 7, 8, 999, usize::MAX / 2 + 1, usize::MAX - 1, usize::MAX] {
                let fit = fit_batch_size(&gpu, first..=last, |size| {
                    assert!((first..=last).contains(&size), "{size}");
                    if size <= bound { Ok(()) } else { Err(too_large()) }
                });
                let fit = fit.unwrap();
                let expected = Some(bound.min(last)).filter(|size| *size >= first && first <= last);
                assert_eq!(fit.batch_size, expected, "{first}..={last}, up to {bound}: {fit}");
                assert!(fit.attempts.len() <= 130, "{fit}");
            }
        }
    }
}

#[test]
fn attempts_are_reported_and_leave_nothing() {
    let pool = Pool::builder(&device(1 << 30)).hard_limit(Limit::Bytes(10 << 20)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let mut reserved = Vec::new();
    let fit = fit_batch_size(&gpu, 1..=100, |size| {
        reserved.push(pool.status().unwrap().reserved_bytes);
        step(&gpu, size)
    });
    let fit = fit.unwrap();
    let tried: Vec<_> = fit.attempts.iter().map(|attempt| (attempt.batch_size, attempt.fits)).collect();
    assert_eq!(
        tried,
        [(1, true), (2, true), (4, true), (8, true), (16, false), (12, false), (10, true), (11, false)]
    );
    assert!(reserved.iter().all(|bytes| *bytes == 0), "{reserved:?}");
    assert!(fit.attempts[3].peak_bytes >= 8 << 20);
    assert!(
        fit.to_string().ends_with("batch size 11: does not fit, peak 5.5 MiB\nlargest batch size: 10"),
        "{fit}"
    );
    let none = fit_batch_size(&gpu, 20..=30, |size| step(&gpu, size)).unwrap();
    assert_eq!((none.batch_size, none.attempts.len()), (None, 1));
    assert!(none.to_string().ends_with("no batch size fits"));
    #[expect(clippy::reversed_empty_ranges, reason = "the empty range is the point")]
    let empty = fit_batch_size(&gpu, 3..=2, |size| step(&gpu, size)).unwrap();
    assert_eq!((empty.batch_size, empty.attempts.len()), (None, 0));
    let zero = fit_batch_size(&gpu, 0..=0, |size| step(&gpu, size)).unwrap();
    assert_eq!(zero.batch_size, Some(0));
}

#[test]
fn other_errors_pass_through() {
    let rule = Rule::new(
        "cuMemset*",
        Effect::Fail(gpumem_adapt::array::pool::sys::CUresult::CUDA_ERROR_INVALID_VALUE),
    );
    let driver = gpumem_sim::driver(SimConfig::new().rule(rule)).unwrap();
    let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let refused =
        fit_batch_size(&gpu, 1..=8, |size| GpuArray::<u8, _>::zeros(&gpu, size).map(drop)).unwrap_err();
    assert!(matches!(refused, ArrayError::Pool(PoolError::Device(DeviceError::Driver(_)))), "{refused}");
    let refused =
        halve_on_out_of_memory(&gpu, 8, 8, |items| GpuArray::<u8, _>::zeros(&gpu, items.len()).map(drop))
            .unwrap_err();
    assert!(matches!(refused, ArrayError::Pool(PoolError::Device(DeviceError::Driver(_)))), "{refused}");
}

/// The errors of whole values count too.
#[test]
fn batches_are_halved_until_they_fit() {
    let pool = Pool::builder(&device(1 << 30)).hard_limit(Limit::Bytes(12 << 20)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let host = vec![1_u8; 50 * MIB];
    let run = |items: std::ops::Range<usize>| -> Result<usize, AdaptError> {
        let (batch, _) = (&host[items.start * MIB..items.end * MIB], 1.5).adapt(&gpu)?;
        Ok(batch.to_vec()?.len() / MIB)
    };
    let results = halve_on_out_of_memory(&gpu, 50, 40, run).unwrap();
    let counts: Vec<_> = results.iter().map(|(items, count)| (items.start, *count)).collect();
    assert_eq!(counts, [(0, 10), (10, 10), (20, 10), (30, 10), (40, 10)]);
    let too_large =
        halve_on_out_of_memory(&gpu, 2, 2, |_| GpuArray::<u8, _>::zeros(&gpu, 20 * MIB).map(drop));
    assert!(matches!(too_large, Err(ArrayError::Pool(PoolError::LimitReached(_)))));
    assert_eq!(halve_on_out_of_memory(&gpu, 0, 4, |_| Ok::<(), ArrayError>(())).unwrap(), []);
}
