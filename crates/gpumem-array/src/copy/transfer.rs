//! [`Upload`] and [`Download`]: asynchronous copies that own their host memory.
//!
//! The device never accesses the program's pageable memory here. A copy goes through a block of the `Gpu`'s pinned pool, as large as the
//! copy. An upload fills the block and then queues the copy. A download queues the copy, and the poll or wait that returns the elements
//! takes them from the block. So nothing that a transfer owns has to outlive it. Dropping or forgetting a transfer at any time is sound:
//! arrays and blocks are freed in stream order, after the copy, and the pool reuses pinned memory only when all uses are complete. A pinned
//! array needs no such block: it is copied in place.
//!
//! The whole copy is queued at once, so it is ordered like any operation: a download returns the values at the time of the call, regardless
//! of later work. Streaming through small pinned blocks would stall the stream until the host has emptied them.

use crate::array::{GpuArray, GpuView, PinnedArray, UninitArray, readers};
use crate::element::Element;
use crate::element::kind::{DeviceLocal, HostAccess, Kind, Pinned};
use crate::error::{ArrayError, Rejected};
use crate::gpu::{Gpu, Place};
use crate::layout::{ElementOrder, Layout, same_shape};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use gpumem_pool::sys::text::debug_fields;
use gpumem_pool::{Completion, DeviceError};
use ndarray::{Array, Dimension, Ix1, ShapeBuilder};
use std::sync::Arc;

/// An upload in progress; see [`GpuArray::upload`]. A future that resolves with the array and the host memory.
///
/// Dropping it does not wait, and drops both. Polling it or waiting for it again returns [`ArrayError::TransferOver`].
#[must_use = "the array exists once the upload is awaited, or waited for"]
pub struct Upload<S: UploadSource, K: Kind = DeviceLocal> {
    parts: Option<(StartedUpload<S, K>, S)>,
    /// `None` if the copy was not queued.
    done: Option<Completion>,
}

/// A download in progress; see [`GpuView::download`]. A future that resolves with the host memory or an error. The error of
/// [`GpuView::download_into`] contains its target.
///
/// Dropping it does not wait, and drops the host memory. Polling it or waiting for it again returns [`ArrayError::TransferOver`].
#[must_use = "the elements are there once the download is awaited, or waited for"]
pub struct Download<B, E = ArrayError> {
    finish: Option<Finish<B, E>>,
    /// The error of each later poll.
    over: fn() -> E,
    /// `None` if the copy was not queued.
    done: Option<Completion>,
}

/// Returns the host memory of a download whose copy has this outcome.
type Finish<B, E> = Box<dyn FnOnce(Result<(), DeviceError>) -> Result<B, E> + Send + Sync>;

type ArrayOf<S, K> = GpuArray<<S as UploadSource>::Elem, <S as UploadSource>::Dim, K>;

/// The array that is being written, or the error if the copy was not queued.
type StartedUpload<S, K> = Result<ArrayOf<S, K>, ArrayError>;

/// The array of an upload, and the host memory.
pub type Uploaded<S, K> = (ArrayOf<S, K>, S);

/// Host memory that [`GpuArray::upload`] takes: `Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `Arc<Vec<T>>`, an `ndarray` array, a
/// [`PinnedArray`].
pub trait UploadSource {
    /// The element type.
    type Elem: Element;
    /// The dimension type of the array.
    type Dim: Dimension;
    #[doc(hidden)]
    fn stage(&self, gpu: &Gpu) -> Result<Staged<'_, Self::Elem, Self::Dim>, ArrayError>;
}

/// Host memory that [`GpuView::download_into`] takes: `Vec<T>`, or an array of the same shape that the host can access.
pub trait DownloadTarget<T, D>: sealed::DownloadStart<T, D> {}

mod sealed {
    use super::{Finish, GpuView, PinnedArray, Rejected};

    /// The elements in memory that a copy can be queued from.
    #[allow(clippy::large_enum_variant, reason = "it exists during one call")]
    pub enum Staged<'a, T, D> {
        Copy(PinnedArray<T, D>),
        InPlace(GpuView<'a, T, D>),
    }

    /// A download into host memory that has begun, or the error with that memory.
    pub(super) type Started<B> = Result<Finish<B, Rejected<Option<B>>>, Rejected<Option<B>>>;

    pub trait DownloadStart<T, D>: Sized + Send + Sync + 'static {
        fn start(self, source: &GpuView<'_, T, D>) -> Started<Self>;
    }
}

use sealed::Staged;

impl<T: Element, D: Dimension + 'static, K: Kind> GpuArray<T, D, K> {
    /// Starts to upload host memory, which the upload owns until it is complete. The copy is queued on the stream of `place`; no thread
    /// waits for it. This call copies the host memory to pinned memory, unless it is pinned already: a [`PinnedArray`] has the fastest
    /// upload.
    ///
    /// If the upload cannot start, awaiting it returns the error and your buffer.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{ArrayError, GpuArray};
    ///
    /// let steps = async {
    ///     let (x, host) = GpuArray::upload(&gpu, vec![1.0_f32, 2.0, 3.0]).await?;
    ///     let doubled = x.try_mul(2.0)?;
    ///     Ok::<_, ArrayError>(doubled.download_into(host).await?)
    /// };
    /// assert_eq!(pollster::block_on(steps)?, [2.0, 4.0, 6.0]); // any executor
    ///
    /// let (x, _) = GpuArray::upload(&gpu, vec![1_u8, 2]).wait()?; // without one: blocks this thread
    /// assert_eq!(x.download().wait()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The upload resolves with an error that contains the host memory:
    ///
    /// - [`ArrayError::Pool`] if an allocation or a driver call failed, if the context is lost, or if the stream captures.
    /// - [`ArrayError::Graph`] for the `Gpu` of a capture.
    pub fn upload<P, S>(place: &P, source: S) -> Upload<S, K>
    where
        P: Place<Kind = K> + ?Sized,
        S: UploadSource<Elem = T, Dim = D>,
    {
        let started = start_upload(place, &source);
        let done = started.is_ok().then(|| place.gpu().stream().completion());
        Upload { parts: Some((started, source)), done }
    }
}

readers! {
    Element;

    /// Starts to download the elements in row-major order. The copy is queued on the stream of the view; no thread waits for it. The result
    /// has the elements at the time of this call: work that is queued later does not change them, and the array may be dropped.
    ///
    /// If the download cannot start, awaiting it returns the error.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let mut x = GpuArray::from_elem(&gpu, 3, 1.0_f32)?;
    /// let before = x.download();
    /// x.fill(2.0)?;
    /// let after = x.download();
    /// drop(x);
    /// assert_eq!((before.wait()?, after.wait()?), (vec![1.0; 3], vec![2.0; 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The download resolves with an [`ArrayError`]:
    ///
    /// - [`ArrayError::WrongDevice`] if the view is used through a `Gpu` of another driver.
    /// - [`ArrayError::InvalidElement`] if the device wrote bytes that are not a valid `T`.
    /// - [`ArrayError::HostFull`] if the host is out of memory.
    /// - [`ArrayError::Pool`] if an allocation or a driver call failed, if the context is lost, or if the stream captures.
    /// - [`ArrayError::Graph`] for the `Gpu` or the arrays of a capture.
    pub fn download(view) -> Download<Vec<T>>
    where (D: 'static) {
        let gpu = view.gpu().clone();
        Download::start(view, || {
            let staged = staged(view, ElementOrder::Row)?;
            Ok(Box::new(move |outcome| {
                check(&gpu, outcome)?;
                let mut elements = Vec::new();
                replace(&mut elements, staged.as_slice()?)?;
                Ok(elements)
            }))
        })
    }

    /// Starts to download the elements in their shape; see [`GpuView::download`].
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::array;
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.download_array().wait()?, array![[1, 2, 3], [4, 5, 6]]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The download resolves with the errors of [`GpuView::download`]: [`ArrayError::InvalidElement`], [`ArrayError::HostFull`],
    /// [`ArrayError::Pool`], [`ArrayError::Graph`].
    pub fn download_array(view) -> Download<Array<T, D>>
    where (D: 'static) {
        let order = view.layout().order().unwrap_or(ElementOrder::Row);
        let gpu = view.gpu().clone();
        Download::start(view, || {
            let staged = staged(view, order)?;
            Ok(Box::new(move |outcome| {
                check(&gpu, outcome)?;
                let shape = staged.raw_dim().set_f(order == ElementOrder::Column);
                let mut elements = Vec::new();
                replace(&mut elements, staged.as_slice()?)?;
                Array::from_shape_vec(shape, elements)
                    .map_err(|_| ArrayError::TooManyElements { shape: staged.shape().to_vec() })
            }))
        })
    }

    /// Starts to download the elements into `target`, which the download owns until it is complete: a `Vec`, which is overwritten and whose
    /// capacity is reused, or a pinned or unified array of the same shape. A pinned array is written in place, which is the fastest
    /// download.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, PinnedArray};
    ///
    /// let x = GpuArray::from_elem(&gpu, (2, 2), 7_i32)?;
    /// let host = x.download_into(PinnedArray::zeros(&gpu.pinned(), (2, 2))?).wait()?;
    /// assert_eq!(host[[1, 1]], 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The download resolves with [`ArrayError::Shape`] if the shapes differ, and with the errors of [`GpuView::download`]:
    /// [`ArrayError::InvalidElement`], [`ArrayError::HostFull`], [`ArrayError::Pool`], [`ArrayError::Graph`]. The error contains `target`,
    /// whose elements may be partly overwritten.
    pub fn download_into[B: DownloadTarget<T, D>](view, target: B) -> Download<B, Rejected<Option<B>>>
    where (D: 'static) {
        let over = || Rejected::new(ArrayError::TransferOver, None);
        match view.gpu().check_runs(DOWNLOAD) {
            Ok(()) => Download::of(view, target.start(view), over),
            Err(error) => Download::of(view, Err(Rejected::new(error, Some(target))), over),
        }
    }
}

fn start_upload<P, S, K>(place: &P, source: &S) -> StartedUpload<S, K>
where
    P: Place<Kind = K> + ?Sized,
    S: UploadSource,
    K: Kind,
{
    let gpu = place.gpu();
    gpu.check_runs(UPLOAD)?;
    let staged = source.stage(gpu)?;
    let source = match &staged {
        Staged::Copy(copy) => copy.view(),
        Staged::InPlace(view) => view.on(gpu),
    };
    let order = source.layout().order().unwrap_or(ElementOrder::Row);
    // The pinned copy is dropped here; it is freed after the copy to the device.
    UninitArray::with_order(place, source.raw_dim(), order)?.assign(&source)
}

/// Copies host elements to new pinned memory.
fn stage<T: Element, D: Dimension>(
    gpu: &Gpu,
    dim: D,
    order: ElementOrder,
    elements: &[T],
) -> Result<PinnedArray<T, D>, ArrayError> {
    let staged = PinnedArray::<T, D>::unwritten(&gpu.pinned(), Layout::dense(dim, order, size_of::<T>())?)?;
    let size_bytes = size_of_val(elements);
    match staged.storage().host_ptr() {
        _ if size_bytes == 0 => {}
        // SAFETY: the block is as large as the elements, since `dim` has their number, and nothing else uses it: the host may write
        // new pinned memory at once.
        Some(to) => unsafe { to.as_ptr().copy_from_nonoverlapping(elements.as_ptr().cast(), size_bytes) },
        None => return Err(ArrayError::NoHostAccess { device: gpu.device().to_string() }),
    }
    Ok(staged)
}

/// Queues a copy to new pinned memory.
fn staged<T: Element, D: Dimension>(
    source: &GpuView<'_, T, D>,
    order: ElementOrder,
) -> Result<PinnedArray<T, D>, ArrayError> {
    UninitArray::with_order(&source.gpu().pinned(), source.raw_dim(), order)?.assign(source)
}

fn replace<T: Element>(target: &mut Vec<T>, elements: &[T]) -> Result<(), ArrayError> {
    target.clear();
    let full = |_| ArrayError::HostFull { size_bytes: size_of_val(elements) };
    target.try_reserve_exact(elements.len()).map_err(full)?;
    target.extend_from_slice(elements);
    Ok(())
}

fn check(gpu: &Gpu, outcome: Result<(), DeviceError>) -> Result<(), ArrayError> {
    outcome.map_err(|error| gpu.with_kernel_name(error.into()))
}

/// The target of a download, as a result or inside the error.
fn returned<B>(outcome: Result<(), ArrayError>, target: B) -> Result<B, Rejected<Option<B>>> {
    match outcome {
        Ok(()) => Ok(target),
        Err(error) => Err(Rejected::new(error, Some(target))),
    }
}

impl<S: UploadSource, K: Kind> Upload<S, K> {
    /// Waits on the host until the upload is complete: blocks this thread.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let (x, host) = GpuArray::upload(&gpu, vec![1, 2, 3]).wait()?;
    /// assert_eq!(x.to_vec()?, host);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::TooManyElements`], [`ArrayError::Pool`] or [`ArrayError::Graph`]; see [`GpuArray::upload`]. The error contains the
    /// host memory. [`ArrayError::TransferOver`], without it, if a poll has returned the result before.
    pub fn wait(mut self) -> Result<Uploaded<S, K>, Rejected<Option<S>>> {
        let outcome = self.done.take().map_or(Ok(()), Completion::wait);
        self.end(outcome)
    }

    /// True if the upload is complete or has failed, so that [`Upload::wait`] would not block. Does not wait.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        is_complete(&self.done)
    }

    fn end(&mut self, outcome: Result<(), DeviceError>) -> Result<Uploaded<S, K>, Rejected<Option<S>>> {
        let Some((started, source)) = self.parts.take() else {
            return Err(Rejected::new(ArrayError::TransferOver, None));
        };
        let finished = started.and_then(|array| check(array.gpu(), outcome).map(|()| array));
        match finished {
            Ok(array) => Ok((array, source)),
            Err(error) => Err(Rejected::new(error, Some(source))),
        }
    }
}

impl<B> Download<B> {
    fn start<T: Element, D: Dimension>(
        source: &GpuView<'_, T, D>,
        start: impl FnOnce() -> Result<Finish<B, ArrayError>, ArrayError>,
    ) -> Self {
        let started = source.gpu().check_runs(DOWNLOAD).and_then(|()| start());
        Self::of(source, started, || ArrayError::TransferOver)
    }
}

impl<B, E> Download<B, E> {
    fn of<T: Element, D: Dimension>(
        source: &GpuView<'_, T, D>,
        started: Result<Finish<B, E>, E>,
        over: fn() -> E,
    ) -> Self
    where
        E: Send + Sync + 'static,
    {
        match started {
            Ok(finish) => Self { finish: Some(finish), over, done: Some(source.gpu().stream().completion()) },
            Err(error) => Self { finish: Some(Box::new(|_| Err(error))), over, done: None },
        }
    }

    /// Waits on the host until the download is complete: blocks this thread.
    ///
    /// # Errors
    ///
    /// [`ArrayError::InvalidElement`], [`ArrayError::HostFull`], [`ArrayError::Pool`] or [`ArrayError::Graph`]; see
    /// [`GpuView::download`]. [`ArrayError::Shape`] after [`GpuView::download_into`] a target of another shape.
    /// [`ArrayError::TransferOver`] if a poll has returned the result before.
    pub fn wait(mut self) -> Result<B, E> {
        let outcome = self.done.take().map_or(Ok(()), Completion::wait);
        self.end(outcome)
    }

    /// True if the download is complete or has failed, so that [`Download::wait`] would not block. Does not wait.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        is_complete(&self.done)
    }

    fn end(&mut self, outcome: Result<(), DeviceError>) -> Result<B, E> {
        match self.finish.take() {
            Some(finish) => finish(outcome),
            None => Err((self.over)()),
        }
    }
}

fn is_complete(done: &Option<Completion>) -> bool {
    done.as_ref().is_none_or(|done| done.is_complete().unwrap_or(true))
}

/// Polls the completion of a copy, and drops it with its outcome.
fn poll_done(done: &mut Option<Completion>, context: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
    let Some(pending) = done else { return Poll::Ready(Ok(())) };
    let outcome = Pin::new(pending).poll(context);
    if outcome.is_ready() {
        *done = None;
    }
    outcome
}

impl<S: UploadSource, K: Kind> Future for Upload<S, K> {
    type Output = Result<Uploaded<S, K>, Rejected<Option<S>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match poll_done(&mut self.done, context) {
            Poll::Ready(outcome) => Poll::Ready(self.end(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<B, E> Future for Download<B, E> {
    type Output = Result<B, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match poll_done(&mut self.done, context) {
            Poll::Ready(outcome) => Poll::Ready(self.end(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Nothing in them is pinned.
impl<S: UploadSource, K: Kind> Unpin for Upload<S, K> {}

/// Nothing in it is pinned.
impl<B, E> Unpin for Download<B, E> {}

macro_rules! sources {
    ($($(#[$doc:meta])* $source:ty;)*) => {
        $(
            impl<T: Element> UploadSource for $source {
                type Elem = T;
                type Dim = Ix1;

                fn stage(&self, gpu: &Gpu) -> Result<Staged<'_, T, Ix1>, ArrayError> {
                    stage(gpu, ndarray::Dim(self.len()), ElementOrder::Row, self).map(Staged::Copy)
                }
            }
        )*
    };
}

sources! {
    Vec<T>;
    Box<[T]>;
    Arc<[T]>;
    Arc<Vec<T>>;
}

impl<T: Element, D: Dimension> UploadSource for Array<T, D> {
    type Elem = T;
    type Dim = D;

    fn stage(&self, gpu: &Gpu) -> Result<Staged<'_, T, D>, ArrayError> {
        let dim = self.raw_dim();
        let staged = match (self.as_slice(), self.t().as_slice()) {
            (Some(elements), _) => stage(gpu, dim, ElementOrder::Row, elements),
            (None, Some(elements)) => stage(gpu, dim, ElementOrder::Column, elements),
            (None, None) => stage(gpu, dim, ElementOrder::Row, &self.iter().copied().collect::<Vec<T>>()),
        };
        staged.map(Staged::Copy)
    }
}

impl<T: Element, D: Dimension> UploadSource for GpuArray<T, D, Pinned> {
    type Elem = T;
    type Dim = D;

    fn stage(&self, _gpu: &Gpu) -> Result<Staged<'_, T, D>, ArrayError> {
        Ok(Staged::InPlace(self.view()))
    }
}

impl<T: Element, D: Dimension + 'static> DownloadTarget<T, D> for Vec<T> {}

impl<T: Element, D: Dimension + 'static> sealed::DownloadStart<T, D> for Vec<T> {
    fn start(mut self, source: &GpuView<'_, T, D>) -> sealed::Started<Self> {
        let (staged, gpu) = match staged(source, ElementOrder::Row) {
            Ok(staged) => (staged, source.gpu().clone()),
            Err(error) => return Err(Rejected::new(error, Some(self))),
        };
        Ok(Box::new(move |outcome| {
            let copied = check(&gpu, outcome).and_then(|()| replace(&mut self, staged.as_slice()?));
            returned(copied, self)
        }))
    }
}

impl<T: Element, D: Dimension + 'static, K: HostAccess> DownloadTarget<T, D> for GpuArray<T, D, K> {}

impl<T: Element, D: Dimension + 'static, K: HostAccess> sealed::DownloadStart<T, D> for GpuArray<T, D, K> {
    fn start(mut self, source: &GpuView<'_, T, D>) -> sealed::Started<Self> {
        let gpu = source.gpu().clone();
        let queued = same_shape("download", self.layout(), source.layout())
            .and_then(|()| self.on_mut(&gpu).assign(source))
            // Between devices without a link, the stream of the target's own `Gpu` copies: the download resolves after it.
            .and_then(|()| self.view().reads().order(&gpu, DOWNLOAD));
        match queued {
            Ok(()) => Ok(Box::new(move |outcome| {
                // Refuses invalid elements.
                let checked = check(&gpu, outcome).and_then(|()| self.as_slice().map(drop));
                returned(checked, self)
            })),
            Err(error) => Err(Rejected::new(error, Some(self))),
        }
    }
}

debug_fields!([S: UploadSource, K: Kind] Upload<S, K>, it, done: it.done);

debug_fields!([B, E] Download<B, E>, it, done: it.done);

/// The names of the copies in errors.
const UPLOAD: &str = "an asynchronous upload";
const DOWNLOAD: &str = "an asynchronous download";
