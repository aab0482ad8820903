//! [`FileMemory`]: a file that contents move to when the host memory for them is full. The thread that needs the memory waits for the disk,
//! while the device works on what is queued.

use crate::config::SpillFile;
use crate::error::{PoolError, SpillFileReport};
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_sys::fork;
use gpumem_sys::text::Shown;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// A file without a name.
pub(super) struct FileMemory {
    of: SpillFile,
    file: Lock<File>,
    /// The sizes of the parts that are taken, by where they start.
    taken: Lock<BTreeMap<u64, u64>>,
    /// Why the last write failed, until one succeeds.
    failure: Lock<Option<String>>,
}

/// Contents in the file. Dropping it frees their part of the file.
pub(super) struct FilePart {
    file: Arc<FileMemory>,
    start: u64,
    size_bytes: u64,
}

impl FileMemory {
    pub(super) fn open(of: SpillFile) -> Result<Self, PoolError> {
        let file = unnamed_file(&of).map_err(|error| of.refused(&error))?;
        Ok(Self { of, file: Lock::new(file), taken: Lock::default(), failure: Lock::default() })
    }

    /// The bytes of contents in the file.
    pub(super) fn in_use_bytes(&self) -> u64 {
        self.taken.lock().values().sum()
    }

    /// The bytes that may move here.
    pub(super) fn room_bytes(&self) -> u64 {
        self.of.limit_bytes.saturating_sub(self.in_use_bytes())
    }

    pub(super) fn report(&self) -> SpillFileReport {
        SpillFileReport {
            limit_bytes: self.of.limit_bytes,
            in_use_bytes: self.in_use_bytes(),
            failure: self.failure.lock().clone(),
        }
    }

    /// Writes contents. `None` if the file has no room for them, or cannot be written.
    pub(super) fn write(self: &Arc<Self>, contents: &[u8]) -> Option<FilePart> {
        let part = self.take(contents.len() as u64)?;
        let mut file = self.file.lock();
        let written = file.seek(SeekFrom::Start(part.start)).and_then(|_| file.write_all(contents));
        *self.failure.lock() = written.as_ref().err().map(io::Error::to_string);
        written.ok().map(|()| part)
    }

    /// The first gap that is large enough.
    fn take(self: &Arc<Self>, size_bytes: u64) -> Option<FilePart> {
        let mut taken = self.taken.lock();
        let mut start = 0;
        for (next, taken_bytes) in &*taken {
            if next - start >= size_bytes {
                break;
            }
            start = next + taken_bytes;
        }
        if start.checked_add(size_bytes)? > self.of.limit_bytes {
            return None;
        }
        taken.insert(start, size_bytes);
        Some(FilePart { file: Arc::clone(self), start, size_bytes })
    }
}

impl FilePart {
    /// Reads contents from `start` on.
    pub(super) fn read(&self, start: u64, contents: &mut [u8]) -> Result<(), PoolError> {
        let mut file = self.file.file.lock();
        let read = file.seek(SeekFrom::Start(self.start + start)).and_then(|_| file.read_exact(contents));
        read.map_err(|error| PoolError::SpillFile {
            size_bytes: self.size_bytes,
            reason: format!("{error}, in {}", Shown::path(&self.file.of.directory)),
        })
    }
}

impl Drop for FilePart {
    fn drop(&mut self) {
        // A thread that does not exist in the child may have the lock.
        if fork::is_child() {
            return;
        }
        self.file.taken.lock().remove(&self.start);
    }
}

/// Its name is removed at once, so that nothing is left of it when the process ends.
fn unnamed_file(of: &SpillFile) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = of.directory.join(format!(".gpumem-spilled-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit_bytes: u64) -> Arc<FileMemory> {
        Arc::new(FileMemory::open(SpillFile { directory: std::env::temp_dir(), limit_bytes }).unwrap())
    }

    fn read(part: &FilePart) -> Vec<u8> {
        let mut contents = vec![0; part.size_bytes as usize];
        part.read(0, &mut contents).unwrap();
        contents
    }

    #[test]
    fn parts_take_the_first_gap() {
        let file = memory(100);
        let parts = [10, 20, 30].map(|value| file.write(&[value; 30]).unwrap());
        assert!(file.write(&[4; 11]).is_none());
        let [first, second, third] = parts;
        drop(second);
        let short = file.write(&[5; 30]).unwrap();
        assert_eq!((short.start, file.in_use_bytes(), file.room_bytes()), (30, 90, 10));
        assert_eq!([&first, &short, &third].map(read), [vec![10; 30], vec![5; 30], vec![30; 30]]);
        drop((first, short, third));
        assert_eq!(file.in_use_bytes(), 0);
    }

    #[test]
    fn a_write_that_fails_frees_its_part_and_says_why() {
        let mut file = memory(100);
        let unwritable = File::open("/dev/null").unwrap();
        let good = core::mem::replace(&mut *Arc::get_mut(&mut file).unwrap().file.lock(), unwritable);
        assert!(file.write(&[1; 10]).is_none());
        assert_eq!(file.in_use_bytes(), 0);
        assert!(file.report().failure.unwrap().contains("Bad file descriptor"));
        *file.file.lock() = good;
        assert_eq!(read(&file.write(&[1; 10]).unwrap()), [1; 10]);
        assert_eq!(file.report().failure, None);
    }
}
