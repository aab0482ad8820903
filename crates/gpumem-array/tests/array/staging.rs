//! Copies from and to pageable memory through the ring of pinned buffers.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{array, s};
use gpumem_array::pool::adaptor::{Adaptor, Release};
use gpumem_array::pool::{Capture, CaptureMode, Device, Limit, MemoryKind, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, PinnedArray, StagingOptions};
use gpumem_sim::{Schedule, Sim, SimConfig};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BUFFER_BYTES: usize = 256 << 10;

/// A ring of little memory, so that every copy uses each buffer often.
fn small_ring() -> StagingOptions {
    StagingOptions::new().buffer_bytes(BUFFER_BYTES).buffers(3).threads(2)
}

/// A `Gpu` with a small ring, and its pinned pool.
fn staged(config: SimConfig, limit: Option<Limit>) -> (Gpu, Pool) {
    let gpu = gpu_with(config.races(true));
    let builder = Pool::builder(gpu.device()).kind(MemoryKind::Host);
    let pinned = match limit {
        Some(limit) => builder.hard_limit(limit),
        None => builder,
    };
    let pinned = pinned.build().unwrap();
    gpu.set_pool(&pinned).unwrap();
    gpu.set_staging(small_ring());
    (gpu, pinned)
}

fn numbers(len: usize, seed: u64) -> Vec<i32> {
    (0..len as u32)
        .map(|index| index.wrapping_mul(2_654_435_761).wrapping_add(seed as u32) as i32 >> 1)
        .collect()
}

fn assert_clean(gpu: &Gpu, seed: u64) {
    let report = Sim::of(gpu.device().driver()).unwrap().report();
    assert_eq!(report.findings, [], "replay: GPUMEM_SIM_SEED={seed}");
}

#[test]
fn copies_of_all_sizes_keep_their_contents() {
    for seed in 0..8 {
        let (gpu, pinned) = staged(SimConfig::new().seed(seed), None);
        for len in [16 << 10, (16 << 10) + 1, 100_003, 131_072, 131_073, 1_000_003] {
            let host = numbers(len, seed);
            let mut array = GpuArray::from_slice(&gpu, &host).unwrap();
            assert!(array.to_vec().unwrap() == host, "{len}");
            let other = numbers(len, !seed);
            array.copy_from_slice(&other).unwrap();
            // In stream order: the addition has the elements of the upload.
            array.try_add_assign(1).unwrap();
            let mut host = host;
            array.copy_to_slice(&mut host).unwrap();
            assert!(host.iter().zip(&other).all(|(x, y)| *x == y + 1), "{len}");
            assert!(matches!(array.copy_to_slice(&mut host[1..]), Err(ArrayError::Shape { .. })));
        }
        let status = pinned.status().unwrap();
        assert!(status.in_use_peak_bytes <= 3 * BUFFER_BYTES as u64, "{status}");
        assert_clean(&gpu, seed);
    }
}

/// The work of a stream may depend on the thread that uploads on another stream: it must not wait for the first one's buffers.
#[test]
fn buffers_that_wait_on_one_stream_stop_no_other() {
    // Work runs only when it is waited for.
    let (gpu, pinned) = staged(SimConfig::new().schedule(Schedule::Late), None);
    let other = gpu.fork().unwrap();
    let sim = Sim::of(gpu.device().driver()).unwrap();
    let host = numbers(3 * BUFFER_BYTES / 4, 1);
    // The ring grows while it is used.
    while pinned.status().unwrap().in_use_bytes < 3 * BUFFER_BYTES as u64 {
        GpuArray::from_slice(&gpu, &host).unwrap();
    }
    gpu.synchronize().unwrap();
    let first = GpuArray::from_slice(&gpu, &host).unwrap();
    assert!(sim.report().queued_count >= 3, "the upload does not wait for its copies: {}", sim.report());
    let second = GpuArray::from_slice(&other, &host).unwrap();
    assert!(sim.report().queued_count >= 3, "the other stream does not wait either: {}", sim.report());
    assert!(second.to_vec().unwrap() == host && first.to_vec().unwrap() == host);
    assert_eq!(pinned.status().unwrap().in_use_peak_bytes, 3 * BUFFER_BYTES as u64);
    assert_clean(&gpu, 0);
}

#[test]
fn threads_share_the_ring() {
    for seed in 0..4 {
        let (gpu, pinned) = staged(SimConfig::new().seed(seed), None);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let gpu = &gpu;
                scope.spawn(move || {
                    let here = gpu.here().unwrap();
                    for round in 0..4 {
                        let host = numbers(300_000 + thread * 1000, seed + round);
                        let array = GpuArray::from_slice(&here, &host).unwrap();
                        assert!(array.to_vec().unwrap() == host);
                    }
                });
            }
        });
        assert!(pinned.status().unwrap().in_use_peak_bytes <= 3 * BUFFER_BYTES as u64);
        gpu.synchronize().unwrap();
        assert_clean(&gpu, seed);
    }
}

#[test]
fn a_limit_makes_the_ring_smaller() {
    let host = numbers(1 << 20, 5);
    for (limit, buffer_bytes) in [(2 << 20, 4 << 20), (2 << 20, BUFFER_BYTES), (64 << 20, BUFFER_BYTES)] {
        let (gpu, pinned) = staged(SimConfig::new(), Some(Limit::Bytes(limit)));
        gpu.set_staging(small_ring().buffer_bytes(buffer_bytes));
        for _ in 0..3 {
            assert!(GpuArray::from_slice(&gpu, &host).unwrap().to_vec().unwrap() == host);
        }
        let status = pinned.status().unwrap();
        let moved = gpu.transfers();
        let all = 3 * size_of_val(&host[..]) as u64;
        assert_eq!(moved.uploaded_bytes + moved.downloaded_bytes + moved.direct_bytes, 2 * all, "{moved}");
        assert_eq!(moved.direct_bytes > 0, buffer_bytes as u64 > limit, "{moved}");
        assert!(moved.time >= moved.device_wait, "{moved}");
        assert!(status.reserved_peak_bytes <= limit, "{status}");
        // Without room for a buffer, the driver copies.
        assert_eq!(status.in_use_peak_bytes > 0, buffer_bytes as u64 <= limit, "{status}");
    }
}

#[test]
fn the_ring_makes_room_for_pinned_arrays() {
    let (gpu, pinned) = staged(SimConfig::new(), Some(Limit::Bytes(4 << 20)));
    let host = numbers(1 << 20, 5);
    let array = GpuArray::from_slice(&gpu, &host).unwrap();
    assert!(pinned.status().unwrap().in_use_bytes > 0);
    let all = PinnedArray::<u8, _>::zeros(&gpu.pinned(), 4 << 20).unwrap();
    assert!(array.to_vec().unwrap() == host, "without the ring");
    drop(all);
    for _ in 0..20 {
        assert!(array.to_vec().unwrap() == host);
    }
    assert!(pinned.status().unwrap().in_use_bytes > 0, "the ring is used again");
}

#[test]
fn nothing_is_pinned_before_a_large_copy_and_idle_threads_free_it() {
    let (gpu, pinned) = staged(SimConfig::new(), None);
    let small = GpuArray::from_slice(&gpu, &numbers(1000, 0)).unwrap();
    assert_eq!(small.to_vec().unwrap(), numbers(1000, 0));
    assert_eq!(pinned.status().unwrap().allocation_count, 0);
    let moved = gpu.transfers();
    assert_eq!((moved.uploaded_bytes, moved.direct_bytes), (0, 2 * 4000), "{moved}");
    let host = numbers(1 << 20, 5);
    assert!(GpuArray::from_slice(&gpu, &host).unwrap().to_vec().unwrap() == host);
    assert!(pinned.status().unwrap().in_use_bytes > 0);
    wait_until_freed(&pinned);
    assert!(GpuArray::from_slice(&gpu, &host).unwrap().to_vec().unwrap() == host);
}

fn wait_until_freed(pinned: &Pool) {
    let start = std::time::Instant::now();
    while pinned.status().unwrap().in_use_bytes > 0 {
        assert!(start.elapsed().as_secs() < 60, "the buffers are still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Copies that start no thread, and those that threads serve; each burst after the buffers of the one before were freed.
#[test]
fn the_ring_is_freed_after_each_burst_of_copies() {
    for (thread_count, len) in [(0, 1 << 20), (2, 64 << 10), (3, 1 << 20)] {
        let (gpu, pinned) = staged(SimConfig::new(), None);
        gpu.set_staging(small_ring().threads(thread_count));
        let host = numbers(len, 5);
        for burst in 0..2 {
            for _ in 0..3 {
                assert!(GpuArray::from_slice(&gpu, &host).unwrap().to_vec().unwrap() == host);
            }
            assert!(pinned.status().unwrap().in_use_bytes > 0, "{thread_count} threads, burst {burst}");
            wait_until_freed(&pinned);
        }
        assert_clean(&gpu, 0);
    }
}

/// An adaptor that is slow to free blocks on the thread that watches for idle buffers, and tells when it begins.
struct SlowFree(Mutex<Sender<()>>);

impl Adaptor for SlowFree {
    fn free(&self, _: &Release<'_>) {
        if std::thread::current().name() == Some("gpumem-staging-idle") {
            let _ = self.0.lock().unwrap().send(());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The end of a `Gpu` waits for the thread that is freeing its idle buffers.
#[test]
fn idle_buffers_do_not_outlive_their_gpu() {
    let (freeing, is_freeing) = channel();
    let gpu = gpu_with(SimConfig::new());
    let slow = Arc::new(SlowFree(Mutex::new(freeing)));
    let pinned = Pool::builder(gpu.device()).kind(MemoryKind::Host).adaptor(slow).build().unwrap();
    gpu.set_pool(&pinned).unwrap();
    gpu.set_staging(small_ring().buffers(1));
    let host = numbers(1 << 20, 5);
    // In the second round the thread frees the buffer of the first, and goes on.
    for _ in 0..2 {
        assert!(GpuArray::from_slice(&gpu, &host).unwrap().to_vec().unwrap() == host);
        is_freeing.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    let driver = gpu.device().driver().clone();
    drop((gpu, pinned));
    let report = Sim::of(&driver).unwrap().report();
    assert!(report.allocations.is_empty(), "{report}");
}

/// An adaptor that ends a `Gpu` on the thread that watches for idle buffers.
struct LastOwner(Mutex<Option<Gpu>>, Mutex<Sender<()>>);

impl Adaptor for LastOwner {
    fn free(&self, _: &Release<'_>) {
        if std::thread::current().name() == Some("gpumem-staging-idle") {
            drop(self.0.lock().unwrap().take());
            let _ = self.1.lock().unwrap().send(());
        }
    }
}

#[test]
fn a_gpu_can_end_on_the_thread_that_frees_its_buffers() {
    let (ended, has_ended) = channel();
    let gpu = gpu_with(SimConfig::new());
    let owner = Arc::new(LastOwner(Mutex::new(None), Mutex::new(ended)));
    let pinned = Pool::builder(gpu.device()).kind(MemoryKind::Host).adaptor(owner.clone()).build().unwrap();
    gpu.set_pool(&pinned).unwrap();
    gpu.set_staging(small_ring().buffers(1));
    drop(GpuArray::from_slice(&gpu, &numbers(1 << 20, 5)).unwrap());
    let device = gpu.device().clone();
    *owner.0.lock().unwrap() = Some(gpu);
    has_ended.recv_timeout(Duration::from_secs(60)).unwrap();
    device.synchronize().unwrap();
    drop((owner, pinned));
    let report = Sim::of(device.driver()).unwrap().report();
    assert_eq!(report.findings, [], "{report}");
}

#[test]
fn copies_are_measured() {
    let (gpu, _) = staged(SimConfig::new(), None);
    let before = gpu.status().unwrap();
    assert!(before.pinned.as_ref().is_some_and(|pinned| pinned.in_use_bytes == 0));
    let host = numbers(4 << 20, 5);
    assert!(GpuArray::from_slice(&gpu, &host).unwrap().to_vec().unwrap() == host);
    let status = gpu.status().unwrap();
    let moved = status.transfers;
    assert_eq!((moved.uploaded_bytes, moved.downloaded_bytes, moved.direct_bytes), (16 << 20, 16 << 20, 0));
    assert!(moved.time >= moved.device_wait + moved.host_wait, "{moved}");
    let text = status.to_string();
    for part in ["Memory pool usage", "Pinned memory", "16.0 MiB up, 16.0 MiB down", "waiting for the device"]
    {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

/// The first copy waits for one buffer to be pinned. Others follow while there are copies.
#[test]
fn the_ring_grows_while_it_is_used() {
    let (gpu, pinned) = staged(SimConfig::new(), None);
    gpu.set_staging(small_ring().buffers(8));
    let host = numbers(4 * BUFFER_BYTES / 4, 5);
    let mut array = GpuArray::from_slice(&gpu, &host).unwrap();
    let first = pinned.status().unwrap().in_use_bytes / BUFFER_BYTES as u64;
    assert!((1..=2).contains(&first), "{first} buffers");
    (0..10).for_each(|_| array.copy_from_slice(&host).unwrap());
    let later = pinned.status().unwrap().in_use_bytes / BUFFER_BYTES as u64;
    assert!((4..=8).contains(&later), "{later} buffers");
    assert!(array.to_vec().unwrap() == host);
    assert_clean(&gpu, 0);
}

#[test]
fn captures_refuse_staged_copies() {
    let (gpu, _) = staged(SimConfig::new(), None);
    let host = numbers(1 << 20, 5);
    let mut array = GpuArray::from_slice(&gpu, &host).unwrap();
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    let refused = array.copy_from_slice(&host).unwrap_err().to_string();
    assert!(refused.contains("an upload"), "{refused}");
    let refused = array.to_vec().unwrap_err().to_string();
    assert!(refused.contains("a download"), "{refused}");
    capture.end().unwrap();
    array.copy_from_slice(&host).unwrap();
    assert!(array.to_vec().unwrap() == host);
}

/// Every call of the driver fails once: the copy returns an error or succeeds, nothing is lost, and the next copy works.
#[test]
fn a_failed_call_is_an_error_and_nothing_is_lost() {
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    let host = numbers(300_000, 9);
    for call in [
        "cuMemcpyAsync",
        "cuMemHostAlloc",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
    ] {
        for nth in 1..=12 {
            let rule = format!("{call}#{nth}=fail:OUT_OF_MEMORY").parse().unwrap();
            let (gpu, pinned) = staged(SimConfig::new().rule(rule), None);
            let program = || -> Result<(), ArrayError> {
                let array = GpuArray::from_slice(&gpu, &host)?;
                assert!(array.to_vec()? == host, "{call}#{nth}");
                Ok(())
            };
            // The call may first be made in a later copy.
            let failed = (0..30).filter(|_| program().is_err()).count();
            assert!(failed <= 1, "{call}#{nth}: {failed} copies failed");
            FAILED.fetch_add(failed, Ordering::Relaxed);
            let status = pinned.status().unwrap();
            assert!(status.in_use_peak_bytes <= 3 * BUFFER_BYTES as u64, "{call}#{nth}: {status}");
            gpu.set_staging(small_ring());
            gpu.synchronize().unwrap();
            assert_eq!(pinned.status().unwrap().in_use_bytes, 0, "{call}#{nth}");
            let driver = gpu.device().driver().clone();
            drop((gpu, pinned));
            let report = Sim::of(&driver).unwrap().report();
            assert_eq!(report.silent_findings(), [], "{call}#{nth}: {report}");
        }
    }
    assert!(FAILED.load(Ordering::Relaxed) > 10, "{FAILED:?}");
}

#[test]
fn two_devices_without_a_link_upload_through_the_owner() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2).without_link(0, 1)).unwrap();
    let gpu = |ordinal| {
        let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap();
        gpu.set_staging(small_ring());
        gpu
    };
    let (first, second) = (gpu(0), gpu(1));
    let host = numbers(1 << 20, 3);
    let mut array = GpuArray::<i32, _>::zeros(&first, 1 << 20).unwrap();
    array.on_mut(&second).copy_from_slice(&host).unwrap();
    assert!(array.on(&second).to_vec().unwrap() == host);
    assert!(array.to_vec().unwrap() == host);
}

/// Arrays of all sizes, some larger than a buffer takes.
fn tables(seed: u64) -> Vec<Vec<u8>> {
    let sizes = [0, 1, 15, 16, 17, 4096, 0, 70_000, 32 << 10, (32 << 10) + 1, 700_000];
    let many = (0..2000).map(|index| index * 7 % 1000);
    let byte = |index: usize| (index as u64 * 31 + seed) as u8;
    sizes.into_iter().chain(many).map(|size| (0..size).map(byte).collect()).collect()
}

#[test]
fn packed_arrays_have_their_elements() {
    for seed in 0..6 {
        let (gpu, pinned) = staged(SimConfig::new().seed(seed), None);
        let tables = tables(seed);
        let slices: Vec<_> = tables.iter().map(Vec::as_slice).collect();
        let arrays = gpu.upload_all(&slices).unwrap();
        let moved = gpu.transfers();
        let all: usize = tables.iter().map(Vec::len).sum();
        assert_eq!(moved.uploaded_bytes + moved.direct_bytes, all as u64, "{moved}");
        assert!(moved.uploaded_bytes > 0 && moved.time >= moved.device_wait + moved.host_wait, "{moved}");
        // On another stream too: each array is ordered behind its upload.
        let other = gpu.fork().unwrap();
        for (index, (array, table)) in arrays.iter().zip(&tables).enumerate() {
            let gpu = if index % 2 == 0 { &gpu } else { &other };
            assert!(array.on(gpu).to_vec().unwrap() == *table, "{index}");
        }
        assert!(pinned.status().unwrap().in_use_peak_bytes <= 3 * BUFFER_BYTES as u64);
        assert_clean(&gpu, seed);
    }
}

#[test]
fn packs_take_all_shapes_and_kinds() {
    let gpu = gpu();
    let a = array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let (columns, gaps) = (a.t(), a.slice(s![.., ..;2]));
    let (truth, none) = ([true, false, true], [0_i64; 0]);
    let mut pack = gpu.pack();
    let packed = (
        pack.add(&gpu, &a).unwrap(),
        pack.add(&gpu, &columns).unwrap(),
        pack.add(&gpu.unified(), &gaps).unwrap(),
        pack.add(&gpu.pinned(), &truth).unwrap(),
        pack.add(&gpu, &none).unwrap(),
    );
    assert_eq!(pack.len(), 5);
    pack.upload().unwrap();
    assert_eq!(packed.0.into_array().unwrap().to_array().unwrap(), a);
    assert_eq!(packed.1.into_array().unwrap().to_array().unwrap(), columns);
    assert_eq!(packed.2.into_array().unwrap().as_array().unwrap(), gaps);
    assert_eq!(packed.3.into_array().unwrap().as_slice().unwrap(), truth);
    assert_eq!(packed.4.into_array().unwrap().to_vec().unwrap(), none);
    assert_clean(&gpu, 0);
}

#[test]
fn arrays_of_a_pack_are_ordered_with_other_streams_and_freed_one_by_one() {
    for seed in 0..16 {
        let (gpu, _) = staged(SimConfig::new().seed(seed), None);
        let other = gpu.fork().unwrap();
        let host: Vec<Vec<i32>> = (0..300).map(|index| numbers(50 + index % 3, index as u64)).collect();
        // Memory that another stream uses is not handed out again too early.
        let before = GpuArray::from_slice(&gpu, &numbers(20_000, 1)).unwrap();
        let sum = before.on(&other).sum().unwrap();
        drop(before);
        let mut pack = gpu.pack();
        let packed: Vec<_> = host.iter().map(|part| pack.add(&gpu, part).unwrap()).collect();
        let elsewhere = pack.add(&other, &host[0]).unwrap();
        pack.upload().unwrap();
        drop(sum);
        let in_use_bytes = || gpu.pool().status().unwrap().in_use_bytes;
        let mut left_bytes = in_use_bytes();
        for (index, packed) in packed.into_iter().enumerate() {
            let size_bytes = 4 * host[index].len() as u64;
            match index % 3 {
                0 => drop(packed),
                1 => drop(packed.into_array().unwrap().on(&other).try_mul(2).unwrap()),
                _ => assert_eq!(packed.into_array().unwrap().on(&other).to_vec().unwrap(), host[index]),
            }
            left_bytes -= size_bytes;
            assert_eq!(in_use_bytes(), left_bytes);
        }
        assert_eq!(elsewhere.into_array().unwrap().to_vec().unwrap(), host[0]);
        gpu.synchronize().unwrap();
        assert_clean(&gpu, seed);
    }
}

#[test]
fn an_array_of_a_pack_exists_once_that_is_uploaded() {
    let (gpu, _) = staged(SimConfig::new(), None);
    let mut pack = gpu.pack();
    let early = pack.add(&gpu, &[1, 2]).unwrap();
    let late = pack.add(&gpu, &[3, 4]).unwrap();
    let early = early.into_array().unwrap_err();
    assert!(matches!(early.error(), ArrayError::NotUploaded { .. }), "{early}");
    pack.upload().unwrap();
    assert_eq!(early.into_value().into_array().unwrap().to_vec().unwrap(), [1, 2]);
    assert_eq!(late.into_array().unwrap().to_vec().unwrap(), [3, 4]);
    let mut pack = gpu.pack();
    let never = pack.add(&gpu, &[1]).unwrap();
    drop(pack);
    assert!(matches!(never.into_array().unwrap_err().error(), ArrayError::NotUploaded { .. }));
    let other = gpu_with(SimConfig::new());
    assert!(matches!(gpu.pack().add(&other, &[1]), Err(ArrayError::WrongDevice { .. })));
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    assert!(gpu.upload_all(&[[1].as_slice()]).is_err());
    capture.end().unwrap();
}

#[test]
fn a_failed_call_in_a_pack_loses_nothing() {
    let tables = tables(3);
    let slices: Vec<_> = tables.iter().map(Vec::as_slice).collect();
    let mut failed = 0;
    for call in ["cuLaunchKernel", "cuMemcpy*", "cuMemHostAlloc", "cuEventRecord"] {
        for nth in 1..=4 {
            let rule = format!("{call}#{nth}=fail:OUT_OF_MEMORY").parse().unwrap();
            let (gpu, pinned) = staged(SimConfig::new().rule(rule), None);
            failed += usize::from(gpu.upload_all(&slices).is_err());
            let arrays = (0..3).find_map(|_| gpu.upload_all(&slices).ok()).unwrap();
            assert!(arrays.iter().zip(&tables).all(|(array, table)| array.to_vec().unwrap() == *table));
            drop(arrays);
            gpu.synchronize().unwrap();
            let driver = gpu.device().driver().clone();
            drop((gpu, pinned));
            let report = Sim::of(&driver).unwrap().report();
            assert_eq!(report.silent_findings(), [], "{call}#{nth}: {report}");
        }
    }
    assert!(failed > 4, "{failed}");
}
