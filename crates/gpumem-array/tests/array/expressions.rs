//! Expressions, against `ndarray`.

use crate::support::gpu;
use gpumem_array::ndarray::{
    Array1, Array2, Array3, Axis, Dimension, Ix1, Ix2, NewAxis, RemoveAxis, array, s,
};
use gpumem_array::{Arithmetic, ArrayError, Expression, Gpu, GpuArray, GpuView, Lazy, Real, update};
use half::{bf16, f16};
use num_complex::Complex;

mod differential;
mod loading;
mod trees;

#[test]
fn floats_equal_ndarray() {
    differential::floats(&gpu());
}

#[test]
fn random_formulas_equal_ndarray() {
    differential::formulas(&gpu());
}

#[test]
fn functions_are_near_ndarray() {
    differential::functions(&gpu());
}

#[test]
fn halves_equal_ndarray() {
    differential::halves(&gpu());
}

/// Between two numbers of 16 bits, and so near to the middle that `f32` rounds it there.
#[test]
fn a_product_and_a_sum_of_16_bits_are_rounded_once() {
    fn fused<T: Real>(gpu: &Gpu, numbers: [T; 3]) -> T {
        let [a, b, c] = numbers.map(|number| GpuArray::from_slice(gpu, &[number]).unwrap());
        a.lazy().mul_add(&b, &c).eval().unwrap().slice(s![0]).unwrap().into_scalar().unwrap()
    }
    let gpu = gpu();
    let unit = 2.0_f32.powi(-10);
    let half = fused(&gpu, [1.0 + unit, (1.0 - unit) * unit / 2.0, 1.0 + unit].map(f16::from_f32));
    assert_eq!(half.to_f32(), 1.0 + unit);
    let brain = |c: f32| fused(&gpu, [7.0, 37.0, c].map(bf16::from_f32)).to_f32();
    assert_eq!([-1e-6, 0.0, 1e-6].map(brain), [258.0, 260.0, 260.0]);
    assert_eq!(brain(f32::NEG_INFINITY), f32::NEG_INFINITY);
    assert!(brain(f32::NAN).is_nan());
    assert_eq!(fused(&gpu, [3e38, 3.0, -3e38].map(bf16::from_f32)).to_f32(), f32::INFINITY);
}

#[test]
fn integers_equal_ndarray() {
    differential::integers(&gpu());
}

#[test]
fn reductions_equal_ndarray() {
    differential::reductions(&gpu());
}

/// Values of tables, which have more digits.
#[test]
fn the_error_function_is_that_of_tables() {
    let rows = [
        (0.0, 0.0),
        (1e-8, 1.128_379_167_095_512_6e-8),
        (-0.1, -0.112_462_916_018_284_9),
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (2.0, 0.995_322_265_018_952_7),
        (-3.0, -0.999_977_909_503_001_4),
        (7.0, 1.0),
        (f64::NEG_INFINITY, -1.0),
    ];
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &rows.map(|(x, _)| x)).unwrap();
    let (double, single) = (x.lazy().erf().eval().unwrap(), x.lazy().cast::<f32>().erf().eval().unwrap());
    for ((x, wanted), (double, single)) in
        rows.into_iter().zip(double.to_vec().unwrap().into_iter().zip(single.to_vec().unwrap()))
    {
        assert!((double - wanted).abs() <= 2.0 * f64::EPSILON * wanted.abs(), "{x}: {double}");
        assert!(
            (f64::from(single) - wanted).abs() <= 3.0 * f64::from(f32::EPSILON) * wanted.abs(),
            "{x}: {single}"
        );
    }
    // The complement has digits where the difference has none.
    let rows = [
        (0.0, 1.0),
        (0.5, 0.479_500_122_186_953_5),
        (2.0, 0.004_677_734_981_047_266),
        (-3.0, 1.999_977_909_503_001_4),
        (5.0, 1.537_459_794_428_034_8e-12),
        (f64::INFINITY, 0.0),
    ];
    let x = GpuArray::from_slice(&gpu, &rows.map(|(x, _)| x)).unwrap();
    let (double, single) = (x.lazy().erfc().eval().unwrap(), x.lazy().cast::<f32>().erfc().eval().unwrap());
    for ((double, single), (_, wanted)) in
        double.to_vec().unwrap().into_iter().zip(single.to_vec().unwrap()).zip(rows)
    {
        assert!((double - wanted).abs() <= 6.0 * f64::EPSILON * wanted, "{double}");
        assert!((f64::from(single) - wanted).abs() <= 6.0 * f64::from(f32::EPSILON) * wanted, "{single}");
    }
    assert!(
        GpuArray::from_slice(&gpu, &[f32::NAN])
            .unwrap()
            .lazy()
            .erf()
            .is_nan()
            .all()
            .unwrap()
            .into_scalar()
            .unwrap()
    );
}

/// Large enough for several parts of an output, which a second kernel merges.
#[test]
fn parts_are_merged() {
    let gpu = gpu();
    for shape in [[1 << 17, 1, 1], [1 << 14, 5, 1], [3, 1 << 14, 2], [40, 50, 60]] {
        let host =
            Array3::from_shape_fn(shape, |(i, j, k)| ((i * 7919 + j * 104_729 + k * 31) % 1009) as i64 - 500);
        let x = GpuArray::from_array(&gpu, &host).unwrap();
        assert_eq!((x.lazy() * 3).sum().unwrap().into_scalar().unwrap(), host.sum() * 3);
        let first = |wanted: i64| host.iter().position(|value| *value == wanted).unwrap() as i64;
        assert_eq!(x.lazy().argmin().unwrap().into_scalar().unwrap(), first(*host.iter().min().unwrap()));
        assert_eq!(x.lazy().argmax().unwrap().into_scalar().unwrap(), first(*host.iter().max().unwrap()));
        let mean = x.lazy().cast::<f64>().mean().unwrap().into_scalar().unwrap();
        assert!((mean - host.sum() as f64 / host.len() as f64).abs() < 1e-9);
        for axis in 0..3 {
            let wanted = host.sum_axis(Axis(axis));
            assert_eq!(x.lazy().sum_axis(Axis(axis)).unwrap().to_array().unwrap(), wanted);
            assert_eq!(
                x.t().lazy().sum_axis(Axis(2 - axis)).unwrap().to_array().unwrap(),
                wanted.reversed_axes()
            );
        }
    }
}

/// Against two passes in `f64`: of few and of many elements, whole and along axes, with a mean that is large beside the deviation.
#[test]
fn variances_are_those_of_ndarray() {
    let gpu = gpu();
    for (shape, mean) in
        [([3, 5, 7], 0.0), ([1 << 14, 3, 2], 1e3), ([2, 3, 1 << 14], 1e3), ([1, 1, 70_000], 1e4)]
    {
        let host = Array3::from_shape_fn(shape, |(i, j, k)| {
            (((i * 7919 + j * 104_729 + k * 31) % 1009) as f32 / 256.0) + mean
        });
        let exact = host.mapv(f64::from);
        let x = GpuArray::from_array(&gpu, &host).unwrap();
        let double = GpuArray::from_array(&gpu, &exact).unwrap();
        let near = |found: f32, wanted: f64, units: f64| {
            let apart = (f64::from(found) - wanted).abs();
            assert!(apart <= units * f64::from(f32::EPSILON) * wanted, "{shape:?}: {found} is not {wanted}");
        };
        near(x.mean().unwrap().into_scalar().unwrap(), exact.mean().unwrap(), 2.0);
        // The error of a distance from the mean is that of the mean, whose size is up to 2,600 deviations.
        let units = 8.0 + f64::from(mean);
        for ddof in [0.0, 1.0] {
            let wanted = exact.var(ddof);
            near(x.var(ddof).unwrap().into_scalar().unwrap(), wanted, units);
            near(x.std(ddof).unwrap().into_scalar().unwrap(), wanted.sqrt(), units);
            let found = double.var(ddof).unwrap().into_scalar().unwrap();
            assert!((found - wanted).abs() <= 1e-10 * wanted, "{shape:?}: {found} is not {wanted}");
        }
        for (axis, len) in shape.into_iter().enumerate() {
            let ddof = if len > 1 { 1.0 } else { 0.0 };
            let (found, wanted) = (x.var_axis(Axis(axis), ddof).unwrap(), exact.var_axis(Axis(axis), ddof));
            let (found, root) =
                (found.to_array().unwrap(), x.std_axis(Axis(axis), ddof).unwrap().to_array().unwrap());
            assert_eq!(found.shape(), wanted.shape());
            for ((found, root), wanted) in found.iter().zip(&root).zip(&wanted) {
                near(*found, *wanted, units);
                near(*root, wanted.sqrt(), units);
            }
        }
        let wanted = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
        near(x.lazy().norm().unwrap().into_scalar().unwrap(), wanted, 4.0);
    }
    let few = GpuArray::from_slice(&gpu, &[1.0_f32, 3.0]).unwrap();
    assert!(few.var(2.0).unwrap().into_scalar().unwrap().is_infinite());
    assert!(matches!(few.var(3.0), Err(ArrayError::Shape { operation: "var", .. })));
    assert!(matches!(few.var(-1.0), Err(ArrayError::Shape { .. })));
    assert!(matches!(few.std(f64::NAN), Err(ArrayError::Shape { .. })));
    assert!(matches!(few.std_axis(Axis(1), 0.0), Err(ArrayError::Shape { .. })));
    let none = GpuArray::<f32, _>::zeros(&gpu, (0, 3)).unwrap();
    assert!(none.var(0.0).is_err() && none.mean().is_err());
    assert_eq!(none.product().unwrap().into_scalar().unwrap(), 1.0);
    assert_eq!(none.lazy().norm_axis(Axis(0)).unwrap().to_vec().unwrap(), [0.0; 3]);
}

#[test]
fn complex_numbers_are_those_of_num_complex() {
    differential::complex(&gpu());
}

#[test]
fn complex_arrays_have_operators_sums_and_parts() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((300, 40), |(i, j)| Complex::new(i as f32 - 100.0, j as f32));
    let z = GpuArray::from_array(&gpu, &host).unwrap();
    let turned = &z * Complex::i() + Complex::new(0.0, 1.0);
    assert_eq!(turned.to_array().unwrap(), host.mapv(|z| z * Complex::i() + Complex::i()));
    assert_eq!(z.sum().unwrap().into_scalar().unwrap(), host.sum());
    assert_eq!(z.t().sum_axis(Axis(1)).unwrap().to_array().unwrap(), host.sum_axis(Axis(0)));
    assert_eq!(z.lazy().conj().im().min_element().unwrap().into_scalar().unwrap(), -39.0);
    let units = GpuArray::from_elem(&gpu, 70_001, Complex::<f64>::i()).unwrap();
    assert_eq!(units.product().unwrap().into_scalar().unwrap(), Complex::i());
    assert_eq!(units.dot(&units).unwrap().into_scalar().unwrap(), Complex::new(-70_001.0, 0.0));
    let (angle, length) = (GpuArray::from_slice(&gpu, &[0.0_f64, 1.0]).unwrap(), 2.0);
    let polar = (angle.lazy().cos() * length).complex(angle.lazy().sin() * length);
    assert_eq!(polar.abs().eval().unwrap().to_vec().unwrap(), [2.0, 2.0]);
    assert_eq!(polar.re().eval().unwrap().to_vec().unwrap()[0], 2.0);
}

/// The sum of all elements does not depend on where they are.
#[test]
fn the_order_of_a_sum_is_that_of_its_length() {
    let gpu = gpu();
    for len in [30, 1000, 70_000] {
        let host = Array1::from_shape_fn(len + 1, |i| (i as f32 * 0.37).sin() * 1e4);
        let x = GpuArray::from_array(&gpu, &host.slice(s![1..])).unwrap();
        let shifted = GpuArray::from_array(&gpu, &host).unwrap();
        let wide = Array2::from_shape_fn((len, 2), |(i, _)| host[i + 1]);
        let wide = GpuArray::from_array(&gpu, &wide).unwrap();
        let sum = |x: GpuView<'_, f32, Ix1>| x.lazy().sum().unwrap().into_scalar().unwrap().to_bits();
        let wanted = sum(x.view());
        assert_eq!(sum(shifted.slice(s![1..]).unwrap()), wanted);
        assert_eq!(sum(wide.slice(s![.., 1]).unwrap()), wanted);
    }
}

/// Axes are added along the memory of the largest operand, whichever comes first.
#[test]
fn the_order_of_a_sum_is_that_of_its_layout() {
    let gpu = gpu();
    let host = Array2::from_shape_fn((300, 200), |(i, j)| ((i * 200 + j) as f32 * 0.37).sin() * 1e4);
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    let row = GpuArray::from_array(&gpu, &host.row(7)).unwrap();
    let column = GpuArray::from_array(&gpu, &host.column(7)).unwrap();
    let column = column.lazy().insert_axis(Axis(1));
    let bits = |sum: GpuArray<f32, _>| sum.into_scalar().unwrap().to_bits();
    let opposite = |sum: GpuArray<f32, _>| (-sum.into_scalar().unwrap()).to_bits();
    assert_eq!(bits((row.lazy() - &x).sum().unwrap()), opposite((x.lazy() - &row).sum().unwrap()));
    assert_eq!(bits((column - &x).sum().unwrap()), opposite((x.lazy() - column).sum().unwrap()));
    // The same memory in the same order.
    assert_eq!(bits(x.t().sum().unwrap()), bits(x.sum().unwrap()));
    assert_eq!(bits((row.lazy() - x.t().t()).sum().unwrap()), opposite((x.lazy() - &row).sum().unwrap()));
    // Padding does not matter.
    let mut wide = GpuArray::zeros(&gpu, (300, 230)).unwrap();
    wide.slice_mut(s![.., 3..203]).unwrap().assign(&x).unwrap();
    assert_eq!(bits(wide.slice(s![.., 3..203]).unwrap().sum().unwrap()), bits(x.sum().unwrap()));
}

#[test]
fn truths_equal_ndarray() {
    differential::truths(&gpu());
}

#[test]
fn a_chain_is_one_kernel() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0]).unwrap();
    let y = GpuArray::from_slice(&gpu, &[10.0_f32, 20.0, 30.0]).unwrap();
    let before = gpu.pool().status().unwrap().in_use_bytes;
    let z = ((x.lazy() * 2.0 + &y) * 0.5 - &x).eval().unwrap();
    assert_eq!(z.to_vec().unwrap(), [5.0, 10.0, 15.0]);
    assert_eq!(gpu.pool().status().unwrap().in_use_bytes - before, 12, "only the result");
}

#[test]
fn functions_of_expressions_fuse() {
    fn gelu<E: Expression<Elem = f32> + Copy>(x: Lazy<E>) -> Lazy<impl Expression<Elem = f32, Dim = E::Dim>> {
        x * ((-(x * 1.702)).exp() + 1.0).recip()
    }
    fn square_root<T: Real>(x: &GpuArray<T, Ix1>) -> GpuArray<T, Ix1> {
        (x.lazy() * T::ONE + T::ZERO).sqrt().eval().unwrap()
    }
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[0.0_f32, 100.0]).unwrap();
    assert_eq!(gelu(x.lazy()).eval().unwrap().to_vec().unwrap(), [0.0, 100.0]);
    assert_eq!(square_root(&x).to_vec().unwrap(), [0.0, 10.0]);
}

/// Functions over element types and dimensions read like those over `ndarray`: their bounds name an element type, and at most a dimension.
#[test]
fn generic_functions_need_no_bounds_for_broadcasting() {
    fn softmax<T: Real>(x: &GpuView<'_, T, Ix2>) -> Result<GpuArray<T, Ix2>, ArrayError> {
        let largest = x.lazy().max_axis(Axis(1))?;
        let powers = (x.lazy() - largest.lazy().insert_axis(Axis(1))).exp().eval()?;
        let sums = powers.sum_axis(Axis(1))?;
        (powers.lazy() / sums.lazy().insert_axis(Axis(1))).eval()
    }
    fn centred<T: Real, D: RemoveAxis>(x: &GpuArray<T, D>) -> Result<GpuArray<T, D>, ArrayError> {
        Ok(x - &x.mean()?)
    }
    fn mirrored<T: Arithmetic, D: Dimension>(
        x: &GpuView<'_, T, D>,
        y: &GpuArray<T, D>,
    ) -> Result<GpuArray<T, D>, ArrayError> {
        (-x.lazy() + y * T::ONE - (x + T::ONE)).eval()
    }
    fn far<T: Arithmetic>(
        row: &GpuArray<T, Ix1>,
        table: &GpuArray<T, Ix2>,
    ) -> Result<GpuArray<T, Ix2>, ArrayError> {
        (row.lazy() - table).square().eval()
    }
    fn between<A, B>(a: Lazy<A>, b: Lazy<B>, weight: f32) -> Lazy<impl Expression<Elem = f32, Dim = A::Dim>>
    where
        A: Expression<Elem = f32> + Copy,
        B: Expression<Elem = f32, Dim = A::Dim>,
    {
        a + (b - a) * weight
    }
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &array![[1.0_f64, 1.0], [0.0, 1e3]]).unwrap();
    assert_eq!(softmax(&x.view()).unwrap().to_array().unwrap(), array![[0.5, 0.5], [0.0, 1.0]]);
    assert_eq!(centred(&x).unwrap().to_vec().unwrap(), [-249.5, -249.5, -250.5, 749.5]);
    assert_eq!(mirrored(&x.view(), &x).unwrap().to_vec().unwrap(), [-2.0, -2.0, -1.0, -1001.0]);
    let row = GpuArray::from_slice(&gpu, &[1.0, 2.0]).unwrap();
    assert_eq!(far(&row, &x).unwrap().to_vec().unwrap(), [0.0, 1.0, 1.0, 998.0 * 998.0]);
    let a = GpuArray::from_slice(&gpu, &[0.0_f32, 8.0]).unwrap();
    assert_eq!(between(a.lazy(), a.lazy() * 2.0, 0.25).eval().unwrap().to_vec().unwrap(), [0.0, 10.0]);
}

#[allow(clippy::op_ref, reason = "operands by reference are the subject")]
/// The operators that `ndarray` has between arrays, views and numbers also work here, with unequal dimensions.
#[test]
fn operators_read_like_those_of_ndarray() {
    let gpu = gpu();
    let host = array![[1.0_f32, 2.0], [3.0, 5.0]];
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    let v = GpuArray::from_slice(&gpu, &[10.0_f32, 20.0]).unwrap();
    let (view, row) = (x.view(), array![10.0, 20.0]);
    let same = |found: GpuArray<f32, Ix2>, wanted: Array2<f32>| assert_eq!(found.to_array().unwrap(), wanted);
    same(&view + 1.0, &host + 1.0);
    same(1.0 - &x, 1.0 - &host);
    same(-&x, -&host);
    same(-view, -&host);
    same(&v - &x, &row - &host);
    same(v.view() - &view, &row - &host);
    let mean = view.mean().unwrap();
    same(&mean - &x, 2.75 - &host);
    same(mean - &x, 2.75 - &host);
    let view = x.view();
    same(2.0 - &view, 2.0 - &host);
    let mut other = x.try_clone().unwrap();
    same(&other.view_mut() * &v, &host * &row);
    same(other.view_mut() % &x, &host % &host);
    same(2.0 / &other.view_mut(), 2.0 / &host);
    same(2.0 / other.view_mut(), 2.0 / &host);
    same(-other.view_mut(), -&host);
    let copy = x.as_standard_layout().unwrap();
    same(&copy - 1.0, &host - 1.0);
    same(3.0 - &copy, 3.0 - &host);
    same(-&copy, -&host);
    same(copy + &x, &host + &host);
    same(&x * v.lazy(), &host * &row);
    same(&x * &v.lazy(), &host * &row);
    same((v.lazy() * &x).eval().unwrap(), &row * &host);
    same((&v.lazy() * &x).eval().unwrap(), &row * &host);
    let lazy = x.lazy();
    same((-&lazy).eval().unwrap(), -&host);
    same((-lazy).eval().unwrap(), -&host);
    let mask = x.lazy().gt(2.5);
    assert_eq!((!&mask).eval().unwrap().to_vec().unwrap(), [true, true, false, false]);
    assert_eq!((!mask).count().unwrap().into_scalar().unwrap(), 2);
}

#[test]
fn arrays_are_updated_in_one_kernel() {
    let gpu = gpu();
    let mut p = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
    let mut m = GpuArray::from_slice(&gpu, &[10.0_f32, 20.0]).unwrap();
    update((&mut p, &mut m), |(p, m)| (p - m * 0.5, m + p)).unwrap();
    assert_eq!(p.to_vec().unwrap(), [-4.0, -8.0]);
    assert_eq!(m.to_vec().unwrap(), [11.0, 22.0]);
    let mut table = GpuArray::<f32, _>::zeros(&gpu, (2, 4)).unwrap();
    table.slice_mut(s![.., ..;-2]).unwrap().assign_expr(p.lazy() + 1.0).unwrap();
    assert_eq!(table.to_array().unwrap(), array![[0.0, -7.0, 0.0, -3.0], [0.0, -7.0, 0.0, -3.0]]);
}

#[test]
fn an_axis_of_one_is_broadcast() {
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 5.0], [0.0, 1.0]]).unwrap();
    let c = GpuArray::from_array(&gpu, &array![[0.0_f32, 1.0], [3.0, 4.0]]).unwrap();
    let apart = (x.lazy().insert_axis(Axis(1)) - c.lazy().insert_axis(Axis(0))).square().eval().unwrap();
    assert_eq!(apart.shape(), [3, 2, 2]);
    assert_eq!(apart.to_vec().unwrap(), [1.0, 1.0, 4.0, 4.0, 9.0, 16.0, 0.0, 1.0, 0.0, 0.0, 9.0, 9.0]);
}

/// Views of whole expressions: of arrays with fewer axes, of numbers, and of other views.
#[test]
fn views_of_expressions_are_those_of_their_results() {
    let gpu = gpu();
    let host = Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (100 * i + 10 * j + k) as i32);
    let x = GpuArray::from_array(&gpu, &host).unwrap();
    let row = GpuArray::from_slice(&gpu, &[1, 2, 3, 4, 5]).unwrap();
    let column = GpuArray::from_array(&gpu, &array![[7], [8], [9], [10]]).unwrap();
    let both = x.lazy() * &row - &column;
    let wanted = &host * &array![1, 2, 3, 4, 5] - &array![[7], [8], [9], [10]];
    let same = |found: GpuArray<i32, _>, wanted: Array3<i32>| assert_eq!(found.to_array().unwrap(), wanted);
    same(both.t().eval().unwrap(), wanted.t().to_owned());
    same(both.permuted_axes([1, 2, 0]).eval().unwrap(), wanted.clone().permuted_axes([1, 2, 0]));
    let slice = s![1.., ..;-2, -3..-1];
    same(both.slice(slice).eval().unwrap(), wanted.slice(slice).to_owned());
    same(
        (both.t().slice(s![1..;3, ..;-1, ..]) + 1).eval().unwrap(),
        &wanted.t().slice(s![1..;3, ..;-1, ..]) + 1,
    );
    let part = both.slice(s![.., 2, ..;-1]).t() + both.slice(s![..;-1, -1, ..]).t();
    let expected = &wanted.slice(s![.., 2, ..;-1]).t() + &wanted.slice(s![..;-1, -1, ..]).t();
    assert_eq!(part.eval().unwrap().to_array().unwrap(), expected);
    assert_eq!(part.sum_axis(Axis(1)).unwrap().to_array().unwrap(), expected.sum_axis(Axis(1)));
    let wide = both.slice(s![0..1, .., NewAxis, ..]).broadcast((2, 4, 3, 5));
    let expected = wanted.slice(s![0..1, .., NewAxis, ..]);
    let expected = expected.broadcast((2, 4, 3, 5)).unwrap();
    assert_eq!(wide.eval().unwrap().to_array().unwrap(), expected);
    assert_eq!(wide.t().sum().unwrap().into_scalar().unwrap(), expected.sum());
    assert!(both.slice(s![3.., .., ..]).eval().unwrap().is_empty());
    // The elements of an aligned array, which are not aligned in the view.
    let long = GpuArray::from_fn(&gpu, 4099, |i| i as f32).unwrap();
    let steps = long.lazy().slice(s![1..]) - long.lazy().slice(s![..-1]);
    assert!(steps.equals(1.0).all().unwrap().into_scalar().unwrap());
    let dynamic = x.lazy().boxed().t().boxed();
    same((dynamic + 0).eval().unwrap(), host.t().to_owned());
}

#[test]
fn views_that_do_not_fit_are_refused_where_they_run() {
    let gpu = gpu();
    let x = GpuArray::<f32, _>::zeros(&gpu, (3, 2)).unwrap();
    let lazy = x.lazy();
    assert!(matches!(
        lazy.permuted_axes([0, 0]).eval(),
        Err(ArrayError::Shape { operation: "permuted_axes", .. })
    ));
    assert!(matches!(lazy.broadcast((3, 3)).eval(), Err(ArrayError::Shape { operation: "broadcast", .. })));
    assert!(matches!(lazy.broadcast(2).eval(), Err(ArrayError::Shape { .. })));
    assert!(matches!(lazy.slice(s![4.., ..]).eval(), Err(ArrayError::Slice { .. })));
    assert!(matches!(lazy.slice(s![0, 2]).sum(), Err(ArrayError::Slice { .. })));
    assert!(matches!(lazy.insert_axis(Axis(3)).eval(), Err(ArrayError::Slice { .. })));
    assert!(matches!(lazy.broadcast((usize::MAX, 3, 2)).eval(), Err(ArrayError::TooManyElements { .. })));
    let mut square = GpuArray::<f32, _>::zeros(&gpu, (2, 2)).unwrap();
    let refused = update((&mut square,), |(before,)| (before + before.t(),)).unwrap_err();
    assert!(matches!(refused, ArrayError::Shape { operation: "update", .. }), "{refused}");
}

/// The sizes are not multiples of a tile. The cases vary the number of arrays, the axes and the size of elements.
#[test]
fn large_transposed_operands_are_read_by_tiles() {
    fn check<T: Arithmetic + Copy + std::fmt::Debug>(gpu: &Gpu, number: impl Fn(usize) -> T) {
        let host =
            Array3::from_shape_fn((270, 2, 250), |(i, j, k)| number((i * 7919 + j * 31 + k * 101) % 97));
        let x = GpuArray::from_array(gpu, &host).unwrap();
        let plane = x.slice(s![..250, 1, ..]).unwrap();
        let sum = (plane.lazy() + plane.lazy().t()).eval().unwrap().to_array().unwrap();
        for ((i, j), found) in sum.indexed_iter() {
            let [a, b] = [[i, j], [j, i]].map(|[i, j]: [usize; 2]| (i * 7919 + 31 + j * 101) % 97);
            assert_eq!(*found, number(a + b), "{i}, {j}");
        }
        let turned = (x.lazy().t() * T::ONE).slice(s![..;-1, .., ..]);
        let mut target = GpuArray::from_elem(gpu, (250, 2, 270), T::ZERO).unwrap();
        target.assign_expr(turned + x.slice(s![.., .., 0]).unwrap().t() * T::ZERO).unwrap();
        assert_eq!(target.to_array().unwrap(), host.t().slice(s![..;-1, .., ..]));
    }
    let gpu = gpu();
    check(&gpu, |n| n as u8);
    check(&gpu, |n| f16::from_f32(n as f32));
    check(&gpu, |n| n as i32);
    check(&gpu, |n| n as f64);
    check(&gpu, |n| Complex::new(n as f64, 0.0));
    let mask = GpuArray::from_fn(&gpu, (260, 300), |(i, j)| i * j % 3 == 0).unwrap();
    let (x, y) = (GpuArray::from_fn(&gpu, (300, 260), |(i, j)| (i * 260 + j) as f32).unwrap(), 0.5);
    let chosen = mask.lazy().t().select(&x, y).eval().unwrap().to_array().unwrap();
    for ((i, j), found) in chosen.indexed_iter() {
        assert_eq!(*found, if i * j % 3 == 0 { (i * 260 + j) as f32 } else { 0.5 });
    }
    let mut z = GpuArray::<f32, _>::zeros(&gpu, (260, 300)).unwrap();
    z += x.t();
    z += x.t();
    assert_eq!(z.to_array().unwrap(), x.to_array().unwrap().t().mapv(|x| 2.0 * x));
}

#[test]
fn what_does_not_fit_is_refused_where_it_runs() {
    let gpu = gpu();
    let x = GpuArray::<f32, _>::zeros(&gpu, (3, 2)).unwrap();
    let c = GpuArray::<f32, _>::zeros(&gpu, (2, 2)).unwrap();
    let error = (x.lazy() + &c).eval().unwrap_err();
    assert_eq!(
        error.to_string(),
        "add: incompatible shapes [3, 2] and [2, 2]; from the last axis on, lengths must be equal or 1"
    );
    assert!(x.lazy().insert_axis(Axis(3)).eval().is_err());
    let mut small = GpuArray::<f32, _>::zeros(&gpu, 2).unwrap();
    assert!(matches!(small.assign_expr(x.lazy()), Err(ArrayError::Shape { operation: "assign_expr", .. })));
    let mut escaped = None;
    update((&mut small,), |(before,)| {
        escaped = Some(before);
        (before + 1.0,)
    })
    .unwrap();
    assert!(escaped.unwrap().eval().is_err());
    assert!((GpuArray::<f32, _>::zeros(&gpu, (0, 3)).unwrap().lazy() + 1.0).eval().unwrap().is_empty());
}

/// An expression of ten arrays, with ten leaves.
macro_rules! ten {
    ($x:expr) => {
        $x[0].lazy() + &$x[1] + &$x[2] + &$x[3] + &$x[4] + &$x[5] + &$x[6] + &$x[7] + &$x[8] + &$x[9]
    };
}

/// Ten more numbers.
fn with_ten<E: Expression<Elem = f32>>(x: Lazy<E>) -> Lazy<impl Expression<Elem = f32, Dim = E::Dim>> {
    x + 1.0 + 1.0 + 1.0 + 1.0 + 1.0 + 1.0 + 1.0 + 1.0 + 1.0 + 1.0
}

#[test]
fn what_exceeds_a_kernel_is_refused_with_the_limit() {
    fn refused<T>(result: Result<T, ArrayError>, wanted: (&str, usize)) {
        match result.map(drop) {
            Err(ArrayError::ExpressionSize { of, limit, .. }) => assert_eq!((of, limit), wanted),
            other => panic!("{other:?}"),
        }
    }
    let gpu = gpu();
    let array = |value: usize| GpuArray::from_elem(&gpu, 3, value as f32).unwrap();
    let arrays: Vec<_> = (0..32).map(array).collect();
    let arrays_limit = ("arrays, with those of the result", 31);
    let thirty = ten!(arrays) + ten!(arrays[10..]) + ten!(arrays[20..]);
    assert_eq!(thirty.eval().unwrap().to_vec().unwrap(), [435.0; 3]);
    assert_eq!(thirty.sum().unwrap().into_scalar().unwrap(), 1305.0);
    refused((thirty + &arrays[30]).eval(), arrays_limit);
    refused((thirty + &arrays[30]).sum(), arrays_limit);
    refused((thirty + &arrays[30] + &arrays[31]).sum(), arrays_limit);
    let mut target = array(0);
    target.assign_expr(thirty).unwrap();
    assert_eq!(target.to_vec().unwrap(), [435.0; 3]);
    refused(target.assign_expr(thirty + &arrays[30]), arrays_limit);
    // Variances of many elements take three arrays for their parts.
    let long: Vec<_> = (0..29).map(|_| GpuArray::<f32, _>::zeros(&gpu, 100_000).unwrap()).collect();
    let twenty_eight = ten!(long) + ten!(long[10..]) + ten!(long[18..]);
    assert_eq!(twenty_eight.var(0.0).unwrap().into_scalar().unwrap(), 0.0);
    refused((twenty_eight + &long[28]).var(0.0), arrays_limit);

    let x = &arrays[1];
    let forty = with_ten(with_ten(with_ten(with_ten(x.lazy()))));
    let eighty = forty + with_ten(with_ten(with_ten(with_ten(x.lazy()))));
    let hundred = eighty + with_ten(with_ten(x.lazy()));
    assert_eq!(hundred.eval().unwrap().to_vec().unwrap(), [103.0; 3]);
    refused((hundred + 1.0).eval(), ("numbers", 100));

    let (a, y) = (x.lazy(), &arrays[2]);
    let a2 = a + y;
    let a8 = a2 + a2 + (a2 + a2);
    let a32 = a8 + a8 + (a8 + a8);
    let a128 = a32 + a32 + (a32 + a32);
    let leaves = a128 + (a32 + a32 + a32) + (a8 + a8 + a8) + a2;
    assert_eq!(leaves.eval().unwrap().to_vec().unwrap(), [375.0; 3]);
    refused((leaves + y).eval(), ("uses of arrays", 250));
}

/// Lengths and strides are bytes of a launch: of all arrays for each axis that is not merged.
#[test]
fn what_exceeds_the_bytes_of_a_launch_is_refused_with_the_limit() {
    let gpu = gpu();
    let arrays: Vec<_> = (0..30).map(|_| GpuArray::<f32, _>::zeros(&gpu, (3, 3, 3, 3)).unwrap()).collect();
    let parts: Vec<_> = arrays.iter().map(|x| x.slice(s![..2, ..2, ..2, ..2]).unwrap()).collect();
    let twenty = ten!(parts) + ten!(parts[10..]);
    assert_eq!(twenty.eval().unwrap().to_vec().unwrap(), [0.0; 16]);
    let error = (twenty + ten!(parts[20..])).eval().unwrap_err();
    assert!(matches!(error, ArrayError::TooManyArguments { limit: 32, limit_bytes: 1280 }), "{error}");
}
