//! Sets every element to one value.
//!
//! The driver's memset handles values of 1, 2 and 4 bytes, contiguous or in rows at a pitch. The rest are expressions: of one number, or of
//! one for each word of an element.

use crate::array::{GpuArray, GpuViewMut, UninitArray, writers};
use crate::copy;
use crate::element::kind::Kind;
use crate::element::{Element, ScalarType};
use crate::error::ArrayError;
use crate::expression::evaluate::{ExpressionMemory, queue_recorded, with_memory};
use crate::expression::node::layout_axes;
use crate::expression::tape::Tape;
use crate::gpu::Place;
use crate::layout::ElementOrder;
use crate::layout::plan::{Form, LayoutPlan};
use crate::storage::queue;
use ndarray::{Dimension, IntoDimension, Ix0};

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// Creates an array with all bytes zero: the number zero, or `false`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::zeros(&gpu, (2, 3))?;
    /// assert_eq!(x.to_vec()?, [0.0; 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space, [`ArrayError::Pool`] if the allocation or a driver
    /// call fails.
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
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_elem(&gpu, (2, 3), 1.5_f32)?;
    /// assert_eq!(x.to_vec()?, [1.5; 6]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`] if the shape exceeds the address space; [`ArrayError::Pool`] if the allocation or a driver
    /// call fails.
    pub fn from_elem<P, S>(place: &P, shape: S, value: T) -> Result<Self, ArrayError>
    where
        P: Place<Kind = K> + ?Sized,
        S: IntoDimension<Dim = D>,
    {
        Self::uninit(place, shape)?.fill(value)
    }
}

impl<T: Element, D: Dimension, K: Kind> UninitArray<T, D, K> {
    /// Sets every element to `value`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::<f32, _>::uninit(&gpu, 3)?.fill(1.5)?;
    /// assert_eq!(x.to_vec()?, [1.5; 3]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails. On an error the memory is freed.
    pub fn fill(self, value: T) -> Result<GpuArray<T, D, K>, ArrayError> {
        let mut array = self.into_unwritten();
        array.view_mut().fill(value)?;
        Ok(array)
    }
}

writers! {
    Element;

    /// Sets every element to `value`.
    ///
    /// Elements of up to 16 words are set on the device: of 128 bytes, if they are a multiple of eight. A larger element is uploaded once and
    /// copied on the device.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::s;
    ///
    /// let mut x = GpuArray::<i32, _>::zeros(&gpu, 4)?;
    /// x.slice_mut(s![..;2])?.fill(7)?;
    /// assert_eq!(x.to_vec()?, [7, 0, 7, 0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::NoPeerAccess`] if the view is on another device than the operation, without a link to it.
    /// - [`ArrayError::WrongDevice`] if the view belongs to another driver.
    /// - [`ArrayError::Pool`] if a driver call fails, or if an element is uploaded while the stream captures.
    pub fn fill(&mut self, value: T) -> Result<(), ArrayError> {
        let mut target = self.view_mut();
        match target.set(bytemuck::bytes_of(&value)) {
            // Of words or axes.
            Err(ArrayError::TooManyArguments { .. } | ArrayError::ExpressionSize { .. }) => {
                target.repeat(value)
            }
            result => result,
        }
    }
}

impl<T: Element, D: Dimension> GpuViewMut<'_, T, D> {
    /// Sets every byte to zero.
    pub(crate) fn zero(&mut self) -> Result<(), ArrayError> {
        self.set(bytemuck::bytes_of(&T::zeroed()))
    }

    /// Sets all elements to these bytes of one.
    fn set(&mut self, value: &[u8]) -> Result<(), ArrayError> {
        self.storage().share(self.gpu(), "fill")?;
        let plan = LayoutPlan::fill(self.layout(), size_of::<T>(), self.storage().planned());
        // An element in the program's host memory may have any address that its type allows.
        let address = copy::at(self.storage(), plan.to);
        let pattern = FillPattern::of(value).filter(|pattern| address.is_multiple_of(pattern.width as u64));
        match (&plan.form, pattern) {
            (Form::Nothing, _) => Ok(()),
            (Form::Run { size_bytes }, Some(pattern)) => {
                self.set_rows(address, pattern, [*size_bytes, *size_bytes, 1])
            }
            (Form::Pitched(rows), Some(pattern)) if rows.depth == 1 => {
                self.set_rows(address, pattern, [rows.to_pitch, rows.width, rows.height])
            }
            _ => self.set_words(value),
        }
    }

    /// Sets rows of bytes by the driver: their pitch, width and number.
    fn set_rows(
        &self,
        to: u64,
        pattern: FillPattern,
        [pitch, width, height]: [usize; 3],
    ) -> Result<(), ArrayError> {
        let (gpu, FillPattern { width: size, value }) = (self.gpu(), pattern);
        let (driver, width) = (gpu.device().driver(), width / size);
        let writes = self.writes();
        writes.order(gpu, "fill")?;
        queue(gpu, [writes], |stream, placed| {
            let to = writes.at(to, placed);
            // SAFETY: the rows are those of the view, within live memory of this device and aligned to the pattern; the stream has been
            // ordered after what conflicts.
            unsafe {
                match (size, height) {
                    (1, 1) => driver.cuMemsetD8Async(to, value as u8, width, stream),
                    (2, 1) => driver.cuMemsetD16Async(to, value as u16, width, stream),
                    (_, 1) => driver.cuMemsetD32Async(to, value, width, stream),
                    (1, _) => driver.cuMemsetD2D8Async(to, pitch, value as u8, width, height, stream),
                    (2, _) => driver.cuMemsetD2D16Async(to, pitch, value as u16, width, height, stream),
                    _ => driver.cuMemsetD2D32Async(to, pitch, value, width, height, stream),
                }
            }
        })
    }

    /// Sets all elements by a kernel: a target for each word of an element, or one for all if the words are equal.
    fn set_words(&self, value: &[u8]) -> Result<(), ArrayError> {
        let (gpu, address) = (self.gpu(), self.planned());
        let size = 1 << (address | size_of::<T>() as u64 | 8).trailing_zeros();
        let of = ScalarType::unsigned(size);
        let count = value.len() / size;
        let words = value.chunks(size).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        let is_one = words.clone().zip(words.clone().skip(1)).all(|(word, next)| word == next);
        let (target_count, inner) = if is_one { (1, count) } else { (count, 1) };
        let axes = || layout_axes(self.layout(), size_of::<T>()).chain([(inner, size.cast_signed())]);
        with_memory(|ExpressionMemory { recording, notes, plans, .. }| {
            let mut tape = Tape::new("fill", recording);
            for (index, word) in words.take(target_count).enumerate() {
                tape.target(of, address + (index * size) as u64, axes());
                tape.number(of, word, index as u64);
            }
            let targets = (0..target_count).map(|index| address + (index * size) as u64);
            queue_recorded(gpu, tape, notes, plans, (self.writes(), targets))
        })
    }

    /// Uploads an element, and copies it to all others.
    fn repeat(&mut self, value: T) -> Result<(), ArrayError> {
        let one = UninitArray::with_order(self.gpu(), Ix0(), ElementOrder::Row)?.copy_from_slice(&[value])?;
        copy::copy(self, &one.view().broadcast(self.raw_dim())?)
    }
}

/// A value that the driver sets.
#[derive(Clone, Copy, Debug)]
struct FillPattern {
    /// Its size: 1, 2 or 4.
    width: usize,
    value: u32,
}

impl FillPattern {
    /// `None` for an element of another size, unless all of its bytes are equal.
    fn of(element: &[u8]) -> Option<Self> {
        let mut bytes = [0; 4];
        let width = match element.split_first()? {
            (first, rest) if rest.iter().all(|byte| byte == first) => 1,
            _ if matches!(element.len(), 2 | 4) => element.len(),
            _ => return None,
        };
        bytes[..width].copy_from_slice(&element[..width]);
        Some(Self { width, value: u32::from_le_bytes(bytes) })
    }
}
