//! The pool's public interface, on both drivers and with every backend.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_adapt::array::pool::{BackendKind, Device, Event, Limit, Pool, PoolError, Stream};
use gpumem_tests::cases;
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;

fn backends() -> Vec<BackendKind> {
    let caching = cfg!(feature = "backend-caching").then_some(BackendKind::Caching);
    let native = cfg!(feature = "backend-native").then_some(BackendKind::Native);
    [caching, native, Some(BackendKind::None)].into_iter().flatten().collect()
}

fn fill(pool: &Pool, address: CUdeviceptr, value: u8, size_bytes: u64, stream: &Stream) {
    let _bound = pool.device().bind().unwrap();
    // SAFETY: the block that the address belongs to is alive and that large.
    unsafe {
        pool.device().driver().cuMemsetD8Async(address, value, size_bytes as usize, stream.raw()).unwrap();
    }
}

fn read(pool: &Pool, address: CUdeviceptr, size_bytes: u64, stream: &Stream) -> Vec<u8> {
    let _bound = pool.device().bind().unwrap();
    let mut bytes = vec![0; size_bytes as usize];
    let driver = pool.device().driver();
    // SAFETY: `bytes` has room, and lives until the stream is synchronised.
    unsafe {
        driver.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), stream.raw()).unwrap();
    }
    stream.synchronize().unwrap();
    bytes
}

cases! {
    /// Blocks do not overlap, keep their contents, and return to the pool when dropped.
    fn blocks_hold_their_bytes(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let sizes = [1, 255, 256, 4096, MIB + 1, 3 * MIB];
            let blocks: Vec<_> = sizes.iter().map(|&size| pool.alloc(size, &stream).unwrap()).collect();
            for (value, block) in blocks.iter().enumerate() {
                assert_eq!(block.address() % 256, 0);
                fill(&pool, block.address(), value as u8, block.size_bytes(), &stream);
            }
            for (value, block) in blocks.iter().enumerate() {
                let bytes = read(&pool, block.address(), block.size_bytes(), &stream);
                assert!(bytes.iter().all(|&byte| byte == value as u8), "{backend}");
            }
            assert_eq!(pool.status().unwrap().in_use_bytes, sizes.iter().sum::<u64>());
            drop(blocks);
            stream.synchronize().unwrap();
            assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        }
    }

    /// A block used on a second stream is not reused before that use is complete.
    fn recorded_uses_delay_reuse(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let size = 64 * MIB;
            for round in 0..20u8 {
                let source = pool.alloc(size, &home).unwrap();
                let target = pool.alloc(size, &other).unwrap();
                fill(&pool, source.address(), round, size, &home);
                other.wait_for(&home).unwrap();
                let copied = {
                    let _bound = device.bind().unwrap();
                    // SAFETY: both blocks are alive; the source's use on `other` is recorded below.
                    unsafe {
                        driver.cuMemcpyDtoDAsync_v2(
                            target.address(), source.address(), size as usize, other.raw())
                    }
                };
                copied.unwrap();
                source.record_use(&other);
                drop(source);
                // This probably reuses the same bytes: writing them must wait for the copy above.
                let next = pool.alloc(size, &home).unwrap();
                fill(&pool, next.address(), 0xEE, size, &home);
                assert_eq!(read(&pool, target.address() + size - 16, 16, &other), [round; 16], "{backend}");
            }
        }
    }

    /// Threads with a stream each, and blocks dropped on other threads.
    fn many_threads(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let (send, receive) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let (pool, device, send) = (&pool, &device, send.clone());
                    scope.spawn(move || {
                        let stream = Stream::new(device).unwrap();
                        for i in 0..50 {
                            let block = pool.alloc((thread + 1) * 1000 * (i + 1), &stream).unwrap();
                            fill(pool, block.address(), i as u8, block.size_bytes(), &stream);
                            send.send(block).unwrap();
                        }
                    });
                }
                drop(send);
                scope.spawn(move || receive.into_iter().for_each(drop));
            });
            device.synchronize().unwrap();
            let status = pool.status().unwrap();
            assert_eq!((status.in_use_bytes, status.allocation_count), (0, 200), "{backend}");
        }
    }

    /// A request beyond the hard limit is refused with its error, and the next request that fits is served.
    fn hard_limit(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let limit = Limit::Bytes(128 * MIB);
            let pool = Pool::builder(&device).backend(backend).hard_limit(limit).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let held = pool.alloc(100 * MIB, &stream).unwrap();
            let error = pool.alloc(64 * MIB, &stream).unwrap_err();
            assert!(matches!(error, PoolError::LimitReached { .. }), "{backend}: {error}");
            let small = pool.alloc(16 * MIB, &stream).unwrap();
            drop((held, small));
            // The block that was just dropped must not prevent the request.
            let whole = pool.alloc(120 * MIB, &stream).unwrap();
            assert!(pool.status().unwrap().reserved_bytes >= whole.size_bytes());
        }
    }

    /// Reclaiming releases cached memory to the device.
    fn reclaim(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            drop(pool.alloc(64 * MIB, &stream).unwrap());
            stream.synchronize().unwrap();
            let cached = pool.status().unwrap().reserved_bytes;
            assert_eq!(pool.reclaim().unwrap(), cached, "{backend}");
            let status = pool.status().unwrap();
            assert_eq!((status.in_use_bytes, status.reserved_bytes), (0, 0), "{backend}");
        }
    }

    /// Entry points work on a thread without a context and leave it without one.
    fn contexts_are_left_as_found(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let event = Event::new(&device).unwrap();
                    let block = pool.alloc(MIB, &stream).unwrap();
                    event.record(&stream).unwrap();
                    event.synchronize().unwrap();
                    let printed = pool.status().unwrap().to_string();
                    assert!(printed.contains("Effective GPU memory usage"), "{printed}");
                    drop(block);
                    drop(event);
                    let mut current = device.context();
                    // SAFETY: the out-pointer lives through the call.
                    unsafe { driver.cuCtxGetCurrent(&mut current).unwrap() };
                    assert_eq!(current, null_mut());
                });
            });
        }
    }

    /// Everything may be dropped in any order.
    fn any_drop_order(driver: &Driver) {
        for backend in backends() {
            let device = Device::new(driver, 0).unwrap();
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let block = pool.alloc(MIB, &stream).unwrap();
            fill(&pool, block.address(), 1, MIB, &stream);
            drop(device);
            drop(stream);
            drop(pool);
            drop(block);
        }
    }

    /// A full device is an error with figures, and freed memory can be allocated again.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn full_device(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let chunk = device.total_bytes() / 16;
            let mut held = Vec::new();
            let error = loop {
                match pool.alloc(chunk, &stream) {
                    Ok(block) => held.push(block),
                    Err(error) => break error,
                }
                assert!(held.len() <= 16);
            };
            let text = error.to_string();
            assert!(matches!(error, PoolError::OutOfMemory { .. }), "{backend}: {text}");
            assert!(held.len() >= 10, "{backend}: only {} of 16 blocks fitted", held.len());
            held.pop();
            // The free above is still queued; this allocation must not need an explicit reclaim.
            held.push(pool.alloc(chunk, &stream).unwrap());
            drop(held);
            pool.reclaim().unwrap();
            let too_large = pool.alloc(device.total_bytes() + 1, &stream).unwrap_err();
            assert!(matches!(too_large, PoolError::TooLarge { .. }), "{too_large}");
        }
    }

    /// A block of zero bytes is valid and has no memory.
    fn zero_bytes(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends() {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let block = pool.alloc(0, &stream).unwrap();
            assert_eq!((block.address(), block.size_bytes()), (0, 0));
            block.record_use(&stream);
        }
    }
}
