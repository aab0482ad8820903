//! [`AdaptError`]: the part of a value that could not be moved, and the cause.

use core::error::Error;
use core::fmt;
use gpumem_array::ArrayError;
use gpumem_array::pool::sys::DriverError;
use gpumem_array::pool::sys::text::{Shown, debug_is_display};
use gpumem_array::pool::{DeviceError, PoolError};
use std::borrow::Cow;
use std::collections::TryReserveError;
use std::io;

/// A value could not be moved. Parts that were already moved are released.
///
/// The text begins with the path of the part that failed, such as `layers[3].bias`. The error of the array layer is the
/// [source](Error::source); if memory ran out, it contains the report of the pool.
#[non_exhaustive]
pub enum AdaptError {
    /// An array could not be moved.
    Array(ArrayError),
    /// The program's own code refused a part; see [`AdaptError::custom`].
    Custom(Box<dyn Error + Send + Sync>),
    /// A part of the value could not be moved.
    Within {
        /// The part.
        part: Part,
        /// The error of that part.
        reason: Box<AdaptError>,
    },
}

/// A step from a value to one of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A field, by name; of a tuple, by number.
    Field(Cow<'static, str>),
    /// An item of a sequence.
    Index(usize),
    /// A value of a map, with its key as `Debug` shows it.
    Key(String),
}

impl AdaptError {
    /// An error of the program's own code, for implementations of [`Adapt`](crate::Adapt).
    pub fn custom(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Custom(error.into())
    }

    /// Adds the part that failed, for implementations of [`Adapt`](crate::Adapt): the name of a field, the index of an item.
    #[must_use]
    pub fn within(self, part: impl Into<Part>) -> Self {
        Self::Within { part: part.into(), reason: Box::new(self) }
    }

    /// The path of the part that failed, such as `layers[3].bias`. Empty if the value has no parts.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::new();
        let mut error = self;
        while let Self::Within { part, reason } = error {
            match part {
                Part::Field(name) if path.is_empty() => path += name,
                Part::Field(name) => path = path + "." + name,
                Part::Index(index) => path = path + "[" + &index.to_string() + "]",
                Part::Key(key) => path = path + "[" + key + "]",
            }
            error = reason;
        }
        path
    }

    /// The error of the array layer, without the path. `None` for an error of the program's own code.
    #[must_use]
    pub fn cause(&self) -> Option<&ArrayError> {
        match self.innermost() {
            Self::Array(error) => Some(error),
            _ => None,
        }
    }

    /// True if memory ran out or its size was refused; see [`ArrayError::is_out_of_memory`]. For an error of the program's own code, true
    /// if it or one of its [sources](Error::source) reports that: an error of any layer of gpumem, [`io::ErrorKind::OutOfMemory`], or
    /// [`TryReserveError`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self.innermost() {
            Self::Array(error) => error.is_out_of_memory(),
            Self::Custom(error) => ran_out_of_memory(&**error),
            Self::Within { .. } => false,
        }
    }

    fn innermost(&self) -> &Self {
        match self {
            Self::Within { reason, .. } => reason.innermost(),
            error => error,
        }
    }
}

/// True if memory or a limit ran out, according to an error or one of its sources.
pub(crate) fn ran_out_of_memory(error: &(dyn Error + 'static)) -> bool {
    let mut found = Some(error);
    while let Some(error) = found {
        if error.downcast_ref::<ArrayError>().is_some_and(ArrayError::is_out_of_memory)
            || error.downcast_ref::<PoolError>().is_some_and(PoolError::is_out_of_memory)
            || error.downcast_ref::<DeviceError>().is_some_and(DeviceError::is_out_of_memory)
            || error
                .downcast_ref::<DriverError>()
                .is_some_and(|error| DeviceError::from(*error).is_out_of_memory())
            || error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory)
            || error.is::<TryReserveError>()
        {
            return true;
        }
        found = error.source();
    }
    false
}

impl fmt::Display for AdaptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        if !path.is_empty() {
            write!(f, "{}: ", Shown::sentence(&path))?;
        }
        match self.innermost() {
            Self::Array(error) => error.fmt(f),
            Self::Custom(error) => Shown::log_of(error).fmt(f),
            Self::Within { .. } => Ok(()),
        }
    }
}

debug_is_display!(AdaptError);

impl Error for AdaptError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.innermost() {
            Self::Array(error) => Some(error),
            Self::Custom(error) => Some(&**error),
            Self::Within { .. } => None,
        }
    }
}

impl From<ArrayError> for AdaptError {
    fn from(error: ArrayError) -> Self {
        Self::Array(error)
    }
}

impl From<&'static str> for Part {
    fn from(name: &'static str) -> Self {
        Self::Field(Cow::Borrowed(name))
    }
}

impl From<String> for Part {
    fn from(name: String) -> Self {
        Self::Field(Cow::Owned(name))
    }
}

impl From<usize> for Part {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}
