//! [`Storage`]: the families of arrays that a model is generic over. [`Shaped`]: the requirements of wrappers on the array inside.

use core::fmt;
use core::marker::PhantomData;
use gpumem_array::kind::{DeviceLocal, Pinned, Unified};
use gpumem_array::ndarray::{Array, ArrayView, Dimension};
use gpumem_array::{Element, GpuArray, GpuView, PinnedArray, UnifiedArray};

/// A family of arrays: the place where a model that is generic over it has its arrays.
///
/// | family | its arrays |
/// | --- | --- |
/// | [`Host`] | [`ndarray::Array<T, D>`](Array) |
/// | [`DeviceLocal`] | [`GpuArray<T, D>`](GpuArray), in device memory |
/// | [`Unified`] | [`UnifiedArray<T, D>`](UnifiedArray) |
/// | [`Pinned`] | [`PinnedArray<T, D>`](PinnedArray) |
///
/// ```
/// use gpumem_adapt::array::ndarray::{Ix1, Ix2};
/// use gpumem_adapt::{Host, Storage};
///
/// struct Dense<S: Storage> {
///     weight: S::Array<f32, Ix2>,
///     bias: S::Array<f32, Ix1>,
/// }
///
/// impl Dense<Host> {
///     fn zeros(inputs: usize, outputs: usize) -> Self {
///         use gpumem_adapt::array::ndarray::{Array1, Array2};
///         Self { weight: Array2::zeros((outputs, inputs)), bias: Array1::zeros(outputs) }
///     }
/// }
/// # let dense = Dense::zeros(2, 3);
/// # assert_eq!((dense.weight.len(), dense.bias.len()), (6, 3));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a family of arrays",
    note = "the families are `Host`, and of `gpumem_array::kind`: `DeviceLocal`, `Unified`, `Pinned`"
)]
pub trait Storage: 'static {
    /// An array of the family.
    type Array<T: Storable, D: Dimension + 'static>: Shaped<Elem = T> + Send + Sync + 'static;
}

/// The elements of every family of arrays: each type that is an [`Element`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be in an array on a GPU",
    label = "not plain bytes",
    note = "derive `NoUninit`, `CheckedBitPattern` and `Zeroable` of `bytemuck` for a type of your own",
    note = "values that stay on the host can be in a `Vec`"
)]
pub trait Storable: Element {}

// The compiler then reports the message above instead of the bounds of `Element`.
#[diagnostic::do_not_recommend]
impl<T: Element> Storable for T {}

/// The host: the family of `ndarray` arrays, and a target of [`Adapt`](crate::Adapt).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host;

/// The host, with one-dimensional arrays as `Vec`s: a target of [`Adapt`](crate::Adapt). Arrays of other dimensions become
/// `ndarray` arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostVec;

/// The host, with the element types of a policy: a target of [`Adapt`](crate::Adapt); see [`Host::elements`].
pub struct HostAs<P> {
    policy: PhantomData<fn() -> P>,
}

impl Host {
    /// Chooses the element policy: [`F32`](crate::F32), [`F64`](crate::F64), `F16`, `Bf16`, or your own. Elements on a device that become
    /// smaller are converted there, so that fewer bytes cross the link.
    ///
    /// ```
    /// use gpumem_adapt::array::{Gpu, ndarray::array, pool::{Device, Pool}};
    /// use gpumem_adapt::{Adapt, F64, Host};
    ///
    /// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let single = vec![0.5_f32, 1.5].adapt(&gpu)?;
    /// assert_eq!(single.adapt(&Host::elements::<F64>())?, array![0.5_f64, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn elements<P>() -> HostAs<P> {
        HostAs { policy: PhantomData }
    }
}

impl<P> Clone for HostAs<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for HostAs<P> {}

impl<P> fmt::Debug for HostAs<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAs").field("elements", &core::any::type_name::<P>()).finish()
    }
}

impl Storage for Host {
    type Array<T: Storable, D: Dimension + 'static> = Array<T, D>;
}

macro_rules! families {
    ($($kind:ty)*) => {$(
        impl Storage for $kind {
            type Array<T: Storable, D: Dimension + 'static> = GpuArray<T, D, $kind>;
        }
    )*};
}

families!(DeviceLocal Unified Pinned);

/// Types that have elements in a shape, on the host or on a device. The methods read no elements, so they cost the same on both.
#[expect(clippy::len_without_is_empty, reason = "every such type has an `is_empty` of its own")]
pub trait Shaped {
    /// The element type.
    type Elem;

    /// The number of elements.
    fn len(&self) -> usize;

    /// The lengths of the axes.
    fn lengths(&self) -> Vec<usize>;

    /// The type's name without paths: `Vec<f32>`, `GpuArray<f32, Ix1>`.
    fn type_name() -> String;
}

impl<T> Shaped for Vec<T> {
    type Elem = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn lengths(&self) -> Vec<usize> {
        vec![self.len()]
    }

    fn type_name() -> String {
        format!("Vec<{}>", short_name::<T>())
    }
}

macro_rules! shaped {
    ($([$($bound:ident)?] $array:ty, $name:expr;)*) => {$(
        impl<T $(: $bound)?, D: Dimension> Shaped for $array {
            type Elem = T;

            fn len(&self) -> usize {
                self.len()
            }

            fn lengths(&self) -> Vec<usize> {
                self.shape().to_vec()
            }

            fn type_name() -> String {
                $name(&short_name::<T>(), D::NDIM)
            }
        }
    )*};
}

shaped! {
    [] Array<T, D>, |element, axes| on_host("Array", element, axes);
    [] ArrayView<'_, T, D>, |element, axes| on_host("ArrayView", element, axes);
    [Element] GpuArray<T, D>, |element, axes| on_gpu("GpuArray", element, axes);
    [Element] UnifiedArray<T, D>, |element, axes| on_gpu("UnifiedArray", element, axes);
    [Element] PinnedArray<T, D>, |element, axes| on_gpu("PinnedArray", element, axes);
    [Element] GpuView<'_, T, D>, |element, axes| on_gpu("GpuView", element, axes);
}

/// Returns the name of `ndarray`'s alias: `Array1<f32>`, `ArrayD<f32>`.
fn on_host(name: &str, element: &str, axes: Option<usize>) -> String {
    match axes {
        Some(axes) => format!("{name}{axes}<{element}>"),
        None => format!("{name}D<{element}>"),
    }
}

fn on_gpu(name: &str, element: &str, axes: Option<usize>) -> String {
    match axes {
        Some(axes) => format!("{name}<{element}, Ix{axes}>"),
        None => format!("{name}<{element}, IxDyn>"),
    }
}

/// The name of a type without the paths in it.
fn short_name<T>() -> String {
    let is_end = |character: char| !(character.is_alphanumeric() || matches!(character, '_' | ':'));
    let parts = core::any::type_name::<T>().split_inclusive(is_end);
    parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_array::ndarray::Ix2;

    #[test]
    fn names_have_no_paths() {
        assert_eq!(Vec::<f32>::type_name(), "Vec<f32>");
        assert_eq!(Vec::<[core::ops::Range<Option<u8>>; 2]>::type_name(), "Vec<[Range<Option<u8>>; 2]>");
        assert_eq!(Vec::<(String, core::time::Duration)>::type_name(), "Vec<(String, Duration)>");
        type View = ArrayView<'static, [u16; 3], Ix2>;
        assert_eq!(View::type_name(), "ArrayView2<[u16; 3]>");
    }
}
