//! Capacity, contents, and incorrect use of memory.

use super::*;

/// The page cache counts as used, and gives way to an allocation.
#[test]
fn an_integrated_device_reports_the_page_cache_as_used() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20).integrated(48 << 20));
    let free = || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: host memory outlives the call.
        unsafe { gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
        (free, gpu.extension().unwrap().available_bytes(0))
    };
    assert_eq!(free(), (16 << 20, Some(64 << 20)));
    let block = gpu.alloc(40 << 20);
    assert_eq!(free(), (0, Some(24 << 20)));
    assert_eq!(code(gpu.try_alloc(25 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    // SAFETY: the block is not used again.
    unsafe { gpu.cuMemFree_v2(block).unwrap() };
    assert_eq!(gpu.extension().unwrap().available_bytes(1), None);
}

#[test]
fn capacity_is_counted_and_given_back() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    // SAFETY: addresses are checked by the driver; host memory outlives the calls.
    let free = || unsafe {
        let (mut free, mut total) = (0, 0);
        gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap();
        assert_eq!(total, 64 << 20);
        free
    };
    let blocks: Vec<u64> = (0..16).map(|_| gpu.alloc(4 << 20)).collect();
    assert_eq!(free(), 0);
    assert_eq!(code(gpu.try_alloc(1)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    for block in blocks {
        // SAFETY: addresses are checked by the driver; host memory outlives the calls.
        unsafe { gpu.cuMemFree_v2(block).unwrap() };
    }
    assert_eq!(free(), 64 << 20);
    // Small blocks share a chunk.
    let small: Vec<u64> = (0..100).map(|_| gpu.alloc(512)).collect();
    assert_eq!(free(), 62 << 20);
    assert!(small.iter().all(|address| address % 512 == 0));
    for block in small {
        // SAFETY: addresses are checked by the driver; host memory outlives the calls.
        unsafe { gpu.cuMemFree_v2(block).unwrap() };
    }
    assert_eq!(free(), 64 << 20);
}

#[test]
#[cfg(unix)]
fn a_large_device_costs_what_is_touched() {
    let gpu = machine(SimConfig::new().memory_bytes(141 << 30));
    let stream = gpu.stream();
    let (plain, pooled) = (gpu.alloc(100 << 30), gpu.alloc_on(stream, 40 << 30));
    for address in [plain, plain + (50 << 30), plain + (100 << 30) - 1, pooled + (40 << 30) - 1] {
        gpu.fill(stream, address, 1, 1);
        assert_eq!(gpu.download(stream, address, 1), [1]);
    }
    assert_eq!(code(gpu.try_alloc(2 << 30)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}

#[test]
fn device_addresses_are_no_host_addresses() {
    let gpu = machine(SimConfig::new().devices(2));
    let address = gpu.alloc(1);
    // Addresses outside of both halves of a 48- or 57-bit address space, even if the top byte is ignored.
    assert!(address >> 56 != 0 && address >> 56 != 0xFF && address >> 55 & 1 == 1);
    assert_ne!(address, seeded(0).alloc(1));
}

#[test]
fn bytes_through_every_direction() {
    let gpu = seeded(3);
    let stream = gpu.stream();
    let bytes: Vec<u8> = (0..=255).collect();
    let (a, b) = (gpu.alloc(256), gpu.alloc_on(stream, 256));
    let pinned = gpu.pinned(256);
    // SAFETY: addresses are checked by the driver; host memory outlives the calls.
    unsafe {
        gpu.cuMemcpyHtoD_v2(a, bytes.as_ptr().cast(), 256).unwrap();
        gpu.copy(stream, b, a, 256);
        gpu.download_to(stream, pinned, b);
        gpu.sync(stream);
        assert_eq!(bytes_of(pinned), bytes);
        write(pinned, &bytes.iter().rev().copied().collect::<Vec<u8>>());
        gpu.cuMemcpyAsync(a, pinned.as_ptr() as u64, 256, stream).unwrap();
        gpu.sync(stream);
        let mut back = vec![0; 256];
        gpu.cuMemcpy(back.as_mut_ptr() as u64, a, 256).unwrap();
        assert_eq!(back, bytes_of(pinned));
        // From host to host, too.
        gpu.cuMemcpy(back.as_mut_ptr() as u64, bytes.as_ptr() as u64, 256).unwrap();
        assert_eq!(back, bytes);
    }
}

#[test]
fn memsets_of_each_width() {
    let gpu = seeded(4);
    let (stream, memory) = (gpu.stream(), gpu.alloc(16));
    // SAFETY: addresses are checked by the driver; host memory outlives the calls.
    unsafe {
        gpu.cuMemsetD32Async(memory, 0x0102_0304, 4, stream).unwrap();
        gpu.cuMemsetD16Async(memory + 4, 0x0A0B, 2, stream).unwrap();
        gpu.cuMemsetD8Async(memory + 15, 0xFF, 1, stream).unwrap();
        let bytes = gpu.download(stream, memory, 16);
        assert_eq!(bytes, [4, 3, 2, 1, 11, 10, 11, 10, 4, 3, 2, 1, 4, 3, 2, 255]);
        let misaligned = code(gpu.cuMemsetD32Async(memory + 2, 0, 1, stream));
        assert_eq!(misaligned, CUresult::CUDA_ERROR_INVALID_VALUE);
        gpu.cuMemsetD2D8Async(memory, 4, 9, 2, 4, stream).unwrap();
        assert_eq!(gpu.download(stream, memory, 8), [9, 9, 2, 1, 9, 9, 11, 10]);
    }
}

#[test]
fn rows_with_pitches() {
    let gpu = seeded(5);
    let stream = gpu.stream();
    let rows: Vec<u8> = (0..12).collect();
    let device = gpu.alloc(64);
    // SAFETY: addresses are checked by the driver; host memory outlives the calls.
    unsafe {
        gpu.cuMemsetD8Async(device, 0xEE, 64, stream).unwrap();
        // Columns 1 and 2 of a table of 3 by 4, copied to rows of 8 bytes.
        let up = CUDA_MEMCPY2D {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: rows.as_ptr().cast(),
            srcPitch: 4,
            srcXInBytes: 1,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstDevice: device,
            dstPitch: 8,
            dstY: 1,
            WidthInBytes: 2,
            Height: 3,
            ..Default::default()
        };
        gpu.cuMemcpy2DAsync_v2(&up, stream).unwrap();
        let bytes = gpu.download(stream, device, 32);
        let pick = |row: usize| [bytes[8 * row], bytes[8 * row + 1], bytes[8 * row + 2]];
        assert_eq!(
            [pick(0), pick(1), pick(2), pick(3)],
            [[0xEE; 3], [1, 2, 0xEE], [5, 6, 0xEE], [9, 10, 0xEE]]
        );
        let too_narrow = CUDA_MEMCPY2D { srcPitch: 2, ..up };
        assert_eq!(code(gpu.cuMemcpy2DAsync_v2(&too_narrow, stream)), CUresult::CUDA_ERROR_INVALID_VALUE);
        let too_far = CUDA_MEMCPY2D { dstY: 7, ..up };
        assert_eq!(code(gpu.cuMemcpy2DAsync_v2(&too_far, stream)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn peers_copy_with_and_without_access() {
    let gpu = machine(SimConfig::new().devices(2));
    let other = primary(&gpu, 1);
    let (here, stream) = (gpu.alloc(4), gpu.stream());
    // SAFETY: addresses are checked by the driver; host memory outlives the calls.
    unsafe {
        gpu.cuCtxSetCurrent(other).unwrap();
        let there = gpu.alloc(4);
        gpu.cuCtxSetCurrent(gpu.context).unwrap();
        gpu.fill(stream, here, 6, 4);
        gpu.cuMemcpyPeerAsync(there, other, here, gpu.context, 4, stream).unwrap();
        assert_eq!(gpu.download(stream, there, 4), [6; 4]);
        gpu.cuCtxEnablePeerAccess(other, 0).unwrap();
        gpu.copy(stream, here, there, 4);
        gpu.sync(stream);
    }
}

#[test]
fn ranges_that_leave_their_allocation_are_refused_at_the_call() {
    let gpu = seeded(6);
    let (stream, memory) = (gpu.stream(), gpu.alloc(100));
    // SAFETY: addresses are checked by the driver; host memory outlives the calls.
    unsafe {
        let past_the_end = code(gpu.cuMemsetD8Async(memory, 0, 101, stream));
        assert_eq!(past_the_end, CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code(gpu.try_download(stream, memory + 50, 51)), CUresult::CUDA_ERROR_INVALID_VALUE);
        gpu.cuMemFree_v2(memory).unwrap();
        assert_eq!(code(gpu.try_download(stream, memory, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    gpu.sync(stream);
}

/// Work that is not ordered before the free of its memory.
fn use_and_free_on_two_streams(seed: u64) -> (CUresult, Vec<String>) {
    let gpu = seeded(seed);
    let (user, owner) = (gpu.stream(), gpu.stream());
    let memory = gpu.alloc_on(owner, 100);
    gpu.sync(owner);
    gpu.fill(user, memory, 1, 100);
    gpu.free_on(owner, memory);
    gpu.try_sync(owner).ok();
    let end = code(gpu.try_sync(user));
    if end != CUresult::CUDA_SUCCESS {
        // The error is permanent until the context is destroyed.
        assert_eq!(code(gpu.try_alloc(1)), end);
        // SAFETY: addresses are checked by the driver; host memory outlives the calls.
        // SAFETY: the context is retained again.
        unsafe {
            gpu.cuDevicePrimaryCtxReset_v2(0).unwrap();
            gpu.cuCtxSetCurrent(primary(&gpu, 0)).unwrap();
        }
        gpu.alloc(1);
    }
    (end, gpu.sim().report().faults)
}

#[test]
fn use_after_an_unordered_free_is_found_for_some_seed_and_named() {
    let runs: Vec<_> = (0..200).map(use_and_free_on_two_streams).collect();
    let lost: Vec<_> = runs.iter().filter(|(end, _)| *end != CUresult::CUDA_SUCCESS).collect();
    assert!(!lost.is_empty() && lost.len() < runs.len(), "{} of {}", lost.len(), runs.len());
    for (end, faults) in lost {
        assert_eq!(*end, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(faults[0].contains("100 bytes at 0x") && faults[0].contains("freed"), "{faults:?}");
    }
}

#[test]
fn use_before_an_unordered_allocation_is_found_for_some_seed_and_named() {
    let faults: Vec<String> = (0..200)
        .flat_map(|seed| {
            let gpu = seeded(seed);
            let (owner, user) = (gpu.stream(), gpu.stream());
            let memory = gpu.alloc_on(owner, 100);
            gpu.fill(user, memory, 1, 100);
            gpu.try_sync(user).ok();
            gpu.sim().report().faults
        })
        .collect();
    assert!(!faults.is_empty() && faults.len() < 200);
    assert!(faults.iter().all(|fault| fault.contains("nothing orders before this use")), "{faults:?}");
}

#[test]
fn a_block_may_be_taken_again_while_its_old_work_is_queued() {
    for seed in 0..300 {
        let gpu = seeded(seed);
        let stream = gpu.stream();
        let out = gpu.alloc(2);
        // The last use of the large block is queued before the small block that reuses its memory.
        let large = gpu.alloc_on(stream, 1 << 20);
        gpu.fill(stream, large, 1, 1 << 20);
        gpu.copy(stream, out, large + (1 << 20) - 1, 1);
        gpu.free_on(stream, large);
        let small = gpu.alloc_on(stream, 512);
        assert_eq!(small, large);
        gpu.fill(stream, small, 2, 512);
        gpu.copy(stream, out + 1, small, 1);
        gpu.free_on(stream, small);
        assert_eq!(gpu.download(stream, out, 2), [1, 2], "seed {seed}");
    }
}

/// Under some seed the free runs first. The block is freed either way, and its late allocation has no effect.
#[test]
fn a_free_before_an_unordered_allocation_is_found_for_some_seed_and_named() {
    let faults = (0..100).filter_map(|seed| {
        let gpu = machine(SimConfig::new().seed(seed).memory_bytes(64 << 20));
        let (home, other) = (gpu.stream(), gpu.stream());
        let early = gpu.alloc_on(home, 40 << 20);
        gpu.fill(home, early, 1, 100);
        gpu.free_on(other, early);
        // The same memory allocated again, and returned to the device while the first allocation may still be queued.
        if let Ok(again) = gpu.try_alloc_on(other, 40 << 20) {
            // SAFETY: addresses are checked by the driver under test.
            let _ = unsafe { gpu.cuMemFreeAsync(again, other) };
        }
        let (_, _) = (gpu.try_sync(other), gpu.try_sync(home));
        // SAFETY: the context is retained again.
        unsafe {
            gpu.cuDevicePrimaryCtxReset_v2(0).unwrap();
            gpu.cuCtxSetCurrent(primary(&gpu, 0)).unwrap();
        }
        gpu.alloc(64 << 20);
        gpu.sim().report().faults.pop()
    });
    let faults: Vec<String> = faults.collect();
    assert!(
        faults
            .iter()
            .any(|fault| fault.contains("nothing orders its allocation on its stream before this free")),
        "{faults:?}"
    );
}

#[test]
fn rows_and_ranges_that_no_address_can_hold_are_refused_at_the_call() {
    let gpu = seeded(1);
    let address = gpu.alloc(4096);
    let mut host = vec![0_u8; 4096];
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let to_host = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: address,
        srcPitch: 16,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: host.as_mut_ptr().cast(),
        dstPitch: 16,
        WidthInBytes: 1,
        Height: 2,
        ..Default::default()
    };
    // SAFETY: copies that do not fit are refused before any access; the one that fits is within `host`.
    unsafe {
        for pitch in [usize::MAX, usize::MAX - 1, isize::MAX as usize] {
            let copy = CUDA_MEMCPY2D { dstPitch: pitch, ..to_host };
            assert_eq!(code(gpu.cuMemcpy2D_v2(&copy)), invalid, "{pitch:#x}");
        }
        let null_host = CUDA_MEMCPY2D { dstHost: null_mut(), dstXInBytes: 8, ..to_host };
        let null_device = CUDA_MEMCPY2D { srcDevice: 0, srcXInBytes: 8, ..to_host };
        let no_device = CUDA_MEMCPY2D { srcDevice: host.as_ptr() as u64, ..to_host };
        for copy in [null_host, null_device, no_device] {
            assert_eq!(code(gpu.cuMemcpy2D_v2(&copy)), invalid);
        }
        gpu.cuMemcpy2D_v2(&to_host).unwrap();
        let pageable = host.as_mut_ptr();
        assert_eq!(code(gpu.cuMemcpy(pageable as u64, pageable as u64, usize::MAX)), invalid);
        let up_to_the_end = usize::MAX - pageable as usize;
        assert_eq!(code(gpu.cuMemHostRegister_v2(pageable.cast(), up_to_the_end, 0)), invalid);
        gpu.cuCtxSynchronize().unwrap();
    }
}
