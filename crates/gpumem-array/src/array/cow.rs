//! [`GpuCow`]: a view of elements, or a copy.

use crate::array::view::{AsView, describe, kind_name};
use crate::array::{GpuArray, GpuView};
use crate::element::Element;
use crate::gpu::Gpu;
use crate::layout::Layout;
use core::fmt;
use ndarray::Dimension;

/// A view, or a copy if the view does not have the required order: the result of [`GpuView::as_standard_layout`]. The counterpart of
/// `ndarray`'s `CowArray`. It has the reading methods of views.
#[allow(clippy::large_enum_variant, reason = "a box would cost an allocation for each copy")]
pub enum GpuCow<'a, T, D> {
    /// The elements themselves.
    View(GpuView<'a, T, D>),
    /// A copy.
    Owned(GpuArray<T, D>),
}

impl<T: Element, D: Dimension> GpuCow<'_, T, D> {
    /// True if it is a view, not a copy.
    #[must_use]
    pub fn is_view(&self) -> bool {
        matches!(self, Self::View(_))
    }

    /// A view of all elements.
    #[must_use]
    pub fn view(&self) -> GpuView<'_, T, D> {
        match self {
            Self::View(view) => view.clone(),
            Self::Owned(array) => array.view(),
        }
    }

    /// The `Gpu` that operations on the elements are queued on.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        match self {
            Self::View(view) => view.gpu(),
            Self::Owned(array) => array.gpu(),
        }
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        match self {
            Self::View(view) => view.layout(),
            Self::Owned(array) => array.layout(),
        }
    }
}

impl<T: Element, D: Dimension> AsView for GpuCow<'_, T, D> {
    type Elem = T;
    type Dim = D;
    fn as_view(&self) -> GpuView<'_, T, D> {
        self.view()
    }
}

impl<T: Element, D: Dimension> fmt::Debug for GpuCow<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = self.view();
        describe(f, "GpuCow", kind_name(view.storage().kind()), &view)
    }
}
