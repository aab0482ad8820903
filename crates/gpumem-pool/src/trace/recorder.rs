//! [`Recorder`]: all rings of one trace, and the thread that writes them to the file.

use super::event::{Kind, Raw};
use super::format;
use super::ring::{Level, Ring, Timed};
use crate::device::{OrderEvent, OrderObserver};
use crate::stats::Names;
use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
#[cfg(target_os = "linux")]
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Instant;

pub(super) struct Recorder {
    /// Unique in the process.
    number: u64,
    start: Instant,
    /// The id of the process. A forked child has no writer thread.
    process: u32,
    rings: Mutex<Rings>,
    /// The names of the pools' tags.
    pools: Mutex<Vec<NamesOfPool>>,
    writer: OnceLock<Thread>,
    /// The number of requested and completed flushes.
    flushes: Mutex<Flushes>,
    served: Condvar,
    /// The losses of rings that were removed.
    dropped_count: AtomicU64,
}

struct Rings {
    all: Vec<Arc<Ring>>,
    thread_count: u32,
    /// For threads that cannot have a ring of their own. Used under the lock.
    common: Arc<Ring>,
}

type NamesOfPool = (u32, Arc<Names>);

#[derive(Default)]
struct Flushes {
    asked_count: u64,
    served_count: u64,
    /// True if a write has failed since the last flush that reported it.
    has_failed: bool,
    /// The writer ends once it has completed all flushes.
    is_over: bool,
}

thread_local! {
    /// This thread's ring of each recorder.
    static OWN: RefCell<Vec<(u64, Arc<Ring>)>> = const { RefCell::new(Vec::new()) };
}

impl OrderObserver for Recorder {
    fn note(&self, event: OrderEvent) {
        let (kind, words) = match event {
            OrderEvent::Wait { stream, source } => (Kind::Wait, [0, source.as_u64(), stream.as_u64(), 0]),
            OrderEvent::Mark { event, stream } => (Kind::Mark, [event as u64, 0, stream.as_u64(), 0]),
            OrderEvent::WaitForMark { stream, event } => {
                (Kind::WaitForMark, [event as u64, 0, stream.as_u64(), 0])
            }
            OrderEvent::StreamDone(stream) => (Kind::StreamDone, [0, 0, stream.as_u64(), 0]),
            OrderEvent::MarkDone(event) => (Kind::MarkDone, [event as u64, 0, 0, 0]),
            OrderEvent::DeviceDone => (Kind::DeviceDone, [0; 4]),
        };
        self.record(Raw { kind, words });
    }
}

impl Recorder {
    /// Creates the file and starts the writer.
    pub(super) fn start(path: &Path) -> io::Result<Arc<Self>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut file = open(path)?;
        file.write_all(&format::header())?;
        let common = Arc::new(Ring::new(0));
        let recorder = Arc::new(Self {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            start: Instant::now(),
            process: std::process::id(),
            rings: Mutex::new(Rings { all: vec![Arc::clone(&common)], thread_count: 1, common }),
            pools: Mutex::default(),
            writer: OnceLock::new(),
            flushes: Mutex::default(),
            served: Condvar::new(),
            dropped_count: AtomicU64::new(0),
        });
        let (events, bytes, named) = (Vec::new(), Vec::new(), BTreeSet::new());
        let writer = Writer { recorder: Arc::clone(&recorder), file, events, bytes, named };
        let thread = std::thread::Builder::new().name("gpumem-trace".into()).spawn(move || writer.run())?;
        let _first = recorder.writer.set(thread.thread().clone());
        Ok(recorder)
    }

    /// Adds a pool with the names of its tags.
    pub(super) fn add_pool(&self, pool: u32, names: &Arc<Names>) {
        self.pools().push((pool, Arc::clone(names)));
    }

    /// Records an event of this thread.
    #[inline]
    pub(super) fn record(&self, raw: Raw) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let put = OWN.try_with(|own| {
            let Ok(own) = own.try_borrow() else { return None };
            let (_, ring) = own.iter().find(|(number, _)| *number == self.number)?;
            Some(ring.put(now_ns, raw))
        });
        match put {
            Ok(Some(Level::Fine)) => {}
            Ok(Some(level)) => self.look(level),
            other => self.record_first(now_ns, raw, other.is_ok()),
        }
    }

    /// Records an event on a thread that has no ring yet, or whose thread-local storage is gone.
    #[cold]
    fn record_first(&self, now_ns: u64, raw: Raw, may_have_ring: bool) {
        let mut rings = self.rings();
        if !may_have_ring || rings.all.len() > RING_COUNT_MAX {
            let level = rings.common.put(now_ns, raw);
            drop(rings);
            return self.look(level);
        }
        let ring = Arc::new(Ring::new(rings.thread_count));
        rings.thread_count += 1;
        rings.all.push(Arc::clone(&ring));
        drop(rings);
        ring.put(now_ns, raw);
        let _ended = OWN.try_with(|own| {
            if let Ok(mut own) = own.try_borrow_mut() {
                own.retain(|(_, other)| !other.is_closed());
                own.push((self.number, ring));
            }
        });
    }

    #[cold]
    fn look(&self, level: Level) {
        // A full ring woke the writer when it was half full.
        if let (Level::Half, Some(writer)) = (level, self.writer.get()) {
            writer.unpark();
        }
    }

    /// Waits until the writer has written everything recorded so far.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        self.ask(timeout, false)
    }

    fn ask(&self, timeout: Duration, is_last: bool) -> bool {
        let Some(writer) = self.writer.get().filter(|_| std::process::id() == self.process) else {
            return false;
        };
        let mut flushes = self.flushes();
        flushes.asked_count += 1;
        flushes.is_over |= is_last;
        let number = flushes.asked_count;
        writer.unpark();
        let waits = |flushes: &mut Flushes| flushes.served_count < number;
        let waited = self.served.wait_timeout_while(flushes, timeout, waits);
        let (mut flushes, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        !timed_out.timed_out() && !core::mem::take(&mut flushes.has_failed)
    }

    /// Flushes, and ends the writer.
    pub(super) fn finish(&self, timeout: Duration) {
        self.ask(timeout, true);
        self.rings().all.iter().for_each(|ring| ring.close());
    }

    pub(super) fn dropped_count(&self) -> u64 {
        let of_rings = self.rings().all.iter().map(|ring| ring.dropped_count()).sum::<u64>();
        of_rings + self.dropped_count.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn pool_count(&self) -> usize {
        self.pools().len()
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pools(&self) -> MutexGuard<'_, Vec<NamesOfPool>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flushes(&self) -> MutexGuard<'_, Flushes> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer: it alone takes events out of the rings and accesses the file.
struct Writer {
    recorder: Arc<Recorder>,
    file: File,
    events: Vec<Timed>,
    bytes: Vec<u8>,
    /// The tags whose names are in the file, by pool, for pools that exist.
    named: BTreeSet<(u32, u32)>,
}

impl Writer {
    fn run(mut self) {
        loop {
            // Read before the rings: events recorded before the flush was requested are written.
            let asked_count = self.recorder.flushes().asked_count;
            let is_written = self.write_all();
            let mut flushes = self.recorder.flushes();
            flushes.served_count = asked_count;
            flushes.has_failed |= !is_written;
            let (is_served, is_over) = (flushes.asked_count == asked_count, flushes.is_over);
            if is_over && is_served {
                unlock(&self.file);
            }
            drop(flushes);
            self.recorder.served.notify_all();
            if is_over && is_served {
                return;
            }
            if is_served {
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    /// Writes all rings, a chunk each. False if any events were lost.
    fn write_all(&mut self) -> bool {
        // Read before the rings: a pool that is gone has put all its events there.
        let is_gone = |(_, names): &&NamesOfPool| Arc::strong_count(names) == 1;
        let gone: Vec<u32> = self.recorder.pools().iter().filter(is_gone).map(|(pool, _)| *pool).collect();
        let written = self.write_rings();
        if !gone.is_empty() {
            self.recorder.pools().retain(|(pool, _)| !gone.contains(pool));
            self.named.retain(|(pool, _)| !gone.contains(pool));
        }
        written
    }

    fn write_rings(&mut self) -> bool {
        let rings = self.recorder.rings().all.clone();
        // All rings, even after one has failed.
        let written = rings.iter().map(|ring| self.write(ring)).filter(|is_written| !is_written).count() == 0;
        drop(rings);
        self.recorder.rings().all.retain(|ring| {
            // This list is the only holder: the ring's thread is gone.
            let is_left = Arc::strong_count(ring) == 1 && ring.is_empty();
            if is_left {
                self.recorder.dropped_count.fetch_add(ring.dropped_count(), Ordering::Relaxed);
            }
            !is_left
        });
        written
    }

    fn write(&mut self, ring: &Ring) -> bool {
        self.events.clear();
        ring.take(&mut self.events);
        if self.events.is_empty() {
            return true;
        }
        self.bytes.clear();
        let new = self.add_names();
        format::add_chunk(&mut self.bytes, ring.thread, ring.dropped_count(), &self.events);
        let is_written = self.append().is_ok();
        match is_written {
            true => self.named.extend(new),
            false => ring.drop_more(self.events.len() as u64),
        }
        is_written
    }

    /// Adds the names of tags that appear first in these events. They are in the file once the bytes are.
    fn add_names(&mut self) -> BTreeSet<(u32, u32)> {
        let tags = self.events.iter().filter_map(|event| event.raw.tag());
        let new: BTreeSet<_> = tags.filter(|tag| !self.named.contains(tag)).collect();
        if new.is_empty() {
            return new;
        }
        let pools = self.recorder.pools();
        for (pool, tag) in &new {
            let names = pools.iter().find(|(known, _)| known == pool).map(|(_, names)| names);
            if let Some(name) = names.zip(u16::try_from(*tag).ok()).and_then(|(names, tag)| names.get(tag)) {
                format::add_name(&mut self.bytes, *pool, *tag, &name);
            }
        }
        drop(pools);
        new
    }

    /// Appends whole chunks or nothing: a truncated chunk would make all later ones unreadable.
    fn append(&mut self) -> io::Result<()> {
        // A pipe has no position to return to.
        let end = self.file.stream_position().ok();
        self.file.write_all(&self.bytes).inspect_err(|_| {
            if let Some(end) = end {
                let _ = self.file.set_len(end);
                let _ = self.file.seek(SeekFrom::Start(end));
            }
        })
    }
}

/// Opens the file, empty, and locks it for this trace while it is open. A file that is not a trace is left unchanged.
fn open(path: &Path) -> io::Result<File> {
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
    let mut file = options.open(path)?;
    // The opened file is checked, not the path, which may name another file by now.
    let found = file.metadata()?;
    if !found.is_file() {
        return if is_stream(found.file_type()) && !is_readable { Ok(file) } else { Err(not_a_trace(path)) };
    }
    if is_own {
        return Err(not_a_trace(path));
    }
    if is_locked(&file) {
        let said = "another trace is being recorded in this file: put %p, the process id, into its name";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, said));
    }
    let mut start = Vec::new();
    (&mut file).take(format::HEADER_BYTES as u64).read_to_end(&mut start)?;
    if !start.is_empty() && !format::is_trace(&start) {
        return Err(not_a_trace(path));
    }
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn not_a_trace(path: &Path) -> io::Error {
    let path = path.display();
    let said =
        format!("{path} exists and is not a trace, so it is left unchanged: remove it, or name another file");
    io::Error::new(io::ErrorKind::AlreadyExists, said)
}

/// Returns whether the path names a descriptor of this process: a link, but one that no other process could have created.
fn is_own_descriptor(path: &Path) -> bool {
    let is_number = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let parent = path.parent();
    cfg!(unix)
        && path.file_name().is_some_and(is_number)
        && [Some(Path::new("/proc/self/fd")), Some(Path::new("/dev/fd"))].contains(&parent)
}

/// Returns whether the file is a pipe or a terminal, `/dev/null` included: it is written sequentially and holds no data to
/// overwrite.
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
        let path = path.display();
        let said = format!("{path} is a symbolic link, which a trace does not follow: name the target file");
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, said));
    }
    // A link created from here on is not followed either, where the system supports that.
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

/// Returns whether another process holds the lock. If not, takes it, where the system supports locks.
#[cfg(target_os = "linux")]
fn is_locked(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Releases the lock, also for forked processes.
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

/// The time between two passes over the rings.
const PAUSE: Duration = Duration::from_millis(50);

/// Beyond this number of rings, threads share one.
const RING_COUNT_MAX: usize = 1024;
