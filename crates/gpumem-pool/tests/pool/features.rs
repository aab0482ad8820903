//! Aligned blocks, raw blocks, and pinned physical memory.

use crate::fixture::{on_device_memory, on_each_backend, on_each_backend_with, small, stand_in};
use gpumem_pool::sys::types::CUmemAllocationHandleType;
use gpumem_pool::{BackendKind, BadArgument, Block, PoolError, Unsupported};
use gpumem_sim::SimConfig;
use std::os::fd::FromRawFd;
use std::sync::atomic::Ordering;

#[test]
fn a_block_has_the_requested_alignment() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut blocks: Vec<(Block, u8)> = Vec::new();
        for (index, exponent) in (0..=24).chain([8, 21, 12]).enumerate() {
            let (alignment, size_bytes) = (1_u64 << exponent, 1 + 777 * index as u64);
            let block = pool.alloc_aligned(size_bytes, alignment, &stream).unwrap();
            assert_eq!((block.address() % alignment, block.size_bytes()), (0, size_bytes));
            fixture.fill(&block, index as u8 + 1, &stream);
            blocks.push((block, index as u8 + 1));
        }
        let large = pool.alloc_aligned(3 << 20, 4 << 20, &stream).unwrap();
        assert_eq!(large.address() % (4 << 20), 0);
        for (block, value) in &blocks {
            assert!(fixture.holds(block, *value, &stream), "{block:?}");
        }
        let asked_bytes = blocks.iter().map(|(block, _)| block.size_bytes()).sum::<u64>() + (3 << 20);
        assert!(pool.status().unwrap().in_use_bytes >= asked_bytes);
        pool.check().unwrap();
        drop((blocks, large));
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.block_count), (0, 0));
        pool.check().unwrap();
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
    });
}

#[test]
fn an_invalid_alignment_has_its_own_error() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        for alignment in [0, 3, 100, 257, (1 << 30) + 1, 1 << 31, 1 << 63, u64::MAX] {
            for size_bytes in [0, 1, 1 << 21, u64::MAX] {
                let error = pool.alloc_aligned(size_bytes, alignment, &stream).unwrap_err();
                assert!(
                    matches!(error, PoolError::BadArgument(BadArgument::Alignment { alignment: asked, .. }) if asked == alignment)
                );
            }
        }
        for size_bytes in [(1 << 30) + 1, 1 << 63, u64::MAX] {
            let error = pool.alloc_aligned(size_bytes, 4096, &stream).unwrap_err();
            assert!(matches!(error, PoolError::TooLarge { .. }), "{error:?}");
        }
        let empty = pool.alloc_aligned(0, 1 << 20, &stream).unwrap();
        assert_eq!((empty.address(), empty.size_bytes()), (0, 0));
        assert_eq!(pool.status().unwrap().allocation_count, 0);
    });
}

#[test]
fn aligned_blocks_count_against_the_limit() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(8 << 20).build().unwrap();
        let stream = fixture.stream();
        let mut blocks = Vec::new();
        let error = loop {
            match pool.alloc_aligned(300 << 10, 512 << 10, &stream) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(&error, PoolError::LimitReached(report) if report.limit_bytes == Some(8 << 20)),
            "{error}"
        );
        assert!(blocks.len() >= 8, "{}", blocks.len());
        assert!(pool.status().unwrap().in_use_bytes <= 8 << 20);
        blocks.pop();
        blocks.push(pool.alloc_aligned(300 << 10, 512 << 10, &stream).unwrap());
    });
}

#[test]
fn a_block_as_plain_data_is_alive_and_keeps_its_pool() {
    on_each_backend(&small(), |fixture| {
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let sizes = [0, 1, 4096, 3 << 20];
        let raw: Vec<_> = sizes
            .map(|size_bytes| {
                let block = pool.alloc(size_bytes, &home).unwrap();
                other.wait_for(&home).unwrap();
                block.record_use(&other);
                (block.address(), block.stream_id(), block.into_raw())
            })
            .into();
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.block_count), (sizes.iter().sum(), 3));
        drop(pool);
        let carried = std::thread::spawn(move || {
            // SAFETY: each raw block comes from `into_raw`, and is converted once.
            raw.into_iter()
                .map(|(address, home, raw)| (address, home, unsafe { Block::from_raw(raw) }))
                .collect()
        });
        let carried: Vec<(u64, _, Block)> = carried.join().unwrap();
        for ((address, stream_id, block), size_bytes) in carried.iter().zip(sizes) {
            assert_eq!(
                (block.address(), block.size_bytes(), block.stream_id()),
                (*address, size_bytes, *stream_id)
            );
            fixture.fill(block, 7, &other);
            assert!(fixture.holds(block, 7, &other));
        }
        drop(carried);
        drop((home, other));
    });
}

#[test]
fn pinned_memory_is_neither_moved_nor_remapped() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(256 << 20).build().unwrap();
        let stream = fixture.stream();
        let pinned = pool.alloc(3 << 20, &stream).unwrap();
        match pinned.pin_backing() {
            Err(PoolError::Unsupported(Unsupported::OnBackend { backend, .. })) => {
                return assert_eq!(backend, BackendKind::Native);
            }
            other => other.unwrap(),
        }
        fixture.fill(&pinned, 5, &stream);
        pool.alloc(0, &stream).unwrap().pin_backing().unwrap();
        pool.alloc(100, &stream).unwrap().pin_backing().unwrap();
        let mut rng = fixture.seed.wrapping_mul(2).wrapping_add(1);
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..200 {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let size_bytes = 1 + (rng >> 33) % (40 << 20);
            match pool.alloc(size_bytes, &stream) {
                Ok(block) => blocks.push(block),
                Err(_) => drop(blocks.split_off(blocks.len() / 2)),
            }
            if blocks.len() > 6 {
                drop(blocks.swap_remove((rng >> 20) as usize % blocks.len()));
            }
            pool.check().unwrap();
        }
        drop(blocks);
        assert!(fixture.holds(&pinned, 5, &stream));
        drop(pinned);
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0, "what is pinned goes back once nobody holds it");
        pool.check().unwrap();
    });
}

#[test]
fn a_pinned_handle_is_mapped_once() {
    // The pool's memory fills the device. A limit would make the handles too small for others to fit beside these.
    on_each_backend_with(&SimConfig::new().memory_bytes(72 << 20), map::install, |fixture| {
        if !fixture.maps() {
            return;
        }
        for is_pinned in [false, true] {
            let pool = fixture.builder().build().unwrap();
            let stream = fixture.stream();
            pool.reserve(64 << 20).unwrap();
            let [first, second, third, last] = [(); 4].map(|()| pool.alloc(16 << 20, &stream).unwrap());
            if is_pinned {
                second.pin_backing().unwrap();
                third.pin_backing().unwrap();
            }
            drop((first, last));
            let before = map::CALLS.load(Ordering::SeqCst);
            // The end of the memory and its start, adjacent.
            let joined = pool.alloc(30 << 20, &stream);
            let maps = map::CALLS.load(Ordering::SeqCst) - before;
            assert_eq!((joined.is_err(), maps == 0), (is_pinned, is_pinned), "{joined:?}, {maps} maps");
            drop(joined);
            drop([(); 2].map(|()| pool.alloc(16 << 20, &stream).unwrap()));
            pool.check().unwrap();
        }
    });
}

#[test]
fn exportable_memory_needs_an_exportable_pool() {
    on_device_memory(&small(), |fixture| {
        let stream = fixture.stream();
        match fixture.builder().conf("exportable:true").unwrap().build() {
            Ok(pool) => {
                assert_eq!(fixture.backend, BackendKind::Caching);
                let block = pool.alloc(4096, &stream).unwrap();
                fixture.fill(&block, 3, &stream);
                assert!(fixture.holds(&block, 3, &stream));
                block.pin_backing().unwrap();
                let (mut handle, mut descriptor) = (0, -1_i32);
                let _bound = fixture.device.bind().unwrap();
                // SAFETY: locals outlive the calls; the block is alive, and the handle is released once.
                unsafe {
                    let address = block.address() as *mut std::ffi::c_void;
                    fixture.driver.cuMemRetainAllocationHandle(&mut handle, address).unwrap();
                    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                    let place = (&raw mut descriptor).cast();
                    fixture.driver.cuMemExportToShareableHandle(place, handle, kind, 0).unwrap();
                    fixture.driver.cuMemRelease(handle).unwrap();
                    drop(std::os::fd::OwnedFd::from_raw_fd(descriptor));
                }
            }
            Err(PoolError::Config(contradiction)) => {
                let said = contradiction.to_string();
                assert!(fixture.plain_segments && said.contains("contradicts expandable_segments"), "{said}");
            }
            Err(error) => {
                assert_ne!(fixture.backend, BackendKind::Caching);
                assert!(matches!(error, PoolError::Unsupported(Unsupported::OnBackend { .. })), "{error}");
            }
        }
        match (fixture.backend, fixture.builder().conf("rdma:true").unwrap().build()) {
            (BackendKind::Native, result) => {
                assert!(matches!(result, Err(PoolError::Unsupported(Unsupported::OnBackend { .. }))))
            }
            (BackendKind::None, result) => drop(result.unwrap()),
            // The value that the device reports.
            (_, result) => {
                assert!(matches!(result, Ok(_) | Err(PoolError::Unsupported(Unsupported::Backend { .. }))))
            }
        }
    });
}

stand_in!(map, cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64));
