//! Exact waits, on both drivers: work that a gate holds back is not waited for, and the results that do not depend on it are right
//! while the gate is closed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::array::ndarray::{Array2, Axis, ShapeBuilder};
use gpumem_tests::array::{Gpu, GpuArray, PinnedArray};
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::pool::{BackendKind, Device, Pool};
use gpumem_tests::sys::Driver;
use gpumem_tests::{cases, for_each_seed};
use std::time::Duration;

const LEN: usize = 100_000;

/// `None` on the backend `none`, whose frees wait for the device.
fn gpu(driver: &Driver) -> Option<Gpu> {
    let gpu = Gpu::new(&Pool::from_env(&Device::new(driver, 0).unwrap()).unwrap()).unwrap();
    // Otherwise the driver compiles the kernels at their first use, and may wait for the device.
    gpu.preload::<f32>().unwrap();
    (gpu.pool().backend() != BackendKind::None).then_some(gpu)
}

/// Later work on the stream waits for the gate.
fn close_gate(gpu: &Gpu) -> StreamGate {
    let _bound = gpu.device().bind().unwrap();
    // SAFETY: the stream is alive and of the context that is current.
    unsafe { StreamGate::close(gpu.device().driver(), gpu.stream().raw()).unwrap() }
}

/// The sum of the first batch does not wait for the uploads behind it.
fn the_first_batch_is_summed_alone(driver: &Driver) {
    let Some(gpu) = gpu(driver) else { return };
    let copies = gpu.fork().unwrap();
    let batches: Vec<_> = (1..=4_u8)
        .map(|index| PinnedArray::from_elem(&gpu.pinned(), LEN, f32::from(index)).unwrap())
        .collect();
    let mut arrays: Vec<_> = batches.iter().map(|_| GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap()).collect();
    assert_eq!(arrays[0].sum().unwrap().into_scalar().unwrap(), 0.0);
    arrays[0].on_mut(&copies).assign(&batches[0]).unwrap();
    let gate = close_gate(&copies);
    for (array, batch) in arrays.iter_mut().zip(&batches).skip(1) {
        array.on_mut(&copies).assign(batch).unwrap();
    }
    assert_eq!(arrays[0].sum().unwrap().into_scalar().unwrap(), LEN as f32);
    assert!(gate.open(), "the sum has waited for later uploads");
    for (array, value) in arrays.iter().zip(1_u8..) {
        assert_eq!(array.to_vec().unwrap(), [f32::from(value); LEN]);
    }
}

/// Halves of one array, each on a stream of its own: one is written and read while the work on the other is held back.
fn halves_do_not_serialise(driver: &Driver) {
    let Some(gpu) = gpu(driver) else { return };
    let other = gpu.fork().unwrap();
    let mut array = GpuArray::<f32, _>::zeros(&gpu, 2 * LEN).unwrap();
    gpu.device().synchronize().unwrap();
    let (mut left, mut right) = array.split_at_mut(Axis(0), LEN).unwrap();
    let gate = close_gate(&gpu);
    left.fill(1.0).unwrap();
    right.view_mut().on_mut(&other).fill(2.0).unwrap();
    assert_eq!(right.view().on(&other).sum().unwrap().into_scalar().unwrap(), 2.0 * LEN as f32);
    assert!(gate.open(), "one half has waited for the other");
    assert_eq!(array.sum().unwrap().into_scalar().unwrap(), 3.0 * LEN as f32);
}

/// A number waits for its own value, once the program has shown that it queues work behind such numbers.
fn a_number_waits_for_its_own_value(driver: &Driver) {
    let Some(gpu) = gpu(driver) else { return };
    let x = GpuArray::from_elem(&gpu, LEN, 2.0_f32).unwrap();
    let mut behind = GpuArray::<f32, _>::zeros(&gpu, LEN).unwrap();
    let sum = x.sum().unwrap();
    let gate = close_gate(&gpu);
    behind.fill(1.0).unwrap();
    std::thread::scope(|scope| {
        // The first number waits for the gate.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            assert!(gate.open());
        });
        assert_eq!(sum.into_scalar().unwrap(), 2.0 * LEN as f32);
    });
    let sum = x.sum().unwrap();
    let gate = close_gate(&gpu);
    behind.fill(2.0).unwrap();
    assert_eq!(sum.into_scalar().unwrap(), 2.0 * LEN as f32);
    assert!(gate.open(), "the number has waited for later work");
}

/// Operands in row-major and in column-major order.
fn orders_mix(driver: &Driver) {
    let gpu = Gpu::new(&Pool::from_env(&Device::new(driver, 0).unwrap()).unwrap()).unwrap();
    let element = |(row, column): (usize, usize)| (10 * row + column) as f32;
    let rows = Array2::from_shape_fn((3, 5), element);
    let columns = Array2::from_shape_fn((3, 5).f(), element);
    let (x, y) = (GpuArray::from_array(&gpu, &rows).unwrap(), GpuArray::from_array(&gpu, &columns).unwrap());
    assert_eq!(x.try_add(&y).unwrap().to_array().unwrap(), &rows + &columns);
    assert_eq!(y.try_sub(&x).unwrap().to_array().unwrap(), &columns - &rows);
    let mut z = x.try_clone().unwrap();
    z.try_mul_assign(&y).unwrap();
    assert_eq!(z.to_array().unwrap(), &rows * &columns);
}

cases! {
    #[serial_test::serial]
    fn the_first_batch_is_summed_alone_on(driver: &Driver) {
        the_first_batch_is_summed_alone(driver);
    }

    #[serial_test::serial]
    fn halves_do_not_serialise_on(driver: &Driver) {
        halves_do_not_serialise(driver);
    }

    #[serial_test::serial]
    fn a_number_waits_for_its_own_value_on(driver: &Driver) {
        a_number_waits_for_its_own_value(driver);
    }

    #[serial_test::serial]
    fn orders_mix_on(driver: &Driver) {
        orders_mix(driver);
    }
}

#[test]
fn the_first_batch_is_summed_alone_under_every_seed() {
    for_each_seed!(50, |driver: &Driver, _seed| the_first_batch_is_summed_alone(driver));
}

#[test]
fn halves_do_not_serialise_under_any_seed() {
    for_each_seed!(50, |driver: &Driver, _seed| halves_do_not_serialise(driver));
}
