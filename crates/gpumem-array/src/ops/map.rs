//! Functions of each element: closures on the host, for host-accessible memory.

use crate::array::{GpuArray, UninitArray};
use crate::element::Element;
use crate::error::ArrayError;
use crate::kind::{HostAccess, Kind};
use crate::layout::ElementOrder;
use ndarray::Dimension;

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Calls a function on each element, on the host, and returns the results in memory of the same kind. Waits like
    /// [`GpuArray::as_slice`]. The calls are in memory order.
    ///
    /// For device memory, [`GpuArray::map_kernel`] calls your own kernel.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu.unified(), &[1.5_f32, -2.5])?;
    /// assert_eq!(x.mapv(|x| x > 0.0)?.to_vec()?, [true, false]);
    /// x.mapv_inplace(f32::abs)?;
    /// assert_eq!(x.to_vec()?, [1.5, 2.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoHostAccess`], [`ArrayError::InvalidElement`] and [`ArrayError::Pool`], with the causes that
    /// [`GpuArray::as_slice`] lists; [`ArrayError::Pool`] if the allocation or the upload fails.
    pub fn mapv<U: Element>(&self, function: impl FnMut(T) -> U) -> Result<GpuArray<U, D, K>, ArrayError>
    where
        K: HostAccess,
    {
        let mapped: Vec<U> = self.as_slice()?.iter().copied().map(function).collect();
        let order = self.layout().order().unwrap_or(ElementOrder::Row);
        UninitArray::with_order(&self.gpu().memory::<K>(), self.raw_dim(), order)?.copy_from_slice(&mapped)
    }

    /// Replaces each element by the result of a function, on the host. Waits like [`GpuArray::as_mut_slice`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_slice(&gpu.unified(), &[1.0_f32, 4.0])?;
    /// x.mapv_inplace(f32::sqrt)?;
    /// assert_eq!(x.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoHostAccess`], [`ArrayError::InvalidElement`] and [`ArrayError::Pool`], with the causes that
    /// [`GpuArray::as_slice`] lists.
    pub fn mapv_inplace(&mut self, mut function: impl FnMut(T) -> T) -> Result<(), ArrayError>
    where
        K: HostAccess,
    {
        self.as_mut_slice()?.iter_mut().for_each(|element| *element = function(*element));
        Ok(())
    }
}
