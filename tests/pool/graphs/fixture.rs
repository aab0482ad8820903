//! Helpers: a pool with two streams, for each backend, and a check of the simulator's report at the end.

use gpumem_sim::Finding;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::pool::{
    Block, Capture, CaptureError, CaptureMode, Device, DeviceError, GraphExec, Pool, PoolError, Stream,
};
use gpumem_tests::sys::Driver;
use gpumem_tests::sys::types::CUstream_flags;

pub(crate) const MODES: [CaptureMode; 3] =
    [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
pub(crate) const SIZE_BYTES: u64 = 1 << 20;

/// A pool with two streams.
pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) pool: Pool,
    pub(crate) stream: Stream,
    pub(crate) other: Stream,
}

pub(crate) fn each_fixture(driver: &Driver, body: impl Fn(Fixture)) {
    each_fixture_with(driver, 0, body);
}

/// Runs a body with calls that the driver refuses and the simulator reports as findings.
pub(crate) fn each_fixture_with(driver: &Driver, refusal_count: usize, body: impl Fn(Fixture)) {
    let device = Device::new(driver, 0).unwrap();
    for (round, backend) in backends(&device).into_iter().enumerate() {
        let pool = Pool::builder(&device).backend(backend).build().unwrap();
        let [stream, other] = [0, 1].map(|_| Stream::new(&device).unwrap());
        body(Fixture { device: device.clone(), pool, stream, other });
        device.synchronize().unwrap();
        if let Some(sim) = gpumem_sim::Sim::of(driver) {
            let report = sim.report();
            let (refused, found): (Vec<_>, Vec<_>) =
                report.findings.iter().partition(|finding| matches!(finding, Finding::Refused { .. }));
            assert!(report.faults.is_empty() && found.is_empty(), "{backend}: {report}");
            assert_eq!(refused.len(), refusal_count * (round + 1), "{backend}: {report}");
            assert_eq!((report.graph_count, report.executable_graph_count), (0, 0), "{backend}");
        }
    }
}

pub(crate) fn refused<T>(result: Result<T, PoolError>) {
    match result {
        Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. }))) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

impl Fixture {
    pub(crate) fn alloc(&self) -> Block {
        self.pool.alloc(SIZE_BYTES, &self.stream).unwrap()
    }

    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.pool.status().unwrap().in_use_bytes
    }

    pub(crate) fn fill(&self, block: &Block, value: u8, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        let size_bytes = block.size_bytes() as usize;
        // SAFETY: the block is alive and has that size; the order of its uses is the subject of the test.
        let filled =
            unsafe { self.device.driver().cuMemsetD8Async(block.address(), value, size_bytes, stream.raw()) };
        filled.unwrap();
    }

    pub(crate) fn copy(&self, from: &Block, to: &Block, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        let size_bytes = from.size_bytes() as usize;
        // SAFETY: as for `fill`.
        let copied = unsafe {
            self.device.driver().cuMemcpyDtoDAsync_v2(to.address(), from.address(), size_bytes, stream.raw())
        };
        copied.unwrap();
    }

    /// The value of every byte of a block.
    pub(crate) fn read(&self, block: &Block, stream: &Stream) -> u8 {
        let mut bytes = vec![0_u8; block.size_bytes() as usize];
        let bound = self.device.bind().unwrap();
        // SAFETY: `bytes` has room, and lives until the stream is synchronised.
        let copied = unsafe {
            self.device.driver().cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                block.address(),
                bytes.len(),
                stream.raw(),
            )
        };
        copied.unwrap();
        stream.synchronize().unwrap();
        drop(bound);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    pub(crate) fn launch(&self, exec: &GraphExec, stream: &Stream) {
        // SAFETY: the graph's memory is alive; the order of its uses is the subject of the test.
        unsafe { exec.launch(stream).unwrap() };
    }

    /// Creates a stream that belongs to another library.
    pub(crate) fn foreign(&self) -> Stream {
        let _bound = self.device.bind().unwrap();
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, and the stream lives until `end_foreign`.
        unsafe {
            let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
            self.device.driver().cuStreamCreate(&mut raw, flags).unwrap();
            Stream::from_raw(&self.device, raw).unwrap()
        }
    }

    pub(crate) fn end_foreign(&self, stream: Stream) {
        stream.retire().unwrap();
        let raw = stream.raw();
        drop(stream);
        let _bound = self.device.bind().unwrap();
        // SAFETY: no handle to the stream is used from here on.
        unsafe { self.device.driver().cuStreamDestroy_v2(raw).unwrap() };
    }

    pub(crate) fn capture_of_nothing(&self) -> GraphExec {
        executable(self.capture())
    }

    pub(crate) fn capture(&self) -> Capture {
        Capture::begin(&self.stream, CaptureMode::Global).unwrap()
    }
}

pub(crate) fn executable(capture: Capture) -> GraphExec {
    capture.end().unwrap().instantiate().unwrap()
}
