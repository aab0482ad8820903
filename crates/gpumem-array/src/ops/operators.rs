//! `+ - * /` and their assigning forms. They panic where the `try_…` methods of the arrays return an error.
//!
//! The left operand is an array by reference or a view, and the result is a new array. A left operand by value is overwritten if it is in
//! device memory and has the shape of the result. The right operand is any [`Operand`]. A number can also be the left operand.

use crate::array::{GpuArray, GpuView, GpuViewMut};
use crate::element::Numeric;
use crate::error::or_panic;
use crate::kind::Kind;
use crate::ops::arithmetic::{
    ADD, DIV, MUL, SUB, ScalarSide, apply, apply_in_place, apply_owned, scalar, scalar_owned,
};
use crate::ops::operand::Operand;
use core::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Sub, SubAssign};
use ndarray::Dimension;

macro_rules! operators {
    ($($operation:ident: $trait:ident $method:ident $try:ident, $assign_trait:ident $assign:ident $try_assign:ident;)*) => {
        $(
            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, K: Kind, B: Operand<T>> $trait<B> for &GpuArray<T, D, K> {
                type Output = GpuArray<T, D>;
                #[track_caller]
                fn $method(self, right: B) -> GpuArray<T, D> {
                    or_panic(apply($operation, &self.view(), &right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, B: Operand<T>> $trait<B> for GpuView<'_, T, D> {
                type Output = GpuArray<T, D>;
                #[track_caller]
                fn $method(self, right: B) -> GpuArray<T, D> {
                    or_panic(apply($operation, &self, &right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, K: Kind, B: Operand<T>> $trait<B> for GpuArray<T, D, K> {
                type Output = GpuArray<T, D>;
                #[track_caller]
                fn $method(self, right: B) -> GpuArray<T, D> {
                    or_panic(apply_owned($operation, self, &right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try_assign), "` returns an error.")]
            impl<T: Numeric, D: Dimension, K: Kind, B: Operand<T>> $assign_trait<B> for GpuArray<T, D, K> {
                #[track_caller]
                fn $assign(&mut self, right: B) {
                    or_panic(apply_in_place($operation, &mut self.view_mut(), &right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try_assign), "` returns an error.")]
            impl<T: Numeric, D: Dimension, B: Operand<T>> $assign_trait<B> for GpuViewMut<'_, T, D> {
                #[track_caller]
                fn $assign(&mut self, right: B) {
                    or_panic(apply_in_place($operation, self, &right))
                }
            }

            numbers!($operation: $trait $method; f32, f64, i32, i64);
        )*
    };
}

macro_rules! numbers {
    ($operation:ident: $trait:ident $method:ident; $($number:ty),*) => {
        $(
            /// # Panics
            ///
            /// If the operation of the array with the number returns an error.
            impl<D: Dimension, K: Kind> $trait<&GpuArray<$number, D, K>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, right: &GpuArray<$number, D, K>) -> GpuArray<$number, D> {
                    or_panic(scalar($operation, ScalarSide::Left, &right.view(), self))
                }
            }

            /// # Panics
            ///
            /// If the operation of the view with the number returns an error.
            impl<D: Dimension> $trait<GpuView<'_, $number, D>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, right: GpuView<'_, $number, D>) -> GpuArray<$number, D> {
                    or_panic(scalar($operation, ScalarSide::Left, &right, self))
                }
            }

            /// # Panics
            ///
            /// If the operation of the array with the number returns an error.
            impl<D: Dimension, K: Kind> $trait<GpuArray<$number, D, K>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, right: GpuArray<$number, D, K>) -> GpuArray<$number, D> {
                    or_panic(scalar_owned($operation, self, right))
                }
            }
        )*
    };
}

operators! {
    ADD: Add add try_add, AddAssign add_assign try_add_assign;
    SUB: Sub sub try_sub, SubAssign sub_assign try_sub_assign;
    MUL: Mul mul try_mul, MulAssign mul_assign try_mul_assign;
    DIV: Div div try_div, DivAssign div_assign try_div_assign;
}
