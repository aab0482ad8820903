//! Copies and fills of blocks on the simulator: their driver calls, each of which fails once.

use crate::call_counter::{calls, count_calls};
use crate::fixture::{on_each_backend, small};
use gpumem_pool::sys::{CUresult, Driver};
use gpumem_pool::{Block, Device, Pool, PoolError, Stream};
use gpumem_sim::{Sim, SimConfig};

const KIB: u64 = 1 << 10;

type Step = (&'static str, fn(&mut Stage) -> Result<(), PoolError>);

struct Stage {
    pool: Pool,
    streams: [Stream; 2],
    blocks: [Block; 2],
}

/// Each step can be repeated after a failure.
const PROGRAM: &[Step] = &[
    ("zeroed memory", |stage| stage.pool.alloc_zeroed(2 * KIB, &stage.streams[1]).map(drop)),
    ("a fill", |stage| stage.blocks[0].fill(0..KIB, 3_u32, &stage.streams[0])),
    ("from the host, on another stream", |stage| {
        stage.blocks[0].copy_from_host(4, &[5_u8; 64], &stage.streams[1])
    }),
    ("from another block", |stage| {
        let [source, target] = &mut stage.blocks;
        target.copy_from(0, source, 0..KIB, &stage.streams[0])
    }),
    ("within a block", |stage| stage.blocks[1].copy_within(0..64, KIB - 64, &stage.streams[1])),
    ("to the host", |stage| stage.blocks[1].copy_to_host(0, &mut [0_u8; 16], &stage.streams[0])),
];

impl Stage {
    fn new(driver: &Driver) -> Self {
        let device = Device::new(driver, 0).unwrap();
        let pool = Pool::new(&device).unwrap();
        let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
        let blocks = [0, 1].map(|index| pool.alloc(KIB, &streams[index]).unwrap());
        Self { pool, streams, blocks }
    }

    fn check(&self) {
        let mut bytes = [0_u8; 1 << 10];
        self.blocks[1].copy_to_host(0, &mut bytes, &self.streams[0]).unwrap();
        let mut expected = [3_u32.to_ne_bytes(); 256].concat();
        expected[4..68].fill(5);
        expected.copy_within(0..64, (1 << 10) - 64);
        assert_eq!(bytes[..], expected);
    }
}

/// A refused call is an error of the operation, which succeeds when it is repeated. No schedule shows a race.
#[test]
fn each_call_fails_once_and_the_operation_can_be_repeated() {
    let new_driver = |seed| gpumem_sim::driver(SimConfig::new().seed(seed)).unwrap();
    let driver = count_calls(&new_driver(0), None);
    let mut stage = Stage::new(&driver);
    let first = calls().total();
    PROGRAM
        .iter()
        .for_each(|(name, step)| step(&mut stage).unwrap_or_else(|error| panic!("{name}: {error}")));
    let last = calls().total();
    stage.check();
    drop(stage);
    let mut error_count = 0;
    for nth in first + 1..=last {
        for code in [CUresult::CUDA_ERROR_OPERATING_SYSTEM, CUresult::CUDA_ERROR_OUT_OF_MEMORY] {
            let plain = new_driver(nth);
            let driver = count_calls(&plain, Some((nth, code)));
            let mut stage = Stage::new(&driver);
            for (name, step) in PROGRAM {
                if let Err(error) = step(&mut stage) {
                    error_count += 1;
                    let call = calls().failed.unwrap_or_else(|| panic!("{name}: {error}"));
                    step(&mut stage).unwrap_or_else(|again| panic!("{name}: {call}, {error}, {again}"));
                }
            }
            stage.check();
            drop(stage);
            let report = Sim::of(&plain).unwrap().report();
            assert_eq!(report.findings.iter().filter(|finding| finding.is_silent()).count(), 0, "{report}");
        }
    }
    assert!(2 * error_count > last - first, "{error_count} errors in {} runs", 2 * (last - first));
}

/// With one stream an operation makes its own call and no waits.
#[test]
fn one_stream_needs_no_waits() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let mut stage = Stage::new(&driver);
    let counted = count_calls(&driver, None);
    let device = Device::new(&counted, 0).unwrap();
    let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
    stage.blocks = [(); 2].map(|()| pool.alloc(KIB, &stream).unwrap());
    let before = calls();
    let [source, target] = &mut stage.blocks;
    source.fill(0..KIB, 3_u32, &stream).unwrap();
    target.copy_from(0, source, 0..KIB, &stream).unwrap();
    target.copy_within(0..64, 64, &stream).unwrap();
    let after = calls();
    let more = |name: &str| after.count(name) - before.count(name);
    assert_eq!((more("cuMemsetD32Async"), more("cuMemcpyAsync")), (1, 2));
    let others = after.total() - before.total() - 3;
    let of_contexts = ["cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"];
    assert_eq!(others, of_contexts.map(more).iter().sum::<u64>());
}

/// The owner stream is gone, and its work is still queued.
#[test]
fn the_owner_stream_may_be_gone() {
    on_each_backend(&small(), |fixture| {
        let (pool, other) = (fixture.pool(), fixture.stream());
        let mut block = pool.alloc_zeroed(KIB, &fixture.stream()).unwrap();
        block.copy_from_host(8, &[7_u8; 8], &other).unwrap();
        let mut bytes = [1_u8; 16];
        block.copy_to_host(0, &mut bytes, &fixture.stream()).unwrap();
        assert_eq!(bytes, [[0; 8], [7; 8]].concat()[..]);
    });
}
