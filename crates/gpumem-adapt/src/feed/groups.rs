//! [`Groups`]: items of an iterator, several at a time.

use super::Feeder;
use core::fmt;

/// The items of an iterator in `Vec`s; see [`Feeder::batch_size`].
pub struct Groups<I, E> {
    items: I,
    group_size: usize,
    is_last_omitted: bool,
    /// An error that comes after the items of the last group.
    error: Option<E>,
}

impl<I> Feeder<I> {
    /// Collects items into a `Vec` of this length, which is uploaded as a whole: numbers become an array, other values a `Vec` of adapted
    /// values. The last `Vec` can be shorter, and so can one before an error of the source. 0 is an error of [`Feeder::on`].
    ///
    /// ```
    /// use gpumem_adapt::feed;
    /// # use gpumem_adapt::array::{Gpu, pool::{Device, Pool}};
    /// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// # let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let numbers = (0..1000).map(|number| number as f32);
    /// let mut lengths = Vec::new();
    /// for batch in feed(numbers).batch_size(400).on(&gpu)? {
    ///     lengths.push(batch?.len()); // an array
    /// }
    /// assert_eq!(lengths, [400, 400, 200]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch_size<V, E>(self, item_count: usize) -> Feeder<Groups<I, E>>
    where
        I: Iterator<Item = Result<V, E>>,
    {
        let Self { items, prefetch, .. } = self;
        let items = Groups { items, group_size: item_count, is_last_omitted: false, error: None };
        Feeder { items, prefetch, group_size: item_count }
    }
}

impl<I, E> Feeder<Groups<I, E>> {
    /// Omits the last `Vec` if it has fewer items than the others.
    pub fn drop_last(self) -> Self {
        Self { items: Groups { is_last_omitted: true, ..self.items }, ..self }
    }
}

impl<V, E, I: Iterator<Item = Result<V, E>>> Iterator for Groups<I, E> {
    type Item = Result<Vec<V>, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        let mut group = Vec::new();
        while group.len() < self.group_size {
            match self.items.next() {
                Some(Ok(item)) => group.push(item),
                Some(Err(error)) if group.is_empty() => return Some(Err(error)),
                Some(Err(error)) => {
                    self.error = Some(error);
                    return Some(Ok(group));
                }
                None if self.is_last_omitted || group.is_empty() => return None,
                None => break,
            }
        }
        (!group.is_empty()).then_some(Ok(group))
    }

    /// Errors make groups shorter, so there can be as many groups as items.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.items.size_hint();
        let least = if self.is_last_omitted {
            least / self.group_size.max(1)
        } else {
            least.div_ceil(self.group_size.max(1))
        };
        let held = usize::from(self.error.is_some());
        (least.saturating_add(held), most.and_then(|most| most.checked_add(held)))
    }
}

impl<I, E> fmt::Debug for Groups<I, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").field("group_size", &self.group_size).finish_non_exhaustive()
    }
}
