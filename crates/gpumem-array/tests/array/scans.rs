//! Sums up to each element, against `ndarray`. Values are small whole numbers, so that floats are exact in any order.

use crate::support::gpu;
use core::fmt::Debug;
use gpumem_array::ndarray::{Array1, Array3, Axis, s};
use gpumem_array::{ArrayError, Gpu, GpuArray, Numeric};
use proptest::prelude::*;

fn check<T: Numeric + Debug + PartialEq + core::ops::Add<Output = T>>(
    gpu: &Gpu,
    shape: [usize; 3],
    of: fn(usize) -> T,
) -> Result<(), TestCaseError> {
    let mut next = 0_usize;
    let host = Array3::from_shape_simple_fn(shape, || {
        next += 1;
        of((next.wrapping_mul(2_654_435_761) >> 5) % 17)
    });
    let x = GpuArray::from_array(gpu, &host).unwrap();
    let (part, rest) = (s![.., ..;-1, 1..], s![.., ..;-1, 1..]);
    let cut = shape[2] > 0;
    for axis in [0, 1, 2].map(Axis) {
        let mut sums = host.clone();
        sums.accumulate_axis_inplace(axis, |before, sum| *sum = *before + *sum);
        prop_assert_eq!(x.cumsum_axis(axis).unwrap().to_array().unwrap(), sums, "{:?} {:?}", shape, axis);
        if cut {
            let mut sums = host.slice(rest).to_owned();
            sums.accumulate_axis_inplace(axis, |before, sum| *sum = *before + *sum);
            let found = x.slice(part).unwrap().cumsum_axis(axis).unwrap().to_array().unwrap();
            prop_assert_eq!(found, sums, "part of {:?} {:?}", shape, axis);
        }
    }
    let mut sums = Array1::from_iter(host.iter().copied());
    sums.accumulate_axis_inplace(Axis(0), |before, sum| *sum = *before + *sum);
    prop_assert_eq!(x.cumsum().unwrap().to_vec().unwrap(), sums.to_vec(), "{:?}", shape);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn sums_up_to_each_element(
        shape in prop_oneof![
            [0_usize..5, 0_usize..5, 0_usize..70],
            [1_usize..3, 60_usize..140, 1_usize..40],
            [1_usize..3, 1_usize..3, 8000_usize..9000],
            [60_usize..140, 1_usize..3, 1_usize..20],
        ],
    ) {
        let gpu = gpu();
        check(&gpu, shape, |value| value as f32 - 8.0)?;
        check(&gpu, shape, |value| value as f64 - 8.0)?;
        check(&gpu, shape, |value| value as i32 - 8)?;
        check(&gpu, shape, |value| value as i64 - 8)?;
    }
}

/// Whole numbers beyond what floats hold exactly would show a wrong order, or a part that is left out.
#[test]
fn sums_of_long_axes() {
    let gpu = gpu();
    for len in [8192, 8193, 300_001] {
        let ones = GpuArray::<i32, _>::from_elem(&gpu, len, 1).unwrap();
        let expected: Vec<i32> = (1..=len as i32).collect();
        assert_eq!(ones.cumsum().unwrap().to_vec().unwrap(), expected);
    }
    let tall = GpuArray::<i64, _>::from_elem(&gpu, (70_000, 3), 2).unwrap();
    let sums = tall.cumsum_axis(Axis(0)).unwrap().to_array().unwrap();
    assert!(sums.indexed_iter().all(|((row, _), sum)| *sum == 2 * (row as i64 + 1)));
}

#[test]
fn integers_wrap_and_an_axis_must_exist() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[i32::MAX, 1, 1]).unwrap();
    assert_eq!(x.cumsum().unwrap().to_vec().unwrap(), [i32::MAX, i32::MIN, i32::MIN + 1]);
    assert!(matches!(x.cumsum_axis(Axis(1)), Err(ArrayError::Shape { operation: "cumsum_axis", .. })));
}

/// Sums that round have the same bits each time.
#[test]
fn sums_that_round_are_repeated() {
    let gpu = gpu();
    let host: Vec<f32> = (1..30_000).map(|i| 1.0 / i as f32).collect();
    let x = GpuArray::from_slice(&gpu, &host).unwrap();
    let bits = || x.cumsum().unwrap().to_vec().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let first = bits();
    assert_eq!(bits(), first);
    let exact = host.iter().map(|value| f64::from(*value)).sum::<f64>();
    assert!((f64::from(f32::from_bits(first[first.len() - 1])) - exact).abs() < 1e-5 * exact);
}
