//! [`CheckpointError`]: why a checkpoint could not be read or written.

use gpumem_array::ArrayError;
use gpumem_array::pool::sys::text::{Shown, debug_is_display};
use safetensors::Dtype;
use std::io;
use std::path::PathBuf;

/// A checkpoint could not be read or written.
///
/// A failed upload leaves no array, and a failed [`save`](crate::save) leaves the old file.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refused to read or write the file.
    #[error(
        "cannot {operation} {}: {}; check the path, its permissions and the space on the disk",
        Shown::path(.path), Shown::sentence_of(.source)
    )]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a checkpoint, or is incomplete.
    #[error("{} is not a valid checkpoint: {}; copy or save the file again", Shown::path(.path), Shown::sentence(.reason))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The checkpoint has no tensor with this name.
    #[error("the checkpoint has no tensor {:?}; `Checkpoint::names` lists its tensors", Shown::name(.name))]
    NoSuchTensor {
        /// The name.
        name: Box<str>,
    },
    /// The tensor has elements of another type.
    #[error(
        "tensor {:?}: expected elements of type {expected}, found {found}; load it as that type, and convert it on the device",
        Shown::name(.name)
    )]
    WrongDtype {
        /// The name of the tensor.
        name: Box<str>,
        /// The requested type.
        expected: Dtype,
        /// The type in the file.
        found: Dtype,
    },
    /// The tensor has another number of axes.
    #[error(
        "tensor {:?}: expected {expected} axes, found shape {shape:?}; load it with that number of axes, or as `IxDyn`",
        Shown::name(.name)
    )]
    WrongRank {
        /// The name of the tensor.
        name: Box<str>,
        /// The requested number of axes.
        expected: usize,
        /// The shape in the file.
        shape: Vec<usize>,
    },
    /// No Rust type corresponds to the tensor's element type.
    #[error(
        "tensor {:?}: arrays cannot have elements of type {dtype}; convert the checkpoint to a type that they have",
        Shown::name(.name)
    )]
    UnsupportedDtype {
        /// The name of the tensor.
        name: Box<str>,
        /// The type in the file.
        dtype: Dtype,
    },
    /// A tensor of truth values has a byte other than 0 and 1.
    #[error(
        "tensor {:?}: element {index} is {value}, which is not a `bool`; save the tensor as `U8`, or correct its bytes",
        Shown::name(.name)
    )]
    InvalidBool {
        /// The name of the tensor.
        name: Box<str>,
        /// The index of the first such element.
        index: usize,
        /// The byte.
        value: u8,
    },
    /// A name cannot be saved.
    #[error("a tensor cannot be saved as {:?}: {reason}; choose another name", Shown::name(.name))]
    InvalidName {
        /// The name.
        name: Box<str>,
        /// The problem.
        reason: &'static str,
    },
    /// The upload or the download of a tensor failed.
    #[error("tensor {:?}: {source}", Shown::name(.name))]
    Array {
        /// The name of the tensor.
        name: Box<str>,
        /// The error of the array layer.
        source: ArrayError,
    },
}

debug_is_display!(CheckpointError);

impl CheckpointError {
    /// True if memory ran out or its size was refused; see [`ArrayError::is_out_of_memory`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Array { source, .. } => source.is_out_of_memory(),
            Self::Io { source, .. } => source.kind() == io::ErrorKind::OutOfMemory,
            _ => false,
        }
    }

    /// An error of the array layer, for the tensor of this name.
    pub(super) fn array(name: &str) -> impl FnOnce(ArrayError) -> Self + use<> {
        let name = name.into();
        |source| Self::Array { name, source }
    }
}
