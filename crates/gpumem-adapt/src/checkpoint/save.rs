//! [`save`]: writes arrays to a file, atomically.

use super::error::CheckpointError;
use super::file::{CHUNK_BYTES, HEADER_BYTES_MAX, LENGTH_BYTES, io_error};
use super::tensor::{CheckpointElement, Tensor};
use bytemuck::Zeroable;
use gpumem_array::kind::Kind;
use gpumem_array::ndarray::{Axis, Dimension, Slice};
use gpumem_array::{ArrayError, GpuArray, GpuView};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Values that [`save`] writes: arrays and views of every [`CheckpointElement`], and [`Tensor`].
pub trait SaveTensor: sealed::Save {}

impl<S: sealed::Save> SaveTensor for S {}

pub(super) mod sealed {
    use super::{Dtype, Write, WriteFailed};

    pub trait Save {
        fn dtype(&self) -> Dtype;
        fn shape(&self) -> &[usize];
        /// Writes the elements in row-major order.
        fn write_to(&self, out: &mut dyn Write) -> Result<(), WriteFailed>;
    }
}

/// A tensor could not be written.
#[derive(Debug)]
pub enum WriteFailed {
    Array(ArrayError),
    Io(io::Error),
}

impl From<ArrayError> for WriteFailed {
    fn from(error: ArrayError) -> Self {
        Self::Array(error)
    }
}

/// Saves arrays by name, with their types and shapes. The elements are saved in row-major order.
///
/// The bytes go to a new file in the same folder, which replaces `path` once it is on the disk. If anything fails, or the program ends,
/// `path` keeps the old file. The new file has the old file's permissions. A symbolic link stays, and its target is replaced or, if it does
/// not exist, created. A [`Checkpoint`](crate::Checkpoint) that reads or maps the old file keeps its bytes. Large arrays are downloaded in
/// chunks through pinned memory. Waits for the work that the arrays depend on.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gpumem_adapt::array::pool::{Device, Pool};
/// use gpumem_adapt::array::{Gpu, GpuArray, ndarray::{Ix2, array}};
/// use gpumem_adapt::{Checkpoint, SaveTensor, save};
///
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let gpu = Gpu::new(&Pool::new(&device)?)?;
/// let weight = GpuArray::from_array(&gpu, &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
/// let steps = GpuArray::from_slice(&gpu, &[7_i64])?;
///
/// let path = std::env::temp_dir().join(format!("gpumem-{}.safetensors", std::process::id()));
/// save(&path, [("weight", &weight as &dyn SaveTensor), ("steps", &steps)])?;
/// let checkpoint = Checkpoint::open(&path)?;
/// assert_eq!(checkpoint.load::<f32, Ix2>("weight", &gpu)?.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
///
/// save(&path, &checkpoint.load_all(&gpu)?)?; // also every tensor of a checkpoint
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// - [`CheckpointError::Io`] if the file cannot be written.
/// - [`CheckpointError::InvalidName`] if a name occurs twice or is `__metadata__`.
/// - [`CheckpointError::Array`] if a download fails.
/// - [`CheckpointError::Malformed`] if the names and shapes exceed 100 MB, the limit of the format.
pub fn save<'a, N, S>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a S)>,
) -> Result<(), CheckpointError>
where
    N: AsRef<str>,
    S: SaveTensor + ?Sized + 'a,
{
    save_with_metadata(path, tensors, &BTreeMap::new())
}

/// Like [`save`], with texts by name, which [`Checkpoint::metadata`](crate::Checkpoint::metadata) returns.
///
/// # Errors
///
/// [`CheckpointError::Io`], [`CheckpointError::InvalidName`], [`CheckpointError::Array`], [`CheckpointError::Malformed`]; see [`save`].
pub fn save_with_metadata<'a, N, S>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a S)>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), CheckpointError>
where
    N: AsRef<str>,
    S: SaveTensor + ?Sized + 'a,
{
    let mut tensors: Vec<(N, &S)> = tensors.into_iter().collect();
    check_names(&tensors)?;
    // The largest elements first, so that each tensor is aligned in the file.
    tensors.sort_by(|(left_name, left), (right_name, right)| {
        let by_dtype = right.dtype().cmp(&left.dtype());
        by_dtype.then_with(|| left_name.as_ref().cmp(right_name.as_ref()))
    });
    let path = path.as_ref();
    let path = behind_links(path).map_err(|source| io_error("replace", path, source))?;
    let header = header(&path, &tensors, metadata)?;
    let mut file = NewFile::beside(&path)?;
    file.write(&header).map_err(|source| io_error("write", &path, source))?;
    for (name, tensor) in &tensors {
        tensor.write_to(&mut file.file).map_err(|error| match error {
            WriteFailed::Array(source) => CheckpointError::array(name.as_ref())(source),
            WriteFailed::Io(source) => io_error("write", &path, source),
        })?;
    }
    file.replace(&path).map_err(|source| io_error("replace", &path, source))
}

/// The file that a path refers to, which need not exist. Links are followed, even to a file that does not exist yet.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let error = match fs::canonicalize(path) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            // An absolute target replaces the path.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    // The links form a cycle.
    Err(error)
}

/// The maximum number of links that are followed. Linux has the same limit.
const LINKS_MAX: usize = 40;

fn check_names<N: AsRef<str>, S: ?Sized>(tensors: &[(N, &S)]) -> Result<(), CheckpointError> {
    let mut names = HashSet::new();
    for (name, _) in tensors {
        let name = name.as_ref();
        let reason = match name {
            "__metadata__" => "the format reserves this name",
            name if !names.insert(name) => "another tensor has this name",
            _ => continue,
        };
        return Err(CheckpointError::InvalidName { name: name.into(), reason });
    }
    Ok(())
}

/// The length of the header, and the header, padded to 8 bytes.
fn header<N: AsRef<str>, S: SaveTensor + ?Sized>(
    path: &Path,
    tensors: &[(N, &S)],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, CheckpointError> {
    let malformed = |reason: String| CheckpointError::Malformed { path: path.to_owned(), reason };
    let mut start = 0_usize;
    let mut infos = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let size = shape.iter().try_fold(dtype.bitsize() / 8, |size, length| size.checked_mul(*length));
        let end = size.and_then(|size| start.checked_add(size));
        let end =
            end.ok_or_else(|| malformed(format!("tensor {:?} exceeds the address space", name.as_ref())))?;
        infos.push((name.as_ref().to_owned(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
        start = end;
    }
    let texts = metadata.iter().map(|(key, text)| (key.clone(), text.clone())).collect();
    let header = Metadata::new((!metadata.is_empty()).then_some(texts), infos);
    let header = header.map_err(|error| malformed(error.to_string()))?;
    let mut text = serde_json::to_vec(&header).map_err(|error| malformed(error.to_string()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > HEADER_BYTES_MAX {
        return Err(malformed(format!(
            "its header of {} bytes exceeds {HEADER_BYTES_MAX} bytes",
            text.len()
        )));
    }
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + text.len());
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
    Ok(bytes)
}

/// A file that replaces another one when it is complete, and is removed otherwise.
struct NewFile {
    file: File,
    path: PathBuf,
    is_in_place: bool,
}

impl NewFile {
    /// Creates it with the permissions of the file that it replaces. Refuses to replace folders and devices.
    fn beside(path: &Path) -> Result<Self, CheckpointError> {
        let replaced = fs::metadata(path).ok();
        if replaced.as_ref().is_some_and(|found| !found.is_file()) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(io_error("replace", path, source));
        }
        // Short, because the name of the checkpoint can be as long as the system allows.
        let new = path.with_file_name(format!(".gpumem-{:016x}.tmp", fastrand::u64(..)));
        let file = OpenOptions::new().write(true).create_new(true).open(&new);
        let file = file.map_err(|source| io_error("create", &new, source))?;
        let file = Self { file, path: new, is_in_place: false };
        if let Some(replaced) = replaced {
            let set = file.file.set_permissions(replaced.permissions());
            set.map_err(|source| io_error("create", &file.path, source))?;
        }
        Ok(file)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn replace(mut self, path: &Path) -> io::Result<()> {
        // Before the rename: after a power failure, the name must not refer to incomplete contents.
        self.file.sync_all()?;
        fs::rename(&self.path, path)?;
        self.is_in_place = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_in_place {
            // The original error is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl<T: CheckpointElement, D: Dimension> sealed::Save for GpuView<'_, T, D> {
    fn dtype(&self) -> Dtype {
        T::DTYPE
    }

    fn shape(&self) -> &[usize] {
        self.shape()
    }

    fn write_to(&self, out: &mut dyn Write) -> Result<(), WriteFailed> {
        let row_major;
        let elements = match self.reshape(self.len()) {
            Err(ArrayError::NotContiguous { .. }) => {
                row_major = GpuArray::<T, D>::uninit(self.gpu(), self.raw_dim())?.assign(self)?;
                row_major.view().reshape(self.len())?
            }
            elements => elements?,
        };
        let bytes = elements.reinterpret::<T::Raw>()?;
        let (len, chunk_len) = (self.len(), CHUNK_BYTES / size_of::<T>());
        let mut buffer = vec![<T::Raw>::zeroed(); len.min(chunk_len)];
        for start in (0..len).step_by(chunk_len) {
            let end = len.min(start + chunk_len);
            let chunk = &mut buffer[..end - start];
            bytes.slice_axis(Axis(0), Slice::from(start..end))?.copy_to_slice(chunk)?;
            let is_valid = |element: &T::Raw| {
                bytemuck::checked::try_cast_slice::<T::Raw, T>(core::slice::from_ref(element)).is_ok()
            };
            if bytemuck::checked::try_cast_slice::<T::Raw, T>(chunk).is_err() {
                let index = start + chunk.iter().position(|element| !is_valid(element)).unwrap_or(0);
                return Err(ArrayError::InvalidElement { index, kind: core::any::type_name::<T>() }.into());
            }
            out.write_all(bytemuck::cast_slice(chunk)).map_err(WriteFailed::Io)?;
        }
        Ok(())
    }
}

impl<T: CheckpointElement, D: Dimension, K: Kind> sealed::Save for GpuArray<T, D, K> {
    fn dtype(&self) -> Dtype {
        T::DTYPE
    }

    fn shape(&self) -> &[usize] {
        self.shape()
    }

    fn write_to(&self, out: &mut dyn Write) -> Result<(), WriteFailed> {
        sealed::Save::write_to(&self.view(), out)
    }
}

impl sealed::Save for Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.shape()
    }

    fn write_to(&self, out: &mut dyn Write) -> Result<(), WriteFailed> {
        self.as_save().write_to(out)
    }
}
