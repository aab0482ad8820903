//! Other views of expressions: the layouts of all arrays of an expression change together, and no element is copied.

use crate::error::ArrayError;
use crate::expression::node::{Expression, Lazy};
use crate::expression::tape::Tape;
use crate::layout::Layout;
use ndarray::{Axis, Dimension, IntoDimension, IxDyn, SliceArg, SliceInfoElem};

/// An expression in another view.
#[derive(Clone, Copy, Debug)]
pub struct Viewed<A, V>(pub(crate) A, pub(crate) V);

impl<A: Expression<Dim: Dimension>, V: ViewStep<A::Dim>> Expression for Viewed<A, V> {
    type Elem = A::Elem;
    type Dim = V::Dim;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.0.record(tape)?;
        let (kind, words) = self.1.words();
        tape.view(kind as u8, words);
        Ok(())
    }
}

/// A view of an expression of the dimension `D`.
pub trait ViewStep<D> {
    /// The dimension of the view.
    type Dim: Dimension;
    #[doc(hidden)]
    fn words(&self) -> (ViewKind, impl Iterator<Item = (usize, isize)>);
}

/// An operation of a view, as it is recorded in words.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum ViewKind {
    /// No words.
    Transposed,
    /// An axis in each pair.
    Permuted,
    /// A length in each pair.
    Broadcast,
    /// One pair with the axis.
    Inserted,
    /// Two pairs for each element of a slice.
    Sliced,
}

impl ViewKind {
    const ALL: [Self; 5] = [Self::Transposed, Self::Permuted, Self::Broadcast, Self::Inserted, Self::Sliced];

    /// The view of a layout that a recording has the number and the words of.
    pub(crate) fn apply(
        number: u8,
        words: &[(usize, isize)],
        layout: Layout<IxDyn>,
    ) -> Result<Layout<IxDyn>, ArrayError> {
        let lens = || IxDyn(&words.iter().map(|(len, _)| *len).collect::<Vec<_>>());
        match Self::ALL.get(usize::from(number)) {
            Some(Self::Transposed) => Ok(layout.transposed()),
            Some(Self::Permuted) => layout.permuted(&lens()),
            Some(Self::Broadcast) => layout.broadcast(lens()),
            Some(Self::Inserted) => {
                words.iter().try_fold(layout, |layout, (axis, _)| layout.insert_axis(Axis(*axis)))
            }
            Some(Self::Sliced) => {
                let elements: Vec<_> = words.as_chunks().0.iter().map(slice_element).collect();
                layout.slice(&elements.as_slice())
            }
            None => Ok(layout),
        }
    }
}

/// The first words of an index and of a new axis. That of a range is 1 if it has an end.
const INDEX: usize = 2;
const NEW_AXIS: usize = 3;

fn slice_words(element: &SliceInfoElem) -> [(usize, isize); 2] {
    match *element {
        SliceInfoElem::Slice { start, end, step } => {
            [(usize::from(end.is_some()), start), (end.unwrap_or(0).cast_unsigned(), step)]
        }
        SliceInfoElem::Index(index) => [(INDEX, index), (0, 0)],
        SliceInfoElem::NewAxis => [(NEW_AXIS, 0), (0, 0)],
    }
}

fn slice_element(words: &[(usize, isize); 2]) -> SliceInfoElem {
    let [(kind, first), (end, step)] = *words;
    match kind {
        NEW_AXIS => SliceInfoElem::NewAxis,
        INDEX => SliceInfoElem::Index(first),
        has_end => {
            SliceInfoElem::Slice { start: first, end: (has_end == 1).then_some(end.cast_signed()), step }
        }
    }
}

macro_rules! views {
    ($($(#[$attribute:meta])* $name:ident $(($field:ty))? [$($parameter:ident: $bound:path),*] => $dim:ty, $kind:ident |$view:ident| $words:expr;)*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<$($parameter)*>$(($field))?;

        impl<D: Dimension $(, $parameter: $bound)*> ViewStep<D> for $name<$($parameter)*> {
            type Dim = $dim;
            fn words(&self) -> (ViewKind, impl Iterator<Item = (usize, isize)>) {
                let $view = self;
                (ViewKind::$kind, $words)
            }
        }
    )*};
}

views! {
    /// The axes in reverse order.
    Transposed [] => D, Transposed |_view| core::iter::empty();
    /// The axes in this order.
    Permuted(S) [S: Dimension] => D, Permuted |view| view.0.slice().iter().map(|axis| (*axis, 0));
    /// In this shape.
    BroadcastTo(S) [S: Dimension] => S, Broadcast |view| view.0.slice().iter().map(|len| (*len, 0));
    /// A new axis of length 1 before this one.
    Inserted(Axis) [] => D::Larger, Inserted |view| core::iter::once((view.0.index(), 0));
    /// The elements of a slice.
    Sliced(I) [I: SliceArg<D>] => I::OutDim, Sliced |view| view.0.as_ref().iter().flat_map(slice_words);
}

impl<E: Expression> Lazy<E> {
    /// A new axis of length 1 before an axis, or last. Lengths of 1 are broadcast.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::{Axis, array}};
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let y = GpuArray::from_slice(&gpu, &[10, 20])?;
    /// let sums = y.lazy().insert_axis(Axis(1)) + &x;
    /// assert_eq!(sums.eval()?.to_array()?, array![[11, 12, 13], [21, 22, 23]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_axis(self, axis: Axis) -> Lazy<Viewed<E, Inserted>> {
        Lazy(Viewed(self.0, Inserted(axis)))
    }

    /// The expression with its axes in reverse order; of a matrix, the transpose. Like all views, it costs no copy.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::array};
    ///
    /// let x = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4]])?;
    /// let twice = x.lazy() * 2;
    /// assert_eq!((twice + twice.t()).eval()?.to_array()?, array![[4, 10], [10, 16]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn t(self) -> Lazy<Viewed<E, Transposed>> {
        Lazy(Viewed(self.0, Transposed))
    }

    /// The expression with its axes in another order: axis `axes[i]` becomes axis `i`.
    pub fn permuted_axes(self, axes: impl IntoDimension<Dim = E::Dim>) -> Lazy<Viewed<E, Permuted<E::Dim>>>
    where
        E::Dim: Dimension,
    {
        Lazy(Viewed(self.0, Permuted(axes.into_dimension())))
    }

    /// The expression in a larger shape: missing axes are added at the front, and axes of length 1 are repeated.
    pub fn broadcast<S: IntoDimension>(self, shape: S) -> Lazy<Viewed<E, BroadcastTo<S::Dim>>>
    where
        E::Dim: Dimension,
    {
        Lazy(Viewed(self.0, BroadcastTo(shape.into_dimension())))
    }

    /// The elements that `s![…]` selects, by `ndarray`'s rules. Only these are calculated. The kernel counts as a use of the whole arrays:
    /// beside writes to their other parts, slice the arrays.
    ///
    /// ```
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{GpuArray, ndarray::s};
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1.0_f32, 4.0, 9.0, 16.0])?;
    /// let root = x.lazy().sqrt();
    /// let steps = root.slice(s![1..]) - root.slice(s![..-1]);
    /// assert_eq!(steps.eval()?.to_vec()?, [1.0; 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice<I: SliceArg<E::Dim>>(self, info: I) -> Lazy<Viewed<E, Sliced<I>>>
    where
        E::Dim: Dimension,
    {
        Lazy(Viewed(self.0, Sliced(info)))
    }
}
