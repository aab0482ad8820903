//! [`concatenate`] and [`stack`]: several arrays as one.

use crate::array::{GpuArray, GpuView, UninitArray};
use crate::element::Element;
use crate::error::ArrayError;
use crate::layout::ElementOrder;
use ndarray::{Axis, Dimension, RemoveAxis, Slice};

/// Joins views along an existing axis, on the device: one copy per view. The result belongs to the `Gpu` of the first view.
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::{concatenate, ndarray::{Axis, array}};
///
/// let (a, b) = (GpuArray::from_array(&gpu, &array![[1, 2]])?, GpuArray::from_array(&gpu, &array![[3, 4], [5, 6]])?);
/// assert_eq!(concatenate(Axis(0), &[a.view(), b.view()])?.to_array()?, array![[1, 2], [3, 4], [5, 6]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// - [`ArrayError::Shape`] if there are no views, or if their lengths differ on another axis.
/// - [`ArrayError::Slice`] if the axis does not exist.
/// - [`ArrayError::WrongDevice`] if a view belongs to another driver than the first.
/// - [`ArrayError::TooManyElements`] if the result exceeds the address space.
/// - [`ArrayError::Pool`] if the allocation or a driver call fails.
pub fn concatenate<T: Element, D: RemoveAxis>(
    axis: Axis,
    views: &[GpuView<'_, T, D>],
) -> Result<GpuArray<T, D>, ArrayError> {
    let refuse = |left: &[usize], right: &[usize], expected| ArrayError::Shape {
        operation: "concatenate",
        left: left.to_vec(),
        right: right.to_vec(),
        expected,
    };
    let Some(first) = views.first() else { return Err(refuse(&[], &[], "at least one view is needed")) };
    let mut dim = first.raw_dim();
    if axis.index() >= dim.ndim() {
        let (axis, shape) = (axis.index(), first.shape().to_vec());
        return Err(ArrayError::Slice { slice: "concatenation".into(), axis, shape });
    }
    dim.slice_mut()[axis.index()] = 0;
    for view in views {
        let mut shape = view.raw_dim();
        let len = core::mem::take(&mut shape.slice_mut()[axis.index()]);
        let total = &mut dim.slice_mut()[axis.index()];
        *total =
            total.checked_add(len).ok_or(ArrayError::TooManyElements { shape: view.shape().to_vec() })?;
        let mut others = dim.clone();
        others.slice_mut()[axis.index()] = 0;
        if others != shape {
            return Err(refuse(first.shape(), view.shape(), "the lengths of all other axes must be equal"));
        }
    }
    let mut joined = UninitArray::with_order(first.gpu(), dim, ElementOrder::Row)?.into_unwritten();
    let mut start = 0;
    for view in views {
        let end = start + view.shape()[axis.index()].cast_signed();
        joined.slice_axis_mut(axis, Slice::from(start..end))?.assign(view)?;
        start = end;
    }
    Ok(joined)
}

/// Joins views of one shape along a new axis, on the device: one copy per view. The result belongs to the `Gpu` of the first view.
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::{ndarray::{Axis, array}, stack};
///
/// let (a, b) = (GpuArray::from_slice(&gpu, &[1, 2])?, GpuArray::from_slice(&gpu, &[3, 4])?);
/// assert_eq!(stack(Axis(1), &[a.view(), b.view()])?.to_array()?, array![[1, 3], [2, 4]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The errors of [`concatenate`]: [`ArrayError::Shape`], [`ArrayError::Slice`], [`ArrayError::WrongDevice`], [`ArrayError::TooManyElements`],
/// [`ArrayError::Pool`].
pub fn stack<T: Element, D: Dimension>(
    axis: Axis,
    views: &[GpuView<'_, T, D>],
) -> Result<GpuArray<T, D::Larger>, ArrayError>
where
    D::Larger: RemoveAxis,
{
    let views = views.iter().map(|view| view.insert_axis(axis)).collect::<Result<Vec<_>, _>>()?;
    concatenate(axis, &views)
}
