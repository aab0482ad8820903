//! Layouts at the edge of what is possible, in safe code only: views of views with negative steps, axes without elements, 32 axes, shapes
//! that overflow, splits at the ends, reshapes of repeated elements, and bytes as elements of other sizes.

#![deny(unsafe_code)]

use crate::support::gpu;
use gpumem_array::ndarray::{Array, Array2, ArrayD, Axis, Ix1, Ix2, Ix3, IxDyn, Slice, s};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, GpuArray1, concatenate, stack};
use gpumem_sim::{Finding, Sim, SimConfig};

/// A `Gpu` whose simulator reports findings.
fn watched() -> (Gpu, Sim) {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let sim = Sim::of(&driver).unwrap().clone();
    (Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap(), sim)
}

/// No race and no access outside. What is alive is no leak.
fn check_clean(sim: &Sim) {
    let findings = sim.report().silent_findings();
    let found: Vec<_> = findings.iter().filter(|finding| !matches!(finding, Finding::Leak { .. })).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn numbers(shape: &[usize]) -> ArrayD<i32> {
    let len = shape.iter().product::<usize>() as i32;
    ArrayD::from_shape_vec(shape, (0..len).collect()).unwrap()
}

#[test]
fn views_of_views_turn_back_and_forth() {
    let (gpu, sim) = watched();
    let host = numbers(&[7, 5, 6]).into_dimensionality::<Ix3>().unwrap();
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    let ours = x.slice(s![..;-2, 1.., ..;-1]).unwrap();
    let theirs = host.slice(s![..;-2, 1.., ..;-1]);
    let (ours, theirs) =
        (ours.slice(s![1..;-1, ..;3, ..;-2]).unwrap(), theirs.slice(s![1..;-1, ..;3, ..;-2]));
    let (ours, theirs) = (ours.permuted_axes([2, 0, 1]).unwrap(), theirs.permuted_axes([2, 0, 1]));
    let (ours, theirs) = (ours.slice(s![..;-1, -1..;-1, ..]).unwrap(), theirs.slice(s![..;-1, -1..;-1, ..]));
    assert_eq!(ours.to_array().unwrap(), theirs);
    assert_eq!(ours.to_owned().unwrap().to_array().unwrap(), theirs);
    assert_eq!(ours.sum().unwrap().into_scalar().unwrap(), theirs.sum());
    // The smallest and the largest steps.
    for step in [isize::MIN, isize::MIN + 1, -7, 7, isize::MAX] {
        let slice = Slice::new(0, None, step);
        let (ours, theirs) = (x.slice_axis(Axis(0), slice).unwrap(), host.slice_axis(Axis(0), slice));
        assert_eq!(ours.to_array().unwrap(), theirs, "{step}");
        let (ours, theirs) =
            (ours.slice(s![..;-1, .., ..;isize::MAX]).unwrap(), theirs.slice(s![..;-1, .., ..;isize::MAX]));
        assert_eq!(ours.to_array().unwrap(), theirs, "{step}");
    }
    // A mutable view of a view, backwards, is written where `ndarray` writes.
    let (mut x, mut host) = (x, host);
    let more = numbers(&[4, 2]).into_dimensionality::<Ix2>().unwrap();
    let view = x.view_mut().slice_mut(s![..;-2, 3, ..]).unwrap().slice_mut(s![.., ..;-3]).unwrap();
    let mut view = view.insert_axis_mut(Axis(1)).unwrap().index_axis_mut(Axis(1), 0).unwrap();
    view.assign(&GpuArray::from_array(&gpu, &more).unwrap().slice(s![..;-1, ..]).unwrap()).unwrap();
    host.slice_mut(s![..;-2, 3, ..]).slice_mut(s![.., ..;-3]).assign(&more.slice(s![..;-1, ..]));
    assert_eq!(x.to_array().unwrap(), host);
    check_clean(&sim);
}

#[test]
fn axes_without_elements_have_every_operation() {
    let (gpu, sim) = watched();
    for shape in
        [&[0][..], &[0, 5], &[5, 0], &[3, 0, 1 << 40], &[0, 0, 0], &[1 << 60, 0], &[usize::MAX / 8, 0]]
    {
        let mut x = GpuArray::<f32, _>::zeros(&gpu, IxDyn(shape)).unwrap();
        assert_eq!((x.len(), x.shape(), x.to_vec().unwrap()), (0, shape, vec![]));
        x.fill(1.0).unwrap();
        x.try_add_assign(1.0).unwrap();
        assert_eq!(x.try_mul(&x).unwrap().shape(), shape);
        assert_eq!(x.sum().unwrap().into_scalar().unwrap(), 0.0);
        assert_eq!(x.t().to_owned().unwrap().as_standard_layout().unwrap().len(), 0);
        assert_eq!(x.reshape((0, 7)).unwrap().shape(), [0, 7]);
        assert_eq!(x.reinterpret::<u32>().unwrap().shape(), shape);
        assert_eq!(x.try_clone().unwrap().copy_to(&gpu.pinned()).unwrap().as_slice().unwrap(), [0.0_f32; 0]);
        for axis in 0..shape.len() {
            let (left, right) = x.split_at(Axis(axis), shape[axis] / 2).unwrap();
            assert_eq!(left.shape()[axis] + right.shape()[axis], shape[axis]);
            assert_eq!(x.slice_axis(Axis(axis), Slice::new(0, None, -1)).unwrap().shape(), shape);
        }
        x.assign(&GpuArray::from_elem(&gpu, (), 3.0).unwrap()).unwrap();
        assert!(x.to_string().contains("type=f32"), "{x}");
        let column = x.download_array().wait().unwrap();
        assert_eq!(column.shape(), shape);
    }
    let empty = GpuArray::<i32, _>::zeros(&gpu, (0, 3)).unwrap();
    let full = GpuArray::from_elem(&gpu, (2, 3), 4).unwrap();
    assert_eq!(concatenate(Axis(0), &[empty.view(), full.view(), empty.view()]).unwrap().nrows(), 2);
    assert_eq!(stack(Axis(1), &[empty.view(), empty.view()]).unwrap().shape(), [0, 2, 3]);
    assert_eq!(
        full.slice(s![.., ..0])
            .unwrap()
            .dot(&GpuArray1::<i32>::zeros(&gpu, 0).unwrap())
            .unwrap()
            .to_vec()
            .unwrap(),
        [0, 0]
    );
    check_clean(&sim);
}

#[test]
fn thirty_two_axes() {
    let (gpu, sim) = watched();
    // Fifteen axes of two elements, and others of one between them.
    let shape: Vec<usize> = (0..32).map(|axis| if axis % 2 == 1 && axis < 31 { 2 } else { 1 }).collect();
    let host = numbers(&shape);
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    assert_eq!(x.to_array().unwrap(), host);
    assert_eq!(x.t().to_array().unwrap(), host.t());
    // Every axis backwards, and the axes in an order that merges none.
    let order: Vec<usize> = (0..32).map(|axis| axis * 7 % 32).collect();
    let (mut ours, mut theirs) = (x.view(), host.view());
    for axis in 0..32 {
        ours = ours.slice_axis(Axis(axis), Slice::new(0, None, -1)).unwrap();
        theirs.invert_axis(Axis(axis));
    }
    let (ours, theirs) = (ours.permuted_axes(order.clone()).unwrap(), theirs.permuted_axes(order));
    assert_eq!(ours.to_array().unwrap(), theirs);
    assert_eq!(ours.to_owned().unwrap().to_array().unwrap(), theirs);
    assert_eq!(ours.try_add(1).unwrap().to_array().unwrap(), theirs.mapv(|n| n + 1));
    let printed = ours.to_string();
    assert!(printed.starts_with(&format!("{theirs}, type=i32")), "{printed}");
    let mut turned = GpuArray::<i32, _>::zeros(&gpu, host.t().raw_dim()).unwrap();
    turned.assign(&x.t()).unwrap();
    assert_eq!(turned.to_array().unwrap(), host.t());
    let wide = x.insert_axis(Axis(32)).unwrap();
    assert_eq!((wide.ndim(), wide.sum().unwrap().into_scalar().unwrap()), (33, host.sum()));
    check_clean(&sim);
}

#[test]
fn shapes_that_overflow_are_errors() {
    let gpu = gpu();
    let too_many =
        |error: ArrayError| assert!(matches!(error, ArrayError::TooManyElements { .. }), "{error}");
    for shape in
        [&[usize::MAX, 2][..], &[1 << 32, 1 << 32], &[usize::MAX], &[1 << 62], &[1 << 40, 1 << 40, 0]]
    {
        too_many(GpuArray::<f32, _>::zeros(&gpu, IxDyn(shape)).unwrap_err());
        too_many(GpuArray::<f32, _>::uninit(&gpu, IxDyn(shape)).unwrap_err());
        too_many(GpuArray::<f32, _>::from_elem(&gpu, IxDyn(shape), 1.0).unwrap_err());
        too_many(GpuArray::<f32, _>::from_fn(&gpu, IxDyn(shape), |_| 0.0).unwrap_err());
        let one = GpuArray::<u8, _>::zeros(&gpu, 1).unwrap();
        assert!(one.reshape(IxDyn(shape)).is_err());
        let one = one.into_shape(IxDyn(shape)).unwrap_err().into_value();
        assert_eq!(one.to_vec().unwrap(), [0]);
    }
    too_many(GpuArray::<f64, _>::eye(&gpu, 1 << 32).unwrap_err());
    // A repeated element has as many indices as an address space, and only one in memory.
    let one = GpuArray::from_elem(&gpu, 1, 7_i64).unwrap();
    let wide = one.broadcast(isize::MAX as usize).unwrap();
    assert_eq!(wide.len(), isize::MAX as usize);
    assert!(one.broadcast(usize::MAX).is_err());
    assert!(
        wide.to_vec().is_err() && wide.to_owned().is_err() && wide.try_add(1).is_err() && wide.sum().is_err()
    );
    assert!(
        wide.copy_to(&gpu.pinned()).is_err()
            && wide.download().wait().is_err()
            && wide.as_standard_layout().is_err()
    );
    assert!(wide.reinterpret::<u8>().is_err());
    assert!(wide.to_string().starts_with("[7, 7, 7, 7, 7, ..., 7, 7, 7, 7, 7], type=i64"), "{wide}");
    let far = wide.slice(s![-3..;-2]).unwrap();
    assert_eq!(far.to_vec().unwrap(), [7, 7]);
    assert!(concatenate(Axis(0), &[wide, wide]).is_err());
    assert!(stack(Axis(0), &[wide, wide]).is_err());
    let mut x = GpuArray::from_slice(&gpu, &[1_i64]).unwrap();
    assert!(x.append(&one.broadcast(isize::MAX as usize).unwrap()).is_err());
    assert!(x.assign(&one.broadcast((3, 1)).unwrap()).is_err());
    assert_eq!(x.to_vec().unwrap(), [1]);
}

#[test]
fn splits_at_the_ends() {
    let (gpu, sim) = watched();
    let mut x = GpuArray::from_array(&gpu, &numbers(&[4, 3]).into_dimensionality::<Ix2>().unwrap()).unwrap();
    let other = gpu.fork().unwrap();
    for (axis, index) in [(0, 0), (0, 4), (1, 0), (1, 3)] {
        let (left, right) = x.split_at_mut(Axis(axis), index).unwrap();
        let (mut full, mut empty) = if index == 0 { (right, left) } else { (left, right) };
        assert!(empty.is_empty());
        empty.fill(-1).unwrap();
        full.view_mut().on_mut(&other).try_add_assign(1).unwrap();
        empty.on_mut(&other).try_add_assign(100).unwrap();
        full.try_add_assign(1).unwrap();
    }
    assert_eq!(x.to_vec().unwrap(), (8..20).collect::<Vec<_>>());
    assert!(x.split_at_mut(Axis(0), 5).is_err() && x.split_at_mut(Axis(2), 0).is_err());
    let [a, b, c] = x.multi_slice_mut([s![..0, ..], s![.., ..0], s![2..2, ..]]).unwrap();
    assert!(a.is_empty() && b.is_empty() && c.is_empty());
    assert!(x.multi_slice_mut([s![..;2, ..], s![1.., ..;2]]).is_err());
    let [mut even, mut odd] = x.multi_slice_mut([s![..;2, ..], s![1..;2, ..]]).unwrap();
    even.view_mut().on_mut(&other).fill(0).unwrap();
    odd.fill(1).unwrap();
    assert_eq!(x.to_vec().unwrap(), [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]);
    check_clean(&sim);
}

#[test]
fn repeated_elements_are_reshaped_after_a_copy() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap();
    let wide = x.broadcast((2, 3)).unwrap();
    let refused = wide.reshape(6).unwrap_err();
    assert!(refused.to_string().contains("as_standard_layout"), "{refused}");
    assert_eq!(
        wide.as_standard_layout().unwrap().into_owned().unwrap().into_shape(6).unwrap().to_vec().unwrap(),
        [1, 2, 3, 1, 2, 3]
    );
    // One repetition is none.
    assert_eq!(x.broadcast((1, 3)).unwrap().reshape((3, 1)).unwrap().to_vec().unwrap(), [1, 2, 3]);
    let one = GpuArray::from_elem(&gpu, (), 5).unwrap();
    assert_eq!(one.broadcast((1, 1, 1)).unwrap().reshape(()).unwrap().into_scalar().unwrap(), 5);
    assert!(one.broadcast(2).unwrap().reshape((1, 2)).is_err());
}

#[test]
fn bytes_are_elements_of_other_sizes() {
    let (gpu, sim) = watched();
    let host: Vec<u8> = (0..48).collect();
    let mut x = GpuArray::from_slice(&gpu, &host).unwrap();
    let words = x.reinterpret::<u32>().unwrap();
    assert_eq!(words.to_vec().unwrap()[1], u32::from_ne_bytes([4, 5, 6, 7]));
    assert_eq!(words.reinterpret::<[u16; 3]>().unwrap().len(), 8);
    assert_eq!(words.reinterpret::<u128>().unwrap().reinterpret::<u8>().unwrap().to_vec().unwrap(), host);
    // Not aligned, not a multiple, not contiguous.
    assert!(x.slice(s![1..45]).unwrap().reinterpret::<u32>().is_err());
    assert!(x.slice(s![..46]).unwrap().reinterpret::<u32>().is_err());
    assert!(x.slice(s![..;2]).unwrap().reinterpret::<u32>().is_err());
    assert!(x.slice(s![..;-1]).unwrap().reinterpret::<u32>().is_err());
    assert!(x.slice(s![0]).unwrap().reinterpret::<u16>().is_err());
    // From the start of the array on, a view begins at a multiple of the size.
    assert_eq!(x.slice(s![7..42]).unwrap().reinterpret::<[u8; 7]>().unwrap().len(), 5);
    assert!(x.slice(s![4..46]).unwrap().reinterpret::<[u8; 7]>().is_err());
    // Rows that begin between words.
    let rows = x.reshape((8, 6)).unwrap();
    assert!(rows.slice(s![.., ..4]).unwrap().reinterpret::<u32>().is_err());
    assert_eq!(rows.slice(s![..;2, ..4]).unwrap().reinterpret::<u32>().unwrap().shape(), [4, 1]);
    assert_eq!(rows.slice(s![..;-2, ..]).unwrap().reinterpret::<u16>().unwrap().shape(), [4, 3]);
    assert_eq!(x.slice(s![48..]).unwrap().reinterpret::<u64>().unwrap().len(), 0);
    // Written as words, and invalid as another type: found by index where the elements are read.
    x.view_mut().reinterpret_mut::<u32>().unwrap().slice_mut(s![3..]).unwrap().fill(0x0101_0101).unwrap();
    assert_eq!(x.slice(s![11..14]).unwrap().to_vec().unwrap(), [11, 1, 1]);
    let mut flags = GpuArray::from_elem(&gpu.pinned(), 8, true).unwrap();
    flags.view_mut().reinterpret_mut::<u8>().unwrap().slice_mut(s![5..6]).unwrap().fill(2).unwrap();
    for refused in [flags.to_vec().map(drop), flags.as_slice().map(drop), flags.download().wait().map(drop)] {
        assert!(matches!(refused, Err(ArrayError::InvalidElement { index: 5, .. })), "{refused:?}");
    }
    assert!(flags.as_mut_slice().is_err());
    flags.slice_mut(s![5]).unwrap().fill(false).unwrap();
    assert!(!flags[5] && flags[4]);
    check_clean(&sim);
}

/// Kinds of slices that name axes, indices and bounds which are not there.
#[test]
fn slices_outside_are_errors() {
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &Array2::<u8>::zeros((3, 4))).unwrap();
    let refused = [
        x.slice(s![4.., ..]).map(drop),
        x.slice(s![.., ..5]).map(drop),
        x.slice(s![-4.., ..]).map(drop),
        x.slice(s![3, ..]).map(drop),
        x.slice(s![-4, 0]).map(drop),
        x.slice_axis(Axis(2), Slice::from(..)).map(drop),
        x.slice_axis(Axis(0), Slice { start: 0, end: None, step: 0 }).map(drop),
        x.slice_axis(Axis(0), Slice { start: isize::MIN, end: Some(isize::MAX), step: 1 }).map(drop),
        x.index_axis(Axis(1), 4).map(drop),
        x.index_axis(Axis(usize::MAX), 0).map(drop),
        x.insert_axis(Axis(3)).map(drop),
        x.split_at(Axis(9), 0).map(drop),
        x.try_clone().unwrap().into_dyn().slice(s![..]).map(drop),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(ArrayError::Slice { .. })), "{refused:?}");
    }
    assert!(x.permuted_axes([0, 0]).is_err() && x.permuted_axes([0, 2]).is_err());
    assert!(x.into_dyn().permuted_axes(IxDyn(&[1])).is_err());
    let none = Array::<u8, Ix1>::zeros(0);
    assert!(GpuArray::from_array(&gpu, &none).unwrap().index_axis(Axis(0), 0).is_err());
}

/// A device is dropped while a stream of another reads its memory: the memory stays until that is done.
#[test]
fn memory_of_a_dropped_device_outlives_the_work_of_others() {
    for seed in 0..100 {
        let driver = gpumem_sim::driver(SimConfig::new().devices(2).seed(seed)).unwrap();
        let gpu =
            |ordinal| Gpu::new(&Pool::from_env(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap();
        let (first, second) = (gpu(0), gpu(1));
        let mut target = GpuArray::<i32, _>::zeros(&second, 1000).unwrap();
        let source = GpuArray::from_elem(&first, 1000, 7).unwrap();
        target.on_mut(&second.fork().unwrap()).assign(&source).unwrap();
        drop((source, first));
        let sim = Sim::of(&driver).unwrap();
        assert_eq!(sim.take_findings(), [], "seed {seed}");
        assert_eq!(target.to_vec().unwrap(), [7; 1000]);
        drop((target, second));
        assert_eq!(sim.take_findings(), [], "seed {seed}");
    }
}
