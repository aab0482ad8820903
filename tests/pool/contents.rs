//! Copies and fills of blocks, on both drivers and with every backend and kind of memory.

use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::two_devices::{self, Link};
use gpumem_tests::pool::{
    BackendKind, BadArgument, Block, Capture, CaptureError, CaptureMode, Device, DeviceError, MemoryKind,
    Pool, PoolError, Stream, StreamError, Unsupported,
};
use gpumem_tests::sys::Driver;
use gpumem_tests::{cases, for_each_seed};

const KIB: u64 = 1 << 10;
const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host];

/// A pool of each kind of memory on each backend. A driver may have no pool of a kind.
fn pools(device: &Device) -> Vec<Pool> {
    let of = |backend| KINDS.map(|kind| Pool::builder(device).backend(backend).kind(kind).build());
    let built = backends(device).into_iter().flat_map(of);
    built
        .filter(|built| !matches!(built, Err(PoolError::Unsupported(Unsupported::OnBackend { .. }))))
        .map(Result::unwrap)
        .collect()
}

fn device_and_streams(driver: &Driver) -> (Device, [Stream; 2]) {
    let device = Device::new(driver, 0).unwrap();
    let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
    (device, streams)
}

fn bytes_of(block: &Block, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0xEE; block.size_bytes() as usize];
    block.copy_to_host(0, &mut bytes, stream).unwrap();
    bytes
}

cases! {
    /// Typed values go to any offset and come back.
    fn values_go_there_and_back(driver: &Driver) {
        let (device, [stream, _]) = device_and_streams(driver);
        for pool in pools(&device) {
            let mut block = pool.alloc_zeroed(3 * KIB, &stream).unwrap();
            assert_eq!(bytes_of(&block, &stream), [0; 3 << 10], "{pool:?}");
            let values: Vec<f64> = (0..256).map(f64::from).collect();
            block.copy_from_host(512, &values, &stream).unwrap();
            block.copy_from_host(3, &[0x0102_u16], &stream).unwrap();
            let mut some = [0.0_f64; 3];
            block.copy_to_host(512 + 8 * 100, &mut some, &stream).unwrap();
            assert_eq!(some, [100.0, 101.0, 102.0]);
            let all = bytes_of(&block, &stream);
            assert_eq!((all[2], &all[3..5], all[5]), (0, &0x0102_u16.to_ne_bytes()[..], 0));
            assert_eq!(all[512 + 2048..], [0; 512]);
            block.fill(0..16, 0x0A0B_0C0D_u32, &stream).unwrap();
            block.fill(16..22, 0x0E0F_u16, &stream).unwrap();
            block.fill(22..24, 7_i8, &stream).unwrap();
            block.copy_within(0..24, 1001, &stream).unwrap();
            let pattern: Vec<u8> = [0x0A0B_0C0D_u32.to_ne_bytes(); 4].concat().into_iter()
                .chain([0x0E0F_u16.to_ne_bytes(); 3].concat()).chain([7, 7]).collect();
            assert_eq!(bytes_of(&block, &stream)[1001..1025], pattern);
        }
    }

    /// Blocks of different pools and kinds copy from each other.
    fn blocks_copy_from_each_other(driver: &Driver) {
        let (device, [stream, other]) = device_and_streams(driver);
        let pools = pools(&device);
        for (from, to) in pools.iter().flat_map(|from| pools.iter().map(move |to| (from, to))) {
            let mut source = from.alloc(4 * KIB, &stream).unwrap();
            source.fill(0..4 * KIB, 5_u8, &stream).unwrap();
            let mut target = to.alloc_zeroed(4 * KIB, &other).unwrap();
            // The copy runs on the stream of the target, behind the fill on the other one.
            target.copy_from(KIB, &source, 10..10 + KIB, &other).unwrap();
            drop(source);
            let bytes = bytes_of(&target, &stream);
            assert!(bytes[1 << 10..2 << 10].iter().all(|byte| *byte == 5), "from {from:?} to {to:?}");
            assert!(bytes[..1 << 10].iter().chain(&bytes[2 << 10..]).all(|byte| *byte == 0));
        }
    }

    /// Ranges outside of a block, overlaps and partial elements are refused, and nothing is written.
    fn wrong_ranges_are_refused(driver: &Driver) {
        let (device, [stream, _]) = device_and_streams(driver);
        for pool in pools(&device) {
            let mut block = pool.alloc_zeroed(KIB, &stream).unwrap();
            let other = pool.alloc_zeroed(KIB, &stream).unwrap();
            let max = u64::MAX;
            for start in [KIB - 7, KIB + 1, max - 7, max] {
                let (to, from) = (block.copy_from_host(start, &[1_u64], &stream), block.copy_to_host(start, &mut [1_u64], &stream));
                assert!(matches!((to, from), (Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. })), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. })))));
                assert!(matches!(block.copy_from(start, &other, 0..8, &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
                assert!(matches!(block.copy_within(0..8, start, &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
            }
            #[expect(clippy::reversed_empty_ranges, reason = "is refused")]
            for part in [9..8, 0..KIB + 1, max..max, max..0] {
                assert!(matches!(block.fill(part.clone(), 1_u8, &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
                assert!(matches!(block.copy_within(part.clone(), 0, &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
                assert!(matches!(block.copy_from(0, &other, part, &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
            }
            for to in [0, 1, 63, 65, 127] {
                assert!(matches!(block.copy_within(64..128, to, &stream), Err(PoolError::BadArgument(BadArgument::Overlap { .. }))) == (to > 0), "{to}");
            }
            for part in [1..8, 0..7] {
                assert!(matches!(block.fill(part, 1_u32, &stream), Err(PoolError::BadArgument(BadArgument::PartialElements { .. }))));
            }
            assert_eq!(bytes_of(&block, &stream), [0; 1 << 10]);
        }
    }

    /// Operations on no bytes succeed, in empty blocks too.
    fn no_bytes_are_fine(driver: &Driver) {
        let (device, [stream, other]) = device_and_streams(driver);
        for pool in pools(&device) {
            let source = pool.alloc_zeroed(KIB, &stream).unwrap();
            for size_bytes in [0, KIB] {
                let mut block = pool.alloc_zeroed(size_bytes, &stream).unwrap();
                block.copy_from_host::<u64>(size_bytes, &[], &other).unwrap();
                block.copy_to_host::<u64>(0, &mut [], &other).unwrap();
                block.copy_from_host(size_bytes, &[(), ()], &other).unwrap();
                block.copy_from(size_bytes, &source, 7..7, &other).unwrap();
                block.copy_within(0..0, size_bytes, &other).unwrap();
                block.fill(0..0, 1_u32, &other).unwrap();
            }
        }
    }

    /// A copy waits for work on streams that use the block, and for no other stream. The free waits for the copy.
    fn only_users_of_the_block_are_waited_for(driver: &Driver) {
        let (device, [home, other]) = device_and_streams(driver);
        let busy = Stream::new(&device).unwrap();
        let pools: Vec<Pool> = pools(&device);
        // A plain allocation and a free may wait for the device.
        for pool in pools.iter().filter(|pool| pool.backend() != BackendKind::None) {
            let mut block = pool.alloc_zeroed(KIB, &home).unwrap();
            let mut second = pool.alloc_zeroed(KIB, &home).unwrap();
            let gate = StreamGate::on(&busy).unwrap();
            block.copy_from_host(0, &[3_u8; 1 << 10], &other).unwrap();
            second.copy_from(0, &block, 0..KIB, &home).unwrap();
            assert_eq!(bytes_of(&second, &other), [3; 1 << 10]);
            assert!(gate.open(), "the copies have waited for a stream that does not use the blocks");
            busy.synchronize().unwrap();
        }
    }

    /// A queued copy is in flight when its blocks are dropped.
    fn blocks_are_dropped_in_flight(driver: &Driver) {
        let (device, [home, other]) = device_and_streams(driver);
        for pool in pools(&device) {
            let mut last = pool.alloc_zeroed(64 * KIB, &other).unwrap();
            for value in 0..8_u8 {
                let mut source = pool.alloc(64 * KIB, &home).unwrap();
                source.fill(0..64 * KIB, value, &home).unwrap();
                last.copy_from(0, &source, 0..64 * KIB, &other).unwrap();
                drop(source);
                // It may get the memory of the source, and must not be written before the copy has read it.
                let mut next = pool.alloc(64 * KIB, &home).unwrap();
                next.fill(0..64 * KIB, 0xFF_u8, &home).unwrap();
                drop(next);
                assert!(bytes_of(&last, &other).iter().all(|byte| *byte == value), "{pool:?}");
            }
        }
    }

    /// In a capture each operation is refused before it queues anything, and the capture stays valid.
    fn captures_refuse(driver: &Driver) {
        let (device, [stream, other]) = device_and_streams(driver);
        for pool in pools(&device) {
            let mut block = pool.alloc_zeroed(KIB, &other).unwrap();
            let source = pool.alloc_zeroed(KIB, &other).unwrap();
            other.synchronize().unwrap();
            let in_use = pool.status().unwrap().in_use_bytes;
            let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
            let refused = [
                pool.alloc_zeroed(KIB, &stream).map(drop),
                block.copy_from_host(0, &[1_u8], &stream),
                block.copy_to_host(0, &mut [1_u8], &stream),
                block.copy_from(0, &source, 0..8, &stream),
                block.copy_within(0..8, 8, &stream),
                block.fill(0..8, 1_u8, &stream),
            ];
            for result in refused {
                assert!(matches!(result, Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))), "{result:?}");
            }
            // On another stream they run.
            block.copy_from_host(0, &[1_u8], &other).unwrap();
            assert_eq!(pool.status().unwrap().in_use_bytes, in_use);
            // Memory of the graph belongs to the capture until it has ended.
            let mut part = pool.alloc(KIB, &stream).unwrap();
            assert!(matches!(part.fill(0..KIB, 1_u8, &other), Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))));
            capture.end().unwrap();
            part.fill(0..KIB, 9_u8, &stream).unwrap();
            assert_eq!(bytes_of(&part, &other), [9; 1 << 10]);
            assert_eq!(bytes_of(&block, &stream)[..2], [1, 0]);
        }
    }

    /// The memory of a graph's part was allocated on a stream of the capture's own, which waits for earlier users of the memory. Work on
    /// the part follows that.
    fn a_part_of_a_graph_is_written_behind_earlier_users_of_its_memory(driver: &Driver) {
        let (device, [stream, earlier]) = device_and_streams(driver);
        for backend in backends(&device) {
            // The others wait for the device when the limit is reached.
            if backend != BackendKind::Caching {
                continue;
            }
            let size_bytes = 48 << 20;
            let pool = Pool::builder(&device).backend(backend).hard_limit(64 << 20).build().unwrap();
            let mut last = pool.alloc(size_bytes, &earlier).unwrap();
            let gate = StreamGate::on(&earlier).unwrap();
            last.fill(0..size_bytes, 1_u8, &earlier).unwrap();
            drop(last);
            let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
            let mut part = pool.alloc(size_bytes, &stream).unwrap();
            capture.end().unwrap();
            part.fill(0..size_bytes, 2_u8, &stream).unwrap();
            let is_early = (0..100).any(|_| stream.is_complete().unwrap());
            assert!(!is_early, "the fill has not waited");
            assert!(gate.open(), "the host has waited");
            assert!(bytes_of(&part, &stream).iter().all(|byte| *byte == 2));
        }
    }

    /// A refused operation adds no wait to the graph.
    fn a_graph_has_no_waits_of_refused_operations(driver: &Driver) {
        let (device, [stream, other]) = device_and_streams(driver);
        let pool = Pool::new(&device).unwrap();
        let mut block = pool.alloc(KIB, &other).unwrap();
        let gate = StreamGate::on(&other).unwrap();
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        assert!(matches!(block.fill(0..8, 1_u8, &stream), Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))));
        let graph = capture.end().unwrap().instantiate().unwrap();
        // SAFETY: the graph has no work.
        unsafe { graph.launch(&stream).unwrap() };
        stream.synchronize().unwrap();
        assert!(gate.open(), "the launch has waited for a user of the block");
    }

    /// Streams and blocks of two devices, with a link between them and without.
    fn devices_copy_from_each_other(driver: &Driver) {
        for link in [Link::Direct, Link::None] {
            let Some(driver) = two_devices::two_devices(driver, link) else { return };
            let devices = [0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap());
            let streams = [0, 1].map(|index: usize| Stream::new(&devices[index]).unwrap());
            for (kind, backend) in KINDS.into_iter().flat_map(|kind| backends(&devices[0]).into_iter().map(move |backend| (kind, backend))) {
                let pool = |index: usize| Pool::builder(&devices[index]).kind(kind).backend(backend).build();
                let (Ok(near), Ok(far)) = (pool(0), pool(1)) else { continue };
                for stream in &streams {
                    let mut source = near.alloc(KIB, &streams[0]).unwrap();
                    source.copy_from_host(0, &[6_u8; 1 << 10], &streams[0]).unwrap();
                    let mut target = far.alloc_zeroed(KIB, &streams[1]).unwrap();
                    let copied = target.copy_from(0, &source, 0..KIB, stream);
                    if link == Link::None && kind == MemoryKind::Device {
                        assert!(matches!(copied, Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))), "{copied:?}");
                        continue;
                    }
                    copied.unwrap();
                    drop(source);
                    assert_eq!(bytes_of(&target, &streams[0]), [6; 1 << 10], "{kind} {backend}");
                }
            }
        }
    }

    /// Blocks and streams of another driver are refused before a call.
    fn another_driver_is_refused(driver: &Driver) {
        let (device, [stream, _]) = device_and_streams(driver);
        let elsewhere = gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap();
        let (_far, [foreign, _]) = device_and_streams(&elsewhere);
        for pool in pools(&device) {
            let mut block = pool.alloc_zeroed(KIB, &stream).unwrap();
            let other = Pool::new(foreign.device()).unwrap().alloc_zeroed(KIB, &foreign).unwrap();
            let refused = [
                block.copy_from_host(0, &[1_u8], &foreign),
                block.copy_to_host(0, &mut [1_u8], &foreign),
                block.copy_from(0, &other, 0..8, &stream),
                block.copy_from(0, &other, 0..8, &foreign),
                block.fill(0..8, 1_u8, &foreign),
                pool.alloc_zeroed(KIB, &foreign).map(drop),
            ];
            for result in refused {
                assert!(matches!(result, Err(PoolError::Device(DeviceError::WrongDevice { .. }))), "{result:?}");
            }
        }
    }

    /// A stream of another library that uses the block cannot be waited for by another stream, so that is refused.
    fn another_librarys_stream_is_named(driver: &Driver) {
        let (device, [stream, owner]) = device_and_streams(driver);
        let legacy = Stream::legacy(&device).unwrap();
        for pool in pools(&device) {
            let mut block = pool.alloc(KIB, &legacy).unwrap();
            block.copy_from_host(0, &[4_u8; 1 << 10], &legacy).unwrap();
            let refused = block.fill(0..8, 1_u8, &stream);
            assert!(matches!(refused, Err(PoolError::Device(DeviceError::Stream(StreamError::NotOrdered { stream }))) if stream == legacy.id()), "{refused:?}");
            assert_eq!(bytes_of(&block, &legacy), [4; 1 << 10]);
            // As the waiting stream it is named.
            let mut block = pool.alloc(KIB, &owner).unwrap();
            block.copy_from_host(0, &[2_u8; 1 << 10], &legacy).unwrap();
            assert_eq!(bytes_of(&block, &legacy), [2; 1 << 10]);
        }
    }
}

/// Three streams write and read blocks at random, without a wait of the program. Under no seed is there a race.
#[test]
fn any_program_of_copies_is_right_in_every_order() {
    for_each_seed!(200, |driver: &Driver, seed| {
        let mut state = seed + 1;
        let mut below = |end: u64| {
            // A linear congruential generator, with the constants of MMIX.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % end
        };
        let device = Device::new(driver, 0).unwrap();
        let streams = [(); 3].map(|()| Stream::new(&device).unwrap());
        let pools = pools(&device);
        let pool = &pools[seed as usize % pools.len()];
        let mut blocks: Vec<(Block, Vec<u8>)> = Vec::new();
        for step in 0..40_u8 {
            let stream = &streams[below(3) as usize];
            if blocks.len() < 2 {
                blocks.push((pool.alloc_zeroed(KIB, stream).unwrap(), vec![0; 1 << 10]));
                continue;
            }
            let first = below(blocks.len() as u64) as usize;
            let (mut block, mut twin) = blocks.swap_remove(first);
            let start = below(900) as usize;
            let part = start as u64..start as u64 + 100;
            match below(6) {
                0 => continue,
                1 => {
                    block.fill(part, step, stream).unwrap();
                    twin[start..start + 100].fill(step);
                }
                2 => {
                    block.copy_from_host(part.start, &[step; 100], stream).unwrap();
                    twin[start..start + 100].fill(step);
                }
                3 => {
                    let (source, values) = &blocks[0];
                    block.copy_from(part.start, source, 0..100, stream).unwrap();
                    twin[start..start + 100].copy_from_slice(&values[..100]);
                }
                4 if start >= 100 => {
                    block.copy_within(0..100, part.start, stream).unwrap();
                    twin.copy_within(0..100, start);
                }
                _ => assert_eq!(bytes_of(&block, stream), twin),
            }
            blocks.push((block, twin));
        }
        for (block, twin) in &blocks {
            assert_eq!(bytes_of(block, &streams[0]), *twin);
        }
    });
}
