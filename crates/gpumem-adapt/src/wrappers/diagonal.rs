//! [`Diagonal`]: a square matrix that is zero off its diagonal.

use super::print;
use crate::adapt::{Adapt, Separate};
use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::storage::{HostVec, Shaped};
use crate::target::Target;
use core::fmt;
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Axis, Ix1, Ix2};
use gpumem_array::{ArrayError, AsView, GpuArray, Numeric};

/// A square matrix that stores only its diagonal, as an array of any kind.
///
/// `Display` prints a matrix, and downloads the diagonal if it is on the device. Matrices of more than twelve rows are abridged,
/// except with `{:#}`. `Debug` shows the storage and downloads nothing.
///
/// ```
/// use gpumem_adapt::Diagonal;
///
/// let diagonal = Diagonal::new(vec![1_i32, 2]);
/// assert_eq!(diagonal.to_string(), "2×2 Diagonal<Vec<i32>>:\n 1  ⋅\n ⋅  2");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Diagonal<A> {
    diagonal: A,
}

impl<A> Diagonal<A> {
    /// Creates the matrix with this diagonal.
    pub fn new(diagonal: A) -> Self {
        Self { diagonal }
    }

    /// The array that holds the diagonal.
    pub fn diagonal(&self) -> &A {
        &self.diagonal
    }

    /// The array that holds the diagonal, mutable.
    pub fn diagonal_mut(&mut self) -> &mut A {
        &mut self.diagonal
    }

    /// Returns the array that holds the diagonal.
    #[must_use]
    pub fn into_diagonal(self) -> A {
        self.diagonal
    }
}

impl<A: Shaped> Diagonal<A> {
    /// The numbers of rows and columns.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        [self.diagonal.len(); 2]
    }
}

impl<To: Target, A: Adapt<To>> Adapt<To> for Diagonal<A> {
    type Adapted = Diagonal<A::Adapted>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.diagonal.adapt_with(cx).map(Diagonal::new)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.diagonal.into_adapted_with(cx).map(Diagonal::new)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        self.diagonal.plan(plan);
    }

    fn is_at(&self, to: &To) -> bool {
        self.diagonal.is_at(to)
    }
}

impl<T: Numeric, K: Kind> Diagonal<GpuArray<T, Ix1, K>> {
    /// Multiplies the matrix with a vector: element by element.
    ///
    /// ```
    /// use gpumem_adapt::array::{Gpu, GpuArray, pool::{Device, Pool}};
    /// use gpumem_adapt::{Adapt, Diagonal};
    ///
    /// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let diagonal = Diagonal::new(vec![1.0_f32, 2.0]).adapt(&gpu)?;
    /// let x = GpuArray::from_slice(&gpu, &[10.0_f32, 20.0])?;
    /// assert_eq!(diagonal.dot(&x)?.to_vec()?, [10.0, 40.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the lengths differ.
    /// - [`ArrayError::NoPeerAccess`] if `vector` is on a device without a link to this one.
    /// - [`ArrayError::WrongDevice`] if `vector` belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn dot<B: AsView<Elem = T, Dim = Ix1>>(&self, vector: &B) -> Result<GpuArray<T, Ix1>, ArrayError> {
        let (diagonal, vector) = (self.diagonal.view(), vector.as_view());
        if diagonal.len() != vector.len() {
            return Err(ArrayError::Shape {
                operation: "dot",
                left: vec![diagonal.len(); 2],
                right: vector.shape().to_vec(),
                expected: "the vector must have as many elements as the matrix has columns",
            });
        }
        diagonal.try_mul(&vector)
    }

    /// Multiplies the matrix with another one: each row by an element of the diagonal. Two launches: the first repeats the diagonal in a
    /// temporary array as large as `matrix`, because the second reads contiguous operands.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] unless `matrix` has as many rows as the diagonal has elements. [`ArrayError::NoPeerAccess`],
    /// [`ArrayError::WrongDevice`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see [`Diagonal::dot`].
    pub fn dot_matrix<B: AsView<Elem = T, Dim = Ix2>>(
        &self,
        matrix: &B,
    ) -> Result<GpuArray<T, Ix2>, ArrayError> {
        let (diagonal, matrix) = (self.diagonal.view(), matrix.as_view());
        if diagonal.len() != matrix.nrows() {
            return Err(ArrayError::Shape {
                operation: "dot_matrix",
                left: vec![diagonal.len(); 2],
                right: matrix.shape().to_vec(),
                expected: "the other matrix must have as many rows as this one has columns",
            });
        }
        diagonal.insert_axis(Axis(1))?.try_mul(&matrix)
    }
}

impl<A> fmt::Display for Diagonal<A>
where
    A: Shaped + Adapt<HostVec, Adapted = Vec<<A as Shaped>::Elem>>,
    A::Elem: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, columns] = self.shape();
        write!(f, "{rows}×{columns} Diagonal<{}>", A::type_name())?;
        match self.diagonal.adapt(&HostVec) {
            Ok(values) if values.is_empty() => Ok(()),
            Ok(values) => {
                let texts: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
                let text = |i: usize, j: usize| texts.get(i).filter(|_| i == j).cloned();
                write!(f, ":{}", print::matrix([rows, columns], text, f.alternate()))
            }
            // Not an error, which would make `to_string` panic.
            Err(error) => write!(f, ", not shown: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_array::ndarray::array;

    #[test]
    fn prints_as_a_matrix() {
        let text = Diagonal::new(array![1.0_f32, 2.0]).to_string();
        assert_eq!(text, "2×2 Diagonal<Array1<f32>>:\n 1.0   ⋅\n  ⋅   2.0");
        let text = Diagonal::new(vec![true, false]).to_string();
        assert_eq!(text, "2×2 Diagonal<Vec<bool>>:\n true      ⋅\n    ⋅  false");
        assert_eq!(Diagonal::new(Vec::<u8>::new()).to_string(), "0×0 Diagonal<Vec<u8>>");
    }
}
