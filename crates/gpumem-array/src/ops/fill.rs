//! Sets every element to one value.
//!
//! The driver's own memset takes values of 1, 2 and 4 bytes; a kernel takes those of 8.

use crate::array::{GpuArray, GpuViewMut, UninitArray};
use crate::copy;
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Place;
use crate::kernel::library::{launch, parameter};
use crate::kind::Kind;
use crate::ops::blocks;
use crate::storage::{Access, queue};
use ndarray::{Dimension, IntoDimension};

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Creates an array with all bytes zero: the number zero, or `false`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space, [`ArrayError::Pool`] if the allocation or a driver call
    /// fails.
    pub fn zeros<P, S>(place: &P, shape: S) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        let mut array = Self::uninit(place, shape)?.into_unwritten();
        array.view_mut().zero()?;
        Ok(array)
    }

    /// Creates an array with every element set to `value`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space; [`ArrayError::Pool`] if the allocation or a driver call
    /// fails; for elements of 8 bytes [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn from_elem<P, S>(place: &P, shape: S, value: T) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        Self::uninit(place, shape)?.fill(value)
    }

    /// Sets every element to `value`; see [`GpuViewMut::fill`].
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails; for elements of 8 bytes [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn fill(&mut self, value: T) -> Result<(), ArrayError> {
        self.view_mut().fill(value)
    }
}

impl<T: Element, D: Dimension, K: Kind> UninitArray<T, D, K> {
    /// Sets every element to `value`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails; for elements of 8 bytes [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`. On an
    /// error the memory is freed.
    pub fn fill(self, value: T) -> Result<GpuArray<T, D, K>, ArrayError> {
        let mut array = self.into_unwritten();
        array.view_mut().fill(value)?;
        Ok(array)
    }
}

impl<T: Element, D: Dimension> GpuViewMut<'_, T, D> {
    /// Sets every element to `value`.
    ///
    /// Elements of 1, 2, 4 and 8 bytes are set on the device; others are uploaded from the host.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NotContiguous`] if the view is not contiguous.
    /// - [`ArrayError::WrongDevice`] if the view is used through a `Gpu` on another device.
    /// - [`ArrayError::Pool`] if a driver call fails, or if elements are uploaded while the stream captures.
    /// - For elements of 8 bytes [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
    pub fn fill(&mut self, value: T) -> Result<(), ArrayError> {
        let pattern = match *bytemuck::bytes_of(&value) {
            [a] => Pattern::One(a),
            [a, b] => Pattern::Two(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => Pattern::Four(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => Pattern::Eight(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => return copy::upload(self, &vec![value; self.len()]),
        };
        self.set(pattern, self.len())
    }

    /// Sets every byte to zero.
    pub(crate) fn zero(&mut self) -> Result<(), ArrayError> {
        self.set(Pattern::One(0), self.len() * size_of::<T>())
    }

    /// Sets the first `count` patterns, which lie within the view.
    fn set(&mut self, pattern: Pattern, count: usize) -> Result<(), ArrayError> {
        if self.layout().order().is_none() {
            return Err(self.layout().not_contiguous("fill", "fill whole rows (slices of the first axis)"));
        }
        let gpu = self.gpu();
        gpu.check(self.storage().device())?;
        if count == 0 {
            return Ok(());
        }
        let (driver, address) = (gpu.device().driver(), self.address());
        let wide = if let Pattern::Eight(_) = pattern { Some(gpu.library().fill()?) } else { None };
        self.storage().order(gpu, Access::Write)?;
        queue(gpu, [self.storage()], |stream| {
            // SAFETY: the patterns lie within a live block of this device, aligned to their size as elements are; the stream has
            // been ordered after what conflicts. The kernel's parameters are an address, a value and a count of 8 bytes.
            unsafe {
                match (pattern, wide) {
                    (Pattern::One(value), _) => driver.cuMemsetD8Async(address, value, count, stream),
                    (Pattern::Two(value), _) => driver.cuMemsetD16Async(address, value, count, stream),
                    (Pattern::Four(value), _) => driver.cuMemsetD32Async(address, value, count, stream),
                    (Pattern::Eight(value), Some(kernel)) => {
                        let n = count as u64;
                        let mut parameters = [parameter(&address), parameter(&value), parameter(&n)];
                        launch(kernel, stream, ([blocks(count, 256), 1, 1], [256, 1, 1], 0), &mut parameters)
                    }
                    (Pattern::Eight(_), None) => Ok(()),
                }
            }
        })
    }
}

/// A value by its width in bytes.
enum Pattern {
    One(u8),
    Two(u16),
    Four(u32),
    Eight(u64),
}
