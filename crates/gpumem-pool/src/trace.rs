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
//! | `ring` | one thread's events on their way to the writer |
//! | `recorder` | all rings of a file, and the writer's thread |
//! | `format` | chunks as bytes; `read`: files as events |

mod event;
mod format;
mod read;
mod recorder;
mod ring;

pub use event::{Event, What};
pub use format::is_trace;
pub use read::{Flaw, ReadError, Recording, Tail};

use crate::device::OrderObserver;
use crate::error::PoolError;
use crate::pool::{Adaptor, Change, Grant, Next, Opening, PoolId, Release, Request};
use core::fmt;
use core::time::Duration;
use event::{Kind, Raw};
use recorder::Recorder;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Records the allocations and frees of its pools, with their tags ([`Pool::scope`](crate::Pool::scope)), and the waits
/// on streams of their [`Device`](crate::Device)s (clones included), in a file.
///
/// `cargo xtask replay FILE` replays the file with a pool of any configuration; [`Recording::read`] reads it. With
/// `GPUMEM_TRACE=FILE`, pools created by `from_env` record without any code. Every size of a growable block is
/// recorded; empty blocks are not. A graph's memory is recorded as adaptors see it: as one block on a stream of the
/// graph's own.
///
/// After a crash the file is complete up to 50 ms before it. It is also complete at the end of each pool: dropping the
/// last handle waits for the writer, for at most a second. A forked process records nothing.
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
/// assert!(matches!(recording.events[1].what, What::Free { .. }));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trace {
    recorder: Arc<Recorder>,
    path: PathBuf,
}

impl Trace {
    /// Creates the file, or truncates an existing trace. `%p` in its name is replaced by the process id. A named pipe
    /// or a character device is written sequentially, and so is a pipe of this process named by its descriptor
    /// (`/proc/self/fd/3`).
    ///
    /// No other file is overwritten: symbolic links are not followed, and a file that is neither empty nor a trace is
    /// refused. On Linux a trace locks its file. On other systems it does not, and two processes that use one file
    /// corrupt it; `%p` keeps them apart.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::AlreadyExists`] for a symbolic link and for a file that is not a trace.
    /// - [`io::ErrorKind::ResourceBusy`] if another trace is being recorded in the file (on Linux).
    /// - Any other [`io::Error`] if the file cannot be opened or written, or the writer's thread cannot be started.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        let path = numbered(path.as_ref());
        Ok(Arc::new(Self { recorder: Recorder::start(&path)?, path }))
    }

    /// Like [`Trace::create`], with one trace for all pools of the process that use the file. It is kept until the
    /// process ends, so a later pool does not truncate it.
    pub(crate) fn shared(path: &Path) -> io::Result<Arc<Self>> {
        static SHARED: Mutex<BTreeMap<PathBuf, Arc<Trace>>> = Mutex::new(BTreeMap::new());
        let path = numbered(path);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = shared.get(&path) {
            return Ok(Arc::clone(trace));
        }
        let trace = Self::create(&path)?;
        shared.insert(path, Arc::clone(&trace));
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
        self.recorder.dropped_count()
    }

    #[inline]
    fn record(&self, kind: Kind, address: u64, value: u64, stream: u64, whose: u64) {
        self.recorder.record(Raw { kind, words: [address, value, stream, whose] });
    }
}

impl Trace {
    #[cold]
    fn resize(&self, change: &Change<'_>) {
        let whose = whose(change.pool(), change.tag_number());
        self.record(Kind::Resize, change.address(), change.to_bytes(), change.stream_id().as_u64(), whose);
    }
}

/// Packs a tag and its pool into a word, the tag in the upper half.
fn whose(pool: PoolId, tag: u16) -> u64 {
    u64::from(number(pool)) | u64::from(tag) << 32
}

fn number(pool: PoolId) -> u32 {
    pool.number() as u32
}

impl Adaptor for Trace {
    fn name(&self) -> &str {
        "trace"
    }

    fn open(&self, opening: &Opening<'_>) {
        self.recorder.add_pool(number(opening.pool()), opening.names());
        let recorder: Arc<dyn OrderObserver> = self.recorder.clone();
        opening.device().watch().add(&recorder);
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let grant = next.alloc(request)?;
        let (stream, whose) = (request.stream().id().as_u64(), whose(request.pool(), request.tag_number()));
        self.record(Kind::Alloc, grant.address(), grant.size_bytes(), stream, whose);
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        let (address, whose) = (release.address(), whose(release.pool(), 0));
        for user in release.users() {
            self.record(Kind::Use, address, 0, user.as_u64(), whose);
        }
        self.record(Kind::Free, address, release.is_complete().into(), release.stream_id().as_u64(), whose);
    }

    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        self.resize(change);
        Ok(())
    }

    fn shrink(&self, change: &Change<'_>) {
        if change.is_undone() {
            return;
        }
        let (address, whose) = (change.address(), whose(change.pool(), 0));
        for user in change.users() {
            self.record(Kind::Use, address, 0, user.as_u64(), whose);
        }
        self.resize(change);
    }

    fn close(&self, _: PoolId) {
        self.flush(FLUSH_TIME_MAX);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.recorder.finish(FLUSH_TIME_MAX);
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("path", &self.path)
            .field("dropped_count", &self.dropped_count())
            .finish_non_exhaustive()
    }
}

fn numbered(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
        None => path.into(),
    }
}

/// The maximum time that the end of a pool waits for the writer.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
