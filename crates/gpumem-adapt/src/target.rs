//! Targets: where [`Adapt`](crate::Adapt) moves arrays, and how each target receives them.

use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::policy::{Policy, Single, Unchanged, converted};
use crate::storage::{Host, HostAs, HostVec, Storable, Storage};
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use gpumem_array::kind::{DeviceLocal, Kind, Pinned, Unified};
use gpumem_array::ndarray::{
    Array, ArrayView, Dimension, Ix0, Ix1, Ix2, Ix3, Ix4, Ix5, Ix6, IxDyn, ShapeBuilder,
};
use gpumem_array::{ArrayError, Element, Gpu, GpuArray, GpuView, Memory};
pub(crate) use sealed::KnownTarget;
use sealed::OnGpu;

/// A place that values are moved to.
///
/// | target | arrays become |
/// | --- | --- |
/// | [`Gpu`] | [`GpuArray<T, D>`](GpuArray) |
/// | [`Gpu::unified`], [`Gpu::pinned`] | arrays of that kind of memory |
/// | [`Destination`] | the same, with other element types and options |
/// | [`Host`] | [`ndarray::Array<T, D>`](Array) |
/// | [`HostVec`] | `Vec<T>` in one dimension, otherwise `ndarray` arrays |
/// | [`Host::elements`] | `ndarray` arrays with other element types |
#[diagnostic::on_unimplemented(
    message = "values cannot be moved to `{Self}`",
    note = "the targets are a `Gpu`, `gpu.unified()`, `gpu.pinned()`, `Destination::new(&gpu)`, `Host` and `HostVec`"
)]
pub trait Target: KnownTarget + Sized {
    /// The family of arrays of the target. For [`HostVec`] it is the host's family, except one-dimensional arrays.
    type Storage: Storage;
    /// The element policy.
    type Policy: 'static;
    /// The `Gpu` of the target; `None` for the host.
    fn gpu(&self) -> Option<&Gpu>;
    /// The size up to which arrays are uploaded together; see [`Destination::packed_below`].
    #[doc(hidden)]
    fn packed_below_bytes(&self) -> Option<usize> {
        None
    }
}

/// A target that supports arrays of `T`. Every target does, unless its element policy has no rule for `T`.
#[diagnostic::on_unimplemented(
    message = "arrays of `{T}` cannot be moved to `{Self}`",
    label = "this target has no such arrays"
)]
pub trait Receive<T: Storable, D: Dimension + 'static>: Target {
    /// The type of the array at the target.
    type Array;
    /// True if elements do not change.
    #[doc(hidden)]
    fn keeps() -> bool {
        true
    }
    /// Adds an array to the plan of an upload.
    #[doc(hidden)]
    fn plan_upload<'a>(array: ArrayView<'a, T, D>, plan: &mut Plan<'a>) {
        let _ = (array, plan);
    }
    /// Copies elements of the host.
    #[doc(hidden)]
    fn copy_from_host(
        array: ArrayView<'_, T, D>,
        cx: &mut Context<'_, Self>,
    ) -> Result<Self::Array, AdaptError>;
    /// Moves elements of the host.
    #[doc(hidden)]
    fn take_from_host(array: Array<T, D>, cx: &mut Context<'_, Self>) -> Result<Self::Array, AdaptError> {
        Self::copy_from_host(array.view(), cx)
    }
    /// Copies elements of a device.
    #[doc(hidden)]
    fn copy_from_gpu(view: GpuView<'_, T, D>, cx: &mut Context<'_, Self>) -> Result<Self::Array, AdaptError>;
    /// Moves elements of a device.
    #[doc(hidden)]
    fn take_from_gpu<K: Kind>(
        array: GpuArray<T, D, K>,
        cx: &mut Context<'_, Self>,
    ) -> Result<Self::Array, AdaptError> {
        Self::copy_from_gpu(array.view(), cx)
    }
}

/// A GPU as a target, with a kind of memory, an element policy and options.
///
/// ```
/// use gpumem_adapt::array::{Gpu, UnifiedArray, ndarray::Ix1, pool::{Device, Pool}};
/// use gpumem_adapt::{Adapt, Destination, F32};
///
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let destination = Destination::new(&gpu).unified().elements::<F32>();
/// let up: UnifiedArray<f32, Ix1> = vec![0.5_f64, 1.5].adapt(&destination)?;
/// assert_eq!(up[1], 1.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Destination<K = DeviceLocal, P = Unchanged> {
    gpu: Gpu,
    packed_below_bytes: usize,
    /// Contains no values of `K` or `P`.
    types: PhantomData<fn() -> (K, P)>,
}

impl Destination {
    /// Device memory of `gpu`, on its stream. Elements keep their types.
    #[must_use]
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), packed_below_bytes: PACKED_BELOW_BYTES, types: PhantomData }
    }

    /// Device memory of `gpu`, with elements in single precision: see [`Single`].
    #[must_use]
    pub fn single(gpu: &Gpu) -> Destination<DeviceLocal, Single> {
        Self::new(gpu).elements()
    }
}

impl<K, P> Destination<K, P> {
    /// Chooses unified memory.
    #[must_use]
    pub fn unified(self) -> Destination<Unified, P> {
        self.with()
    }

    /// Chooses pinned host memory.
    #[must_use]
    pub fn pinned(self) -> Destination<Pinned, P> {
        self.with()
    }

    /// Chooses the kind of memory by its type.
    #[must_use]
    pub fn memory<L: Kind>(self) -> Destination<L, P> {
        self.with()
    }

    /// Chooses the element policy: [`Unchanged`], [`Single`], [`F32`](crate::F32), `F16`, `Bf16`, or your own.
    #[must_use]
    pub fn elements<Q>(self) -> Destination<K, Q> {
        self.with()
    }

    /// Sets the size, in bytes, up to which the arrays of a value are uploaded together, in few transfers.
    /// The default is 64 KiB, and zero turns it off.
    ///
    /// From about sixteen on, small arrays are uploaded many times as fast together. Arrays in unified and pinned memory are uploaded one
    /// by one.
    #[must_use]
    pub fn packed_below(self, size_bytes: usize) -> Self {
        Self { packed_below_bytes: size_bytes, ..self }
    }

    fn with<L, Q>(self) -> Destination<L, Q> {
        let Self { gpu, packed_below_bytes, .. } = self;
        Destination { gpu, packed_below_bytes, types: PhantomData }
    }
}

impl<K, P> Clone for Destination<K, P> {
    fn clone(&self) -> Self {
        Self { gpu: self.gpu.clone(), packed_below_bytes: self.packed_below_bytes, types: PhantomData }
    }
}

impl<K: Kind, P> fmt::Debug for Destination<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("gpu", &self.gpu)
            .field("kind", &K::NAME)
            .field("elements", &core::any::type_name::<P>())
            .field("packed_below_bytes", &self.packed_below_bytes)
            .finish()
    }
}

mod sealed {
    use super::{Destination, Gpu, Host, HostAs, HostVec, Kind, Memory, Target};

    pub trait KnownTarget {}

    /// A target on a GPU.
    pub trait OnGpu: Target {
        type Kind: Kind;
        fn place(&self) -> Memory<'_, Self::Kind>;
    }

    impl KnownTarget for Gpu {}
    impl<K> KnownTarget for Memory<'_, K> {}
    impl<K, P> KnownTarget for Destination<K, P> {}
    impl KnownTarget for Host {}
    impl KnownTarget for HostVec {}
    impl<P> KnownTarget for HostAs<P> {}
}

macro_rules! on_gpu {
    ($([$($parameters:tt)*] $target:ty, $kind:ty, $policy:ty, |$self:ident| $gpu:expr, $below:expr;)*) => {$(
        impl<$($parameters)*> Target for $target {
            type Storage = $kind;
            type Policy = $policy;

            fn gpu(&$self) -> Option<&Gpu> {
                Some($gpu)
            }

            fn packed_below_bytes(&$self) -> Option<usize> {
                // The host accesses the other kinds, so each array has separate memory.
                let is_device = is_same::<$kind, DeviceLocal>();
                is_device.then_some($below)
            }
        }

        impl<$($parameters)*> OnGpu for $target {
            type Kind = $kind;

            fn place(&$self) -> Memory<'_, $kind> {
                $gpu.memory()
            }
        }
    )*};
}

on_gpu! {
    [] Gpu, DeviceLocal, Unchanged, |self| self, PACKED_BELOW_BYTES;
    [K: Kind + Storage] Memory<'_, K>, K, Unchanged, |self| gpumem_array::Place::gpu(self), PACKED_BELOW_BYTES;
    [K: Kind + Storage, P: 'static] Destination<K, P>, K, P, |self| &self.gpu, self.packed_below_bytes;
}

impl Target for Host {
    type Storage = Host;
    type Policy = Unchanged;

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

impl Target for HostVec {
    type Storage = Host;
    type Policy = Unchanged;

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

impl<P: 'static> Target for HostAs<P> {
    type Storage = Host;
    type Policy = P;

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

/// The element type that `T` has at a target.
type ElemAt<To, T> = <<To as Target>::Policy as Policy<T>>::Elem;

impl<T, D, To> Receive<T, D> for To
where
    T: Storable,
    D: Dimension + 'static,
    To: OnGpu,
    To::Policy: Policy<T>,
{
    type Array = GpuArray<ElemAt<To, T>, D, To::Kind>;

    fn keeps() -> bool {
        To::Policy::unchanged(&[]).is_some()
    }

    fn plan_upload<'a>(array: ArrayView<'a, T, D>, plan: &mut Plan<'a>) {
        match unchanged::<To::Policy, T, D>(&array) {
            Some(unchanged) => plan.add(&array, unchanged),
            None => plan.add_converted(&array, To::Policy::convert),
        }
    }

    fn copy_from_host(
        array: ArrayView<'_, T, D>,
        cx: &mut Context<'_, Self>,
    ) -> Result<Self::Array, AdaptError> {
        if let Some(uploaded) = cx.uploaded::<T, ElemAt<To, T>, D>(&array)
            && let Ok(uploaded) = same(uploaded)
        {
            return owned(uploaded, cx);
        }
        let place = cx.to().place();
        let uploaded = match unchanged::<To::Policy, T, D>(&array) {
            Some(unchanged) => GpuArray::from_array(&place, &unchanged)?,
            // Without gaps and repeated elements, which the array layer would gather.
            None if <Self as Receive<T, D>>::keeps() => {
                match same(GpuArray::<T, D, To::Kind>::from_array(&place, &array)?) {
                    Ok(array) => array,
                    // The policy names another type for the same bytes.
                    Err(_) => To::Policy::upload(&array, &place)?,
                }
            }
            None => To::Policy::upload(&array, &place)?,
        };
        owned(uploaded, cx)
    }

    fn copy_from_gpu(view: GpuView<'_, T, D>, cx: &mut Context<'_, Self>) -> Result<Self::Array, AdaptError> {
        if <Self as Receive<T, D>>::keeps()
            && let Ok(array) = same(view.copy_to(&cx.to().place())?)
        {
            return owned(array, cx);
        }
        match To::Policy::on_device(&view, &cx.to().place()) {
            Some(converted) => owned(converted?, cx),
            None => Self::copy_from_host(view.to_array()?.view(), cx),
        }
    }

    fn take_from_gpu<K: Kind>(
        array: GpuArray<T, D, K>,
        cx: &mut Context<'_, Self>,
    ) -> Result<Self::Array, AdaptError> {
        let place = cx.to().place();
        let gpu = gpumem_array::Place::gpu(&place);
        let is_kept = <Self as Receive<T, D>>::keeps() && array.gpu().device() == gpu.device();
        let array = if is_kept { same(array) } else { Err(array) };
        match array {
            Ok(array) => {
                let array = Self::Array::into_gpu(array, gpu).map_err(ArrayError::from)?;
                owned(array, cx)
            }
            Err(array) => Self::copy_from_gpu(array.view(), cx),
        }
    }
}

/// The array with the `Gpu` that new arrays belong to.
fn owned<To, T: Element, D: Dimension, K: Kind>(
    array: GpuArray<T, D, K>,
    cx: &Context<'_, To>,
) -> Result<GpuArray<T, D, K>, AdaptError> {
    match cx.owner() {
        Some(gpu) => Ok(array.into_gpu(gpu).map_err(ArrayError::from)?),
        None => Ok(array),
    }
}

impl<T: Element, D: Dimension + 'static> Receive<T, D> for Host {
    type Array = Array<T, D>;

    fn copy_from_host(
        array: ArrayView<'_, T, D>,
        _: &mut Context<'_, Self>,
    ) -> Result<Array<T, D>, AdaptError> {
        Ok(copied(&array)?)
    }

    fn take_from_host(array: Array<T, D>, _: &mut Context<'_, Self>) -> Result<Array<T, D>, AdaptError> {
        Ok(array)
    }

    fn copy_from_gpu(view: GpuView<'_, T, D>, _: &mut Context<'_, Self>) -> Result<Array<T, D>, AdaptError> {
        Ok(view.to_array()?)
    }
}

impl<T, D, P> Receive<T, D> for HostAs<P>
where
    T: Element,
    D: Dimension + 'static,
    P: Policy<T>,
{
    type Array = Array<P::Elem, D>;

    fn keeps() -> bool {
        P::unchanged(&[]).is_some()
    }

    fn copy_from_host(
        array: ArrayView<'_, T, D>,
        _: &mut Context<'_, Self>,
    ) -> Result<Self::Array, AdaptError> {
        Ok(match unchanged::<P, T, D>(&array) {
            Some(unchanged) => copied(&unchanged)?,
            None => converted(&array, P::convert)?,
        })
    }

    fn take_from_host(array: Array<T, D>, cx: &mut Context<'_, Self>) -> Result<Self::Array, AdaptError> {
        if <Self as Receive<T, D>>::keeps() {
            same(array).or_else(|array: Array<T, D>| Self::copy_from_host(array.view(), cx))
        } else {
            Self::copy_from_host(array.view(), cx)
        }
    }

    fn copy_from_gpu(view: GpuView<'_, T, D>, cx: &mut Context<'_, Self>) -> Result<Self::Array, AdaptError> {
        if <Self as Receive<T, D>>::keeps() {
            Self::take_from_host(view.to_array()?, cx)
        } else {
            Ok(P::download(&view)?)
        }
    }
}

impl<T: Element> Receive<T, Ix1> for HostVec {
    type Array = Vec<T>;

    fn copy_from_host(array: ArrayView<'_, T, Ix1>, _: &mut Context<'_, Self>) -> Result<Vec<T>, AdaptError> {
        Ok(elements(copied(&array)?)?)
    }

    fn take_from_host(array: Array<T, Ix1>, _: &mut Context<'_, Self>) -> Result<Vec<T>, AdaptError> {
        Ok(elements(array)?)
    }

    fn copy_from_gpu(view: GpuView<'_, T, Ix1>, _: &mut Context<'_, Self>) -> Result<Vec<T>, AdaptError> {
        Ok(view.to_vec()?)
    }
}

macro_rules! as_arrays {
    ($($dimension:ty)*) => {$(
        impl<T: Element> Receive<T, $dimension> for HostVec {
            type Array = Array<T, $dimension>;

            fn copy_from_host(
                array: ArrayView<'_, T, $dimension>,
                _: &mut Context<'_, Self>,
            ) -> Result<Self::Array, AdaptError> {
                Ok(copied(&array)?)
            }

            fn take_from_host(array: Self::Array, _: &mut Context<'_, Self>) -> Result<Self::Array, AdaptError> {
                Ok(array)
            }

            fn copy_from_gpu(
                view: GpuView<'_, T, $dimension>,
                _: &mut Context<'_, Self>,
            ) -> Result<Self::Array, AdaptError> {
                Ok(view.to_array()?)
            }
        }
    )*};
}

as_arrays!(Ix0 Ix2 Ix3 Ix4 Ix5 Ix6 IxDyn);

/// The elements on the host. A view that repeats elements can have more of them than fit in memory.
pub(crate) fn copied<T: Element, D: Dimension>(
    array: &ArrayView<'_, T, D>,
) -> Result<Array<T, D>, ArrayError> {
    match array.as_slice_memory_order() {
        // Keeps the element order of contiguous memory.
        Some(_) => Ok(array.to_owned()),
        None => converted(array, |element| element),
    }
}

/// The elements, in their allocation if they have no gaps.
pub(crate) fn elements<T: Element>(array: Array<T, Ix1>) -> Result<Vec<T>, ArrayError> {
    let array = match array.as_slice() {
        Some(_) => array,
        None => converted(&array.view(), |element| element)?,
    };
    let len = array.len();
    let (mut elements, start) = array.into_raw_vec_and_offset();
    elements.drain(..start.unwrap_or(0));
    elements.truncate(len);
    Ok(elements)
}

/// The array itself, if the policy keeps its elements.
fn unchanged<'a, P: Policy<T>, T: Element, D: Dimension>(
    array: &ArrayView<'a, T, D>,
) -> Option<ArrayView<'a, P::Elem, D>> {
    if let Some(elements) = array.to_slice() {
        return ArrayView::from_shape(array.raw_dim(), P::unchanged(elements)?).ok();
    }
    let elements = array.clone().reversed_axes().to_slice()?;
    ArrayView::from_shape(array.raw_dim().f(), P::unchanged(elements)?).ok()
}

/// The default size up to which arrays are uploaded together.
pub(crate) const PACKED_BELOW_BYTES: usize = 64 << 10;

fn is_same<A: 'static, B: 'static>() -> bool {
    core::any::TypeId::of::<A>() == core::any::TypeId::of::<B>()
}

/// The value as one of type `B`, if that is its type.
pub(crate) fn same<A: 'static, B: 'static>(value: A) -> Result<B, A> {
    let mut value = Some(value);
    let found = (&mut value as &mut dyn Any).downcast_mut::<Option<B>>().and_then(Option::take);
    match (found, value) {
        (Some(found), _) => Ok(found),
        (None, Some(value)) => Err(value),
        (None, None) => unreachable!("a value that is taken is found"),
    }
}
