//! [`Adapt`]: the operation of this crate. [`Collect`]: the result of a sequence of values.

#[cfg(doctest)]
mod must_not_compile;

use crate::context::{Context, Plan};
use crate::error::AdaptError;
use crate::target::{Receive, Target};
use gpumem_array::ndarray::{Array1, ArrayView1, Ix1};
use gpumem_array::{Element, Gpu};

/// Rebuilds a value with its arrays at another place, and keeps its type otherwise.
///
/// [`adapt`](Adapt::adapt) copies, [`into_adapted`](Adapt::into_adapted) moves. Downloads are complete when these return. Uploads return
/// when the elements have been read; the copies run in stream order. If a part of a value fails, the parts that were already moved are
/// released, and the error names the part.
///
/// # Your own types
///
/// `#[derive(Adapt)]` (feature `derive`) adapts structs and enums field by field. Make a model generic over its
/// [`Storage`](crate::Storage), because a field of type `Array2<f32>` cannot hold device memory:
///
/// ```
/// use gpumem_adapt::array::kind::DeviceLocal;
/// use gpumem_adapt::array::ndarray::{Ix1, Ix2, array};
/// # use gpumem_adapt::array::{Gpu, pool::{self, Pool}};
/// # let device = pool::Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// # let gpu = Gpu::new(&Pool::new(&device)?)?;
/// # #[cfg(feature = "derive")] {
/// use gpumem_adapt::{Adapt, Host, Storage};
///
/// #[derive(Adapt)]
/// struct Layer<S: Storage> {
///     weight: S::Array<f32, Ix2>,
///     bias: Option<S::Array<f32, Ix1>>,
/// }
///
/// #[derive(Adapt)]
/// struct Mlp<S: Storage> {
///     layers: Vec<Layer<S>>,
///     rate: f32,
///     #[adapt(skip)]
///     name: String,
/// }
///
/// let layer = Layer { weight: array![[1.0, 2.0], [3.0, 4.0]], bias: Some(array![0.5, 0.5]) };
/// let model: Mlp<Host> = Mlp { layers: vec![layer], rate: 0.1, name: "small".into() };
/// let on_gpu: Mlp<DeviceLocal> = model.adapt(&gpu)?;
/// let back: Mlp<Host> = on_gpu.adapt(&Host)?;
/// assert_eq!(back.layers[0].weight, model.layers[0].weight);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A struct can also be generic over its arrays (`Layer<A>` with a field of type `A`). `#[adapt(skip)]` keeps a field and clones it for a
/// copy; `#[adapt(with = path)]` calls a function `fn(&Field, &mut Context<'_, To>) -> Result<NewField, AdaptError>`; with
/// `#[adapt(element)]` on a type that is plain bytes, a `Vec` of it becomes an array.
///
/// # What becomes of values
///
/// | value | at the target |
/// | --- | --- |
/// | `Vec<T>`, `[T]`, `Cow<[T]>` of numbers | an array of one dimension |
/// | `Vec<V>` of other values | `Vec` of adapted values |
/// | `ndarray` arrays and views, GPU arrays and views | an array of the same shape |
/// | tuples, `[V; N]`, `Option`, `Result`, `Box`, `HashMap`, `BTreeMap` | the same, with adapted values; keys are cloned |
/// | `Rc`, `Arc` | shared as before: the value is moved once |
/// | numbers, `bool`, `char`, ranges, `PhantomData`, `()` | unchanged |
/// | `String`, `PathBuf`, `OsString`, `CString`; what they borrow in `&`, `Cow`, `Box`, `Rc`, `Arc` | unchanged |
/// | `&V`, `Cow<V>` | adapts like `V` |
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be moved to `{To}`",
    label = "this type has no rule for `{To}`",
    note = "derive `Adapt` for types of your own; mark a field that stays as it is with `#[adapt(skip)]`",
    note = "a type of plain bytes whose `Vec` is an array has `#[derive(Adapt)]` and `#[adapt(element)]`"
)]
pub trait Adapt<To: Target> {
    /// This type with the storage of `To`.
    type Adapted;

    /// The form of a `Vec` of such values at the target: [`Separate`] values, or elements that are [`Merged`] into an array.
    type Many: Collect<To, Self, Self::Adapted>;

    /// Copies the value as part of a larger value. To copy a whole value, call [`Adapt::adapt`].
    ///
    /// # Errors
    ///
    /// [`AdaptError`]; see [`Adapt::adapt`].
    fn adapt_with(&self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError>;

    /// Moves the value as part of a larger value. The default copies it.
    ///
    /// # Errors
    ///
    /// [`AdaptError`]; see [`Adapt::adapt`].
    fn into_adapted_with(self, cx: &mut Context<'_, To>) -> Result<Self::Adapted, AdaptError>
    where
        Self: Sized,
    {
        self.adapt_with(cx)
    }

    /// Adds the arrays of the value to the plan of what is uploaded together, before the value is rebuilt. The default adds nothing, so the
    /// arrays are uploaded one by one.
    ///
    /// Implementations call it only for the parts that they pass to [`Adapt::adapt_with`] or [`Adapt::into_adapted_with`]. An uploaded
    /// array is found again by the address of its elements, so their memory must be behind a pointer, as in a `Vec`, and must not change
    /// before the value is rebuilt. If it does, arrays of the result can have the wrong elements; memory safety does not depend on it.
    fn plan<'a>(&'a self, plan: &mut Plan<'a>) {
        let _ = plan;
    }

    /// True if all arrays of the value are at the target, so a move to the same type would change nothing. Returning `false` is always
    /// safe.
    fn is_at(&self, to: &To) -> bool {
        let _ = to;
        false
    }

    /// Copies the value, with its arrays at `to`.
    ///
    /// # Errors
    ///
    /// - [`AdaptError::Array`] if an array cannot be moved, because the allocation or a driver call fails.
    /// - [`AdaptError::Custom`] if an implementation of the program fails.
    /// - [`AdaptError::Within`] with either of these if a part inside the value fails.
    fn adapt(&self, to: &To) -> Result<Self::Adapted, AdaptError> {
        self.adapt_with(&mut planned(self, to))
    }

    /// Moves the value, with its arrays at `to`. Arrays that are already at `to` keep their allocation.
    ///
    /// On an error the value is dropped and all its memory is released. To keep the value, use [`Adapt::adapt`].
    ///
    /// ```
    /// use gpumem_adapt::Adapt;
    /// # use gpumem_adapt::array::{Gpu, GpuArray, pool::{Device, Pool}};
    /// # let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
    /// # let gpu = Gpu::new(&Pool::new(&device)?)?;
    /// let uploaded = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
    /// let address = uploaded.address();
    /// let (moved, copied) = (uploaded, vec![3.0_f32]).into_adapted(&gpu)?;
    /// assert_eq!(moved.address(), address);
    /// assert_eq!(copied.to_vec()?, [3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AdaptError::Array`], [`AdaptError::Custom`], [`AdaptError::Within`]; see [`Adapt::adapt`].
    fn into_adapted(self, to: &To) -> Result<Self::Adapted, AdaptError>
    where
        Self: Sized,
    {
        let mut cx = planned(&self, to);
        self.into_adapted_with(&mut cx)
    }
}

/// Copies a value like [`Adapt::adapt`], but its new arrays belong to a different `Gpu` than `to`.
pub(crate) fn adapt_for<To: Target, A: Adapt<To>>(
    value: &A,
    to: &To,
    owner: &Gpu,
) -> Result<A::Adapted, AdaptError> {
    let mut cx = planned(value, to);
    cx.set_owner(owner);
    value.adapt_with(&mut cx)
}

/// The context of a move to `to`, with the value's small arrays already uploaded.
fn planned<'t, To: Target, A: Adapt<To> + ?Sized>(value: &A, to: &'t To) -> Context<'t, To> {
    let mut cx = Context::new(to);
    if let (Some(gpu), Some(size_bytes_max)) = (to.gpu(), to.packed_below_bytes()) {
        let mut plan = Plan::new(gpu, size_bytes_max);
        value.plan(&mut plan);
        cx.upload(plan);
    }
    cx
}

/// Collects a sequence of values of type `A` at a target, where each becomes a `B`. Implemented by [`Separate`] and [`Merged`].
pub trait Collect<To: Target, A: ?Sized, B> {
    /// The sequence at the target.
    type Collected;

    /// Plans a sequence; `each` plans a value.
    #[doc(hidden)]
    fn plan<'a>(items: &'a [A], plan: &mut Plan<'a>, each: impl Fn(&'a A, &mut Plan<'a>))
    where
        A: Sized;

    /// Copies a sequence; `each` copies a value.
    #[doc(hidden)]
    fn copy(
        items: &[A],
        cx: &mut Context<'_, To>,
        each: impl FnMut(&A, &mut Context<'_, To>) -> Result<B, AdaptError>,
    ) -> Result<Self::Collected, AdaptError>
    where
        A: Sized;

    /// Moves a sequence; `each` moves a value.
    #[doc(hidden)]
    fn take(
        items: Vec<A>,
        cx: &mut Context<'_, To>,
        each: impl FnMut(A, &mut Context<'_, To>) -> Result<B, AdaptError>,
    ) -> Result<Self::Collected, AdaptError>
    where
        A: Sized;

    /// True if a sequence is already at the target; `each` answers that for one value.
    #[doc(hidden)]
    fn is_at(items: &[A], to: &To, each: impl Fn(&A) -> bool) -> bool
    where
        A: Sized;
}

/// The form of a sequence of `A` at `To`.
pub type Collected<To, A> = <<A as Adapt<To>>::Many as Collect<To, A, <A as Adapt<To>>::Adapted>>::Collected;

/// A `Vec` of values becomes a `Vec` of adapted values; for [`Adapt::Many`].
pub enum Separate {}

/// A `Vec` of elements becomes an array; for [`Adapt::Many`].
pub enum Merged {}

/// Like [`Merged`], for types whose arrays `[T; N]` cannot be elements; a `Vec` of those stays a `Vec`.
#[doc(hidden)]
pub enum MergedAlone {}

impl<To: Target, A: ?Sized, B> Collect<To, A, B> for Separate {
    type Collected = Vec<B>;

    fn plan<'a>(items: &'a [A], plan: &mut Plan<'a>, each: impl Fn(&'a A, &mut Plan<'a>))
    where
        A: Sized,
    {
        items.iter().for_each(|item| each(item, plan));
    }

    fn copy(
        items: &[A],
        cx: &mut Context<'_, To>,
        mut each: impl FnMut(&A, &mut Context<'_, To>) -> Result<B, AdaptError>,
    ) -> Result<Vec<B>, AdaptError>
    where
        A: Sized,
    {
        // Allocated with its final size: a list that grows is copied, and each page of the copy costs as much as an array.
        let mut adapted = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            adapted.push(each(item, cx).map_err(|error| error.within(index))?);
        }
        Ok(adapted)
    }

    fn take(
        items: Vec<A>,
        cx: &mut Context<'_, To>,
        mut each: impl FnMut(A, &mut Context<'_, To>) -> Result<B, AdaptError>,
    ) -> Result<Vec<B>, AdaptError>
    where
        A: Sized,
    {
        let mut adapted = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            adapted.push(each(item, cx).map_err(|error| error.within(index))?);
        }
        Ok(adapted)
    }

    fn is_at(items: &[A], _: &To, each: impl Fn(&A) -> bool) -> bool
    where
        A: Sized,
    {
        items.iter().all(each)
    }
}

/// Copies or moves elements to an array.
macro_rules! merges {
    ($element:ty) => {
        type Collected = To::Array;

        fn plan<'a>(items: &'a [$element], plan: &mut Plan<'a>, _: impl Fn(&'a $element, &mut Plan<'a>)) {
            To::plan_upload(ArrayView1::from(items), plan);
        }

        fn copy(
            items: &[$element],
            cx: &mut Context<'_, To>,
            _: impl FnMut(&$element, &mut Context<'_, To>) -> Result<$element, AdaptError>,
        ) -> Result<To::Array, AdaptError> {
            To::copy_from_host(ArrayView1::from(items), cx)
        }

        fn take(
            items: Vec<$element>,
            cx: &mut Context<'_, To>,
            _: impl FnMut($element, &mut Context<'_, To>) -> Result<$element, AdaptError>,
        ) -> Result<To::Array, AdaptError> {
            To::take_from_host(Array1::from(items), cx)
        }

        // The elements are on the host.
        fn is_at(_: &[$element], to: &To, _: impl Fn(&$element) -> bool) -> bool {
            To::keeps() && to.gpu().is_none()
        }
    };
}

impl<To: Receive<T, Ix1>, T: Element> Collect<To, T, T> for Merged {
    merges!(T);
}

impl<To: Receive<bool, Ix1>> Collect<To, bool, bool> for MergedAlone {
    merges!(bool);
}

impl<To: Receive<char, Ix1>> Collect<To, char, char> for MergedAlone {
    merges!(char);
}

impl<To: Target, A, B, const N: usize> Collect<To, [A; N], B> for MergedAlone {
    type Collected = Vec<B>;

    fn plan<'a>(_: &'a [[A; N]], _: &mut Plan<'a>, _: impl Fn(&'a [A; N], &mut Plan<'a>)) {}

    fn copy(
        items: &[[A; N]],
        cx: &mut Context<'_, To>,
        each: impl FnMut(&[A; N], &mut Context<'_, To>) -> Result<B, AdaptError>,
    ) -> Result<Vec<B>, AdaptError> {
        Separate::copy(items, cx, each)
    }

    fn take(
        items: Vec<[A; N]>,
        cx: &mut Context<'_, To>,
        each: impl FnMut([A; N], &mut Context<'_, To>) -> Result<B, AdaptError>,
    ) -> Result<Vec<B>, AdaptError> {
        Separate::take(items, cx, each)
    }

    fn is_at(items: &[[A; N]], _: &To, each: impl Fn(&[A; N]) -> bool) -> bool {
        items.iter().all(each)
    }
}
