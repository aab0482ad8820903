//! [`Outputs`]: the arrays and numbers that a capture returns; [`Out`] and [`Number`]: their tokens.

use crate::array::{AsView, GpuArray, GpuView};
use crate::element::Element;
use crate::element::kind::Kind;
use crate::error::{ArrayError, GraphError};
use crate::layout::Layout;
use crate::storage::ArrayStorage;
use core::marker::PhantomData;
use core::ops::Deref;
use gpumem_pool::sys::text::debug_fields;
use ndarray::{Dimension, Ix0};

/// A result of a graph; [`Launched::get`](crate::Launched::get) gives its values.
#[must_use = "the result can only be read with its token"]
pub struct Out<T, D> {
    pub(super) graph: u64,
    pub(super) index: usize,
    pub(super) layout: Layout<D>,
    element: PhantomData<fn() -> T>,
}

/// The results that the closure of [`Gpu::capture`](crate::Gpu::capture) may return: arrays, nothing, and tuples, arrays, `Vec` and
/// `Option` of them.
pub trait Outputs {
    /// The tokens of the results: [`Out`] for each array.
    type Tokens;

    #[doc(hidden)]
    fn keep(self, keeper: &mut Keeper) -> Result<Self::Tokens, ArrayError>;
}

/// Collects the results of a capture. It is not exported, which seals [`Outputs`]: other code could exchange the results of two graphs,
/// and so the memory behind their tokens.
#[doc(hidden)]
pub struct Keeper {
    graph: u64,
    results: Vec<ArrayStorage>,
}

impl Keeper {
    /// Creates an empty list for the capture with this number.
    pub(super) fn new(graph: u64) -> Self {
        Self { graph, results: Vec::new() }
    }

    pub(super) fn into_results(self) -> Vec<ArrayStorage> {
        self.results
    }
}

impl<T: Element, D: Dimension, K: Kind> Outputs for GpuArray<T, D, K> {
    type Tokens = Out<T, D>;

    fn keep(self, keeper: &mut Keeper) -> Result<Out<T, D>, ArrayError> {
        if self.storage().capture_id() != keeper.graph {
            return Err(GraphError::ArrayFromOutside.into());
        }
        let (storage, layout) = self.into_parts();
        keeper.results.push(storage.into_result());
        Ok(Out { graph: keeper.graph, index: keeper.results.len() - 1, layout, element: PhantomData })
    }
}

/// A number in a capture; see [`CaptureGpu::scalar`](crate::CaptureGpu::scalar).
#[derive(Debug)]
pub struct GraphScalar<T>(GpuArray<T, Ix0>)
where
    T: Element;

impl<T: Element> GraphScalar<T> {
    pub(super) fn new(array: GpuArray<T, Ix0>) -> Self {
        Self(array)
    }
}

impl<T: Element> AsView for GraphScalar<T> {
    type Elem = T;
    type Dim = Ix0;
    fn as_view(&self) -> GpuView<'_, T, Ix0> {
        self.0.view()
    }
}

impl<T: Element> Deref for GraphScalar<T> {
    type Target = GpuArray<T, Ix0>;

    fn deref(&self) -> &GpuArray<T, Ix0> {
        &self.0
    }
}

/// A number of a graph; [`GraphLaunch::set`](crate::GraphLaunch::set) changes it.
#[must_use = "the number can only be changed with its token"]
pub struct Number<T> {
    pub(super) graph: u64,
    pub(super) index: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> Outputs for GraphScalar<T> {
    type Tokens = Number<T>;

    fn keep(self, keeper: &mut Keeper) -> Result<Number<T>, ArrayError> {
        if self.0.storage().capture_id() != keeper.graph {
            return Err(GraphError::ArrayFromOutside.into());
        }
        keeper.results.push(self.0.into_parts().0.into_number());
        Ok(Number { graph: keeper.graph, index: keeper.results.len() - 1, element: PhantomData })
    }
}

debug_fields!([T] Number<T>, it, element: core::any::type_name::<T>());

impl<R: Outputs> Outputs for Vec<R> {
    type Tokens = Vec<R::Tokens>;

    fn keep(self, keeper: &mut Keeper) -> Result<Self::Tokens, ArrayError> {
        self.into_iter().map(|one| one.keep(keeper)).collect()
    }
}

impl<R: Outputs> Outputs for Option<R> {
    type Tokens = Option<R::Tokens>;

    fn keep(self, keeper: &mut Keeper) -> Result<Self::Tokens, ArrayError> {
        self.map(|one| one.keep(keeper)).transpose()
    }
}

impl<R: Outputs, const COUNT: usize> Outputs for [R; COUNT] {
    type Tokens = [R::Tokens; COUNT];

    fn keep(self, keeper: &mut Keeper) -> Result<Self::Tokens, ArrayError> {
        let tokens: Result<Vec<_>, _> = self.into_iter().map(|one| one.keep(keeper)).collect();
        // As many as there were arrays.
        tokens?.try_into().map_err(|_| GraphError::ForeignResult.into())
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {
        $(
            #[allow(non_snake_case, unused_variables, reason = "the values are named as their types; there may be none")]
            impl<$($name: Outputs),*> Outputs for ($($name,)*) {
                type Tokens = ($($name::Tokens,)*);

                fn keep(self, keeper: &mut Keeper) -> Result<Self::Tokens, ArrayError> {
                    let ($($name,)*) = self;
                    Ok(($($name.keep(keeper)?,)*))
                }
            }
        )*
    };
}
tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

impl<T, D: Clone> Clone for Out<T, D> {
    fn clone(&self) -> Self {
        Self { graph: self.graph, index: self.index, layout: self.layout.clone(), element: PhantomData }
    }
}

debug_fields!([T, D: Dimension] Out<T, D>, it, element: core::any::type_name::<T>(), shape: it.layout.shape());
