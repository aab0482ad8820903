//! Vectors over memory that grows in place: `GpuArray::growable`. Only the backend `caching` has such memory.

use crate::support::gpu;
use gpumem_array::ndarray::s;
use gpumem_array::pool::{Device, Limit, Pool, PoolError};
use gpumem_array::{ArrayError, Gpu, GpuArray};
use gpumem_sim::SimConfig;

/// Memory that grows in place moves nothing.
#[test]
fn growable_memory_keeps_its_address() {
    let gpu = gpu();
    let other = gpu.fork().unwrap();
    let mut x = GpuArray::<i32, _>::growable(&gpu, 10 << 20).unwrap();
    assert_eq!((x.len(), x.capacity(), x.to_vec().unwrap()), (0, 0, vec![]));
    let (unit, mut expected) = ((2 << 20) / 4, Vec::new());
    let address = x.address();
    for (len, capacity) in [
        (3, unit),
        (unit, unit),
        (unit + 1, 2 * unit),
        (7 * unit, 7 * unit),
        (2 * unit, 7 * unit),
        (unit + 5, 2 * unit),
        (9 * unit, 9 * unit),
        (10 << 20, 10 << 20),
        (5, unit),
        (0, 0),
        (1, unit),
    ] {
        x.on_mut(&other).try_add_assign(1).unwrap();
        x.resize(len, len as i32).unwrap();
        expected.iter_mut().for_each(|element| *element += 1);
        expected.resize(len, len as i32);
        assert_eq!((x.address(), x.len(), x.capacity()), (address, len, capacity));
        assert!(x.to_vec().unwrap() == expected, "after {len}");
    }
    x.append(&GpuArray::from_slice(&other, &[7, 8]).unwrap()).unwrap();
    x.extend_from_slice(&[9]).unwrap();
    assert_eq!((x.address(), x.to_vec().unwrap()), (address, vec![1, 7, 8, 9]));
    // A copy is an ordinary array.
    let copy = x.try_clone().unwrap();
    assert_eq!((copy.capacity(), copy.to_vec().unwrap()), (4, vec![1, 7, 8, 9]));
    let reserved = |gpu: &Gpu| gpu.pool().status().unwrap().in_use_bytes;
    drop((x, copy));
    assert_eq!(reserved(&gpu), 0);
}

/// Each refusal leaves the array as it was.
#[test]
fn growable_memory_has_a_maximum_and_one_device() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let [first, second] = [0, 1].map(|ordinal| {
        let device = Device::new(&driver, ordinal).unwrap();
        Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(32 << 20)).build().unwrap()).unwrap()
    });
    let mut x = GpuArray::<f64, _>::growable(&first, 6 << 20).unwrap();
    x.extend_from_slice(&[1.5, 2.5]).unwrap();
    let refused = x.resize((6 << 20) + 1, 0.0).unwrap_err();
    assert!(matches!(refused, ArrayError::Pool(PoolError::BeyondMaximum { .. })), "{refused}");
    let refused = x.resize(6 << 20, 0.0).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert!(matches!(x.resize(usize::MAX, 0.0), Err(ArrayError::TooManyElements { .. })));
    assert_eq!((x.len(), x.to_vec().unwrap()), (2, vec![1.5, 2.5]));

    let refused = x.on(&second).sum().unwrap_err();
    assert!(matches!(refused, ArrayError::NoPeerAccess { .. }), "{refused}");
    assert_eq!(x.copy_to(&second).unwrap().to_vec().unwrap(), [1.5, 2.5]);
    let there = GpuArray::from_slice(&second, &[3.5]).unwrap();
    x.append(&there).unwrap();
    assert_eq!(x.on(&second).to_vec().unwrap(), [1.5, 2.5, 3.5]);
    let rejected = x.into_block().unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::NoBlock { .. }), "{rejected}");
    assert_eq!(rejected.into_value().sum().unwrap().into_scalar().unwrap(), 7.5);

    assert!(GpuArray::<f64, _>::growable(&first, usize::MAX).is_err());
    let captured = first.capture(|c| GpuArray::<f64, _>::growable(c, 100).map(drop));
    assert!(captured.is_err());
    first.synchronize().unwrap();
}

/// A graph follows an array that grows, since it stays where it is. It refuses one that has lost bytes that it uses.
#[test]
fn graphs_use_growable_arrays_before_and_after_growth() {
    let gpu = gpu();
    let mut x = GpuArray::<i64, _>::growable(&gpu, 1 << 20).unwrap();
    x.resize(1000, 1).unwrap();
    let (mut graph, ()) = gpu.capture(|c| x.on_mut(c).slice_mut(s![500..])?.try_mul_assign(2)).unwrap();
    let mut y = GpuArray::<i64, _>::growable(&gpu, 1 << 20).unwrap();
    y.resize(1000, 1).unwrap();
    graph.launch(&gpu).write(&mut x).run().unwrap();
    x.resize(500_000, 5).unwrap();
    graph.launch(&gpu.fork().unwrap()).write(&mut x).run().unwrap();
    let found = x.to_vec().unwrap();
    assert_eq!((found[499], found[500], found[999], found[1000]), (1, 4, 4, 5));
    x.resize(600, 0).unwrap();
    assert!(graph.launch(&gpu).write(&mut x).run().is_err());
    assert!(graph.launch(&gpu).write(&mut y).run().is_err());
    x.resize(1000, 0).unwrap();
    graph.launch(&gpu).write(&mut x).run().unwrap();
    // Dropped behind the launch, and inside of a capture.
    drop(x);
    let (mut graph, sum) = gpu
        .capture(|c| {
            let sum = y.on(c).sum();
            drop(y);
            sum
        })
        .unwrap();
    assert!(graph.launch(&gpu).run().is_err());
    drop((graph, sum));
    gpu.synchronize().unwrap();
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes, 0);
}
