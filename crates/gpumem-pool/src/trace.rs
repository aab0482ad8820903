//! [`Trace`]: what a program asks of its pools, written to a file while it runs; [`Recording`]: such a file, read.
//!
//! ```text
//! a thread ─▶ its ring (4096 events, nobody else's) ─▶ the writer's thread ─▶ chunks in the file
//! ```
//!
//! An event is a clock reading and a few stores: no lock, no call of the driver or of the file's. A ring that is full, because
//! the disk is slow or full, drops events and counts them. The writer empties the rings every 50 ms, or when one is half
//! full, and each chunk is whole by itself: after a crash what had been written is read, and the end says how it ended.
//! An event has a tag by its number; the writer asks the pool for a name once, and writes it before the events that are the
//! first to have it.
//!
//! | file | noun |
//! | --- | --- |
//! | `event` | what happened, as the user reads it and as it lies in a ring |
//! | `ring` | a thread's events on their way to the writer |
//! | `recorder` | all rings of a file, and the thread that writes |
//! | `format` | chunks as bytes; `read`: files as events |
//! | `watch` | who is told of waits on a device's streams |

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

/// Records allocations and frees of the pools that it stands around, with what they are for ([`Pool::scope`](crate::Pool::scope)),
/// and the waits on streams of their [`Device`](crate::Device)s (clones included), into a file.
///
/// `cargo xtask replay FILE` puts it through a pool of any setting; [`Recording::read`] reads it. With `GPUMEM_TRACE=FILE` pools
/// that are made `from_env` record without a line of code. Of blocks that grow every size is recorded, and nothing of empty ones;
/// a graph's memory is as adaptors see it: one block on a stream of the graph's own.
///
/// The file is complete up to 50 ms before a crash, and to the end of each pool: its last handle waits for the writer, for a
/// second at most. A process that is forked off records nothing.
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
    /// Creates the file, or empties a trace that is there. `%p` in its name stands for the number of the process. A named pipe
    /// or a character device is written from beginning to end, and so is a pipe of this process by its descriptor
    /// (`/proc/self/fd/3`).
    ///
    /// No other file loses its bytes: symbolic links are not followed, and a file that is neither empty nor a trace is refused.
    /// On Linux a trace locks its file. On other systems it does not, and two processes that name one file spoil it; `%p`
    /// keeps them apart.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AlreadyExists`] for a symbolic link and for a file that is not a trace; [`io::ErrorKind::ResourceBusy`]
    /// if another trace is being recorded there (on Linux); another error of the system if the file can't be opened or written,
    /// or its writer's thread can't be started.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        let path = numbered(path.as_ref());
        Ok(Arc::new(Self { recorder: Recorder::start(&path)?, path }))
    }

    /// The same for all pools of the process that name the file: what one of them records does not end with it.
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

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until everything recorded so far is in the file. False if it is not after this time, or if writing has
    /// failed since the last time.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.recorder.flush(timeout)
    }

    /// Events that were lost: their ring was full, or they could not be written.
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

/// A tag above its pool.
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

/// How long the end of a pool waits for the writer.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
