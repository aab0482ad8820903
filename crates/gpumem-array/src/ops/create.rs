//! Constructors: ones, the identity, and elements computed by a function.

use crate::array::{GpuArray, UninitArray};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::ArrayError;
use crate::expression::Arithmetic;
use crate::gpu::Place;
use crate::layout::ElementOrder;
use ndarray::{Array, Dimension, IntoDimension, Ix2, s};

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Creates an array from a function of the indices. The elements are computed on the host and uploaded.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::array};
    ///
    /// let x = GpuArray::from_fn(&gpu, (2, 3), |(row, column)| 10 * row as i32 + column as i32)?;
    /// assert_eq!(x.to_array()?, array![[0, 1, 2], [10, 11, 12]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space; [`ArrayError::Pool`] if the allocation or a driver call
    /// fails, or if the stream captures.
    pub fn from_fn<P, S, F>(place: &P, shape: S, element: F) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
        F: FnMut(D::Pattern) -> T,
    {
        let dim = shape.into_dimension();
        // The pool's memory is allocated first: it refuses sizes whose allocation on the host would abort the program.
        let target = UninitArray::with_order(place, dim.clone(), ElementOrder::Row)?;
        target.copy_from_slice(&Array::from_shape_fn(dim, element).into_raw_vec_and_offset().0)
    }
}

impl<T: Arithmetic, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Creates an array with every element set to one.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// assert_eq!(GpuArray::<f64, _>::ones(&gpu, (2, 5))?.sum()?.into_scalar()?, 10.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see [`GpuArray::from_elem`].
    pub fn ones<P, S>(place: &P, shape: S) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        Self::from_elem(place, shape, T::ONE)
    }
}

impl<T: Arithmetic, K: Kind> GpuArray<T, Ix2, K> {
    /// Creates the identity matrix, on the device.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::array};
    ///
    /// assert_eq!(GpuArray::<i32, _>::eye(&gpu, 2)?.to_array()?, array![[1, 0], [0, 1]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space; [`ArrayError::Pool`] if the allocation or a driver call
    /// fails; [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn eye<P: Place<Kind = K> + ?Sized>(place: &P, size: usize) -> Result<Self, ArrayError> {
        let mut matrix = Self::zeros(place, (size, size))?;
        let diagonal = s![..;size.cast_signed() + 1];
        matrix.view_mut().reshape_mut(size * size)?.slice_mut(diagonal)?.fill(T::ONE)?;
        Ok(matrix)
    }
}
