//! [`Checkpoint`]: named arrays of a `safetensors` file, uploaded to the GPU. [`save`] writes such a file.

mod error;
mod file;
mod save;
mod tensor;

pub use error::CheckpointError;
pub use file::TensorInfo;
pub use safetensors::Dtype;
pub use save::{SaveTensor, save, save_with_metadata};
pub use tensor::{CheckpointElement, Tensor, Tensors};

use crate::target::PACKED_BELOW_BYTES;
use file::{CHUNK_BYTES, File, Header, TensorEntry};
use gpumem_array::ndarray::{Dimension, IxDyn};
use gpumem_array::{Gpu, GpuArray};
use std::collections::BTreeMap;
use std::path::Path;

/// A file of named arrays, in the format `safetensors`.
///
/// The header is checked completely when the file is opened: each tensor has a name of its own, its size follows from type and shape,
/// and the tensors fill the file without gaps. Tensors are uploaded when they are loaded. See [`save`] for an example.
#[derive(Debug)]
pub struct Checkpoint {
    file: File,
    entries: BTreeMap<String, TensorEntry>,
    metadata: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a file, and reads and checks its header. Tensors are read when they are loaded: large ones in chunks of 4 MiB, by up to 8
    /// threads. [`Checkpoint::map`] saves a copy of all bytes, and is faster where the file is in the system's page cache.
    ///
    /// If another program changes the file later, tensors have the new bytes, and a file that became shorter is an error.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the file cannot be opened or read, [`CheckpointError::Malformed`] if it is not a complete checkpoint.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::new(File::read(path.as_ref())?)
    }

    /// Maps a file into memory, and checks its header. Tensors are uploaded from the system's page cache, which saves a copy. Elements
    /// that are not aligned in the file are copied first.
    ///
    /// # Safety
    ///
    /// While the checkpoint exists, no program may change or truncate the file. A change is a data race, and reading a page beyond the new
    /// end of the file kills the program (`SIGBUS`). Replacing the file under its name, as [`save`] does, is allowed.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the file cannot be opened or mapped, [`CheckpointError::Malformed`] if it is not a complete checkpoint.
    #[allow(unsafe_code, reason = "the caller keeps the mapped file unchanged")]
    pub unsafe fn map(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        // SAFETY: the file lives within the checkpoint, and the caller keeps it unchanged for as long.
        Self::new(unsafe { File::map(path.as_ref()) }?)
    }

    fn new(file: File) -> Result<Self, CheckpointError> {
        let Header { entries, metadata } = file.header()?;
        Ok(Self { file, entries, metadata })
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The element type and shape of a tensor. `None` if there is no tensor of this name.
    #[must_use]
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.entries.get(name).map(|entry| &entry.info)
    }

    /// The texts that were saved with the tensors; see [`save_with_metadata`].
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Uploads a tensor, in row-major order. Returns when its bytes have been read; see [`GpuArray::from_slice`].
    ///
    /// # Errors
    ///
    /// - [`CheckpointError::NoSuchTensor`], [`CheckpointError::WrongDtype`] or [`CheckpointError::WrongRank`] if the checkpoint has no
    ///   such tensor.
    /// - [`CheckpointError::InvalidBool`] if a byte of a tensor of `bool` is neither 0 nor 1.
    /// - [`CheckpointError::Io`] or [`CheckpointError::Malformed`] if the file cannot be read.
    /// - [`CheckpointError::Array`] if the allocation or the upload fails.
    pub fn load<T: CheckpointElement, D: Dimension>(
        &self,
        name: &str,
        gpu: &Gpu,
    ) -> Result<GpuArray<T, D>, CheckpointError> {
        let named = || name.into();
        let entry = self.entries.get(name).ok_or_else(|| CheckpointError::NoSuchTensor { name: named() })?;
        let TensorInfo { dtype: found, shape } = &entry.info;
        if *found != T::DTYPE {
            return Err(CheckpointError::WrongDtype { name: named(), expected: T::DTYPE, found: *found });
        }
        let dim = D::from_dimension(&IxDyn(shape)).ok_or_else(|| {
            let expected = D::NDIM.unwrap_or(shape.len());
            CheckpointError::WrongRank { name: named(), expected, shape: shape.clone() }
        })?;
        self.file.upload(name, entry, dim, gpu)
    }

    /// Uploads all tensors. Small ones (up to 64 KiB) travel together.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::UnsupportedDtype`] if no array type can hold a tensor's elements; [`CheckpointError::InvalidBool`],
    /// [`CheckpointError::Io`], [`CheckpointError::Malformed`], [`CheckpointError::Array`]; see [`Checkpoint::load`]. On an error no array
    /// remains.
    pub fn load_all(&self, gpu: &Gpu) -> Result<Tensors, CheckpointError> {
        let mut tensors = Tensors::new();
        let (mut small, mut small_bytes) = (Vec::new(), 0);
        for (name, entry) in &self.entries {
            if entry.size_bytes > PACKED_BELOW_BYTES {
                tensors.insert(name.clone(), tensor::load(&self.file, name, entry, gpu)?);
                continue;
            }
            small.push((name, entry));
            small_bytes += entry.size_bytes;
            if small_bytes >= CHUNK_BYTES {
                self.load_small(&small, gpu, &mut tensors)?;
                (small, small_bytes) = (Vec::new(), 0);
            }
        }
        self.load_small(&small, gpu, &mut tensors)?;
        Ok(tensors)
    }

    /// Uploads tensors together. If that fails, they are uploaded one by one: an error then names the tensor.
    fn load_small(
        &self,
        small: &[(&String, &TensorEntry)],
        gpu: &Gpu,
        tensors: &mut Tensors,
    ) -> Result<(), CheckpointError> {
        match self.load_packed(small, gpu)? {
            Some(packed) => tensors.extend(packed),
            None => {
                for (name, entry) in small {
                    tensors.insert(String::clone(name), tensor::load(&self.file, name, entry, gpu)?);
                }
            }
        }
        Ok(())
    }

    /// `None` if the upload failed.
    fn load_packed(
        &self,
        small: &[(&String, &TensorEntry)],
        gpu: &Gpu,
    ) -> Result<Option<Vec<(String, Tensor)>>, CheckpointError> {
        let mut pack = gpu.pack();
        let mut packed = Vec::with_capacity(small.len());
        for (name, entry) in small {
            match tensor::add(&self.file, name, entry, gpu, &mut pack)? {
                Ok(tensor) => packed.push((String::clone(name), tensor)),
                Err(_) => return Ok(None),
            }
        }
        if pack.upload().is_err() {
            return Ok(None);
        }
        Ok(packed.into_iter().map(|(name, tensor)| Some((name, tensor().ok()?))).collect())
    }
}
