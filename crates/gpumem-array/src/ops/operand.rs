//! [`Operand`]: the other side of an operation.

use crate::array::{AsView, GpuView};
use crate::element::Element;
use ndarray::{Dimension, Ix0};

/// The right operand of an operation: an array or a view of any kind and shape, a reference to one, or a number.
///
/// ```
/// use gpumem_array::{ArrayError, Gpu, GpuArray, Operand, ndarray::Ix1, pool::{Device, Pool}};
/// use gpumem_sim::SimConfig;
///
/// fn centred(x: &GpuArray<f32, Ix1>, mean: impl Operand<f32>) -> Result<GpuArray<f32, Ix1>, ArrayError> {
///     x.try_sub(mean)
/// }
///
/// let gpu = Gpu::new(&Pool::new(&Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?)?)?;
/// let x = GpuArray::from_slice(&gpu, &[1.0, 2.0, 3.0])?;
/// assert_eq!(centred(&x, 2.0)?.to_vec()?, [-1.0, 0.0, 1.0]);
/// let mean = x.sum()? / 3.0; // stays on the device
/// assert_eq!(centred(&x, mean)?.to_vec()?, [-1.0, 0.0, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an operand of an array of `{T}`",
    label = "expected an array or view of `{T}`, or a `{T}`"
)]
pub trait Operand<T: Element> {
    /// The dimension type: `Ix0` for a number.
    type Dim: Dimension;
    #[doc(hidden)]
    fn source(&self) -> OperandSource<'_, T, Self::Dim>;
}

/// The elements of an operand. Other crates cannot name it, so they cannot implement [`Operand`].
#[doc(hidden)]
pub enum OperandSource<'a, T, D> {
    View(GpuView<'a, T, D>),
    Scalar(T),
}

impl<T: Element, A: AsView<Elem = T>> Operand<T> for A {
    type Dim = A::Dim;
    fn source(&self) -> OperandSource<'_, T, A::Dim> {
        OperandSource::View(self.as_view())
    }
}

macro_rules! scalars {
    ($($number:ty),*) => {
        $(
            impl Operand<$number> for $number {
                type Dim = Ix0;
                fn source(&self) -> OperandSource<'_, $number, Ix0> {
                    OperandSource::Scalar(*self)
                }
            }
        )*
    };
}
scalars!(f32, f64, i32, i64);
