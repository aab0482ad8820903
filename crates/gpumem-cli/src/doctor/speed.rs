//! The time of an allocation and its free, and the rate of copies, beside the usual ones.

use super::rows::{Grade, Rows, section_of};
use core::time::Duration;
use gpumem_trace::pool::sys::DriverKind;
use gpumem_trace::pool::{Bytes, Device, MemoryKind, Pool, PoolError, Stream};
use std::time::Instant;

/// Times a pair of an allocation and a free, and copies.
pub(super) fn measure(rows: &mut Rows, device: &Device) {
    let section = section_of(device);
    if let Err(error) = pair(rows, device).and_then(|()| copies(rows, device)) {
        rows.add(section, "measurement", error.to_string(), Grade::Bad, None);
    }
}

fn pair(rows: &mut Rows, device: &Device) -> Result<(), PoolError> {
    let (pool, stream) = (Pool::new(device)?, Stream::new(device)?);
    let time = |count: u32| -> Result<Duration, PoolError> {
        let begin = Instant::now();
        for _ in 0..count {
            drop(pool.alloc(PAIR_BYTES, &stream)?);
        }
        Ok(begin.elapsed() / count)
    };
    time(PAIR_COUNT / 10)?;
    let mut took = time(PAIR_COUNT)?;
    for _ in 0..4 {
        took = took.min(time(PAIR_COUNT)?);
    }
    let found = format!("{} ns for {} (usual: {USUAL_PAIR})", took.as_nanos(), Bytes(PAIR_BYTES));
    let is_slow = took.as_nanos() > PAIR_NS_MAX;
    let advice = "an unoptimised build, a busy machine, or a slow clock; try again, with --release if you built it yourself";
    let grade = if is_slow { Grade::Note } else { Grade::Good };
    rows.add(section_of(device), "an allocation and its free", found, grade, is_slow.then(|| advice.into()));
    Ok(())
}

fn copies(rows: &mut Rows, device: &Device) -> Result<(), PoolError> {
    let section = section_of(device);
    if device.driver().kind() != DriverKind::Cuda {
        rows.good(section, "copies", "not measured on the simulator".into());
        return Ok(());
    }
    let stream = Stream::new(device)?;
    let mut on_device = Pool::new(device)?.alloc(COPY_BYTES, &stream)?;
    let mut pinned =
        Pool::builder(device).kind(MemoryKind::Host).build()?.alloc_zeroed(COPY_BYTES, &stream)?;
    let mut best = [0.0_f64; 2];
    for _ in 0..4 {
        stream.synchronize()?;
        let begin = Instant::now();
        on_device.copy_from(0, &pinned, 0..COPY_BYTES, &stream)?;
        stream.synchronize()?;
        let middle = Instant::now();
        pinned.copy_from(0, &on_device, 0..COPY_BYTES, &stream)?;
        stream.synchronize()?;
        let rate = |took: Duration| COPY_BYTES as f64 / took.as_secs_f64() / 1e9;
        best = [best[0].max(rate(middle - begin)), best[1].max(rate(middle.elapsed()))];
    }
    let is_slow = best.iter().any(|rate| *rate < COPY_GB_S_MIN);
    let found = format!("{:.1} GB/s to the device, {:.1} GB/s back (usual: {USUAL_COPY})", best[0], best[1]);
    let advice =
        "compare the link's width and generation in `nvidia-smi -q` (PCI, Link Info) with what the slot has";
    let grade = if is_slow { Grade::Note } else { Grade::Good };
    rows.add(section, "copies of pinned memory", found, grade, is_slow.then(|| advice.into()));
    Ok(())
}

const PAIR_BYTES: u64 = 4096;
const PAIR_COUNT: u32 = 100_000;
const USUAL_PAIR: &str = "8 to 20 ns";
const PAIR_NS_MAX: u128 = 60;
const COPY_BYTES: u64 = 256 << 20;
const USUAL_COPY: &str = "12 on PCIe 3, 25 on PCIe 4, 50 on PCIe 5";
const COPY_GB_S_MIN: f64 = 10.0;
