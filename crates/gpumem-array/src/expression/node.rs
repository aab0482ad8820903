//! [`Expression`] and what expressions consist of: elements of arrays, numbers, and operations.

use crate::array::AsView;
use crate::error::ArrayError;
use crate::expression::scalar::{Comparable, Scalar};
use crate::expression::tape::Tape;
use crate::layout::Layout;
use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use ndarray::{DimMax, Dimension};

/// An expression of arrays and numbers. [`Lazy`] has its operators and methods.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an expression of arrays",
    note = "begin with an array or view: `x.lazy()`"
)]
pub trait Expression {
    /// The type of its elements.
    type Elem: Scalar;
    /// Its dimension, [`NoAxes`] for a number.
    type Dim: Axes;
    #[doc(hidden)]
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError>;
}

/// An expression whose type is not known. What is not part of its recording is compiled once for many expressions.
pub(crate) trait Recordable {
    fn record_on<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError>;
}

impl<E: Expression> Recordable for E {
    fn record_on<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.record(tape)
    }
}

/// An expression that is calculated in one kernel when it is evaluated.
///
/// Operators and methods only describe it, and cannot fail: shapes are compared when it is evaluated. It borrows its arrays, which may be
/// views of any layout. `GpuArray::lazy` has an example.
#[must_use = "nothing is calculated before `eval`, `assign_expr`, `update` or a reduction"]
#[derive(Clone, Copy, Debug)]
pub struct Lazy<E>(pub(crate) E);

/// An operand of an operation: an array or a view of any kind and shape, a reference to one, an expression, or a number.
///
/// ```
/// use gpumem_array::{ArrayError, Gpu, GpuArray, Operand, ndarray::Ix1, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// fn shifted<B: Operand<f32>>(x: &GpuArray<f32, Ix1>, by: B) -> Result<GpuArray<f32, Ix1>, ArrayError>
/// where
///     Ix1: gpumem_array::Broadcast<B::Dim, Dim = Ix1>,
/// {
///     (x.lazy() - by).eval()
/// }
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let x = GpuArray::from_slice(&gpu, &[1.0, 2.0, 3.0])?;
/// assert_eq!(shifted(&x, 2.0)?.to_vec()?, [-1.0, 0.0, 1.0]);
/// let mean = x.sum()? / 3.0; // stays on the device
/// assert_eq!(shifted(&x, mean)?.to_vec()?, [-1.0, 0.0, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an operand of an array of `{T}`",
    label = "expected an array, view or expression of `{T}`, or a `{T}`",
    note = "a number needs the type of the elements (`2.0`, not `2`, for floating-point types); `.cast::<{T}>()` converts an expression",
    note = "a `Result` is an operand after `?`"
)]
pub trait Operand<T: Scalar> {
    /// Its dimension type: [`NoAxes`] for a number.
    type Dim: Axes;
    /// Its expression.
    type Expression: Expression<Elem = T, Dim = Self::Dim>;
    #[doc(hidden)]
    fn into_expression(self) -> Self::Expression;
}

/// The dimension of a number, which has no axes of its own.
#[derive(Clone, Copy, Debug)]
pub struct NoAxes;

/// The dimension of two expressions together: that with more axes.
#[diagnostic::on_unimplemented(
    message = "expressions of the dimensions `{Self}` and `{E}` cannot be broadcast"
)]
pub trait Broadcast<E> {
    /// The dimension of the result.
    type Dim: Axes;
}

/// A dimension of expressions: one of `ndarray`'s, or [`NoAxes`]. With itself and with a number it stays what it is, so a generic function
/// needs no bounds for these.
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::{Expression, Lazy};
///
/// fn gelu<E: Expression<Elem = f32> + Copy>(x: Lazy<E>) -> Lazy<impl Expression<Elem = f32, Dim = E::Dim>> {
///     x * ((x * -1.702).exp() + 1.0).recip()
/// }
/// let x = GpuArray::from_slice(&gpu, &[0.0_f32, 100.0])?;
/// assert_eq!(gelu(x.lazy()).eval()?.to_vec()?, [0.0, 100.0]);
/// # Ok::<(), gpumem_array::ArrayError>(())
/// ```
pub trait Axes: Sized + Broadcast<NoAxes, Dim = Self> + Broadcast<Self, Dim = Self> {}

impl<D: Dimension> Axes for D {}
impl Axes for NoAxes {}

impl<D: Dimension + DimMax<E>, E: Dimension> Broadcast<E> for D {
    type Dim = <D as DimMax<E>>::Output;
}
impl<D: Dimension> Broadcast<NoAxes> for D {
    type Dim = D;
}
impl<D: Dimension> Broadcast<D> for NoAxes {
    type Dim = D;
}
impl Broadcast<NoAxes> for NoAxes {
    type Dim = NoAxes;
}

/// The dimension of two expressions together.
pub type Together<D, E> = <D as Broadcast<E>>::Dim;

/// The elements of an array or view, owned or borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Elements<A>(pub(crate) A);

impl<A: AsView<Elem: Scalar>> Expression for Elements<A> {
    type Elem = A::Elem;
    type Dim = A::Dim;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        let view = self.0.as_view();
        let axes = layout_axes(view.layout(), size_of::<A::Elem>());
        tape.array(A::Elem::TYPE, view.gpu(), view.reads(), view.planned(), axes);
        Ok(())
    }
}

/// The lengths of the axes, and their strides in bytes, for elements of a size.
pub(crate) fn layout_axes<D: Dimension>(
    layout: &Layout<D>,
    size: usize,
) -> impl Iterator<Item = (usize, isize)> {
    let size = size.cast_signed();
    layout.shape().iter().copied().zip(layout.strides()).map(move |(len, stride)| (len, stride * size))
}

/// A number. Its copies are known to be the same, so that what is calculated from them is calculated once.
#[derive(Clone, Copy, Debug)]
pub struct Constant<T> {
    value: T,
    identity: u64,
}

impl<T> Constant<T> {
    pub(crate) fn new(value: T) -> Self {
        const EACH: u64 = 1 << 20;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static OWN: Cell<u64> = const { Cell::new(0) });
        // Each thread takes many at once. A thread that is ending takes single ones.
        let identity = OWN.try_with(|own| {
            let next =
                if own.get() % EACH == 0 { NEXT.fetch_add(1, Ordering::Relaxed) * EACH } else { own.get() };
            own.set(next + 1);
            next
        });
        Self { value, identity: identity.unwrap_or_else(|_| NEXT.fetch_add(1, Ordering::Relaxed) * EACH) }
    }
}

impl<T: Scalar> Expression for Constant<T> {
    type Elem = T;
    type Dim = NoAxes;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.value.record(self.identity, tape);
        Ok(())
    }
}

/// The elements of an array that is updated, before the update.
#[derive(Debug)]
pub struct ElementsBefore<T, D> {
    pub(crate) index: usize,
    pub(crate) element: PhantomData<(T, D)>,
}

impl<T, D> Clone for ElementsBefore<T, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, D> Copy for ElementsBefore<T, D> {}

impl<T: Scalar, D: Dimension> Expression for ElementsBefore<T, D> {
    type Elem = T;
    type Dim = D;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        tape.updated::<T>(self.index)
    }
}

impl<E: Expression> Expression for &E {
    type Elem = E::Elem;
    type Dim = E::Dim;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        E::record(self, tape)
    }
}

impl<E: Expression + ?Sized> Expression for Box<E> {
    type Elem = E::Elem;
    type Dim = E::Dim;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        E::record(self, tape)
    }
}

/// An operation on elements of the type `T`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no meaning for elements of `{T}`",
    note = "`.cast::<f32>()` converts the elements of an expression"
)]
pub trait Calculation<T> {
    /// The type of the result.
    type Out: Scalar;
    #[doc(hidden)]
    const TOKEN: u8;
}

macro_rules! applications {
    ($($(#[$attribute:meta])* $name:ident($($place:tt $operand:ident),*);)*) => {$(
        $(#[$attribute])*
        #[derive(Debug)]
        pub struct $name<F, $($operand),*>($(pub(crate) $operand,)* pub(crate) PhantomData<F>);

        impl<F, $($operand: Clone),*> Clone for $name<F, $($operand),*> {
            fn clone(&self) -> Self {
                Self($(self.$place.clone(),)* PhantomData)
            }
        }
        impl<F, $($operand: Copy),*> Copy for $name<F, $($operand),*> {}
    )*};
}

applications! {
    /// An operation on one expression.
    Unary(0 A);
    /// An operation on two expressions.
    Binary(0 A, 1 B);
    /// An operation on three expressions.
    Ternary(0 M, 1 A, 2 B);
}

impl<F: Calculation<A::Elem>, A: Expression> Expression for Unary<F, A> {
    type Elem = F::Out;
    type Dim = A::Dim;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.0.record(tape)?;
        tape.token(F::TOKEN);
        Ok(())
    }
}

impl<F: Calculation<A::Elem>, A: Expression<Dim: Broadcast<B::Dim>>, B: Expression> Expression
    for Binary<F, A, B>
{
    type Elem = F::Out;
    type Dim = Together<A::Dim, B::Dim>;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.0.record(tape)?;
        self.1.record(tape)?;
        tape.token(F::TOKEN);
        Ok(())
    }
}

impl<F, M, A, B> Expression for Ternary<F, M, A, B>
where
    F: Calculation<A::Elem>,
    M: Expression<Dim: Broadcast<Together<A::Dim, B::Dim>>>,
    A: Expression<Dim: Broadcast<B::Dim>>,
    B: Expression,
{
    type Elem = F::Out;
    type Dim = Together<M::Dim, Together<A::Dim, B::Dim>>;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.0.record(tape)?;
        self.1.record(tape)?;
        self.2.record(tape)?;
        tape.token(F::TOKEN);
        Ok(())
    }
}

/// An element type whose values an expression converts to `U`: all types to each other, but complex numbers only to complex numbers.
#[diagnostic::on_unimplemented(
    message = "elements of `{Self}` are not converted to `{U}`",
    note = "of a complex expression, `.re()`, `.im()` and `.abs()` are real"
)]
pub trait ConvertsTo<U>: Scalar {}

impl<T: Comparable, U: Scalar> ConvertsTo<U> for T {}
#[cfg(feature = "complex")]
mod complex {
    use super::ConvertsTo;
    use num_complex::Complex;

    impl ConvertsTo<Complex<f32>> for Complex<f32> {}
    impl ConvertsTo<Complex<f64>> for Complex<f32> {}
    impl ConvertsTo<Complex<f32>> for Complex<f64> {}
    impl ConvertsTo<Complex<f64>> for Complex<f64> {}
}

/// A conversion to the type `U`.
#[derive(Clone, Copy, Debug)]
pub struct Converted<U, A>(pub(crate) A, pub(crate) PhantomData<U>);

impl<U: Scalar, A: Expression> Expression for Converted<U, A> {
    type Elem = U;
    type Dim = A::Dim;
    fn record<'v>(&'v self, tape: &mut Tape<'v, '_>) -> Result<(), ArrayError> {
        self.0.record(tape)?;
        tape.cast(U::TYPE);
        Ok(())
    }
}

// Errors say what an operand is, not what has a view.
#[diagnostic::do_not_recommend]
impl<T: Scalar, A: AsView<Elem = T>> Operand<T> for A {
    type Dim = A::Dim;
    type Expression = Elements<A>;
    fn into_expression(self) -> Elements<A> {
        Elements(self)
    }
}

impl<E: Expression> Operand<E::Elem> for Lazy<E> {
    type Dim = E::Dim;
    type Expression = E;
    fn into_expression(self) -> E {
        self.0
    }
}

impl<'e, E: Expression> Operand<E::Elem> for &'e Lazy<E> {
    type Dim = E::Dim;
    type Expression = &'e E;
    fn into_expression(self) -> &'e E {
        &self.0
    }
}
