//! `Adapt` for the standard library's types: values that contain others, and values that stay as they are.

mod arrays;
#[cfg(feature = "nalgebra")]
mod nalgebra;

#[cfg(feature = "nalgebra")]
pub use self::nalgebra::Nalgebra;

use crate::adapt::{Adapt, Collect, Collected, Merged, MergedAlone, Separate};
use crate::context::{Context, Plan};
use crate::error::{AdaptError, Part};
use crate::target::{Receive, Target, same};
use core::ffi::CStr;
use core::fmt::Debug;
use core::hash::{BuildHasher, Hash};
use core::marker::PhantomData;
use core::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use gpumem_array::ndarray::Ix1;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

impl<To: Target, A: Adapt<To>> Adapt<To> for [A] {
    type Adapted = Collected<To, A>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        A::Many::copy(self, cx, |item, cx| item.adapt_with(cx))
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        A::Many::plan(self, plan, |item, plan| item.plan(plan));
    }

    fn is_at(&self, to: &To) -> bool {
        A::Many::is_at(self, to, |item| item.is_at(to))
    }
}

impl<To: Target, A: Adapt<To>> Adapt<To> for Vec<A> {
    type Adapted = Collected<To, A>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.as_slice().adapt_with(cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        A::Many::take(self, cx, |item, cx| item.into_adapted_with(cx))
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        self.as_slice().plan(plan);
    }

    fn is_at(&self, to: &To) -> bool {
        self.as_slice().is_at(to)
    }
}

impl<To: Target, A: Adapt<To>> Adapt<To> for Box<[A]> {
    type Adapted = Collected<To, A>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt_with(cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.into_vec().into_adapted_with(cx)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        (**self).plan(plan);
    }

    fn is_at(&self, to: &To) -> bool {
        (**self).is_at(to)
    }
}

impl<To: Target, A: Adapt<To> + Clone> Adapt<To> for Cow<'_, [A]> {
    type Adapted = Collected<To, A>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt_with(cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        match self {
            Cow::Borrowed(items) => items.adapt_with(cx),
            Cow::Owned(items) => items.into_adapted_with(cx),
        }
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        (**self).plan(plan);
    }
}

/// Adapts like the value inside; a borrowed value is copied.
impl<To: Target, A: Adapt<To> + Clone> Adapt<To> for Cow<'_, A> {
    type Adapted = A::Adapted;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt_with(cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        match self {
            Cow::Borrowed(value) => value.adapt_with(cx),
            Cow::Owned(value) => value.into_adapted_with(cx),
        }
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        (**self).plan(plan);
    }

    fn is_at(&self, to: &To) -> bool {
        matches!(self, Cow::Owned(value) if value.is_at(to))
    }
}

/// A reference adapts like its target, which is copied: `(&inputs, &targets)` adapts both and moves neither.
impl<To: Target, A: Adapt<To>> Adapt<To> for &A {
    type Adapted = A::Adapted;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt_with(cx)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        (**self).plan(plan);
    }
}

/// A slice adapts like a `Vec`.
impl<To: Target, A: Adapt<To>> Adapt<To> for &[A] {
    type Adapted = Collected<To, A>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt_with(cx)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        (**self).plan(plan);
    }
}

/// Adapts each item. The length is part of the type, so an array of numbers stays an array.
impl<To, A, const N: usize> Adapt<To> for [A; N]
where
    To: Target,
    A: Adapt<To>,
    A::Many: Collect<To, [A; N], [A::Adapted; N]>,
{
    type Adapted = [A::Adapted; N];
    type Many = A::Many;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        items(self.iter(), |item, cx| item.adapt_with(cx), cx)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        items(self.into_iter(), A::into_adapted_with, cx)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        self.iter().for_each(|item| item.plan(plan));
    }

    fn is_at(&self, to: &To) -> bool {
        self.iter().all(|item| item.is_at(to))
    }
}

/// Collects the items of an array.
fn items<To, A, B, const N: usize>(
    items: impl Iterator<Item = A>,
    each: impl Fn(A, &mut Context<'_, To>) -> Result<B, AdaptError>,
    cx: &mut Context<'_, To>,
) -> Result<[B; N], AdaptError> {
    let items = items.enumerate().map(|(index, item)| each(item, cx).map_err(|error| error.within(index)));
    let items: Vec<B> = items.collect::<Result<_, _>>()?;
    items.try_into().map_err(|_| AdaptError::custom("an array has another number of items than its type"))
}

impl<To: Target, A: Adapt<To>> Adapt<To> for Option<A> {
    type Adapted = Option<A::Adapted>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.as_ref().map(|value| value.adapt_with(cx)).transpose()
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        self.map(|value| value.into_adapted_with(cx)).transpose()
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        self.iter().for_each(|value| value.plan(plan));
    }

    fn is_at(&self, to: &To) -> bool {
        self.as_ref().is_none_or(|value| value.is_at(to))
    }
}

impl<To: Target, A: Adapt<To>, E: Adapt<To>> Adapt<To> for Result<A, E> {
    type Adapted = Result<A::Adapted, E::Adapted>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        Ok(match self {
            Ok(value) => Ok(value.adapt_with(cx)?),
            Err(error) => Err(error.adapt_with(cx)?),
        })
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        Ok(match self {
            Ok(value) => Ok(value.into_adapted_with(cx)?),
            Err(error) => Err(error.into_adapted_with(cx)?),
        })
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        match self {
            Ok(value) => value.plan(plan),
            Err(error) => error.plan(plan),
        }
    }

    fn is_at(&self, to: &To) -> bool {
        match self {
            Ok(value) => value.is_at(to),
            Err(error) => error.is_at(to),
        }
    }
}

impl<To: Target, A: Adapt<To>> Adapt<To> for Box<A> {
    type Adapted = Box<A::Adapted>;
    type Many = Separate;

    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (**self).adapt_with(cx).map(Box::new)
    }

    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
        (*self).into_adapted_with(cx).map(Box::new)
    }

    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        (**self).plan(plan);
    }

    fn is_at(&self, to: &To) -> bool {
        (**self).is_at(to)
    }
}

macro_rules! shared {
    ($($pointer:ident)*) => {$(
        /// The value is moved once. All owners within the value share the result, as they shared the original.
        impl<To, A> Adapt<To> for $pointer<A>
        where
            To: Target,
            A: Adapt<To> + 'static,
            A::Adapted: 'static,
        {
            type Adapted = $pointer<A::Adapted>;
            type Many = Separate;

            fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                let address = $pointer::as_ptr(self).addr();
                if let Some(moved) = cx.shared(address) {
                    return Ok(moved);
                }
                let moved = $pointer::new((**self).adapt_with(cx)?);
                cx.share(address, &moved, self.clone());
                Ok(moved)
            }

            fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                let address = $pointer::as_ptr(&self).addr();
                if let Some(moved) = cx.shared(address) {
                    return Ok(moved);
                }
                let shared = match $pointer::try_unwrap(self) {
                    Ok(value) => return value.into_adapted_with(cx).map($pointer::new),
                    Err(shared) => shared,
                };
                if !shared.is_at(cx.to()) {
                    return shared.adapt_with(cx);
                }
                match same(shared) {
                    Ok(shared) => Ok(shared),
                    Err(shared) => shared.adapt_with(cx),
                }
            }

            fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
                if plan.is_first($pointer::as_ptr(self).addr()) {
                    (**self).plan(plan);
                }
            }

            fn is_at(&self, to: &To) -> bool {
                (**self).is_at(to)
            }
        }
    )*};
}

shared!(Rc Arc);

/// The methods that all maps share.
macro_rules! of_values {
    ($old:ident => $new:expr) => {
        type Many = Separate;

        fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
            let $old = self;
            let mut adapted = $new;
            for (key, value) in self {
                let value = value.adapt_with(cx).map_err(|error| error.within(part(key)))?;
                adapted.insert(key.clone(), value);
            }
            Ok(adapted)
        }

        fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
            let $old = &self;
            let mut adapted = $new;
            for (key, value) in self {
                let value = value.into_adapted_with(cx).map_err(|error| error.within(part(&key)))?;
                adapted.insert(key, value);
            }
            Ok(adapted)
        }

        fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
            self.values().for_each(|value| value.plan(plan));
        }

        fn is_at(&self, to: &To) -> bool {
            self.values().all(|value| value.is_at(to))
        }
    };
}

/// Adapts the values. Keys stay as they are.
impl<To, Q, V> Adapt<To> for BTreeMap<Q, V>
where
    To: Target,
    Q: Ord + Clone + Debug,
    V: Adapt<To>,
{
    type Adapted = BTreeMap<Q, V::Adapted>;
    of_values!(_map => BTreeMap::new());
}

/// Adapts the values. Keys stay as they are.
impl<To, Q, V, H> Adapt<To> for HashMap<Q, V, H>
where
    To: Target,
    Q: Eq + Hash + Clone + Debug,
    V: Adapt<To>,
    H: BuildHasher + Clone,
{
    type Adapted = HashMap<Q, V::Adapted, H>;
    of_values!(map => HashMap::with_capacity_and_hasher(map.len(), map.hasher().clone()));
}

fn part(key: &impl Debug) -> Part {
    Part::Key(format!("{key:?}"))
}

macro_rules! tuples {
    ($($(($name:ident $index:tt))+;)*) => {$(
        /// Adapts each element.
        impl<To: Target, $($name: Adapt<To>),+> Adapt<To> for ($($name,)+) {
            type Adapted = ($($name::Adapted,)+);
            type Many = Separate;

            fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                Ok(($(self.$index.adapt_with(cx).map_err(|error| error.within(stringify!($index)))?,)+))
            }

            fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError> {
                Ok(($(self.$index.into_adapted_with(cx).map_err(|error| error.within(stringify!($index)))?,)+))
            }

            fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
                $(self.$index.plan(plan);)+
            }

            fn is_at(&self, to: &To) -> bool {
                $(self.$index.is_at(to))&&+
            }
        }
    )*};
}

tuples! {
    (A 0);
    (A 0) (B 1);
    (A 0) (B 1) (C 2);
    (A 0) (B 1) (C 2) (D 3);
    (A 0) (B 1) (C 2) (D 3) (E 4);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6) (H 7);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6) (H 7) (I 8);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6) (H 7) (I 8) (J 9);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6) (H 7) (I 8) (J 9) (K 10);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6) (H 7) (I 8) (J 9) (K 10) (L 11);
}

/// The methods of a value that does not change.
macro_rules! unchanged {
    () => {
        type Adapted = Self;

        fn adapt_with(&self, _: &mut Context<'_, To>) -> Result<Self, AdaptError> {
            Ok(self.clone())
        }

        fn into_adapted_with(self, _: &mut Context<'_, To>) -> Result<Self, AdaptError> {
            Ok(self)
        }

        fn is_at(&self, _: &To) -> bool {
            true
        }
    };
}

/// Values that stay as they are, and are elements of arrays.
macro_rules! scalars {
    ($many:ident: $($scalar:ty)*) => {$(
        /// A number by itself stays as it is: kernels take it by value.
        impl<To: Receive<$scalar, Ix1>> Adapt<To> for $scalar {
            type Many = $many;
            unchanged!();
        }
    )*};
}

scalars!(Merged: f32 f64 i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
scalars!(MergedAlone: bool char);
#[cfg(feature = "half")]
scalars!(Merged: half::f16 half::bf16);
#[cfg(feature = "complex")]
scalars!(Merged: num_complex::Complex<f32> num_complex::Complex<f64>);
#[cfg(all(feature = "half", feature = "complex"))]
scalars!(Merged: num_complex::Complex<half::f16> num_complex::Complex<half::bf16>);

/// Values that stay as they are.
macro_rules! constants {
    ($([$($parameters:tt)*] $constant:ty),* $(,)?) => {$(
        /// Stays as it is.
        impl<To: Target, $($parameters)*> Adapt<To> for $constant {
            type Many = Separate;
            unchanged!();
        }
    )*};
}

/// Texts, paths and other strings: owned, borrowed and shared.
macro_rules! texts {
    ($($owned:ty, $borrowed:ty;)*) => {
        constants! {$(
            [] $owned,
            [] &$borrowed,
            [] Cow<'_, $borrowed>,
            [] Box<$borrowed>,
            [] Rc<$borrowed>,
            [] Arc<$borrowed>,
        )*}
    };
}

texts! {
    String, str;
    PathBuf, Path;
    OsString, OsStr;
    CString, CStr;
}

constants! {
    [] (),
    [T: ?Sized] PhantomData<T>,
    [I: Clone] Range<I>,
    [I: Clone] RangeInclusive<I>,
    [I: Clone] RangeFrom<I>,
    [I: Clone] RangeTo<I>,
    [I: Clone] RangeToInclusive<I>,
    [] RangeFull,
}
