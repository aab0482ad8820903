//! Host functions (`cuLaunchHostFunc`), where the driver allows no calls: whatever is dropped there is released later, and whatever
//! is called there says why it fails.

use gpumem_tests::adapt::feed;
use gpumem_tests::array::{Gpu, GpuArray, KernelSource, PinnedArray, UnifiedArray, ndarray::Ix1};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::settings;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{
    BackendKind, Capture, CaptureMode, Device, DeviceError, Event, HostMemory, MemoryKind, Pool, PoolError,
    Reclaimable, Registration, Stream,
};
use gpumem_tests::sys::types::{CUresult, CUstream};
use gpumem_tests::sys::{DriverError, DriverKind};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::channel;

cases! {
    /// Blocks of every backend and kind, small and large, with uses on other streams and without.
    fn blocks_go_back_with_the_next_call(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for setting in settings(&device) {
            let pool = setting.builder(&device).hard_limit(64 * MIB).build().unwrap();
            let (fixture, streams) = (PoolFixture::new(&pool), [(); 2].map(|()| Stream::new(&device).unwrap()));
            for round in 0..6 {
                let blocks: Vec<_> =
                    [300, 70_000, 3 * MIB, 30 * MIB].map(|size| fixture.filled(size, size + round, &streams[0])).into();
                streams[1].wait_for(&streams[0]).unwrap();
                for block in blocks.iter().skip(2) {
                    fixture.check(block, block.size_bytes() + round, &streams[1]);
                    block.record_use(&streams[1]);
                }
                in_host_function(&device, move || drop(blocks));
                let status = pool.status().unwrap();
                assert_eq!((status.in_use_bytes, status.block_count), (0, 0), "{setting}");
                // The limit leaves no room beside the memory of the dropped blocks.
                let next = fixture.filled(50 * MIB, round, &streams[round as usize % 2]);
                fixture.check(&next, round, &streams[round as usize % 2]);
                pool.check().unwrap();
            }
            pool.reclaim().unwrap();
            assert_eq!(pool.status().unwrap().in_use_bytes, 0, "{setting}");
            drop(pool);
            fixture.finish();
        }
    }

    /// The last handle of a pool, with cached and live memory.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn pools_leave_nothing_there_either(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let before = device.memory_info().unwrap().free_bytes;
        for setting in settings(&device) {
            for _ in 0..3 {
                let pool = setting.builder(&device).build().unwrap();
                let blocks = [100, 70_000, 3 * MIB, 40 * MIB].map(|size| pool.alloc(size, &stream).unwrap());
                drop(pool.alloc(20 * MIB, &stream).unwrap());
                in_host_function(&device, move || drop((pool, blocks)));
            }
            device.synchronize().unwrap();
            device.synchronize().unwrap();
            let after = device.memory_info().unwrap().free_bytes;
            assert!(after + 32 * MIB >= before, "{setting}: {after} free, {before} before");
        }
    }

    /// Everything else that owns an object of the driver, or memory.
    fn all_types_may_be_dropped_there(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let is_sim = driver.kind() == DriverKind::Sim;
        for setting in settings(&device) {
            let pool = setting.builder(&device).build().unwrap();
            if setting.kind == MemoryKind::Device {
                let gpu = Gpu::new(&pool).unwrap();
                let array = GpuArray::<f32, Ix1>::zeros(&gpu, 1 << 20).unwrap();
                let sum = &array + &array;
                drop_all_there(&device, of_arrays(&gpu));
                drop_all_there(&device, vec![Box::new(array), Box::new(sum), Box::new(gpu)]);
            }
            if let Ok(mut grown) = pool.growable(64 * MIB, &stream) {
                grown.grow_to(5 * MIB).unwrap();
                in_host_function(&device, move || drop(grown));
            }
            device.synchronize().unwrap();
            pool.check().unwrap();
            assert_eq!(pool.status().unwrap().in_use_bytes, 0, "{setting}");
        }
        let pool = Pool::new(&device).unwrap();
        drop_all_there(&device, vec![Box::new(Registration::new(&device, &Arc::new(Holder)))]);
        // Other drivers, and builds without the backend, have no such pool.
        if let Ok(native) = Pool::builder(&device).backend(BackendKind::Native).build() {
            drop_all_there(&device, native.make_current().into_iter().map(|current| Box::new(current) as _).collect());
        }

        let events = [Event::new(&device).unwrap(), Event::with_timing(&device).unwrap()];
        let raw_event = events[0].raw();
        events[0].record(&stream).unwrap();
        let dropped = Stream::new(&device).unwrap();
        drop(pool.alloc(3 * MIB, &dropped).unwrap());
        let (raw_stream, completion) = (dropped.raw(), dropped.completion());
        let raw = raw_stream.expose_provenance();
        in_host_function(&device, move || drop((events, completion, dropped)));

        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let part = pool.alloc(MIB, &stream).unwrap();
        drop(part);
        let graph = capture.end().unwrap();
        let exec = graph.instantiate().unwrap();
        // SAFETY: the graph has no work.
        unsafe { exec.launch(&stream).unwrap() };
        in_host_function(&device, move || drop((graph, exec)));

        let registered = HostMemory::register(&device, vec![1_u8; 1 << 20]).unwrap();
        in_host_function(&device, move || drop(registered));

        #[cfg(unix)]
        if let Ok(pool) = Pool::builder(&device).conf("exportable:true").unwrap().build() {
            let block = pool.alloc(3 * MIB, &stream).unwrap();
            let import = gpumem_tests::pool::ImportedBlock::new(&device, block.export().unwrap()).unwrap();
            in_host_function(&device, move || drop(import));
        }

        // Nothing is reported as kept, and nothing is poisoned.
        device.synchronize().unwrap();
        pool.check().unwrap();
        drop(pool.alloc(200 * MIB, &stream).unwrap());
        pool.reclaim().unwrap();
        if is_sim {
            let _bound = device.bind().unwrap();
            let code = |answer: Result<(), DriverError>| answer.map_or_else(|error| error.code(), |()| CUresult::CUDA_SUCCESS);
            // SAFETY: the simulator checks the handles.
            let codes = unsafe {
                let raw: CUstream = std::ptr::with_exposed_provenance_mut(raw);
                [code(driver.cuEventQuery(raw_event)), code(driver.cuStreamQuery(raw))]
            };
            assert_eq!(codes, [CUresult::CUDA_ERROR_INVALID_HANDLE; 2], "they were destroyed");
        }
    }

    /// A request that needs the driver says where it came from, and does no harm. A request that is served from memory at hand succeeds.
    fn requests_there_say_why_they_fail(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for setting in settings(&device) {
            let pool = setting.builder(&device).build().unwrap();
            let (sender, receiver) = channel();
            let (inner, on) = (pool.clone(), stream.clone());
            in_host_function(&device, move || {
                let asked = inner.alloc(40 * MIB, &on).map(drop);
                sender.send((asked, inner.reclaim().map(drop), on.synchronize())).unwrap();
            });
            let (asked, reclaimed, waited) = receiver.recv().unwrap();
            for answer in [asked, reclaimed, waited.map_err(Into::into)] {
                // NVIDIA's driver may allow some calls.
                match answer {
                    Ok(()) => assert_ne!(driver.kind(), DriverKind::Sim, "{setting}"),
                    Err(error) => {
                        assert!(matches!(error, PoolError::Device(DeviceError::HostFunction(_))), "{setting}: {error}");
                        assert!(error.to_string().contains("called from a host function"), "{error}");
                    }
                }
            }
            drop(pool.alloc(40 * MIB, &stream).unwrap());
            if pool.backend() == BackendKind::Caching {
                let (inner, on) = (pool.clone(), stream.clone());
                in_host_function(&device, move || drop(inner.alloc(40 * MIB, &on)));
            }
            pool.check().unwrap();
        }
    }

    /// The device's last handle. Its context is released by the next call of another thread.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn devices_end_there_too(driver: &Driver) {
        for _ in 0..3 {
            let (device, carrier) = (Device::new(driver, 0).unwrap(), Device::new(driver, 0).unwrap());
            let stream = Stream::new(&device).unwrap();
            let pool = Pool::new(&device).unwrap();
            let blocks = [100, 3 * MIB].map(|size| pool.alloc(size, &stream).unwrap());
            in_host_function(&carrier, move || drop((blocks, pool, stream, device)));
            let again = Device::new(driver, 0).unwrap();
            again.synchronize().unwrap();
            drop(Pool::new(&again).unwrap().alloc(3 * MIB, &Stream::new(&again).unwrap()).unwrap());
        }
    }
}

/// Objects of arrays at work: transfers that are not awaited, a graph that was launched, kernels, packs, a feed.
fn of_arrays(gpu: &Gpu) -> Vec<Box<dyn Send>> {
    let x = GpuArray::<f32, Ix1>::ones(gpu, 1000).unwrap();
    let large = GpuArray::<f32, Ix1>::zeros(gpu, 1 << 20).unwrap();
    let upload = GpuArray::<f32, Ix1>::upload(gpu, vec![1.0_f32; 1 << 20]);
    let (mut graph, out) = gpu.capture(|gpu| x.on(gpu).try_mul(2.0)).unwrap();
    graph.launch(gpu).read(&x).run().unwrap();
    let source = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{ ret; }\n";
    let module = gpu.compile(&KernelSource::ptx("dropped", source)).unwrap();
    let (mut unsent, mut sent) = (gpu.pack(), gpu.pack());
    let [part, packed] = [&mut unsent, &mut sent].map(|pack| pack.add(gpu, &[1.0_f32; 100]).unwrap());
    sent.upload().unwrap();
    let mut feed = feed((0..4).map(|number| vec![number as f32; 1000])).prefetch(2).on(gpu).unwrap();
    let first = feed.next().unwrap().unwrap();
    let unified = UnifiedArray::<f32, Ix1>::ones(&gpu.unified(), 1000).unwrap();
    let pinned = PinnedArray::<f32, Ix1>::ones(&gpu.pinned(), 1000).unwrap();
    vec![
        Box::new((x.download(), large.download())),
        Box::new(upload),
        Box::new((graph, out)),
        Box::new(module),
        Box::new((unsent, part)),
        Box::new(packed),
        Box::new((feed, first)),
        Box::new((unified.download(), unified)),
        Box::new(pinned),
        Box::new((x, large)),
    ]
}

struct Holder;

impl Reclaimable for Holder {
    fn purge(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// Drops each value in a host function of its own.
fn drop_all_there(device: &Device, values: Vec<Box<dyn Send>>) {
    for value in values {
        in_host_function(device, move || drop(value));
    }
}

/// Runs work in a host function of the driver, behind nothing else, and waits for it.
fn in_host_function(device: &Device, work: impl FnOnce() + Send + 'static) {
    type Work = Box<dyn FnOnce() + Send>;
    unsafe extern "C" fn call(work: *mut c_void) {
        // SAFETY: the pointer is that of the box below, which the driver passes once.
        let work = unsafe { Box::from_raw(work.cast::<Work>()) };
        work();
    }
    let carrier = Stream::new(device).unwrap();
    let work: Work = Box::new(work);
    // SAFETY: the function may be called at any time, once; the stream is alive.
    unsafe {
        let _bound = device.bind().unwrap();
        let work = Box::into_raw(Box::new(work)).cast();
        device.driver().cuLaunchHostFunc(carrier.raw(), Some(call), work).unwrap();
    }
    carrier.synchronize().unwrap();
}
