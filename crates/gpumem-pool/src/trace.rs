//! [`Trace`]: records the requests of a program to its pools in a file while it runs. [`Recording`]: reads such a file.
//!
//! ```text
//! a thread ─▶ its own ring (4096 events) ─▶ the writer's thread ─▶ chunks in the file
//! ```
//!
//! Recording an event takes a clock reading and a few stores: no lock, no driver call, no file access. If a ring is
//! full, because the disk is slow or full, events are dropped and counted. The writer empties the rings every 50 ms,
//! and when a ring is half full. Each chunk is self-contained: after a crash, all written chunks can be read, and
//! [`Recording::tail`] describes the end. An event stores its tag as a number. The writer gets the name from the pool
//! once, and writes it before the first events with that tag.
//!
//! | file | content |
//! | --- | --- |
//! | `event` | an event, in the form for users and in the form for rings |
//! | `ring` | one thread's events on their way to the writer; `rings`: those of all threads |
//! | `sink` | the adaptor: the events recorded for each call |
//! | `tap` | an adaptor that records from a moment on, until another |
//! | `book` | the pools, with their settings and the names of their tags |
//! | `recorder` | the writer's thread |
//! | `flight` | the last events in memory, for a refusal |
//! | `file` | the file, its parts, and earlier ones |
//! | `format` | chunks as bytes; `read`: files as events |

mod book;
mod event;
mod file;
mod flight;
mod format;
mod read;
mod recorder;
mod ring;
mod rings;
mod sink;
#[cfg(feature = "status-socket")]
mod tap;

pub use crate::pool::adaptors::PoolSettings;
pub use event::{RecordedEvent, What};
pub(crate) use flight::Flight;
pub use format::{Flaw, is_trace};
pub use read::{ReadError, Recording, Report, Tail};
#[cfg(feature = "status-socket")]
pub(crate) use tap::Tap;

use crate::pool::{Figures, PoolId, Witness};
use book::Book;
use core::time::Duration;
use event::Raw;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{OrderObserver, not_forked};
use gpumem_sys::text::debug_fields;
use gpumem_sys::{exit, fork};
use recorder::{LIMIT_BYTES_MIN, Recorder};
use rings::Rings;
use sink::Sink;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Records the allocations and frees of its pools, with their tags ([`Pool::scope`](crate::Pool::scope)), and the waits on streams of their
/// [`Device`](crate::Device)s (clones included), in a file. It also records the settings of the pools, the memory that they reserve, and
/// the requests that are finally refused. It does not record sizes that [`Pool::alloc_up_to`](crate::Pool::alloc_up_to) gives up for a
/// smaller one, and refusals of requests that another pool or a later try serves.
///
/// `gpumem replay FILE` replays the file with a pool of any configuration; [`Recording::read`] reads it. With `GPUMEM_TRACE=FILE`,
/// pools created by `from_env` record without any code. Growable and empty blocks are not recorded. A graph's memory
/// is recorded as adaptors see it: as one block on a separate stream of the graph.
///
/// After a crash the file is complete up to the last 50 ms. It is also complete at the end of each pool: dropping the last handle waits for
/// the writer, for at most a second. With `GPUMEM_TRACE` it is complete too when the process exits with pools in use
/// ([`Recording::has_exited`]). A forked process records nothing.
///
/// ```
/// use gpumem_pool::trace::{Recording, Trace, What};
/// use gpumem_pool::{Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// # let path = std::env::temp_dir().join(format!("gpumem-doc-{}.trace", std::process::id()));
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let trace = Trace::create(&path)?;
/// let pool = Pool::builder(&device).adaptor(trace.clone()).build()?;
/// let scope = pool.scope("forward");
/// drop(pool.alloc(4096, &Stream::new(&device)?)?);
/// drop((scope, pool));
///
/// let recording = Recording::read(&path)?;
/// let What::Alloc { pool, tag, size_bytes: 4096, .. } = recording.events[0].what else { panic!() };
/// assert_eq!(recording.tag(pool, tag), Some("forward"));
/// assert!(recording.events.iter().any(|event| matches!(event.what, What::Free { size_bytes: 4096, .. })));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trace {
    recorder: Arc<Recorder>,
    path: PathBuf,
}

impl Trace {
    /// Creates the file. `%p` in its name is replaced by the process id. A named pipe or a character device is written
    /// sequentially, and so is a pipe of this process named by its descriptor (`/proc/self/fd/3`).
    ///
    /// An earlier trace in the file is kept: it is renamed to `FILE.1`, the previous `FILE.1` to `FILE.2`, and so on up to `FILE.3`. No
    /// other file is changed: symbolic links are not followed, and a file that is neither empty nor a trace is refused. On Linux a trace
    /// locks its file. On other systems it does not, and two processes that use one file corrupt it; `%p` keeps them apart.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::AlreadyExists`] for a symbolic link and for a file that is not a trace.
    /// - [`io::ErrorKind::ResourceBusy`] if another trace is being recorded in the file (on Linux).
    /// - Any other [`io::Error`] if the file cannot be opened or written, or the writer's thread cannot be started.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        Self::start(path.as_ref(), None)
    }

    /// Like [`Trace::create`], with a size limit: the file and the earlier ones, up to `FILE.3`, have at most about `limit_bytes` together.
    /// A file that has reached a quarter of the limit is continued in a new one, and the oldest one is deleted. [`Recording::read`] reads
    /// all parts of a trace as one.
    ///
    /// Each part begins with the blocks that are live, so that it can be read alone. They do not count towards the limit.
    /// The writer stores them, with about 100 bytes of host memory for each.
    ///
    /// ```
    /// use gpumem_pool::trace::{Recording, Trace};
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # let path = std::env::temp_dir().join(format!("gpumem-doc-limited-{}.trace", std::process::id()));
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let trace = Trace::create_limited(&path, 64 << 20)?;
    /// let pool = Pool::builder(&device).adaptor(trace).build()?;
    /// drop(pool.alloc(4096, &Stream::new(&device)?)?);
    /// drop(pool);
    /// assert_eq!(Recording::read(&path)?.pools.len(), 1);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::InvalidInput`] for a limit below 4 MiB, and for a pipe.
    /// - The errors of [`Trace::create`], such as [`io::ErrorKind::AlreadyExists`].
    pub fn create_limited(path: impl AsRef<Path>, limit_bytes: u64) -> io::Result<Arc<Self>> {
        if limit_bytes < LIMIT_BYTES_MIN {
            let said =
                format!("a size limit of {limit_bytes} bytes is too small for a trace; the minimum is 4 MiB");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        Self::start(path.as_ref(), Some(recorder::part_bytes(limit_bytes)))
    }

    fn start(path: &Path, part_bytes: Option<u64>) -> io::Result<Arc<Self>> {
        let path = numbered(path);
        Ok(Arc::new(Self { recorder: Recorder::start(&path, part_bytes)?, path }))
    }

    /// Like [`Trace::create`], in the middle of a program: [`Recorder::begin_with`] follows. `unlisted_count` blocks are live and will not be
    /// in its list.
    #[cfg(feature = "status-socket")]
    fn create_amid(path: &Path, unlisted_count: u64) -> io::Result<Self> {
        let path = numbered(path);
        Ok(Self { recorder: Recorder::start_amid(&path, unlisted_count)?, path })
    }

    /// Like [`Trace::create`], or [`Trace::create_limited`] with a limit, with one trace for all users of the file in this process. It ends
    /// with the last user. A forked child is refused: the lock may be held there forever.
    #[doc(hidden)]
    pub fn shared(path: impl AsRef<Path>, limit_bytes: Option<u64>) -> io::Result<Arc<Self>> {
        static SHARED: Lock<BTreeMap<(u32, PathBuf), Weak<Trace>>> = Lock::new(BTreeMap::new());
        not_forked().map_err(io::Error::other)?;
        let path = path.as_ref();
        let key = (std::process::id(), absolute(path)?);
        let mut shared = SHARED.lock();
        if let Some(trace) = shared.get(&key).and_then(Weak::upgrade) {
            return Ok(trace);
        }
        let trace = match limit_bytes {
            Some(limit_bytes) => Self::create_limited(path, limit_bytes)?,
            None => Self::create(path)?,
        };
        shared.retain(|_, trace| trace.strong_count() > 0);
        shared.insert(key, Arc::downgrade(&trace));
        Ok(trace)
    }

    /// Like [`Trace::shared`]. The trace is kept until the process ends, so a later pool does not begin a new file. A forked process has
    /// its parent's trace, and records nothing.
    pub(crate) fn kept(path: &Path, limit_bytes: Option<u64>) -> io::Result<Arc<Self>> {
        not_forked().map_err(io::Error::other)?;
        let key = absolute(path)?;
        let mut kept = KEPT.lock();
        if let Some(trace) = kept.get(&key) {
            return Ok(Arc::clone(trace));
        }
        let trace = Self::shared(path, limit_bytes)?;
        if kept.is_empty() {
            exit::at_exit(end_kept);
        }
        kept.insert(key, Arc::clone(&trace));
        Ok(trace)
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until everything recorded so far is in the file. False after the timeout, or if a write has failed since
    /// the last flush.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.recorder.flush(timeout)
    }

    /// The number of lost events: their ring was full, or they could not be written.
    #[must_use]
    pub fn dropped_count(&self) -> u64 {
        self.recorder.rings.dropped_count()
    }
}

impl Sink for Trace {
    const NAME: &'static str = "trace";

    fn rings(&self) -> &Rings {
        &self.recorder.rings
    }

    fn book(&self) -> &Book {
        &self.recorder.book
    }

    fn observer(&self) -> Arc<dyn OrderObserver> {
        self.recorder.clone()
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        Some(self.recorder.clone())
    }

    #[inline]
    fn record(&self, raw: Raw) {
        self.recorder.record(raw);
    }

    fn end(&self, pool: PoolId) {
        let pool = sink::number(pool);
        let figures = self.recorder.book.figures(pool);
        sink::figures(|raw| self.record(raw), pool, figures);
        // Without blocks, the pool now releases its memory.
        if let Some(figures) = figures.filter(|figures| figures.in_use_bytes == 0) {
            self.record(Raw::reserved(pool, &Figures { reserved_bytes: 0, ..figures }));
        }
        self.flush(FLUSH_TIME_MAX);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.recorder.finish(FLUSH_TIME_MAX);
    }
}

debug_fields!(Trace, it, path: it.path, dropped_count: it.dropped_count());

fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(numbered(path))
}

fn numbered(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
        None => path.into(),
    }
}

/// The traces of `GPUMEM_TRACE`.
static KEPT: Lock<BTreeMap<PathBuf, Arc<Trace>>> = Lock::new(BTreeMap::new());

/// Writes the last events of a process that exits with pools in use, as those of C, Python and statics are.
extern "C" fn end_kept() {
    // The traces are the parent's, and so may be their lock.
    if fork::is_child() {
        return;
    }
    let kept = KEPT.lock().clone();
    kept.values().for_each(|trace| trace.recorder.exit(FLUSH_TIME_MAX));
}

/// The maximum time that the end of a pool, or of the process, waits for the writer.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
