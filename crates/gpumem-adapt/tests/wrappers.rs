//! Wrappers keep their type on the way to the device and back, and print the same matrix on both sides.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use gpumem_adapt::array::ndarray::{Array2, Ix1, Ix2, array};
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, UnifiedArray};
use gpumem_adapt::{
    Adapt, Banded, Coo, Csc, Csr, Destination, Diagonal, F32, Host, HostVec, Lower, PermutedRows, Symmetric,
    Transposed, UnitLower, UnitUpper, Upper, cu,
};
use gpumem_sim::SimConfig;
use sprs::{CsMatI, TriMatI};

fn gpu() -> Gpu {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    Gpu::new(&Pool::new(&device).unwrap()).unwrap()
}

/// Numbers that differ in all places.
fn matrix() -> Array2<f64> {
    array![[1.0, 2.5, 3.0], [4.0, 50.0, 6.0], [7.0, 8.0, -9.25]]
}

/// Moves a wrapper there and back, and compares its text on both sides with the rows.
macro_rules! there_and_back {
    ($gpu:expr, $wrapper:ident, $value:expr, $rows:expr) => {{
        let (host, gpu) = ($value, $gpu);
        let rows: [&str; 3] = $rows;
        let there: $wrapper<GpuArray<f64, Ix2>> = host.adapt(gpu).unwrap();
        let name = stringify!($wrapper);
        let text = |array: &str| format!("3×3 {name}<{array}>:\n{}", rows.join("\n"));
        assert_eq!(host.to_string(), text("Array2<f64>"));
        assert_eq!(there.to_string(), text("GpuArray<f64, Ix2>"));
        assert_eq!(there.adapt(&Host).unwrap(), host);
        let address = there.array().address();
        let there = there.into_adapted(gpu).unwrap();
        assert_eq!(there.array().address(), address);
        let single: $wrapper<UnifiedArray<f32, Ix2>> =
            there.adapt(&Destination::new(gpu).unified().elements::<F32>()).unwrap();
        assert_eq!((single.array()[[1, 1]], single.shape()), (50.0_f32, [3, 3]));
        let single: $wrapper<GpuArray<f32, Ix2>> = cu(&host).on(gpu).unwrap();
        assert_eq!(single.array().to_array().unwrap()[[2, 2]], -9.25_f32);
        assert_eq!(single.into_array().len(), 9);
    }};
}

#[test]
fn every_wrapper_keeps_its_type() {
    let gpu = &gpu();
    let upper = [" 1.0   2.5   3.0", "  ⋅   50.0   6.0", "  ⋅     ⋅   -9.25"];
    there_and_back!(gpu, Upper, Upper::new(matrix()), upper);
    let unit_upper = [" 1.0  2.5  3.0", "  ⋅   1.0  6.0", "  ⋅    ⋅   1.0"];
    there_and_back!(gpu, UnitUpper, UnitUpper::new(matrix()), unit_upper);
    let lower = [" 1.0    ⋅     ⋅", " 4.0  50.0    ⋅", " 7.0   8.0  -9.25"];
    there_and_back!(gpu, Lower, Lower::new(matrix()), lower);
    let unit_lower = [" 1.0   ⋅    ⋅", " 4.0  1.0   ⋅", " 7.0  8.0  1.0"];
    there_and_back!(gpu, UnitLower, UnitLower::new(matrix()), unit_lower);
    let symmetric = [" 1.0   2.5   3.0", " 2.5  50.0   6.0", " 3.0   6.0  -9.25"];
    there_and_back!(gpu, Symmetric, Symmetric::new(matrix()), symmetric);
    let transposed = [" 1.0   4.0   7.0", " 2.5  50.0   8.0", " 3.0   6.0  -9.25"];
    there_and_back!(gpu, Transposed, Transposed::new(matrix()), transposed);
    let permuted = [" 7.0   8.0  -9.25", " 1.0   2.5   3.0", " 4.0  50.0   6.0"];
    there_and_back!(gpu, PermutedRows, PermutedRows::new(matrix(), [2, 0, 1]).unwrap(), permuted);
    let banded = [" 4.0   2.5   ⋅", " 7.0  50.0  3.0", "  ⋅    8.0  6.0"];
    there_and_back!(gpu, Banded, Banded::new(matrix(), 1, 1).unwrap(), banded);
}

#[test]
fn wrong_descriptions_are_refused() {
    for order in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 3]] {
        assert!(PermutedRows::new(matrix(), order).is_err());
    }
    for (below, above) in [(0, 1), (2, 1), (usize::MAX, 1), (usize::MAX, usize::MAX)] {
        assert!(Banded::new(matrix(), below, above).is_err());
    }
    let error = PermutedRows::new(matrix(), [0]).unwrap_err().to_string();
    assert_eq!(error, "invalid order of 3 rows; name each row once");
    assert_eq!(Upper::new(Array2::<f32>::zeros((0, 0))).to_string(), "0×0 Upper<Array2<f32>>");
    // A matrix that is not square prints what it has.
    let wide = Symmetric::new(array![[1, 2, 3]]);
    assert_eq!(wide.to_string(), "1×3 Symmetric<Array2<i32>>:\n 1  2  3");
}

#[test]
fn products_use_the_structure() {
    let gpu = gpu();
    let x = GpuArray::from_slice(&gpu, &[1.0_f64, 10.0, 100.0]).unwrap();
    let diagonal = Diagonal::new(vec![1.0_f64, 2.0, 3.0]).adapt(&gpu).unwrap();
    assert_eq!(diagonal.dot(&x).unwrap().to_vec().unwrap(), [1.0, 20.0, 300.0]);
    let short = GpuArray::from_slice(&gpu, &[1.0_f64]).unwrap();
    assert!(matches!(diagonal.dot(&short), Err(ArrayError::Shape { .. })));
    let transposed = Transposed::new(matrix()).adapt(&gpu).unwrap();
    assert_eq!(transposed.dot(&x).unwrap().to_vec().unwrap(), [741.0, 1302.5, -862.0]);
}

#[test]
fn sparse_matrices_stay_sparse() {
    let gpu = gpu();
    let mut triplets = TriMatI::<f64, i32>::new((3, 4));
    for (row, column, value) in [(0, 1, 1.5), (2, 0, 2.5), (2, 3, -1.0)] {
        triplets.add_triplet(row, column, value);
    }
    let sparse: CsMatI<f64, i32> = triplets.to_csr();

    let csr = Csr::from(sparse.clone());
    let there: Csr<GpuArray<f32, Ix1>, GpuArray<i32, Ix1>> = cu(&csr).on(&gpu).unwrap();
    assert_eq!(there.values().to_vec().unwrap(), [1.5_f32, 2.5, -1.0]);
    assert_eq!(there.offsets().to_vec().unwrap(), [0, 1, 1, 3]);
    let text = "3×4 Csr<GpuArray<f32, Ix1>, GpuArray<i32, Ix1>> with 3 stored elements";
    assert_eq!(there.to_string(), text);
    let back = csr.adapt(&gpu).unwrap().into_adapted(&HostVec).unwrap();
    assert_eq!(CsMatI::try_from(back).unwrap(), sparse);

    let csc = Csc::from(sparse.clone());
    assert_eq!((csc.shape(), csc.offsets()), ([3, 4], &vec![0, 1, 2, 2, 3]));
    let back = csc.adapt(&gpu.unified()).unwrap().adapt(&HostVec).unwrap();
    assert_eq!(CsMatI::try_from(back).unwrap(), sparse.to_csc());

    let coo = Coo::from(&triplets);
    let back: Coo<Vec<f64>, Vec<i32>> = coo.adapt(&gpu).unwrap().adapt(&HostVec).unwrap();
    assert_eq!(back, coo);
    assert_eq!(TriMatI::try_from(back).unwrap().to_csr::<i32>(), sparse);
    assert_eq!(coo.into_parts(), (vec![0, 2, 2], vec![1, 0, 3], vec![1.5, 2.5, -1.0]));

    let error = Csr::new([2, 2], vec![0, 1], vec![0], vec![1.0_f32]).unwrap_err().to_string();
    assert!(error.starts_with("invalid lengths of offsets, indices and values: [2, 1, 1]; "), "{error}");
    assert!(Csc::new([2, usize::MAX], vec![0, 1], vec![0], vec![1.0_f32]).is_err());
    assert!(Coo::new([2, 2], vec![0, 1], vec![0, 1], vec![1.0_f32]).is_err());
    let outside = Coo::new([2, 2], vec![0], vec![-1], vec![1.0_f32]).unwrap();
    assert!(TriMatI::try_from(outside).is_err());
    let unordered = Csr::new([1, 2], vec![0, 2], vec![1, 7], vec![1.0_f32, 2.0]).unwrap();
    assert!(CsMatI::try_from(unordered).is_err());
}
