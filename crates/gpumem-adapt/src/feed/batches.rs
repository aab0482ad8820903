//! [`batches`]: data sets in batches.

use super::permutation::Permutation;
use super::{EMPTY_BATCHES, Feed, FeedTarget, Feeder, PREFETCH};
use crate::adapt::Adapt;
use crate::error::AdaptError;
use core::ops::Range;
use gpumem_array::ndarray::{
    Array, ArrayBase, ArrayView, ArrayView1, Axis, CowArray, Data, Dimension, Ix1, RemoveAxis, Slice,
};
use gpumem_array::{ArrayError, Element};

/// Divides a data set into batches, which are uploaded ahead of their use.
///
/// A data set is an `ndarray` array or view, whose first axis is divided; a slice or a `Vec`; or a tuple of data sets of the same length.
/// An array without axes has no rows. Unshuffled batches are uploaded without another copy on the host. The items of an iterator are
/// divided by [`feed`](super::feed) and [`Feeder::batch_size`].
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
///
/// A memory-mapped file can be larger than the host's memory: the system reads its pages when a batch is uploaded.
///
/// ```
/// use gpumem_adapt::{array::ndarray::ArrayView2, batches};
/// # use gpumem_adapt::array::{Gpu, pool::{Device, Pool}};
/// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// # let gpu = Gpu::new(&Pool::new(&device)?)?;
/// # let path = std::env::temp_dir().join(format!("gpumem-batches-{}", std::process::id()));
/// # std::fs::write(&path, bytemuck::cast_slice(&[1.5_f32; 600]))?;
/// let file = std::fs::File::open(&path)?;
/// // SAFETY: no program changes the file while it is mapped.
/// let bytes = unsafe { memmap2::Mmap::map(&file)? };
/// let numbers: &[f32] = bytemuck::try_cast_slice(&bytes).map_err(|error| error.to_string())?;
/// let rows = ArrayView2::from_shape((numbers.len() / 6, 6), numbers)?;
/// for batch in batches(&rows).batch_size(32).on(&gpu)? {
///     let batch = batch?; // 32 × 6; 4 × 6 at the end
///     assert_eq!(batch.sum()?.into_scalar()?, 1.5 * batch.len() as f32);
/// }
/// # drop(bytes);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn batches<S: Source>(source: S) -> Batches<S> {
    Batches { source, batch_size: BATCH_SIZE, seed: None, drop_last: false, prefetch: PREFETCH }
}

/// A data set with rows that can be read in any order.
pub trait Source {
    /// A selection of rows, on the host.
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

    /// The rows of a batch.
    ///
    /// # Errors
    ///
    /// - [`AdaptError::Array`] with [`ArrayError::HostFull`] if the rows are gathered, and the host has no memory for them.
    /// - [`AdaptError::Custom`] if the data set has no such row.
    fn batch(&self, rows: &Rows) -> Result<Self::Batch, AdaptError>;
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

    /// Shuffles the rows. Equal seeds give equal orders. The host gathers the rows of each batch.
    pub fn shuffle(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Omits the last batch if it has fewer rows than the others.
    pub fn drop_last(self) -> Self {
        Self { drop_last: true, ..self }
    }

    /// Sets the maximum number of batches that are on the device or on their way, in addition to the consumer's current batch; see
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
            return Err(AdaptError::custom(EMPTY_BATCHES));
        }
        source.check()?;
        let row_count = source.row_count();
        let end = if drop_last { row_count / batch_size * batch_size } else { row_count };
        let order = seed.map(|seed| Permutation::new(row_count, seed));
        Ok(BatchItems { source, batch_size, order, left: 0..end })
    }

    /// The iterator over the batches at `place`: a `Gpu`, `gpu.unified()`, `gpu.pinned()` or a [`Destination`](crate::Destination).
    ///
    /// # Errors
    ///
    /// - [`AdaptError::Array`] if the stream of the uploads cannot be created.
    /// - [`AdaptError::Custom`] if the size of a batch is 0, or if the parts of the data set have different numbers of rows.
    pub fn on<To>(self, place: &To) -> Result<FeedOf<S, To::Owned>, AdaptError>
    where
        To: FeedTarget,
        S::Batch: Adapt<To::Owned>,
    {
        let prefetch = self.prefetch;
        Feeder { items: self.on_host()?, prefetch, group_size: 1 }.prefetch(prefetch).on(place)
    }
}

/// The feed of a data set.
type FeedOf<S, To> = Feed<BatchItems<S>, <S as Source>::Batch, To>;

/// The batches of a data set on the host. An item is an error only if the batch is shuffled, and the host has no memory for its rows.
#[derive(Clone, Debug)]
pub struct BatchItems<S> {
    source: S,
    batch_size: usize,
    order: Option<Permutation>,
    left: Range<usize>,
}

impl<S: Source> Iterator for BatchItems<S> {
    type Item = Result<S::Batch, AdaptError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let end = self.left.start.saturating_add(self.batch_size).min(self.left.end);
        let range = self.left.start..end;
        self.left.start = end;
        let rows = match &self.order {
            None => Rows::Range(range),
            Some(order) => {
                let mut rows = match vec_of(range.len()) {
                    Ok(rows) => rows,
                    Err(error) => return Some(Err(error)),
                };
                rows.extend(range.map(|place| order.at(place)));
                Rows::Indices(rows)
            }
        };
        Some(self.source.batch(&rows))
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
        // An array of dynamic dimension may have no axis.
        self.shape().first().copied().unwrap_or(0)
    }

    fn batch(&self, rows: &Rows) -> Result<CowArray<'a, T, D>, AdaptError> {
        rows_of(self.view(), rows)
    }
}

impl<'a, T: Element> Source for &'a [T] {
    type Batch = CowArray<'a, T, Ix1>;

    fn row_count(&self) -> usize {
        self.len()
    }

    fn batch(&self, rows: &Rows) -> Result<CowArray<'a, T, Ix1>, AdaptError> {
        rows_of(ArrayView1::from(*self), rows)
    }
}

impl<'a, T: Element> Source for &'a Vec<T> {
    type Batch = CowArray<'a, T, Ix1>;

    fn row_count(&self) -> usize {
        self.len()
    }

    fn batch(&self, rows: &Rows) -> Result<CowArray<'a, T, Ix1>, AdaptError> {
        self.as_slice().batch(rows)
    }
}

/// Some rows of an array: a view, or a copy if they have another order.
fn rows_of<'a, T, D>(all: ArrayView<'a, T, D>, rows: &Rows) -> Result<CowArray<'a, T, D>, AdaptError>
where
    T: Element,
    D: Dimension + RemoveAxis,
{
    let row_count = all.shape().first().copied().unwrap_or(0);
    let missing = match rows {
        _ if all.ndim() == 0 => Some(0),
        Rows::Range(rows) if rows.start > rows.end => Some(rows.start),
        Rows::Range(rows) => rows.end.checked_sub(1).filter(|last| *last >= row_count),
        Rows::Indices(rows) => rows.iter().copied().find(|row| *row >= row_count),
    };
    if let Some(row) = missing {
        let rows = format!("a data set of {row_count} rows has no row {row}: name rows that exist");
        return Err(AdaptError::custom(rows));
    }
    let rows = match rows {
        Rows::Range(rows) => return Ok(all.slice_axis_move(Axis(0), Slice::from(rows.clone())).into()),
        Rows::Indices(rows) => rows,
    };
    // Not `select`, which ends the program if the host has no memory for the copy.
    let row_len = all.shape().iter().skip(1).product::<usize>();
    let mut elements = vec_of(rows.len().saturating_mul(row_len))?;
    for row in rows {
        match all.as_slice() {
            Some(all) => elements.extend_from_slice(&all[row * row_len..][..row_len]),
            None => elements.extend(all.index_axis(Axis(0), *row)),
        }
    }
    let mut dim = all.raw_dim();
    dim[0] = rows.len();
    let gathered = Array::from_shape_vec(dim, elements).map_err(AdaptError::custom)?;
    Ok(gathered.into())
}

/// An empty `Vec` with room for some elements.
fn vec_of<T>(len: usize) -> Result<Vec<T>, AdaptError> {
    let mut elements = Vec::new();
    match elements.try_reserve_exact(len) {
        Ok(()) => Ok(elements),
        Err(_) => Err(ArrayError::HostFull { size_bytes: len.saturating_mul(size_of::<T>()) }.into()),
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

            fn batch(&self, rows: &Rows) -> Result<Self::Batch, AdaptError> {
                Ok(($(self.$index.batch(rows).map_err(|error| error.within(stringify!($index)))?,)+))
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
