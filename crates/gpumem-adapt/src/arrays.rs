//! `Adapt` for arrays: uploads of slices, `Vec`s and `ndarray` arrays, downloads of GPU arrays.
//!
//! Copies from host to host are implemented too, so that code generic over `To` works on both sides.

use crate::{Adapt, AdaptError, Host, HostVec};
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Array, Array1, ArrayBase, ArrayView1, Data, Dimension, Ix1};
use gpumem_array::{Element, Gpu, GpuArray, GpuView};

impl<T: Element> Adapt<Gpu> for [T] {
    type Adapted = GpuArray<T, Ix1>;

    fn adapt(&self, to: &Gpu) -> Result<Self::Adapted, AdaptError> {
        Ok(GpuArray::from_slice(to, self)?)
    }
}

impl<T: Element> Adapt<Host> for [T] {
    type Adapted = Array1<T>;

    fn adapt(&self, _: &Host) -> Result<Self::Adapted, AdaptError> {
        Ok(ArrayView1::from(self).to_owned())
    }
}

impl<T: Element> Adapt<HostVec> for [T] {
    type Adapted = Vec<T>;

    fn adapt(&self, _: &HostVec) -> Result<Self::Adapted, AdaptError> {
        Ok(self.to_vec())
    }
}

/// Implements `Adapt` for types that contain a slice.
macro_rules! like_slices {
    ($([$($parameters:tt)*] $container:ty),*) => {$(
        impl<To, T: Element, $($parameters)*> Adapt<To> for $container
        where
            [T]: Adapt<To>,
        {
            type Adapted = <[T] as Adapt<To>>::Adapted;

            fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError> {
                self.as_slice().adapt(to)
            }
        }
    )*};
}

like_slices!([] Vec<T>, [const N: usize] [T; N]);

impl<T: Element, S: Data<Elem = T>, D: Dimension> Adapt<Gpu> for ArrayBase<S, D> {
    type Adapted = GpuArray<T, D>;

    fn adapt(&self, to: &Gpu) -> Result<Self::Adapted, AdaptError> {
        Ok(GpuArray::from_array(to, self)?)
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> Adapt<Host> for ArrayBase<S, D> {
    type Adapted = Array<T, D>;

    fn adapt(&self, _: &Host) -> Result<Self::Adapted, AdaptError> {
        Ok(self.to_owned())
    }
}

impl<T: Element, S: Data<Elem = T>> Adapt<HostVec> for ArrayBase<S, Ix1> {
    type Adapted = Vec<T>;

    fn adapt(&self, _: &HostVec) -> Result<Self::Adapted, AdaptError> {
        Ok(self.to_vec())
    }
}

/// Implements downloads of arrays and of views.
macro_rules! downloads {
    ($([$($parameters:tt)*] $storage:ty, $vector:ty);* $(;)?) => {$(
        impl<T: Element, D: Dimension, $($parameters)*> Adapt<Host> for $storage {
            type Adapted = Array<T, D>;

            fn adapt(&self, _: &Host) -> Result<Self::Adapted, AdaptError> {
                Ok(self.to_array()?)
            }
        }

        impl<T: Element, $($parameters)*> Adapt<HostVec> for $vector {
            type Adapted = Vec<T>;

            fn adapt(&self, _: &HostVec) -> Result<Self::Adapted, AdaptError> {
                Ok(self.to_vec()?)
            }
        }
    )*};
}

downloads! {
    [K: Kind] GpuArray<T, D, K>, GpuArray<T, Ix1, K>;
    [] GpuView<'_, T, D>, GpuView<'_, T, Ix1>;
}
