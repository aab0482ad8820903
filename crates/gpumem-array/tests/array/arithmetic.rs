//! Element-wise arithmetic, against `ndarray`.

use crate::support::gpu;
use gpumem_array::ndarray::{Array, Array2, Axis, Dim, Ix2, IxDyn, Slice, Zip, arr0, array, s};
use gpumem_array::pool::{BackendKind, Device, Limit, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray};
use gpumem_sim::SimConfig;
use proptest::prelude::*;

/// Shapes with zero lengths and lengths of one, up to three axes.
fn shapes() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![4 => 1_usize..9, 1 => Just(0), 1 => Just(1)], 0..4)
}

fn filled(shape: &[usize], seed: i32) -> Array<i32, IxDyn> {
    let mut next = seed;
    Array::from_shape_simple_fn(shape, || {
        next = next.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        if next % 7 == 0 { 0 } else { next >> 16 }
    })
}

fn float(array: &Array<i32, IxDyn>) -> Array<f32, IxDyn> {
    array.mapv(|value| value as f32 / 8.0)
}

/// The bits, with every NaN replaced by one: GPUs and CPUs produce different ones.
fn bits(array: &Array<f32, IxDyn>) -> (Vec<usize>, Vec<u32>) {
    let bits = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
    (array.shape().to_vec(), array.iter().map(bits).collect())
}

fn divide(a: i32, b: i32) -> i32 {
    if b == 0 { 0 } else { a.wrapping_div(b) }
}

proptest! {
    #[test]
    fn arrays_of_one_shape(shape in shapes(), seeds in any::<(i32, i32)>(), by_columns in any::<bool>()) {
        let gpu = gpu();
        let (mut a, mut b) = (filled(&shape, seeds.0), filled(&shape, seeds.1));
        if by_columns {
            (a, b) = (a.reversed_axes(), b.reversed_axes());
        }
        let (x, y) = (GpuArray::from_array(&gpu, &a).unwrap(), GpuArray::from_array(&gpu, &b).unwrap());
        let zip = |f: fn(i32, i32) -> i32| Zip::from(&a).and(&b).map_collect(|a, b| f(*a, *b));
        prop_assert_eq!((&x + &y).to_array().unwrap(), zip(i32::wrapping_add));
        prop_assert_eq!((&x - &y).to_array().unwrap(), zip(i32::wrapping_sub));
        prop_assert_eq!((&x * &y).to_array().unwrap(), zip(i32::wrapping_mul));
        prop_assert_eq!((&x / &y).to_array().unwrap(), zip(divide));

        let (a, b) = (float(&a), float(&b));
        let (x, y) = (GpuArray::from_array(&gpu, &a).unwrap(), GpuArray::from_array(&gpu, &b).unwrap());
        prop_assert_eq!(bits(&(&x / &y).to_array().unwrap()), bits(&(&a / &b)));
        prop_assert_eq!(bits(&(x - y).to_array().unwrap()), bits(&(&a - &b)));
    }

    #[test]
    fn one_element_is_broadcast(shape in shapes(), seeds in any::<(i32, i32)>()) {
        let gpu = gpu();
        let (a, one) = (float(&filled(&shape, seeds.0)), (seeds.1 >> 16) as f32);
        let x = GpuArray::from_array(&gpu, &a).unwrap();
        let right = GpuArray::from_array(&gpu, &arr0(one)).unwrap();
        prop_assert_eq!(bits(&(&x - &right).to_array().unwrap()), bits(&(&a - one)));
        let left = GpuArray::from_elem(&gpu, Dim(vec![1; shape.len()]), one).unwrap();
        prop_assert_eq!(bits(&(&left / &x).to_array().unwrap()), bits(&(one / &a)));
        prop_assert_eq!(bits(&(left / x).to_array().unwrap()), bits(&(one / &a)));
    }

    #[test]
    fn scalars_on_both_sides(shape in shapes(), seed in any::<i32>(), s in -9_i32..9) {
        let gpu = gpu();
        let a = filled(&shape, seed);
        let x = GpuArray::from_array(&gpu, &a).unwrap();
        prop_assert_eq!((&x + s).to_array().unwrap(), a.mapv(|a| a.wrapping_add(s)));
        prop_assert_eq!((s - &x).to_array().unwrap(), a.mapv(|a| s.wrapping_sub(a)));
        prop_assert_eq!((s * x.view()).to_array().unwrap(), a.mapv(|a| a.wrapping_mul(s)));
        prop_assert_eq!((x.view() / s).to_array().unwrap(), a.mapv(|a| divide(a, s)));
        prop_assert_eq!((s / x.try_clone().unwrap()).to_array().unwrap(), a.mapv(|a| divide(s, a)));
        let mut y = x - s;
        y *= s;
        prop_assert_eq!(y.to_array().unwrap(), a.mapv(|a| a.wrapping_sub(s).wrapping_mul(s)));
    }

    #[test]
    fn in_place_on_part_of_an_array(rows in 1_usize..9, columns in 0_usize..9, from in 0_usize..9, seed in any::<i32>()) {
        let gpu = gpu();
        let from = from.min(rows);
        let mut a = filled(&[rows, columns], seed).into_dimensionality::<Ix2>().unwrap();
        let mut x = GpuArray::from_array(&gpu, &a).unwrap();
        let other = filled(&[rows - from, columns], seed ^ 1);
        let y = GpuArray::from_array(&gpu, &other).unwrap();
        let mut part = x.slice_axis_mut(Axis(0), Slice::from(from..)).unwrap();
        part += &y;
        part -= 3;
        let mut expected = a.slice_axis_mut(Axis(0), Slice::from(from..));
        expected.zip_mut_with(&other.into_dimensionality::<Ix2>().unwrap(), |a, b| {
            *a = a.wrapping_add(*b).wrapping_sub(3);
        });
        prop_assert_eq!(x.to_array().unwrap(), a);
    }
}

#[test]
fn integers_are_defined_for_every_input() {
    let gpu = gpu();
    let a = GpuArray::from_slice(&gpu, &[i64::MIN, i64::MAX, 7, -7]).unwrap();
    let b = GpuArray::from_slice(&gpu, &[-1, 1, 0, 2]).unwrap();
    assert_eq!((&a / &b).to_vec().unwrap(), [i64::MIN, i64::MAX, 0, -3]);
    assert_eq!((&a + &b).to_vec().unwrap(), [i64::MAX, i64::MIN, 7, -5]);
    assert_eq!((&a / 0).to_vec().unwrap(), [0; 4]);
}

#[test]
fn expressions_read_like_ndarray() {
    let gpu = gpu();
    let a = GpuArray::from_array(&gpu, &array![[1.0_f64, 2.0], [3.0, 4.0]]).unwrap();
    let mut b = &a * 2.0 - a.t().t() / &a + 1.0;
    b -= &a;
    b /= a.view();
    assert_eq!(b.to_array().unwrap(), array![[1.0, 1.0], [1.0, 1.0]]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let gpu = gpu();
    let two = GpuArray::from_slice(&gpu, &[1, 2]).unwrap();
    let three = GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap();
    let shape = two.try_add(&three).unwrap_err();
    assert!(matches!(shape, ArrayError::Shape { operation: "add", .. }), "{shape}");
    let mut one = GpuArray::from_slice(&gpu, &[1]).unwrap();
    assert!(matches!(one.try_add_assign(&three), Err(ArrayError::Shape { .. })), "the left side can't grow");
    let row = GpuArray::from_array(&gpu, &array![[1, 2]]).unwrap();
    let mut target = two.try_clone().unwrap();
    assert!(
        matches!(target.try_add_assign(&row), Err(ArrayError::Shape { operation: "add", .. })),
        "nor gain axes"
    );
}

#[test]
fn orders_and_gaps_may_differ() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((3, 3), |(i, j)| (3 * i + j) as i32);
    let square = GpuArray::from_array(&gpu, &host).unwrap();
    assert_eq!((&square + square.t()).to_array().unwrap(), &host + &host.t());
    let (part, host_part) = (square.slice(s![.., ..2]).unwrap(), host.slice(s![.., ..2]));
    assert_eq!((part + 1).to_array().unwrap(), &host_part + 1);
    assert_eq!((10 - part).to_array().unwrap(), 10 - &host_part);
    assert_eq!(
        (part * square.slice(s![.., ..;2]).unwrap()).to_array().unwrap(),
        &host_part * &host.slice(s![.., ..;2])
    );
    let (mut target, mut expected) = (square.try_clone().unwrap(), host.clone());
    let mut view = target.slice_mut(s![..;-1, 1..]).unwrap();
    view += part;
    view *= 3;
    let mut expected_view = expected.slice_mut(s![..;-1, 1..]);
    expected_view += &host_part;
    expected_view *= 3;
    assert_eq!(target.to_array().unwrap(), expected);
    let vector = square.slice(s![1, ..;2]).unwrap();
    let matrix = square.slice(s![..;2, ..;2]).unwrap();
    assert_eq!(
        matrix.dot(&vector).unwrap().to_array().unwrap(),
        host.slice(s![..;2, ..;2]).dot(&host.slice(s![1, ..;2]))
    );
    assert_eq!(vector.dot(&square.slice(s![..;2, 0]).unwrap()).unwrap().into_scalar().unwrap(), 30);
    assert_eq!(matrix.sum().unwrap().into_scalar().unwrap(), 16);
}

#[test]
fn operands_are_broadcast() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((3, 4), |(i, j)| (4 * i + j) as i64);
    let (row, column) = (array![10_i64, 20, 30, 40], array![[1_i64], [2], [3]]);
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    let (r, c) = (GpuArray::from_array(&gpu, &row).unwrap(), GpuArray::from_array(&gpu, &column).unwrap());
    assert_eq!((&x - &r).to_array().unwrap(), &host - &row);
    assert_eq!((&x * &c).to_array().unwrap(), &host * &column);
    assert_eq!((&c + &r).to_array().unwrap(), &column + &row);
    assert_eq!((&c / &x).to_array().unwrap(), array![[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]);
    let (mut y, mut expected) = (x.try_clone().unwrap(), host.clone());
    y += &r;
    y -= &c;
    expected += &row;
    expected -= &column;
    assert_eq!(y.to_array().unwrap(), expected);
    assert!(matches!(r.try_clone().unwrap().try_add_assign(&x), Err(ArrayError::Shape { .. })));
    y.assign(&r).unwrap();
    assert_eq!(y.to_array().unwrap(), row.broadcast((3, 4)).unwrap());
}

#[test]
#[should_panic(expected = "add: incompatible shapes [2] and [3]")]
fn operators_panic_with_the_error() {
    let gpu = gpu();
    let _ = GpuArray::from_slice(&gpu, &[1, 2]).unwrap() + GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap();
}

/// Results have the axes of the operand that has more, as in `ndarray`.
#[test]
fn either_operand_may_have_more_axes() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((2, 3), |(i, j)| (3 * i + j) as i32);
    let (row, one) = (array![10, 20, 30], arr0(100));
    let matrix = GpuArray::from_array(&gpu, &host).unwrap();
    let vector = GpuArray::from_array(&gpu, &row).unwrap();
    let scalar = GpuArray::from_array(&gpu, &one).unwrap();
    assert_eq!((&vector - &matrix).to_array().unwrap(), &row - &host);
    assert_eq!((vector.try_clone().unwrap() - matrix.view()).to_array().unwrap(), &row - &host);
    assert_eq!((scalar - &matrix).to_array().unwrap(), 100 - &host);
    assert_eq!((matrix.view() % &vector).to_array().unwrap(), &host % &row);
    assert_eq!((&matrix * vector.lazy().square()).to_array().unwrap(), &host * &row.mapv(|v| v * v));
    assert_eq!((-matrix.view()).to_array().unwrap(), -&host);
}

/// A broadcast operand is not copied, and neither is one with gaps: a limit that has room for operands and results is enough.
#[test]
fn nothing_is_allocated_but_the_result() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let pool =
        Pool::builder(&device).backend(BackendKind::None).hard_limit(Limit::Bytes(4 << 20)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let peak = || {
        let status = gpu.pool().status().unwrap();
        status.in_use_bytes
    };
    let mut x = GpuArray::<f32, _>::zeros(&gpu, (512, 512)).unwrap();
    let column = GpuArray::from_elem(&gpu, (512, 1), 2.0_f32).unwrap();
    let row = GpuArray::from_elem(&gpu, 512, 3.0_f32).unwrap();
    let before = peak();
    x += &row;
    x.slice_mut(s![1.., 1..]).unwrap().try_mul_assign(0.5).unwrap();
    assert_eq!(peak(), before);
    // Two results fill the rest of the limit to within a fourth of one.
    let difference = &column - &row;
    let turned = x.t() + &difference;
    assert_eq!(turned.to_array().unwrap()[[1, 0]], 2.0);
    assert!(GpuArray::<f32, _>::zeros(&gpu, (512, 512)).is_err());
}
