//! [`Flight`]: keeps the last events of its pools in memory, and writes them to a file when a request is refused.
//!
//! Each thread has a ring, in which new events overwrite the oldest: recording takes no lock and makes no system call but a clock reading.
//! The refused thread copies the rings of all threads, which continue to record, into a file in the format of a trace.

use super::book::Book;
use super::event::Raw;
use super::ring::Overflow;
use super::rings::Rings;
use super::sink::{self, Sink, number, raw_of};
use super::{file, format, numbered, recorder};
use crate::config::FlightRecorder;
use crate::error::{OutOfMemory, PoolError};
use crate::pool::{PoolId, SpillMove, Witness};
use gpumem_base::sync::Lock;
use gpumem_device::internal::{OrderEvent, OrderObserver};
use gpumem_sys::text::Shown;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

pub(crate) struct Flight {
    log: Arc<Log>,
    path: PathBuf,
    /// True once the file at the path is this recorder's.
    is_own: Lock<bool>,
    /// The id of the process. A forked child writes no file, because its parent may.
    process: u32,
}

struct Log {
    rings: Rings,
    book: Book,
}

impl OrderObserver for Log {
    fn note(&self, event: OrderEvent) {
        self.rings.record(raw_of(event));
    }
}

/// The recorders of the process, by their files.
static SHARED: Lock<BTreeMap<PathBuf, Weak<Flight>>> = Lock::new(BTreeMap::new());

impl Flight {
    /// Writes the files of all recorders of the process now. Returns their paths, or the problems.
    #[cfg(feature = "status-socket")]
    pub(crate) fn write_all() -> Vec<Result<PathBuf, String>> {
        let recorders: Vec<_> = SHARED.lock().values().filter_map(Weak::upgrade).collect();
        recorders.iter().map(|recorder| recorder.write(None)).collect()
    }

    /// The number of recorders of the process.
    #[cfg(feature = "status-socket")]
    pub(crate) fn count() -> usize {
        SHARED.lock().values().filter(|recorder| recorder.strong_count() > 0).count()
    }

    /// The recorder of all pools of the process with this file, while one of them exists. `None` without a recorder.
    pub(crate) fn of(option: &FlightRecorder) -> Option<Arc<Self>> {
        let path = match option {
            FlightRecorder::Off => return None,
            FlightRecorder::On => numbered(&std::env::temp_dir().join("gpumem-%p.trace")),
            FlightRecorder::File(path) => numbered(path),
        };
        let mut shared = SHARED.lock();
        shared.retain(|_, recorder| recorder.strong_count() > 0);
        if let Some(recorder) = shared.get(&path).and_then(Weak::upgrade) {
            return Some(recorder);
        }
        let recorder = Arc::new(Self::new(&path));
        shared.insert(path, Arc::downgrade(&recorder));
        Some(recorder)
    }

    fn new(path: &Path) -> Self {
        let log = Arc::new(Log { rings: Rings::new(Overflow::Oldest), book: Book::default() });
        Self { log, path: path.into(), is_own: Lock::new(false), process: std::process::id() }
    }

    fn bytes(&self, refused: Option<(PoolId, &OutOfMemory)>) -> Vec<u8> {
        let Log { rings, book } = &*self.log;
        let (last, overwritten_count) = rings.last();
        let mut bytes = recorder::first_bytes(recorder::trace_number(), 0, overwritten_count);
        // A damaged file is read up to the damage, so the report comes first, and chunks are small.
        if let Some((pool, report)) = refused {
            let text = format!("{report:#}");
            format::add_report(&mut bytes, number(pool), rings.now_ns(), &text);
        }
        let mut known = BTreeSet::new();
        for (thread, events) in &last {
            let pools = events.iter().filter_map(|event| event.raw.whose());
            known.extend(book.add_new(&mut bytes, pools, &known));
            for some in events.chunks(CHUNK_EVENTS) {
                format::add_chunk(&mut bytes, *thread, 0, some);
            }
        }
        bytes
    }

    /// Writes the file, with the report of a refusal if there was one. Returns its path, or the problem.
    fn write(&self, refused: Option<(PoolId, &OutOfMemory)>) -> Result<PathBuf, String> {
        let failed = |problem: String| Err(format!("{}: {problem}", Shown::path(&self.path)));
        if std::process::id() != self.process {
            return failed("a forked process does not write the file of its parent".into());
        }
        for (pool, figures) in self.log.book.all_figures() {
            sink::figures(|raw| self.record(raw), pool, Some(figures));
        }
        let mut is_own = self.is_own.lock();
        match file::put(&self.path, &self.bytes(refused), *is_own) {
            Ok(()) => {
                *is_own = true;
                Ok(self.path.clone())
            }
            Err(error) => failed(error.to_string()),
        }
    }
}

impl Witness for Flight {
    fn refused(&self, pool: PoolId, refusal: &PoolError) -> Option<Result<PathBuf, String>> {
        if std::process::id() == self.process {
            let refused = sink::refusal(&self.log.book, pool, refusal);
            let kept = refused.map_or_else(Vec::new, |_| sink::kept(pool, refusal));
            refused.into_iter().chain(kept).for_each(|raw| self.record(raw));
        }
        Some(self.write(Some((pool, refusal.out_of_memory()?))))
    }

    fn moved(&self, pool: PoolId, moved: &SpillMove) {
        if std::process::id() == self.process {
            self.record(sink::moved(pool, moved));
        }
    }
}

impl Sink for Flight {
    const NAME: &'static str = "flight recorder";

    fn rings(&self) -> &Rings {
        &self.log.rings
    }

    fn book(&self) -> &Book {
        &self.log.book
    }

    fn observer(&self) -> Arc<dyn OrderObserver> {
        self.log.clone()
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        None
    }

    #[inline]
    fn record(&self, raw: Raw) {
        self.log.rings.record(raw);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.log.rings.close();
    }
}

const CHUNK_EVENTS: usize = 256;
