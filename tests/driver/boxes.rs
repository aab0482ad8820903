//! Copies of boxes, and of several ranges at once. Each case holds on the simulator and on a GPU.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The host's box has rows of 5 bytes, 4 rows a slice, 3 slices. The device's has rows of 16 bytes, 6 rows a slice.
const HOST: [usize; 3] = [5, 4, 3];
const DEVICE: [usize; 3] = [16, 6, 4];

cases! {
    /// A part of the host's box is copied into a part of the device's and back.
    fn boxes(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let device_bytes = DEVICE.iter().product();
        let address = raw.alloc(device_bytes).unwrap();
        let source: Vec<u8> = (0..60).collect();
        let up = CUDA_MEMCPY3D {
            srcXInBytes: 1,
            srcY: 2,
            srcZ: 1,
            dstXInBytes: 3,
            dstY: 1,
            dstZ: 2,
            ..host_to_device(source.as_ptr(), address, [3, 2, 2])
        };
        // SAFETY: the ranges are live and cover the copy; the calls return when the access of the host is complete.
        unsafe {
            driver.cuMemsetD8_v2(address, 99, device_bytes).unwrap();
            driver.cuMemcpy3D_v2(&up).unwrap();
        }
        let found = raw.read(address, device_bytes).unwrap();
        for (index, &byte) in found.iter().enumerate() {
            let [x, y, z] = [index % 16, index / 16 % 6, index / 96];
            let is_inside = (3..6).contains(&x) && (1..3).contains(&y) && (2..4).contains(&z);
            let expected = if is_inside { (x - 3 + 1) + (y - 1 + 2) * 5 + (z - 2 + 1) * 20 } else { 99 };
            assert_eq!(usize::from(byte), expected, "{x} {y} {z}");
        }
        let mut back = [0_u8; 60];
        let stream = raw.stream().unwrap();
        let down = CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: address,
            srcPitch: DEVICE[0],
            srcHeight: DEVICE[1],
            srcXInBytes: 3,
            srcY: 1,
            srcZ: 2,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: back.as_mut_ptr().cast(),
            dstPitch: HOST[0],
            dstHeight: HOST[1],
            WidthInBytes: 3,
            Height: 2,
            Depth: 2,
            ..Default::default()
        };
        // SAFETY: the ranges are live and cover the copy until the wait for the stream; both are destroyed once, after it.
        unsafe {
            driver.cuMemcpy3DAsync_v2(&down, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuMemFree_v2(address).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
        assert_eq!([back[0], back[2], back[5], back[20], back[27]], [31, 33, 36, 51, 58]);
        assert_eq!([back[3], back[10], back[40]], [0; 3]);
    }

    /// Boxes whose rows or slices overlap are refused.
    fn boxes_that_do_not_fit(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let address = raw.alloc(DEVICE.iter().product()).unwrap();
        let source = [0_u8; 60];
        let good = host_to_device(source.as_ptr(), address, HOST);
        // SAFETY: the addresses are live and as large as the copies say, or the copies are refused.
        unsafe {
            driver.cuMemcpy3D_v2(&good).unwrap();
            let bad = CUDA_MEMCPY3D { dstPitch: 4, ..good };
            assert_eq!(code(driver.cuMemcpy3D_v2(&bad)), INVALID_VALUE);
            let bad = CUDA_MEMCPY3D { dstHeight: 3, ..good };
            assert_eq!(code(driver.cuMemcpy3D_v2(&bad)), INVALID_VALUE);
            driver.cuMemFree_v2(address).unwrap();
        }
    }

    /// Several copies in one call, in the order of one stream.
    fn batches(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (address, stream) = (raw.alloc(1024).unwrap(), raw.stream().unwrap());
        let mut targets = [address + 256, address + 512];
        let mut sources = [address, address];
        let (mut sizes, mut starts) = ([100, 200], [0]);
        let mut attributes = [CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            ..Default::default()
        }];
        // SAFETY: the lists have the stated lengths, and the addresses live until all work is complete.
        unsafe {
            driver.cuMemsetD8Async(address, 1, 1024, stream).unwrap();
            driver.cuMemsetD8Async(address, 8, 256, stream).unwrap();
            let batch = driver.cuMemcpyBatchAsync_v2(
                targets.as_mut_ptr(),
                sources.as_mut_ptr(),
                sizes.as_mut_ptr(),
                2,
                attributes.as_mut_ptr(),
                starts.as_mut_ptr(),
                1,
                stream,
            );
            batch.unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
        let found = raw.read(address, 1024).unwrap();
        assert_eq!([found[256 + 99], found[256 + 100], found[512 + 199], found[512 + 200]], [8, 1, 8, 1]);
        // SAFETY: no work uses the memory.
        unsafe {
            driver.cuMemFree_v2(address).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }
}

fn host_to_device(source: *const u8, address: u64, extent: [usize; 3]) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source.cast(),
        srcPitch: HOST[0],
        srcHeight: HOST[1],
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: address,
        dstPitch: DEVICE[0],
        dstHeight: DEVICE[1],
        WidthInBytes: extent[0],
        Height: extent[1],
        Depth: extent[2],
        ..Default::default()
    }
}
