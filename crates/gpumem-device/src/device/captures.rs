//! [`Captures`]: the captures of a machine and the graphs made from them.
//!
//! A capture is identified by the driver's number for it. Its graph and all executables of the graph share the number,
//! and the record stays until the last of them is dropped. The pool manages the memory that a graph keeps.
//!
//! One lock, under which neither the driver nor a pool is called.

use crate::device::any_stream::AnyStream;
use crate::device::order::uses;
use crate::device::primary::{PrimaryContext, WeakContext};
use crate::device::slow_path_flag::SlowPathFlag;
use crate::device::thread::ThreadNumber;
use gpumem_base::order::{Epochs, Order, Stamp, StreamId, StreamIndex};
use gpumem_base::sync::Lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The captures and graphs of one machine.
#[derive(Default)]
pub struct Captures {
    /// Counts the active captures. While there is none, no stream's record is looked up.
    slow_path: SlowPathFlag,
    table: Lock<BTreeMap<u64, Record>>,
}

#[derive(Default)]
struct Record {
    handle_count: usize,
    is_open: bool,
    /// The end of the capture has begun: its streams may run work again.
    is_ending: bool,
    /// The stream that the capture began on, and the thread that must end it.
    origin: Option<(StreamIndex, ThreadNumber)>,
    devices: Vec<WeakContext>,
    members: BTreeSet<StreamIndex>,
    /// The first stream of the capture and the streams that joined it. The clones keep owned streams alive until the
    /// capture ends: the driver breaks a capture when one of its streams is destroyed.
    streams: Vec<Arc<dyn AnyStream>>,
    /// Work that launches must follow, by stream. The streams themselves must follow it once they run work again.
    after: Vec<(StreamIndex, Stamp)>,
    /// Uses, outside the graph, of released parts of its memory: launches must follow them too.
    after_parts: Vec<Stamp>,
    owner_streams: BTreeSet<StreamIndex>,
    source: Option<Arc<dyn AnyStream>>,
    /// The streams that the graph was launched on, as a word of [`uses`].
    launched: u64,
}

impl Captures {
    /// True if a capture that this crate began is active.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.slow_path.has_captures()
    }

    /// The slow-path flag of the machine.
    #[inline]
    pub fn slow_path(&self) -> &SlowPathFlag {
        &self.slow_path
    }

    /// Announces a capture before it begins. From here on, streams are checked for captures.
    #[inline]
    pub fn announce(&self) {
        self.slow_path.add_capture();
    }

    /// Withdraws an announcement: the capture did not begin, or has ended.
    #[inline]
    pub fn withdraw(&self) {
        self.slow_path.remove_capture();
    }

    /// Adds the record of a capture that has begun, with one handle; [`Captures::drop_handle`] drops it.
    pub fn begin(&self, graph: u64, stream: &Arc<dyn AnyStream>) {
        let members = BTreeSet::from([stream.id().stream_index()]);
        let devices = vec![stream.context().downgrade()];
        let (origin, streams) =
            (Some((stream.id().stream_index(), ThreadNumber::current())), vec![Arc::clone(stream)]);
        let record =
            Record { handle_count: 1, is_open: true, origin, devices, members, streams, ..Record::default() };
        self.table.lock().insert(graph, record);
    }

    /// Adds the record of a capture that another library has begun, found on one of its streams; that library ends it. A capture that was
    /// considered ended gets one more handle.
    pub fn adopt(&self, graph: u64, stream: &Arc<dyn AnyStream>) {
        let reopened = self.with(graph, |record| {
            (record.is_open, record.is_ending) = (true, false);
            record.handle_count += 1;
        });
        match reopened {
            Some(()) => self.join(graph, stream),
            None => self.begin(graph, stream),
        }
        self.with(graph, |record| record.origin = None);
    }

    /// Adds a handle to an active capture of another library. False for other captures.
    pub fn share_adopted(&self, graph: u64) -> bool {
        let share = |record: &mut Record| {
            let is_adopted = record.is_open && record.origin.is_none();
            record.handle_count += usize::from(is_adopted);
            is_adopted
        };
        self.with(graph, share).unwrap_or(false)
    }

    /// Adds a stream that has joined a capture.
    pub fn join(&self, graph: u64, stream: &Arc<dyn AnyStream>) {
        let device = stream.context().downgrade();
        self.with(graph, |record| {
            record.members.insert(stream.id().stream_index());
            if !record.is_ending && !record.streams.iter().any(|known| known.id() == stream.id()) {
                record.streams.push(Arc::clone(stream));
            }
            if !record.devices.iter().any(|known| known.is_same(&device)) {
                record.devices.push(device);
            }
        });
    }

    /// The streams of an active capture, each once, always in one order.
    pub fn members(&self, graph: u64) -> Vec<Arc<dyn AnyStream>> {
        let mut streams = self.with(graph, |record| record.streams.clone()).unwrap_or_default();
        streams.sort_unstable_by_key(|stream| stream.id());
        streams
    }

    /// The first stream of a capture that has not ended.
    pub fn open_on(&self, graph: u64) -> Option<StreamId> {
        let table = self.table.lock();
        table.get(&graph).filter(|record| record.is_open)?.streams.first().map(|stream| stream.id())
    }

    /// Marks the capture as ending. False if its end had begun before.
    #[inline]
    pub fn end_begins(&self, graph: u64) -> bool {
        self.with(graph, |record| !core::mem::replace(&mut record.is_ending, true)).unwrap_or(false)
    }

    /// The active captures that this thread has begun and that include streams of `device`, each with its first stream.
    pub(crate) fn begun_here(&self, device: &PrimaryContext) -> Vec<(u64, StreamIndex)> {
        let thread = ThreadNumber::current();
        let open: Vec<_> = {
            let table = self.table.lock();
            let open = table.iter().filter(|(_, record)| record.is_open && !record.is_ending);
            let begun =
                open.filter_map(|(graph, record)| Some((*graph, record.origin?, record.devices.clone())));
            begun.filter(|(_, (_, by), _)| *by == thread).collect()
        };
        // Devices are dropped after the lock: dropping the last clone takes other locks.
        let is_of = |devices: Vec<WeakContext>| {
            devices.iter().filter_map(WeakContext::upgrade).any(|other| *other == *device)
        };
        open.into_iter()
            .filter_map(|(graph, (index, _), devices)| is_of(devices).then_some((graph, index)))
            .collect()
    }

    /// Ends the capture. Returns the waits that its streams still need: those requested during the capture, and waits
    /// for the memory that they have allocated.
    pub(crate) fn end(&self, graph: u64, epochs: &Epochs) -> Vec<(StreamIndex, Stamp)> {
        let streams = self.with(graph, |record| core::mem::take(&mut record.streams));
        // Dropped outside the lock: dropping the last clone destroys a stream.
        drop(streams);
        let ended = self.with(graph, |record| {
            record.is_open = false;
            (
                record.after.clone(),
                record.source.as_ref().map(|source| epochs.stamp(source.id().stream_index())),
                record.owner_streams.clone(),
            )
        });
        self.withdraw();
        let (mut after, made, owner_streams) = ended.unwrap_or_default();
        if let Some(made) = made {
            after.extend(owner_streams.into_iter().map(|owner_stream| (owner_stream, made)));
        }
        after
    }

    #[inline]
    pub fn add_handle(&self, graph: u64) {
        self.with(graph, |record| record.handle_count += 1);
    }

    /// True if `graph` is an active capture that this crate began.
    #[inline]
    pub fn knows(&self, graph: u64) -> bool {
        self.table.lock().get(&graph).is_some_and(|record| record.is_open && !record.is_ending)
    }

    /// True if an active capture includes streams of this device.
    pub(crate) fn captures_on(&self, device: &PrimaryContext) -> bool {
        if !self.is_open() {
            return false;
        }
        // Dropped after the lock: dropping the last clone of a device takes other locks.
        let open: Vec<_> = self
            .table
            .lock()
            .values()
            .filter(|record| record.is_open)
            .flat_map(|record| record.devices.iter().cloned())
            .collect();
        open.iter().filter_map(WeakContext::upgrade).any(|other| *other == *device)
    }

    /// The capture that a stream belongs to, by the records. For a broken capture without a record, any active capture:
    /// memory that this one retains too long is released at its end.
    pub fn capture_of(&self, index: StreamIndex, is_broken: bool) -> Option<u64> {
        let table = self.table.lock();
        let mut open = table.iter().filter(|(_, record)| record.is_open);
        let member = open.clone().find(|(_, record)| record.members.contains(&index));
        member.or_else(|| open.next().filter(|_| is_broken)).map(|(graph, _)| *graph)
    }

    /// Makes launches, and the stream itself once it runs work again, follow these stamps.
    pub(crate) fn add_after(&self, graph: u64, index: StreamIndex, stamps: impl IntoIterator<Item = Stamp>) {
        self.with(graph, |record| record.after.extend(stamps.into_iter().map(|stamp| (index, stamp))));
    }

    /// Records a launch that is about to be made. Returns the stamps that it must follow, and those that it must follow only if a wait is
    /// possible, which is not always so for another library's stream.
    pub fn launch(&self, graph: u64, on: StreamIndex, epochs: &Epochs) -> (Vec<Stamp>, Vec<Stamp>) {
        let noted = self.with(graph, |record| {
            record.launched = uses::with(record.launched, on);
            let source = record.source.as_ref().map(|source| epochs.stamp(source.id().stream_index()));
            let after = record.after.iter().map(|(_, stamp)| *stamp).chain(source).collect();
            (after, record.after_parts.clone())
        });
        noted.unwrap_or_default()
    }

    /// The stream that a capture's chunks are allocated on, if it was set.
    #[inline]
    pub fn source(&self, graph: u64) -> Option<Arc<dyn AnyStream>> {
        self.with(graph, |record| record.source.clone()).flatten()
    }

    /// Sets that stream, unless another thread has set it first. Returns the stream in effect.
    pub(crate) fn set_source(&self, graph: u64, source: Arc<dyn AnyStream>) -> Arc<dyn AnyStream> {
        let own = || Arc::clone(&source);
        let kept = self.with(graph, |record| Arc::clone(record.source.get_or_insert_with(own)));
        kept.unwrap_or(source)
    }

    /// Adds a member stream.
    #[inline]
    pub fn add_member(&self, graph: u64, index: StreamIndex) {
        self.with(graph, |record| record.members.insert(index));
    }

    /// Adds a stream that owns memory of the capture.
    pub fn add_owner_stream(&self, graph: u64, owner_stream: StreamIndex) {
        self.with(graph, |record| {
            record.members.insert(owner_stream);
            record.owner_streams.insert(owner_stream);
        });
    }

    /// Makes launches follow these uses of the graph's memory, except those that are part of its capture.
    pub fn add_after_parts(&self, graph: u64, stamps: impl Iterator<Item = Stamp>, epochs: &Epochs) {
        self.with(graph, |record| {
            let (is_open, members) = (record.is_open, &record.members);
            record.after_parts.retain(|stamp| !epochs.is_complete(*stamp));
            record
                .after_parts
                .extend(stamps.filter(|stamp| !(is_open && members.contains(&stamp.stream_index()))));
        });
    }

    /// Uses, outside captures, of parts of a graph's memory that were released.
    #[inline]
    pub fn after_parts(&self, graph: u64) -> Vec<Stamp> {
        self.with(graph, |record| record.after_parts.clone()).unwrap_or_default()
    }

    /// Drops one handle. For the last one, returns the streams that the graph was launched on, as a word of [`uses`],
    /// and the stream that its memory was allocated on, which must outlive that memory.
    pub fn drop_handle(&self, graph: u64) -> Option<(u64, Option<Arc<dyn AnyStream>>)> {
        let mut table = self.table.lock();
        let record = table.get_mut(&graph)?;
        record.handle_count -= 1;
        if record.handle_count > 0 {
            return None;
        }
        let record = table.remove(&graph)?;
        drop(table);
        if record.is_open {
            // Another library's capture, which may be active, but is no longer tracked by any value.
            self.withdraw();
        }
        Some((record.launched, record.source))
    }

    fn with<T>(&self, graph: u64, work: impl FnOnce(&mut Record) -> T) -> Option<T> {
        self.table.lock().get_mut(&graph).map(work)
    }
}
