//! A simulator with race detection for feeds, and data whose rows have their number.

use gpumem_adapt::array::ndarray::{Array2, Ix2};
use gpumem_adapt::array::pool::{Device, Limit, MemoryKind, Pool};
use gpumem_adapt::array::{Gpu, GpuArray, StagingOptions};
use gpumem_sim::{Sim, SimConfig};

/// 512 KiB.
pub(crate) const COLUMNS: usize = 128 << 10;
pub(crate) const ROW_BYTES: u64 = 4 * COLUMNS as u64;
pub(crate) const BUFFER_BYTES: usize = 128 << 10;

pub(crate) struct Machine {
    pub(crate) gpu: Gpu,
    pinned: Pool,
    seed: u64,
}

/// A simulator with race detection, a pool with room for `limit` rows, and a small ring.
pub(crate) fn machine(seed: u64, limit_rows: Option<u64>) -> Machine {
    machine_of(SimConfig::new().seed(seed), seed, limit_rows)
}

pub(crate) fn machine_of(config: SimConfig, seed: u64, limit_rows: Option<u64>) -> Machine {
    let driver = gpumem_sim::driver(config.races(true)).expect("an instance is free");
    let device = Device::new(&driver, 0).expect("there is one");
    let mut builder = Pool::builder(&device);
    if let Some(rows) = limit_rows {
        builder = builder.hard_limit(Limit::Bytes(rows * ROW_BYTES));
    }
    let gpu = Gpu::new(&builder.build().expect("it has pools")).expect("it has streams");
    let pinned = Pool::builder(&device).kind(MemoryKind::Host).build().expect("it has pinned memory");
    gpu.set_pool(&pinned).expect("none is in use");
    gpu.set_staging(StagingOptions::new().buffer_bytes(BUFFER_BYTES).buffers(3).threads(1));
    Machine { gpu, pinned, seed }
}

impl Machine {
    /// Checks that nothing is left, that nothing raced, and that the ring kept its bound.
    pub(crate) fn end(self) {
        let Self { gpu, pinned, seed } = self;
        gpu.device().synchronize().expect("the device works");
        assert_eq!(gpu.pool().status().expect("the pool works").in_use_bytes, 0, "seed {seed}");
        let peak_bytes = pinned.status().expect("the pool works").in_use_peak_bytes;
        assert!(peak_bytes <= 3 * BUFFER_BYTES as u64, "seed {seed}: {peak_bytes} bytes pinned");
        let driver = gpu.device().driver().clone();
        drop((gpu, pinned));
        let report = Sim::of(&driver).expect("it is a simulator").report();
        assert_eq!(report.silent_findings(), [], "seed {seed}: {report}");
    }
}

/// Each row has its number.
pub(crate) fn table(row_count: usize) -> Array2<f32> {
    Array2::from_shape_fn((row_count, COLUMNS), |(row, _)| row as f32)
}

pub(crate) fn first_column(batch: &GpuArray<f32, Ix2>) -> Vec<usize> {
    let rows = batch.to_array().expect("the device works");
    rows.rows().into_iter().map(|row| row[0] as usize).collect()
}
