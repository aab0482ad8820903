//! Uses of arrays by other libraries: guards with an address and a stream, and arrays over blocks of a pool.
//!
//! A guard orders its stream when it is created and records the use when it is dropped. It borrows the array, so nothing else uses the
//! elements in a conflicting way in between. A program may leak it ([`core::mem::forget`]). So the use is recorded at creation, as all work
//! that is on the stream whenever another stream waits. The drop narrows that to the work so far. Freeing the memory waits for the stream
//! in any case.

use crate::array::{GpuArray, GpuView, GpuViewMut, UninitArray, parts, readers};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::{ArrayError, Rejected};
use crate::gpu::recording::CaptureRecording;
use crate::gpu::{Gpu, check_device};
use crate::layout::{ElementOrder, Layout};
#[cfg(any(feature = "cudarc", feature = "dlpack"))]
use crate::storage::Access;
use crate::storage::{ArrayStorage, Use};
use core::fmt;
use gpumem_pool::{Block, CaptureError, DeviceError, KeptBy, MemoryKind, PoolError, Stream};
use ndarray::{Dimension, IntoDimension};

/// A stream on which another library uses arrays: a [`Stream`], or the stream of a [`Gpu`] or a capture.
pub trait OnStream {
    /// The stream.
    fn stream(&self) -> &Stream;
    #[doc(hidden)]
    fn capture(&self) -> sealed::RecordingRef<'_>;
}

pub(crate) mod sealed {
    /// The recording of the capture on the stream.
    pub struct RecordingRef<'a>(pub(crate) Option<&'a super::CaptureRecording>);
}

impl OnStream for Stream {
    fn stream(&self) -> &Stream {
        self
    }
    fn capture(&self) -> sealed::RecordingRef<'_> {
        sealed::RecordingRef(None)
    }
}

impl OnStream for Gpu {
    fn stream(&self) -> &Stream {
        self.stream()
    }
    fn capture(&self) -> sealed::RecordingRef<'_> {
        sealed::RecordingRef(self.recording())
    }
}

/// Elements that another library reads on a stream; see [`GpuView::read_on`].
#[must_use = "the use ends when the guard is dropped"]
pub struct ReadOn<'a, T, D> {
    view: GpuView<'a, T, D>,
    open: OpenUse<'a>,
}

/// Elements that another library writes on a stream; see [`GpuViewMut::write_on`].
#[must_use = "the use ends when the guard is dropped"]
pub struct WriteOn<'a, T, D> {
    view: GpuViewMut<'a, T, D>,
    open: OpenUse<'a>,
}

/// A use that ends with the drop.
struct OpenUse<'a> {
    array: Use<'a>,
    stream: &'a Stream,
    /// False in a capture: its launches record the use.
    is_recorded: bool,
}

impl<'a> OpenUse<'a> {
    fn new<S: OnStream + ?Sized>(
        array: Use<'a>,
        on: &'a S,
        operation: &'static str,
    ) -> Result<Self, ArrayError> {
        let (stream, recording) = (on.stream(), on.capture().0);
        check_device(stream.device(), array.storage().device())?;
        array.order_on(stream, recording, operation)?;
        let is_recorded = array.begin_foreign(stream, recording, (KeptBy::Guard, true))?;
        Ok(Self { array, stream, is_recorded })
    }
}

impl Drop for OpenUse<'_> {
    fn drop(&mut self) {
        if self.is_recorded {
            self.array.end_foreign(self.stream);
        }
    }
}

readers! {
    Element;

    /// Lends the elements to another library, such as cuBLAS or C code, which reads them on a stream. The stream waits, on the device, for
    /// the writes so far. Later writes on other streams wait for everything that is queued on it until the guard is dropped.
    ///
    /// With the `Gpu` of a capture, the use becomes part of the graph, and each launch takes the array as an argument.
    ///
    /// ```
    /// use gpumem_array::{Gpu, GpuArray, pool::{Device, Pool, Stream}};
    /// use gpumem_sim::SimConfig;
    ///
    /// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
    /// let x = GpuArray::from_slice(&gpu, &[1_u32, 2, 3])?;
    /// let mut y = GpuArray::<u32, _>::zeros(&gpu, 3)?;
    /// let stream = Stream::new(gpu.device())?; // the other library's stream
    ///
    /// let (source, target) = (x.read_on(&stream)?, y.write_on(&stream)?);
    /// let _bound = gpu.device().bind()?;
    /// // SAFETY: both arrays have three elements, and the guards have ordered the stream.
    /// unsafe {
    ///     let (to, from) = (target.address(), source.address());
    ///     gpu.device().driver().cuMemcpyDtoDAsync_v2(to, from, 12, target.stream().raw())?;
    /// }
    /// drop((source, target));
    /// assert_eq!(y.to_vec()?, [1, 2, 3]); // waits for the copy, on the device
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the stream is on another device.
    /// - [`ArrayError::Graph`] if the stream is in a capture that `Capture::begin` began, or if the array was made in a capture.
    /// - [`ArrayError::Pool`] if the stream is retired or belongs to another thread, or if a driver call fails.
    pub fn read_on[S: OnStream + ?Sized]('v view, stream: &'v S) -> Result<ReadOn<'v, T, D>, ArrayError> {
        let view: GpuView<'v, T, D> = view.clone();
        let open = OpenUse::new(view.reads(), stream, "read_on")?;
        Ok(ReadOn { view, open })
    }
}

parts! {
    /// Lends the elements to another library, which writes them on a stream and may read them. The stream waits, on the device, for all
    /// uses so far. Later uses on other streams wait for everything that is queued on it until the guard is dropped.
    ///
    /// The library must write valid values of `T`; downloads check them.
    ///
    /// # Errors
    ///
    /// [`ArrayError::WrongDevice`], [`ArrayError::Graph`] and [`ArrayError::Pool`]; see [`GpuView::read_on`].
    pub fn write_on[S: OnStream + ?Sized](view, stream: &'v S) -> Result<WriteOn<'v, T, D>, ArrayError> {
        let open = OpenUse::new(view.writes(), stream, "write_on")?;
        Ok(WriteOn { view, open })
    }
}

macro_rules! guard {
    ($guard:ident) => {
        impl<T: Element, D: Dimension> $guard<'_, T, D> {
            /// The device address of the first element; zero if there are no elements.
            #[must_use]
            pub fn address(&self) -> u64 {
                self.view.pinned_address()
            }

            /// The address of the first element as a pointer. Only the device may access the memory.
            #[must_use]
            pub fn as_ptr(&self) -> *const T {
                core::ptr::with_exposed_provenance(self.address() as usize)
            }

            /// The stream.
            #[must_use]
            pub fn stream(&self) -> &Stream {
                self.open.stream
            }

            /// The lengths of the axes.
            #[must_use]
            pub fn shape(&self) -> &[usize] {
                self.view.shape()
            }

            /// The steps of the axes, in elements.
            #[must_use]
            pub fn strides(&self) -> Vec<isize> {
                self.view.layout().strides().collect()
            }
        }

        impl<T: Element, D: Dimension> fmt::Debug for $guard<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("view", &self.view)
                    .field("stream", &self.open.stream)
                    .finish_non_exhaustive()
            }
        }
    };
}
guard!(ReadOn);
guard!(WriteOn);

impl<T: Element, D: Dimension> WriteOn<'_, T, D> {
    /// The address of the first element as a pointer. Only the device may access the memory.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.as_ptr().cast_mut()
    }
}

impl<T: Element, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// An array over a pool block that another part of the program has allocated. Its bytes count as uninitialised; if another library has
    /// filled them, call [`UninitArray::assume_init`]. The stream of `gpu` first waits, on the device, for work on the block's owner stream
    /// and on the streams recorded as its users ([`Block::record_use`]).
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let block = gpu.pool().alloc(12, gpu.stream())?;
    /// let array: GpuArray<f32, _> = GpuArray::from_block(&gpu, block, 3)?.fill(1.5)?;
    /// assert_eq!(array.sum()?.into_scalar()?, 4.5);
    /// let block = array.into_block()?;
    /// assert_eq!(block.size_bytes(), 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::WrongDevice`] if the block is on another device than `gpu`.
    /// - [`ArrayError::UnsuitableBlock`] if the block is smaller than the elements, or of another kind than `K`. Blocks of every kind
    ///   can back arrays of kind [`DeviceLocal`](crate::element::kind::DeviceLocal).
    /// - [`ArrayError::TooManyElements`] if the shape exceeds the address space.
    /// - [`ArrayError::Pool`] if the stream is retired or belongs to another thread, or if a driver call fails.
    /// - [`ArrayError::Pool`] or [`ArrayError::Graph`] in a capture, and after it for its `Gpu`.
    ///
    /// The error contains the block.
    pub fn from_block<S>(gpu: &Gpu, block: Block, shape: S) -> Result<UninitArray<T, D, K>, Rejected<Block>>
    where
        S: IntoDimension<Dim = D>,
    {
        match Self::fit_block(gpu, &block, shape.into_dimension()) {
            Ok(layout) => Ok(UninitArray::over(gpu, ArrayStorage::of_block(block, gpu), layout)),
            Err(error) => Err(Rejected::new(error, block)),
        }
    }

    /// The layout of an array over a block. Makes the stream of `gpu` wait for the block's uses so far.
    fn fit_block(gpu: &Gpu, block: &Block, dim: D) -> Result<Layout<D>, ArrayError> {
        check_runs(gpu, "an array over a block")?;
        check_device(gpu.device(), block.device())?;
        let layout = Layout::dense(dim, ElementOrder::Row, size_of::<T>())?;
        // `Layout` has checked that the product fits.
        let needed_bytes = (layout.len() * size_of::<T>()) as u64;
        let (kind, size_bytes) = (block.kind(), block.size_bytes());
        let is_of_kind = K::MEMORY == MemoryKind::Device || K::MEMORY == kind;
        if size_bytes < needed_bytes || !is_of_kind {
            let (kind, expected) = (kind.to_string(), K::NAME);
            return Err(ArrayError::UnsuitableBlock { size_bytes, needed_bytes, kind, expected });
        }
        ArrayStorage::order_block(block, gpu)?;
        Ok(layout)
    }

    /// Returns the memory of the array, for other parts of the program. The stream of the array's `Gpu` first waits, on the device, for all
    /// uses of the array, so work queued there may use the block. The elements are contiguous from the start of the block.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1_u32, 2, 3])?;
    /// let address = x.address();
    /// let block = x.into_block()?;
    /// assert_eq!(block.address(), address); // the same memory
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Graph`] if the array was made in a capture; [`ArrayError::NoBlock`] if its memory grows in place.
    /// - [`ArrayError::Pool`] if the stream is retired or belongs to another thread, or if a driver call fails.
    /// - [`ArrayError::Pool`] or [`ArrayError::Graph`] in a capture, and after it for its `Gpu`.
    ///
    /// The error contains the array.
    pub fn into_block(self) -> Result<Block, Rejected<Self>> {
        let gpu = self.gpu().clone();
        let ordered = check_runs(&gpu, TAKE_BLOCK).and_then(|()| self.writes().order(&gpu, TAKE_BLOCK));
        if let Err(error) = ordered {
            return Err(Rejected::new(error, self));
        }
        let (storage, layout) = self.into_parts();
        match storage.into_block(gpu.stream()) {
            Ok(block) => {
                block.record_use(gpu.stream());
                Ok(block)
            }
            Err((error, storage)) => Err(Rejected::new(error, Self::over(&gpu, storage, layout))),
        }
    }
}

/// The name of the operation in errors.
const TAKE_BLOCK: &str = "taking the block of an array";

/// Returns an error for the `Gpu` of a capture, even after it has ended: work queued there would not run.
pub(crate) fn check_runs(gpu: &Gpu, operation: &'static str) -> Result<(), ArrayError> {
    match gpu.recording() {
        Some(recording) => {
            recording.check()?;
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { operation })).into())
        }
        None => gpu.check_runs(operation),
    }
}

/// Orders a stream for any use of a whole array by another library, until [`Use::end_foreign`]. For `held` see
/// [`Use::begin_foreign`].
#[cfg(any(feature = "cudarc", feature = "dlpack"))]
pub(crate) fn lend_to(
    storage: &ArrayStorage,
    stream: &Stream,
    operation: &'static str,
    held: (KeptBy, bool),
) -> Result<(), ArrayError> {
    check_device(stream.device(), storage.device())?;
    let whole = Use::whole(storage, Access::Write);
    whole.order_on(stream, None, operation)?;
    whole.begin_foreign(stream, None, held)?;
    Ok(())
}
