//! [`File`]: the bytes of a checkpoint, mapped or read in chunks, and their upload. The header's check.

use super::error::CheckpointError;
use super::tensor::CheckpointElement;
use bytemuck::Zeroable;
use bytemuck::checked::CheckedCastError;
use core::fmt;
use gpumem_array::ndarray::{Axis, Dimension, Slice};
use gpumem_array::{Gpu, GpuArray};
use memmap2::Mmap;
use safetensors::tensor::Metadata;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The element type.
    pub dtype: safetensors::Dtype,
    /// The lengths of the axes, in row-major order.
    pub shape: Vec<usize>,
}

/// A tensor of a file. Its bytes lie within the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) info: TensorInfo,
    /// The offset of the first byte in the file.
    start: usize,
    pub(super) size_bytes: usize,
}

/// The bytes of a checkpoint.
pub(super) struct File {
    pub(super) path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    /// The position of the file is shared by the threads that read.
    Read(Mutex<fs::File>),
}

/// The tensors of a file, and the texts that were saved with them.
pub(super) struct Header {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        Ok(Self { path: path.to_owned(), bytes: Bytes::Read(Mutex::new(open(path)?)) })
    }

    /// # Safety
    ///
    /// While the value exists, the file is neither changed nor truncated.
    #[allow(unsafe_code, reason = "the system cannot keep other programs from changing a mapped file")]
    pub(super) unsafe fn map(path: &Path) -> Result<Self, CheckpointError> {
        let file = open(path)?;
        // SAFETY: the caller keeps the file unchanged while it is mapped.
        let mapped = unsafe { Mmap::map(&file) };
        let mapped = mapped.map_err(|source| io_error("map", path, source))?;
        Ok(Self { path: path.to_owned(), bytes: Bytes::Mapped(mapped) })
    }

    /// Reads and checks the header.
    pub(super) fn header(&self) -> Result<Header, CheckpointError> {
        let file_bytes = self.size_bytes()?;
        let mut length = [0; LENGTH_BYTES];
        if file_bytes < LENGTH_BYTES as u64 {
            return Err(
                self.malformed(format!("the file has {file_bytes} bytes, fewer than the length of a header"))
            );
        }
        self.read_at(0, &mut length)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > HEADER_BYTES_MAX || header_bytes > file_bytes - LENGTH_BYTES as u64 {
            return Err(self.malformed(format!(
                "its header of {header_bytes} bytes exceeds the file or {HEADER_BYTES_MAX} bytes"
            )));
        }
        // At most `HEADER_BYTES_MAX`.
        let mut header = vec![0; header_bytes as usize];
        self.read_at(LENGTH_BYTES, &mut header)?;
        let text = core::str::from_utf8(&header)
            .map_err(|error| self.malformed(format!("invalid header: {error}")))?;
        self.parse(text, file_bytes)
    }

    fn parse(&self, text: &str, file_bytes: u64) -> Result<Header, CheckpointError> {
        let malformed = |error: serde_json::Error| self.malformed(format!("invalid header: {error}"));
        serde_json::Deserializer::from_str(text).deserialize_map(DistinctNames).map_err(malformed)?;
        let parsed: Metadata = serde_json::from_str(text).map_err(malformed)?;
        let data_start = LENGTH_BYTES + text.len();
        let data_bytes = file_bytes - data_start as u64;
        if parsed.data_len() as u64 != data_bytes {
            let expected = parsed.data_len();
            return Err(self.malformed(format!(
                "its tensors have {expected} bytes, and the file has {data_bytes} for them"
            )));
        }
        let entries = parsed.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let shape = info.shape.clone();
            let info = TensorInfo { dtype: info.dtype, shape };
            (name.to_string(), Entry { info, start: data_start + start, size_bytes: end - start })
        });
        let metadata = parsed.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone()));
        Ok(Header { entries: entries.collect(), metadata: metadata.collect() })
    }

    /// Uploads a tensor of this element type. `dim` is its shape.
    pub(super) fn upload<T: CheckpointElement, D: Dimension>(
        &self,
        name: &str,
        entry: &Entry,
        dim: D,
        gpu: &Gpu,
    ) -> Result<GpuArray<T, D>, CheckpointError> {
        let array_error = || CheckpointError::array(name);
        let whole = |elements: &[T]| {
            let target = GpuArray::<T, D>::uninit(gpu, dim.clone()).map_err(array_error())?;
            target.copy_from_slice(elements).map_err(array_error())
        };
        if let Bytes::Mapped(mapped) = &self.bytes {
            let bytes = mapped.get(entry.start..entry.start + entry.size_bytes).unwrap_or_default();
            match bytemuck::checked::try_cast_slice::<u8, T>(bytes) {
                Ok(elements) => return whole(elements),
                Err(CheckedCastError::InvalidBitPattern) => return Err(invalid(name, 0, bytes)),
                // Elements that are not aligned in the file are copied.
                Err(CheckedCastError::PodCastError(_)) => {}
            }
        }
        let len = entry.size_bytes / size_of::<T>();
        let chunk_len = CHUNK_BYTES / size_of::<T>();
        let mut buffer = vec![<T::Raw>::zeroed(); len.min(chunk_len)];
        if len <= chunk_len {
            return whole(self.chunk(name, entry, 0, &mut buffer)?);
        }
        let mut array = GpuArray::<T, D>::zeros(gpu, dim.clone()).map_err(array_error())?;
        for start in (0..len).step_by(chunk_len) {
            let end = len.min(start + chunk_len);
            let elements = self.chunk(name, entry, start, &mut buffer[..end - start])?;
            let part = array.view_mut().reshape_mut(len);
            let part = part.and_then(|all| all.slice_axis_mut(Axis(0), Slice::from(start..end)));
            part.and_then(|mut part| part.copy_from_slice(elements)).map_err(array_error())?;
        }
        Ok(array)
    }

    /// All elements of a small tensor.
    pub(super) fn elements<T: CheckpointElement>(
        &self,
        name: &str,
        entry: &Entry,
    ) -> Result<Vec<T>, CheckpointError> {
        let mut buffer = vec![<T::Raw>::zeroed(); entry.size_bytes / size_of::<T>()];
        Ok(self.chunk::<T>(name, entry, 0, &mut buffer)?.to_vec())
    }

    /// Reads elements from index `start` on into the buffer, and checks them.
    fn chunk<'b, T: CheckpointElement>(
        &self,
        name: &str,
        entry: &Entry,
        start: usize,
        buffer: &'b mut [T::Raw],
    ) -> Result<&'b [T], CheckpointError> {
        self.read_at(entry.start + start * size_of::<T>(), bytemuck::cast_slice_mut(buffer))?;
        let buffer = &*buffer;
        bytemuck::checked::try_cast_slice(buffer)
            .map_err(|_| invalid(name, start, bytemuck::cast_slice(buffer)))
    }

    fn size_bytes(&self) -> Result<u64, CheckpointError> {
        match &self.bytes {
            Bytes::Mapped(mapped) => Ok(mapped.len() as u64),
            Bytes::Read(file) => {
                let file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let found = file.metadata().map_err(|source| io_error("read", &self.path, source))?;
                Ok(found.len())
            }
        }
    }

    fn read_at(&self, offset: usize, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        let read = match &self.bytes {
            Bytes::Mapped(mapped) => {
                match offset.checked_add(buffer.len()).and_then(|end| mapped.get(offset..end)) {
                    Some(bytes) => {
                        buffer.copy_from_slice(bytes);
                        Ok(())
                    }
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            Bytes::Read(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(offset as u64)).and_then(|_| file.read_exact(buffer))
            }
        };
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.malformed("the file became shorter after it was opened".into())
            }
            _ => io_error("read", &self.path, source),
        })
    }

    fn malformed(&self, reason: String) -> CheckpointError {
        CheckpointError::Malformed { path: self.path.clone(), reason }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mapped = matches!(self.bytes, Bytes::Mapped(_));
        f.debug_struct("File").field("path", &self.path).field("is_mapped", &is_mapped).finish()
    }
}

fn open(path: &Path) -> Result<fs::File, CheckpointError> {
    fs::File::open(path).map_err(|source| io_error("open", path, source))
}

pub(super) fn io_error(operation: &'static str, path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::Io { operation, path: path.to_owned(), source }
}

/// Of the element types, only `bool` has invalid values. `start` is the index of the first byte.
fn invalid(name: &str, start: usize, bytes: &[u8]) -> CheckpointError {
    let found = bytes.iter().enumerate().find(|(_, byte)| **byte > 1);
    let (index, value) = found.map_or((start, 0), |(index, byte)| (start + index, *byte));
    CheckpointError::InvalidBool { name: name.into(), index, value }
}

/// Refuses a header that has a name twice. A map would silently keep the last tensor of that name.
struct DistinctNames;

impl<'de> Visitor<'de> for DistinctNames {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format_args!("the name {name:?} occurs twice")));
            }
        }
        Ok(())
    }
}

/// A file begins with the length of its header, little endian.
pub(super) const LENGTH_BYTES: usize = 8;

/// The largest header that the crate `safetensors` reads.
pub(super) const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Large tensors are read and written in chunks of this size, so the host needs no memory for a whole tensor.
pub(super) const CHUNK_BYTES: usize = 32 << 20;

#[cfg(target_endian = "big")]
compile_error!("checkpoints are little endian; the feature `safetensors` does not support this target");
