//! [`Output`]: the file of a trace. It is created or opened without overwriting anything, and continued in a new file when it
//! is full.
//!
//! | name | content |
//! | --- | --- |
//! | `FILE` | the newest part of the newest trace |
//! | `FILE.1`, `FILE.2`, `FILE.3` | the part before it, or the last part of an earlier trace, and so on |
//!
//! A new file renumbers the earlier ones by one and removes the last. Each part can be read alone.

use super::format;
use gpumem_sys::text::Shown;
#[cfg(target_os = "linux")]
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

pub(super) struct Output {
    file: File,
    /// `None` for a pipe or another file that is written sequentially.
    path: Option<PathBuf>,
}

impl Output {
    /// Opens the file, empty, and locks it for this trace while it is open. An earlier trace is kept under the next number; any
    /// other file is left unchanged.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // A pipe is not opened for reading, so that opening waits for the reader, and a closed reader is detected by
        // writing.
        let is_special = std::fs::symlink_metadata(path).is_ok_and(|found| is_stream(found.file_type()));
        let is_own = is_own_descriptor(path);
        let is_readable = !is_special && !is_own;
        let mut options = File::options();
        options.read(is_readable).write(true).create(is_readable).truncate(false);
        if !is_own {
            no_links(&mut options, path)?;
        }
        for _ in 0..OPEN_COUNT_MAX {
            let mut file = options.open(path)?;
            // The opened file is checked, not the path, which may now name another file.
            let found = file.metadata()?;
            if !found.is_file() {
                return if is_stream(found.file_type()) && !is_readable {
                    Ok(Self { file, path: None })
                } else {
                    Err(not_a_trace(path))
                };
            }
            if is_own {
                return Err(not_a_trace(path));
            }
            if is_locked(&file) {
                return Err(is_recording());
            }
            if !is_named(&file, path) {
                // Another process has moved the file since it was opened here.
                continue;
            }
            let mut start = Vec::new();
            (&mut file).take(START_BYTES as u64 + 1).read_to_end(&mut start)?;
            if !start.is_empty() && !format::is_trace(&start) {
                return Err(not_a_trace(path));
            }
            let path = Some(path.to_path_buf());
            if start.len() <= START_BYTES {
                // Nothing was recorded.
                file.set_len(0)?;
                file.seek(SeekFrom::Start(0))?;
                return Ok(Self { file, path });
            }
            return Self { file, path }.next();
        }
        Err(is_recording())
    }

    /// Keeps this file under the next number, and creates a new one in its place, locked.
    fn next(self) -> io::Result<Self> {
        let Some(path) = self.path else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a pipe has no second part"));
        };
        keep(&path)?;
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let file = options.open(&path)?;
        if is_locked(&file) { Err(is_recording()) } else { Ok(Self { file, path: Some(path) }) }
    }

    /// Continues in a new file, which begins with these bytes. On failure this file is continued.
    pub(super) fn begin_part(&mut self, start: &[u8]) -> io::Result<()> {
        let mut next = Self { file: self.file.try_clone()?, path: self.path.clone() }.next()?;
        next.append(start)?;
        unlock(&self.file);
        *self = next;
        Ok(())
    }

    /// True if the trace can be continued in another file.
    pub(super) fn has_parts(&self) -> bool {
        self.path.is_some()
    }

    /// Appends all bytes or nothing: a truncated chunk would make all later ones unreadable.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // A pipe has no position to return to.
        let end = self.file.stream_position().ok();
        self.file.write_all(bytes).inspect_err(|_| {
            if let Some(end) = end {
                let _ = self.file.set_len(end);
                let _ = self.file.seek(SeekFrom::Start(end));
            }
        })
    }

    /// Releases the lock, also for forked processes.
    pub(super) fn unlock(&self) {
        unlock(&self.file);
    }
}

/// The file with a number, `FILE.2`; the file itself for 0.
pub(super) fn numbered(path: &Path, number: usize) -> PathBuf {
    let mut name = OsString::from(path);
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name.into()
}

/// Renumbers the file and the earlier ones by one, and deletes the last. If one of them is not a trace, nothing is moved.
pub(super) fn keep(path: &Path) -> io::Result<()> {
    (0..=EARLIER_COUNT).try_for_each(|number| check_trace(&numbered(path, number)))?;
    for number in (0..EARLIER_COUNT).rev() {
        match std::fs::rename(numbered(path, number), numbered(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns an error if there is a file that is neither empty nor a trace.
fn check_trace(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.is_file() => return Err(not_a_trace(path)),
        Ok(_) => {}
    }
    let mut start = Vec::new();
    File::open(path)?.take(format::HEADER_BYTES as u64).read_to_end(&mut start)?;
    match start.is_empty() || format::is_trace(&start) {
        true => Ok(()),
        false => Err(not_a_trace(path)),
    }
}

/// Creates a file with these bytes at a path, in one step: a reader finds the earlier file or the whole new one. An earlier trace
/// is replaced if it `is_own`, otherwise kept under the next number. Any other file is left unchanged.
pub(super) fn put(path: &Path, bytes: &[u8], is_own: bool) -> io::Result<()> {
    check_trace(path)?;
    let mut new = OsString::from(path);
    new.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(new);
    // Left by a process with this number that was killed.
    let _ = std::fs::remove_file(&new);
    let mut options = File::options();
    options.write(true).create_new(true);
    // Addresses and the names of tags are for the user who runs the program.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        drop(file);
        if !is_own {
            keep(path)?;
        }
        std::fs::rename(&new, path)
    });
    written.inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

fn is_recording() -> io::Error {
    let said = "another trace is being recorded in this file: put %p, the process id, into its name";
    io::Error::new(io::ErrorKind::ResourceBusy, said)
}

fn not_a_trace(path: &Path) -> io::Error {
    let path = Shown::path(path);
    let said =
        format!("{path} exists and is not a trace, so it is left unchanged: remove it, or name another file");
    io::Error::new(io::ErrorKind::AlreadyExists, said)
}

/// True if the path names a descriptor of this process: a link that no other process could have created.
fn is_own_descriptor(path: &Path) -> bool {
    let is_number = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let parent = path.parent();
    cfg!(unix)
        && path.file_name().is_some_and(is_number)
        && [Some(Path::new("/proc/self/fd")), Some(Path::new("/dev/fd"))].contains(&parent)
}

/// True if the path still names the opened file.
#[cfg(unix)]
fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |found: std::fs::Metadata| (found.dev(), found.ino());
    let opened = file.metadata().map(of);
    matches!((opened, std::fs::symlink_metadata(path).map(of)), (Ok(opened), Ok(named)) if opened == named)
}

#[cfg(not(unix))]
fn is_named(_: &File, _: &Path) -> bool {
    true
}

/// True if the file is a pipe or a terminal, or `/dev/null`: it is written sequentially and holds no data to overwrite.
#[cfg(unix)]
fn is_stream(kind: std::fs::FileType) -> bool {
    use std::os::unix::fs::FileTypeExt;
    kind.is_fifo() || kind.is_char_device()
}

#[cfg(not(unix))]
fn is_stream(_: std::fs::FileType) -> bool {
    false
}

/// Refuses a symbolic link: another user may have created it, and it may lead to a file that only this process may
/// write.
fn no_links(options: &mut OpenOptions, path: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        let path = Shown::path(path);
        let said = format!("{path} is a symbolic link, which a trace does not follow: name the target file");
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, said));
    }
    // A link created from here on is not followed either, if the system supports that.
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::custom_flags(options, FILE_FLAG_OPEN_REPARSE_POINT);
    let _ = options;
    Ok(())
}

/// Opens a link instead of its target.
#[cfg(windows)]
const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;

/// True if another process holds the lock. Otherwise takes it, if the system supports locks.
#[cfg(target_os = "linux")]
fn is_locked(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
}

#[cfg(target_os = "linux")]
fn unlock(file: &File) {
    // On failure, closing the file releases it.
    let _ = flock(file, FlockOperation::Unlock);
}

#[cfg(not(target_os = "linux"))]
fn is_locked(_: &File) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn unlock(_: &File) {}

/// The bytes of a trace without events: a header, and a chunk without payload.
const START_BYTES: usize = format::HEADER_BYTES + format::CHUNK_HEADER_BYTES;

pub(super) const EARLIER_COUNT: usize = 3;

/// The number of times that a file which other processes move is opened again.
const OPEN_COUNT_MAX: usize = 8;
