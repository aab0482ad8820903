//! Targets on the host, and the trait that wrappers require of their array.

use gpumem_array::ndarray::{Array1, ArrayView1, Ix1};
use gpumem_array::{Element, GpuArray, GpuView, PinnedArray, UnifiedArray};

/// The host, as `ndarray` arrays: a target of [`Adapt`](crate::Adapt).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host;

/// The host, as `Vec`s: a target of [`Adapt`](crate::Adapt) for one-dimensional arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostVec;

/// One-dimensional storage, which wrappers such as [`Diagonal`](crate::Diagonal) require of their array.
///
/// The methods read no elements, so they cost the same on host and device.
#[expect(clippy::len_without_is_empty, reason = "every storage has an `is_empty` of its own")]
pub trait Storage {
    /// The element type.
    type Elem;

    /// The number of elements.
    fn len(&self) -> usize;

    /// The type without paths: `Vec<f32>`, `GpuArray<f32, Ix1>`.
    fn type_name() -> String;
}

macro_rules! storages {
    ($([$($bound:ident)?] $storage:ty, $name:literal);* $(;)?) => {$(
        impl<T $(: $bound)?> Storage for $storage {
            type Elem = T;

            fn len(&self) -> usize {
                self.len()
            }

            fn type_name() -> String {
                format!($name, short_name::<T>())
            }
        }
    )*};
}

storages! {
    [] Vec<T>, "Vec<{}>";
    [] Array1<T>, "Array1<{}>";
    [] ArrayView1<'_, T>, "ArrayView1<{}>";
    [Element] GpuArray<T, Ix1>, "GpuArray<{}, Ix1>";
    [Element] UnifiedArray<T, Ix1>, "UnifiedArray<{}, Ix1>";
    [Element] PinnedArray<T, Ix1>, "PinnedArray<{}, Ix1>";
    [Element] GpuView<'_, T, Ix1>, "GpuView<{}, Ix1>";
}

/// The last part of a type's path.
fn short_name<T>() -> &'static str {
    let path = std::any::type_name::<T>();
    path.rsplit("::").next().unwrap_or(path)
}
