//! A device that the program resets under its pools (`cudaDeviceReset`): every call says so, drops are silent, and a new `Device` works.

use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::{Setting, settings};
use gpumem_tests::pool::{
    BackendKind, Block, CaptureMode, Device, Event, GraphExec, MemoryKind, Pool, PoolError, Stream,
};
use gpumem_tests::sys::{Driver, DriverKind};
use std::process::Command;

cases! {
    /// On a GPU in a process of its own: a reset ends the context of all other cases.
    fn a_reset_device_is_lost_and_a_new_one_works(driver: &Driver) {
        match driver.kind() {
            DriverKind::Sim => resets(driver),
            _ => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let case = "reset::cuda::resets_in_its_own_process";
                let output = command.args([case, "--exact", "--ignored", "--nocapture"]).output().unwrap();
                let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
            }
        }
    }

    #[ignore = "run by the case above, as a process of its own"]
    fn resets_in_its_own_process(driver: &Driver) {
        resets(driver);
    }
}

/// With every setting, every call that may be the first to find the reset, and both orders of the end and the new beginning.
fn resets(driver: &Driver) {
    for setting in settings(&Device::new(driver, 0).unwrap()) {
        for (index, (name, first)) in FIRST.iter().enumerate() {
            let Some(old) = Old::new(driver, setting) else { continue };
            // SAFETY: nothing is assumed about the context afterwards.
            unsafe { driver.cuDevicePrimaryCtxReset_v2(old.device.raw()).unwrap() };
            let context = format!("{setting}, {name}");
            is_lost(&context, first(&old));
            old.is_all_lost(&context);
            if index % 2 == 0 {
                drop(old);
                works(driver, setting, &context);
            } else {
                works(driver, setting, &context);
                old.is_all_lost(&context);
                drop(old);
            }
            works(driver, setting, &context);
            is_fast(driver, setting, &context);
        }
    }
}

type First = fn(&Old) -> Result<(), PoolError>;

const FIRST: &[(&str, First)] = &[
    ("a wait", |old| old.stream.synchronize()),
    ("a large request", |old| {
        // Physical memory may belong to no context.
        old.pool.alloc(48 << 20, &old.stream).map_or_else(drop, drop);
        old.device.synchronize()
    }),
    ("a new stream", |old| Stream::new(&old.device).map(drop)),
    ("status", |old| old.pool.status().map(drop)),
    ("an event", |old| old.event.record(&old.stream)),
    ("a new device", |old| {
        drop(Device::new(old.device.driver(), 0)?);
        old.device.synchronize()
    }),
];

/// Objects on the context that is reset.
struct Old {
    device: Device,
    pool: Pool,
    stream: Stream,
    event: Event,
    exec: GraphExec,
    array: GpuArray<f32, gpumem_tests::array::ndarray::Ix1>,
    gpu: Gpu,
    block: Block,
}

impl Old {
    fn new(driver: &Driver, setting: Setting) -> Option<Self> {
        let device = Device::new(driver, 0).unwrap();
        let pool = setting.builder(&device).build().ok()?;
        let (stream, event) = (Stream::new(&device).unwrap(), Event::new(&device).unwrap());
        event.record(&stream).unwrap();
        let block = pool.alloc(CACHED_BYTES, &stream).unwrap();
        drop([CACHED_BYTES, 3 << 20].map(|size_bytes| pool.alloc(size_bytes, &stream).unwrap()));
        let exec = stream.begin_capture(CaptureMode::Relaxed).unwrap().end().unwrap().instantiate().unwrap();
        let gpu = Gpu::with_stream(&Pool::new(&device).unwrap(), &stream).unwrap();
        let array = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
        Some(Self { device, pool, stream, event, exec, array, gpu, block })
    }

    /// Once one call has found the reset.
    fn is_all_lost(&self, context: &str) {
        let calls: [(&str, Result<(), PoolError>); 12] = [
            ("a cached size", self.pool.alloc(CACHED_BYTES, &self.stream).map(drop)),
            ("a cached large size", self.pool.alloc(3 << 20, &self.stream).map(drop)),
            ("status", self.pool.status().map(drop)),
            ("reclaim", self.pool.reclaim().map(drop)),
            ("Pool::new", Pool::new(&self.device).map(drop)),
            ("Stream::new", Stream::new(&self.device).map(drop)),
            ("Stream::synchronize", self.stream.synchronize()),
            ("Device::synchronize", self.device.synchronize()),
            ("Event::record", self.event.record(&self.stream)),
            ("Event::is_complete", self.event.is_complete().map(drop)),
            ("begin_capture", self.stream.begin_capture(CaptureMode::Relaxed).map(drop)),
            // SAFETY: the graph does not access memory.
            ("launch", unsafe { self.exec.launch(&self.stream) }),
        ];
        for (name, outcome) in calls {
            is_lost(&format!("{context}: {name}"), outcome);
        }
        let arrays = [
            self.array.to_vec().map(drop),
            self.array.try_add(1.0).map(drop),
            GpuArray::from_slice(&self.gpu, &[1.0_f32]).map(drop),
            self.gpu.synchronize(),
        ];
        for (index, outcome) in arrays.into_iter().enumerate() {
            let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("was reset"), "{context}: array operation {index}: {text}");
        }
        self.block.record_use(&self.stream);
    }
}

fn is_lost(context: &str, outcome: Result<(), PoolError>) {
    match outcome {
        Err(error @ PoolError::DeviceLost(_)) => {
            let text = error.to_string();
            assert!(
                text.contains("the device was reset") && text.contains("Device::new"),
                "{context}: {text}"
            );
        }
        other => panic!("{context}: {other:?}"),
    }
}

/// A new device, stream and pool serve requests, and the thread's cache serves them again.
fn works(driver: &Driver, setting: Setting, context: &str) {
    let device = Device::new(driver, 0).unwrap_or_else(|error| panic!("{context}: {error}"));
    let (pool, stream) = (setting.builder(&device).build().unwrap(), Stream::new(&device).unwrap());
    for size_bytes in [CACHED_BYTES, 3 << 20, 48 << 20] {
        let mut block = pool.alloc(size_bytes, &stream).unwrap_or_else(|error| panic!("{context}: {error}"));
        let mut read = [0_u32; 4];
        block.fill(0..16, 7_u32, &stream).unwrap();
        block.copy_to_host(0, &mut read, &stream).unwrap();
        assert_eq!(read, [7; 4], "{context}");
    }
    device.synchronize().unwrap();
}

/// Once nothing of the device that was reset is left, the thread's cache serves requests without a check.
fn is_fast(driver: &Driver, setting: Setting, context: &str) {
    if setting.backend != BackendKind::Caching || setting.kind != MemoryKind::Device {
        return;
    }
    let device = Device::new(driver, 0).unwrap();
    let (pool, stream) = (setting.builder(&device).build().unwrap(), Stream::new(&device).unwrap());
    (0..3).for_each(|_| drop(pool.alloc(CACHED_BYTES, &stream).unwrap()));
    let slow_count = pool.status().unwrap().counters.slow_allocation_count;
    assert!(slow_count < 3, "{context}: {slow_count} of 3 allocations took the slow path");
}

const CACHED_BYTES: u64 = 4096;
