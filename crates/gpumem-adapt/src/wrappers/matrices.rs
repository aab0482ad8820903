//! Matrices over one array of two dimensions: triangular, symmetric, Hermitian, transposed, adjoint, permuted, banded.

use super::print;
use crate::adapt::{Adapt, Separate};
use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::storage::{Host, Shaped};
use crate::target::Target;
use core::fmt;
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Array2, Axis, Ix1, Ix2};
use gpumem_array::{ArrayError, AsView, DotWith, Element, Factor, GpuArray, Numeric};

/// An element of a matrix.
enum Cell {
    /// The array inside stores it, at this row and column.
    Stored(usize, usize),
    /// The array inside stores its conjugate there.
    Conjugated(usize, usize),
    One,
    Zero,
}

/// Defines a matrix over an array. The fields after the array stay as they are.
macro_rules! matrices {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($field:ident: $type:ty),* } $(of $bound:ident)?
        shape |$self_shape:ident, $shape:ident| $lengths:expr;
        cell |$self_cell:ident, $i:ident, $j:ident| $cell:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name<A> {
            array: A,
            $($field: $type,)*
        }

        impl<A> $name<A> {
            /// The array inside.
            pub fn array(&self) -> &A {
                &self.array
            }

            /// The array inside, mutable.
            pub fn array_mut(&mut self) -> &mut A {
                &mut self.array
            }

            /// Returns the array inside.
            #[must_use]
            pub fn into_array(self) -> A {
                self.array
            }

            #[allow(clippy::unused_self, reason = "some matrices have fields")]
            fn cell(&$self_cell, $i: usize, $j: usize) -> Cell {
                $cell
            }
        }

        impl<A: Shaped> $name<A> {
            /// The numbers of rows and columns.
            #[must_use]
            pub fn shape(&$self_shape) -> [usize; 2] {
                let lengths = $self_shape.array.lengths();
                let $shape = [0, 1].map(|axis| lengths.get(axis).copied().unwrap_or(0));
                $lengths
            }
        }

        impl<To: Target, A: Adapt<To>> Adapt<To> for $name<A> {
            type Adapted = $name<A::Adapted>;
            type Many = Separate;

            fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                Ok($name { array: self.array.adapt_with(cx)?, $($field: self.$field.clone(),)* })
            }

            fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                Ok($name { array: self.array.into_adapted_with(cx)?, $($field: self.$field,)* })
            }

            fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
                self.array.plan(plan);
            }

            fn is_at(&self, to: &To) -> bool {
                self.array.is_at(to)
            }
        }

        /// Prints the matrix, with a dot for each zero that is not stored. Downloads the array if it is on a device. More than twelve rows or
        /// columns are abridged, except with `{:#}`.
        impl<A> fmt::Display for $name<A>
        where
            A: Shaped + Adapt<Host, Adapted = Array2<<A as Shaped>::Elem>>,
            A::Elem: fmt::Debug $(+ $bound)?,
        {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let shape = self.shape();
                let name = concat!(stringify!($name), "<");
                write!(f, "{}×{} {name}{}>", shape[0], shape[1], A::type_name())?;
                match self.array.adapt(&Host) {
                    Ok(array) => {
                        let conjugate = |_element: &A::Elem| -> Option<A::Elem> { None $(.or_else(|| Some($bound::conjugate(_element))))? };
                        write_cells(f, shape, &array, |i, j| self.cell(i, j), conjugate)
                    }
                    // Not an error, which would make `to_string` panic.
                    Err(error) => write!(f, ", not shown: {error}"),
                }
            }
        }
    )*};
}

matrices! {
    /// A square matrix whose elements below the diagonal are zero. Elements of the array there are ignored.
    ///
    /// ```
    /// use gpumem_adapt::Upper;
    /// use gpumem_adapt::array::ndarray::array;
    ///
    /// let upper = Upper::new(array![[1, 2], [0, 4]]);
    /// assert_eq!(upper.to_string(), "2×2 Upper<Array2<i32>>:\n 1  2\n ⋅  4");
    /// ```
    Upper {}
    shape |self, shape| shape;
    cell |self, i, j| if i <= j { Cell::Stored(i, j) } else { Cell::Zero };

    /// Like [`Upper`], with ones on the diagonal, which are not stored.
    UnitUpper {}
    shape |self, shape| shape;
    cell |self, i, j| match i.cmp(&j) {
        core::cmp::Ordering::Less => Cell::Stored(i, j),
        core::cmp::Ordering::Equal => Cell::One,
        core::cmp::Ordering::Greater => Cell::Zero,
    };

    /// A square matrix whose elements above the diagonal are zero. Elements of the array there are ignored.
    Lower {}
    shape |self, shape| shape;
    cell |self, i, j| if i >= j { Cell::Stored(i, j) } else { Cell::Zero };

    /// Like [`Lower`], with ones on the diagonal, which are not stored.
    UnitLower {}
    shape |self, shape| shape;
    cell |self, i, j| match i.cmp(&j) {
        core::cmp::Ordering::Greater => Cell::Stored(i, j),
        core::cmp::Ordering::Equal => Cell::One,
        core::cmp::Ordering::Less => Cell::Zero,
    };

    /// A square matrix that equals its transpose. The elements on and above the diagonal are used.
    Symmetric {}
    shape |self, shape| shape;
    cell |self, i, j| Cell::Stored(i.min(j), i.max(j));

    /// A square matrix that equals its conjugate transpose. The elements on and above the diagonal are used. For real numbers, it equals
    /// [`Symmetric`].
    Hermitian {} of Conjugate
    shape |self, shape| shape;
    cell |self, i, j| if i <= j { Cell::Stored(i, j) } else { Cell::Conjugated(j, i) };

    /// The conjugate transpose of a matrix, without a copy. For real numbers, it is the transpose.
    Adjoint {} of Conjugate
    shape |self, shape| [shape[1], shape[0]];
    cell |self, i, j| Cell::Conjugated(j, i);

    /// The transpose of a matrix, without a copy.
    ///
    /// ```
    /// use gpumem_adapt::array::{Gpu, GpuArray, ndarray::{Ix2, array}, pool::{Device, Pool}};
    /// use gpumem_adapt::{Adapt, Transposed};
    ///
    /// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let on_gpu: Transposed<GpuArray<f32, Ix2>> = Transposed::new(array![[1.0, 2.0, 3.0]]).adapt(&gpu)?;
    /// assert_eq!(on_gpu.shape(), [3, 1]);
    /// let x = GpuArray::from_slice(&gpu, &[10.0_f32])?;
    /// assert_eq!(on_gpu.dot(&x)?.to_vec()?, [10.0, 20.0, 30.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Transposed {}
    shape |self, shape| [shape[1], shape[0]];
    cell |self, i, j| Cell::Stored(j, i);

    /// A matrix with its rows in another order.
    PermutedRows { order: Box<[usize]> }
    shape |self, shape| shape;
    cell |self, i, j| self.order.get(i).map_or(Cell::Zero, |&row| Cell::Stored(row, j));

    /// A square matrix whose elements are zero except near the diagonal, in the layout of LAPACK: row `k` of the array has the
    /// elements `(i, j)` with `above + i - j == k`, at column `j`.
    ///
    /// ```
    /// use gpumem_adapt::Banded;
    /// use gpumem_adapt::array::ndarray::array;
    ///
    /// let tridiagonal = Banded::new(array![[0, 7, 8], [1, 2, 3], [4, 5, 0]], 1, 1)?;
    /// assert_eq!(tridiagonal.to_string(), "3×3 Banded<Array2<i32>>:\n 1  7  ⋅\n 4  2  8\n ⋅  5  3");
    /// # Ok::<(), gpumem_adapt::AdaptError>(())
    /// ```
    Banded { below: usize, above: usize }
    shape |self, shape| [shape[1]; 2];
    cell |self, i, j| match (self.above + i).checked_sub(j) {
        Some(band) if band <= self.above + self.below => Cell::Stored(band, j),
        _ => Cell::Zero,
    };
}

macro_rules! constructors {
    ($($name:ident)*) => {$(
        impl<A> $name<A> {
            /// Creates the matrix over an array of two dimensions.
            pub fn new(array: A) -> Self {
                Self { array }
            }
        }
    )*};
}

constructors!(Upper UnitUpper Lower UnitLower Symmetric Hermitian Transposed Adjoint);

impl<A: Shaped> PermutedRows<A> {
    /// Creates a matrix whose row `i` is row `order[i]` of the array.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Custom`] unless `order` contains each row of the array once.
    pub fn new(array: A, order: impl Into<Box<[usize]>>) -> Result<Self, AdaptError> {
        let order = order.into();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let rows = array.lengths().first().copied().unwrap_or(0);
        if sorted.iter().copied().eq(0..rows) {
            Ok(Self { array, order })
        } else {
            Err(AdaptError::custom(format!("invalid order of {rows} rows; name each row once")))
        }
    }

    /// The rows of the array, in the order of the matrix.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

impl<A: Shaped> Banded<A> {
    /// Creates a matrix with as many diagonals below and above the main one.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Custom`] unless the array has `below + 1 + above` rows.
    pub fn new(array: A, below: usize, above: usize) -> Result<Self, AdaptError> {
        let rows = array.lengths().first().copied().unwrap_or(0);
        match below.checked_add(above).and_then(|bands| bands.checked_add(1)) == Some(rows) {
            true => Ok(Self { array, below, above }),
            false => Err(AdaptError::custom(format!(
                "an array of {rows} rows has no {below} diagonals below and {above} above the main one; store a diagonal in each row"
            ))),
        }
    }

    /// The numbers of diagonals below and above the main one.
    #[must_use]
    pub fn bands(&self) -> [usize; 2] {
        [self.below, self.above]
    }
}

/// Products that read the transpose in place.
macro_rules! transposes {
    ($($name:ident)*) => {$(
        impl<T: Factor, K: Kind> $name<GpuArray<T, Ix2, K>> {
            /// Multiplies the transpose by a vector or a matrix, without a copy. The elements are real: no kernel of `gpumem-array`
            /// multiplies matrices of complex numbers.
            ///
            /// # Errors
            ///
            /// [`ArrayError::Shape`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`],
            /// [`ArrayError::NoSuchKernel`]; see [`GpuArray::dot`].
            #[allow(clippy::type_complexity, reason = "the dimension of the product")]
            pub fn dot<B: AsView<Elem = T>>(
                &self,
                right: &B,
            ) -> Result<GpuArray<T, <B::Dim as DotWith<Ix2, T>>::Dim>, ArrayError>
            where
                B::Dim: DotWith<Ix2, T>,
            {
                self.array.t().dot(right)
            }
        }
    )*};
}

transposes!(Transposed Adjoint);

impl<T: Factor, K: Kind> PermutedRows<GpuArray<T, Ix2, K>> {
    /// Multiplies the matrix with a vector. The product is permuted, so no row is moved. Uploads the order, 8 bytes for each row.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`], [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`],
    /// [`ArrayError::NoSuchKernel`]; see [`GpuArray::dot`] and [`GpuArray::select`].
    pub fn dot<B: AsView<Elem = T, Dim = Ix1>>(&self, vector: &B) -> Result<GpuArray<T, Ix1>, ArrayError> {
        self.array.dot(vector)?.select(Axis(0), &*self.order)
    }
}

impl<T: Element, K: Kind> PermutedRows<GpuArray<T, Ix2, K>> {
    /// Copies the rows to an array, in the order of the matrix, on the device. Uploads the order, 8 bytes for each row.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see [`GpuArray::select`].
    pub fn to_dense(&self) -> Result<GpuArray<T, Ix2>, ArrayError> {
        self.array.select(Axis(0), &*self.order)
    }
}

impl<T: Numeric, K: Kind> Banded<GpuArray<T, Ix2, K>> {
    /// Multiplies the matrix with a vector: two launches for each diagonal, which multiply it with a part of the vector, and add the
    /// products to a part of the result. Only stored elements are read.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the length of the vector is not the number of columns.
    /// - [`ArrayError::NoPeerAccess`] if `vector` is on a device without a link to this one.
    /// - [`ArrayError::WrongDevice`] if `vector` belongs to another driver.
    /// - [`ArrayError::Pool`] if an allocation or a driver call fails.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn dot<B: AsView<Elem = T, Dim = Ix1>>(&self, vector: &B) -> Result<GpuArray<T, Ix1>, ArrayError> {
        let (vector, n) = (vector.as_view(), self.array.ncols());
        if vector.len() != n {
            return Err(ArrayError::Shape {
                operation: "dot",
                left: vec![n, n],
                right: vector.shape().to_vec(),
                expected: "the vector must have as many elements as the matrix has columns",
            });
        }
        let mut product = GpuArray::zeros(self.array.gpu(), n)?;
        for band in 0..=self.below + self.above {
            // Column `j` of a band is in row `j + below - above`.
            let (above, below) = (self.above.saturating_sub(band), band.saturating_sub(self.above));
            let Some(len) = n.checked_sub(above + below).filter(|len| *len > 0) else { continue };
            let (columns, rows) = (above..above + len, below..below + len);
            let stored = self.array.index_axis(Axis(0), band)?;
            let stored = stored.slice_axis(Axis(0), columns.clone().into())?;
            let terms = stored.try_mul(&vector.slice_axis(Axis(0), columns.into())?)?;
            product.slice_axis_mut(Axis(0), rows.into())?.try_add_assign(&terms)?;
        }
        Ok(product)
    }
}

/// Elements that have a complex conjugate. A real number is its own conjugate.
pub trait Conjugate {
    /// The complex conjugate.
    #[must_use]
    fn conjugate(&self) -> Self;
}

macro_rules! real {
    ($($type:ty)*) => {$(
        impl Conjugate for $type {
            fn conjugate(&self) -> Self {
                *self
            }
        }
    )*};
}

real!(f32 f64 i8 i16 i32 i64 i128 isize);
#[cfg(feature = "half")]
real!(half::f16 half::bf16);

#[cfg(feature = "complex")]
impl<T: Copy + core::ops::Neg<Output = T>> Conjugate for num_complex::Complex<T> {
    fn conjugate(&self) -> Self {
        Self { re: self.re, im: -self.im }
    }
}

fn write_cells<T: fmt::Debug>(
    f: &mut fmt::Formatter<'_>,
    shape: [usize; 2],
    array: &Array2<T>,
    cell: impl Fn(usize, usize) -> Cell,
    conjugate: impl Fn(&T) -> Option<T>,
) -> fmt::Result {
    if shape.contains(&0) {
        return Ok(());
    }
    // A one shows the decimal point, as other elements do.
    let has_point = array.iter().next().is_some_and(|element| format!("{element:?}").contains('.'));
    let text = |i, j| match cell(i, j) {
        Cell::Stored(i, j) => array.get((i, j)).map(|element| format!("{element:?}")),
        Cell::Conjugated(i, j) => {
            array.get((i, j)).and_then(&conjugate).map(|element| format!("{element:?}"))
        }
        Cell::One => Some(if has_point { "1.0" } else { "1" }.to_owned()),
        Cell::Zero => None,
    };
    write!(f, ":{}", print::matrix(shape, text, f.alternate()))
}
