//! Streams of another library, named in each call as in PyTorch's allocator interface: `malloc(size, stream)`, `free(pointer,
//! stream)`, and `record_stream` if another stream uses a block.
//!
//! The program is a loader on a side stream. The main stream reads each batch and drops it while the read is pending. The library
//! orders the two streams itself: the pool does not see those waits.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::pool::{BackendKind, Block, Device, Pool, RawBlock, Stream};
use gpumem_tests::sys::types::{CUevent, CUstream};
use std::collections::HashMap;

const MIB: u64 = 1 << 20;
const BATCH_BYTES: u64 = 16 * MIB;
const STEPS: u32 = 40;

/// The guarantee about the streams, and how a call gets a [`Stream`] for a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// No guarantee; a clone is kept.
    Cloned,
    /// No guarantee; the free names no stream.
    Dropped,
    /// The streams live as long as the device; every call wraps the handle again.
    LongLived,
}

/// The state of the interface.
struct Shim {
    how: How,
    device: Device,
    pool: Pool,
    streams: HashMap<usize, Stream>,
    blocks: HashMap<u64, RawBlock>,
}

impl Shim {
    fn stream(&mut self, raw: CUstream) -> Stream {
        match self.how {
            // SAFETY: the streams outlive the shim's device.
            How::LongLived => unsafe { Stream::from_raw_long_lived(&self.device, raw).unwrap() },
            _ => {
                // SAFETY: the streams are alive in every call, and clones are kept until the end.
                let wrap = || unsafe { Stream::from_raw(&self.device, raw).unwrap() };
                self.streams.entry(raw as usize).or_insert_with(wrap).clone()
            }
        }
    }

    fn malloc(&mut self, size_bytes: u64, stream: CUstream) -> u64 {
        let stream = self.stream(stream);
        let raw = self.pool.alloc(size_bytes, &stream).unwrap().into_raw();
        self.blocks.insert(raw.address, raw);
        raw.address
    }

    fn free(&mut self, address: u64, stream: CUstream) {
        // SAFETY: the raw block comes from `into_raw`, and is converted once.
        let block = unsafe { Block::from_raw(self.blocks.remove(&address).unwrap()) };
        match self.how {
            How::Cloned => block.free_on(&self.stream(stream)),
            How::Dropped | How::LongLived => drop(block),
        }
    }

    fn record_stream(&mut self, address: u64, user: CUstream) {
        let user = self.stream(user);
        // SAFETY: the block is converted back to a raw block before any other use.
        let block = unsafe { Block::from_raw(self.blocks.remove(&address).unwrap()) };
        block.record_use(&user);
        self.blocks.insert(address, block.into_raw());
    }
}

/// `waiter` waits for the work queued on the other stream so far, without the pool.
fn wait(raw: &Raw, event: CUevent, waiter: CUstream, other: CUstream) {
    // SAFETY: all three are alive.
    unsafe {
        raw.driver.cuEventRecord(event, other).unwrap();
        raw.driver.cuStreamWaitEvent(waiter, event, 0).unwrap();
    }
}

fn fill(raw: &Raw, address: u64, value: u8, size_bytes: u64, stream: CUstream) {
    // SAFETY: the memory belongs to the program, in the order of the stream.
    unsafe { raw.driver.cuMemsetD8Async(address, value, size_bytes as usize, stream).unwrap() };
}

/// Runs the program, checks the contents of each batch when it is read, and returns the peak of reserved bytes.
fn run(shim: &mut Shim, raw: &Raw, [main, side]: [CUstream; 2]) -> u64 {
    let ready = raw.event().unwrap();
    let target = shim.malloc(u64::from(STEPS), main);
    for step in 0..STEPS {
        let batch = shim.malloc(BATCH_BYTES, side);
        fill(raw, batch, step as u8, BATCH_BYTES, side);
        wait(raw, ready, main, side);
        shim.record_stream(batch, main);
        let scratch = shim.malloc(MIB, main);
        fill(raw, scratch, 255, MIB, main);
        let last = batch + BATCH_BYTES - 1;
        // SAFETY: both are alive on the main stream.
        unsafe { raw.driver.cuMemcpyDtoDAsync_v2(target + u64::from(step), last, 1, main).unwrap() };
        shim.free(batch, side);
        shim.free(scratch, main);
    }
    // SAFETY: the caller destroys the main stream after this function.
    unsafe { raw.driver.cuStreamSynchronize(main).unwrap() };
    let seen = raw.read(target, STEPS as usize).unwrap();
    assert!(seen.iter().enumerate().all(|(step, value)| *value == step as u8), "{seen:?}");
    shim.free(target, main);
    // SAFETY: no stream waits for the event.
    unsafe { raw.driver.cuEventDestroy_v2(ready).unwrap() };
    shim.pool.status().unwrap().reserved_peak_bytes
}

fn shim(device: &Device, backend: BackendKind, how: How) -> Shim {
    let pool = Pool::builder(device).backend(backend).build().unwrap();
    let (streams, blocks) = (HashMap::new(), HashMap::new());
    Shim { how, device: device.clone(), pool, streams, blocks }
}

cases! {
    /// One batch is live at a time. Without markers, all batches would stay reserved.
    fn a_loader_on_a_side_stream_stays_small(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let raw = Raw::new(driver).unwrap();
        let streams = [raw.stream().unwrap(), raw.stream().unwrap()];
        for backend in backends(&device) {
            for how in [How::Cloned, How::Dropped, How::LongLived] {
                let mut shim = shim(&device, backend, how);
                let reserved_bytes = run(&mut shim, &raw, streams);
                // The driver's pool grows in its own units, and a free that cannot be queued yet is retried later.
                let most = if backend == BackendKind::Native { 8 } else { 5 };
                let what = format!("{backend} {how:?}: {} MiB", reserved_bytes >> 20);
                assert!(reserved_bytes <= most * BATCH_BYTES, "{what}");
                shim.streams.drain().for_each(|(_, stream)| stream.retire().unwrap());
            }
            // The next backend gets new streams, without a guarantee.
            for stream in streams {
                // SAFETY: the stream is alive.
                unsafe { Stream::from_raw(&device, stream).unwrap().retire().unwrap() };
            }
        }
        device.synchronize().unwrap();
        // SAFETY: no handles to the streams are left.
        streams.into_iter().for_each(|stream| unsafe { driver.cuStreamDestroy_v2(stream).unwrap() });
        if let Some(sim) = gpumem_sim::Sim::of(driver) {
            assert_eq!(sim.report().findings, []);
        }
    }

    /// A stream frees memory and makes no more calls: another stream reuses the memory without a wait for the device.
    fn memory_freed_on_a_stream_that_makes_no_more_calls_is_reused_by_others(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let raw = Raw::new(driver).unwrap();
        let [first, second] = [raw.stream().unwrap(), raw.stream().unwrap()];
        for how in [How::Cloned, How::LongLived] {
            let mut shim = shim(&device, BackendKind::Caching, how);
            for stream in [first, second] {
                let blocks: Vec<u64> = (0..32).map(|_| shim.malloc(8 * MIB, stream)).collect();
                blocks.iter().for_each(|address| fill(&raw, *address, 1, 8 * MIB, stream));
                blocks.into_iter().for_each(|address| shim.free(address, stream));
            }
            let reserved_bytes = shim.pool.status().unwrap().reserved_peak_bytes;
            assert!(reserved_bytes <= 320 * MIB, "{how:?}: {} MiB", reserved_bytes >> 20);
            for stream in [first, second] {
                shim.stream(stream).retire().unwrap();
            }
        }
        device.synchronize().unwrap();
        // SAFETY: no handles to the streams are left.
        [first, second].into_iter().for_each(|stream| unsafe { driver.cuStreamDestroy_v2(stream).unwrap() });
    }

    /// A library that allocates with `cuMemAllocAsync` from a current pool.
    fn the_status_counts_what_another_library_holds(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        if !backends(&device).contains(&BackendKind::Native) {
            return;
        }
        let builder = Pool::builder(&device).backend(BackendKind::Native).hard_limit(512 * MIB);
        let (pool, stream, _bound) = (builder.build().unwrap(), Stream::new(&device).unwrap(), device.bind().unwrap());
        let current = pool.make_current().unwrap();
        let own = pool.alloc(10 * MIB, &stream).unwrap();
        let (mut theirs, mut refused) = (0, 0);
        // SAFETY: the addresses are locals, and the stream is alive.
        unsafe { driver.cuMemAllocAsync(&mut theirs, 256 << 20, stream.raw()).unwrap() };
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.other_libraries_bytes), (10 * MIB, 256 * MIB), "{status}");
        // SAFETY: as for the first address: a local, and a live stream.
        unsafe { driver.cuMemAllocAsync(&mut refused, 1 << 40, stream.raw()).unwrap_err() };
        let report = pool.explain_refusal(1 << 40).unwrap();
        assert_eq!((report.in_use_bytes, report.other_libraries_bytes), (266 * MIB, 256 * MIB), "{report}");
        // SAFETY: the address was allocated above, and nothing uses it.
        unsafe { driver.cuMemFreeAsync(theirs, stream.raw()).unwrap() };
        stream.synchronize().unwrap();
        assert_eq!(pool.status().unwrap().other_libraries_bytes, 0);
        drop((own, current));
    }
}
