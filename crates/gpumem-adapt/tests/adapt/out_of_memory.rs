//! `is_out_of_memory` of the errors of every layer, for every way in which memory can be refused.

use gpumem_adapt::array::ndarray::{arr0, array};
#[cfg(target_os = "linux")]
use gpumem_adapt::array::pool::SocketError;
use gpumem_adapt::array::pool::adaptor::{Budget, Failures};
use gpumem_adapt::array::pool::sys::{CUresult, DriverError};
use gpumem_adapt::array::pool::{
    BackendKind, Device, HostMemory, HostMemoryError, Limit, Pool, PoolBuilder, PoolError, RefusedBy,
};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, Rejected};
use gpumem_adapt::{
    Adapt, AdaptError, CheckpointError, Destination, F64, Host, batches, fit_batch_size,
    halve_on_out_of_memory,
};
use gpumem_sim::{Effect, Rule, SimConfig};
use std::error::Error;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Uploads `size_bytes` in a struct, asynchronously, as an array and as a block, and checks each error.
fn refused(
    config: SimConfig,
    size_bytes: usize,
    with: impl Fn(PoolBuilder) -> PoolBuilder,
    is_expected: impl Fn(&PoolError) -> bool,
) {
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&with(Pool::builder(&device)).build().unwrap()).unwrap();
    let elements = vec![0_u8; size_bytes];

    let error: PoolError = gpu.pool().alloc(size_bytes as u64, gpu.stream()).unwrap_err();
    assert!(error.is_out_of_memory() && is_expected(&error), "{error:?}");

    let error: ArrayError = GpuArray::from_slice(&gpu, &elements).unwrap_err();
    assert!(error.is_out_of_memory(), "{error:?}");

    let error = GpuArray::upload(&gpu, elements.clone()).wait().err().unwrap();
    assert!(error.is_out_of_memory(), "{error:?}");

    let error: AdaptError = (1_u8, Some(elements)).adapt(&gpu).unwrap_err();
    assert!(error.is_out_of_memory(), "{error:?}");
    assert_eq!(error.path(), "1");
    // The report of the pool is a source.
    let source = error.source().unwrap().downcast_ref::<ArrayError>().unwrap();
    assert!(matches!(source, ArrayError::Pool(found) if is_expected(found)), "{source:?}");
}

#[test]
fn refusals_of_memory_have_one_name() {
    let small = || SimConfig::small();
    let same = |builder| builder;
    // Two thirds of the device twice.
    refused(small(), 70 * MIB, same, |error| {
        matches!(error, PoolError::TooLarge { .. } | PoolError::OutOfMemory(_))
    });
    refused(small(), 1 << 30, same, |error| matches!(error, PoolError::TooLarge { .. }));
    let limited = |builder: PoolBuilder| builder.hard_limit(Limit::Bytes(16 << 20));
    refused(small(), 20 * MIB, limited, |error| matches!(error, PoolError::LimitReached(_)));
    let budget = |builder: PoolBuilder| builder.adaptor(Arc::new(Budget::new(MIB as u64)));
    refused(
        small(),
        2 * MIB,
        budget,
        |error| matches!(error, PoolError::LimitReached(report) if report.refused_by == RefusedBy::Budget),
    );
    let failing = |builder: PoolBuilder| builder.adaptor(Arc::new(Failures::above(0)));
    refused(small(), 2 * MIB, failing, |error| matches!(error, PoolError::OutOfMemory(_)));
    let full = |requested_bytes| {
        let (adaptor, reason) = ("a quota".into(), "has given all it has".into());
        PoolError::Refused { adaptor, requested_bytes, reason, origin: None }
    };
    let refusing = |builder: PoolBuilder| builder.adaptor(Arc::new(Failures::above(0).with_error(full)));
    refused(small(), 2 * MIB, refusing, |error| matches!(error, PoolError::Refused { .. }));
}

#[test]
fn codes_of_the_driver_have_it_too() {
    let failed = |code| DriverError::Failed { call: "cuMemcpyAsync", code };
    let (out_of_memory, other) =
        (failed(CUresult::CUDA_ERROR_OUT_OF_MEMORY), failed(CUresult::CUDA_ERROR_INVALID_VALUE));
    assert!(out_of_memory.is_out_of_memory() && !other.is_out_of_memory());
    assert!(PoolError::from(out_of_memory).is_out_of_memory() && !PoolError::from(other).is_out_of_memory());
    assert!(ArrayError::from(out_of_memory).is_out_of_memory());
    assert!(AdaptError::custom(ArrayError::from(out_of_memory)).within("part").is_out_of_memory());
    assert!(AdaptError::custom(PoolError::from(out_of_memory)).is_out_of_memory());
    assert!(!AdaptError::custom("no memory of it").is_out_of_memory());
    assert!(ArrayError::HostFull { size_bytes: 1 }.is_out_of_memory());

    // One of any layer, below an error of the program's own.
    #[derive(Debug, thiserror::Error)]
    #[error("loading failed")]
    struct Loading(#[source] Box<dyn Error + Send + Sync>);
    let below = |error: Box<dyn Error + Send + Sync>| AdaptError::custom(Loading(error)).within("part");
    let full = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    let checkpoint = CheckpointError::Io { operation: "read", path: "weights".into(), source: full };
    assert!(checkpoint.is_out_of_memory());
    assert!(below(Box::new(checkpoint)).is_out_of_memory());
    assert!(below(Box::new(AdaptError::from(ArrayError::from(out_of_memory)))).is_out_of_memory());
    assert!(below(Box::new(PoolError::from(out_of_memory))).is_out_of_memory());
    assert!(below(Box::new(out_of_memory)).is_out_of_memory());
    assert!(below(Box::new(Vec::<u8>::new().try_reserve(usize::MAX).unwrap_err())).is_out_of_memory());
    assert!(!below(Box::new(ArrayError::from(other))).is_out_of_memory());
    // The errors of every layer that can be of memory. Others are of environment variables, options, traces, and the simulator.
    let _: fn(&DriverError) -> bool = DriverError::is_out_of_memory;
    let _: fn(&PoolError) -> bool = PoolError::is_out_of_memory;
    let _: fn(&HostMemoryError<()>) -> bool = HostMemoryError::is_out_of_memory;
    let _: fn(&Rejected<()>) -> bool = Rejected::is_out_of_memory;
    #[cfg(target_os = "linux")]
    let _: fn(&SocketError) -> bool = SocketError::is_out_of_memory;
    #[cfg(target_os = "linux")]
    assert!(below(Box::new(SocketError::from(PoolError::from(out_of_memory)))).is_out_of_memory());

    let config = SimConfig::new().rule(no_registration());
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    let error = HostMemory::register(&device, vec![0_u8; 4096]).err().unwrap();
    assert!(error.is_out_of_memory(), "{error:?}");
    assert!(below(Box::new(PoolError::from(error))).is_out_of_memory());
    let error = HostMemory::register(&device, vec![0_u8; 4096]).err().unwrap();
    assert!(below(Box::new(error)).is_out_of_memory(), "with the buffer");
}

/// A step that returns a value with its error is not at its end when memory runs out.
#[test]
fn errors_with_values_are_attempts_that_do_not_fit() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(40 << 20)).build().unwrap()).unwrap();
    let step = |size: usize| GpuArray::upload(&gpu, vec![0_u8; size << 20]).wait().map(drop);
    assert!(step(41).unwrap_err().is_out_of_memory());
    let fit = fit_batch_size(&gpu, 1..=100, step).unwrap();
    assert_eq!(fit.batch_size, Some(40), "{fit}");
    let parts = halve_on_out_of_memory(&gpu, 100, 100, |items| step(items.len())).unwrap();
    assert!(parts.iter().all(|(items, ())| items.len() <= 40));
}

/// `unwrap` and a `main` that returns the error print `Debug`.
#[test]
fn debug_of_every_layer_prints_the_report() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(4 << 20)).build().unwrap()).unwrap();
    let error = || gpu.pool().alloc(8 << 20, gpu.stream()).unwrap_err();
    let text = error().to_string();
    assert!(text.starts_with("out of GPU memory: the limit of 4.000 MiB refused 8.000 MiB"), "{text}");
    let report = error().out_of_memory().cloned().unwrap();
    let checkpoint = CheckpointError::Array { name: "bias".into(), source: error().into() };
    let adapt = AdaptError::from(ArrayError::from(error())).within("layers");
    let custom = AdaptError::custom(error()).within("layers");
    let rejected = GpuArray::upload(&gpu, vec![0_u8; 8 << 20]).wait().unwrap_err();
    let shown = [
        (format!("{report:?}"), text.clone()),
        (format!("{:?}", error()), text.clone()),
        (format!("{:?}", ArrayError::from(error())), text.clone()),
        (format!("{rejected:?}"), text.clone()),
        (format!("{adapt:?}"), format!("layers: {text}")),
        (format!("{custom:?}"), format!("layers: {text}")),
        #[cfg(target_os = "linux")]
        (format!("{:?}", SocketError::from(error())), text.clone()),
        (format!("{checkpoint:?}"), format!("tensor \"bias\": {text}")),
    ];
    // The stream is the same one, and the times are in no line.
    for (shown, expected) in shown {
        assert_eq!(shown.lines().next(), expected.lines().next());
        assert!(shown.contains("\n  → ") && shown.contains("\n  reserved "), "{shown}");
    }
    let rejected = GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap().into_shape((2, 2)).unwrap_err();
    assert_eq!(format!("{rejected:?}"), rejected.to_string());
    let other =
        Device::new(&gpumem_sim::driver(SimConfig::new().rule(no_registration())).unwrap(), 0).unwrap();
    let kept = HostMemory::register(&other, vec![0_u8; 4096]).err().unwrap();
    assert_eq!(format!("{kept:?}"), kept.to_string());
}

fn no_registration() -> Rule {
    Rule::new("cuMemHostRegister", Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY))
}

#[test]
fn other_errors_are_not_of_memory() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
    let array = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
    assert!(!array.view().reshape(3).unwrap_err().is_out_of_memory());
    let error = gpu.pool().alloc_aligned(1, 3, gpu.stream()).unwrap_err();
    assert!(!error.is_out_of_memory(), "{error:?}");
    // Only the backend `caching` maps memory into a reserved range.
    if gpu.pool().backend() == BackendKind::Caching {
        let mut block = gpu.pool().growable(1 << 20, gpu.stream()).unwrap();
        assert!(block.grow_to(1 << 30).is_err_and(|error| error.is_out_of_memory()));
    }
}

/// The view has few elements in memory, so only the copies of them do not fit.
#[test]
fn views_that_exceed_all_memory_are_refused() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::small()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
    let column = array![[1.0], [2.0_f64]];
    let huge = column.broadcast((2, 1 << 58)).unwrap();
    assert!(huge.adapt(&gpu).unwrap_err().is_out_of_memory());
    assert!(huge.adapt(&Destination::single(&gpu)).unwrap_err().is_out_of_memory());
    let error = batches(&huge).on(&gpu).unwrap().next().unwrap().unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    // As many elements as a view can have.
    let one = arr0(1.0_f32);
    let all = one.broadcast(isize::MAX as usize).unwrap();
    assert!(
        all.adapt(&gpu).is_err_and(|error| matches!(error.cause(), Some(ArrayError::TooManyElements { .. })))
    );
    assert!(all.adapt(&Destination::new(&gpu).elements::<F64>()).is_err());
    assert!(all.adapt(&Host).is_err_and(|error| error.is_out_of_memory()));
    let fits = column.broadcast((2, 3)).unwrap();
    assert_eq!(fits.adapt(&gpu).unwrap().to_array().unwrap(), fits);
    let single = fits.adapt(&Destination::single(&gpu)).unwrap();
    assert_eq!(single.to_vec().unwrap(), [1.0_f32, 1.0, 1.0, 2.0, 2.0, 2.0]);
}
