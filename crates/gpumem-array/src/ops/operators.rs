//! `+ - * /` and their assigning forms. They panic where the `try_…` methods of the arrays return an error.
//!
//! The left operand is an array by reference or a view, and the result a new array; or an array by value, which is overwritten if the
//! result has its shape. The right operand is an array, a view or a number. A number can also be the left operand.

use crate::array::{AsView, GpuArray, GpuView, GpuViewMut};
use crate::element::Numeric;
use crate::error::{ArrayError, or_panic};
use crate::ops::arithmetic::{ADD, DIV, MUL, Operation, SUB, Side, arrays_in_place, scalar_in_place};
use core::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Sub, SubAssign};
use ndarray::Dimension;

/// Overwrites an owned left operand, or creates a new array if the right one is larger.
fn owned<T: Numeric, D: Dimension, B: AsView<Elem = T>>(
    operation: Operation,
    mut left: GpuArray<T, D>,
    right: &B,
    make: impl FnOnce(&GpuArray<T, D>, &B) -> Result<GpuArray<T, D>, ArrayError>,
) -> Result<GpuArray<T, D>, ArrayError> {
    let view = right.as_view();
    if view.len() != 1 && view.shape() != left.shape() {
        return make(&left, right);
    }
    arrays_in_place(operation, &mut left.view_mut(), &view)?;
    Ok(left)
}

macro_rules! binary {
    ($trait:ident $method:ident $try:ident $operation:ident; $($right:ty),*) => {
        $(
            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, E: Dimension> $trait<$right> for &GpuArray<T, D> {
                type Output = GpuArray<T, D>;
                #[track_caller]
                fn $method(self, right: $right) -> GpuArray<T, D> {
                    or_panic(self.$try(&right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, E: Dimension> $trait<$right> for GpuView<'_, T, D> {
                type Output = GpuArray<T, D>;
                #[track_caller]
                fn $method(self, right: $right) -> GpuArray<T, D> {
                    or_panic(self.$try(&right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, E: Dimension> $trait<$right> for GpuArray<T, D> {
                type Output = GpuArray<T, D>;
                #[track_caller]
                fn $method(self, right: $right) -> GpuArray<T, D> {
                    let make = |left: &GpuArray<T, D>, right: &$right| left.$try(right);
                    or_panic(owned($operation, self, &right, make))
                }
            }
        )*
    };
}

macro_rules! assign {
    ($trait:ident $method:ident $try:ident; $($right:ty),*) => {
        $(
            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, E: Dimension> $trait<$right> for GpuArray<T, D> {
                #[track_caller]
                fn $method(&mut self, right: $right) {
                    or_panic(self.$try(&right))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<T: Numeric, D: Dimension, E: Dimension> $trait<$right> for GpuViewMut<'_, T, D> {
                #[track_caller]
                fn $method(&mut self, right: $right) {
                    or_panic(self.$try(&right))
                }
            }
        )*
    };
}

macro_rules! scalar_right {
    ($trait:ident $method:ident $try:ident $operation:ident, $assign_trait:ident $assign:ident $try_assign:ident) => {
        /// # Panics
        ///
        #[doc = concat!("If `", stringify!($try), "` returns an error.")]
        impl<T: Numeric, D: Dimension> $trait<T> for &GpuArray<T, D> {
            type Output = GpuArray<T, D>;
            #[track_caller]
            fn $method(self, right: T) -> GpuArray<T, D> {
                or_panic(self.$try(right))
            }
        }

        /// # Panics
        ///
        #[doc = concat!("If `", stringify!($try), "` returns an error.")]
        impl<T: Numeric, D: Dimension> $trait<T> for GpuView<'_, T, D> {
            type Output = GpuArray<T, D>;
            #[track_caller]
            fn $method(self, right: T) -> GpuArray<T, D> {
                or_panic(self.$try(right))
            }
        }

        /// # Panics
        ///
        #[doc = concat!("If `", stringify!($try), "` returns an error.")]
        impl<T: Numeric, D: Dimension> $trait<T> for GpuArray<T, D> {
            type Output = GpuArray<T, D>;
            #[track_caller]
            fn $method(mut self, right: T) -> GpuArray<T, D> {
                let result = scalar_in_place($operation, Side::Right, &mut self.view_mut(), right);
                or_panic(result);
                self
            }
        }

        /// # Panics
        ///
        #[doc = concat!("If `", stringify!($try_assign), "` returns an error.")]
        impl<T: Numeric, D: Dimension> $assign_trait<T> for GpuArray<T, D> {
            #[track_caller]
            fn $assign(&mut self, right: T) {
                or_panic(self.$try_assign(right))
            }
        }

        /// # Panics
        ///
        #[doc = concat!("If `", stringify!($try_assign), "` returns an error.")]
        impl<T: Numeric, D: Dimension> $assign_trait<T> for GpuViewMut<'_, T, D> {
            #[track_caller]
            fn $assign(&mut self, right: T) {
                or_panic(self.$try_assign(right))
            }
        }
    };
}

macro_rules! scalar_left {
    ($trait:ident $method:ident $try:ident $operation:ident: $($number:ty),*) => {
        $(
            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<D: Dimension> $trait<&GpuArray<$number, D>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, right: &GpuArray<$number, D>) -> GpuArray<$number, D> {
                    or_panic(right.$try(self))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<D: Dimension> $trait<GpuView<'_, $number, D>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, right: GpuView<'_, $number, D>) -> GpuArray<$number, D> {
                    or_panic(right.$try(self))
                }
            }

            /// # Panics
            ///
            #[doc = concat!("If `", stringify!($try), "` returns an error.")]
            impl<D: Dimension> $trait<GpuArray<$number, D>> for $number {
                type Output = GpuArray<$number, D>;
                #[track_caller]
                fn $method(self, mut right: GpuArray<$number, D>) -> GpuArray<$number, D> {
                    let result = scalar_in_place($operation, Side::Left, &mut right.view_mut(), self);
                    or_panic(result);
                    right
                }
            }
        )*
    };
}

macro_rules! operators {
    ($($trait:ident $method:ident $try:ident $try_scalar:ident $try_left:ident $operation:ident,
       $assign_trait:ident $assign:ident $try_assign:ident $try_assign_scalar:ident;)*) => {
        $(
            binary!($trait $method $try $operation; &GpuArray<T, E>, GpuView<'_, T, E>, GpuArray<T, E>);
            assign!($assign_trait $assign $try_assign; &GpuArray<T, E>, GpuView<'_, T, E>, GpuArray<T, E>);
            scalar_right!($trait $method $try_scalar $operation, $assign_trait $assign $try_assign_scalar);
            scalar_left!($trait $method $try_left $operation: f32, f64, i32, i64);
        )*
    };
}

operators! {
    Add add try_add try_add_scalar try_scalar_add ADD, AddAssign add_assign try_add_assign try_add_assign_scalar;
    Sub sub try_sub try_sub_scalar try_scalar_sub SUB, SubAssign sub_assign try_sub_assign try_sub_assign_scalar;
    Mul mul try_mul try_mul_scalar try_scalar_mul MUL, MulAssign mul_assign try_mul_assign try_mul_assign_scalar;
    Div div try_div try_div_scalar try_scalar_div DIV, DivAssign div_assign try_div_assign try_div_assign_scalar;
}
