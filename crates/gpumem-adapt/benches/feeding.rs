//! The rate at which pageable memory gets to the device and back, beside the driver's own copies, the link and the host's `memcpy` in the
//! same run, and PyTorch where `python3` has it.
//!
//! `cargo xtask bench feeding`. With `--sweep`, the program prints the rates of uploads for many settings of the staging ring instead.

#![allow(clippy::print_stdout, reason = "printing is the purpose of a benchmark")]

use core::convert::Infallible;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_adapt::batches;
use gpumem_array::ndarray::Ix1;
use gpumem_array::pool::sys::{Driver, DriverError, DriverKind};
use gpumem_array::pool::{Device, Event, Pool, Stream};
use gpumem_array::{ArrayError, Gpu, GpuArray, LaunchShape, PinnedArray, StagingOptions, kernels};
use std::error::Error;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Done = Result<(), Box<dyn Error>>;

fn main() -> Done {
    let driver = gpumem_sim::driver_or_sim()?;
    let is_real = driver.kind() == DriverKind::Cuda;
    let bench = Bench {
        size_bytes: if is_real { 1 << 30 } else { 8 << 20 },
        batch_bytes: if is_real { 64 << 20 } else { 2 << 20 },
        batch_count: if is_real { 64 } else { 4 },
        small_count: if is_real { 20_000 } else { 500 },
        packed_count: if is_real { 100_000 } else { 2000 },
        rounds: if is_real { 9 } else { 2 },
        gpu: gpu(&driver)?,
    };
    println!("{}, {}", bench.gpu.device(), driver.kind());
    if std::env::args().any(|arg| arg == "--sweep") {
        return bench.sweep();
    }
    bench.first(&driver)?;
    bench.large()?;
    bench.small()?;
    bench.batches()?;
    if is_real { bench.torch() } else { Ok(()) }
}

fn gpu(driver: &Driver) -> Result<Gpu, Box<dyn Error>> {
    let gpu = Gpu::new(&Pool::new(&Device::new(driver, 0)?)?)?;
    gpu.set_staging(StagingOptions::from_env()?);
    gpu.preload::<f32>()?;
    Ok(gpu)
}

struct Bench {
    size_bytes: usize,
    batch_bytes: usize,
    batch_count: usize,
    small_count: usize,
    packed_count: usize,
    rounds: usize,
    gpu: Gpu,
}

impl Bench {
    /// The first staged copy, which starts the threads and pins a buffer, beside a later one. The device's memory comes before it: the
    /// first mapping of a process takes several milliseconds.
    fn first(&self, driver: &Driver) -> Done {
        let host = vec![1.0_f32; 1 << 19];
        let fresh = gpu(driver)?;
        let begin = Instant::now();
        drop(GpuArray::<f32, Ix1>::uninit(&fresh, host.len())?);
        row("first_device_block_2MiB", begin.elapsed().as_secs_f64() * 1e3, "ms", None);
        let begin = Instant::now();
        let array = GpuArray::from_slice(&fresh, &host)?;
        fresh.synchronize()?;
        row("first_pinned_buffer_copy_2MiB", begin.elapsed().as_secs_f64() * 1e3, "ms", None);
        let time = self.median(|| GpuArray::from_slice(&fresh, &host).map(drop))?;
        row("later_copy_2MiB", time.as_secs_f64() * 1e3, "ms", None);
        drop(array);
        Ok(())
    }

    fn large(&self) -> Done {
        let Self { gpu, size_bytes, .. } = self;
        let (driver, len) = (gpu.device().driver(), size_bytes / 4);
        let mut host = vec![1.0_f32; len];
        let mut array = GpuArray::from_slice(gpu, &host)?;
        let _bound = gpu.device().bind()?;

        self.rate("up", None, || array.copy_from_slice(&host))?;
        let address = array.view().address();
        self.rate("up", Some("driver"), || {
            // SAFETY: both sides have these bytes, and the call returns when they have been read.
            unsafe { driver.cuMemcpyHtoD_v2(address, host.as_ptr().cast(), *size_bytes) }
        })?;
        let mut pinned = PinnedArray::<f32, Ix1>::zeros(&gpu.pinned(), len)?;
        self.rate("up", Some("link, pinned"), || array.assign(&pinned))?;

        self.rate("down_to_vec", None, || array.to_vec().map(|host| drop(black_box(host))))?;
        self.rate("down_to_vec", Some("driver"), || {
            let mut host: Vec<f32> = Vec::with_capacity(len);
            // SAFETY: both sides have these bytes, and the call returns when they are there.
            unsafe {
                driver.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, *size_bytes)?;
                host.set_len(len);
            }
            drop(black_box(host));
            Ok::<(), DriverError>(())
        })?;
        self.rate("down", None, || array.copy_to_slice(&mut host))?;
        let target = host.as_mut_ptr();
        self.rate("down", Some("driver"), || {
            // SAFETY: both sides have these bytes, and the call returns when they are there.
            unsafe { driver.cuMemcpyDtoH_v2(target.cast(), address, *size_bytes) }
        })?;
        self.rate("down", Some("link, pinned"), || pinned.assign(&array))?;

        let mut copy = vec![0.0_f32; len];
        let thread_count = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        for thread_count in [1, 8.min(thread_count), thread_count] {
            let name = format!("host_memcpy_{thread_count}_threads");
            self.rate(&name, None, || {
                let part = len.div_ceil(thread_count);
                std::thread::scope(|scope| {
                    for (to, from) in copy.chunks_mut(part).zip(host.chunks(part)) {
                        scope.spawn(|| to.copy_from_slice(from));
                    }
                });
                Ok::<(), Infallible>(())
            })?;
        }
        Ok(())
    }

    /// Uploads of 4 KiB, one by one and many at once.
    fn small(&self) -> Done {
        let Self { gpu, small_count, .. } = self;
        let driver = gpu.device().driver();
        let host = vec![1.0_f32; 1024];
        let mut array = GpuArray::from_slice(gpu, &host)?;
        let (address, stream) = (array.view().address(), gpu.stream().clone());
        let _bound = gpu.device().bind()?;
        let (mut ours, mut bare, mut copied) = (Vec::new(), Vec::new(), Vec::new());
        // Memory that shares no page with other memory, like the copy that an upload makes.
        let mut pages = vec![0_u8; 3 << 16];
        let start = pages.as_ptr().align_offset(1 << 16);
        let copy = &mut pages[start..start + 4096];
        for _ in 0..self.rounds.max(3) {
            let round = |times: &mut Vec<f64>, upload: &mut dyn FnMut() -> Done| -> Done {
                let (mut elapsed, mut done) = (Duration::ZERO, 0);
                while done < *small_count {
                    // Fewer calls than the stream takes before a call waits.
                    let begin = Instant::now();
                    for _ in 0..100 {
                        upload()?;
                    }
                    elapsed += begin.elapsed();
                    done += 100;
                    gpu.synchronize()?;
                }
                times.push(elapsed.as_secs_f64() * 1e9 / done as f64);
                Ok(())
            };
            round(&mut ours, &mut || array.copy_from_slice(&host).map_err(Into::into))?;
            round(&mut bare, &mut || {
                // SAFETY: both sides have 4 KiB, and the driver reads pageable memory of this size during the call.
                let queued =
                    unsafe { driver.cuMemcpyHtoDAsync_v2(address, host.as_ptr().cast(), 4096, stream.raw()) };
                queued.map_err(Into::into)
            })?;
            round(&mut copied, &mut || {
                copy.copy_from_slice(black_box(bytemuck::cast_slice(&host)));
                // SAFETY: both sides have 4 KiB, and the driver reads pageable memory of this size during the call.
                let queued =
                    unsafe { driver.cuMemcpyHtoDAsync_v2(address, copy.as_ptr().cast(), 4096, stream.raw()) };
                queued.map_err(Into::into)
            })?;
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        row("up_4KiB", median(&mut ours), "ns", None);
        row("up_4KiB", median(&mut bare), "ns", Some("bare pageable call"));
        row("up_4KiB", median(&mut copied), "ns", Some("bare call on a copy that is not pinned"));
        let all: Vec<f32> = vec![1.0; 1024 * self.packed_count];
        let slices: Vec<&[f32]> = all.chunks(1024).collect();
        let time = self.median(|| gpu.upload_all(&slices).map(drop))?;
        row("upload_all_4KiB_each", time.as_secs_f64() * 1e9 / self.packed_count as f64, "ns", None);
        Ok(())
    }

    /// Batches of pageable memory, with a kernel for each.
    fn batches(&self) -> Done {
        let Self { gpu, batch_bytes, batch_count, .. } = self;
        let data = vec![1.0_f32; batch_bytes / 4 * batch_count];
        let time = self.median(|| {
            let mut batches = data.chunks(batch_bytes / 4);
            batches.try_for_each(|batch| GpuArray::from_slice(gpu, batch)?.try_add_assign(1.0))
        })?;
        let size_bytes = size_of_val(&data[..]) as f64;
        row("from_slice_64MiB_and_add", size_bytes / time.as_secs_f64() / 1e9, "GB/s", None);
        let upload = self.feed(&data, 2, &mut |_| Ok(()))?;
        // Each batch with kernels that take about as long as its upload: many that are as fast as the memory, and one that calculates.
        let mut resident = GpuArray::from_slice(gpu, &data[..batch_bytes / 4])?;
        let add = self.median(|| resident.try_add_assign(1.0))?;
        let adds = (upload.as_secs_f64() / *batch_count as f64 / add.as_secs_f64()).ceil().clamp(1.0, 1e3);
        self.overlap("adds", &data, upload, &mut |batch| {
            (0..adds as usize).try_for_each(|_| batch.try_add_assign(1.0))
        })?;
        let repeat = gpu.compile(&KERNELS)?.function("repeat")?;
        let launch = |batch: &mut GpuArray<f32, Ix1>, rounds: u32| {
            let (shape, len) = (LaunchShape::for_len(batch.len()), batch.len() as u64);
            // SAFETY: the arguments are those of the kernel, which stays within `len` elements.
            unsafe { repeat.launch(shape).write(batch).scalar(rounds).scalar(len).enqueue(gpu) }
        };
        let rounds = if gpu.device().driver().kind() == DriverKind::Cuda { 2000 } else { 2 };
        let one = self.median(|| launch(&mut resident, rounds))?.as_secs_f64();
        let rounds = f64::from(rounds) * upload.as_secs_f64() / *batch_count as f64 / one;
        self.overlap("arithmetic", &data, upload, &mut |batch| launch(batch, rounds.clamp(1.0, 1e6) as u32))?;
        // The last is beside PyTorch.
        for prefetch in [1, 8, 2] {
            let time = self.feed(&data, prefetch, &mut |batch| batch.try_add_assign(1.0))?;
            let rate = size_bytes / time.as_secs_f64() / 1e9;
            row(&format!("from_slice_64MiB_and_add@batches_prefetch_{prefetch}"), rate, "GB/s", None);
        }
        println!("{}", gpu.transfers());
        Ok(())
    }

    /// The time of all batches, with work for each.
    fn feed(&self, data: &[f32], prefetch: usize, work: Work<'_>) -> Result<Duration, Box<dyn Error>> {
        self.median(|| -> Done {
            for batch in batches(data).batch_size(self.batch_bytes / 4).prefetch(prefetch).on(&self.gpu)? {
                work(&mut batch?)?;
            }
            Ok(())
        })
    }

    /// The time of all batches, divided by the larger of transfer and kernels alone, beside a program by hand with its own transfer.
    fn overlap(&self, name: &str, data: &[f32], upload: Duration, work: Work<'_>) -> Done {
        let Self { gpu, batch_bytes, batch_count, .. } = self;
        let mut resident = GpuArray::<f32, Ix1>::zeros(gpu, batch_bytes / 4)?;
        let compute = self.median(|| (0..*batch_count).try_for_each(|_| work(&mut resident)))?;
        let copy = self.by_hand(2, &mut |_| Ok(()))?;
        println!("{name}: batches {upload:.2?}, by hand {copy:.2?}, kernels alone {compute:.2?}");
        for prefetch in [1, 2, 8] {
            let row = |time: Duration, copy: Duration, peer| {
                let ratio = time.as_secs_f64() / copy.max(compute).as_secs_f64();
                row(&format!("batches_time_by_larger_part@{name}_prefetch_{prefetch}"), ratio, "ratio", peer);
            };
            row(self.feed(data, prefetch, work)?, upload, None);
            row(self.by_hand(prefetch, work)?, copy, Some("pinned memory, by hand"));
        }
        Ok(())
    }

    /// The time of as many uploads of one pinned array, with calls of the driver and `prefetch + 1` arrays on the device.
    fn by_hand(&self, prefetch: usize, work: Work<'_>) -> Result<Duration, Box<dyn Error>> {
        let Self { gpu, batch_bytes, batch_count, .. } = self;
        let (device, driver) = (gpu.device(), gpu.device().driver());
        let pinned = PinnedArray::<f32, Ix1>::zeros(&gpu.pinned(), batch_bytes / 4)?;
        let (from, copier) = (pinned.view().address(), Stream::new(device)?);
        let slots = (0..=prefetch).map(|_| -> Result<_, Box<dyn Error>> {
            let array = GpuArray::<f32, Ix1>::zeros(gpu, batch_bytes / 4)?;
            Ok((array, Event::new(device)?, Event::new(device)?))
        });
        let mut slots = slots.collect::<Result<Vec<_>, _>>()?;
        let _bound = device.bind()?;
        let time = self.median(|| -> Done {
            for index in 0..*batch_count {
                let (array, arrived, used) = &mut slots[index % (prefetch + 1)];
                copier.wait(used)?;
                // SAFETY: both arrays have these bytes and outlive the copy, and the copy waits for the kernels before it.
                unsafe { driver.cuMemcpyAsync(array.view().address(), from, *batch_bytes, copier.raw())? };
                arrived.record(&copier)?;
                gpu.stream().wait(arrived)?;
                work(array)?;
                used.record(gpu.stream())?;
            }
            Ok(())
        });
        // Also after an error: the arrays outlive the copies.
        device.synchronize()?;
        time
    }

    /// PyTorch in a process of its own, on the same data.
    fn torch(&self) -> Done {
        let arguments = [self.batch_bytes.to_string(), self.batch_count.to_string()];
        let mut python = Command::new("python3");
        python.args(["-c", include_str!("feeding.py")]).args(arguments).stderr(Stdio::null());
        let output = match python.output() {
            Ok(output) if output.status.success() => String::from_utf8(output.stdout)?,
            _ => {
                println!("no rows of PyTorch: python3 does not have it, or it does not see the device");
                return Ok(());
            }
        };
        for line in output.lines() {
            let Some((name, rate)) = line.split_once(' ') else { continue };
            row("from_slice_64MiB_and_add", rate.parse()?, "GB/s", Some(&format!("PyTorch {name}")));
        }
        Ok(())
    }

    /// The rates for sizes and numbers of buffers, then for numbers of threads with the best of them.
    fn sweep(&self) -> Done {
        print_host();
        let host = vec![1.0_f32; self.size_bytes / 4];
        let mut array = GpuArray::from_slice(&self.gpu, &host)?;
        self.link_by_chunk(&mut array)?;
        let thread_count = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut best = Setting {
            buffer_count: 8,
            buffer_kib: 2048,
            thread_count: (thread_count - 1).clamp(1, 15),
            rate: 0.0,
        };
        println!("threads buffers  KiB fill GB/s   up GB/s  waits for device, host");
        let mut run = |setting: &Setting, best: &mut Setting| -> Done {
            let rate = self.up(setting, &host, &mut array)?;
            if rate > best.rate {
                *best = Setting { rate, ..*setting };
            }
            Ok(())
        };
        let rings =
            [(8, 1024), (16, 1024), (4, 2048), (8, 2048), (16, 2048), (32, 2048), (4, 4096), (8, 4096)];
        for (buffer_count, buffer_kib) in
            rings.into_iter().chain([(16, 4096), (8, 8192), (4, 16384), (3, 65536)])
        {
            run(&Setting { buffer_count, buffer_kib, ..best }, &mut best)?;
        }
        for thread_count in [3, 5, 7, 9, 11, 13, 15, 19, 23, 31] {
            run(&Setting { thread_count, ..best }, &mut best)?;
        }
        println!("best: {best:?}");
        self.gpu.set_staging(best.options());
        self.batches()
    }

    /// The rate of an upload with a setting, beside the rate at which as many threads fill memory as large as the ring.
    fn up(
        &self,
        setting: &Setting,
        host: &[f32],
        array: &mut GpuArray<f32, Ix1>,
    ) -> Result<f64, Box<dyn Error>> {
        self.gpu.set_staging(setting.options());
        // Each buffer is pinned once.
        (0..3).try_for_each(|_| array.copy_from_slice(host))?;
        let before = self.gpu.transfers();
        let time = self.median(|| array.copy_from_slice(host))?;
        let after = self.gpu.transfers();
        let rate = self.size_bytes as f64 / time.as_secs_f64() / 1e9;
        let share = |later: Duration, earlier: Duration| {
            100.0 * (later - earlier).as_secs_f64() / (after.time - before.time).as_secs_f64()
        };
        let fill = self.fill(setting, host)?;
        let &Setting { thread_count, buffer_count, buffer_kib, .. } = setting;
        println!(
            "{thread_count:>7} {buffer_count:>7} {buffer_kib:>5} {fill:>9.2} {rate:>9.2} {:>9.0} % {:>5.0} %",
            share(after.device_wait, before.device_wait),
            share(after.host_wait, before.host_wait),
        );
        Ok(rate)
    }

    /// The rate at which threads copy all of `host` into memory as large as the ring, each into a part of its own.
    fn fill(&self, setting: &Setting, host: &[f32]) -> Result<f64, Box<dyn Error>> {
        let (thread_count, piece) = (setting.thread_count + 1, PIECE_LEN);
        let mut ring = vec![0.0_f32; setting.buffer_count * setting.buffer_kib * 256];
        let (ring_part, host_part) = (ring.len().div_ceil(thread_count), host.len().div_ceil(thread_count));
        let time = self.median(|| {
            std::thread::scope(|scope| {
                for (to, from) in ring.chunks_mut(ring_part).zip(host.chunks(host_part)) {
                    scope.spawn(move || {
                        let mut place = 0;
                        for from in from.chunks(piece.min(to.len())) {
                            place = if place + from.len() > to.len() { 0 } else { place };
                            to[place..place + from.len()].copy_from_slice(from);
                            place += from.len();
                        }
                    });
                }
            });
            Ok::<(), Infallible>(())
        })?;
        Ok(size_of_val(host) as f64 / time.as_secs_f64() / 1e9)
    }

    /// The rate of the link for copies of pinned memory in chunks.
    fn link_by_chunk(&self, array: &mut GpuArray<f32, Ix1>) -> Done {
        let (driver, stream) = (self.gpu.device().driver(), self.gpu.stream().clone());
        let pinned = PinnedArray::<f32, Ix1>::zeros(&self.gpu.pinned(), self.batch_bytes / 4)?;
        let (to, from) = (array.view_mut().address(), pinned.view().address());
        let _bound = self.gpu.device().bind()?;
        for chunk_kib in [256, 512, 1024, 2048, 4096, 8192, 65536] {
            let chunk_bytes = (chunk_kib << 10).min(self.batch_bytes);
            let time = self.median(|| {
                (0..self.size_bytes).step_by(chunk_bytes).try_for_each(|start| {
                    let from = from + (start % self.batch_bytes) as u64;
                    // SAFETY: the chunk lies within both arrays, which nothing else uses before the stream is synchronised.
                    unsafe { driver.cuMemcpyAsync(to + start as u64, from, chunk_bytes, stream.raw()) }
                })
            })?;
            let rate = self.size_bytes as f64 / time.as_secs_f64() / 1e9;
            println!("link, pinned, in chunks of {chunk_kib} KiB: {rate:.2} GB/s");
        }
        Ok(())
    }

    /// Prints the rate of an operation on [`Bench::size_bytes`].
    fn rate<E: Into<Box<dyn Error>>>(
        &self,
        name: &str,
        peer: Option<&str>,
        operation: impl FnMut() -> Result<(), E>,
    ) -> Done {
        let time = self.median(operation)?;
        row(name, self.size_bytes as f64 / time.as_secs_f64() / 1e9, "GB/s", peer);
        Ok(())
    }

    /// The median time of an operation, the device's part included.
    fn median<E: Into<Box<dyn Error>>>(
        &self,
        mut operation: impl FnMut() -> Result<(), E>,
    ) -> Result<Duration, Box<dyn Error>> {
        let mut times = Vec::new();
        for index in 0..=self.rounds {
            self.gpu.device().synchronize()?;
            let begin = Instant::now();
            operation().map_err(Into::into)?;
            self.gpu.device().synchronize()?;
            // The first round warms up.
            if index > 0 {
                times.push(begin.elapsed());
            }
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}

/// Work on a batch.
type Work<'a> = &'a mut dyn FnMut(&mut GpuArray<f32, Ix1>) -> Result<(), ArrayError>;

kernels! {
    /// Calculates for `rounds` rounds with each element.
    static KERNELS = ptx r#"
        .version 7.0
        .target sm_70
        .address_size 64

        .visible .entry repeat(.param .u64 y, .param .u32 rounds, .param .u64 n)
        {
            .reg .pred %p<3>;
            .reg .b32 %r<6>;
            .reg .f32 %f<2>;
            .reg .b64 %rd<6>;
            ld.param.u64 %rd1, [y];
            ld.param.u32 %r1, [rounds];
            ld.param.u64 %rd2, [n];
            mov.u32 %r2, %ctaid.x;
            mov.u32 %r3, %ntid.x;
            mov.u32 %r4, %tid.x;
            cvt.u64.u32 %rd3, %r4;
            mad.wide.u32 %rd3, %r2, %r3, %rd3;
            setp.ge.u64 %p1, %rd3, %rd2;
            @%p1 bra DONE;
            cvta.to.global.u64 %rd4, %rd1;
            shl.b64 %rd5, %rd3, 2;
            add.u64 %rd4, %rd4, %rd5;
            ld.global.f32 %f1, [%rd4];
        ROUND:
            fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f33D6BF95;
            sub.u32 %r1, %r1, 1;
            setp.ne.u32 %p2, %r1, 0;
            @%p2 bra ROUND;
            st.global.f32 [%rd4], %f1;
        DONE:
            ret;
        }"#;
}

/// Options of the staging ring, and the rate of uploads with them.
#[derive(Clone, Copy, Debug)]
struct Setting {
    buffer_count: usize,
    buffer_kib: usize,
    thread_count: usize,
    rate: f64,
}

/// The elements that a thread copies in a row.
const PIECE_LEN: usize = 64 << 10;

impl Setting {
    fn options(&self) -> StagingOptions {
        let options = StagingOptions::new().threads(self.thread_count).buffers(self.buffer_count);
        options.buffer_bytes(self.buffer_kib << 10)
    }
}

/// Prints the processors, where the system tells them.
fn print_host() {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| info.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    let node_count = std::fs::read_dir("/sys/devices/system/node").map_or(0, |nodes| {
        nodes.flatten().filter(|node| node.file_name().to_string_lossy().starts_with("node")).count()
    });
    let processor_count = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    println!("{}, {}", field("model name"), field("cache size"));
    println!("{processor_count} processors, {node_count} memory nodes");
}

/// Prints a figure; of a peer, beside the figure of gpumem that was printed before.
fn row(name: &str, value: f64, unit: &str, peer: Option<&str>) {
    static OURS: AtomicU64 = AtomicU64::new(0);
    if std::env::args().any(|arg| arg == "--rows") {
        let peer = peer.map(|peer| format!("\t{peer}")).unwrap_or_default();
        println!("row\tfeeding/{name}\t{value}\t{unit}{peer}");
        return;
    }
    let ratio = f64::from_bits(OURS.load(Ordering::Relaxed)) / value;
    match peer {
        Some(peer) => println!("{name:<52} {value:>10.2} {unit:<5} {peer}: gpumem {ratio:.3} x"),
        None => {
            OURS.store(value.to_bits(), Ordering::Relaxed);
            println!("{name:<52} {value:>10.2} {unit}");
        }
    }
}
