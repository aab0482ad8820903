//! `Adapt` for the matrices and vectors of the crate `nalgebra`, and [`Nalgebra`], the target with these types.

use crate::adapt::{Adapt, Merged, Separate};
use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::policy::{PlainElement, Unchanged};
use crate::storage::Host;
use crate::target::{KnownTarget, Receive, Target};
use gpumem_array::ndarray::{Array, ArrayView, Ix0, Ix1, Ix2, Ix3, Ix4, Ix5, Ix6, IxDyn, ShapeBuilder};
use gpumem_array::{ArrayError, Element, Gpu, GpuView};
use nalgebra::{DMatrix, DVector, SMatrix, Scalar};

/// The host, with the types of the crate `nalgebra`: a target of [`Adapt`]. Arrays of one dimension become
/// [`DVector`]s, and those of two dimensions [`DMatrix`]es. Arrays of other dimensions become `ndarray` arrays.
///
/// A [`DMatrix`] keeps its order on the way to the GPU: column-major.
///
/// ```
/// use gpumem_adapt::array::{Gpu, GpuArray, ndarray::Ix2, pool::{Device, Pool}};
/// use gpumem_adapt::{Adapt, Nalgebra};
/// use nalgebra::DMatrix;
///
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let matrix = DMatrix::from_row_slice(2, 3, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// let there: GpuArray<f32, Ix2> = matrix.adapt(&gpu)?;
/// assert_eq!((there.shape(), there.strides()), (&[2, 3][..], vec![1, 2]));
/// assert_eq!(there.adapt(&Nalgebra)?, matrix);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nalgebra;

impl KnownTarget for Nalgebra {}

impl Target for Nalgebra {
    type Storage = Host;
    type Policy = Unchanged;

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

macro_rules! receives {
    ($($dimension:ty => [$($bound:ident)?] $array:ty, $convert:expr;)*) => {$(
        impl<T: Element $(+ $bound)?> Receive<T, $dimension> for Nalgebra {
            type Array = $array;

            fn copy_from_host(
                array: ArrayView<'_, T, $dimension>,
                cx: &mut Context<'_, Self>,
            ) -> Result<Self::Array, AdaptError> {
                Self::take_from_host(crate::target::copied(&array)?, cx)
            }

            fn take_from_host(
                array: Array<T, $dimension>,
                _: &mut Context<'_, Self>,
            ) -> Result<Self::Array, AdaptError> {
                Ok($convert(array)?)
            }

            fn copy_from_gpu(
                view: GpuView<'_, T, $dimension>,
                cx: &mut Context<'_, Self>,
            ) -> Result<Self::Array, AdaptError> {
                Self::take_from_host(view.to_array()?, cx)
            }
        }
    )*};
}

receives! {
    Ix1 => [Scalar] DVector<T>, vector;
    Ix2 => [Scalar] DMatrix<T>, matrix;
    Ix0 => [] Array<T, Ix0>, Ok::<_, ArrayError>;
    Ix3 => [] Array<T, Ix3>, Ok::<_, ArrayError>;
    Ix4 => [] Array<T, Ix4>, Ok::<_, ArrayError>;
    Ix5 => [] Array<T, Ix5>, Ok::<_, ArrayError>;
    Ix6 => [] Array<T, Ix6>, Ok::<_, ArrayError>;
    IxDyn => [] Array<T, IxDyn>, Ok::<_, ArrayError>;
}

fn vector<T: Element + Scalar>(array: Array<T, Ix1>) -> Result<DVector<T>, ArrayError> {
    Ok(DVector::from_vec(crate::target::elements(array)?))
}

/// Keeps the allocation of a column-major array.
fn matrix<T: Element + Scalar>(array: Array<T, Ix2>) -> Result<DMatrix<T>, ArrayError> {
    let (rows, columns) = array.dim();
    // The elements of the transpose in row-major order are those of the matrix in column-major order.
    let elements = crate::target::elements(array.reversed_axes().into_flat())?;
    Ok(DMatrix::from_vec(rows, columns, elements))
}

impl<To, T> Adapt<To> for DMatrix<T>
where
    To: Receive<T, Ix2>,
    T: Element + Scalar,
{
    type Adapted = To::Array;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        To::copy_from_host(view(self)?, cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        if cx.to().gpu().is_some() {
            return self.adapt_with(cx);
        }
        let (rows, columns) = self.shape();
        let elements: Vec<T> = self.data.into();
        let array = Array::from_shape_vec((rows, columns).f(), elements);
        To::take_from_host(array.map_err(|_| too_many(rows, columns))?, cx)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        if let Ok(view) = view(self) {
            To::plan_upload(view, plan);
        }
    }

    fn is_at(&self, to: &To) -> bool {
        To::keeps() && to.gpu().is_none()
    }
}

fn view<T: Scalar>(matrix: &DMatrix<T>) -> Result<ArrayView<'_, T, Ix2>, ArrayError> {
    let (rows, columns) = matrix.shape();
    ArrayView::from_shape((rows, columns).f(), matrix.as_slice()).map_err(|_| too_many(rows, columns))
}

fn too_many(rows: usize, columns: usize) -> ArrayError {
    ArrayError::TooManyElements { shape: vec![rows, columns] }
}

impl<To, T> Adapt<To> for DVector<T>
where
    To: Receive<T, Ix1>,
    T: Element + Scalar,
{
    type Adapted = To::Array;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        To::copy_from_host(ArrayView::from(self.as_slice()), cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<To::Array, AdaptError> {
        match cx.to().gpu() {
            Some(_) => self.adapt_with(cx),
            None => To::take_from_host(Array::from(Vec::from(self.data)), cx),
        }
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        To::plan_upload(ArrayView::from(self.as_slice()), plan);
    }

    fn is_at(&self, to: &To) -> bool {
        To::keeps() && to.gpu().is_none()
    }
}

/// Stays as it is, like a Rust array: its size is part of its type. A `Vec` of such matrices becomes an array of them.
impl<To, T, const ROWS: usize, const COLUMNS: usize> Adapt<To> for SMatrix<T, ROWS, COLUMNS>
where
    Self: Element,
    To: Receive<Self, Ix1>,
{
    type Adapted = Self;
    type Many = Merged;

    fn adapt_with(&self, _: &mut Context<'_, To>) -> Result<Self, AdaptError> {
        Ok(*self)
    }

    fn is_at(&self, _: &To) -> bool {
        true
    }
}

impl<T, const ROWS: usize, const COLUMNS: usize> PlainElement for SMatrix<T, ROWS, COLUMNS> where Self: Element
{}
