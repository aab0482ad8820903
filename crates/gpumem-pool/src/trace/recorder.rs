//! [`Recorder`]: the rings of one trace, and the thread that writes them to the file.

use super::book::Book;
use super::event::{EventKind, Raw};
use super::file::{self, Output};
use super::format;
use super::ring::{Level, Overflow, Ring, Timed};
use super::rings::Rings;
use super::sink::{self, raw_of};
use crate::error::PoolError;
use crate::pool::{PoolId, SpillMove, Witness};
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{OrderEvent, OrderObserver};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) struct Recorder {
    pub(super) rings: Rings,
    pub(super) book: Book,
    /// The id of the process. A forked child has no writer thread.
    process: u32,
    writer: OnceLock<Thread>,
    /// The blocks that were live when recording began, for a trace that begins in the middle of a program.
    live: Lock<Option<Vec<Timed>>>,
    /// The number of requested and completed flushes.
    flushes: Lock<Flushes>,
    served: Condvar,
}

#[derive(Default)]
struct Flushes {
    asked_count: u64,
    served_count: u64,
    /// True if a write has failed since the last flush that reported it.
    has_failed: bool,
    /// The writer ends once it has completed all flushes.
    is_over: bool,
    /// The process exits: the writer notes it once.
    has_exited: bool,
}

impl OrderObserver for Recorder {
    fn note(&self, event: OrderEvent) {
        self.record(raw_of(event));
    }
}

impl Witness for Recorder {
    fn refused(&self, pool: PoolId, refusal: &PoolError) -> Option<Result<PathBuf, String>> {
        let raw = sink::refusal(&self.book, pool, refusal)?;
        self.record(raw);
        sink::kept(pool, refusal).into_iter().for_each(|raw| self.record(raw));
        let pool = sink::number(pool);
        sink::figures(|raw| self.record(raw), pool, self.book.figures(pool));
        None
    }

    fn moved(&self, pool: PoolId, moved: &SpillMove) {
        self.record(sink::moved(pool, moved));
    }
}

impl Recorder {
    /// Creates the file and starts the writer. With `part_bytes`, a file of that size is continued in a new one.
    pub(super) fn start(path: &Path, part_bytes: Option<u64>) -> io::Result<Arc<Self>> {
        Self::start_with(path, part_bytes, None)
    }

    /// Like [`Recorder::start`], for a program that has live blocks: [`Recorder::begin_with`] follows. `unlisted_count` blocks are live and
    /// will not be in its list.
    #[cfg(feature = "status-socket")]
    pub(super) fn start_amid(path: &Path, unlisted_count: u64) -> io::Result<Arc<Self>> {
        Self::start_with(path, None, Some(unlisted_count))
    }

    /// The blocks that were live when recording began. Blocks that were allocated since, while the list was made, may be in it.
    #[cfg(feature = "status-socket")]
    pub(super) fn begin_with(&self, live: Vec<Raw>) {
        let live = live.into_iter().map(|raw| Timed { time_ns: 0, raw }).collect();
        *self.live.lock() = Some(live);
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// `unlisted_count`: for a program that has live blocks.
    fn start_with(
        path: &Path,
        part_bytes: Option<u64>,
        unlisted_count: Option<u64>,
    ) -> io::Result<Arc<Self>> {
        let mut output = Output::open(path)?;
        if part_bytes.is_some() && !output.has_parts() {
            let said = "a trace in a pipe has no size limit: name a file, or set no limit";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        let trace = trace_number();
        let start = first_bytes(trace, 0, unlisted_count.unwrap_or(0));
        output.append(&start)?;
        let recorder = Arc::new(Self {
            rings: Rings::new(Overflow::Newest),
            book: Book::default(),
            process: std::process::id(),
            writer: OnceLock::new(),
            live: Lock::default(),
            flushes: Lock::default(),
            served: Condvar::new(),
        });
        let writer = Writer {
            recorder: Arc::clone(&recorder),
            output,
            trace,
            events: Vec::new(),
            bytes: Vec::new(),
            named: BTreeSet::new(),
            parts: part_bytes.map(|part_bytes| Parts { part_bytes, ..Parts::default() }),
            awaits_live: unlisted_count.is_some(),
            first_events: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name("gpumem-trace".into()).spawn(move || writer.run())?;
        let _first = recorder.writer.set(thread.thread().clone());
        Ok(recorder)
    }

    #[inline]
    pub(super) fn record(&self, raw: Raw) {
        match self.rings.record(raw) {
            Level::Fine => {}
            level => self.look(level),
        }
    }

    #[cold]
    fn look(&self, level: Level) {
        // A full ring woke the writer when it was half full.
        if let (Level::Half, Some(writer)) = (level, self.writer.get()) {
            writer.unpark();
        }
    }

    pub(super) fn flush(&self, timeout: Duration) -> bool {
        self.ask(timeout, |_| ())
    }

    fn ask(&self, timeout: Duration, change: impl FnOnce(&mut Flushes)) -> bool {
        let Some(writer) = self.writer.get().filter(|_| std::process::id() == self.process) else {
            return false;
        };
        let mut flushes = self.flushes.lock();
        flushes.asked_count += 1;
        change(&mut flushes);
        let number = flushes.asked_count;
        writer.unpark();
        let waits = |flushes: &mut Flushes| flushes.served_count < number;
        let waited = self.served.wait_timeout_while(flushes, timeout, waits);
        let (mut flushes, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        !timed_out.timed_out() && !core::mem::take(&mut flushes.has_failed)
    }

    pub(super) fn finish(&self, timeout: Duration) {
        self.ask(timeout, |flushes| flushes.is_over = true);
        self.rings.close();
    }

    /// Called when the process exits.
    pub(super) fn exit(&self, timeout: Duration) {
        self.ask(timeout, |flushes| flushes.has_exited = true);
    }
}

/// The writer: only it takes events out of the rings and accesses the file.
struct Writer {
    recorder: Arc<Recorder>,
    output: Output,
    trace: u64,
    events: Vec<Timed>,
    bytes: Vec<u8>,
    /// The settings (as tag 0) and names of tags in the file, for existing pools.
    named: BTreeSet<(u32, u32)>,
    /// For a trace with a size limit.
    parts: Option<Parts>,
    /// True until the blocks are written that were live when recording began.
    awaits_live: bool,
    /// Until then, the time and the kind of the first event of each pool and address.
    first_events: HashMap<(u32, u64), (u64, EventKind)>,
}

#[derive(Default)]
struct Parts {
    part_bytes: u64,
    number: u32,
    /// The bytes of this part after its live blocks.
    written_bytes: u64,
    /// The blocks that are live, by pool and address, each with the event that allocated it.
    live: HashMap<(u32, u64), Timed>,
    /// The times of the last frees, by pool and address, in this pass over the rings and the previous one: a block's allocation may be read
    /// after its free if another thread freed it.
    freed: [HashMap<(u32, u64), u64>; 2],
}

impl Writer {
    fn run(mut self) {
        loop {
            // Read before the rings: events recorded before the flush was requested are written.
            let (asked_count, has_exited) = {
                let mut flushes = self.recorder.flushes.lock();
                (flushes.asked_count, core::mem::take(&mut flushes.has_exited))
            };
            let mut is_written = self.write_all();
            if has_exited {
                self.bytes.clear();
                format::add_exit(&mut self.bytes);
                is_written &= self.output.append(&self.bytes).is_ok();
            }
            let mut flushes = self.recorder.flushes.lock();
            flushes.served_count = asked_count;
            flushes.has_failed |= !is_written;
            let (is_served, is_over) = (flushes.asked_count == asked_count, flushes.is_over);
            if is_over && is_served {
                self.output.unlock();
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
        let gone = self.recorder.book.gone();
        // Read before the rings, which have all events of blocks that were allocated before the list was made.
        let live = self.awaits_live.then(|| self.recorder.live.lock().take()).flatten();
        let written = self.write_rings();
        live.into_iter().for_each(|live| self.write_live(live));
        if !gone.is_empty() {
            self.recorder.book.remove(&gone);
            self.named.retain(|(pool, _)| !gone.contains(pool));
        }
        if let Some(parts) = &mut self.parts {
            parts.freed.swap(0, 1);
            parts.freed[0].clear();
            if parts.written_bytes >= parts.part_bytes {
                self.begin_part();
            }
        }
        written
    }

    /// Writes the blocks that were live when recording began: not those that were allocated since.
    fn write_live(&mut self, mut live: Vec<Timed>) {
        self.awaits_live = false;
        let first = core::mem::take(&mut self.first_events);
        let is_new = |event: &Timed| matches!(first.get(&place_of(event)), Some((_, EventKind::Alloc)));
        live.retain(|event| !is_new(event));
        self.bytes.clear();
        let pools = live.iter().filter_map(|event| event.raw.whose());
        let new = self.recorder.book.add_new(&mut self.bytes, pools, &self.named);
        format::add_live(&mut self.bytes, &live);
        if self.output.append(&self.bytes).is_ok() {
            self.named.extend(new);
        } else {
            self.recorder.rings.note_dropped(live.len() as u64);
        }
    }

    fn write_rings(&mut self) -> bool {
        let rings = self.recorder.rings.all();
        // Tries all rings, even after one has failed.
        let written = rings.iter().map(|ring| self.write(ring)).filter(|is_written| !is_written).count() == 0;
        drop(rings);
        self.recorder.rings.remove_left();
        written
    }

    fn write(&mut self, ring: &Ring) -> bool {
        self.events.clear();
        ring.take(&mut self.events);
        if self.events.is_empty() {
            return true;
        }
        self.bytes.clear();
        let pools = self.events.iter().filter_map(|event| event.raw.whose());
        let new = self.recorder.book.add_new(&mut self.bytes, pools, &self.named);
        format::add_chunk(&mut self.bytes, ring.thread, ring.dropped_count(), &self.events);
        let is_written = self.output.append(&self.bytes).is_ok();
        if self.awaits_live {
            let is_of_block = |event: &&Timed| matches!(event.raw.kind, EventKind::Alloc | EventKind::Free);
            for event in self.events.iter().filter(is_of_block) {
                let of_event = (event.time_ns, event.raw.kind);
                let first = self.first_events.entry(place_of(event)).or_insert(of_event);
                *first = if of_event.0 < first.0 { of_event } else { *first };
            }
        }
        if let Some(parts) = &mut self.parts {
            parts.written_bytes += self.bytes.len() as u64;
            self.events.iter().for_each(|event| parts.note(event));
        }
        if is_written {
            self.named.extend(new)
        } else {
            ring.drop_more(self.events.len() as u64)
        }
        is_written
    }

    /// Continues in a new file. On failure the next attempt is a part later.
    fn begin_part(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        parts.written_bytes = 0;
        let mut live: Vec<_> = parts.live.values().copied().collect();
        live.sort_by_key(|event| event.time_ns);
        self.bytes = first_bytes(self.trace, parts.number + 1, 0);
        let pools = live.iter().filter_map(|event| event.raw.whose());
        let named = self.recorder.book.add_new(&mut self.bytes, pools, &BTreeSet::new());
        format::add_live(&mut self.bytes, &live);
        if self.output.begin_part(&self.bytes).is_ok() {
            parts.number += 1;
            self.named = named;
        }
    }
}

/// The pool and the address of an event of a block.
fn place_of(event: &Timed) -> (u32, u64) {
    let [address, _, _, whose] = event.raw.words;
    (whose as u32, address)
}

impl Parts {
    /// Adds an event to the live blocks.
    fn note(&mut self, event: &Timed) {
        let key = place_of(event);
        let is_newer = |time_ns: &u64| *time_ns > event.time_ns;
        let is_free = match event.raw.kind {
            EventKind::Alloc => false,
            EventKind::Free => true,
            _ => return,
        };
        if is_free {
            if self.live.get(&key).is_none_or(|live| live.time_ns <= event.time_ns) {
                self.live.remove(&key);
                self.freed[0].insert(key, event.time_ns);
            }
        } else if !self.freed.iter().any(|freed| freed.get(&key).is_some_and(is_newer))
            && self.live.get(&key).is_none_or(|live| live.time_ns <= event.time_ns)
        {
            self.live.insert(key, *event);
        }
    }
}

pub(super) fn first_bytes(trace: u64, part: u32, overwritten_count: u64) -> Vec<u8> {
    let mut bytes = format::header();
    format::add_part(&mut bytes, trace, part, overwritten_count);
    bytes
}

/// A unique number of the trace, from the time and the process.
pub(super) fn trace_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64) ^ u64::from(std::process::id()) << 32
}

/// The smallest size limit of a trace: a part holds several full rings.
pub(super) const LIMIT_BYTES_MIN: u64 = 4 << 20;

/// The size at which a file of a trace with a size limit is continued.
pub(super) fn part_bytes(limit_bytes: u64) -> u64 {
    limit_bytes / (file::EARLIER_COUNT as u64 + 1)
}

const PAUSE: Duration = Duration::from_millis(50);
