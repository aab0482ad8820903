//! Elements by their indices on an axis.

use crate::array::{GpuArray, readers};
use crate::element::Element;
use crate::error::ArrayError;
use crate::kernel::table::{Kernel, Unit};
use crate::launch::OwnLaunch;
use crate::layout::{ElementOrder, Layout};
use crate::ops::blocks;
use ndarray::{Axis, Dimension, RemoveAxis};

readers! {
    Element;

    /// Copies the elements at these indices of an axis, in their order, on the device. An index may occur several times. The result is in
    /// row-major order. Uploads the indices: 8 bytes each.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Axis, array}};
    ///
    /// let rows = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4], [5, 6]])?;
    /// assert_eq!(rows.select(Axis(0), &[2, 0])?.to_array()?, array![[5, 6], [1, 2]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Slice`] if the axis does not exist, or an index is outside it.
    /// - [`ArrayError::TooManyElements`] if the result exceeds the address space.
    /// - [`ArrayError::NoPeerAccess`] if the view is used through a device that has no link to its memory.
    /// - [`ArrayError::WrongDevice`] if it is used through another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails, or if the stream captures.
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn select(view, axis: Axis, indices: &[usize]) -> Result<GpuArray<T, D>, ArrayError>
    where (D: RemoveAxis) {
        let len = view.shape().get(axis.index()).copied().unwrap_or(0);
        let outside = indices.iter().find(|index| **index >= len);
        let wrong = outside.map(|index| format!("index {index}"));
        let wrong = wrong.or_else(|| (axis.index() >= view.ndim()).then(|| "indices".to_owned()));
        if let Some(slice) = wrong {
            return Err(ArrayError::Slice { slice, axis: axis.index(), shape: view.shape().to_vec() });
        }
        let gpu = view.gpu();
        view.storage().share(gpu, "select")?;
        let mut dim = view.raw_dim();
        dim[axis.index()] = indices.len();
        let result = GpuArray::unwritten(gpu, Layout::dense(dim, ElementOrder::Row, size_of::<T>())?)?;
        if result.is_empty() {
            return Ok(result);
        }
        let source = view.dense(ElementOrder::Row)?;
        let source = source.view();
        let indices: Vec<u64> = indices.iter().map(|index| *index as u64).collect();
        let indices = GpuArray::from_slice(gpu, &indices)?;
        let product = |lens: &[usize]| lens.iter().product::<usize>();
        let (outer, inner) = (&view.shape()[..axis.index()], &view.shape()[axis.index() + 1..]);
        let row_bytes = product(inner) * size_of::<T>();
        let unit = [16, 8, 4, 2]
            .into_iter()
            .find(|unit| row_bytes.is_multiple_of(*unit) && source.address().is_multiple_of(*unit as u64));
        let unit = unit.unwrap_or(1);
        let (width, outer) = (row_bytes / unit, product(outer));
        let block_count = blocks(result.len() * size_of::<T>() / unit, THREADS);
        let launch =
            OwnLaunch::new(gpu, Kernel::Gather(Unit::of(unit)), [block_count, 1, 1], [THREADS as u32, 1, 1])?;
        let launch = launch.write(&result).read(&source).read(&indices.view());
        let sizes = [indices.len(), len, width, outer].map(|size| size as u64);
        sizes.into_iter().fold(launch, OwnLaunch::value).queue("select")?;
        Ok(result)
    }
}

const THREADS: usize = 256;
