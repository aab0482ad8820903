//! One handle mapped at two addresses: writes through one address are read through the other, in every order on which the pool
//! relies when it reuses memory at another address. No word may be wrong in any round.

use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::driver::vmm::{PIECE, Vmm, read_write};
use gpumem_tests::fixtures::pattern::{MismatchBuffer, Patterns, Wrong};
use gpumem_tests::harness::cases::skip_without_second_device;
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{Driver, DriverError, DriverKind};
use std::ptr::null_mut;

cases! {
    /// Ordered by one stream, in both directions.
    fn on_one_stream(driver: &Driver) -> Result<(), DriverError> {
        let Some(mut pair) = Pair::new(driver) else { return Ok(()) };
        let stream = pair.stream()?;
        for _ in 0..pair.rounds {
            pair.write(HERE, stream)?;
            pair.check(THERE, stream)?;
            pair.write(THERE, stream)?;
            pair.check(HERE, stream)?;
        }
        pair.finish([stream])
    }

    /// Ordered by an event between two streams, in both directions.
    fn on_another_stream_by_an_event(driver: &Driver) -> Result<(), DriverError> {
        let Some(mut pair) = Pair::new(driver) else { return Ok(()) };
        let (one, two) = (pair.stream()?, pair.stream()?);
        for _ in 0..pair.rounds {
            pair.write(HERE, one)?;
            pair.order(one, two)?;
            pair.check(THERE, two)?;
            pair.write(THERE, two)?;
            pair.order(two, one)?;
            pair.check(HERE, one)?;
        }
        pair.finish([one, two])
    }

    /// A kernel writes and a copy engine reads through the other address, and the reverse.
    fn through_copy_engines(driver: &Driver) -> Result<(), DriverError> {
        let Some(mut pair) = Pair::new(driver) else { return Ok(()) };
        let (kernels, copies) = (pair.stream()?, pair.stream()?);
        let (plain, pinned) = (pair.gpu.alloc(pair.size_bytes)?, pair.pinned()?);
        // SAFETY: both ranges have that size and live until all work is complete.
        let out = |from, key: &Pair| unsafe { key.gpu.driver.cuMemcpyDtoHAsync_v2(pinned, from, key.size_bytes, copies) };
        // SAFETY: the pinned memory and the target have that size, and live until all work is complete.
        let back = |to, key: &Pair| unsafe { key.gpu.driver.cuMemcpyHtoDAsync_v2(to, pinned, key.size_bytes, copies) };
        for _ in 0..pair.rounds {
            pair.write(HERE, kernels)?;
            pair.order(kernels, copies)?;
            out(pair.at[THERE], &pair)?;
            back(plain, &pair)?;
            pair.order(copies, kernels)?;
            pair.check_at(plain, kernels)?;
            pair.write_at(plain, kernels)?;
            pair.order(kernels, copies)?;
            out(plain, &pair)?;
            back(pair.at[THERE], &pair)?;
            pair.order(copies, kernels)?;
            pair.check(HERE, kernels)?;
        }
        pair.gpu.read(plain, 1)?;
        // SAFETY: the copies and kernels that used the memory are complete.
        unsafe {
            driver.cuMemFree_v2(plain)?;
            driver.cuMemFreeHost(pinned)?;
        }
        pair.finish([kernels, copies])
    }

    /// Cache lines of a read through one address do not survive a write through the other.
    fn with_warm_caches(driver: &Driver) -> Result<(), DriverError> {
        let Some(mut pair) = Pair::new(driver) else { return Ok(()) };
        let stream = pair.stream()?;
        pair.write(HERE, stream)?;
        for _ in 0..pair.rounds {
            pair.check(THERE, stream)?;
            pair.write(HERE, stream)?;
            pair.check(THERE, stream)?;
        }
        pair.finish([stream])
    }

    /// A graph with both addresses, launched repeatedly.
    fn in_a_graph(driver: &Driver) -> Result<(), DriverError> {
        let Some(mut pair) = Pair::new(driver) else { return Ok(()) };
        let stream = pair.stream()?;
        let (mut graph, mut executable) = (null_mut(), null_mut());
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive; locals outlive the calls; the graph's memory lives until its last launch is complete.
        unsafe {
            driver.cuStreamBeginCapture_v2(stream, mode)?;
            pair.write(HERE, stream)?;
            pair.check(THERE, stream)?;
            pair.write(THERE, stream)?;
            pair.check(HERE, stream)?;
            driver.cuStreamEndCapture(stream, &mut graph)?;
            driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0)?;
            for _ in 0..pair.rounds {
                driver.cuGraphLaunch(executable, stream)?;
            }
            driver.cuStreamSynchronize(stream)?;
            driver.cuGraphExecDestroy(executable)?;
            driver.cuGraphDestroy(graph)?;
        }
        pair.finish([stream])
    }

    /// Device 0 writes through one address; device 1 reads through the other, and writes; device 0 reads.
    fn across_devices(driver: &Driver) -> Result<(), DriverError> {
        let driver = match gpumem_sim::Sim::of(driver) {
            Some(sim) => gpumem_sim::driver(SimConfig::new().seed(sim.seed()).devices(2)).unwrap(),
            None => driver.clone(),
        };
        let Some(mut pair) = Pair::new(&driver) else { return Ok(()) };
        let Some(far) = Far::new(&pair)? else { return pair.finish([]) };
        let near = pair.stream()?;
        for _ in 0..pair.rounds {
            pair.write(HERE, near)?;
            pair.order(near, far.stream)?;
            far.check(&pair, pair.at[THERE], pair.key)?;
            pair.key += 1;
            far.write(&pair, pair.at[THERE], pair.key)?;
            pair.order_after(far.event, far.stream, far.context, near)?;
            pair.check(HERE, near)?;
        }
        far.finish(&pair)?;
        pair.finish([near])
    }

    /// An alias is mapped and unmapped while work on the old address is held back, and while it runs: neither call waits for that
    /// work or breaks it.
    fn aliases_come_and_go_beside_work(driver: &Driver) -> Result<(), DriverError> {
        let Some(mut pair) = Pair::new(driver) else { return Ok(()) };
        let (stream, other) = (pair.stream()?, pair.stream()?);
        pair.unmap(THERE)?;
        for _ in 0..pair.rounds.div_ceil(10) {
            pair.write(HERE, stream)?;
            // SAFETY: the stream is alive.
            let gate = unsafe { StreamGate::close(driver, stream)? };
            pair.check(HERE, stream)?;
            pair.map(THERE)?;
            pair.unmap(THERE)?;
            assert!(gate.open(), "mapping or unmapping waited for the stream");
            for _ in 0..10 {
                pair.write(HERE, stream)?;
                pair.check(HERE, stream)?;
            }
            pair.map(THERE)?;
            pair.order(stream, other)?;
            pair.check(THERE, other)?;
            pair.write(THERE, other)?;
            pair.order(other, stream)?;
            // SAFETY: the stream is alive. Its uses of the alias are complete before the alias is unmapped; uses of the old
            // address are pending.
            unsafe { driver.cuStreamSynchronize(other)? };
            pair.check(HERE, stream)?;
            pair.write(HERE, stream)?;
            pair.unmap(THERE)?;
            pair.check(HERE, stream)?;
        }
        pair.map(THERE)?;
        pair.finish([stream, other])
    }

    /// The memory of a released handle stays allocated until its last mapping is removed.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn a_released_handle_lives_in_its_mappings(driver: &Driver) -> Result<(), DriverError> {
        let Some(gpu) = Vmm::new(driver) else { return Ok(()) };
        let size_bytes = 64 * PIECE;
        let before = free_bytes(&gpu)?;
        let handle = gpu.create(size_bytes)?;
        let places = [gpu.reserve(size_bytes)?, gpu.reserve(size_bytes)?];
        for place in places {
            gpu.map(place, size_bytes, handle)?;
            gpu.grant(place, size_bytes)?;
        }
        let is_taken = || Ok::<_, DriverError>(free_bytes(&gpu)? + size_bytes / 2 < before);
        // SAFETY: the addresses are mapped when they are used, and no work on them is pending when they are unmapped.
        unsafe {
            driver.cuMemsetD8_v2(places[0], 7, PIECE)?;
            driver.cuMemRelease(handle)?;
            assert!(is_taken()?, "released, mapped twice");
            assert_eq!(gpu.read(places[1], 1)?, [7]);
            driver.cuMemUnmap(places[0], size_bytes)?;
            assert!(is_taken()?, "released, mapped once");
            assert_eq!(gpu.read(places[1], 1)?, [7]);
            driver.cuMemUnmap(places[1], size_bytes)?;
            assert!(!is_taken()?, "released, not mapped");
            places.into_iter().try_for_each(|place| driver.cuMemAddressFree(place, size_bytes))
        }
    }
}

const HERE: usize = 0;
const THERE: usize = 1;

/// One handle at two addresses, and the key of the pattern written last.
struct Pair {
    gpu: Vmm,
    patterns: Patterns,
    mismatches: MismatchBuffer,
    /// The size of the handle and of each mapping.
    whole_bytes: usize,
    /// The size of each pattern.
    size_bytes: usize,
    rounds: usize,
    handle: u64,
    at: [CUdeviceptr; 2],
    key: u64,
}

impl Pair {
    /// Returns `None` if the device has no virtual memory management.
    fn new(driver: &Driver) -> Option<Self> {
        let gpu = Vmm::new(driver)?;
        let (whole_bytes, size_bytes, rounds) = match driver.kind() {
            DriverKind::Sim => (PIECE, 64 << 10, 20),
            _ => (32 << 20, 32 << 20, 300),
        };
        let handle = gpu.create(whole_bytes).unwrap();
        let at = [0, 1].map(|_| gpu.reserve(whole_bytes).unwrap());
        let (patterns, mismatches) = (Patterns::load(driver).unwrap(), MismatchBuffer::new(driver).unwrap());
        let pair = Self { gpu, patterns, mismatches, whole_bytes, size_bytes, rounds, handle, at, key: 0 };
        [HERE, THERE].into_iter().for_each(|place| pair.map(place).unwrap());
        Some(pair)
    }

    fn stream(&self) -> Result<CUstream, DriverError> {
        self.gpu.stream()
    }

    fn map(&self, place: usize) -> Result<(), DriverError> {
        self.gpu.map(self.at[place], self.whole_bytes, self.handle)?;
        self.gpu.grant(self.at[place], self.whole_bytes)
    }

    fn unmap(&self, place: usize) -> Result<(), DriverError> {
        // SAFETY: all work queued for that address is complete; each case states why.
        unsafe { self.gpu.driver.cuMemUnmap(self.at[place], self.whole_bytes) }
    }

    fn write(&mut self, place: usize, stream: CUstream) -> Result<(), DriverError> {
        self.write_at(self.at[place], stream)
    }

    fn check(&self, place: usize, stream: CUstream) -> Result<(), DriverError> {
        self.check_at(self.at[place], stream)
    }

    /// Writes a new pattern.
    fn write_at(&mut self, address: CUdeviceptr, stream: CUstream) -> Result<(), DriverError> {
        self.key += 1;
        // SAFETY: memory and streams live until `finish`.
        unsafe { self.patterns.write(address, self.size_bytes, self.key, stream) }
    }

    fn check_at(&self, address: CUdeviceptr, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the memory, the buffer and the streams live until `finish`.
        unsafe { self.patterns.check(address, self.size_bytes, self.key, self.mismatches, stream) }
    }

    /// Pinned host memory for one pattern.
    fn pinned(&self) -> Result<*mut std::ffi::c_void, DriverError> {
        let mut memory = null_mut();
        // SAFETY: the local outlives the call.
        unsafe { self.gpu.driver.cuMemHostAlloc(&mut memory, self.size_bytes, 0)? };
        Ok(memory)
    }

    fn order(&self, first: CUstream, then: CUstream) -> Result<(), DriverError> {
        let event = self.gpu.event()?;
        self.order_after(event, first, self.gpu.context, then)?;
        // SAFETY: the event is alive, and the driver keeps it until the wait is complete.
        unsafe { self.gpu.driver.cuEventDestroy_v2(event) }
    }

    /// Orders one stream behind another by an event of the first stream's context.
    fn order_after(
        &self,
        event: CUevent,
        first: CUstream,
        context: CUcontext,
        then: CUstream,
    ) -> Result<(), DriverError> {
        let (driver, mut popped) = (&self.gpu.driver, null_mut());
        // SAFETY: all handles are alive.
        unsafe {
            driver.cuCtxPushCurrent_v2(context)?;
            driver.cuEventRecord(event, first)?;
            driver.cuCtxPopCurrent_v2(&mut popped)?;
            driver.cuStreamWaitEvent(then, event, 0)
        }
    }

    /// Waits for all work, releases everything, and fails if a word was wrong.
    fn finish(self, streams: impl IntoIterator<Item = CUstream>) -> Result<(), DriverError> {
        let driver = &self.gpu.driver;
        // SAFETY: closing the buffer waits for all work of the device; nothing is used afterwards.
        unsafe {
            let wrong = self.mismatches.close(driver)?;
            [HERE, THERE].into_iter().try_for_each(|place| self.unmap(place))?;
            self.at.into_iter().try_for_each(|address| driver.cuMemAddressFree(address, self.whole_bytes))?;
            driver.cuMemRelease(self.handle)?;
            streams.into_iter().try_for_each(|stream| driver.cuStreamDestroy_v2(stream))?;
            assert_eq!(wrong, Wrong::default(), "{wrong}");
        }
        Ok(())
    }
}

/// Device 1, with access to both addresses.
struct Far {
    context: CUcontext,
    patterns: Patterns,
    mismatches: MismatchBuffer,
    stream: CUstream,
    event: CUevent,
}

impl Far {
    /// Returns `None` on a machine with one GPU.
    fn new(pair: &Pair) -> Result<Option<Self>, DriverError> {
        let driver = &pair.gpu.driver;
        let (mut count, mut context, mut stream, mut event) = (0, null_mut(), null_mut(), null_mut());
        // SAFETY: locals outlive the calls.
        unsafe {
            driver.cuDeviceGetCount(&mut count)?;
            if count < 2 {
                skip_without_second_device();
                return Ok(None);
            }
            for address in pair.at {
                driver.cuMemSetAccess(address, pair.whole_bytes, &read_write(1), 1)?;
            }
            driver.cuDevicePrimaryCtxRetain(&mut context, 1)?;
            within(driver, context, || {
                driver.cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
                driver.cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)?;
                let (patterns, mismatches) = (Patterns::load(driver)?, MismatchBuffer::new(driver)?);
                Ok(Some(Self { context, patterns, mismatches, stream, event }))
            })
        }
    }

    fn write(&self, pair: &Pair, address: CUdeviceptr, key: u64) -> Result<(), DriverError> {
        // SAFETY: memory and stream live until `finish`.
        let write = || unsafe { self.patterns.write(address, pair.size_bytes, key, self.stream) };
        within(&pair.gpu.driver, self.context, write)
    }

    fn check(&self, pair: &Pair, address: CUdeviceptr, key: u64) -> Result<(), DriverError> {
        // SAFETY: the memory, the buffer and the stream live until `finish`.
        let check =
            || unsafe { self.patterns.check(address, pair.size_bytes, key, self.mismatches, self.stream) };
        within(&pair.gpu.driver, self.context, check)
    }

    fn finish(self, pair: &Pair) -> Result<(), DriverError> {
        let driver = &pair.gpu.driver;
        // SAFETY: closing the buffer waits for all work of this device; the stream is not used afterwards.
        let wrong = within(driver, self.context, || unsafe {
            let wrong = self.mismatches.close(driver)?;
            driver.cuEventDestroy_v2(self.event)?;
            driver.cuStreamDestroy_v2(self.stream)?;
            Ok(wrong)
        })?;
        assert_eq!(wrong, Wrong::default(), "{wrong}");
        // SAFETY: releases the context that `new` retained.
        unsafe { driver.cuDevicePrimaryCtxRelease_v2(1) }
    }
}

/// Runs a body with another context current.
fn within<R>(
    driver: &Driver,
    context: CUcontext,
    body: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, DriverError> {
    let mut popped = null_mut();
    // SAFETY: the context is alive; the local outlives the call.
    unsafe {
        driver.cuCtxPushCurrent_v2(context)?;
        let result = body();
        driver.cuCtxPopCurrent_v2(&mut popped)?;
        result
    }
}

fn free_bytes(gpu: &Vmm) -> Result<usize, DriverError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: locals outlive the call.
    unsafe { gpu.driver.cuMemGetInfo_v2(&mut free, &mut total)? };
    Ok(free)
}
