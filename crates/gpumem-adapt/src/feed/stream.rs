//! Feeds in asynchronous programs.

use super::{Feed, FeedTarget, PREFETCH, Uploads};
use crate::adapt::Adapt;
use crate::error::AdaptError;
use crate::target::Target;
use core::error::Error;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use futures_core::Stream;
use gpumem_array::Gpu;

/// The iterator as a stream. Each poll returns an item, and copies into pinned memory. A poll that uploads an item larger than all pinned
/// buffers together waits for copies of the device; see [`Gpu::set_staging`].
impl<I, V, To> Stream for Feed<I, V, To>
where
    Self: Iterator + Unpin,
    V: Adapt<To>,
    To: Target,
{
    type Item = <Self as Iterator>::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.next())
    }
}

/// Uploads the values of a stream ahead of their use, like [`feed`](super::feed) for an iterator. See
/// [`Feeder::prefetch`](super::Feeder::prefetch) for `prefetch`.
///
/// # Errors
///
/// [`AdaptError::Array`] if the stream of the uploads cannot be created.
pub fn feed_stream<S, V, E, To>(items: S, place: &To) -> Result<FeedStream<S, V, To::Owned>, AdaptError>
where
    S: Stream<Item = Result<V, E>> + Unpin,
    E: Into<Box<dyn Error + Send + Sync>>,
    To: FeedTarget,
    V: Adapt<To::Owned>,
{
    Ok(FeedStream { items: Some(items), uploads: Uploads::new(place)?, prefetch: PREFETCH })
}

/// A stream of values that are uploaded ahead of their use; see [`feed_stream`].
pub struct FeedStream<S, V: Adapt<To>, To: Target = Gpu> {
    /// `None` after the last item.
    items: Option<S>,
    uploads: Uploads<V, To>,
    prefetch: usize,
}

impl<S, V: Adapt<To>, To: Target> FeedStream<S, V, To> {
    /// Sets the maximum number of items ahead; see [`Feeder::prefetch`](super::Feeder::prefetch).
    #[must_use]
    pub fn prefetch(self, count: usize) -> Self {
        Self { prefetch: count.max(1), ..self }
    }
}

/// Nothing in it is pinned: the source is `Unpin`.
impl<S: Unpin, V: Adapt<To>, To: Target> Unpin for FeedStream<S, V, To> {}

impl<S, V, E, To> Stream for FeedStream<S, V, To>
where
    S: Stream<Item = Result<V, E>> + Unpin,
    E: Into<Box<dyn Error + Send + Sync>>,
    To: Target,
    V: Adapt<To>,
{
    type Item = Result<V::Adapted, AdaptError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let is_marked = this.uploads.mark();
        let mut is_pending = false;
        while this.uploads.wants(this.prefetch) {
            let item = match (this.uploads.delayed.take(), &mut this.items) {
                (Some(item), _) => Ok(item),
                (None, None) => break,
                (None, Some(items)) => match Pin::new(items).poll_next(context) {
                    Poll::Ready(Some(item)) => item,
                    Poll::Ready(None) => {
                        this.items = None;
                        break;
                    }
                    Poll::Pending => {
                        is_pending = true;
                        break;
                    }
                },
            };
            if !this.uploads.add(item) {
                break;
            }
        }
        match this.uploads.ready.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if is_pending => {
                // The consumer got no item, so the next poll replaces this mark.
                if is_marked {
                    this.uploads.marks.swap(0, 1);
                }
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }
}

impl<S, V: Adapt<To>, To: Target> fmt::Debug for FeedStream<S, V, To> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedStream").field("ready", &self.uploads.ready.len()).finish_non_exhaustive()
    }
}
