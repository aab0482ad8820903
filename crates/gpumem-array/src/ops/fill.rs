//! Sets every element to one value.
//!
//! The driver's memset handles values of 1, 2 and 4 bytes, contiguous or in rows at a pitch. Kernels handle the rest.

use crate::array::{GpuArray, GpuViewMut, UninitArray, writers};
use crate::copy::{self, strided};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::ArrayError;
use crate::gpu::Place;
use crate::kernel::parameters::PatternBytes;
use crate::kernel::table::{Kernel, Unit};
use crate::launch::OwnLaunch;
use crate::layout::ElementOrder;
use crate::layout::plan::{Form, LayoutPlan};
use crate::ops::blocks;
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
    /// call fails; for elements of 8 bytes and odd sizes [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`.
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
    /// [`ArrayError::Pool`] if a driver call fails; for elements of 8 bytes and odd sizes [`ArrayError::NoSuchKernel`] on the
    /// simulator without the feature `sim`. On an error the memory is freed.
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
    /// Elements of up to 1024 bytes are set on the device. A larger element is uploaded once and copied on the device.
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
    /// - [`ArrayError::NoSuchKernel`] on the simulator without the feature `sim`, for elements of 8 bytes and more, and for
    ///   elements that are neither contiguous nor rows of at least 64 bytes at one pitch.
    pub fn fill(&mut self, value: T) -> Result<(), ArrayError> {
        let mut target = self.view_mut();
        // An element in the program's host memory may have any address that its type allows.
        let is_aligned =
            |pattern: &FillPattern| target.storage().address().is_multiple_of(pattern.width as u64);
        match FillPattern::of(&value).filter(is_aligned) {
            Some(pattern) => target.set(pattern),
            None => target.repeat(value),
        }
    }
}

impl<T: Element, D: Dimension> GpuViewMut<'_, T, D> {
    /// Sets all elements to a value whose size differs from that of a store.
    fn repeat(&mut self, value: T) -> Result<(), ArrayError> {
        let gpu = self.gpu();
        self.storage().share(gpu, "fill")?;
        let plan = LayoutPlan::fill(self.layout(), size_of::<T>(), self.storage().address());
        let to = copy::at(self.storage(), plan.to);
        let size_bytes = match (&plan.form, Repeated::of(&value, to)) {
            (Form::Nothing, _) => return Ok(()),
            (Form::Run { size_bytes }, Some(repeated)) => {
                return self.queue_repeated(to, *size_bytes, &repeated);
            }
            (_, repeated) => repeated.map(|_| size_of::<T>()),
        };
        let one = UninitArray::with_order(gpu, Ix0(), ElementOrder::Row)?;
        let one = match size_bytes {
            Some(_) => one.fill(value)?,
            None => one.copy_from_slice(&[value])?,
        };
        copy::copy(self, &one.view().broadcast(self.raw_dim())?)
    }

    fn queue_repeated(&self, to: u64, size_bytes: usize, repeated: &Repeated) -> Result<(), ArrayError> {
        let unit = repeated.unit;
        // A thread divides once, and then stores several times.
        let grid = [blocks(size_bytes.div_ceil(unit * STORES), 256), 1, 1];
        let launch = OwnLaunch::new(self.gpu(), Kernel::Pattern(Unit::of(unit)), grid, [256, 1, 1])?;
        let launch = launch.array((self.writes(), to)).value(size_bytes as u64);
        launch.value((repeated.len / unit) as u64).large(&repeated.bytes).queue("fill")
    }

    /// Sets every byte to zero.
    pub(crate) fn zero(&mut self) -> Result<(), ArrayError> {
        self.set(FillPattern { width: 1, bytes: [0; 16] })
    }

    /// Sets all elements, whose size and addresses are multiples of the pattern's width.
    fn set(&mut self, pattern: FillPattern) -> Result<(), ArrayError> {
        let gpu = self.gpu();
        self.storage().share(gpu, "fill")?;
        let plan = LayoutPlan::fill(self.layout(), size_of::<T>(), self.storage().address());
        let (driver, to) = (gpu.device().driver(), copy::at(self.storage(), plan.to));
        match &plan.form {
            Form::Nothing => return Ok(()),
            Form::Run { size_bytes } if pattern.width <= 4 => {
                let count = size_bytes / pattern.width;
                self.writes().order(gpu, "fill")?;
                return queue(gpu, [self.writes()], |stream| {
                    // SAFETY: the patterns lie within live memory of this device, aligned to their size; the stream has been ordered
                    // after what conflicts.
                    unsafe {
                        match pattern.width {
                            1 => driver.cuMemsetD8Async(to, pattern.bytes[0], count, stream),
                            2 => driver.cuMemsetD16Async(to, pattern.low() as u16, count, stream),
                            _ => driver.cuMemsetD32Async(to, pattern.low() as u32, count, stream),
                        }
                    }
                });
            }
            Form::Pitched(rows) if rows.depth == 1 && pattern.width <= 4 => {
                let (pitch, width, height) = (rows.to_pitch, rows.width / pattern.width, rows.height);
                self.writes().order(gpu, "fill")?;
                return queue(gpu, [self.writes()], |stream| {
                    // SAFETY: the rows are those of the view, in a live block of this device; the stream has been ordered after
                    // what conflicts.
                    unsafe {
                        match pattern.width {
                            1 => driver.cuMemsetD2D8Async(to, pitch, pattern.bytes[0], width, height, stream),
                            2 => driver.cuMemsetD2D16Async(
                                to,
                                pitch,
                                pattern.low() as u16,
                                width,
                                height,
                                stream,
                            ),
                            _ => driver.cuMemsetD2D32Async(
                                to,
                                pitch,
                                pattern.low() as u32,
                                width,
                                height,
                                stream,
                            ),
                        }
                    }
                });
            }
            Form::Run { .. } | Form::Pitched(_) | Form::Strided(_) => {}
        }
        let Some(rows) = plan.into_strided() else { return Ok(()) };
        strided::fill(gpu, &rows, (self.writes(), to), pattern.words())?.queue("fill")
    }
}

const STORES: usize = 8;

/// A value, repeated until its bytes are a whole number of stores.
struct Repeated {
    bytes: PatternBytes,
    /// The number of bytes that repeat.
    len: usize,
    /// The size of a store: 1, 2, 4, 8 or 16.
    unit: usize,
}

impl Repeated {
    const BYTES_MAX: usize = size_of::<PatternBytes>();

    /// Repeats a value for the widest stores that the address allows. Returns `None` for a value that is too large.
    fn of<T: Element>(value: &T, address: u64) -> Option<Self> {
        let value = bytemuck::bytes_of(value);
        let widest = 1 << address.trailing_zeros().min(4);
        let units = core::iter::successors(Some(widest), |unit| (*unit > 1).then_some(unit / 2));
        // The least common multiple: the unit is a power of two.
        let len =
            |unit: usize| value.len() * (unit >> value.len().trailing_zeros().min(unit.trailing_zeros()));
        let unit = { units }.find(|unit| len(*unit) <= Self::BYTES_MAX)?;
        let mut bytes: PatternBytes = [0; size_of::<PatternBytes>() / 16];
        let places =
            bytemuck::cast_slice_mut::<u128, u8>(&mut bytes)[..len(unit)].chunks_exact_mut(value.len());
        places.for_each(|place| place.copy_from_slice(value));
        Some(Self { bytes, len: len(unit), unit })
    }
}

/// A value, repeated to the size of the widest store.
#[derive(Clone, Copy, Debug)]
struct FillPattern {
    /// The size that repeats: 1, 2, 4, 8 or 16.
    width: usize,
    bytes: [u8; 16],
}

impl FillPattern {
    /// `None` for a value of another size, unless all of its bytes are equal.
    fn of<T: Element>(value: &T) -> Option<Self> {
        let value = bytemuck::bytes_of(value);
        let (first, size) = (*value.first()?, value.len());
        if !matches!(size, 1 | 2 | 4) && value.iter().all(|byte| *byte == first) {
            return Some(Self { width: 1, bytes: [first; 16] });
        }
        let mut bytes = [0; 16];
        if !16_usize.is_multiple_of(size) {
            return None;
        }
        bytes.chunks_exact_mut(size).for_each(|chunk| chunk.copy_from_slice(value));
        Some(Self { width: size, bytes })
    }

    fn words(&self) -> [u64; 2] {
        bytemuck::cast(self.bytes)
    }

    fn low(&self) -> u64 {
        self.words()[0]
    }
}
