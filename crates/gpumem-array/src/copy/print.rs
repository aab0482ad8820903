//! Arrays as text: the elements as `ndarray` prints them, then the element type, shape, strides, kind and device.
//!
//! `ndarray` abridges large arrays to the first and the last elements along each axis, and only these are downloaded. It then prints an
//! array of the full shape, whose only element is repeated: [`NextElement`], which prints the downloaded elements one after the other.

use crate::array::view::kind_name;
use crate::array::{GpuArray, GpuView, GpuViewMut};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::ArrayError;
use core::cell::RefCell;
use core::cmp::Reverse;
use core::fmt::{self, Display, Write};
use core::iter::repeat_n;
use ndarray::{ArrayD, ArrayViewD, Axis, Dimension, IxDyn, Slice, aview0};

/// Prints the elements like an `ndarray` array, followed by a description of the array: `[1, 2], type=i32, shape=[2], strides=[1],
/// kind=device, device=0`.
///
/// Downloads the elements that are printed: all of fewer than 500, otherwise the edges, unless the format is `{:#}`. If the download fails,
/// the error is printed instead.
impl<T: Element + Display, D: Dimension> Display for GpuView<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self, kind_name(self.storage().kind()), f)
    }
}

/// Prints the elements and a description of the view; see [`GpuView`].
impl<T: Element + Display, D: Dimension> Display for GpuViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// Prints the elements like an `ndarray` array, followed by a description; downloads the printed elements.
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::ndarray::array;
///
/// let x = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.5], [3.0, 4.0]])?;
/// assert_eq!(x.to_string(), "[[1, 2.5],\n [3, 4]], type=f32, shape=[2, 2], strides=[2, 1], kind=device, device=0");
/// let large = GpuArray::<u8, _>::zeros(&gpu, 1 << 30)?; // downloads ten elements
/// assert!(large.to_string().starts_with("[0, 0, 0, 0, 0, ..., 0, 0, 0, 0, 0], type=u8, shape=[1073741824]"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: Element + Display, D: Dimension, K: Kind> Display for GpuArray<T, D, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(&self.view(), K::NAME, f)
    }
}

fn print<T: Element + Display, D: Dimension>(
    view: &GpuView<'_, T, D>,
    kind: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let view = view.with_layout(view.layout().clone().into_dyn());
    match print_elements(&view, f)? {
        Ok(()) => {}
        Err(error) => write!(f, "<the elements cannot be downloaded: {error}>")?,
    }
    let (element, device) = (core::any::type_name::<T>(), view.home().device().ordinal());
    let (shape, strides) = (view.shape(), view.strides());
    write!(f, ", type={element}, shape={shape:?}, strides={strides:?}, kind={kind}, device={device}")
}

/// Prints nothing if the download fails.
fn print_elements<T: Element + Display>(
    view: &GpuView<'_, T, IxDyn>,
    f: &mut fmt::Formatter<'_>,
) -> Result<Result<(), ArrayError>, fmt::Error> {
    if f.alternate() {
        return match view.to_array() {
            Ok(array) => array.fmt(f).map(Ok),
            Err(error) => Ok(Err(error)),
        };
    }
    let elements = match printed_elements(view) {
        Ok(elements) => elements,
        Err(error) => return Ok(Err(error)),
    };
    let mut elements = elements.iter();
    let mut next = |f: &mut fmt::Formatter<'_>| elements.next().map_or(Ok(()), |element| element.fmt(f));
    print_each(&mut next, view.raw_dim(), |array| array.fmt(f)).map(Ok)
}

fn printed_elements<T: Element>(view: &GpuView<'_, T, IxDyn>) -> Result<ArrayD<T>, ArrayError> {
    let lens = printed_lens(view.shape());
    // Neighbours in memory come last, so that they are copied together. Axes that repeat elements are copied separately.
    let mut axes: Vec<usize> = (0..view.ndim()).collect();
    let strides = view.strides();
    axes.sort_by_key(|axis| match strides[*axis] {
        0 => Reverse(usize::MAX),
        stride => Reverse(stride.unsigned_abs()),
    });
    let lens: Vec<usize> = axes.iter().map(|axis| lens[*axis]).collect();
    let mut elements = Vec::new();
    download_edges(&view.permuted_axes(axes.clone())?, &lens, &mut elements)?;
    let shape = || ArrayError::TooManyElements { shape: view.shape().to_vec() };
    let permuted = ArrayD::from_shape_vec(lens, elements).map_err(|_| shape())?;
    let mut places = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(place, axis)| places[*axis] = place);
    Ok(permuted.permuted_axes(places))
}

/// Downloads the first and the last `lens` elements along each axis, in row-major order.
fn download_edges<T: Element>(
    view: &GpuView<'_, T, IxDyn>,
    lens: &[usize],
    elements: &mut Vec<T>,
) -> Result<(), ArrayError> {
    let (Some(len), Some((printed, inner))) = (view.shape().first(), lens.split_first()) else {
        elements.extend(view.to_vec()?);
        return Ok(());
    };
    if view.shape() == lens {
        elements.extend(view.to_vec()?);
        return Ok(());
    }
    let (first, last) = (..printed.div_ceil(2), len - printed / 2..*len);
    if inner.is_empty() {
        for edge in [Slice::from(first), Slice::from(last)] {
            elements.extend(view.slice_axis(Axis(0), edge)?.to_vec()?);
        }
        return Ok(());
    }
    (0..first.end)
        .chain(last)
        .try_for_each(|index| download_edges(&view.index_axis(Axis(0), index)?, inner, elements))
}

/// The number of elements that `ndarray` prints along each axis of an array of this shape.
fn printed_lens(shape: &[usize]) -> Vec<usize> {
    let len = shape.iter().product::<usize>().min(MANY);
    if printed_count(&[len]) == len {
        return shape.to_vec();
    }
    // An axis in front makes it an array of many elements.
    let count = |len: usize, inner: usize| {
        let lens = [MANY, len.min(MANY)];
        printed_count(&lens.into_iter().chain(repeat_n(1, inner)).collect::<Vec<_>>())
    };
    let axes = shape.iter().zip((0..shape.len()).rev());
    axes.map(|(len, inner)| count(*len, inner) / count(1, inner)).collect()
}

/// The number of elements that `ndarray` prints for this shape, found by printing such an array without output.
fn printed_count(shape: &[usize]) -> usize {
    let mut count = 0;
    let mut next = |_: &mut fmt::Formatter<'_>| {
        count += 1;
        Ok(())
    };
    // Nothing fails, since the text is dropped.
    let _ = print_each(&mut next, IxDyn(shape), |array| write!(Nowhere, "{array}"));
    count
}

/// Prints an array of this shape, each element by a call of `next`.
fn print_each(
    next: &mut dyn FnMut(&mut fmt::Formatter<'_>) -> fmt::Result,
    dim: IxDyn,
    print: impl FnOnce(ArrayViewD<'_, NextElement<'_>>) -> fmt::Result,
) -> fmt::Result {
    let next = NextElement(RefCell::new(next));
    // Views have no more elements than an array of `ndarray` may have.
    aview0(&next).broadcast(dim).map_or(Err(fmt::Error), print)
}

/// Prints another element each time.
struct NextElement<'a>(RefCell<&'a mut dyn FnMut(&mut fmt::Formatter<'_>) -> fmt::Result>);

impl Display for NextElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.try_borrow_mut() {
            Ok(mut next) => next(f),
            Err(_) => Err(fmt::Error),
        }
    }
}

struct Nowhere;

impl Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

/// Arrays with this many elements are abridged, and so are axes of this length.
const MANY: usize = 1000;
