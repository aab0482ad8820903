//! [`AdaptError`]: why a value could not be moved, and the part that failed.

use gpumem_array::ArrayError;
use std::borrow::Cow;

/// A value could not be moved. Parts that were already moved are released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdaptError {
    /// An array could not be moved.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A part of the value could not be moved.
    #[error("{part}: {reason}")]
    Within {
        /// The part, as named by the value: a field, a place in a tuple.
        part: Cow<'static, str>,
        /// The error of that part. It is not a `source`, because the text above includes it.
        reason: Box<AdaptError>,
    },
}

impl AdaptError {
    /// Adds the name of the part that failed; for implementations of [`Adapt`](crate::Adapt).
    #[must_use]
    pub fn within(self, part: impl Into<Cow<'static, str>>) -> Self {
        Self::Within { part: part.into(), reason: Box::new(self) }
    }

    /// Returns the error of the array layer, without the names of parts.
    #[must_use]
    pub fn cause(&self) -> &ArrayError {
        match self {
            Self::Array(error) => error,
            Self::Within { reason, .. } => reason.cause(),
        }
    }
}
