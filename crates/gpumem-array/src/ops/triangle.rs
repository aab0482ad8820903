//! A triangle of a matrix, or a symmetric matrix, times a vector.

use crate::array::{GpuArray, GpuView, GpuViewMut, Vector, readers};
use crate::element::Numeric;
use crate::error::ArrayError;
use crate::kernel::table::Kernel;
use crate::kind::Kind;
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout};
use crate::ops::{blocks, operand};
use ndarray::{Dimension, Ix1, Ix2};

/// The part of a square matrix that [`GpuView::triangle_dot`] uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Triangle {
    /// The elements on and above the diagonal. The others are zero.
    Upper,
    /// The elements above the diagonal, which consists of ones. The others are zero.
    UnitUpper,
    /// The elements on and below the diagonal. The others are zero.
    Lower,
    /// The elements below the diagonal, which consists of ones. The others are zero.
    UnitLower,
    /// The elements on and above the diagonal, mirrored below it.
    Symmetric,
}

impl<T: Numeric> GpuView<'_, T, Ix2> {
    /// Multiplies a triangle of the matrix by a vector. Other elements are not read, and can have any value.
    ///
    /// A triangle reads about half as many bytes as [`GpuView::dot`], and so does [`Triangle::Symmetric`] in each of its two launches. A
    /// non-contiguous view is copied first. Floats are summed in an order that depends only on the shape and the order of the matrix;
    /// integers wrap.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, Triangle, ndarray::array};
    ///
    /// let a = GpuArray::from_array(&gpu, &array![[1, 2], [100, 3]])?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 10])?;
    /// assert_eq!(a.view().triangle_dot(Triangle::Upper, &x)?.to_vec()?, [21, 30]);
    /// assert_eq!(a.view().triangle_dot(Triangle::Symmetric, &x)?.to_vec()?, [21, 32]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the matrix is not square, or the length of the vector is not its number of columns.
    /// - [`ArrayError::NoPeerAccess`] if `vector` is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if `vector` belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn triangle_dot<B: Vector<Elem = T>>(
        &self,
        triangle: Triangle,
        vector: &B,
    ) -> Result<GpuArray<T, Ix1>, ArrayError> {
        let vector = vector.as_view();
        let (row_count, column_count) = self.raw_dim().into_pattern();
        if row_count != column_count || vector.len() != column_count {
            return Err(ArrayError::Shape {
                operation: "triangle_dot",
                left: self.shape().to_vec(),
                right: vector.shape().to_vec(),
                expected: "the matrix must be square, and the vector must have as many elements as the matrix has columns",
            });
        }
        let gpu = self.gpu();
        let order = self.layout().order().unwrap_or(ElementOrder::Row);
        let matrix = operand(self, gpu, order, "triangle_dot")?;
        let vector = operand(&vector, gpu, ElementOrder::Row, "triangle_dot")?;
        let result =
            GpuArray::unwritten(gpu, Layout::dense(Ix1(row_count), ElementOrder::Row, size_of::<T>())?)?;
        if row_count == 0 {
            return Ok(result);
        }
        let (matrix, vector) = (matrix.view(), vector.view());
        let is_row_major = matrix.layout().is_dense(ElementOrder::Row);
        let n = row_count as u64;
        let part = |form: u64, is_transposed: bool| -> Result<OwnLaunch<'_>, ArrayError> {
            let launch = if is_row_major != is_transposed {
                let grid = [blocks(row_count, ROW_LANES as usize), 1, 1];
                let launch = OwnLaunch::new(gpu, Kernel::TriangleRows(T::TYPE), grid, [32, ROW_LANES, 1])?;
                launch.write(&result).read(&matrix).value(n).value(1_u64)
            } else {
                let grid = [blocks(row_count, THREADS as usize), 1, 1];
                let launch = OwnLaunch::new(gpu, Kernel::TriangleColumns(T::TYPE), grid, [THREADS, 1, 1])?;
                launch.write(&result).read(&matrix).value(1_u64).value(n)
            };
            Ok(launch.read(&vector).value(n).value(form))
        };
        match triangle {
            Triangle::Upper => part(UPPER, false)?.queue("triangle_dot")?,
            Triangle::UnitUpper => part(UPPER | UNIT, false)?.queue("triangle_dot")?,
            Triangle::Lower => part(0, false)?.queue("triangle_dot")?,
            Triangle::UnitLower => part(UNIT, false)?.queue("triangle_dot")?,
            // The part below the diagonal is the transpose of the one above.
            Triangle::Symmetric => {
                part(UPPER, false)?.queue_before(part(STRICT | ADDS, true)?, "triangle_dot")?;
            }
        }
        Ok(result)
    }
}

readers! {
    Numeric, Ix2;

    /// Multiplies a triangle of the matrix by a vector; see [`GpuView::triangle_dot`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::Triangle;
    /// use gpumem_array::ndarray::array;
    ///
    /// let a = GpuArray::from_array(&gpu, &array![[1, 100], [2, 3]])?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 10])?;
    /// assert_eq!(a.triangle_dot(Triangle::Lower, &x)?.to_vec()?, [1, 32]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`],
    /// [`ArrayError::NoSuchKernel`]; see [`GpuView::triangle_dot`].
    pub fn triangle_dot<B: Vector<Elem = T>>(
        &self,
        triangle: Triangle,
        vector: &B,
    ) -> Result<GpuArray<T, Ix1>, ArrayError> {
        self.view().triangle_dot(triangle, vector)
    }
}

/// The forms of the kernels.
const UPPER: u64 = 1;
const STRICT: u64 = 2;
const UNIT: u64 = 4;
const ADDS: u64 = 8;
/// The kernels are compiled for these.
const ROW_LANES: u32 = 8;
const THREADS: u32 = 256;
