//! The rate of the link between host and device, by copies of pinned memory.

use crate::array::{GpuArray, PinnedArray};
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::gpu::transfers::LinkRate;
use gpumem_pool::{Event, Stream};
use ndarray::Ix1;

impl Gpu {
    /// Measures the rate of the link with copies of up to 64 MiB from and to pinned memory, on an idle stream. [`Gpu::transfers`] then has
    /// the result. Waits for the copies; other work on the link at that time lowers the result. The memory is freed to the pools.
    ///
    /// ```
    /// # use gpumem_array::GpuArray;
    /// # let gpu = gpumem_array::example_gpu()?;
    /// let link = gpu.measure_link()?;
    /// assert!(link.up_bytes_per_second > 0);
    /// let x = GpuArray::from_slice(&gpu, &vec![1.0_f32; 1 << 20])?;
    /// assert!(gpu.transfers().link_share().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArrayError::Pool`] if a driver call fails, if 1 MiB of pinned or of device memory is unavailable, or if this thread captures.
    pub fn measure_link(&self) -> Result<LinkRate, ArrayError> {
        let copier = self.copier()?;
        let mut size_bytes = SIZE_BYTES_MAX;
        let link = loop {
            match measured(&copier, size_bytes) {
                Err(error) if error.is_out_of_memory() && size_bytes > SIZE_BYTES_MIN => size_bytes /= 2,
                measured => break measured?,
            }
        };
        self.transfer_counters().set_link(link);
        Ok(link)
    }
}

fn measured(gpu: &Gpu, size_bytes: usize) -> Result<LinkRate, ArrayError> {
    let mut array = GpuArray::<u8, Ix1>::zeros(gpu, size_bytes)?;
    let mut pinned = PinnedArray::<u8, Ix1>::zeros(&gpu.pinned(), size_bytes)?;
    Ok(LinkRate {
        up_bytes_per_second: rate(gpu.stream(), size_bytes, || array.assign(&pinned))?,
        down_bytes_per_second: rate(gpu.stream(), size_bytes, || pinned.assign(&array))?,
    })
}

/// The rate of the fastest of several copies, in bytes per second.
fn rate(
    stream: &Stream,
    size_bytes: usize,
    mut copy: impl FnMut() -> Result<(), ArrayError>,
) -> Result<u64, ArrayError> {
    let device = stream.device();
    let (begin, end) = (Event::with_timing(device)?, Event::with_timing(device)?);
    let mut best_ms = f64::INFINITY;
    for _ in 0..ROUND_COUNT {
        begin.record(stream)?;
        copy()?;
        end.record(stream)?;
        end.synchronize()?;
        best_ms = best_ms.min(f64::from(end.elapsed_ms_since(&begin)?));
    }
    // At least one nanosecond, finer than the clock of any device.
    Ok((size_bytes as f64 / best_ms.max(1e-6) * 1e3) as u64)
}

const SIZE_BYTES_MAX: usize = 64 << 20;
const SIZE_BYTES_MIN: usize = 1 << 20;
const ROUND_COUNT: usize = 4;
