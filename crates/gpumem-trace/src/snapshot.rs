//! [`snapshot`]: writes a recording as a memory snapshot of PyTorch, which its `memory_viz` opens.
//!
//! A block is an allocation with its tag as the only frame; its free takes effect at once. The recording does not state how pools
//! divide their memory, so a *segment* is a range of addresses that blocks have used, in whole pages of 2 MiB. Backends that map
//! memory use more addresses than memory.

use gpumem_pool::trace::{Recording, What};
use serde::Serialize;
use serde_pickle::SerOptions;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// Writes a recording as a memory snapshot of PyTorch, which <https://pytorch.org/memory_viz> opens.
///
/// A block is an allocation with its tag as the only frame. A *segment* is a range of addresses that blocks have used: the recording does
/// not state how a pool divides its memory.
///
/// ```
/// use gpumem_trace::pool::trace::{Recording, Trace as Recorder};
/// use gpumem_trace::pool::{Device, Pool, Stream};
/// use gpumem_trace::{Trace, snapshot};
///
/// # let path = std::env::temp_dir().join(format!("gpumem-doc-snapshot-{}.trace", std::process::id()));
/// let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).adaptor(Recorder::create(&path)?).build()?;
/// drop(pool.alloc(4096, &Stream::new(&device)?)?);
/// drop(pool);
///
/// let mut bytes = Vec::new();
/// snapshot(&Recording::read(&path)?, &mut bytes)?;
/// assert_eq!(Trace::read_from(&bytes[..], "run.pickle")?.events(), Trace::read(&path)?.events());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The [`io::Error`] of the output.
pub fn snapshot(recording: &Recording, output: &mut impl Write) -> io::Result<()> {
    let bytes =
        serde_pickle::to_vec(&Snapshot::of(recording), SerOptions::new()).map_err(io::Error::other)?;
    output.write_all(&bytes)
}

/// PyTorch's numbers are signed.
#[derive(Serialize)]
struct Snapshot {
    segments: Vec<Segment>,
    device_traces: Vec<Vec<Entry>>,
    allocator_settings: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Segment {
    device: i64,
    address: i64,
    total_size: i64,
    allocated_size: i64,
    active_size: i64,
    requested_size: i64,
    stream: i64,
    segment_type: &'static str,
    segment_pool_id: (i64, i64),
    is_expandable: bool,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    address: i64,
    size: i64,
    requested_size: i64,
    state: &'static str,
    frames: Vec<Frame>,
}

#[derive(Clone, Serialize)]
struct Frame {
    filename: String,
    line: i64,
    name: String,
}

#[derive(Serialize)]
struct Entry {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<i64>,
    size: i64,
    stream: i64,
    time_us: i64,
    frames: Vec<Frame>,
}

#[derive(Clone)]
struct Live {
    size_bytes: u64,
    stream: u64,
    frames: Vec<Frame>,
}

#[derive(Default)]
struct Converter {
    /// By device and address.
    live: BTreeMap<(u32, u64), Live>,
    /// The ranges that blocks have used: the end of each, by device and start.
    used: BTreeMap<(u32, u64), u64>,
    traces: BTreeMap<u32, Vec<Entry>>,
    /// The reserved bytes of each pool.
    reserved: BTreeMap<u32, u64>,
    /// Subtracted from each address.
    base: u64,
}

impl Snapshot {
    fn of(recording: &Recording) -> Self {
        let mut converter = Converter { base: base(recording), ..Converter::default() };
        let pools: HashMap<u32, u32> =
            recording.pools.iter().map(|pool| (pool.pool, pool.device_ordinal)).collect();
        for event in &recording.events {
            converter.event(recording, &pools, event.time_ns / 1000, &event.what);
        }
        let last = converter.traces.keys().next_back().copied().unwrap_or_default();
        let device_count = last.saturating_add(1).min(DEVICES_MAX);
        let segments = converter.segments();
        let device_traces =
            (0..device_count).map(|device| converter.traces.remove(&device).unwrap_or_default());
        let settings = recording.pools.iter().map(|pool| {
            let limit = pool.hard_limit_bytes.map(|bytes| format!("hard limit {bytes}"));
            let parts = [Some(format!("backend {}", pool.backend)), limit, Some(pool.conf.clone())];
            let parts: Vec<_> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
            (format!("pool {}", pool.name), parts.join(", "))
        });
        Self { segments, device_traces: device_traces.collect(), allocator_settings: settings.collect() }
    }
}

/// PyTorch numbers devices with a signed byte.
const DEVICES_MAX: u32 = 128;

impl Converter {
    fn event(&mut self, recording: &Recording, pools: &HashMap<u32, u32>, time_us: u64, what: &What) {
        let device = |pool: &u32| pools.get(pool).copied().unwrap_or(0);
        let frames = |pool, tag| {
            let name = recording.tag(pool, tag).unwrap_or("(no tag)").into();
            let filename = recording.pool(pool).map_or("pool".into(), |pool| format!("pool {}", pool.name));
            vec![Frame { filename, line: 0, name }]
        };
        match *what {
            What::Alloc { pool, address, size_bytes, stream, tag } => {
                let live = Live { size_bytes, stream, frames: frames(pool, tag) };
                self.replace(device(&pool), address, Some(live), 0, time_us);
            }
            What::Free { pool, address, size_bytes, .. } => {
                self.replace(device(&pool), address, None, size_bytes, time_us);
            }
            What::Refused { pool, size_bytes, stream, tag, .. } => {
                let on_device = self.reserved.iter().filter(|(other, _)| device(other) == device(&pool));
                let reserved_bytes = on_device.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
                let total_bytes = recording.pool(pool).map_or(0, |pool| pool.device_bytes);
                let entry = Entry {
                    action: "oom",
                    addr: None,
                    // What the recorded pools do not reserve: memory of others is not known.
                    device_free: Some(total_bytes.saturating_sub(reserved_bytes) as i64),
                    size: size_bytes as i64,
                    stream: stream.unwrap_or(0) as i64,
                    time_us: time_us as i64,
                    frames: frames(pool, tag),
                };
                self.traces.entry(device(&pool)).or_default().push(entry);
            }
            What::Reserved { pool, reserved_bytes, .. } => {
                self.reserved.insert(pool, reserved_bytes);
            }
            _ => {}
        }
    }

    /// Frees the block at an address, and puts another one there. `size_bytes` is the size of a block that is not known.
    fn replace(&mut self, device: u32, address: u64, new: Option<Live>, size_bytes: u64, time_us: u64) {
        let address = address - self.base;
        let old = self.live.remove(&(device, address));
        let is_unknown = old.is_none() && new.is_none() && size_bytes > 0;
        let unknown = Live { size_bytes, stream: 0, frames: Vec::new() };
        if let Some(old) = old.or(is_unknown.then_some(unknown)) {
            self.use_range(device, address, old.size_bytes);
            for action in ["free_requested", "free_completed"] {
                self.add(device, action, address, &old, time_us);
            }
        }
        if let Some(new) = new {
            self.use_range(device, address, new.size_bytes);
            self.add(device, "alloc", address, &new, time_us);
            self.live.insert((device, address), new);
        }
    }

    fn add(&mut self, device: u32, action: &'static str, address: u64, block: &Live, time_us: u64) {
        let entry = Entry {
            action,
            addr: Some(address as i64),
            device_free: None,
            size: block.size_bytes as i64,
            stream: block.stream as i64,
            time_us: time_us as i64,
            frames: block.frames.clone(),
        };
        self.traces.entry(device).or_default().push(entry);
    }

    /// Adds the pages of a block to the used ranges.
    fn use_range(&mut self, device: u32, address: u64, size_bytes: u64) {
        let mut start = address / PAGE_BYTES * PAGE_BYTES;
        let mut end = address.saturating_add(size_bytes).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
        // The ranges that this one touches become one with it.
        while let Some((&(_, other), &other_end)) = self.used.range((device, 0)..=(device, end)).next_back() {
            if other_end < start {
                break;
            }
            (start, end) = (start.min(other), end.max(other_end));
            self.used.remove(&(device, other));
        }
        self.used.insert((device, start), end);
    }

    /// The final layout.
    fn segments(&self) -> Vec<Segment> {
        let used = self.used.iter();
        used.map(|(&(device, start), &end)| self.segment(device, start, end)).collect()
    }

    fn segment(&self, device: u32, start: u64, end: u64) -> Segment {
        let (mut blocks, mut next, mut active_bytes) = (Vec::new(), start, 0);
        let inactive = |from: u64, to: u64| Block {
            address: from as i64,
            size: (to - from) as i64,
            requested_size: 0,
            state: "inactive",
            frames: Vec::new(),
        };
        let mut stream = None;
        for (&(_, address), live) in self.live.range((device, start)..(device, end)) {
            // Blocks overlap if the recording lost events.
            if address < next {
                continue;
            }
            if address > next {
                blocks.push(inactive(next, address));
            }
            let size = live.size_bytes as i64;
            blocks.push(Block {
                address: address as i64,
                size,
                requested_size: size,
                state: "active_allocated",
                frames: live.frames.clone(),
            });
            next = address.saturating_add(live.size_bytes);
            active_bytes = size.saturating_add(active_bytes);
            stream = stream.or(Some(live.stream));
        }
        if next < end {
            blocks.push(inactive(next, end));
        }
        Segment {
            device: i64::from(device),
            address: start as i64,
            total_size: (end - start) as i64,
            allocated_size: active_bytes,
            active_size: active_bytes,
            requested_size: active_bytes,
            stream: stream.unwrap_or(0) as i64,
            segment_type: "large",
            segment_pool_id: (0, 0),
            is_expandable: true,
            frames: Vec::new(),
            blocks,
        }
    }
}

/// The number to subtract from each address, because memory_viz calculates with floats: 0 for a GPU's addresses, which they hold
/// exactly; the simulator's are larger.
fn base(recording: &Recording) -> u64 {
    let addresses = || {
        recording.events.iter().filter_map(|event| match event.what {
            What::Alloc { address, .. } | What::Free { address, .. } => Some(address),
            _ => None,
        })
    };
    match (addresses().min(), addresses().max()) {
        (Some(first), Some(last)) if last >= 1 << f64::MANTISSA_DIGITS => first / PAGE_BYTES * PAGE_BYTES,
        _ => 0,
    }
}

const PAGE_BYTES: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::snapshot;
    use crate::trace::Trace;
    use gpumem_pool::trace::{Recording, Trace as Recorder};
    use gpumem_pool::{Device, Pool, Stream};
    use gpumem_sim::SimConfig;
    use serde_json::{Value, json};

    /// A written snapshot is read as the program that was recorded.
    #[test]
    fn a_recording_becomes_a_snapshot() {
        let path = std::env::temp_dir().join(format!("gpumem-{}-snapshot.trace", std::process::id()));
        let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
        let builder = Pool::builder(&device).hard_limit(64 << 20);
        let pool = builder.adaptor(Recorder::create(&path).unwrap()).build().unwrap();
        let streams = [0, 1].map(|_| Stream::new(&device).unwrap());
        let scope = pool.scope("weights");
        let kept = pool.alloc(5_000_000, &streams[0]).unwrap();
        drop(scope);
        for step in 1..30_u64 {
            drop(pool.alloc(step * 1000, &streams[step as usize % 2]).unwrap());
        }
        assert!(pool.alloc(64 << 20, &streams[1]).is_err());
        drop(pool);
        let recording = Recording::read(&path).unwrap();
        let mut bytes = Vec::new();
        snapshot(&recording, &mut bytes).unwrap();
        let (written, recorded) =
            (Trace::read_from(&bytes[..], "snapshot.pickle").unwrap(), Trace::read(&path).unwrap());
        assert_eq!(written.events(), recorded.events());
        assert_eq!(written.disagreements(), Vec::<String>::new());
        let value: Value = serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
        let segments = value["segments"].as_array().unwrap();
        for segment in segments {
            let blocks = segment["blocks"].as_array().unwrap();
            let mut next = segment["address"].as_i64().unwrap();
            for block in blocks {
                assert_eq!(block["address"].as_i64(), Some(next), "no gap and no overlap");
                next += block["size"].as_i64().unwrap();
            }
            assert_eq!(
                Some(next),
                Some(segment["address"].as_i64().unwrap() + segment["total_size"].as_i64().unwrap())
            );
        }
        let live = segments.iter().flat_map(|segment| segment["blocks"].as_array().unwrap());
        let live: Vec<_> = live.filter(|block| block["state"] == "active_allocated").collect();
        assert_eq!((live.len(), &live[0]["frames"][0]["name"]), (1, &json!("weights")));
        let addresses =
            value["device_traces"][0].as_array().unwrap().iter().filter_map(|entry| entry["addr"].as_u64());
        assert!(addresses.max().unwrap() < 1 << 53, "memory_viz calculates with floats");
        drop(kept);
        std::fs::remove_file(path).unwrap();
    }
}
