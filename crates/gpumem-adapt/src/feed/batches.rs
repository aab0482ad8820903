//! [`batches`]: data sets in batches.

use super::{Feed, Feeder, PREFETCH};
use crate::adapt::Adapt;
use crate::error::AdaptError;
use core::convert::Infallible;
use core::ops::Range;
use gpumem_array::ndarray::{ArrayBase, ArrayView1, Axis, CowArray, Data, Dimension, Ix1, RemoveAxis, Slice};
use gpumem_array::{Element, Gpu};

/// Divides a data set into batches, which are uploaded ahead of their use.
///
/// A data set is an `ndarray` array or view, whose first axis is divided; a slice, such as the bytes of a memory-mapped file; or a tuple
/// of data sets of the same length. An array without axes has no rows. Batches in the order of the data set are uploaded without another
/// copy on the host.
///
/// ```
/// use gpumem_adapt::array::ndarray::{Array1, Array2};
/// use gpumem_adapt::batches;
/// # use gpumem_adapt::array::{Gpu, pool::{Device, Pool}};
/// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// # let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let (x, y) = (Array2::<f32>::ones((100, 8)), Array1::<i32>::zeros(100));
/// let mut rows = 0;
/// for batch in batches((&x, &y)).batch_size(32).shuffle(7).on(&gpu)? {
///     let (x, y) = batch?;
///     assert_eq!(x.shape(), [y.len(), 8]);
///     rows += y.len();
/// }
/// assert_eq!(rows, 100); // the last batch has 4 rows, unless `drop_last` is set
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn batches<S: Source>(source: S) -> Batches<S> {
    Batches { source, batch_size: BATCH_SIZE, seed: None, drop_last: false, prefetch: PREFETCH }
}

/// A data set with rows that can be read in any order.
pub trait Source {
    /// Some of the rows, on the host.
    type Batch;

    /// The number of rows.
    fn row_count(&self) -> usize;

    /// Checks that the parts of the data set belong together.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Custom`] if parts of a tuple have different numbers of rows.
    fn check(&self) -> Result<(), AdaptError> {
        Ok(())
    }

    /// The rows of a batch, all of which exist.
    fn batch(&self, rows: &Rows) -> Self::Batch;
}

/// The rows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Rows in the order of the data set.
    Range(Range<usize>),
    /// Rows in another order.
    Indices(Vec<usize>),
}

/// The options of the batches of a data set; see [`batches`].
#[must_use = "nothing is uploaded before `on`"]
#[derive(Clone, Debug)]
pub struct Batches<S> {
    source: S,
    batch_size: usize,
    seed: Option<u64>,
    drop_last: bool,
    prefetch: usize,
}

impl<S: Source> Batches<S> {
    /// Sets the number of rows of a batch: 32 by default. 0 is an error of [`Batches::on`].
    pub fn batch_size(self, row_count: usize) -> Self {
        Self { batch_size: row_count, ..self }
    }

    /// Takes the rows in a random order that depends on the seed alone. The rows of each batch are gathered on the host.
    pub fn shuffle(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Omits a last batch with fewer rows than the others.
    pub fn drop_last(self) -> Self {
        Self { drop_last: true, ..self }
    }

    /// Sets how many batches are on the device or on their way at a time, beside the one that the consumer has; see
    /// [`Feeder::prefetch`].
    pub fn prefetch(self, count: usize) -> Self {
        Self { prefetch: count, ..self }
    }

    /// The batches on the host.
    ///
    /// # Errors
    ///
    /// [`AdaptError::Custom`] if the size of a batch is 0, or if the parts of the data set have different numbers of rows.
    pub fn on_host(self) -> Result<BatchItems<S>, AdaptError> {
        let Self { source, batch_size, seed, drop_last, .. } = self;
        if batch_size == 0 {
            return Err(AdaptError::custom(
                "batches of 0 rows hold no data set: set `batch_size` to at least 1",
            ));
        }
        source.check()?;
        let row_count = source.row_count();
        let end = if drop_last { row_count / batch_size * batch_size } else { row_count };
        let order = seed.map(|seed| {
            let mut order: Vec<usize> = (0..row_count).collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut order);
            order
        });
        Ok(BatchItems { source, batch_size, order, left: 0..end })
    }

    /// The iterator over the batches on `gpu`.
    ///
    /// # Errors
    ///
    /// - [`AdaptError::Array`] if the stream of the uploads cannot be created.
    /// - [`AdaptError::Custom`] if the size of a batch is 0, or if the parts of the data set have different numbers of rows.
    pub fn on(self, gpu: &Gpu) -> Result<Feed<BatchItems<S>, S::Batch>, AdaptError>
    where
        S::Batch: Adapt<Gpu>,
        <S::Batch as Adapt<Gpu>>::Adapted: Adapt<Gpu, Adapted = <S::Batch as Adapt<Gpu>>::Adapted>,
    {
        let prefetch = self.prefetch;
        Feeder { items: self.on_host()?, prefetch }.prefetch(prefetch).on(gpu)
    }
}

/// The batches of a data set on the host.
#[derive(Clone, Debug)]
pub struct BatchItems<S> {
    source: S,
    batch_size: usize,
    order: Option<Vec<usize>>,
    left: Range<usize>,
}

impl<S: Source> Iterator for BatchItems<S> {
    type Item = Result<S::Batch, Infallible>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let end = self.left.start.saturating_add(self.batch_size).min(self.left.end);
        let range = self.left.start..end;
        self.left.start = end;
        let rows = match self.order.as_ref().and_then(|order| order.get(range.clone())) {
            Some(rows) => Rows::Indices(rows.to_vec()),
            None => Rows::Range(range),
        };
        Some(Ok(self.source.batch(&rows)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.left.len().div_ceil(self.batch_size);
        (count, Some(count))
    }
}

impl<S: Source> ExactSizeIterator for BatchItems<S> {}

impl<'a, T, D, A> Source for &'a ArrayBase<A, D>
where
    T: Element,
    D: Dimension + RemoveAxis,
    A: Data<Elem = T>,
{
    type Batch = CowArray<'a, T, D>;

    fn row_count(&self) -> usize {
        // An array of dynamic dimension can have no axis.
        self.shape().first().copied().unwrap_or(0)
    }

    fn batch(&self, rows: &Rows) -> CowArray<'a, T, D> {
        match rows {
            Rows::Range(rows) => self.slice_axis(Axis(0), Slice::from(rows.clone())).into(),
            Rows::Indices(rows) => self.select(Axis(0), rows).into(),
        }
    }
}

impl<'a, T: Element> Source for &'a [T] {
    type Batch = CowArray<'a, T, Ix1>;

    fn row_count(&self) -> usize {
        self.len()
    }

    fn batch(&self, rows: &Rows) -> CowArray<'a, T, Ix1> {
        let all = ArrayView1::from(*self);
        match rows {
            Rows::Range(rows) => all.slice_axis_move(Axis(0), Slice::from(rows.clone())).into(),
            Rows::Indices(rows) => all.select(Axis(0), rows).into(),
        }
    }
}

impl<'a, T: Element> Source for &'a Vec<T> {
    type Batch = CowArray<'a, T, Ix1>;

    fn row_count(&self) -> usize {
        self.len()
    }

    fn batch(&self, rows: &Rows) -> CowArray<'a, T, Ix1> {
        self.as_slice().batch(rows)
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+))*) => {$(
        /// The batches have rows of all members, which must have the same number of rows.
        impl<$($name: Source),+> Source for ($($name,)+) {
            type Batch = ($($name::Batch,)+);

            fn row_count(&self) -> usize {
                [$(self.$index.row_count()),+].into_iter().min().unwrap_or(0)
            }

            fn check(&self) -> Result<(), AdaptError> {
                $(self.$index.check().map_err(|error| error.within(stringify!($index)))?;)+
                let first = self.0.row_count();
                $(
                    let other = self.$index.row_count();
                    if other != first {
                        let lengths = format!("{other} rows, but the first data set has {first}: pass data sets of the same length");
                        return Err(AdaptError::custom(lengths).within(stringify!($index)));
                    }
                )+
                Ok(())
            }

            fn batch(&self, rows: &Rows) -> Self::Batch {
                ($(self.$index.batch(rows),)+)
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
}

const BATCH_SIZE: usize = 32;
