//! Views of any layout, and every copy of them, against `ndarray`.

use crate::support::{gpu, gpu_with};
use bytemuck::AnyBitPattern;
use gpumem_array::ndarray::{
    Array, ArrayD, ArrayViewD, ArrayViewMutD, Axis, Ix1, Ix2, IxDyn, NewAxis, SliceInfo, SliceInfoElem, arr0,
    array, s,
};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{
    ArrayError, Element, Gpu, GpuArray, GpuView, GpuViewMut, PinnedArray, Place, concatenate, stack,
};
use gpumem_sim::SimConfig;
use num_complex::Complex;
use proptest::prelude::*;
use std::fmt::Debug;

/// A step from one view to the next. Numbers are taken relative to the shape that they meet.
#[derive(Clone, Debug)]
enum Turn {
    /// For each axis: start, end and step, or an index.
    Slice(Vec<(usize, usize, isize, bool)>),
    Permute(usize),
    Insert(usize),
    Index(usize, usize),
    /// Repeats the axes of length 1, and adds one in front. Only for reading.
    Broadcast(usize),
}

fn turns(is_read: bool) -> impl Strategy<Value = Vec<Turn>> {
    let step = prop_oneof![-3_isize..0, 1_isize..4];
    let axis = (0_usize..9, 0_usize..9, step, prop_oneof![4 => Just(false), 1 => Just(true)]);
    let turn = prop_oneof![
        4 => proptest::collection::vec(axis, 5).prop_map(Turn::Slice),
        2 => any::<usize>().prop_map(Turn::Permute),
        1 => any::<usize>().prop_map(Turn::Insert),
        1 => any::<(usize, usize)>().prop_map(|(axis, index)| Turn::Index(axis, index)),
        u32::from(is_read) => (1_usize..4).prop_map(Turn::Broadcast),
    ];
    proptest::collection::vec(turn, 0..4)
}

/// The slice of a shape that a turn selects.
fn elements(shape: &[usize], axes: &[(usize, usize, isize, bool)]) -> Vec<SliceInfoElem> {
    let element = |(len, (start, end, step, is_index)): (&usize, &(usize, usize, isize, bool))| {
        if *is_index && *len > 0 {
            return SliceInfoElem::Index(
                (start % len).cast_signed() - if end % 2 == 0 { 0 } else { len.cast_signed() },
            );
        }
        let (start, end) = (start % (len + 1), end % (len + 1));
        let (start, end) = (start.min(end), start.max(end));
        SliceInfoElem::Slice { start: start.cast_signed(), end: Some(end.cast_signed()), step: *step }
    };
    shape.iter().zip(axes.iter().cycle()).map(element).collect()
}

fn permutation(ndim: usize, number: usize) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..ndim).collect();
    let mut number = number;
    for place in (1..ndim).rev() {
        axes.swap(place, number % (place + 1));
        number /= place + 1;
    }
    axes
}

fn larger(shape: &[usize], times: usize) -> Vec<usize> {
    let repeated = shape.iter().map(|len| if *len == 1 { times } else { *len });
    if shape.len() < 5 { [2].into_iter().chain(repeated).collect() } else { repeated.collect() }
}

fn turned<'a, T: Element>(
    mut ours: GpuView<'a, T, IxDyn>,
    mut theirs: ArrayViewD<'a, T>,
    turns: &[Turn],
) -> (GpuView<'a, T, IxDyn>, ArrayD<T>) {
    let mut theirs_owned: Option<ArrayD<T>> = None;
    for turn in turns {
        let shape = ours.shape().to_vec();
        let before = theirs_owned.take();
        let view = before.as_ref().map_or(theirs.view(), |owned| owned.view());
        let after = match turn {
            Turn::Slice(axes) => {
                let info = elements(&shape, axes);
                ours = ours.slice(&info[..]).unwrap();
                view.slice(&info[..]).to_owned()
            }
            Turn::Permute(number) => {
                let axes = permutation(shape.len(), *number);
                ours = ours.permuted_axes(axes.clone()).unwrap();
                view.permuted_axes(axes).to_owned()
            }
            Turn::Insert(axis) if shape.len() < 5 => {
                let axis = Axis(axis % (shape.len() + 1));
                ours = ours.insert_axis(axis).unwrap();
                view.insert_axis(axis).to_owned()
            }
            Turn::Index(axis, index) if shape.iter().all(|len| *len > 0) && !shape.is_empty() => {
                let axis = axis % shape.len();
                ours = ours.index_axis(Axis(axis), index % shape[axis]).unwrap();
                view.index_axis(Axis(axis), index % shape[axis]).to_owned()
            }
            Turn::Broadcast(times) => {
                let shape = larger(&shape, *times);
                ours = ours.broadcast(shape.clone()).unwrap();
                view.broadcast(shape).unwrap().to_owned()
            }
            Turn::Insert(_) | Turn::Index(..) => view.to_owned(),
        };
        theirs_owned = Some(after);
    }
    let theirs = theirs_owned.unwrap_or_else(|| {
        theirs.swap_axes(0, 0);
        theirs.to_owned()
    });
    (ours, theirs)
}

/// Like [`turned`], for mutable views: applies the turns to both in place.
fn turned_mut<'a, T: Element>(
    mut ours: GpuViewMut<'a, T, IxDyn>,
    mut theirs: ArrayViewMutD<'a, T>,
    turns: &[Turn],
) -> (GpuViewMut<'a, T, IxDyn>, ArrayViewMutD<'a, T>) {
    for turn in turns {
        let shape = ours.shape().to_vec();
        match turn {
            Turn::Slice(axes) => {
                let info = elements(&shape, axes);
                ours = ours.slice_mut(&info[..]).unwrap();
                theirs = theirs.slice_move(&info[..]);
            }
            Turn::Permute(number) => {
                let axes = permutation(shape.len(), *number);
                ours = ours.permuted_axes_mut(axes.clone()).unwrap();
                theirs = theirs.permuted_axes(axes);
            }
            Turn::Index(axis, index) if shape.iter().all(|len| *len > 0) && !shape.is_empty() => {
                let axis = axis % shape.len();
                ours = ours.index_axis_mut(Axis(axis), index % shape[axis]).unwrap();
                theirs = theirs.index_axis_move(Axis(axis), index % shape[axis]);
            }
            Turn::Insert(_) | Turn::Index(..) | Turn::Broadcast(_) => {}
        }
    }
    (ours, theirs)
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![8 => 1_usize..7, 1 => Just(0), 1 => Just(40)], 1..4)
}

fn host<T>(shape: &[usize], by_columns: bool, element: fn(usize) -> T) -> ArrayD<T> {
    let mut next = 0;
    let array = Array::from_shape_simple_fn(IxDyn(shape), || {
        next += 1;
        element(next)
    });
    if by_columns { array.reversed_axes() } else { array }
}

/// Every way to read a view.
fn reads<T: Element + PartialEq + Debug>(
    gpu: &Gpu,
    host: &ArrayD<T>,
    turns: &[Turn],
) -> Result<(), TestCaseError> {
    let device = GpuArray::from_array(gpu, host).unwrap();
    let (ours, theirs) = turned(device.view(), host.view(), turns);
    prop_assert_eq!(ours.shape(), theirs.shape());
    prop_assert_eq!(&ours.to_array().unwrap(), &theirs);
    prop_assert_eq!(ours.to_vec().unwrap(), theirs.iter().copied().collect::<Vec<_>>());
    let owned = ours.to_owned().unwrap();
    prop_assert_eq!(&owned.to_array().unwrap(), &theirs);
    prop_assert_eq!(&ours.t().to_owned().unwrap().to_array().unwrap(), &theirs.t());
    let reversed = ours.t();
    let mut target = PinnedArray::<T, _>::zeros(&gpu.pinned(), reversed.raw_dim()).unwrap();
    target.assign(&reversed).unwrap();
    prop_assert_eq!(&target.as_array().unwrap(), &theirs.t());
    Ok(())
}

/// Every way to write a view: what lies between its elements stays.
fn writes<T: Element + PartialEq + Debug>(
    gpu: &Gpu,
    host: &ArrayD<T>,
    turns: &[Turn],
    values: [T; 2],
) -> Result<(), TestCaseError> {
    let device = GpuArray::from_array(gpu, host).unwrap();

    let (mut filled, mut expected) = (device.try_clone().unwrap(), host.clone());
    let (mut ours, mut theirs) = turned_mut(filled.view_mut(), expected.view_mut(), turns);
    ours.fill(values[0]).unwrap();
    theirs.fill(values[0]);
    prop_assert_eq!(&filled.to_array().unwrap(), &expected);

    let (mut assigned, mut expected) = (device.try_clone().unwrap(), host.clone());
    let (mut ours, mut theirs) = turned_mut(assigned.view_mut(), expected.view_mut(), turns);
    let source = Array::from_elem(theirs.raw_dim(), values[1]);
    ours.assign(&GpuArray::from_array(gpu, &source).unwrap().t().t()).unwrap();
    theirs.assign(&source);
    prop_assert_eq!(&assigned.to_array().unwrap(), &expected);

    // From elements of the same array, in another order.
    let (mut swapped, mut expected) = (device.try_clone().unwrap(), host.clone());
    let (mut ours, mut theirs) = turned_mut(swapped.view_mut(), expected.view_mut(), turns);
    let (copy, host_copy) = (ours.view().to_owned().unwrap(), theirs.to_owned());
    let back: Vec<SliceInfoElem> =
        copy.shape().iter().map(|_| SliceInfoElem::Slice { start: 0, end: None, step: -1 }).collect();
    ours.assign(&copy.slice(&back[..]).unwrap()).unwrap();
    theirs.assign(&host_copy.slice(&back[..]));
    prop_assert_eq!(&swapped.to_array().unwrap(), &expected);

    let (mut uploaded, mut expected) = (device.try_clone().unwrap(), host.clone());
    let (mut ours, mut theirs) = turned_mut(uploaded.view_mut(), expected.view_mut(), turns);
    let elements = vec![values[1]; ours.len()];
    ours.copy_from_slice(&elements).unwrap();
    theirs.fill(values[1]);
    prop_assert_eq!(&uploaded.to_array().unwrap(), &expected);
    Ok(())
}

/// The places that arrays can have.
#[derive(Clone, Copy, Debug)]
enum At {
    Device,
    Unified,
    Pinned,
    /// Another device.
    Peer,
}

const PLACES: [At; 4] = [At::Device, At::Unified, At::Pinned, At::Peer];

/// Two devices of one machine.
struct Gpus([Gpu; 2]);

impl Gpus {
    fn new(config: SimConfig) -> Self {
        let driver = gpumem_sim::driver(config.devices(2)).unwrap();
        let gpu = |index| Gpu::new(&Pool::from_env(&Device::new(&driver, index).unwrap()).unwrap()).unwrap();
        Self([gpu(0), gpu(1)])
    }

    /// Calls `body` with a view of an array at a place. Returns the values of the array after that.
    fn with<T: Element>(
        &self,
        at: At,
        host: &ArrayD<T>,
        body: impl FnOnce(GpuViewMut<'_, T, IxDyn>) -> Result<(), TestCaseError>,
    ) -> Result<ArrayD<T>, TestCaseError> {
        fn at_place<T: Element, P: Place + ?Sized>(
            place: &P,
            host: &ArrayD<T>,
            body: impl FnOnce(GpuViewMut<'_, T, IxDyn>) -> Result<(), TestCaseError>,
        ) -> Result<ArrayD<T>, TestCaseError> {
            let mut array = GpuArray::from_array(place, host).unwrap();
            body(array.view_mut())?;
            Ok(array.to_array().unwrap())
        }
        let [gpu, peer] = &self.0;
        match at {
            At::Device => at_place(gpu, host, body),
            At::Unified => at_place(&gpu.unified(), host, body),
            At::Pinned => at_place(&gpu.pinned(), host, body),
            At::Peer => at_place(peer, host, body),
        }
    }

    fn copy_to<T: Element>(&self, at: At, view: &GpuView<'_, T, IxDyn>) -> Result<ArrayD<T>, ArrayError> {
        let [gpu, peer] = &self.0;
        match at {
            At::Device => view.copy_to(gpu)?.to_array(),
            At::Unified => view.copy_to(&gpu.unified())?.to_array(),
            At::Pinned => view.copy_to(&gpu.pinned())?.to_array(),
            At::Peer => view.copy_to(peer)?.to_array(),
        }
    }
}

/// Copies of a view to every place, and from there to the host, by each kind of download.
fn copies<T: Element + AnyBitPattern + PartialEq + Debug>(
    gpus: &Gpus,
    from: At,
    host: &ArrayD<T>,
    turns: &[Turn],
) -> Result<(), TestCaseError> {
    let unchanged = gpus.with(from, host, |array| {
        let (ours, theirs) = turned(array.view(), host.view(), turns);
        for to in PLACES {
            prop_assert_eq!(&gpus.copy_to(to, &ours).unwrap(), &theirs, "{:?}", to);
        }
        let in_order = theirs.iter().copied().collect::<Vec<_>>();
        prop_assert_eq!(&ours.download_array().wait().unwrap(), &theirs);
        prop_assert_eq!(&ours.download().wait().unwrap(), &in_order);
        prop_assert_eq!(&ours.download_into(Vec::new()).wait().unwrap(), &in_order);
        let target = PinnedArray::zeros(&gpus.0[0].pinned(), ours.raw_dim()).unwrap();
        let pinned = ours.download_into(target).wait().unwrap();
        prop_assert_eq!(&pinned.as_array().unwrap(), &theirs);
        let in_memory = theirs.view().permuted_axes(order(&ours.strides(), ours.shape()));
        let in_memory = in_memory.iter().copied().collect::<Vec<_>>();
        let mut slice = vec![T::zeroed(); in_memory.len()];
        ours.copy_to_slice(&mut slice).unwrap();
        prop_assert_eq!(&slice, &in_memory);
        let bytes = ours.reinterpret::<[u8; 4]>().unwrap().to_array().unwrap();
        prop_assert_eq!(bytes.map(|bytes| u32::from_ne_bytes(*bytes)), theirs.map(bits));
        Ok(())
    })?;
    prop_assert_eq!(&unchanged, host);
    Ok(())
}

/// The axes from the slowest to the fastest of the slices that a view is copied from and to.
fn order(strides: &[isize], shape: &[usize]) -> Vec<usize> {
    let is_dense = |axes: &[usize]| {
        let mut len = 1;
        axes.iter().rev().filter(|&&axis| shape[axis] > 1).all(|&axis| {
            len *= shape[axis] as isize;
            strides[axis] == len / shape[axis] as isize
        })
    };
    let by_rows: Vec<usize> = (0..shape.len()).collect();
    let by_columns: Vec<usize> = by_rows.iter().rev().copied().collect();
    if !is_dense(&by_rows) && is_dense(&by_columns) { by_columns } else { by_rows }
}

fn bits<T: Element>(element: &T) -> u32 {
    bytemuck::pod_read_unaligned(bytemuck::bytes_of(element))
}

/// Assignments of a view from another of every place, with axes of length 1 for some of the target's, which are repeated.
fn assignments<T: Element + PartialEq + Debug>(
    gpus: &Gpus,
    to: At,
    host: &ArrayD<T>,
    turns: &[Turn],
    (repeated, element): (u8, fn(usize) -> T),
) -> Result<(), TestCaseError> {
    for from in PLACES {
        let mut expected = host.clone();
        let found = gpus.with(to, host, |array| {
            let (mut ours, mut theirs) = turned_mut(array, expected.view_mut(), turns);
            let shape = theirs.shape().iter().enumerate();
            let shape: Vec<_> =
                shape.map(|(axis, len)| if repeated & 1 << axis == 0 { *len } else { 1 }).rev().collect();
            // Column-major.
            let source = self::host(&shape, true, element);
            // From the host first, and then from the other place.
            let slice: Vec<_> = (0..theirs.len()).map(|index| element(index + 1)).collect();
            ours.copy_from_slice(&slice).unwrap();
            let mut in_memory = theirs.view_mut().permuted_axes(order(&ours.view().strides(), ours.shape()));
            in_memory.iter_mut().zip(&slice).for_each(|(place, element)| *place = *element);
            prop_assert_eq!(&ours.view().to_array().unwrap(), &theirs);
            theirs.assign(&source);
            gpus.with(from, &source, |source| {
                ours.assign(&source.view()).unwrap();
                Ok(())
            })?;
            Ok(())
        })?;
        prop_assert_eq!(&found, &expected, "from {:?}", from);
    }
    Ok(())
}

fn machine(seed: u64, is_linked: bool) -> SimConfig {
    let config = SimConfig::new().seed(seed);
    if is_linked { config } else { config.without_link(0, 1) }
}

proptest! {
    #[test]
    fn every_copy_between_places(
        shape in shapes(), turns in turns(true), by_columns in any::<bool>(), seed in any::<u64>(), is_linked in any::<bool>(), from in 0..4_usize
    ) {
        let gpus = Gpus::new(machine(seed, is_linked));
        copies(&gpus, PLACES[from], &host(&shape, by_columns, |i| i as f32), &turns)?;
        copies(&gpus, PLACES[from], &host(&shape, by_columns, |i| [i as u8, 1, 2, 3]), &turns)?;
    }

    #[test]
    fn every_assignment_between_places(
        shape in shapes(), turns in turns(false), by_columns in any::<bool>(), seed in any::<u64>(), is_linked in any::<bool>(), to in 0..4_usize, repeated in any::<u8>()
    ) {
        let gpus = Gpus::new(machine(seed, is_linked));
        assignments(&gpus, PLACES[to], &host(&shape, by_columns, |i| i as i32), &turns, (repeated, |i| -(i as i32)))?;
        assignments(&gpus, PLACES[to], &host(&shape, by_columns, |i| i as u8), &turns, (repeated, |i| i as u8 ^ 0x80))?;
    }

    #[test]
    fn every_read_of_any_view(shape in shapes(), turns in turns(true), by_columns in any::<bool>(), seed in any::<u64>()) {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        reads(&gpu, &host(&shape, by_columns, |i| i as u8), &turns)?;
        reads(&gpu, &host(&shape, by_columns, |i| i as i16), &turns)?;
        reads(&gpu, &host(&shape, by_columns, |i| i as f32), &turns)?;
        reads(&gpu, &host(&shape, by_columns, |i| [i as f32, 0.5, -1.0]), &turns)?;
        reads(&gpu, &host(&shape, by_columns, |i| i as i64), &turns)?;
        reads(&gpu, &host(&shape, by_columns, |i| Complex::new(i as f64, -1.0)), &turns)?;
    }

    #[test]
    fn every_write_of_any_view(shape in shapes(), turns in turns(false), by_columns in any::<bool>(), seed in any::<u64>()) {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        writes(&gpu, &host(&shape, by_columns, |i| i as u8), &turns, [255, 1])?;
        writes(&gpu, &host(&shape, by_columns, |i| i as i16), &turns, [-2, -3])?;
        writes(&gpu, &host(&shape, by_columns, |i| i as f32), &turns, [0.0, -3.0])?;
        writes(&gpu, &host(&shape, by_columns, |i| [i as f32; 3]), &turns, [[1.0, 2.0, 3.0], [0.0; 3]])?;
        writes(&gpu, &host(&shape, by_columns, |i| i as i64), &turns, [-1, 1 << 40])?;
        writes(&gpu, &host(&shape, by_columns, |i| Complex::new(i as f64, -1.0)), &turns, [Complex::i(), Complex::new(0.0, 0.0)])?;
    }

    #[test]
    fn sums_of_any_view(shape in shapes(), turns in turns(true)) {
        let gpu = gpu();
        let host = host(&shape, false, |i| i as i64 * 31 - 400);
        let device = GpuArray::from_array(&gpu, &host).unwrap();
        let (ours, theirs) = turned(device.view(), host.view(), &turns);
        prop_assert_eq!(ours.sum().unwrap().into_scalar().unwrap(), theirs.sum());
        prop_assert_eq!((ours.try_mul(&ours).unwrap() - 1).to_array().unwrap(), &theirs * &theirs - 1);
    }
}

#[test]
fn more_axes_than_a_kernel_takes() {
    let gpu = gpu();
    let host = host(&[3; 9], false, |i| i as i32);
    let device = GpuArray::from_array(&gpu, &host).unwrap();
    let every_other = vec![SliceInfoElem::Slice { start: 0, end: None, step: -2 }; 9];
    assert_eq!(device.slice(&every_other[..]).unwrap().to_array().unwrap(), host.slice(&every_other[..]));
    let mut target = GpuArray::<i32, _>::zeros(&gpu, device.raw_dim()).unwrap();
    target.slice_mut(&every_other[..]).unwrap().fill(5).unwrap();
    let mut expected = ArrayD::zeros(host.raw_dim());
    expected.slice_mut(&every_other[..]).fill(5);
    assert_eq!(target.to_array().unwrap(), expected);
}

#[test]
fn large_transposed_and_wide_copies() {
    let gpu = gpu();
    let host = Array::from_shape_fn((1500, 70), |(i, j)| (i * 70 + j) as f32);
    let device = GpuArray::from_array(&gpu, &host).unwrap();
    assert_eq!(device.t().to_vec().unwrap(), host.t().iter().copied().collect::<Vec<_>>());
    assert_eq!(device.slice(s![..;3, ..;-2]).unwrap().to_array().unwrap(), host.slice(s![..;3, ..;-2]));
    assert_eq!(device.slice(s![.., 3..67]).unwrap().to_array().unwrap(), host.slice(s![.., 3..67]));
}

#[test]
fn slices_change_the_number_of_axes_in_their_type() {
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]]).unwrap();
    let column: GpuView<'_, i32, Ix1> = x.slice(s![.., 1]).unwrap();
    assert_eq!(column.to_vec().unwrap(), [2, 5]);
    let wide: GpuView<'_, i32, Ix2> = column.slice(s![NewAxis, ..]).unwrap();
    assert_eq!((wide.nrows(), wide.ncols(), x.nrows(), x.ncols()), (1, 2, 2, 3));
    let info: SliceInfo<_, Ix2, Ix1> = s![0, 1..];
    assert_eq!(x.slice(info).unwrap().to_vec().unwrap(), [2, 3]);
    for (refused, axis) in [(x.slice(s![2, ..]), 0), (x.slice(s![.., -4]).map(|_| column), 1)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ArrayError::Slice { axis: found, .. } if found == axis), "{error}");
    }
    assert!(matches!(x.slice(s![.., 1..5]), Err(ArrayError::Slice { axis: 1, .. })));
    let dynamic = GpuArray::from_array(&gpu, &ArrayD::<u8>::zeros(vec![2, 3])).unwrap();
    assert!(matches!(dynamic.slice(&[SliceInfoElem::Index(0)][..]), Err(ArrayError::Slice { .. })));
    assert!(matches!(x.index_axis(Axis(2), 0), Err(ArrayError::Slice { axis: 2, .. })));
    assert!(matches!(x.insert_axis(Axis(3)), Err(ArrayError::Slice { .. })));
}

#[test]
fn impossible_axes_and_shapes_are_refused() {
    let gpu = gpu();
    let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3)).unwrap();
    assert!(matches!(x.permuted_axes([0, 0]), Err(ArrayError::Shape { operation: "permuted_axes", .. })));
    assert!(matches!(x.permuted_axes([0, 2]), Err(ArrayError::Shape { .. })));
    assert!(matches!(x.broadcast((3, 3)), Err(ArrayError::Shape { operation: "broadcast", .. })));
    assert!(matches!(x.broadcast(3), Err(ArrayError::Shape { .. })));
    assert!(matches!(x.broadcast((usize::MAX, 2, 3)), Err(ArrayError::TooManyElements { .. })));
    assert!(x.broadcast((0, 2, 3)).unwrap().is_empty());
    let mut y = x.try_clone().unwrap();
    assert!(matches!(y.assign(&x.t()), Err(ArrayError::Shape { operation: "assign", .. })));
}

#[test]
fn bytes_as_other_elements() {
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &array![[1_u32, 2, 3, 4], [5, 6, 7, 0x0807_0605]]).unwrap();
    let bytes = x.reinterpret::<u8>().unwrap();
    assert_eq!((bytes.shape(), &bytes.to_vec().unwrap()[28..]), (&[2, 16][..], &[5, 6, 7, 8][..]));
    assert_eq!(x.reinterpret::<u64>().unwrap().to_array().unwrap()[[0, 1]], 3 | 4 << 32);
    // Same size: any layout.
    let turned = x.t().reinterpret::<[u16; 2]>().unwrap();
    assert_eq!(turned.to_array().unwrap()[[2, 0]], [3, 0]);
    let right = x.slice(s![.., 2..]).unwrap().reinterpret::<u64>().unwrap();
    assert_eq!(right.to_array().unwrap()[[0, 0]], 3 | 4 << 32);
    for refused in [
        x.t().reinterpret::<u8>().map(drop),
        x.slice(s![.., 1..]).unwrap().reinterpret::<u64>().map(drop),
        x.slice(s![.., 1..3]).unwrap().reinterpret::<u64>().map(drop),
        x.reinterpret::<[u8; 3]>().map(drop),
    ] {
        assert!(matches!(refused, Err(ArrayError::Reinterpret { .. })), "{refused:?}");
    }
}

#[test]
fn arrays_are_joined() {
    let gpu = gpu();
    let (a, b) = (array![[1, 2], [3, 4]], array![[5, 6], [7, 8]]);
    let (x, y) = (GpuArray::from_array(&gpu, &a).unwrap(), GpuArray::from_array(&gpu, &b).unwrap());
    let joined = concatenate(Axis(1), &[x.view(), y.t(), x.slice(s![.., ..1]).unwrap()]).unwrap();
    assert_eq!(joined.to_array().unwrap(), array![[1, 2, 5, 7, 1], [3, 4, 6, 8, 3]]);
    assert_eq!(stack(Axis(0), &[x.view(), y.view()]).unwrap().shape(), [2, 2, 2]);
    let none: &[GpuView<'_, i32, Ix2>] = &[];
    assert!(matches!(concatenate(Axis(0), none), Err(ArrayError::Shape { .. })));
    let short = x.slice(s![..1, ..]).unwrap();
    assert!(matches!(concatenate(Axis(1), &[x.view(), short]), Err(ArrayError::Shape { .. })));
    assert!(matches!(concatenate(Axis(2), &[x.view()]), Err(ArrayError::Slice { axis: 2, .. })));
    assert!(stack(Axis(1), &[x.view(), short]).is_err());
    let one = GpuArray::from_array(&gpu, &arr0(3)).unwrap();
    assert_eq!(stack(Axis(0), &[one.view(), one.view()]).unwrap().to_vec().unwrap(), [3, 3]);
}

#[test]
fn views_that_repeat_elements_more_often_than_memory_has_bytes_are_used() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[1_u64]).unwrap();
    let wide = x.broadcast(1_usize << 62).unwrap();
    drop(wide.read_on(&gpu).unwrap());
    let (mut graph, _) = gpu.capture(|c| x.on(c).to_owned()).unwrap();
    graph.launch(&gpu).read(&wide).run().unwrap();
}

#[test]
fn a_reinterpretation_with_too_many_elements_is_refused() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[1_u64; 8]).unwrap();
    let wide = x.broadcast((1_usize << 59, 8)).unwrap();
    assert!(matches!(wide.reinterpret::<u8>(), Err(ArrayError::Reinterpret { .. })));
    let x = GpuArray::from_slice(&gpu, &[[1.0_f32; 7]]).unwrap();
    // Times 7, it wraps to 1.
    let wide = x.broadcast((0x6DB6_DB6D_B6DB_6DB7_usize, 1)).unwrap();
    assert!(matches!(wide.reinterpret::<f32>(), Err(ArrayError::Reinterpret { .. })));
}

/// Mutable views have the reading methods of views, and transposed elements can be copied to row-major order.
#[test]
fn mutable_views_are_read_too() {
    let gpu = gpu();
    let host = array![[1, 2, 3], [4, 5, 6]];
    let mut x = GpuArray::from_array(&gpu, &host).unwrap();
    assert_eq!((x.strides(), x.is_standard_layout()), (vec![3, 1], true));
    {
        let view = x.view_mut();
        assert_eq!((view.ndim(), view.strides(), view.is_standard_layout()), (2, vec![3, 1], true));
        assert_eq!(view.sum().unwrap().into_scalar().unwrap(), 21);
        assert_eq!(view.t().to_array().unwrap(), host.t());
        assert_eq!(view.slice(s![1, ..]).unwrap().to_vec().unwrap(), [4, 5, 6]);
        assert_eq!(
            (view.to_vec().unwrap(), view.to_array().unwrap()),
            (vec![1, 2, 3, 4, 5, 6], host.clone())
        );
        assert_eq!(view.to_owned().unwrap().to_array().unwrap(), host);
    }
    let turned = x.t();
    assert!(!turned.is_standard_layout());
    let error = turned.reshape(6).unwrap_err().to_string();
    assert!(error.contains("as_standard_layout"), "{error}");
    let copied = turned.as_standard_layout().unwrap();
    assert!(copied.is_standard_layout() && !copied.is_view());
    assert_eq!(copied.reshape(6).unwrap().to_vec().unwrap(), [1, 4, 2, 5, 3, 6]);
    let columns = GpuArray::from_array(&gpu, &host.t()).unwrap();
    assert!(!columns.is_standard_layout());
    assert_eq!(
        columns.as_standard_layout().unwrap().into_owned().unwrap().into_shape(6).unwrap().to_vec().unwrap(),
        [1, 4, 2, 5, 3, 6]
    );
    // No copy of elements that are in this order already.
    for (standard, address) in [
        (x.as_standard_layout().unwrap(), x.address()),
        (x.slice(s![1.., ..]).unwrap().as_standard_layout().unwrap(), x.address() + 12),
        (columns.t().as_standard_layout().unwrap(), columns.address()),
    ] {
        assert!(standard.is_view() && standard.is_standard_layout());
        assert_eq!((standard.address(), &standard.gpu()), (address, &x.gpu()));
    }
    let row = x.slice(s![1, ..]).unwrap();
    let owned = row.as_standard_layout().unwrap().into_owned().unwrap();
    assert!(owned.address() != row.address() && owned.to_vec().unwrap() == [4, 5, 6]);
}
