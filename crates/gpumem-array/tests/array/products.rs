//! Products of matrices, against `ndarray`. Values are small whole numbers, so that floats are exact in any order.

use crate::support::gpu;
use gpumem_array::ndarray::{
    Array, Array2, Array3, ArrayView2, ArrayView3, Axis, Dimension, Ix2, Ix3, LinalgScalar, Slice, s,
};
use gpumem_array::pool::{BackendKind, Device, Limit, Pool};
use gpumem_array::{ArrayError, Factor, Gpu, GpuArray, GpuView};
use gpumem_sim::SimConfig;
use half::{bf16, f16};
use proptest::prelude::*;

/// A matrix in memory that has it as a view: transposed, with gaps, reversed, or one row many times.
#[derive(Clone, Copy, Debug)]
struct Form {
    is_transposed: bool,
    skips: [usize; 2],
    steps: [isize; 2],
    is_repeated: bool,
}

fn forms() -> impl Strategy<Value = Form> {
    let step = || prop_oneof![4 => Just(1_isize), 1 => Just(-1), 1 => Just(2), 1 => Just(-3)];
    let skip = || prop_oneof![2 => Just(0_usize), 1 => 1_usize..5];
    let form = (any::<bool>(), (skip(), skip()), (step(), step()), prop::bool::weighted(0.1));
    form.prop_map(|(is_transposed, skips, steps, is_repeated)| Form {
        is_transposed,
        skips: skips.into(),
        steps: steps.into(),
        is_repeated,
    })
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0_usize), 1 => Just(1), 4 => 2_usize..40, 2 => 60_usize..70, 1 => 120_usize..140]
}

fn whole(seed: usize, place: usize) -> i8 {
    ((place.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 5) % 17) as i8 - 8
}

impl Form {
    /// The memory of a matrix, and the view of it in `ndarray`.
    fn stored<T: From<i8>>(self, [rows, columns]: [usize; 2], seed: usize) -> Array2<T> {
        let rows = if self.is_repeated { rows.min(1) } else { rows };
        let mut shape = [(rows, 0), (columns, 1)]
            .map(|(len, axis)| len * self.steps[axis].unsigned_abs() + self.skips[axis]);
        if self.is_transposed {
            shape.reverse();
        }
        Array2::from_shape_fn(shape, |(row, column)| T::from(whole(seed, row * shape[1] + column)))
    }

    fn slices(self, [rows, columns]: [usize; 2]) -> [(Axis, Slice); 2] {
        let rows = if self.is_repeated { rows.min(1) } else { rows };
        [(rows, 0), (columns, 1)].map(|(len, axis)| {
            let (first, step) = (self.skips[axis].cast_signed(), self.steps[axis]);
            let end = first + len.cast_signed() * step.abs();
            (Axis(axis), Slice::new(first, Some(end), step))
        })
    }

    fn host<'a, T>(self, stored: &'a Array2<T>, lens: [usize; 2]) -> ArrayView2<'a, T> {
        let mut view = if self.is_transposed { stored.t() } else { stored.view() };
        for (axis, slice) in self.slices(lens) {
            view.slice_axis_inplace(axis, slice);
        }
        view
    }

    fn device<'a, T: Factor>(self, stored: &'a GpuArray<T, Ix2>, lens: [usize; 2]) -> GpuView<'a, T, Ix2> {
        let mut view = if self.is_transposed { stored.t() } else { stored.view() };
        for (axis, slice) in self.slices(lens) {
            view = view.slice_axis(axis, slice).unwrap();
        }
        view
    }
}

/// Compares products of `T` with those of `H`, which are exact, converted.
fn check<H: LinalgScalar + From<i8>, T: Factor + std::fmt::Debug>(
    [rows, terms, columns]: [usize; 3],
    forms: [Form; 2],
    seed: usize,
    to: fn(H) -> T,
) -> Result<(), TestCaseError> {
    let gpu = gpu();
    let (left_lens, right_lens) = ([rows, terms], [terms, columns]);
    let (left, right) = (forms[0].stored::<H>(left_lens, seed), forms[1].stored::<H>(right_lens, !seed));
    let (a, b) = (
        GpuArray::from_array(&gpu, &left.mapv(to)).unwrap(),
        GpuArray::from_array(&gpu, &right.mapv(to)).unwrap(),
    );
    let (left, right) = (forms[0].host(&left, left_lens), forms[1].host(&right, right_lens));
    let (a, b) = (forms[0].device(&a, left_lens), forms[1].device(&b, right_lens));
    // An axis of one element is repeated.
    let broadcast = |form: Form, lens: [usize; 2]| form.is_repeated && lens[0] > 0;
    let left = if broadcast(forms[0], left_lens) { left.broadcast(left_lens).unwrap() } else { left };
    let right = if broadcast(forms[1], right_lens) { right.broadcast(right_lens).unwrap() } else { right };
    let a = if broadcast(forms[0], left_lens) { a.broadcast(left_lens).unwrap() } else { a };
    let b = if broadcast(forms[1], right_lens) { b.broadcast(right_lens).unwrap() } else { b };
    prop_assert_eq!(a.dot(&b).unwrap().to_array().unwrap(), left.dot(&right).mapv(to));
    if columns > 0 {
        let (vector, column) = (right.index_axis(Axis(1), 0), b.index_axis(Axis(1), 0).unwrap());
        prop_assert_eq!(a.dot(&column).unwrap().to_array().unwrap(), left.dot(&vector).mapv(to));
    }
    if rows > 0 {
        let (vector, row) = (left.index_axis(Axis(0), 0), a.index_axis(Axis(0), 0).unwrap());
        prop_assert_eq!(row.dot(&b).unwrap().to_array().unwrap(), vector.dot(&right).mapv(to));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn matrices_of_any_layout(
        lens in [lengths(), lengths(), lengths()],
        forms in [forms(), forms()],
        kind in 0..8,
        seed in any::<usize>(),
    ) {
        match kind {
            0 => check(lens, forms, seed, |value: f32| value)?,
            1 => check(lens, forms, seed, |value: f64| value)?,
            2 => check(lens, forms, seed, |value: i32| value)?,
            3 => check(lens, forms, seed, |value: i64| value)?,
            4 => check(lens, forms, seed, i32::cast_unsigned)?,
            5 => check(lens, forms, seed, i64::cast_unsigned)?,
            6 => check(lens, forms, seed, f16::from_f32)?,
            _ => check(lens, forms, seed, bf16::from_f32)?,
        }
    }

    #[test]
    fn stacks_are_broadcast(
        (outer, inner) in (1_usize..4, 1_usize..4),
        (left_outer, left_inner, right_outer) in (any::<bool>(), any::<bool>(), any::<bool>()),
        [rows, terms, columns] in [1_usize..12, 0_usize..12, 1_usize..12],
        seed in any::<usize>(),
    ) {
        let gpu = gpu();
        let left_shape = (if left_outer { outer } else { 1 }, if left_inner { inner } else { 1 }, rows, terms);
        let right_shape = (if right_outer { outer } else { 1 }, inner, terms, columns);
        let mut place = seed;
        let mut next = || { place += 1; i32::from(whole(seed, place)) };
        let left = Array::from_shape_simple_fn(left_shape, &mut next);
        let right = Array::from_shape_simple_fn(right_shape, &mut next);
        let (a, b) = (GpuArray::from_array(&gpu, &left).unwrap(), GpuArray::from_array(&gpu, &right).unwrap());
        let product = a.matmul(&b).unwrap().to_array().unwrap();
        let outer = if left_outer || right_outer { outer } else { 1 };
        prop_assert_eq!(product.raw_dim().into_pattern(), (outer, inner, rows, columns));
        let left = left.broadcast((outer, inner, rows, terms)).unwrap();
        let right = right.broadcast((outer, inner, terms, columns)).unwrap();
        for x in 0..outer {
            for y in 0..inner {
                let expected = left.slice(s![x, y, .., ..]).dot(&right.slice(s![x, y, .., ..]));
                prop_assert_eq!(product.slice(s![x, y, .., ..]), expected);
            }
        }
    }
}

fn matrix(rows: usize, columns: usize, seed: usize) -> Array2<f32> {
    Array2::from_shape_fn((rows, columns), |(row, column)| f32::from(whole(seed, row * columns + column)))
}

fn multiplied<T: Factor>(gpu: &Gpu, left: &Array2<f32>, right: &Array2<f32>, to: fn(f32) -> T) -> Array2<T> {
    let [a, b] = [left, right].map(|array| GpuArray::from_array(gpu, &array.mapv(to)).unwrap());
    a.dot(&b).unwrap().to_array().unwrap()
}

#[test]
fn few_results_of_many_terms_are_summed_in_parts() {
    let gpu = gpu();
    for (rows, terms, columns) in [(3, 3000, 5), (65, 1000, 64), (2, 513, 130)] {
        let (left, right) = (matrix(rows, terms, 1), matrix(terms, columns, 2));
        assert_eq!(
            multiplied(&gpu, &left, &right, |value| value),
            left.dot(&right),
            "{rows} {terms} {columns}"
        );
        let rounded = left.dot(&right).mapv(bf16::from_f32);
        assert_eq!(multiplied(&gpu, &left, &right, bf16::from_f32), rounded, "{rows} {terms} {columns}");
    }
}

#[test]
fn many_results_take_the_wide_tile() {
    let gpu = gpu();
    // 100 tiles of 128 × 128.
    let left = Array3::from_shape_fn((25, 130, 17), |(a, b, c)| f32::from(whole(a, b * 17 + c)));
    let right = matrix(17, 131, 4);
    let (a, b) = (GpuArray::from_array(&gpu, &left).unwrap(), GpuArray::from_array(&gpu, &right).unwrap());
    let check = |product: GpuArray<f32, Ix3>, left: ArrayView3<'_, f32>| {
        let product = product.to_array().unwrap();
        for (product, left) in product.outer_iter().zip(left.outer_iter()) {
            assert_eq!(product, left.dot(&right));
        }
    };
    check(a.matmul(&b).unwrap(), left.view());
    check(
        a.matmul(&GpuArray::from_array(&gpu, &right.t().as_standard_layout()).unwrap().t()).unwrap(),
        left.view(),
    );
    let reversed = s![..;-1, ..;-1, ..];
    check(a.slice(reversed).unwrap().matmul(&b).unwrap(), left.slice(reversed));
}

#[test]
fn what_does_not_fit_is_refused() {
    fn is_shape<T>(result: Result<T, ArrayError>) -> bool {
        matches!(result, Err(ArrayError::Shape { .. }))
    }
    let gpu = gpu();
    let zeros = |shape: &[usize]| GpuArray::<f32, _>::zeros(&gpu, shape).unwrap();
    let [x, y] = [(4, 6), (5, 4)].map(|shape| GpuArray::<f32, _>::zeros(&gpu, shape).unwrap());
    let five = GpuArray::<f32, _>::zeros(&gpu, 5).unwrap();
    assert!(
        is_shape(x.dot(&y)) && is_shape(x.dot(&five)) && is_shape(five.dot(&x)) && is_shape(x.matmul(&y))
    );
    assert!(y.dot(&x).is_ok());
    assert!(is_shape(zeros(&[5]).matmul(&zeros(&[5, 2]))));
    assert!(is_shape(zeros(&[2, 3, 4]).matmul(&zeros(&[3, 4, 2]))));
    assert_eq!(zeros(&[2, 3, 4]).matmul(&zeros(&[1, 4, 0])).unwrap().shape(), [2, 3, 0]);
}

/// A limit that has room for operands and result is enough, whatever their layouts.
#[test]
fn nothing_is_allocated_but_the_result() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    // Operands and result take all of it but 960 bytes.
    let pool = Pool::builder(&device).backend(BackendKind::None).hard_limit(Limit::Bytes(2 << 20));
    let gpu = Gpu::new(&pool.build().unwrap()).unwrap();
    let a = GpuArray::from_elem(&gpu, (16, 512), 2.0_f32).unwrap();
    let b = GpuArray::from_elem(&gpu, (977, 16), 3.0_f32).unwrap();
    let product = a.t().dot(&b.slice(s![..;-1, ..;-1]).unwrap().t()).unwrap();
    assert!(product.to_vec().unwrap().iter().all(|sum| *sum == 96.0));
    assert!(GpuArray::<u8, _>::zeros(&gpu, 1024).is_err());
}

/// Products in parts and by every kernel, on several streams and in a graph: the operands are waited for, and no access races.
#[test]
fn streams_and_graphs() {
    let gpu = gpu();
    let [side, other] = [gpu.fork().unwrap(), gpu.fork().unwrap()];
    for [rows, terms, columns] in [[20, 30, 40], [3, 1000, 5], [1, 700, 9], [9, 700, 1]] {
        let (left, right) = (matrix(rows, terms, 1), matrix(terms, columns, 2));
        let expected = left.dot(&right);
        let mut a = GpuArray::from_array(&gpu, &left).unwrap();
        let b = GpuArray::from_array(&side, &right).unwrap();
        let product = a.on(&other).dot(&b).unwrap();
        a.fill(0.0).unwrap(); // waits for the product
        assert_eq!((&product.on(&side) * 2.0).to_array().unwrap(), &expected * 2.0);

        a.assign(&GpuArray::from_array(&gpu, &left).unwrap()).unwrap();
        let (mut graph, product) = gpu.capture(|c| a.on(c).dot(&b)).unwrap();
        for factor in [1.0, 2.0] {
            let done = graph.launch(&gpu).read(&a).read(&b).run().unwrap();
            assert_eq!(done.get(&product).unwrap().to_array().unwrap(), &expected * factor);
            a.try_mul_assign(2.0).unwrap();
        }
    }
    gpu.device().synchronize().unwrap();
    assert_eq!(gpumem_sim::Sim::of(gpu.device().driver()).unwrap().report().findings, []);
}

/// A vector with steps is read where it is, and the sums have the bits of those with a copy of it.
#[test]
fn vectors_with_steps_have_the_products_of_their_copies() {
    let gpu = gpu();
    for (rows, columns) in [(1, 9), (5, 70), (300, 40), (3, 9000), (2000, 130), (2, 70_000)] {
        let m = GpuArray::from_fn(&gpu, (rows, columns), |(i, j)| ((i * 31 + j * 7) as f32 * 0.37).sin())
            .unwrap();
        for (matrix, len) in [(m.view(), columns), (m.t(), rows)] {
            let wide = GpuArray::from_fn(&gpu, (len, 3), |(i, j)| ((i * 3 + j) as f32 * 0.91).cos()).unwrap();
            for vector in [wide.slice(s![.., 1]).unwrap(), wide.slice(s![..;-1, 2]).unwrap()] {
                let copy = vector.to_owned().unwrap();
                let (found, wanted) = (matrix.dot(&vector).unwrap(), matrix.dot(&copy).unwrap());
                assert_eq!(found.to_vec().unwrap(), wanted.to_vec().unwrap(), "{rows} x {columns}");
                let (found, wanted) = (vector.dot(&matrix.t()).unwrap(), copy.dot(&matrix.t()).unwrap());
                assert_eq!(found.to_vec().unwrap(), wanted.to_vec().unwrap(), "{columns} x {rows}");
            }
        }
    }
    let numbers = GpuArray::from_fn(&gpu, (40, 50), |(i, j)| (i * 50 + j) as i64).unwrap();
    let odd = numbers.slice(s![7, ..;2]).unwrap();
    let part = numbers.slice(s![.., ..25]).unwrap();
    let wanted = part.to_array().unwrap().dot(&odd.to_array().unwrap());
    assert_eq!(part.dot(&odd).unwrap().to_array().unwrap(), wanted);
}
