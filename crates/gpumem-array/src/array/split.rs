//! Disjoint parts of an array as separate views: `split_at` and `multi_slice_mut`.
//!
//! Mutable parts are tracked separately, so work on them overlaps on any streams and threads.

use crate::array::{GpuArray, GpuView, GpuViewMut};
use crate::element::Element;
use crate::error::ArrayError;
use crate::kind::Kind;
use ndarray::{Axis, Dimension, SliceArg};

impl<'a, T: Element, D: Dimension> GpuView<'a, T, D> {
    /// The elements before `index` of an axis, and the rest.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or `index` exceeds its length.
    pub fn split_at(&self, axis: Axis, index: usize) -> Result<(Self, Self), ArrayError> {
        let (left, right) = self.layout().clone().split_at(axis, index)?;
        Ok((self.with_layout(left), self.with_layout(right)))
    }
}

impl<'a, T: Element, D: Dimension> GpuViewMut<'a, T, D> {
    /// The elements before `index` of an axis, and the rest, as mutable views that can be used at the same time.
    ///
    /// Work on the two views overlaps, along any axis. Only views with gaps at three or more distances may wait for each other, for example
    /// every second element along each of three axes.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::Axis};
    ///
    /// let other = gpu.fork()?;
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, 4)?;
    /// let (mut left, right) = x.split_at_mut(Axis(0), 2)?;
    /// left.fill(1)?;
    /// right.on_mut(&other).fill(2)?; // does not wait for `left`
    /// assert_eq!(x.to_vec()?, [1, 1, 2, 2]); // waits for both
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or `index` exceeds its length.
    pub fn split_at_mut(self, axis: Axis, index: usize) -> Result<(Self, Self), ArrayError> {
        let (left, right) = self.layout().clone().split_at(axis, index)?;
        self.storage().split();
        Ok((self.part(left), self.part(right)))
    }

    /// Mutable views of several disjoint parts, which can be used at the same time. Work on them overlaps, as with
    /// [`GpuViewMut::split_at_mut`].
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::s};
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, 6)?;
    /// let [mut first, mut last] = x.multi_slice_mut([s![..2], s![4..]])?;
    /// first.fill(1)?;
    /// last.fill(2)?;
    /// assert_eq!(x.to_vec()?, [1, 1, 0, 0, 2, 2]);
    /// assert!(x.multi_slice_mut([s![..3], s![2..]]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Overlap`] if two slices have common elements. [`ArrayError::Slice`] if a bound or index is outside its axis, if
    /// a step is zero, or if the number of axes differs.
    pub fn multi_slice_mut<I: SliceArg<D>, const COUNT: usize>(
        self,
        slices: [I; COUNT],
    ) -> Result<[GpuViewMut<'a, T, I::OutDim>; COUNT], ArrayError> {
        let mut views = Vec::with_capacity(COUNT);
        for (second, slice) in slices.iter().enumerate() {
            let layout = self.layout().slice(slice)?;
            for (first, other) in slices[..second].iter().enumerate() {
                if !self.layout().is_disjoint(other, slice) {
                    return Err(ArrayError::Overlap { first, second });
                }
            }
            views.push(self.part(layout));
        }
        self.storage().split();
        views.try_into().map_err(|_| ArrayError::Overlap { first: 0, second: 0 })
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// The elements before `index` of an axis, and the rest.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::Axis;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3, 4])?;
    /// let (left, right) = x.split_at(Axis(0), 1)?;
    /// assert_eq!((left.to_vec()?, right.to_vec()?), (vec![1], vec![2, 3, 4]));
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or `index` exceeds its length.
    #[allow(clippy::type_complexity, reason = "a pair of views")]
    pub fn split_at(
        &self,
        axis: Axis,
        index: usize,
    ) -> Result<(GpuView<'_, T, D>, GpuView<'_, T, D>), ArrayError> {
        self.view().split_at(axis, index)
    }

    /// The elements before `index` of an axis, and the rest, as mutable views that can be used at the same time; see
    /// [`GpuViewMut::split_at_mut`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Slice`] if the axis does not exist or `index` exceeds its length.
    #[allow(clippy::type_complexity, reason = "a pair of views")]
    pub fn split_at_mut(
        &mut self,
        axis: Axis,
        index: usize,
    ) -> Result<(GpuViewMut<'_, T, D>, GpuViewMut<'_, T, D>), ArrayError> {
        self.view_mut().split_at_mut(axis, index)
    }

    /// Mutable views of several disjoint parts; see [`GpuViewMut::multi_slice_mut`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Overlap`] and [`ArrayError::Slice`]; see [`GpuViewMut::multi_slice_mut`].
    pub fn multi_slice_mut<I: SliceArg<D>, const COUNT: usize>(
        &mut self,
        slices: [I; COUNT],
    ) -> Result<[GpuViewMut<'_, T, I::OutDim>; COUNT], ArrayError> {
        self.view_mut().multi_slice_mut(slices)
    }
}
