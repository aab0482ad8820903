//! [`File`]: the bytes of a checkpoint, mapped or read in chunks. Checks the header and uploads tensors.

use super::error::CheckpointError;
use super::tensor::CheckpointElement;
use super::tensor::sealed::TensorElement;
use bytemuck::Zeroable;
use bytemuck::checked::CheckedCastError;
use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use gpumem_array::ndarray::{Axis, Dimension, Slice};
use gpumem_array::{Gpu, GpuArray};
use memmap2::Mmap;
use safetensors::tensor::Metadata;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;

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
pub(super) struct TensorEntry {
    pub(super) info: TensorInfo,
    /// The offset of the first byte in the file.
    start: usize,
    pub(super) size_bytes: usize,
}

/// The bytes of a checkpoint.
pub(super) struct File {
    pub(super) path: PathBuf,
    bytes: FileBytes,
}

enum FileBytes {
    Mapped(Mmap),
    Read(fs::File),
}

/// The index of the first element of a chunk, and the buffer that was read.
type ReadChunk<T> = (usize, Result<Vec<<T as TensorElement>::Raw>, CheckpointError>);

/// The tensors of a file, and the texts that were saved with them.
pub(super) struct Header {
    pub(super) entries: BTreeMap<String, TensorEntry>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        Ok(Self { path: path.to_owned(), bytes: FileBytes::Read(open(path)?) })
    }

    /// # Safety
    ///
    /// While the value exists, the file is not changed or truncated.
    #[allow(unsafe_code, reason = "the system cannot keep other programs from changing a mapped file")]
    pub(super) unsafe fn map(path: &Path) -> Result<Self, CheckpointError> {
        let file = open(path)?;
        // SAFETY: the caller keeps the file unchanged while it is mapped.
        let mapped = unsafe { Mmap::map(&file) };
        let mapped = mapped.map_err(|source| io_error("map", path, source))?;
        Ok(Self { path: path.to_owned(), bytes: FileBytes::Mapped(mapped) })
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
            (name.to_string(), TensorEntry { info, start: data_start + start, size_bytes: end - start })
        });
        let metadata = parsed.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone()));
        Ok(Header { entries: entries.collect(), metadata: metadata.collect() })
    }

    /// Uploads a tensor of this element type. `dim` is its shape.
    pub(super) fn upload<T: CheckpointElement, D: Dimension>(
        &self,
        name: &str,
        entry: &TensorEntry,
        dim: D,
        gpu: &Gpu,
    ) -> Result<GpuArray<T, D>, CheckpointError> {
        let array_error = || CheckpointError::array(name);
        let whole = |elements: &[T]| {
            let target = GpuArray::<T, D>::uninit(gpu, dim.clone()).map_err(array_error())?;
            target.copy_from_slice(elements).map_err(array_error())
        };
        if let FileBytes::Mapped(mapped) = &self.bytes {
            let bytes = mapped.get(entry.start..entry.start + entry.size_bytes).unwrap_or_default();
            match bytemuck::checked::try_cast_slice::<u8, T>(bytes) {
                Ok(elements) => return whole(elements),
                Err(CheckedCastError::InvalidBitPattern) => return Err(invalid(name, 0, bytes)),
                // Elements that are not aligned in the file are copied.
                Err(CheckedCastError::PodCastError(_)) => {}
            }
        }
        let len = entry.size_bytes / size_of::<T>();
        if entry.size_bytes <= READ_BYTES {
            let mut buffer = vec![<T::Raw>::zeroed(); len];
            self.read_at(entry.start, bytemuck::cast_slice_mut(&mut buffer))?;
            return whole(checked(name, 0, &buffer)?);
        }
        let mut array = GpuArray::<T, D>::zeros(gpu, dim.clone()).map_err(array_error())?;
        self.upload_chunks(name, entry, &mut array)?;
        Ok(array)
    }

    /// Uploads chunks that other threads read: one thread reads at a fraction of the link's rate.
    fn upload_chunks<T: CheckpointElement, D: Dimension>(
        &self,
        name: &str,
        entry: &TensorEntry,
        array: &mut GpuArray<T, D>,
    ) -> Result<(), CheckpointError> {
        let (len, chunk_len) = (array.len(), READ_BYTES / size_of::<T>());
        let buffer = || vec![<T::Raw>::zeroed(); chunk_len];
        let read = |start: usize, buffer: &mut [T::Raw]| {
            let size = chunk_len.min(len - start);
            self.read_at(entry.start + start * size_of::<T>(), bytemuck::cast_slice_mut(&mut buffer[..size]))
        };
        let mut upload = |start: usize, buffer: &[T::Raw]| {
            let elements = checked(name, start, &buffer[..chunk_len.min(len - start)])?;
            let part = array.view_mut().reshape_mut(len);
            let part =
                part.and_then(|all| all.slice_axis_mut(Axis(0), Slice::from(start..start + elements.len())));
            part.and_then(|mut part| part.copy_from_slice(elements)).map_err(CheckpointError::array(name))
        };
        let next = AtomicUsize::new(0);
        let (filled, chunks) = mpsc::channel();
        let (free, buffers) = mpsc::channel::<Vec<T::Raw>>();
        let buffers = Mutex::new(buffers);
        let take = || buffers.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // Ends after the last chunk, or when the upload has failed.
        let work = |filled: Sender<ReadChunk<T>>| {
            while let Ok(mut buffer) = take() {
                let start = next.fetch_add(chunk_len, Ordering::Relaxed);
                if start >= len || filled.send((start, read(start, &mut buffer).map(|()| buffer))).is_err() {
                    return;
                }
            }
        };
        let available = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let thread_count = available.min(READERS_MAX).min(len.div_ceil(chunk_len));
        thread::scope(|scope| {
            let reader = |_| {
                let (work, filled) = (&work, filled.clone());
                thread::Builder::new().name("gpumem-read".into()).spawn_scoped(scope, || work(filled)).ok()
            };
            let reader_count = (0..thread_count).map_while(reader).count();
            drop(filled);
            // After an error, dropping it stops the readers.
            let free = free;
            (0..reader_count + BUFFERS_WAITING).try_for_each(|_| free.send(buffer())).unwrap_or_default();
            for (start, buffer) in chunks {
                let buffer = buffer?;
                upload(start, &buffer)?;
                free.send(buffer).unwrap_or_default();
            }
            if reader_count > 0 {
                return Ok(());
            }
            // The system refused all threads.
            let mut buffer = buffer();
            (0..len).step_by(chunk_len).try_for_each(|start| {
                read(start, &mut buffer)?;
                upload(start, &buffer)
            })
        })
    }

    /// All elements of a small tensor.
    pub(super) fn elements<T: CheckpointElement>(
        &self,
        name: &str,
        entry: &TensorEntry,
    ) -> Result<Vec<T>, CheckpointError> {
        let mut buffer = vec![<T::Raw>::zeroed(); entry.size_bytes / size_of::<T>()];
        self.read_at(entry.start, bytemuck::cast_slice_mut(&mut buffer))?;
        Ok(checked::<T>(name, 0, &buffer)?.to_vec())
    }

    fn size_bytes(&self) -> Result<u64, CheckpointError> {
        match &self.bytes {
            FileBytes::Mapped(mapped) => Ok(mapped.len() as u64),
            FileBytes::Read(file) => {
                let found = file.metadata().map_err(|source| io_error("read", &self.path, source))?;
                Ok(found.len())
            }
        }
    }

    fn read_at(&self, offset: usize, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        let read = match &self.bytes {
            FileBytes::Mapped(mapped) => {
                match offset.checked_add(buffer.len()).and_then(|end| mapped.get(offset..end)) {
                    Some(bytes) => {
                        buffer.copy_from_slice(bytes);
                        Ok(())
                    }
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            FileBytes::Read(file) => read_exact_at(file, buffer, offset as u64),
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
        let is_mapped = matches!(self.bytes, FileBytes::Mapped(_));
        f.debug_struct("File").field("path", &self.path).field("is_mapped", &is_mapped).finish()
    }
}

/// Reads without using the file position, which threads would share.
#[cfg(unix)]
fn read_exact_at(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &fs::File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        // This moves the file position too, but nothing uses it.
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens a regular file. Opening a pipe would wait for a writer.
fn open(path: &Path) -> Result<fs::File, CheckpointError> {
    let found = fs::metadata(path).map_err(|source| io_error("open", path, source))?;
    if !found.is_file() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(io_error("open", path, source));
    }
    fs::File::open(path).map_err(|source| io_error("open", path, source))
}

pub(super) fn io_error(operation: &'static str, path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::Io { operation, path: path.to_owned(), source }
}

/// The elements in a buffer, whose first one has index `start`.
fn checked<'b, T: CheckpointElement>(
    name: &str,
    start: usize,
    buffer: &'b [T::Raw],
) -> Result<&'b [T], CheckpointError> {
    bytemuck::checked::try_cast_slice(buffer).map_err(|_| invalid(name, start, bytemuck::cast_slice(buffer)))
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

/// Large tensors are written in chunks of this size, so the host needs no memory for a whole tensor.
pub(super) const CHUNK_BYTES: usize = 32 << 20;

/// Large tensors are read in chunks of this size, by this number of threads, so the host needs no memory for a whole tensor.
const READ_BYTES: usize = 4 << 20;
const READERS_MAX: usize = 8;
/// Buffers that wait for the upload, in addition to those of the readers.
const BUFFERS_WAITING: usize = 2;

#[cfg(target_endian = "big")]
compile_error!("checkpoints are little endian; the feature `safetensors` does not support this target");
