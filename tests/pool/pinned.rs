//! Vectors in pinned host memory, on both drivers and with every backend.

use allocator_api2::alloc::{Allocator, Layout};
use allocator_api2::boxed::Box as PinnedBox;
use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::backends::host_backends;
use gpumem_tests::pool::adaptor::Fallback;
use gpumem_tests::pool::{
    Capture, CaptureError, CaptureMode, Device, DeviceError, MemoryKind, PinnedAllocator, PinnedVec, Pool,
    PoolError, Stream, Unsupported,
};
use gpumem_tests::sys::Driver;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// An allocator over a pinned pool of each backend.
fn allocators(driver: &Driver) -> Vec<PinnedAllocator> {
    let device = Device::new(driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let allocator = |backend| {
        let pool = Pool::builder(&device).backend(backend).kind(MemoryKind::Host).hard_limit(16 * MIB);
        PinnedAllocator::new(&pool.build().unwrap(), &stream).unwrap()
    };
    host_backends(&device).into_iter().map(allocator).collect()
}

fn in_use(allocator: &PinnedAllocator) -> u64 {
    allocator.pool().status().unwrap().in_use_bytes
}

cases! {
    /// A vector grows, is copied to the device and back, and frees its memory.
    fn a_vector_there_and_back(driver: &Driver) {
        for allocator in allocators(driver) {
            let stream = allocator.stream().clone();
            let pool = Pool::new(stream.device()).unwrap();
            let mut values = PinnedVec::new_in(allocator.clone());
            assert_eq!(in_use(&allocator), 0);
            values.extend(0..100_000_u32);
            let mut block = pool.alloc(400_000, &stream).unwrap();
            block.copy_from_host(0, &values, &stream).unwrap();
            let mut back = allocator.vec_with_capacity(100_000).unwrap();
            back.resize(100_000, 0_u32);
            block.copy_to_host(0, &mut back, &stream).unwrap();
            assert_eq!(back, values);
            back.truncate(10);
            back.shrink_to_fit();
            assert_eq!(back[..], (0..10).collect::<Vec<u32>>());
            drop((values, back));
            assert_eq!(in_use(&allocator), 0);
        }
    }

    /// Elements with drops, alignment and no size; boxes and empty vectors.
    fn every_kind_of_element(driver: &Driver) {
        #[repr(align(4096))]
        struct Page([u8; 4096]);
        for allocator in allocators(driver) {
            let shared = Arc::new(());
            let mut counted = allocator.vec_with_capacity(8).unwrap();
            counted.extend((0..20).map(|_| Arc::clone(&shared)));
            assert_eq!(Arc::strong_count(&shared), 21);
            drop(counted);
            assert_eq!(Arc::strong_count(&shared), 1);

            let page = PinnedBox::new_in(Page([7; 4096]), allocator.clone());
            assert_eq!((&raw const *page).addr() % 4096, 0);
            assert!(page.0.iter().all(|byte| *byte == 7));
            let before = in_use(&allocator);
            let mut units = allocator.vec_with_capacity::<()>(1 << 60).unwrap();
            units.extend([(); 1000]);
            assert_eq!((units.len(), in_use(&allocator)), (1000, before));
            assert_eq!(allocator.vec_with_capacity::<u64>(0).unwrap().capacity(), 0);
        }
    }

    /// The vector outlives the handles of its pool, its stream and its device, also on another thread.
    fn a_vector_outlives_its_pool(driver: &Driver) {
        for allocator in allocators(driver) {
            let mut values = allocator.vec_with_capacity(1000).unwrap();
            values.extend(0..1000_u64);
            drop(allocator);
            let sum = std::thread::spawn(move || values.iter().sum::<u64>()).join().unwrap();
            assert_eq!(sum, 499_500);
        }
    }

    /// Memory that queued work on the allocator's stream uses is not reused before that work is complete.
    fn a_vector_is_dropped_in_flight(driver: &Driver) {
        for allocator in allocators(driver) {
            let (stream, device) = (allocator.stream().clone(), allocator.stream().device().clone());
            if allocator.pool().backend() == gpumem_tests::pool::BackendKind::None {
                // Its free waits.
                continue;
            }
            let target = Pool::new(&device).unwrap().alloc(4096, &stream).unwrap();
            let mut values = allocator.vec_with_capacity(4096).unwrap();
            values.resize(4096, 5_u8);
            let gate = StreamGate::on(&stream).unwrap();
            let _bound = device.bind().unwrap();
            // SAFETY: the block is alive, and the vector is dropped in the order of the stream.
            unsafe {
                driver.cuMemcpyAsync(target.address(), values.as_ptr().expose_provenance() as u64, 4096, stream.raw()).unwrap();
            }
            drop(values);
            let mut others: Vec<PinnedVec<u8>> = (0..4).map(|_| allocator.vec_with_capacity(4096).unwrap()).collect();
            others.iter_mut().for_each(|other| other.resize(4096, 9));
            assert!(gate.open(), "an allocation has waited");
            let mut bytes = [0_u8; 4096];
            target.copy_to_host(0, &mut bytes, &stream).unwrap();
            assert_eq!(bytes, [5; 4096]);
        }
    }

    /// Refusals: the limit, impossible sizes, other kinds and devices of memory, a capture.
    fn refusals(driver: &Driver) {
        for allocator in allocators(driver) {
            let held: PinnedVec<u8> = allocator.vec_with_capacity(12 << 20).unwrap();
            let refused = allocator.vec_with_capacity::<u64>(1 << 20).map(drop);
            assert!(matches!(refused, Err(PoolError::LimitReached(_))), "{refused:?}");
            assert!(PinnedVec::<u8>::new_in(allocator.clone()).try_reserve(8 << 20).is_err());
            for capacity in [usize::MAX, usize::MAX / 8, isize::MAX as usize] {
                assert!(allocator.vec_with_capacity::<u64>(capacity).is_err());
            }
            assert!(allocator.allocate(Layout::from_size_align(64, 1 << 40).unwrap()).is_err());
            drop(held);
            let capture = Capture::begin(allocator.stream(), CaptureMode::Relaxed).unwrap();
            let refused = allocator.vec_with_capacity::<u8>(100).map(drop);
            assert!(matches!(refused, Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))), "{refused:?}");
            capture.end().unwrap();
            assert_eq!(in_use(&allocator), 0);
            let stream = allocator.stream();
            let refused = PinnedAllocator::new(&Pool::new(stream.device()).unwrap(), stream).map(drop);
            assert!(matches!(refused, Err(PoolError::Unsupported(Unsupported::OnKind { .. }))), "{refused:?}");
            let elsewhere = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
            let refused = PinnedAllocator::new(allocator.pool(), &Stream::new(&elsewhere).unwrap()).map(drop);
            assert!(matches!(refused, Err(PoolError::Device(DeviceError::WrongDevice { .. }))), "{refused:?}");
        }
    }

    /// Threads allocate and free through one allocator, each also what others have allocated.
    fn threads_share_an_allocator(driver: &Driver) {
        for allocator in allocators(driver) {
            let (sender, receiver) = std::sync::mpsc::channel::<(u8, PinnedVec<u8>)>();
            std::thread::scope(|scope| {
                for value in 0..4_u8 {
                    let (allocator, sender) = (allocator.clone(), sender.clone());
                    scope.spawn(move || for size in 1..50 {
                        let mut values = allocator.vec_with_capacity(size * 100).unwrap();
                        values.resize(size * 100, value);
                        sender.send((value, values)).unwrap();
                    });
                }
                drop(sender);
                for (value, values) in receiver {
                    assert!(values.iter().all(|byte| *byte == value));
                }
            });
            assert_eq!(in_use(&allocator), 0);
        }
    }

    /// A fallback to memory that the host cannot access is an error, not a vector.
    fn a_fallback_must_be_accessible(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let spare = Pool::new(&device).unwrap();
        let builder = Pool::builder(&device).kind(MemoryKind::Host).hard_limit(2 * MIB);
        let pool = builder.adaptor(Arc::new(Fallback::new(&spare))).build().unwrap();
        let allocator = PinnedAllocator::new(&pool, &stream).unwrap();
        assert!(allocator.vec_with_capacity::<u8>(4 << 20).is_err());
        assert_eq!((in_use(&allocator), spare.status().unwrap().in_use_bytes), (0, 0));
    }
}

#[test]
fn threads_may_share_and_move_it() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<PinnedAllocator>();
    shared::<PinnedVec<u8>>();
}
