//! Unified and pinned host memory from a pool, and host memory of the program: on both drivers, in small sizes. More managed
//! memory than a GPU has free can stall a machine, so large requests here are refused before a driver call.

use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::backends::host_backends;
use gpumem_tests::pool::{
    BackendKind, BadArgument, Block, BorrowedHostMemory, Device, DeviceError, HostMemory, Location,
    MemoryAdvice, MemoryKind, Pool, PoolError, Stream, Unsupported,
};
use gpumem_tests::sys::types::{CUdevice_attribute, CUmem_range_attribute};

const MIB: u64 = 1 << 20;
const FOR_HOST: [MemoryKind; 2] = [MemoryKind::Unified, MemoryKind::Host];

/// All backends with all host-accessible kinds of memory.
fn pools(device: &Device) -> Vec<Pool> {
    let of = |backend| {
        FOR_HOST.map(|kind| {
            let pool = Pool::builder(device).backend(backend).kind(kind).hard_limit(64 * MIB);
            pool.build().unwrap()
        })
    };
    host_backends(device).into_iter().flat_map(of).collect()
}

fn fill(address: u64, value: u8, size_bytes: u64, stream: &Stream) {
    let _bound = stream.device().bind().unwrap();
    let driver = stream.device().driver();
    // SAFETY: the owner of the bytes waits for the stream before it frees them.
    unsafe { driver.cuMemsetD8Async(address, value, size_bytes as usize, stream.raw()).unwrap() };
}

/// The ordinal of the device to which all pages of a block were last prefetched, or -1 for the host.
fn last_prefetched_to(block: &Block, device: &Device) -> i32 {
    let attribute = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    let (_bound, mut value) = (device.bind().unwrap(), 99_i32);
    let place = (&raw mut value).cast();
    // SAFETY: the attribute is an `int`, which the local is, and the block has these bytes.
    unsafe {
        let (address, size) = (block.address(), block.size_bytes() as usize);
        device.driver().cuMemRangeGetAttribute(place, 4, attribute, address, size).unwrap();
    }
    value
}

fn host_write(block: &Block, value: u8) {
    // SAFETY: no queued work uses the block.
    unsafe { block.host_ptr().unwrap().write_bytes(value, block.size_bytes() as usize) };
}

fn host_sees(block: &Block, value: u8) -> bool {
    let host = block.host_ptr().unwrap().as_ptr();
    // SAFETY: all work on the block is complete.
    let bytes = unsafe { std::slice::from_raw_parts(host, block.size_bytes() as usize) };
    bytes.iter().all(|byte| *byte == value)
}

/// The byte that the device reads at an address.
fn device_sees(address: u64, stream: &Stream) -> u8 {
    let pool = Pool::builder(stream.device()).backend(BackendKind::None).build().unwrap();
    let copy = pool.alloc(1, stream).unwrap();
    let _bound = stream.device().bind().unwrap();
    let (driver, mut byte) = (stream.device().driver(), 0_u8);
    // SAFETY: both are alive until the stream was synchronised.
    unsafe {
        driver.cuMemcpyAsync(copy.address(), address, 1, stream.raw()).unwrap();
        stream.synchronize().unwrap();
        driver.cuMemcpyDtoH_v2((&raw mut byte).cast(), copy.address(), 1).unwrap();
    }
    byte
}

cases! {
    /// Host and device use a block at one address.
    fn host_and_device_share_a_block(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for pool in pools(&device) {
            for (value, size_bytes) in [(1, 300), (2, MIB), (3, 3 * MIB + 1)] {
                let block = pool.alloc(size_bytes, &stream).unwrap();
                host_write(&block, value);
                assert_eq!(device_sees(block.address() + size_bytes - 1, &stream), value, "{pool:?}");
                fill(block.address(), value + 100, size_bytes, &stream);
                stream.synchronize().unwrap();
                assert!(host_sees(&block, value + 100), "{pool:?}");
            }
            pool.check().unwrap();
        }
    }

    /// While a stream has pending uses of freed memory, the memory is not reused, not even on that stream.
    fn memory_that_queued_work_uses_is_not_reused(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for pool in pools(&device) {
            // With this backend a free waits.
            if pool.backend() == BackendKind::None {
                continue;
            }
            // This warms up the cache, so that the address is known and idle.
            drop(pool.alloc(2 * MIB, &stream).unwrap());
            stream.synchronize().unwrap();
            let bound = device.bind().unwrap();
            // SAFETY: the stream is alive, and its context current.
            let gate = unsafe { StreamGate::close(driver, stream.raw()).unwrap() };
            drop(bound);
            let used = pool.alloc(2 * MIB, &stream).unwrap();
            fill(used.address(), 9, 2 * MIB, &stream);
            drop(used);
            let block = pool.alloc(2 * MIB, &stream).unwrap();
            host_write(&block, 1);
            assert!(gate.open(), "something waited for the stream");
            stream.synchronize().unwrap();
            assert!(host_sees(&block, 1), "{pool:?}");
            drop(block);
            stream.synchronize().unwrap();
            let reserved_bytes = pool.status().unwrap().reserved_bytes;
            drop([(); 2].map(|()| pool.alloc(2 * MIB, &stream).unwrap()));
            assert_eq!(pool.status().unwrap().reserved_bytes, reserved_bytes, "{pool:?}");
        }
    }

    /// Prefetches move pages within bounds, and are accepted only by memory that has pages.
    fn pages_move_and_are_advised_on(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for pool in pools(&device) {
            let block = pool.alloc(4 * MIB, &stream).unwrap();
            host_write(&block, 5);
            if pool.kind() == MemoryKind::Host {
                let refused = block.prefetch(0..MIB, Location::Host, &stream);
                assert!(matches!(refused, Err(PoolError::Unsupported(Unsupported::OnKind { .. }))), "{refused:?}");
                assert!(block.advise(0..MIB, MemoryAdvice::ReadMostly(true)).is_err());
                continue;
            }
            let here = Location::Device(&device);
            block.prefetch(0..4 * MIB, here, &stream).unwrap();
            assert_eq!(device_sees(block.address() + MIB, &stream), 5);
            assert_eq!(last_prefetched_to(&block, &device), device.raw());
            block.prefetch(0..4 * MIB, Location::Host, &stream).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(last_prefetched_to(&block, &device), -1);
            block.prefetch(0..4 * MIB, here, &stream).unwrap();
            for expectation in [
                MemoryAdvice::ReadMostly(true),
                MemoryAdvice::ReadMostly(false),
                MemoryAdvice::PreferredLocation(Some(Location::Host)),
                MemoryAdvice::PreferredLocation(Some(here)),
                MemoryAdvice::PreferredLocation(None),
                MemoryAdvice::AccessedBy(here, true),
                MemoryAdvice::AccessedBy(here, false),
                MemoryAdvice::AccessedBy(Location::Host, true),
                MemoryAdvice::AccessedBy(Location::Host, false),
            ] {
                block.advise(MIB..3 * MIB, expectation).unwrap();
            }
            block.prefetch(MIB..2 * MIB, Location::Host, &stream).unwrap();
            stream.synchronize().unwrap();
            assert!(host_sees(&block, 5));
            for part in [0..4 * MIB + 1, 4 * MIB + 1..4 * MIB + 1, 0..u64::MAX] {
                let refused = block.prefetch(part.clone(), here, &stream);
                assert!(matches!(refused, Err(PoolError::BadArgument(BadArgument::OutOfBounds { size_bytes, .. })) if size_bytes == 4 * MIB));
                assert!(block.advise(part, MemoryAdvice::ReadMostly(true)).is_err());
            }
            block.prefetch(4 * MIB..4 * MIB, here, &stream).unwrap();
        }
    }

    /// A request beyond the margin is refused before a driver call.
    fn unified_memory_leaves_a_margin(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        for backend in host_backends(&device) {
            let pool = Pool::builder(&device).backend(backend).kind(MemoryKind::Unified).build().unwrap();
            let most_bytes = device.total_bytes() - device.total_bytes() / 16;
            for size_bytes in [most_bytes + 1, device.total_bytes()] {
                let Err(PoolError::LimitReached(report)) = pool.alloc(size_bytes, &stream) else {
                    panic!("{size_bytes} bytes should have been refused")
                };
                assert_eq!(report.limit_bytes, Some(most_bytes));
            }
            assert_eq!(pool.status().unwrap().reserved_bytes, 0);
        }
    }

    /// Memory of the program is pinned, the device writes it, and the program uses it again.
    fn a_slice_is_registered(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let mut table = vec![1_u32; 300_000];
        device
            .with_host_memory(&mut table, |shared| {
                assert_eq!(shared.size_bytes(), 1_200_000);
                assert_eq!(device_sees(shared.address(), &stream), 1);
                fill(shared.address(), 2, shared.size_bytes(), &stream);
                // No explicit wait: the end of the closure waits.
            })
            .unwrap();
        assert!(table.iter().all(|value| *value == 0x0202_0202));
        // The memory belongs to the program again, and can be pinned for longer than a call.
        let owned = HostMemory::register(&device, table).unwrap();
        fill(owned.address(), 3, owned.size_bytes(), &stream);
        let table = owned.into_inner().unwrap();
        assert!(table.iter().all(|value| *value == 0x0303_0303));
        assert_eq!(HostMemory::register(&device, Vec::<u8>::new()).unwrap().address(), 0);
        match device.with_host_memory_read_only(&table, |shared| (device_sees(shared.address() + 4, &stream), table[1])) {
            Ok(seen) => assert_eq!(seen, (3, 0x0303_0303)),
            Err(error) => assert!(matches!(error, DeviceError::HostAccess { .. }), "{error}"),
        }
    }

    /// Pageable memory is accepted if the device can access it, and refused with a clear error otherwise.
    fn a_slice_as_it_is(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let mut table = vec![1_u8; 100_000];
        let can = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS).unwrap() != 0;
        let used = |shared: &BorrowedHostMemory<'_, u8>| fill(shared.address(), 3, shared.size_bytes(), &stream);
        match device.with_host_memory_pageable(&mut table, used) {
            Ok(()) => assert!(can && table.iter().all(|value| *value == 3)),
            Err(error) => {
                assert!(!can && matches!(error, DeviceError::HostAccess { .. }), "{error}");
                assert!(error.to_string().contains("HostMemory::register"), "{error}");
            }
        }
    }
}
