//! [`Csr`], [`Csc`], [`Coo`]: sparse matrices, as arrays of values and of indices.

use crate::adapt::{Adapt, Separate};
use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::storage::Shaped;
use crate::target::Target;
use core::fmt;
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Ix1, Ix2};
use gpumem_array::{ArrayError, AsView, DotWith, GpuArray, Numeric, compressed_rows_product};

/// The first type, once for each field.
macro_rules! first {
    ($type:ty, $field:ident) => {
        $type
    };
}

/// Defines a sparse matrix: its shape, arrays of indices and the array of values.
macro_rules! sparse {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $indices:ident,)+ }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $name<V, I> {
            shape: [usize; 2],
            $($indices: I,)+
            values: V,
        }

        impl<V, I> $name<V, I> {
            /// The numbers of rows and columns.
            #[must_use]
            pub fn shape(&self) -> [usize; 2] {
                self.shape
            }

            $(
                $(#[$field_doc])*
                pub fn $indices(&self) -> &I {
                    &self.$indices
                }
            )+

            /// The stored elements.
            pub fn values(&self) -> &V {
                &self.values
            }

            /// The stored elements, mutable.
            pub fn values_mut(&mut self) -> &mut V {
                &mut self.values
            }

            /// Returns the arrays: indices in the order of [`new`](Self::new), then values.
            #[must_use]
            pub fn into_parts(self) -> ($(first!(I, $indices),)+ V) {
                ($(self.$indices,)+ self.values)
            }
        }

        impl<To, V, I> Adapt<To> for $name<V, I>
        where
            To: Target,
            V: Adapt<To>,
            I: Adapt<To>,
        {
            type Adapted = $name<V::Adapted, I::Adapted>;
            type Many = Separate;

            fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                Ok($name {
                    shape: self.shape,
                    $($indices: self.$indices.adapt_with(cx).map_err(|error| error.within(stringify!($indices)))?,)+
                    values: self.values.adapt_with(cx).map_err(|error| error.within("values"))?,
                })
            }

            fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                let Self { shape, $($indices,)+ values } = self;
                Ok($name {
                    shape,
                    $($indices: $indices.into_adapted_with(cx).map_err(|error| error.within(stringify!($indices)))?,)+
                    values: values.into_adapted_with(cx).map_err(|error| error.within("values"))?,
                })
            }

            fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
                $(self.$indices.plan(plan);)+
                self.values.plan(plan);
            }

            fn is_at(&self, to: &To) -> bool {
                $(self.$indices.is_at(to) &&)+ self.values.is_at(to)
            }
        }

        /// Prints the shape, the type, and the number of stored elements. Downloads nothing.
        impl<V: Shaped, I: Shaped> fmt::Display for $name<V, I> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let ([rows, columns], count) = (self.shape, self.values.len());
                let (name, values, indices) = (stringify!($name), V::type_name(), I::type_name());
                write!(f, "{rows}×{columns} {name}<{values}, {indices}> with {count} stored elements")
            }
        }
    )*};
}

sparse! {
    /// A sparse matrix in compressed rows.
    ///
    /// ```
    /// use gpumem_adapt::array::{Gpu, GpuArray, ndarray::Ix1, pool::{Device, Pool}};
    /// use gpumem_adapt::{Adapt, Csr, HostVec};
    ///
    /// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// // 1 0 2
    /// // 0 0 3
    /// let csr = Csr::new([2, 3], vec![0_i32, 2, 3], vec![0, 2, 2], vec![1.0_f32, 2.0, 3.0])?;
    /// let on_gpu: Csr<GpuArray<f32, Ix1>, GpuArray<i32, Ix1>> = csr.adapt(&gpu)?;
    /// assert_eq!(
    ///     on_gpu.to_string(),
    ///     "2×3 Csr<GpuArray<f32, Ix1>, GpuArray<i32, Ix1>> with 3 stored elements"
    /// );
    /// assert_eq!(on_gpu.into_adapted(&HostVec)?, csr);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Csr {
        /// The start of each row among the values, and the end of the last one.
        offsets,
        /// The column of each value.
        indices,
    }

    /// A sparse matrix in compressed columns.
    Csc {
        /// The start of each column among the values, and the end of the last one.
        offsets,
        /// The row of each value.
        indices,
    }

    /// A sparse matrix as a list of elements.
    Coo {
        /// The row of each value.
        rows,
        /// The column of each value.
        columns,
    }
}

macro_rules! compressed {
    ($($name:ident, $axis:literal, $lines:literal;)*) => {$(
        impl<V: Shaped, I: Shaped> $name<V, I> {
            /// Creates a matrix from its arrays. The contents of `offsets` and `indices` are not read, as they may be on a device.
            ///
            /// # Errors
            ///
            /// [`AdaptError::Custom`] if the lengths of the arrays do not match the shape or each other.
            pub fn new(shape: [usize; 2], offsets: I, indices: I, values: V) -> Result<Self, AdaptError> {
                let lens = [offsets.len(), indices.len(), values.len()];
                if shape[$axis].checked_add(1) != Some(lens[0]) || lens[1] != lens[2] {
                    return Err(AdaptError::custom(format!(
                        "invalid lengths of offsets, indices and values: {lens:?}; a matrix of {} {} needs one offset more, and an index \
                         for each value",
                        shape[$axis], $lines
                    )));
                }
                Ok(Self { shape, offsets, indices, values })
            }
        }
    )*};
}

compressed! {
    Csr, 0, "rows";
    Csc, 1, "columns";
}

macro_rules! products {
    ($($index:ty)*) => {$(
        impl<T: Numeric, K: Kind, L: Kind> Csr<GpuArray<T, Ix1, K>, GpuArray<$index, Ix1, L>> {
            /// Multiplies the matrix by a vector or a matrix, in one launch. Floats are summed in an order that depends only on how many
            /// elements the row has; integers wrap. [`Csr::new`] cannot check arrays on the device, so the kernel does: it skips elements
            /// whose offset or index is outside the matrix.
            ///
            /// ```
            /// use gpumem_adapt::array::{Gpu, GpuArray, pool::{Device, Pool}};
            /// use gpumem_adapt::{Adapt, Csr};
            ///
            /// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
            /// let gpu = Gpu::new(&Pool::new(&device)?)?;
            /// // 1 0 2
            /// // 0 0 3
            /// let csr = Csr::new([2, 3], vec![0_i32, 2, 3], vec![0, 2, 2], vec![1.0_f32, 2.0, 3.0])?.adapt(&gpu)?;
            /// let x = GpuArray::from_slice(&gpu, &[1.0, 10.0, 100.0])?;
            /// assert_eq!(csr.dot(&x)?.to_vec()?, [201.0, 300.0]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            ///
            /// - [`ArrayError::Shape`] if the first axis of `right` is not as long as the matrix has columns.
            /// - [`ArrayError::NoPeerAccess`], [`ArrayError::WrongDevice`], [`ArrayError::Pool`], [`ArrayError::NoSuchKernel`]; see
            ///   [`GpuArray::dot`].
            pub fn dot<B: AsView<Elem = T>>(&self, right: &B) -> Result<GpuArray<T, B::Dim>, ArrayError>
            where
                B::Dim: DotWith<Ix2, T, Dim = B::Dim>,
            {
                let indices = [&self.offsets.view(), &self.indices.view()];
                compressed_rows_product(self.shape, indices, &self.values.view(), &right.as_view())
            }
        }
    )*};
}

products!(i32 u32 i64 u64 isize usize);

impl<V: Shaped, I: Shaped> Coo<V, I> {
    /// Creates a matrix from its arrays. The contents of `rows` and `columns` are not read, as they may be on a device.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Custom`] if the lengths of the arrays differ.
    pub fn new(shape: [usize; 2], rows: I, columns: I, values: V) -> Result<Self, AdaptError> {
        let lens = [rows.len(), columns.len(), values.len()];
        if lens[0] != lens[2] || lens[1] != lens[2] {
            return Err(AdaptError::custom(format!(
                "invalid lengths of rows, columns and values: {lens:?}; give each value a row and a column"
            )));
        }
        Ok(Self { shape, rows, columns, values })
    }
}

#[cfg(feature = "sprs")]
mod conversions {
    use super::{AdaptError, Coo, Csc, Csr};
    use sprs::{CsMatI, SpIndex, TriMatI};

    macro_rules! compressed {
        ($($name:ident $into:ident $try_new:ident;)*) => {$(
            impl<T: Clone + Default, I: SpIndex> From<CsMatI<T, I>> for $name<Vec<T>, Vec<I>> {
                fn from(matrix: CsMatI<T, I>) -> Self {
                    let matrix = matrix.$into();
                    let shape = [matrix.rows(), matrix.cols()];
                    let (offsets, indices, values) = matrix.into_raw_storage();
                    Self { shape, offsets, indices, values }
                }
            }

            /// Fails with [`AdaptError::Custom`] if the indices do not describe such a matrix.
            impl<T, I: SpIndex> TryFrom<$name<Vec<T>, Vec<I>>> for CsMatI<T, I> {
                type Error = AdaptError;

                fn try_from(matrix: $name<Vec<T>, Vec<I>>) -> Result<Self, AdaptError> {
                    let $name { shape: [rows, columns], offsets, indices, values } = matrix;
                    Self::$try_new((rows, columns), offsets, indices, values)
                        .map_err(|(.., error)| AdaptError::custom(error.to_string()))
                }
            }
        )*};
    }

    compressed! {
        Csr into_csr try_new;
        Csc into_csc try_new_csc;
    }

    impl<T: Clone, I: SpIndex> From<&TriMatI<T, I>> for Coo<Vec<T>, Vec<I>> {
        fn from(matrix: &TriMatI<T, I>) -> Self {
            Self {
                shape: [matrix.rows(), matrix.cols()],
                rows: matrix.row_inds().to_vec(),
                columns: matrix.col_inds().to_vec(),
                values: matrix.data().to_vec(),
            }
        }
    }

    /// Fails with [`AdaptError::Custom`] if an index is outside the shape.
    impl<T, I: SpIndex> TryFrom<Coo<Vec<T>, Vec<I>>> for TriMatI<T, I> {
        type Error = AdaptError;

        fn try_from(matrix: Coo<Vec<T>, Vec<I>>) -> Result<Self, AdaptError> {
            let Coo { shape, rows, columns, values } = matrix;
            for (indices, end) in [(&rows, shape[0]), (&columns, shape[1])] {
                let is_outside = |index: &&I| index.try_index().is_none_or(|index| index >= end);
                if let Some(index) = indices.iter().find(is_outside) {
                    return Err(AdaptError::custom(format!("index {index:?} is outside of shape {shape:?}")));
                }
            }
            Ok(Self::from_triplets((shape[0], shape[1]), rows, columns, values))
        }
    }
}
