//! `+ - * / %`, their assigning forms, and `-x`. They panic where the `try_…` methods of the arrays return an error.
//!
//! The left operand is an array by reference or a view of any kind, and the result is a new array. An array by value is overwritten if it is
//! in device memory and has the shape of the result. The right operand is any [`Operand`]. A number can also be the left operand.

use crate::array::{GpuArray, GpuCow, GpuView, GpuViewMut};
use crate::element::kind::Kind;
use crate::error::or_panic;
use crate::expression::evaluate::evaluate;
use crate::expression::node::{Binary, Broadcast, Calculation, Constant, Elements, Together};
use crate::expression::{Arithmetic, Operand, operation};
use crate::ops::arithmetic::{apply_owned, scalar_owned};
use core::marker::PhantomData;
use core::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Rem, RemAssign, Sub, SubAssign};
use ndarray::Dimension;

macro_rules! operators {
    ($($name:literal $trait:ident $method:ident $try:ident, $assign_trait:ident $assign:ident $try_assign:ident;)*) => {
        $(
            left_operands! {
                $trait $method $try;
                [K: Kind,] &GpuArray<T, D, K>;
                [] GpuView<'_, T, D>;
                [] &GpuView<'_, T, D>;
                [] GpuViewMut<'_, T, D>;
                [] &GpuViewMut<'_, T, D>;
                [] GpuCow<'_, T, D>;
                [] &GpuCow<'_, T, D>;
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Arithmetic, D: Dimension, K: Kind, B: Operand<T>> $trait<B> for GpuArray<T, D, K>
            where
                D: Broadcast<B::Dim, Dim: Dimension>,
                operation::$trait: Calculation<T, Out = T>,
            {
                type Output = GpuArray<T, Together<D, B::Dim>>;
                #[track_caller]
                fn $method(self, right: B) -> Self::Output {
                    or_panic(apply_owned::<operation::$trait, _, _, _, _>($name, self, &right.into_expression()))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try_assign), "` returns an error.")]
            impl<T: Arithmetic, D: Dimension, K: Kind, B: Operand<T>> $assign_trait<B> for GpuArray<T, D, K>
            where
                D: Broadcast<B::Dim>,
                operation::$trait: Calculation<T, Out = T>,
            {
                #[track_caller]
                fn $assign(&mut self, right: B) {
                    or_panic(self.$try_assign(right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try_assign), "` returns an error.")]
            impl<T: Arithmetic, D: Dimension, B: Operand<T>> $assign_trait<B> for GpuViewMut<'_, T, D>
            where
                D: Broadcast<B::Dim>,
                operation::$trait: Calculation<T, Out = T>,
            {
                #[track_caller]
                fn $assign(&mut self, right: B) {
                    or_panic(self.$try_assign(right))
                }
            }

            numbers!($name $trait $method; f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);
            #[cfg(feature = "half")]
            numbers!($name $trait $method; half::f16, half::bf16);
            operators!(@complex $name $trait $method);
        )*
    };
    (@complex $name:literal Rem rem) => {};
    (@complex $name:literal $trait:ident $method:ident) => {
        #[cfg(feature = "complex")]
        numbers!($name $trait $method; num_complex::Complex<f32>, num_complex::Complex<f64>);
    };
}

macro_rules! left_operands {
    ($trait:ident $method:ident $try:ident; $([$($parameters:tt)*] $left:ty;)*) => {$(
        /// # Panics
        ///
        #[doc = concat!("If `", stringify!($try), "` returns an error.")]
        impl<T: Arithmetic, D: Dimension, $($parameters)* B: Operand<T>> $trait<B> for $left
        where
            D: Broadcast<B::Dim, Dim: Dimension>,
            operation::$trait: Calculation<T, Out = T>,
        {
            type Output = GpuArray<T, Together<D, B::Dim>>;
            #[track_caller]
            fn $method(self, right: B) -> Self::Output {
                or_panic(self.$try(right))
            }
        }
    )*};
}

macro_rules! numbers {
    ($name:literal $trait:ident $method:ident; $($number:ty),*) => {
        $(
            right_operands! {
                $name $trait $method $number;
                [, K: Kind] &GpuArray<$number, D, K>;
                [] GpuView<'_, $number, D>;
                [] &GpuView<'_, $number, D>;
                [] GpuViewMut<'_, $number, D>;
                [] &GpuViewMut<'_, $number, D>;
                [] GpuCow<'_, $number, D>;
                [] &GpuCow<'_, $number, D>;
            }

            /// # Panics
            ///
            /// If the operation of the array with the number returns an error.
            impl<D: Dimension, K: Kind> $trait<GpuArray<$number, D, K>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, right: GpuArray<$number, D, K>) -> GpuArray<$number, D> {
                    or_panic(scalar_owned::<operation::$trait, _, _, _>($name, self, right))
                }
            }
        )*
    };
}

macro_rules! right_operands {
    ($name:literal $trait:ident $method:ident $number:ty; $([$($parameters:tt)*] $right:ty;)*) => {$(
        /// # Panics
        ///
        /// If the operation of the elements with the number returns an error.
        impl<D: Dimension $($parameters)*> $trait<$right> for $number {
            type Output = GpuArray<$number, D>;
            #[track_caller]
            fn $method(self, right: $right) -> GpuArray<$number, D> {
                let (left, right) = (Constant::new(self), Elements(right.view()));
                or_panic(evaluate($name, &Binary::<operation::$trait, _, _>(left, right, PhantomData)))
            }
        }
    )*};
}

operators! {
    "add" Add add try_add, AddAssign add_assign try_add_assign;
    "sub" Sub sub try_sub, SubAssign sub_assign try_sub_assign;
    "mul" Mul mul try_mul, MulAssign mul_assign try_mul_assign;
    "div" Div div try_div, DivAssign div_assign try_div_assign;
    "rem" Rem rem try_rem, RemAssign rem_assign try_rem_assign;
}

macro_rules! opposites {
    ($([$($parameters:tt)*] $array:ty;)*) => {$(
        /// # Panics
        ///
        /// If `try_neg` returns an error.
        impl<T: Arithmetic, D: Dimension, $($parameters)*> Neg for $array {
            type Output = GpuArray<T, D>;
            #[track_caller]
            fn neg(self) -> GpuArray<T, D> {
                or_panic(self.try_neg())
            }
        }
    )*};
}
opposites! {
    [K: Kind] GpuArray<T, D, K>;
    [K: Kind] &GpuArray<T, D, K>;
    [] GpuView<'_, T, D>;
    [] &GpuView<'_, T, D>;
    [] GpuViewMut<'_, T, D>;
    [] &GpuViewMut<'_, T, D>;
    [] GpuCow<'_, T, D>;
    [] &GpuCow<'_, T, D>;
}
