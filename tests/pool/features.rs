//! Features of a pool beyond blocks: alignment, blocks that grow, other devices, quotas. On both drivers and with every backend.
//! On a machine with one GPU, the case with two devices is skipped.

use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::two_devices::{self, Link};
use gpumem_tests::pool::{Block, Device, Pool, PoolError, Stream, Unsupported};
use gpumem_tests::sys::Driver;

const MIB: u64 = 1 << 20;

/// Queues a write on `stream`, and returns the driver's result.
fn write(address: u64, value: u8, size_bytes: u64, stream: &Stream) -> bool {
    let _bound = stream.device().bind().unwrap();
    let driver = stream.device().driver();
    // SAFETY: the owner of the bytes waits for the stream before it frees them.
    unsafe { driver.cuMemsetD8Async(address, value, size_bytes as usize, stream.raw()).is_ok() }
}

fn byte(address: u64, stream: &Stream) -> u8 {
    stream.synchronize().unwrap();
    let _bound = stream.device().bind().unwrap();
    let mut byte = 0_u8;
    // SAFETY: a local outlives the call, which returns after the byte was copied.
    unsafe { stream.device().driver().cuMemcpyDtoH_v2((&raw mut byte).cast(), address, 1).unwrap() };
    byte
}

/// The devices of [`two_devices::two_devices`].
fn two_devices(driver: &Driver) -> Option<[Device; 2]> {
    let driver = two_devices::two_devices(driver, Link::Direct)?;
    Some([0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap()))
}

cases! {
    /// A peer writes into blocks allocated before and after it got access.
    fn peers_write_into_blocks(driver: &Driver) {
        let Some([device, peer]) = two_devices(driver) else { return };
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&peer).unwrap());
            let before = pool.alloc(4 * MIB, &home).unwrap();
            pool.enable_peer_access(&peer).unwrap();
            let after = pool.alloc(80 * MIB, &home).unwrap();
            for (block, value) in [(&before, 3), (&after, 4)] {
                other.wait_for(&home).unwrap();
                assert!(write(block.address(), value, block.size_bytes(), &other), "{backend}");
                block.record_use(&other);
                other.synchronize().unwrap();
                assert_eq!(byte(block.address() + block.size_bytes() - 1, &home), value, "{backend}");
            }
        }
    }

    /// Blocks have the requested alignment, and convert to raw blocks and back.
    fn places_and_plain_data(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            for exponent in [8, 9, 12, 16, 21, 23] {
                let block = pool.alloc_aligned(1000, 1 << exponent, &stream).unwrap();
                assert_eq!(block.address() % (1 << exponent), 0, "{backend}");
                assert!(write(block.address(), exponent, 1000, &stream));
                let raw = block.into_raw();
                // SAFETY: the raw block comes from `into_raw`, and is converted once.
                let block = unsafe { Block::from_raw(raw) };
                assert_eq!(byte(block.address() + 999, &stream), exponent, "{backend}");
            }
        }
    }

    /// A block grows in place, shrinks, and grows again; a backend without growable blocks returns its error.
    fn growing_in_place(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let stream = Stream::new(&device).unwrap();
            let mut block = match pool.growable(256 * MIB, &stream) {
                Err(PoolError::Unsupported(Unsupported::OnBackend { .. })) => continue,
                made => made.unwrap(),
            };
            for (value, size_bytes) in [(1, 5 * MIB), (2, 200 * MIB), (3, 201 * MIB)] {
                let start = block.size_bytes();
                block.grow_to(size_bytes).unwrap();
                assert!(write(block.address() + start, value, size_bytes - start, &stream));
            }
            let held = [0, 5 * MIB, 200 * MIB].map(|at| byte(block.address() + at, &stream));
            assert_eq!(held, [1, 2, 3]);
            block.shrink_to(8 * MIB).unwrap();
            pool.reclaim().unwrap();
            assert!(pool.status().unwrap().reserved_bytes <= 24 * MIB);
            block.grow_to(100 * MIB).unwrap();
            assert!(write(block.address() + 8 * MIB, 4, 92 * MIB, &stream));
            assert_eq!([0, 8 * MIB].map(|at| byte(block.address() + at, &stream)), [1, 4]);
        }
    }

    /// Memory for other processes, and memory at a fixed address.
    fn memory_for_others(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let stream = Stream::new(&device).unwrap();
            for builder in [Pool::builder(&device).conf("exportable:true").unwrap(), Pool::builder(&device).conf("rdma:true").unwrap()] {
                let pool = match builder.backend(backend).build() {
                    Err(PoolError::Unsupported(Unsupported::OnBackend { .. } | Unsupported::Backend { .. })) => continue,
                    built => built.unwrap(),
                };
                let block = pool.alloc(3 * MIB, &stream).unwrap();
                block.pin_backing().unwrap();
                assert!(write(block.address(), 6, 3 * MIB, &stream));
                assert_eq!(byte(block.address(), &stream), 6, "{backend}");
            }
        }
    }
}
