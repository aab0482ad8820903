//! The time in which a pool goes to sleep and wakes, beside that of copies of the same bytes between the device and pinned memory.

use super::{Bench, Outcome};
use core::ffi::c_void;
use gpumem_pool::{BackendKind, Keep, MemoryKind, Pool, PoolError, Stream};
use std::time::{Duration, Instant};

/// On the simulator, whose device is host memory, it is less.
const SIZE_BYTES: u64 = 8 << 30;
const BLOCK_COUNT: u64 = 8;
const ROUNDS: usize = 3;

impl Bench {
    pub(super) fn sleep(&self) -> Outcome<()> {
        if !self.is_asked("pool/sleep") {
            return Ok(());
        }
        let size_bytes = if self.simulator.is_some() { SIZE_BYTES >> 8 } else { SIZE_BYTES };
        let block_bytes = size_bytes / BLOCK_COUNT;
        let stream = Stream::new(&self.device)?;
        let pool = Pool::builder(&self.device).backend(BackendKind::Caching).build()?;
        let blocks = (0..BLOCK_COUNT).map(|_| pool.alloc_zeroed(block_bytes, &stream));
        let blocks = blocks.collect::<Result<Vec<_>, PoolError>>()?;
        let pinned =
            Pool::builder(&self.device).kind(MemoryKind::Host).build()?.alloc(block_bytes, &stream)?;
        stream.synchronize()?;
        let host: *mut c_void = pinned.host_ptr().ok_or("pinned memory has an address")?.as_ptr().cast();
        let (driver, length) = (self.device.driver(), usize::try_from(block_bytes)?);

        let _bound = self.device.bind()?;
        let [mut asleep, mut awake, mut down, mut up] = [Duration::MAX; 4];
        for _ in 0..ROUNDS {
            asleep = asleep.min(timed(|| Ok(pool.sleep(Keep::OnHost).map(|_| ())?))?);
            awake = awake.min(timed(|| Ok(pool.wake().map(|_| ())?))?);
            for block in &blocks {
                // SAFETY: both are alive and have these bytes, and the call returns when the copy is complete.
                let to_host = || unsafe { driver.cuMemcpyDtoH_v2(host, block.address(), length) };
                // SAFETY: as for the other direction.
                let from_host = || unsafe { driver.cuMemcpyHtoD_v2(block.address(), host, length) };
                down = down.min(timed(|| to_host().map_err(Into::into))?);
                up = up.min(timed(|| from_host().map_err(Into::into))?);
            }
        }
        let all = |block: Duration| block * BLOCK_COUNT as u32;
        self.times("sleep_on_host", asleep, all(down), size_bytes)?;
        self.times("wake_from_host", awake, all(up), size_bytes)
    }

    fn times(&self, work: &str, took: Duration, bound: Duration, size_bytes: u64) -> Outcome<()> {
        let name = format!("pool/{work}_{}MiB", size_bytes >> 20);
        self.note(&name, 1e3 * took.as_secs_f64(), "ms")?;
        self.note(&format!("{name}/by_copies"), took.as_secs_f64() / bound.as_secs_f64(), "ratio")
    }
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}
