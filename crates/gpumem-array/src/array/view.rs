//! [`GpuView`] and [`GpuViewMut`]: all or part of an array, borrowed, on a stream.
//!
//! A view is an address, a shape with strides, and the [`Gpu`] that operations on it are queued on. Creating, slicing and transposing
//! a view changes only these numbers. The methods of views and arrays are in [`read`](super::read) and [`write`](super::write).

use crate::element::Element;
use crate::element::kind::{DeviceLocal, Kind, Pinned, Unified};
use crate::gpu::Gpu;
use crate::layout::{ByteSpan, Layout};
use crate::storage::{Access, ArrayStorage, Use};
use core::fmt;
use core::marker::PhantomData;
use gpumem_pool::MemoryKind;
use ndarray::Dimension;
use std::rc::Rc;
use std::sync::Arc;

/// A view of all or part of a [`GpuArray`](crate::GpuArray).
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// use gpumem_array::ndarray::{array, Axis, Slice};
///
/// let table = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4], [5, 6]])?;
/// let last_rows = table.slice_axis(Axis(0), Slice::from(-2..))?;
/// assert_eq!(last_rows.to_array()?, array![[3, 4], [5, 6]]);
/// assert_eq!(last_rows.t().to_array()?, array![[3, 5], [4, 6]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GpuView<'a, T, D> {
    gpu: &'a Gpu,
    /// The `Gpu` of the owner, on the device of the memory.
    home: &'a Gpu,
    storage: &'a ArrayStorage,
    layout: Layout<D>,
    element: PhantomData<T>,
}

/// A mutable view of all or part of a [`GpuArray`](crate::GpuArray). While it exists, the array has no other view.
///
/// ```compile_fail,E0502
/// # use gpumem_array::{ArrayError, GpuArray, ndarray::Ix1};
/// fn twice(array: &mut GpuArray<f32, Ix1>) -> Result<(), ArrayError> {
///     let old = array.view();
///     array.fill(0.0)?;
///     old.sum()?;
///     Ok(())
/// }
/// ```
pub struct GpuViewMut<'a, T, D> {
    pub(super) view: GpuView<'a, T, D>,
    unique: PhantomData<&'a mut T>,
}

/// Types that can be borrowed as a [`GpuView`]: arrays, views, and references, `Box`, `Rc` and `Arc` of these.
pub trait AsView {
    /// The element type.
    type Elem: Element;
    /// The dimension type.
    type Dim: Dimension;
    /// A view of all elements.
    fn as_view(&self) -> GpuView<'_, Self::Elem, Self::Dim>;
}

/// Types that can be borrowed as a [`GpuViewMut`].
pub trait AsViewMut: AsView {
    /// A mutable view of all elements.
    fn as_view_mut(&mut self) -> GpuViewMut<'_, Self::Elem, Self::Dim>;
}

impl<'a, T: Element, D: Dimension> GpuView<'a, T, D> {
    pub(crate) fn new(gpu: &'a Gpu, storage: &'a ArrayStorage, layout: Layout<D>) -> Self {
        Self { gpu, home: gpu, storage, layout, element: PhantomData }
    }

    /// The `Gpu` that operations on this view are queued on, and that their results belong to.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// A view of these elements, used through the stream of another `Gpu`.
    pub(super) fn used_on<'b>(&self, gpu: &'b Gpu) -> GpuView<'b, T, D>
    where
        'a: 'b,
    {
        let Self { home, storage, ref layout, .. } = *self;
        GpuView { gpu, home, storage, layout: layout.clone(), element: PhantomData }
    }

    /// Reborrows the view for a shorter lifetime.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        self.clone()
    }

    /// The elements of another layout within the storage.
    pub(crate) fn with_layout<E>(&self, layout: Layout<E>) -> GpuView<'a, T, E> {
        self.retyped(layout)
    }

    pub(super) fn retyped<U, E>(&self, layout: Layout<E>) -> GpuView<'a, U, E> {
        let Self { gpu, home, storage, .. } = *self;
        GpuView { gpu, home, storage, layout, element: PhantomData }
    }

    /// The `Gpu` of the owner: on the device of the memory, where [`GpuView::gpu`] may be on another one.
    pub(crate) fn home(&self) -> &'a Gpu {
        self.home
    }

    pub(crate) fn storage(&self) -> &'a ArrayStorage {
        self.storage
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Work that reads the elements.
    #[inline]
    pub(crate) fn reads(&self) -> Use<'a> {
        self.storage.note_for_captures::<T>(self.shape());
        Use::new(self.storage, Access::Read, self.bytes())
    }

    #[inline]
    pub(crate) fn bytes(&self) -> ByteSpan {
        self.layout.bytes(size_of::<T>(), self.storage.size_bytes())
    }
}

impl<'a, T: Element, D: Dimension> GpuViewMut<'a, T, D> {
    /// The caller borrows `storage` exclusively for `'a`.
    pub(crate) fn new(gpu: &'a Gpu, storage: &'a ArrayStorage, layout: Layout<D>) -> Self {
        Self { view: GpuView::new(gpu, storage, layout), unique: PhantomData }
    }

    /// Reborrows the view for a shorter lifetime.
    #[must_use]
    pub fn view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        GpuViewMut { view: self.view.clone(), unique: PhantomData }
    }

    // Not `Deref`, because a view that outlives this borrow would alias it.

    /// A view of these elements, while this view is borrowed.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        self.view.clone()
    }

    /// The `Gpu` that operations on this view are queued on.
    #[must_use]
    pub fn gpu(&self) -> &'a Gpu {
        self.view.gpu
    }

    pub(crate) fn home(&self) -> &'a Gpu {
        self.view.home
    }

    pub(crate) fn storage(&self) -> &'a ArrayStorage {
        self.view.storage
    }

    /// All or some of the elements of a mutable view. The caller gives out no two views with common elements.
    pub(super) fn of(view: GpuView<'a, T, D>) -> Self {
        Self { view, unique: PhantomData }
    }

    /// Work that writes the elements, and may read them.
    #[inline]
    pub(crate) fn writes(&self) -> Use<'a> {
        self.view.storage.note_for_captures::<T>(self.view.shape());
        Use::new(self.view.storage, Access::Write, self.view.bytes())
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.view.layout
    }
}

impl<T, D: Clone> Clone for GpuView<'_, T, D> {
    fn clone(&self) -> Self {
        Self { layout: self.layout.clone(), ..*self }
    }
}

impl<T, D: Copy> Copy for GpuView<'_, T, D> {}

impl<T: Element, D: Dimension> AsView for GpuView<'_, T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.clone()
    }
}

impl<T: Element, D: Dimension> AsView for GpuViewMut<'_, T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.view.clone()
    }
}

impl<T: Element, D: Dimension> AsViewMut for GpuViewMut<'_, T, D> {
    fn as_view_mut(&mut self) -> GpuViewMut<'_, T, D> {
        self.view_mut()
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {
        $(
            impl<A: AsView + ?Sized> AsView for $pointer {
                type Elem = A::Elem;
                type Dim = A::Dim;
                fn as_view(&self) -> GpuView<'_, A::Elem, A::Dim> {
                    (**self).as_view()
                }
            }
        )*
    };
}
pointers!(&A, &mut A, Box<A>, Rc<A>, Arc<A>);

impl<T: Element, D: Dimension> fmt::Debug for GpuView<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuView", kind_name(self.storage.kind()), self)
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "GpuViewMut", kind_name(self.view.storage.kind()), &self.view)
    }
}

/// The name of the kind of an array in such memory.
pub(crate) fn kind_name(memory: MemoryKind) -> &'static str {
    match memory {
        MemoryKind::Unified => Unified::NAME,
        MemoryKind::Host => Pinned::NAME,
        _ => DeviceLocal::NAME,
    }
}

/// Prints the shape, kind and place of a view, without a driver call.
pub(crate) fn describe<T: Element, D: Dimension>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    kind: &str,
    view: &GpuView<'_, T, D>,
) -> fmt::Result {
    f.debug_struct(name)
        .field("element", &format_args!("{}", core::any::type_name::<T>()))
        .field("shape", &view.shape())
        .field("strides", &view.strides())
        .field("kind", &format_args!("{kind}"))
        .field("gpu", view.gpu)
        .finish_non_exhaustive()
}
