//! The operators and methods of [`Lazy`] that are not in the table of operations.

use crate::array::GpuArray;
use crate::error::ArrayError;
use crate::expression::evaluate::evaluate;
use crate::expression::node::{
    Binary, Broadcast, Calculation, Constant, Converted, ConvertsTo, Expression, Lazy, NoAxes, Operand,
    Ternary, Together, Unary,
};
use crate::expression::operation::{self, Clamp, Fma, Powi, Select};
use crate::expression::scalar::Scalar;
use crate::expression::tape::EXPRESSION;
use core::marker::PhantomData;
use ndarray::Dimension;

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        operators!(@left $trait $method; [] Lazy<E>, E);
        operators!(@left $trait $method; ['e] &'e Lazy<E>, &'e E);
        operators!(@ $trait $method; f32 f64 i8 i16 i32 i64 u8 u16 u32 u64);
        #[cfg(feature = "half")]
        operators!(@ $trait $method; half::f16 half::bf16);
        operators!(@complex $trait $method);
    )*};
    (@left $trait:ident $method:ident; [$($life:lifetime)?] $left:ty, $operand:ty) => {
        impl<$($life,)? E: Expression, R: Operand<E::Elem>> core::ops::$trait<R> for $left
        where
            operation::$trait: Calculation<E::Elem>,
            E::Dim: Broadcast<R::Dim>,
        {
            type Output = Lazy<Binary<operation::$trait, $operand, R::Expression>>;
            fn $method(self, right: R) -> Self::Output {
                Lazy(Binary(self.into_expression(), right.into_expression(), PhantomData))
            }
        }
    };
    (@complex Rem rem) => {};
    (@complex $trait:ident $method:ident) => {
        #[cfg(feature = "complex")]
        operators!(@ $trait $method; num_complex::Complex<f32> num_complex::Complex<f64>);
    };
    (@ $trait:ident $method:ident; $($number:ty)*) => {$(
        impl<E: Expression<Elem = $number>> core::ops::$trait<Lazy<E>> for $number {
            type Output = Lazy<Binary<operation::$trait, Constant<$number>, E>>;
            fn $method(self, right: Lazy<E>) -> Self::Output {
                Lazy(Binary(Constant::new(self), right.0, PhantomData))
            }
        }
    )*};
}
operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
    Rem rem;
}

macro_rules! signs {
    ($($trait:ident $method:ident [$($life:lifetime)?] $lazy:ty, $operand:ty;)*) => {$(
        impl<$($life,)? E: Expression> core::ops::$trait for $lazy
        where
            operation::$trait: Calculation<E::Elem>,
        {
            type Output = Lazy<Unary<operation::$trait, $operand>>;
            fn $method(self) -> Self::Output {
                Lazy(Unary(self.into_expression(), PhantomData))
            }
        }
    )*};
}
signs! {
    Neg neg [] Lazy<E>, E;
    Neg neg ['e] &'e Lazy<E>, &'e E;
    Not not [] Lazy<E>, E;
    Not not ['e] &'e Lazy<E>, &'e E;
}

impl<E: Expression> Lazy<E> {
    /// A whole power, by products in the order of the bits of `n`.
    pub fn powi(self, n: i32) -> Lazy<Binary<Powi, E, Constant<i32>>>
    where
        Powi: Calculation<E::Elem>,
        E::Dim: Broadcast<NoAxes>,
    {
        Lazy(Binary(self.0, Constant::new(n), PhantomData))
    }

    /// `self * factor + addend`, rounded once.
    pub fn mul_add<B, C>(self, factor: B, addend: C) -> Lazy<Ternary<Fma, E, B::Expression, C::Expression>>
    where
        B: Operand<E::Elem>,
        C: Operand<E::Elem>,
        Fma: Calculation<E::Elem>,
        B::Dim: Broadcast<C::Dim>,
        E::Dim: Broadcast<Together<B::Dim, C::Dim>>,
    {
        Lazy(Ternary(self.0, factor.into_expression(), addend.into_expression(), PhantomData))
    }

    /// The values between two others: those outside become the nearer one. NaN stays NaN.
    pub fn clamp<B, C>(self, low: B, high: C) -> Lazy<Ternary<Clamp, E, B::Expression, C::Expression>>
    where
        B: Operand<E::Elem>,
        C: Operand<E::Elem>,
        Clamp: Calculation<E::Elem>,
        B::Dim: Broadcast<C::Dim>,
        E::Dim: Broadcast<Together<B::Dim, C::Dim>>,
    {
        Lazy(Ternary(self.0, low.into_expression(), high.into_expression(), PhantomData))
    }

    /// `a` where this is true, otherwise `b`.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[-1.0_f32, 2.0])?;
    /// assert_eq!(x.lazy().gt(0.0).select(&x, 0.0).eval()?.to_vec()?, [0.0, 2.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    pub fn select<T, B, C>(self, a: B, b: C) -> Lazy<Ternary<Select, E, B::Expression, C::Expression>>
    where
        E: Expression<Elem = bool>,
        T: Scalar,
        B: Operand<T>,
        C: Operand<T>,
        B::Dim: Broadcast<C::Dim>,
        E::Dim: Broadcast<Together<B::Dim, C::Dim>>,
    {
        Lazy(Ternary(self.0, a.into_expression(), b.into_expression(), PhantomData))
    }

    /// The values as another type, as `as` converts them: floating-point numbers become the nearest ones or saturate, integers wrap, NaN
    /// becomes zero as an integer, and as `bool` all but zero is true. A number becomes a complex one with the imaginary part 0; the other way
    /// are [`Lazy::re`], [`Lazy::im`] and [`Lazy::abs`].
    pub fn cast<U: Scalar>(self) -> Lazy<Converted<U, E>>
    where
        E::Elem: ConvertsTo<U>,
    {
        Lazy(Converted(self.0, PhantomData))
    }

    /// The expression with a type that names only its elements and its dimension, for formulas that are chosen at run time. It has the same
    /// kernel.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{Expression, Lazy, ndarray::Ix1};
    ///
    /// type Vector<'e> = Lazy<Box<dyn Expression<Elem = f32, Dim = Ix1> + 'e>>;
    /// fn activated<'e>(x: Vector<'e>, name: &str) -> Vector<'e> {
    ///     if name == "relu" { x.max(0.0).boxed() } else { x.tanh().boxed() }
    /// }
    /// let x = GpuArray::from_slice(&gpu, &[-1.0_f32, 2.0])?;
    /// assert_eq!((activated(x.lazy().boxed(), "relu") + 1.0).eval()?.to_vec()?, [1.0, 3.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    pub fn boxed<'e>(self) -> Lazy<Box<dyn Expression<Elem = E::Elem, Dim = E::Dim> + 'e>>
    where
        E: 'e,
    {
        Lazy(Box::new(self.0))
    }

    /// Calculates the values in one kernel, on the `Gpu` of the first array. The result is in device memory, in the order of the first array
    /// that has its shape, if that is contiguous.
    ///
    /// The kernel's text is written from the expression's type and the layouts of its arrays. The first use of each on a device compiles it,
    /// which takes some hundredths of a second on a GPU whose driver does not have it on disk yet, and may wait for work on the device;
    /// [`Gpu::preload_for`](crate::Gpu::preload_for) does that ahead.
    ///
    /// # Errors
    ///
    /// - [`ArrayError::Shape`] if the operands cannot be broadcast to one shape, and if axes are permuted that the expression does not have.
    /// - [`ArrayError::Slice`] if a slice or a new axis is outside.
    /// - [`ArrayError::ExpressionSize`] if there are more than 31 arrays with those of the result, 100 numbers or 250 uses of arrays, and
    ///   [`ArrayError::TooManyArguments`] if their lengths and strides exceed a launch.
    /// - [`ArrayError::NoPeerAccess`] if an array is on another device than the first, without a link to it.
    /// - [`ArrayError::WrongDevice`] if an array belongs to another driver.
    /// - [`ArrayError::Pool`] if the allocation or a driver call fails.
    pub fn eval(&self) -> Result<GpuArray<E::Elem, E::Dim>, ArrayError>
    where
        E::Dim: Dimension,
    {
        evaluate(EXPRESSION, &self.0)
    }
}
