//! [`Rejected`]: the error of operations that take a value.

use crate::error::ArrayError;
use core::error::Error;
use core::fmt;
use gpumem_pool::sys::text::debug_is_display;

/// An operation that takes a value failed. The error contains the value, so nothing is lost. `?` converts it to its [`ArrayError`].
///
/// ```
/// # use gpumem_array::GpuArray;
/// # let gpu = gpumem_array::example_gpu()?;
/// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
/// let Err(rejected) = x.into_shape((2, 2)) else { panic!("three elements are not four") };
/// println!("{rejected}");
/// let x = rejected.into_value();
/// assert_eq!(x.to_vec()?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rejected<V>(Box<(ArrayError, V)>);

impl<V> Rejected<V> {
    pub(crate) fn new(error: impl Into<ArrayError>, value: V) -> Self {
        Self(Box::new((error.into(), value)))
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &ArrayError {
        &self.0.0
    }

    /// True if memory ran out; see [`ArrayError::is_out_of_memory`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.error().is_out_of_memory()
    }

    /// The value that was passed to the operation.
    #[must_use]
    pub fn into_value(self) -> V {
        self.0.1
    }

    /// The error and the value.
    ///
    /// ```
    /// # use gpumem_array::{ArrayError, GpuArray};
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let x = GpuArray::from_slice(&gpu, &[1, 2, 3])?;
    /// let Err(rejected) = x.into_shape((2, 2)) else { panic!("three elements are not four") };
    /// let (error, x) = rejected.into_parts();
    /// assert!(matches!(error, ArrayError::Shape { .. }));
    /// assert_eq!(x.len(), 3);
    /// # Ok::<(), gpumem_array::ArrayError>(())
    /// ```
    #[must_use]
    pub fn into_parts(self) -> (ArrayError, V) {
        *self.0
    }
}

impl<V> From<Rejected<V>> for ArrayError {
    fn from(rejected: Rejected<V>) -> Self {
        rejected.0.0
    }
}

impl<V> Error for Rejected<V> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // Returns the error itself instead of its source: callers look for it along the chain.
        Some(self.error())
    }
}

impl<V> fmt::Display for Rejected<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

debug_is_display!([V] Rejected<V>);
