//! [`Captures`]: the captures of a machine, and the graphs that they become.
//!
//! A capture has a number, the driver's; its graph and each executable of the graph have the same number, and its record stays
//! until the last of them is dropped. The memory that a graph keeps is the pool's business.
//!
//! One lock, under which neither the driver nor a pool is called.

use crate::device::{
    Clocks, Device, Order, SlowPathFlag, Stamp, Stream, StreamIndex, WeakDevice, order::uses,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The captures and graphs of one machine.
#[derive(Default)]
pub(crate) struct Captures {
    /// Counts the captures that go on. While there is none, no stream's record is looked up.
    slow_path: SlowPathFlag,
    table: Mutex<BTreeMap<u64, Record>>,
}

/// A capture, and then a graph with its executables.
#[derive(Default)]
struct Record {
    handle_count: usize,
    is_open: bool,
    /// Its end has begun: streams may run their work again.
    is_ending: bool,
    /// Where it began: the stream, and the thread that has to end it.
    origin: Option<(StreamIndex, ThreadId)>,
    /// Those of the members.
    devices: Vec<WeakDevice>,
    /// Streams that are known to be part of the capture.
    members: BTreeSet<StreamIndex>,
    /// The stream where the capture began and those that have joined it. Owned ones live until it ends: the driver breaks a
    /// capture when one of its streams is destroyed.
    streams: Vec<Stream>,
    /// What launches come after; and the streams, which come after it too once they run again.
    after: Vec<(StreamIndex, Stamp)>,
    /// What was done outside with parts of its memory that are gone: launches come after that too.
    after_parts: Vec<Stamp>,
    /// Streams that have memory of the capture.
    owner_streams: BTreeSet<StreamIndex>,
    /// The stream that the capture's memory is allocated on.
    source: Option<Stream>,
    /// The streams that it has been launched on, in the form of [`uses`].
    launched: u64,
}

impl Captures {
    /// Whether any capture goes on that was begun through this crate.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.slow_path.has_captures()
    }

    /// The machine's.
    #[inline]
    pub(crate) fn slow_path(&self) -> &SlowPathFlag {
        &self.slow_path
    }

    /// A capture is about to begin: from now on streams are asked about.
    pub(crate) fn announce(&self) {
        self.slow_path.add_capture();
    }

    /// It was announced, and did not begin or has ended.
    pub(crate) fn withdraw(&self) {
        self.slow_path.remove_capture();
    }

    /// A capture has begun. One handle, to be given back by [`Captures::drop_handle`].
    pub(crate) fn begin(&self, graph: u64, stream: &Stream) {
        let members = BTreeSet::from([stream.stream_index()]);
        let devices = vec![stream.device().downgrade()];
        let (origin, streams) =
            (Some((stream.stream_index(), std::thread::current().id())), vec![stream.clone()]);
        let record =
            Record { handle_count: 1, is_open: true, origin, devices, members, streams, ..Record::default() };
        self.table().insert(graph, record);
    }

    /// A stream has become part of a capture.
    pub(crate) fn join(&self, graph: u64, stream: &Stream) {
        let device = stream.device().downgrade();
        self.with(graph, |record| {
            record.members.insert(stream.stream_index());
            if !record.is_ending && !record.streams.contains(stream) {
                record.streams.push(stream.clone());
            }
            if !record.devices.iter().any(|known| known.is_same(&device)) {
                record.devices.push(device);
            }
        });
    }

    /// The streams of a capture that goes on, each once, always in the same order.
    pub(crate) fn members(&self, graph: u64) -> Vec<Stream> {
        let mut streams = self.with(graph, |record| record.streams.clone()).unwrap_or_default();
        streams.sort_unstable_by_key(Stream::id);
        streams
    }

    /// The capture's end begins. False if it had begun before.
    pub(crate) fn end_begins(&self, graph: u64) -> bool {
        self.with(graph, |record| !core::mem::replace(&mut record.is_ending, true)).unwrap_or(false)
    }

    /// The captures that go on, of which streams of a device are part, and that this thread has begun; with their first streams.
    pub(crate) fn begun_here(&self, device: &Device) -> Vec<(u64, StreamIndex)> {
        let thread = std::thread::current().id();
        let open: Vec<_> = {
            let table = self.table();
            let open = table.iter().filter(|(_, record)| record.is_open && !record.is_ending);
            let begun =
                open.filter_map(|(graph, record)| Some((*graph, record.origin?, record.devices.clone())));
            begun.filter(|(_, (_, by), _)| *by == thread).collect()
        };
        // Devices are let go of after the lock: the end of one takes others.
        let is_of = |devices: Vec<WeakDevice>| {
            devices.iter().filter_map(WeakDevice::upgrade).any(|other| other == *device)
        };
        open.into_iter()
            .filter_map(|(graph, (slot, _), devices)| is_of(devices).then_some((graph, slot)))
            .collect()
    }

    /// The capture has ended. Its streams still have to wait for what they were asked to wait for meanwhile, and for
    /// the memory that they have allocated.
    pub(crate) fn end(&self, graph: u64, clocks: &Clocks) -> Vec<(StreamIndex, Stamp)> {
        let streams = self.with(graph, |record| core::mem::take(&mut record.streams));
        // Outside of the lock: with the last clone a stream is destroyed.
        drop(streams);
        let ended = self.with(graph, |record| {
            record.is_open = false;
            (
                record.after.clone(),
                record.source.as_ref().map(|source| clocks.stamp(source.stream_index())),
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

    pub(crate) fn add_handle(&self, graph: u64) {
        self.with(graph, |record| record.handle_count += 1);
    }

    /// Whether it is a capture that goes on and was begun through this crate.
    pub(crate) fn knows(&self, graph: u64) -> bool {
        self.table().get(&graph).is_some_and(|record| record.is_open && !record.is_ending)
    }

    /// Whether a capture goes on that streams of this device are part of.
    pub(crate) fn captures_on(&self, device: &Device) -> bool {
        if !self.is_open() {
            return false;
        }
        // Let go of after the lock: the end of a device takes others.
        let open: Vec<_> = self
            .table()
            .values()
            .filter(|record| record.is_open)
            .flat_map(|record| record.devices.iter().cloned())
            .collect();
        open.iter().filter_map(WeakDevice::upgrade).any(|other| other == *device)
    }

    /// A capture that a stream belongs to, by what is noted of it. For a broken one that nobody knows of, any that goes
    /// on: what it keeps too long it gives back in the end.
    pub(crate) fn capture_of(&self, slot: StreamIndex, is_broken: bool) -> Option<u64> {
        let table = self.table();
        let mut open = table.iter().filter(|(_, record)| record.is_open);
        let member = open.clone().find(|(_, record)| record.members.contains(&slot));
        member.or_else(|| open.next().filter(|_| is_broken)).map(|(graph, _)| *graph)
    }

    /// A stream of the capture is to come after this: launches do, and the stream itself once it runs again.
    pub(crate) fn add_after(&self, graph: u64, slot: StreamIndex, stamps: impl IntoIterator<Item = Stamp>) {
        self.with(graph, |record| record.after.extend(stamps.into_iter().map(|stamp| (slot, stamp))));
    }

    /// Notes a launch that is about to be made; what it comes after, and what it comes after where that can be waited for:
    /// another library's stream can't always.
    pub(crate) fn launch(&self, graph: u64, on: StreamIndex, clocks: &Clocks) -> (Vec<Stamp>, Vec<Stamp>) {
        let noted = self.with(graph, |record| {
            record.launched = uses::with(record.launched, on);
            let source = record.source.as_ref().map(|source| clocks.stamp(source.stream_index()));
            let after = record.after.iter().map(|(_, stamp)| *stamp).chain(source).collect();
            (after, record.after_parts.clone())
        });
        noted.unwrap_or_default()
    }

    /// The stream that a capture's chunks are allocated on, once one has been put there.
    pub(crate) fn source(&self, graph: u64) -> Option<Stream> {
        self.with(graph, |record| record.source.clone()).flatten()
    }

    /// Puts one there, unless another thread has been faster; the one that counts.
    pub(crate) fn set_source(&self, graph: u64, source: Stream) -> Stream {
        let kept = self.with(graph, |record| record.source.get_or_insert_with(|| source.clone()).clone());
        kept.unwrap_or(source)
    }

    /// A stream takes part in a capture.
    pub(crate) fn add_member(&self, graph: u64, slot: StreamIndex) {
        self.with(graph, |record| record.members.insert(slot));
    }

    /// A stream has memory of a capture.
    pub(crate) fn add_owner_stream(&self, graph: u64, owner_stream: StreamIndex) {
        self.with(graph, |record| {
            record.members.insert(owner_stream);
            record.owner_streams.insert(owner_stream);
        });
    }

    /// Launches come after these uses of the graph's memory, as far as they are not part of its capture.
    pub(crate) fn add_after_parts(&self, graph: u64, stamps: impl Iterator<Item = Stamp>, clocks: &Clocks) {
        self.with(graph, |record| {
            let (is_open, members) = (record.is_open, &record.members);
            record.after_parts.retain(|stamp| !clocks.is_complete(*stamp));
            record
                .after_parts
                .extend(stamps.filter(|stamp| !(is_open && members.contains(&stamp.stream_index()))));
        });
    }

    /// One handle less. With the last, the streams that the graph was launched on, in the form of [`uses`], and the stream that
    /// its memory was allocated on, which must outlive that memory.
    pub(crate) fn drop_handle(&self, graph: u64) -> Option<(u64, Option<Stream>)> {
        let mut table = self.table();
        let record = table.get_mut(&graph)?;
        record.handle_count -= 1;
        if record.handle_count > 0 {
            return None;
        }
        let record = table.remove(&graph)?;
        drop(table);
        Some((record.launched, record.source))
    }

    fn with<T>(&self, graph: u64, work: impl FnOnce(&mut Record) -> T) -> Option<T> {
        self.table().get_mut(&graph).map(work)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Record>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
