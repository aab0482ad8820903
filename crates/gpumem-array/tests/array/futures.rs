//! Transfers that own their host memory: no call waits for the device, and no thread is blocked.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Array2, Axis, Ix1, array, s};
use gpumem_array::pool::sys::types::{CUevent, CUresult, CUstream};
use gpumem_array::pool::sys::{Driver, Table};
use gpumem_array::pool::{
    BackendKind, Capture, CaptureMode, Device, DeviceError, Limit, MemoryKind, Pool, PoolError,
};
use gpumem_array::{ArrayError, Download, Gpu, GpuArray, PinnedArray, UnifiedArray};
use gpumem_sim::{Effect, Rule, Schedule, Sim, SimConfig};
use pollster::block_on;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(8);

fn poll<B>(download: &mut Download<B>, waker: &Waker) -> Poll<Result<B, ArrayError>> {
    Pin::new(download).poll(&mut Context::from_waker(waker))
}

/// Polls all futures whenever one of them may have resolved.
async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().enumerate().collect();
    let mut outputs: Vec<_> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        pending.retain_mut(|(index, future)| match Pin::new(future).poll(context) {
            Poll::Ready(output) => {
                outputs[*index] = Some(output);
                false
            }
            Poll::Pending => true,
        });
        if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().map(Option::unwrap).collect()
}

static WAITS: AtomicUsize = AtomicUsize::new(0);
static QUERIES: AtomicUsize = AtomicUsize::new(0);

/// A driver that counts the host's waits.
fn counted() -> Driver {
    static REAL: OnceLock<Table> = OnceLock::new();
    unsafe extern "C" fn stream(stream: CUstream) -> CUresult {
        WAITS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller guarantees what the wrapped function requires.
        unsafe { REAL.get().unwrap().cuStreamSynchronize.unwrap()(stream) }
    }
    unsafe extern "C" fn event(event: CUevent) -> CUresult {
        WAITS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller guarantees what the wrapped function requires.
        unsafe { REAL.get().unwrap().cuEventSynchronize.unwrap()(event) }
    }
    unsafe extern "C" fn context() -> CUresult {
        WAITS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller guarantees what the wrapped function requires.
        unsafe { REAL.get().unwrap().cuCtxSynchronize.unwrap()() }
    }
    unsafe extern "C" fn query(event: CUevent) -> CUresult {
        QUERIES.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller guarantees what the wrapped function requires.
        unsafe { REAL.get().unwrap().cuEventQuery.unwrap()(event) }
    }
    let driver = gpumem_sim::driver(SimConfig::new().seed(3)).unwrap();
    assert!(REAL.set(*driver.table()).is_ok());
    // SAFETY: each function calls the one that it replaces.
    unsafe {
        driver.with_table(|table| {
            table.cuStreamSynchronize = Some(stream);
            table.cuEventSynchronize = Some(event);
            table.cuCtxSynchronize = Some(context);
            table.cuEventQuery = Some(query);
        })
    }
}

#[test]
fn a_thousand_downloads_block_no_thread() {
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&counted(), 0).unwrap()).unwrap()).unwrap();
    let streams: Vec<_> = (0..8).map(|_| gpu.fork().unwrap()).collect();
    let mut x = GpuArray::<u32, _>::zeros(&gpu, 1000).unwrap();
    gpu.synchronize().unwrap();
    let before = WAITS.load(Ordering::SeqCst);
    let downloads: Vec<_> = (0..1000)
        .map(|number| {
            let stream = &streams[number % streams.len()];
            x.on_mut(stream).fill(number as u32).unwrap();
            x.on(stream).download()
        })
        .collect();
    for (number, elements) in block_on(all(downloads)).into_iter().enumerate() {
        assert_eq!(elements.unwrap(), [number as u32; 1000]);
    }
    // Each free of the backend `none` waits for the device.
    if gpu.pool().backend() != BackendKind::None {
        assert_eq!(WAITS.load(Ordering::SeqCst) - before, 0, "waits on the host");
    }
    // Several for each: the first poll, the notifier's after the host function, and those at intervals.
    let queries = QUERIES.load(Ordering::SeqCst);
    assert!(queries < 200_000, "{queries} queries");
}

/// The simulator detects races between copies and the uses around them, in any order.
#[test]
fn transfers_are_ordered_under_every_seed() {
    for seed in 0..60 {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let other = gpu.fork().unwrap();
        let uploads: Vec<_> = (0..4).map(|number| GpuArray::upload(&gpu, vec![number; 100])).collect();
        let mut arrays: Vec<_> = block_on(all(uploads)).into_iter().map(|upload| upload.unwrap().0).collect();
        let mut downloads = Vec::new();
        for round in 0..5 {
            for (number, array) in arrays.iter_mut().enumerate() {
                let gpu = if (round + number) % 2 == 0 { &gpu } else { &other };
                downloads.push((array.on(gpu).download(), number as i32 + round as i32));
                array.on_mut(&other).try_add_assign(1).unwrap();
            }
        }
        drop(arrays);
        let mut discarded = downloads.split_off(15);
        discarded.truncate(3);
        let download = downloads.remove(7);
        // A forgotten download keeps its simulator alive, and a process can have 64.
        if seed < 8 {
            std::mem::forget(download);
        }
        drop(discarded);
        let (downloads, expected): (Vec<_>, Vec<_>) = downloads.into_iter().unzip();
        for (elements, expected) in block_on(all(downloads)).into_iter().zip(expected) {
            assert_eq!(elements.unwrap(), [expected; 100], "seed {seed}");
        }
        gpu.device().synchronize().unwrap();
        let sim = Sim::of(gpu.device().driver()).unwrap();
        assert!(sim.take_findings().is_empty(), "seed {seed}: {}", sim.report());
    }
}

#[test]
fn every_source_is_given_back() {
    let gpu = gpu();
    let vec = vec![1, 2, 3];
    let address = vec.as_ptr();
    let (x, vec) = GpuArray::upload(&gpu, vec).wait().unwrap();
    assert_eq!((vec.as_ptr(), x.to_vec().unwrap()), (address, vec));

    let shared: Arc<[f32]> = Arc::new([1.0, 2.0]);
    let (first, second) =
        (GpuArray::upload(&gpu, shared.clone()), GpuArray::upload(&gpu, Arc::new(vec![0.5_f64])));
    assert_eq!(first.wait().unwrap().0.to_vec().unwrap(), *shared);
    assert_eq!(second.wait().unwrap().0.to_vec().unwrap(), [0.5]);
    assert_eq!(Arc::strong_count(&shared), 1);
    let (x, _) = block_on(GpuArray::upload(&gpu, vec![true, false].into_boxed_slice())).unwrap();
    assert_eq!(x.to_vec().unwrap(), [true, false]);

    let matrix = array![[1, 2, 3], [4, 5, 6]];
    for source in [matrix.clone(), matrix.clone().reversed_axes()] {
        let (x, source) = GpuArray::upload(&gpu, source).wait().unwrap();
        assert_eq!(x.to_array().unwrap(), source);
        assert_eq!(x.download_array().wait().unwrap(), source);
        assert_eq!(x.download().wait().unwrap(), x.to_vec().unwrap());
    }
    // Not contiguous.
    let stepped = Array2::from_shape_fn((4, 4), |(i, j)| i * 4 + j).slice_move(s![..;2, 1..]);
    let (x, stepped) = GpuArray::upload(&gpu, stepped).wait().unwrap();
    assert_eq!(x.to_array().unwrap(), stepped);

    // In place, and into other kinds of memory.
    let pinned = PinnedArray::from_slice(&gpu.pinned(), &[7_u8; 50]).unwrap();
    let address = pinned.address();
    let (x, pinned): (UnifiedArray<u8, Ix1>, _) = GpuArray::upload(&gpu.unified(), pinned).wait().unwrap();
    assert_eq!((x[49], pinned[49], pinned.address()), (7, 7, address));

    let empty: Vec<u64> = Vec::new();
    let (x, empty) = GpuArray::upload(&gpu, empty).wait().unwrap();
    assert_eq!(block_on(x.download_into(empty)).unwrap(), Vec::<u64>::new());
}

#[test]
fn targets_are_reused() {
    let gpu = gpu();
    let x = GpuArray::from_array(&gpu, &Array2::from_shape_fn((6, 4), |(i, j)| (i * 4 + j) as f32)).unwrap();
    let target = Vec::with_capacity(100);
    let address = target.as_ptr();
    let target = block_on(x.download_into(target)).unwrap();
    assert_eq!((target.as_ptr(), target), (address, x.to_vec().unwrap()));

    let rows = x.slice_axis(Axis(0), (1..5).into()).unwrap();
    let target = PinnedArray::zeros(&gpu.pinned(), (4, 4)).unwrap();
    let address = target.address();
    let target = block_on(rows.download_into(target)).unwrap();
    assert_eq!((target.address(), target.as_array().unwrap()), (address, rows.to_array().unwrap().view()));
    let target = UnifiedArray::zeros(&gpu.unified(), (4, 6)).unwrap();
    let target = block_on(x.t().download_into(target)).unwrap();
    assert_eq!(target.as_array().unwrap(), x.t().to_array().unwrap());

    let small = PinnedArray::zeros(&gpu.pinned(), (1, 4)).unwrap();
    let address = small.address();
    let rejected = x.download_into(small).wait().unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::Shape { .. }), "{rejected}");
    assert_eq!(rejected.into_value().unwrap().address(), address);
    let used = Vec::<f32>::with_capacity(1000);
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    let rejected = x.download_into(used).wait().unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::Pool(_) | ArrayError::Graph(_)), "{rejected}");
    assert_eq!(rejected.into_value().unwrap().capacity(), 1000);
    capture.end().unwrap();
}

#[test]
fn an_upload_that_fails_returns_the_elements() {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let gpu = Gpu::new(&Pool::builder(&device).hard_limit(Limit::Bytes(8 << 20)).build().unwrap()).unwrap();
    let error = block_on(GpuArray::upload(&gpu, vec![5_u8; 16 << 20])).unwrap_err();
    assert!(matches!(error.error(), ArrayError::Pool(PoolError::LimitReached(_))), "{error}");
    assert_eq!(error.into_value(), Some(vec![5_u8; 16 << 20]));
    let pinned =
        Pool::builder(&device).kind(MemoryKind::Host).hard_limit(Limit::Bytes(2 << 20)).build().unwrap();
    let gpu = Gpu::with_stream(gpu.pool(), gpu.stream()).unwrap();
    gpu.set_pool(&pinned).unwrap();
    let x = GpuArray::<u8, _>::zeros(&gpu, 4 << 20).unwrap();
    let download = x.download();
    assert!(download.is_complete());
    assert!(matches!(download.wait(), Err(ArrayError::Pool(PoolError::LimitReached(_)))));
    // What was in flight is free again.
    gpu.synchronize().unwrap();
    assert_eq!(pinned.status().unwrap().in_use_bytes, 0);
}

#[test]
fn invalid_elements_are_refused() {
    let gpu = gpu();
    let bytes = GpuArray::from_slice(&gpu, &[1_u8, 0, 2]).unwrap();
    let flags: GpuArray<bool, Ix1> = {
        let flags = GpuArray::<bool, _>::zeros(&gpu, 3).unwrap();
        let _bound = gpu.device().bind().unwrap();
        // SAFETY: both have three bytes. That the last is not a `bool` is the purpose of this test.
        unsafe { gpu.device().driver().cuMemcpy(flags.address(), bytes.address(), 3).unwrap() };
        flags
    };
    assert!(matches!(flags.download().wait(), Err(ArrayError::InvalidElement { index: 2, .. })));
    let target = PinnedArray::zeros(&gpu.pinned(), 3).unwrap();
    let refused = block_on(flags.download_into(target)).unwrap_err();
    assert!(matches!(refused.error(), ArrayError::InvalidElement { index: 2, .. }), "{refused}");
    assert!(refused.into_value().unwrap().as_slice().is_err());
}

#[test]
fn a_lost_context_resolves_every_transfer() {
    let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ECC_UNCORRECTABLE };
    let config = SimConfig::new().schedule(Schedule::Late).rule(Rule::new("cuMemGetInfo", effect).nth(2));
    let gpu = gpu_with(config);
    gpu.device().memory_info().unwrap();
    let mut x = GpuArray::<u32, _>::zeros(&gpu, 1000).unwrap();
    let downloads: Vec<_> = (0..50)
        .map(|number| {
            x.fill(number).unwrap();
            x.download()
        })
        .collect();
    let upload = GpuArray::upload(&gpu, vec![1_u8; 100]);
    let task = std::thread::spawn(|| (block_on(all(downloads)), block_on(upload)));
    std::thread::sleep(Duration::from_millis(2));
    assert!(gpu.device().memory_info().is_err());
    let (downloads, upload) = task.join().unwrap();
    let is_lost =
        |error: &ArrayError| matches!(error, ArrayError::Pool(PoolError::Device(DeviceError::DeviceLost(_))));
    // The simulator may have run some before, or all.
    assert!(downloads.iter().all(|outcome| outcome.as_ref().err().is_none_or(is_lost)));
    if let Err(error) = upload {
        assert!(is_lost(error.error()) && error.into_value().unwrap() == [1; 100]);
    }
    assert!(block_on(x.download()).is_err_and(|error| is_lost(&error)));
}

/// Counts, works and reports.
struct Call<F> {
    count: AtomicUsize,
    done: Mutex<Sender<()>>,
    work: F,
}

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        (self.work)();
        self.count.fetch_add(1, Ordering::SeqCst);
        let _ = self.done.lock().unwrap().send(());
    }
}

#[test]
fn a_waker_of_another_thread_uses_arrays() {
    // The notifier may be faster than the second poll, after which no waker is called.
    assert!((0..100).any(|_| is_woken_on_another_thread()));
}

/// True if the second of two wakers was called.
fn is_woken_on_another_thread() -> bool {
    let gpu = gpu_with(SimConfig::new().schedule(Schedule::Late));
    let x = GpuArray::<i32, _>::ones(&gpu, 1000).unwrap();
    let mut download = x.download();
    let (done, wakes) = channel();
    let old = Arc::new(Call { count: AtomicUsize::new(0), done: Mutex::new(done.clone()), work: || () });
    let other = gpu.fork().unwrap();
    let work = move || assert_eq!(x.on(&other).sum().unwrap().into_scalar().unwrap(), 1000);
    let new = Arc::new(Call { count: AtomicUsize::new(0), done: Mutex::new(done), work });
    let is_pending = poll(&mut download, &old.clone().into()).is_pending();
    let waker = Waker::from(new.clone());
    let polled =
        std::thread::spawn(move || (poll(&mut download, &waker).is_pending(), download)).join().unwrap();
    if polled.0 {
        wakes.recv_timeout(LONG).unwrap();
        assert!(is_pending && new.count.load(Ordering::SeqCst) == 1);
        assert_eq!(polled.1.wait().unwrap(), [1; 1000]);
    }
    polled.0
}

#[test]
fn captures_have_no_transfers() {
    let gpu = gpu();
    let x = GpuArray::<f32, _>::ones(&gpu, 3).unwrap();
    let captured = gpu.capture(|c| {
        assert!(x.on(c).download().wait().is_err());
        assert!(GpuArray::upload(&**c, vec![1.0_f32]).wait().is_err());
        // The thread captures, so it may not use another stream.
        assert!(matches!(x.download().wait(), Err(ArrayError::Graph(_))));
        x.on(c).sum()
    });
    assert!(captured.is_ok());
    assert_eq!(x.download().wait().unwrap(), [1.0; 3]);
}

/// Without a link, the stream of the target's own `Gpu` copies. The download resolves behind it.
#[test]
fn a_download_between_devices_resolves_behind_its_copy() {
    for seed in 0..60 {
        let driver = gpumem_sim::driver(SimConfig::new().devices(2).without_link(0, 1).seed(seed)).unwrap();
        let gpu = |index| Gpu::new(&Pool::from_env(&Device::new(&driver, index).unwrap()).unwrap()).unwrap();
        let (home, other) = (gpu(0), gpu(1));
        let x = GpuArray::from_elem(&home, 1000, 7).unwrap();
        let target = PinnedArray::<i32, _>::zeros(&home.pinned(), 1000).unwrap();
        home.synchronize().unwrap();
        let _earlier = [(); 60].map(|()| GpuArray::<i32, _>::zeros(&home, 1000).unwrap());
        let download = x.on(&other).download_into(target);
        while !download.is_complete() {
            std::thread::yield_now();
        }
        assert!(home.stream().is_complete().unwrap(), "seed {seed}");
        assert_eq!(download.wait().unwrap().as_slice().unwrap(), [7; 1000]);
    }
}
