//! Wrappers keep their type on the way to the device and back, and print the same matrix on both sides.

use gpumem_adapt::array::ndarray::{Array1, Array2, Array3, Axis, Ix1, Ix2, Ix3, ShapeBuilder, array};
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, UnifiedArray};
use gpumem_adapt::{
    Adapt, Adjoint, Banded, Coo, Csc, Csr, Destination, Diagonal, F32, Hermitian, Host, HostVec, Lower,
    Nalgebra, PermutedRows, Symmetric, Transposed, UnitLower, UnitUpper, Upper, cu,
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
    there_and_back!(gpu, Hermitian, Hermitian::new(matrix()), symmetric);
    there_and_back!(gpu, Adjoint, Adjoint::new(matrix()), transposed);
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

/// The product of a matrix, given by its elements, and a vector.
fn product(element: impl Fn(usize, usize) -> f64, x: &Array1<f64>) -> Vec<f64> {
    let row = |i: usize| (0..x.len()).map(|j| element(i, j) * x[j]).sum();
    (0..x.len()).map(row).collect()
}

/// Elements that a wrapper does not use are not numbers.
#[test]
fn products_read_what_is_stored_alone() {
    let gpu = gpu();
    let value = |i: usize, j: usize| ((i * 37 + j * 11) % 17) as f64 - 8.0;
    for n in [0, 1, 2, 33, 70] {
        let vector = Array1::from_shape_fn(n, |i| (i % 9) as f64 - 4.0);
        let x = GpuArray::from_array(&gpu, &vector).unwrap();
        for is_column_major in [false, true] {
            let stored = || {
                let element = |(i, j)| value(i, j);
                Array2::from_shape_fn((n, n).set_f(is_column_major), element).adapt(&gpu).unwrap()
            };
            let expected = product(|i, j| value(j, i), &vector);
            assert_eq!(Transposed::new(stored()).dot(&x).unwrap().to_vec().unwrap(), expected);
            assert_eq!(Adjoint::new(stored()).dot(&x).unwrap().to_vec().unwrap(), expected);
            let order: Vec<usize> = (0..n).rev().collect();
            let permuted = PermutedRows::new(stored(), order.clone()).unwrap();
            let found = permuted.dot(&x).unwrap().to_vec().unwrap();
            assert_eq!(found, product(|i, j| value(order[i], j), &vector));
            let dense = permuted.to_dense().unwrap().to_array().unwrap();
            assert_eq!(dense, Array2::from_shape_fn((n, n), |(i, j)| value(order[i], j)));
        }
        for (below, above) in [(0, 0), (1, 1), (2, 0), (0, 3), (4, 2), (n, n)] {
            let is_inside = |band: usize, j: usize| (j + band).checked_sub(above).is_some_and(|i| i < n);
            let bands = Array2::from_shape_fn((below + 1 + above, n), |(band, j)| match is_inside(band, j) {
                true => value(band, j),
                false => f64::NAN,
            });
            let banded = Banded::new(bands, below, above).unwrap().adapt(&gpu).unwrap();
            let element = |i: usize, j: usize| match (above + i).checked_sub(j) {
                Some(band) if band <= above + below => value(band, j),
                _ => 0.0,
            };
            let found = banded.dot(&x).unwrap().to_vec().unwrap();
            assert_eq!(found, product(element, &vector), "{below} {above} {n}");
        }
    }
    let short = GpuArray::from_slice(&gpu, &[1.0_f64]).unwrap();
    let banded = Banded::new(matrix(), 1, 1).unwrap().adapt(&gpu).unwrap();
    assert!(matches!(banded.dot(&short), Err(ArrayError::Shape { .. })));
    let diagonal = Diagonal::new(vec![1.0_f64, 2.0, 3.0]).adapt(&gpu).unwrap();
    let scaled = diagonal.dot_matrix(&matrix().adapt(&gpu).unwrap()).unwrap().to_array().unwrap();
    assert_eq!(scaled, matrix() * &array![[1.0], [2.0], [3.0]]);
    let row = GpuArray::from_array(&gpu, &array![[1.0_f64, 2.0]]).unwrap();
    assert!(matches!(diagonal.dot_matrix(&row), Err(ArrayError::Shape { .. })));
}

#[test]
fn conjugates_are_printed() {
    use num_complex::Complex;
    let array = array![[Complex::new(1, 0), Complex::new(2, 3)], [Complex::new(0, 0), Complex::new(4, 0)]];
    let text = "2×2 Hermitian<Array2<Complex<i32>>>:\n Complex { re: 1, im: 0 }  Complex { re: 2, im: 3 }\n \
                Complex { re: 2, im: -3 }  Complex { re: 4, im: 0 }";
    let collapse = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(collapse(Hermitian::new(array.clone()).to_string()), collapse(text.to_owned()));
    let adjoint = collapse(Adjoint::new(array).to_string());
    assert!(
        adjoint.contains("{ re: 1, im: 0 } Complex { re: 0, im: 0 } Complex { re: 2, im: -3 }"),
        "{adjoint}"
    );
}

#[test]
fn matrices_of_nalgebra() {
    use nalgebra::{DMatrix, DVector, Matrix2, SVector};
    let gpu = gpu();
    let matrix = DMatrix::from_fn(3, 5, |i, j| (10 * i + j) as f32);
    let vector = DVector::from_vec(vec![1_i64, 2, 3]);
    let small = Matrix2::new(1.0_f64, 2.0, 3.0, 4.0);
    let value = (matrix.clone(), vector.clone(), small, vec![small; 3], Some(DMatrix::<f64>::zeros(0, 4)));
    let there = value.adapt(&gpu).unwrap();
    let (_, _, _, points, _) = &there;
    let _: (&GpuArray<f32, Ix2>, &GpuArray<i64, Ix1>, Matrix2<f64>) = (&there.0, &there.1, there.2);
    let _: &GpuArray<Matrix2<f64>, Ix1> = points;
    assert_eq!(points.to_vec().unwrap(), [small; 3]);
    let x = GpuArray::from_slice(&gpu, &[1.0_f32, 0.0, 0.0, 0.0, 2.0]).unwrap();
    assert_eq!(there.0.dot(&x).unwrap().to_vec().unwrap(), [8.0, 38.0, 68.0]);
    let back = there.adapt(&Nalgebra).unwrap();
    assert_eq!((&back.0, &back.1, back.2, &back.4), (&matrix, &vector, small, &value.4));
    assert_eq!(back.3, DVector::from_vec(vec![small; 3]));
    // In row-major order.
    let rows = array![[1, 2, 3], [4, 5, 6]];
    assert_eq!(
        rows.adapt(&gpu).unwrap().adapt(&Nalgebra).unwrap(),
        DMatrix::from_row_slice(2, 3, &[1, 2, 3, 4, 5, 6])
    );
    assert_eq!(rows.t().adapt(&Nalgebra).unwrap(), DMatrix::from_column_slice(3, 2, &[1, 2, 3, 4, 5, 6]));
    let single: GpuArray<f32, Ix2> = cu(&DMatrix::from_element(2, 2, 0.5_f64)).on(&gpu).unwrap();
    assert_eq!(single.to_vec().unwrap(), [0.5; 4]);
    assert_eq!(cu(&vec![SVector::<f64, 2>::new(1.0, 2.0)]).on(&gpu).unwrap().len(), 1);
    // On the host, the allocation stays.
    let (address, copied) = (matrix.as_slice().as_ptr(), matrix.clone());
    let array = matrix.into_adapted(&Host).unwrap();
    assert_eq!((array.as_ptr(), array.dim(), array[[2, 4]]), (address, (3, 5), 24.0));
    let matrix = array.into_adapted(&Nalgebra).unwrap();
    assert_eq!((matrix.as_slice().as_ptr(), matrix), (address, copied));
    let address = vector.as_slice().as_ptr();
    let vector = vector.into_adapted(&HostVec).unwrap();
    assert_eq!(vector.as_ptr(), address);
    let cube: GpuArray<u8, Ix3> = Array3::<u8>::ones((2, 2, 2)).adapt(&gpu).unwrap();
    assert_eq!(cube.adapt(&Nalgebra).unwrap(), Array3::<u8>::ones((2, 2, 2)));
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

#[test]
fn a_sparse_matrix_times_vectors_and_matrices() {
    let gpu = gpu();
    // Rows of 0 to 70 elements, an index several times among them.
    let (rows, columns) = (90, 40);
    let mut dense = Array2::<f64>::zeros((rows, columns));
    let (mut offsets, mut indices, mut values) = (vec![0_i64], Vec::new(), Vec::new());
    for row in 0..rows {
        for element in 0..row * 13 % 71 {
            let (column, value) = ((element * 7 + row) % columns, ((row + element) % 9) as f64 - 4.0);
            dense[[row, column]] += value;
            indices.push(column as i64);
            values.push(value);
        }
        offsets.push(values.len() as i64);
    }
    let csr = Csr::new([rows, columns], offsets, indices, values).unwrap();
    let there = csr.adapt(&gpu).unwrap();
    let right = Array2::from_shape_fn((columns, 35), |(row, column)| ((row * 5 + column) % 11) as f64);
    let on_gpu = GpuArray::from_array(&gpu, &right).unwrap();
    assert_eq!(there.dot(&on_gpu).unwrap().to_array().unwrap(), dense.dot(&right));
    let turned = GpuArray::from_array(&gpu, &right.t().as_standard_layout()).unwrap();
    assert_eq!(there.dot(&turned.t()).unwrap().to_array().unwrap(), dense.dot(&right));
    let column = on_gpu.index_axis(Axis(1), 3).unwrap();
    assert_eq!(there.dot(&column).unwrap().to_array().unwrap(), dense.dot(&right.column(3)));
    assert!(matches!(there.dot(&there.dot(&column).unwrap()), Err(ArrayError::Shape { .. })));

    // Nothing outside the arrays is read.
    let wrong = Csr::new([3, 2], vec![-5_i32, 1, 900, 2], vec![0, -1, 7], vec![1, 2, 4]).unwrap();
    let wrong = wrong.adapt(&gpu).unwrap();
    let two = GpuArray::from_slice(&gpu, &[10, 100]).unwrap();
    assert_eq!(wrong.dot(&two).unwrap().to_vec().unwrap(), [0, 0, 0]);
}
