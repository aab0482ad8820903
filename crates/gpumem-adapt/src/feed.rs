//! [`Feed`]: values of the host, uploaded ahead of their use.
//!
//! Uploads run on a separate stream, so they overlap with the work on earlier batches. The host does not wait for an upload to end: the
//! consumer's stream waits on the device when it first uses the batch. The memory of a batch is reused in the order of the streams. So a
//! marker is recorded in the consumer's stream before each upload: the upload waits at most for the work before the marker, not for work
//! that is queued later.
//!
//! The calling thread uploads: it fills the pinned buffers of [`Gpu::set_staging`], whose size bounds the pinned memory. If a batch is
//! larger than all buffers together, the thread waits for the copies that use them. No other thread reads the source, so a feed may borrow its data, and can be forgotten, dropped or kept at any time.

mod batches;
mod fit;
mod groups;
mod permutation;
#[cfg(feature = "futures")]
mod stream;

pub use batches::{BatchItems, Batches, Rows, Source, batches};
pub use fit::{Fit, FitAttempt, fit_batch_size, halve_on_out_of_memory};
pub use groups::Groups;
#[cfg(feature = "futures")]
pub use stream::{FeedStream, feed_stream};

use crate::adapt::{Adapt, adapt_for};
use crate::error::{AdaptError, ran_out_of_memory};
use crate::policy::Unchanged;
use crate::storage::Storage;
use crate::target::{Destination, Target};
use core::convert::Infallible;
use core::error::Error;
use core::fmt;
use core::iter::{Fuse, FusedIterator};
use gpumem_array::kind::Kind;
use gpumem_array::pool::{Event, Stream};
use gpumem_array::{ArrayError, Gpu, Memory};
use std::collections::VecDeque;

/// Begins to upload the values of an iterator ahead of their use; see [`Feeder::on`].
///
/// ```
/// use gpumem_adapt::{Adapt, Host, feed};
/// # use gpumem_adapt::array::{Gpu, pool::{Device, Pool}};
/// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// # let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let batches = (0..3).map(|number| (vec![number as f32; 1000], number));
/// for batch in feed(batches).prefetch(2).on(&gpu)? {
///     let (values, number) = batch?; // an array on the GPU, and a number
///     assert_eq!(values.sum()?.into_scalar()?, 1000.0 * number as f32);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn feed<I: IntoIterator>(items: I) -> Feeder<Infallibly<I::IntoIter>> {
    Feeder { items: Infallibly(items.into_iter()), prefetch: PREFETCH, group_size: 1 }
}

/// Like [`feed`], for a source that can fail. Its errors are returned in the order of the items.
pub fn try_feed<I, V, E>(items: I) -> Feeder<I::IntoIter>
where
    I: IntoIterator<Item = Result<V, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    Feeder { items: items.into_iter(), prefetch: PREFETCH, group_size: 1 }
}

/// The options of a [`Feed`].
#[must_use = "nothing is uploaded before `on`"]
#[derive(Clone, Debug)]
pub struct Feeder<I> {
    items: I,
    prefetch: usize,
    /// The number of items of each value; 0 is an error of [`Feeder::on`].
    group_size: usize,
}

/// The items of an iterator, none of which is an error.
#[derive(Clone, Debug)]
pub struct Infallibly<I>(I);

impl<I: Iterator> Iterator for Infallibly<I> {
    type Item = Result<I::Item, Infallible>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Ok)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<I: ExactSizeIterator> ExactSizeIterator for Infallibly<I> {}

impl<I> Feeder<I> {
    /// Sets the maximum number of items that are on the device or on their way, in addition to the consumer's current item: 2 by default,
    /// at least 1. One item is always ahead; more are uploaded only while the device is behind by the work on a whole item. An upload that
    /// finds the device full waits until the consumer has returned memory.
    pub fn prefetch(self, count: usize) -> Self {
        Self { prefetch: count.max(1), ..self }
    }

    /// The iterator over the values at `place`: a `Gpu`, `gpu.unified()`, `gpu.pinned()` or a [`Destination`]. Items whose arrays are all
    /// there already are passed through.
    ///
    /// ```
    /// use gpumem_adapt::array::{UnifiedArray, ndarray::Ix1};
    /// use gpumem_adapt::{Destination, F32, feed};
    /// # use gpumem_adapt::array::{Gpu, pool::{Device, Pool}};
    /// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// # let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let unified = Destination::new(&gpu).unified().elements::<F32>();
    /// for batch in feed([vec![1.0_f64; 1000], vec![2.0; 1000]]).on(&unified)? {
    ///     let batch: UnifiedArray<f32, Ix1> = batch?;
    ///     assert!(batch[0] > 0.5);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`AdaptError::Array`] if the stream of the uploads cannot be created.
    /// - [`AdaptError::Custom`] after [`Feeder::batch_size`] with 0.
    pub fn on<To, V, E>(self, place: &To) -> Result<Feed<I, V, To::Owned>, AdaptError>
    where
        To: FeedTarget,
        I: Iterator<Item = Result<V, E>>,
        E: Into<Box<dyn Error + Send + Sync>>,
        V: Adapt<To::Owned>,
    {
        if self.group_size == 0 {
            return Err(AdaptError::custom(EMPTY_BATCHES));
        }
        Ok(Feed { items: self.items.fuse(), uploads: Uploads::new(place)?, prefetch: self.prefetch })
    }
}

/// A place that a feed uploads to: a `Gpu`, its memory of some kind, or a [`Destination`].
pub trait FeedTarget: Target {
    /// The place as an owned value.
    type Owned: Target;

    /// The same place with the stream of another `Gpu`.
    #[doc(hidden)]
    fn on_stream_of(&self, gpu: &Gpu) -> Self::Owned;
}

impl FeedTarget for Gpu {
    type Owned = Self;

    fn on_stream_of(&self, gpu: &Gpu) -> Self {
        gpu.clone()
    }
}

impl<K: Kind + Storage> FeedTarget for Memory<'_, K> {
    type Owned = Destination<K, Unchanged>;

    fn on_stream_of(&self, gpu: &Gpu) -> Destination<K, Unchanged> {
        Destination::new(gpu).memory()
    }
}

impl<K: Kind + Storage, P: 'static> FeedTarget for Destination<K, P> {
    type Owned = Self;

    fn on_stream_of(&self, gpu: &Gpu) -> Self {
        let packed_below_bytes = self.packed_below_bytes().unwrap_or(0);
        Destination::new(gpu).packed_below(packed_below_bytes).memory().elements()
    }
}

/// An iterator over values that are uploaded ahead of their use. See [`feed`], [`try_feed`] and [`batches`].
///
/// At most [`Feeder::prefetch`] items are on the device or on their way, in addition to those that the consumer keeps. Each item is a
/// `Result`; after an error the iterator continues with the next item of the source.
pub struct Feed<I, V: Adapt<To>, To: Target = Gpu> {
    items: Fuse<I>,
    uploads: Uploads<V, To>,
    prefetch: usize,
}

/// The uploads of a feed.
struct Uploads<V: Adapt<To>, To: Target> {
    /// The place with the stream of the consumer.
    place: To,
    /// The place with the stream of the uploads.
    copies: To,
    consumer: Gpu,
    upload_stream: Stream,
    ready: VecDeque<Result<V::Adapted, AdaptError>>,
    /// Marks behind all work that the consumer had queued at its last two calls, the latest last.
    marks: [Event; 2],
    /// An item for which the device had no room.
    delayed: Option<V>,
}

impl<V, To> Uploads<V, To>
where
    To: Target,
    V: Adapt<To>,
{
    fn new(place: &impl FeedTarget<Owned = To>) -> Result<Self, AdaptError> {
        let Some(gpu) = place.gpu() else {
            return Err(AdaptError::custom("a feed uploads to a GPU: pass a `Gpu` or a `Destination`"));
        };
        let copies = gpu.fork()?;
        Ok(Self {
            consumer: gpu.clone(),
            upload_stream: copies.stream().clone(),
            place: place.on_stream_of(gpu),
            copies: place.on_stream_of(&copies),
            ready: VecDeque::new(),
            marks: [
                Event::new(gpu.device()).map_err(ArrayError::from)?,
                Event::new(gpu.device()).map_err(ArrayError::from)?,
            ],
            delayed: None,
        })
    }

    /// Marks the end of the work on the consumer's stream. Returns true if a mark was recorded.
    fn mark(&mut self) -> bool {
        let stream = self.consumer.stream();
        // A failure is reported by the next call. In a capture there is nothing to wait for.
        let is_marked = stream.mark().unwrap_or(false);
        if is_marked {
            self.marks.swap(0, 1);
            let _ = self.marks[1].record(stream);
        }
        is_marked
    }

    /// True to upload another item before the consumer gets the next one. One item is always ahead, so that an upload does not need the
    /// memory of the item in use. The device may become idle during a further upload, because the same thread queues the work. So another
    /// one starts only while work from before the consumer's previous call still runs: the work queued since then keeps the device busy.
    fn wants(&self, prefetch: usize) -> bool {
        let is_wanted = match self.ready.len() {
            0 | 1 => true,
            count => count <= prefetch && !self.marks[0].is_complete().unwrap_or(true),
        };
        is_wanted && self.ready.back().is_none_or(Result::is_ok)
    }

    /// Uploads an item, or queues an error instead. False if the item has to wait for memory.
    fn add<E: Into<Box<dyn Error + Send + Sync>>>(&mut self, item: Result<V, E>) -> bool {
        let item = match item {
            Ok(item) => item,
            Err(error) => {
                let error = match error.into().downcast::<AdaptError>() {
                    Ok(error) => *error,
                    Err(error) => AdaptError::Custom(error),
                };
                self.ready.push_back(Err(error));
                return true;
            }
        };
        let moved = match item.is_at(&self.place) {
            true => item.into_adapted(&self.place),
            false => match self.upload(&item) {
                Err(error) if ran_out_of_memory(&error) && !self.ready.is_empty() => {
                    self.delayed = Some(item);
                    return false;
                }
                copied => copied,
            },
        };
        // The consumer waits for this item, not for those that are uploaded after it.
        let _ = self.upload_stream.mark();
        self.ready.push_back(moved);
        true
    }

    /// In a pool that spills, an upload that is further ahead than the next one takes free memory only: what it would push out has to return.
    fn upload(&self, item: &V) -> Result<V::Adapted, AdaptError> {
        let upload = || adapt_for(item, &self.copies, &self.consumer);
        match self.ready.len() {
            0 | 1 => upload(),
            _ => self.consumer.pool().without_moves(upload),
        }
    }
}

impl<I, V, E, To> Iterator for Feed<I, V, To>
where
    To: Target,
    I: Iterator<Item = Result<V, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
    V: Adapt<To>,
{
    type Item = Result<V::Adapted, AdaptError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.uploads.mark();
        while self.uploads.wants(self.prefetch) {
            let Some(item) = self.uploads.delayed.take().map(Ok).or_else(|| self.items.next()) else { break };
            if !self.uploads.add(item) {
                break;
            }
        }
        self.uploads.ready.pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let here = self.uploads.ready.len() + usize::from(self.uploads.delayed.is_some());
        let (least, most) = self.items.size_hint();
        (least.saturating_add(here), most.and_then(|most| most.checked_add(here)))
    }
}

impl<I, V, E, To> FusedIterator for Feed<I, V, To>
where
    To: Target,
    I: Iterator<Item = Result<V, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
    V: Adapt<To>,
{
}

/// The number of items that are left, if the source knows it.
impl<I, V, E, To> ExactSizeIterator for Feed<I, V, To>
where
    To: Target,
    I: ExactSizeIterator<Item = Result<V, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
    V: Adapt<To>,
{
}

impl<I, V: Adapt<To>, To: Target> fmt::Debug for Feed<I, V, To> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("ready", &self.uploads.ready.len())
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

const EMPTY_BATCHES: &str = "batches of 0 rows hold no data set: set `batch_size` to at least 1";
/// One batch is used while the next is uploaded, and one more absorbs varying times.
const PREFETCH: usize = 2;
