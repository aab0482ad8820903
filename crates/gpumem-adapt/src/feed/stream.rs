//! Feeds in asynchronous programs.

use super::{Feed, PREFETCH, Uploads};
use crate::adapt::Adapt;
use crate::error::AdaptError;
use core::error::Error;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use futures_core::Stream;
use gpumem_array::Gpu;
use std::collections::VecDeque;

/// The iterator as a stream. Each poll returns an item, and copies into pinned memory. A poll that uploads an item which is larger than all
/// pinned buffers together waits for copies of the device; see [`Gpu::set_staging`].
impl<I, V> Stream for Feed<I, V>
where
    Self: Iterator + Unpin,
    V: Adapt<Gpu>,
{
    type Item = <Self as Iterator>::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.next())
    }
}

/// Uploads the values of a stream ahead of their use, as [`feed`](super::feed) does with those of an iterator. `prefetch` is described at
/// [`Feeder::prefetch`](super::Feeder::prefetch).
///
/// # Errors
///
/// [`AdaptError::Array`] if the stream of the uploads cannot be created.
pub fn feed_stream<S, V, E>(items: S, gpu: &Gpu) -> Result<FeedStream<S, V>, AdaptError>
where
    S: Stream<Item = Result<V, E>> + Unpin,
    E: Into<Box<dyn Error + Send + Sync>>,
    V: Adapt<Gpu>,
    V::Adapted: Adapt<Gpu, Adapted = V::Adapted>,
{
    let uploads = Uploads { gpu: gpu.clone(), copies: gpu.fork()?, ready: VecDeque::new(), delayed: None };
    Ok(FeedStream { items: Some(items), uploads, prefetch: PREFETCH })
}

/// A stream of values that are uploaded ahead of their use; see [`feed_stream`].
pub struct FeedStream<S, V: Adapt<Gpu>> {
    /// `None` after the last item.
    items: Option<S>,
    uploads: Uploads<V>,
    prefetch: usize,
}

impl<S, V: Adapt<Gpu>> FeedStream<S, V> {
    /// Sets how many items are on the device or on their way at a time, beside the one that the consumer has: 2 by default, at least 1.
    #[must_use]
    pub fn prefetch(self, count: usize) -> Self {
        Self { prefetch: count.max(1), ..self }
    }
}

/// Nothing in it is pinned: the source is `Unpin`.
impl<S: Unpin, V: Adapt<Gpu>> Unpin for FeedStream<S, V> {}

impl<S, V, E> Stream for FeedStream<S, V>
where
    S: Stream<Item = Result<V, E>> + Unpin,
    E: Into<Box<dyn Error + Send + Sync>>,
    V: Adapt<Gpu>,
    V::Adapted: Adapt<Gpu, Adapted = V::Adapted>,
{
    type Item = Result<V::Adapted, AdaptError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.uploads.mark();
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
            None if is_pending => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

impl<S, V: Adapt<Gpu>> fmt::Debug for FeedStream<S, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedStream").field("ready", &self.uploads.ready.len()).finish_non_exhaustive()
    }
}
