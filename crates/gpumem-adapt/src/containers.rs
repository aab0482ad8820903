//! `Adapt` for tuples, options, and scalars, which are copied unchanged.

use crate::{Adapt, AdaptError};

impl<To, A: Adapt<To>> Adapt<To> for Option<A> {
    type Adapted = Option<A::Adapted>;

    fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError> {
        self.as_ref().map(|value| value.adapt(to)).transpose()
    }
}

macro_rules! tuples {
    ($($(($name:ident $index:tt $place:literal))+;)*) => {$(
        /// Adapts each element.
        impl<To, $($name: Adapt<To>),+> Adapt<To> for ($($name,)+) {
            type Adapted = ($($name::Adapted,)+);

            fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError> {
                Ok(($(self.$index.adapt(to).map_err(|error| error.within($place))?,)+))
            }
        }
    )*};
}

tuples! {
    (A 0 "element 0");
    (A 0 "element 0") (B 1 "element 1");
    (A 0 "element 0") (B 1 "element 1") (C 2 "element 2");
    (A 0 "element 0") (B 1 "element 1") (C 2 "element 2") (D 3 "element 3");
    (A 0 "element 0") (B 1 "element 1") (C 2 "element 2") (D 3 "element 3") (E 4 "element 4");
    (A 0 "element 0") (B 1 "element 1") (C 2 "element 2") (D 3 "element 3") (E 4 "element 4") (F 5 "element 5");
}

macro_rules! scalars {
    ($($scalar:ty)*) => {$(
        /// Copies the scalar, which kernels take by value.
        impl<To> Adapt<To> for $scalar {
            type Adapted = Self;

            fn adapt(&self, _: &To) -> Result<Self, AdaptError> {
                Ok(*self)
            }
        }
    )*};
}

scalars!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 usize bool);
