//! Expressions of arrays: each is calculated in one kernel, without temporary arrays, and without a compiler of CUDA text.
//!
//! An expression is a type ([`Lazy`](node::Lazy) over [`Expression`](node::Expression)s). To evaluate it, its value is recorded on a [`tape`]:
//! operations in postfix notation, arrays and numbers. All that follows does not depend on the type. The recording is read ([`notes`]), which
//! compares shapes; a [`plan`] merges axes and classifies the arrays; its key finds the kernel. A repeated recording finds its plan at once
//! ([`known_plans`]). A new kernel's [`text`] is written from the recording by the table of operations
//! ([`operation`]). The driver compiles it, or the simulator runs it.
//!
//! One more operation is a line of the table in `operation.rs`, and a test.

mod convert;
mod emit;
pub(crate) mod evaluate;
mod fold;
mod functions;
mod known_plans;
mod lazy;
pub(crate) mod node;
mod notes;
pub(crate) mod operation;
pub(crate) mod plan;
pub(crate) mod reduce;
pub(crate) mod scalar;
pub(crate) mod tape;
mod text;
mod view;

pub use evaluate::{Updated, Updates, update};
pub use node::{Axes, Broadcast, ConvertsTo, Expression, Lazy, NoAxes, Operand, Together};
pub use reduce::ReducedAxes;
pub use scalar::{Arithmetic, Comparable, Factor, Numeric, Real, Scalar, Truth};

use crate::array::{GpuArray, GpuView, readers, writers};
use crate::element::kind::Kind;
use crate::error::ArrayError;
use ndarray::Dimension;
use node::Elements;

readers! {
    Scalar;

    /// The elements as an expression.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[0.0_f32, 1.0])?;
    /// let y = GpuArray::from_slice(&gpu, &[3.0_f32, 4.0])?;
    /// let z = ((x.lazy() * 2.0 + &y).sqrt() - 1.0).eval()?; // one kernel
    /// assert_eq!(z.to_vec()?, [3.0_f32.sqrt() - 1.0, 6.0_f32.sqrt() - 1.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    pub fn lazy('v view) -> Lazy<Elements<GpuView<'v, T, D>>> {
        Lazy(Elements(view.clone()))
    }
}

impl<T: Scalar, D: Dimension, K: Kind> GpuArray<T, D, K> {
    /// The elements as an expression that owns them, so that it can be returned or stored.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::{ArrayError, Expression, Gpu, Lazy, ndarray::Ix1};
    ///
    /// fn ramp(gpu: &Gpu, len: usize) -> Result<Lazy<impl Expression<Elem = f32, Dim = Ix1>>, ArrayError> {
    ///     let x = GpuArray::from_fn(gpu, len, |i| i as f32)?;
    ///     Ok(x.into_lazy() / (len as f32))
    /// }
    /// assert_eq!((ramp(&gpu, 4)? * 2.0).eval()?.to_vec()?, [0.0, 0.5, 1.0, 1.5]);
    /// # Ok::<(), ArrayError>(())
    /// ```
    pub fn into_lazy(self) -> Lazy<Elements<Self>> {
        Lazy(Elements(self))
    }
}

writers! {
    Scalar;

    /// Calculates an expression into these elements, whose shape it is broadcast to, in one kernel.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// use gpumem_array::ndarray::s;
    ///
    /// let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0])?;
    /// let mut y = GpuArray::zeros(&gpu, 4)?;
    /// y.slice_mut(s![..;2])?.assign_expr(x.lazy() * 10.0)?;
    /// assert_eq!(y.to_vec()?, [10.0, 0.0, 20.0, 0.0]);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shape`] if the expression cannot be broadcast to the shape; those of [`Lazy::eval`].
    pub fn assign_expr<E: Expression<Elem = T>>(&mut self, expression: Lazy<E>) -> Result<(), ArrayError> {
        (expression,).write("assign_expr", (self,))
    }
}
