//! Why a value could not be moved, and which part of it.

use gpumem_array::ArrayError;
use std::borrow::Cow;

/// A value could not be moved; what had been moved of it is released again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdaptError {
    /// An array could not be moved.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A part of the value could not be moved.
    #[error("{part}: {reason}")]
    Within {
        /// Which part, in the words of the value: a field, a place in a tuple.
        part: Cow<'static, str>,
        /// What went wrong there. The text above has it already, so it is no `source` that would be printed twice.
        reason: Box<AdaptError>,
    },
}

impl AdaptError {
    /// The same error, said of a part of a larger value; for implementations of [`Adapt`](crate::Adapt).
    #[must_use]
    pub fn within(self, part: impl Into<Cow<'static, str>>) -> Self {
        Self::Within { part: part.into(), reason: Box::new(self) }
    }

    /// What the array layer said, whichever part it was: match on this to decide what to do.
    #[must_use]
    pub fn cause(&self) -> &ArrayError {
        match self {
            Self::Array(error) => error,
            Self::Within { reason, .. } => reason.cause(),
        }
    }
}
