//! Waits cover the necessary work only: a consumer does not wait for work queued later on its producer's stream, and a download
//! does not wait for work that another thread queues behind it. Durations are those of the simulator's virtual clock. The backend
//! `none` has no such guarantee: its frees wait for the device.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Axis, Ix1, s};
use gpumem_array::pool::sys::Table;
use gpumem_array::pool::sys::types::{CUdeviceptr, CUevent, CUresult, CUstream};
use gpumem_array::pool::{Device, MemoryKind, Pool};
use gpumem_array::{Gpu, GpuArray, StagingOptions};
use gpumem_sim::{Costs, Schedule, Sim, SimConfig};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// 4 MiB: an upload takes 76 µs.
const LEN: usize = 1 << 20;

fn host_time(gpu: &Gpu) -> Duration {
    Sim::of(gpu.device().driver()).unwrap().host_time()
}

/// Asserts that the durations differ by less than 5 %.
fn assert_equal(times: &[Duration]) {
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!(*most < *least * 105 / 100, "{times:?}");
}

/// Arrays in pinned host memory.
fn batches(gpu: &Gpu, count: usize) -> Vec<GpuArray<f32, Ix1>> {
    let pool = Pool::builder(gpu.device()).kind(MemoryKind::Host).build().unwrap();
    let host = Gpu::with_stream(&pool, gpu.stream()).unwrap();
    let batches: Vec<_> =
        (0..count).map(|index| GpuArray::from_slice(&host, &vec![index as f32; LEN]).unwrap()).collect();
    gpu.device().synchronize().unwrap();
    batches
}

/// The time from the first of `ahead` uploads on a stream of their own until the host has the sum of the first one.
fn first_sum(ahead: usize, prepare: impl Fn(&Gpu, &Gpu), target_of: impl Fn(&Gpu, &Gpu) -> Gpu) -> Duration {
    let gpu = gpu();
    let copy = gpu.fork().unwrap();
    let batches = batches(&gpu, ahead);
    gpu.preload::<f32>().unwrap();
    let owner = target_of(&gpu, &copy);
    let mut arrays: Vec<_> = (0..ahead).map(|_| GpuArray::<f32, _>::zeros(&owner, LEN).unwrap()).collect();
    prepare(&gpu, &copy);
    gpu.device().synchronize().unwrap();
    let begin = host_time(&gpu);
    for (array, batch) in arrays.iter_mut().zip(&batches) {
        array.on_mut(&copy).assign(batch).unwrap();
    }
    let sum = arrays[0].on(&gpu).sum().unwrap();
    assert_eq!(sum.into_scalar().unwrap(), 0.0);
    let time = host_time(&gpu) - begin;
    for (index, array) in arrays.iter().enumerate() {
        assert_eq!(array.on(&gpu).sum().unwrap().into_scalar().unwrap(), index as f32 * LEN as f32);
    }
    time
}

#[test]
fn the_first_batch_does_not_wait_for_those_behind() {
    let times: Vec<_> =
        [1, 2, 4, 8].into_iter().map(|ahead| first_sum(ahead, |_, _| {}, |gpu, _| gpu.clone())).collect();
    assert_equal(&times);
    let times: Vec<_> =
        [1, 2, 4, 8].into_iter().map(|ahead| first_sum(ahead, |_, _| {}, |_, copy| copy.clone())).collect();
    assert_equal(&times);
}

/// Elements of the program's own memory, which go through pinned buffers, over a link that is so slow that the uploads are queued before
/// the first one is done.
#[test]
fn the_first_upload_does_not_wait_for_those_behind() {
    let time = |ahead: usize| {
        let mut costs = Costs::h200();
        costs.upload_bytes_per_us = 1000;
        let gpu = gpu_with(SimConfig::new().costs(costs).schedule(Schedule::Late));
        gpu.set_staging(StagingOptions::new().buffer_bytes(256 << 10));
        let copy = gpu.fork().unwrap();
        gpu.preload::<f32>().unwrap();
        let values = vec![1.0_f32; 64 << 10];
        let upload = || GpuArray::from_slice(&copy, &values).unwrap();
        // Until there are pinned buffers and reserved memory for all uploads.
        (0..100).for_each(|_| drop([(); 8].map(|()| upload())));
        // The stream of the sums has memory of its own.
        drop(GpuArray::<f32, _>::zeros(&gpu, 8).unwrap().sum().unwrap());
        gpu.device().synchronize().unwrap();
        let begin = host_time(&gpu);
        let arrays: Vec<_> = (0..ahead).map(|_| upload()).collect();
        assert_eq!(arrays[0].on(&gpu).sum().unwrap().into_scalar().unwrap(), values.len() as f32);
        host_time(&gpu) - begin
    };
    assert_equal(&[1, 2, 4, 8].map(time));
}

/// The producer's work is on the device alone. Another stream has waited for the producer's stream, so waits for its writes are
/// exact.
#[test]
fn a_producer_that_was_waited_for_is_waited_for_exactly() {
    let first = |ahead: usize| {
        let gpu = gpu();
        let producer = gpu.fork().unwrap();
        gpu.preload::<f32>().unwrap();
        let source = GpuArray::from_elem(&producer, LEN, 1.0_f32).unwrap();
        assert_eq!(source.on(&gpu).sum().unwrap().into_scalar().unwrap(), LEN as f32);
        gpu.device().synchronize().unwrap();
        let begin = host_time(&gpu);
        let arrays: Vec<_> = (0..ahead).map(|_| source.try_clone().unwrap()).collect();
        let sum = arrays[0].on(&gpu).sum().unwrap();
        // The time that the host takes to queue the work, which is a lower bound of the time until the result.
        let queued = host_time(&gpu) - begin;
        assert_eq!(sum.into_scalar().unwrap(), LEN as f32);
        (queued, host_time(&gpu) - begin)
    };
    let (_, one) = first(1);
    let (queued, eight) = first(8);
    // A copy on the device takes 9 µs.
    assert!(eight < one.max(queued) + Duration::from_micros(20), "{one:?} {queued:?} {eight:?}");
}

/// The times that a reader and then a writer wait for an array which other streams read for a long time, and the time of these reads.
fn behind_readers(reader_count: usize, has_parts: bool) -> [Duration; 3] {
    let gpu = gpu();
    gpu.preload::<f32>().unwrap();
    let last = gpu.fork().unwrap();
    let mut x = GpuArray::from_elem(&gpu, 4 * LEN, 2.0_f32).unwrap();
    if has_parts {
        let (_left, _right) = x.split_at_mut(Axis(0), LEN).unwrap();
    }
    let readers: Vec<_> = (0..reader_count).map(|_| gpu.fork().unwrap()).collect();
    let mut copies: Vec<_> =
        readers.iter().map(|reader| GpuArray::<f32, _>::zeros(reader, 4 * LEN).unwrap()).collect();
    assert_eq!(x.slice(s![..10]).unwrap().on(&last).sum().unwrap().into_scalar().unwrap(), 20.0);
    gpu.device().synchronize().unwrap();
    let begin = host_time(&gpu);
    for copy in &mut copies {
        (0..40).for_each(|_| copy.assign(&x).unwrap());
    }
    let queued = host_time(&gpu);
    assert_eq!(x.slice(s![..10]).unwrap().on(&last).sum().unwrap().into_scalar().unwrap(), 20.0);
    let read = host_time(&gpu);
    x.slice_mut(s![..10]).unwrap().on_mut(&last).fill(1.0).unwrap();
    last.synchronize().unwrap();
    let written = host_time(&gpu);
    gpu.device().synchronize().unwrap();
    assert!(copies.iter().all(|copy| copy.slice(s![-1]).unwrap().into_scalar().unwrap() == 2.0));
    [read - queued, written - read, host_time(&gpu) - begin]
}

/// A reader waits as long as one that is alone, however many streams read the array at the moment. A writer waits for all of them,
/// which shows that the reads take long.
#[test]
fn a_reader_does_not_wait_for_readers() {
    for has_parts in [false, true] {
        let [alone, ..] = behind_readers(0, has_parts);
        // With 12 readers the points of some do not fit into the array's own record.
        for reader_count in [1, 3, 12] {
            let [read, written, whole] = behind_readers(reader_count, has_parts);
            let times = format!("{has_parts} {reader_count}: {alone:?} {read:?} {written:?} {whole:?}");
            assert!(read < alone * 105 / 100, "{times}");
            assert!(written > read * 10 && written > whole / 3, "{times}");
        }
    }
}

#[test]
fn a_program_with_one_stream_records_events_for_numbers_alone() {
    static RECORDED: AtomicU64 = AtomicU64::new(0);
    static REAL: Mutex<Option<Table>> = Mutex::new(None);
    unsafe extern "C" fn record(event: CUevent, stream: CUstream) -> CUresult {
        RECORDED.fetch_add(1, Ordering::SeqCst);
        let real = REAL.lock().unwrap_or_else(PoisonError::into_inner).and_then(|table| table.cuEventRecord);
        // SAFETY: the arguments are passed unchanged to the function that this one replaces.
        real.map_or(CUresult::CUDA_ERROR_NOT_FOUND, |real| unsafe { real(event, stream) })
    }
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    *REAL.lock().unwrap() = Some(*driver.table());
    // SAFETY: the wrapper calls the function that it replaces.
    let driver = unsafe { driver.with_table(|table| table.cuEventRecord = Some(record)) };
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let mut a = GpuArray::from_elem(&gpu, 100, 1.0_f32).unwrap();
    let b = GpuArray::from_elem(&gpu, 100, 2.0_f32).unwrap();
    for _ in 0..10 {
        a.try_add_assign(&b).unwrap();
    }
    assert_eq!(RECORDED.swap(0, Ordering::SeqCst), 0);
    for _ in 0..10 {
        let _sum = a.sum().unwrap();
    }
    assert_eq!(RECORDED.swap(0, Ordering::SeqCst), 10, "the host may read a number behind later work");
    gpu.synchronize().unwrap();
    let other = gpu.fork().unwrap();
    let _copy = a.on(&other).to_owned().unwrap();
    assert_eq!(RECORDED.load(Ordering::SeqCst), 0, "the host has waited for all of it");
    a.try_add_assign(&b).unwrap();
    assert_eq!(RECORDED.load(Ordering::SeqCst), 2, "for the reader before, and for readers to come");
    a.try_add_assign(&b).unwrap();
    let recorded = RECORDED.load(Ordering::SeqCst);
    let other = gpu.fork().unwrap();
    for _ in 0..10 {
        let _copy = a.on(&other).to_owned().unwrap();
    }
    assert_eq!(RECORDED.load(Ordering::SeqCst), recorded + 1, "one wait is enough for all reads");
}

#[test]
fn a_download_waits_for_its_own_copy_alone() {
    // The work that this thread queues on the stream right behind its next download, before it waits for the download.
    thread_local! {
        static BEHIND: Cell<Option<(CUdeviceptr, usize)>> = const { Cell::new(None) };
    }
    static REAL: Mutex<Option<Table>> = Mutex::new(None);
    unsafe extern "C" fn record(event: CUevent, stream: CUstream) -> CUresult {
        let table = REAL.lock().unwrap_or_else(PoisonError::into_inner).unwrap();
        // SAFETY: the arguments are passed unchanged to the function that this one replaces; the block outlives the queued fills.
        unsafe {
            let recorded = table.cuEventRecord.unwrap()(event, stream);
            if let Some((address, size)) = BEHIND.take() {
                (0..100).for_each(|_| {
                    let _queued = table.cuMemsetD8Async.unwrap()(address, 1, size, stream);
                });
            }
            recorded
        }
    }
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    *REAL.lock().unwrap() = Some(*driver.table());
    // SAFETY: the wrapper calls the function that it replaces.
    let driver = unsafe { driver.with_table(|table| table.cuEventRecord = Some(record)) };
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let large = GpuArray::<u8, _>::zeros(&gpu, 64 << 20).unwrap();
    let small = GpuArray::from_elem(&gpu, (), 5_i32).unwrap();
    gpu.synchronize().unwrap();
    let begin = host_time(&gpu);
    assert_eq!(small.view().into_scalar().unwrap(), 5);
    let alone = host_time(&gpu) - begin;
    BEHIND.set(Some((large.address(), large.len())));
    let begin = host_time(&gpu);
    assert_eq!(small.view().into_scalar().unwrap(), 5);
    // 100 fills of 64 MiB take 2 ms on the device; the calls take the host a part of that time.
    let beside = host_time(&gpu) - begin;
    gpu.synchronize().unwrap();
    let whole = host_time(&gpu) - begin;
    assert!(BEHIND.get().is_none());
    assert!(beside < alone + whole / 2, "{alone:?} {beside:?} {whole:?}");
}

/// A query of its streams reports work that nothing has waited for as incomplete.
fn busy_gpu() -> Gpu {
    gpu_with(SimConfig::new().schedule(Schedule::Late))
}

/// 100 fills of 64 MiB, which take 2 ms.
fn keep_busy(large: &mut GpuArray<u8, Ix1>) {
    (0..100).for_each(|_| large.fill(1).unwrap());
}

#[test]
fn a_number_does_not_wait_for_work_behind_it() {
    let gpu = busy_gpu();
    let mut large = GpuArray::<u8, _>::zeros(&gpu, 64 << 20).unwrap();
    let x = GpuArray::from_elem(&gpu, 1000, 2.0_f32).unwrap();
    assert_eq!(x.sum().unwrap().into_scalar().unwrap(), 2000.0);
    let rounds: Vec<_> = (0..5)
        .map(|_| {
            let begin = host_time(&gpu);
            let sum = x.sum().unwrap();
            keep_busy(&mut large);
            let queued = host_time(&gpu) - begin;
            assert_eq!(sum.into_scalar().unwrap(), 2000.0);
            let waited = host_time(&gpu) - begin - queued;
            gpu.synchronize().unwrap();
            (waited, host_time(&gpu) - begin)
        })
        .collect();
    assert!(rounds.iter().all(|(waited, whole)| *waited < *whole / 10), "{rounds:?}");
}

#[test]
fn a_download_of_finished_work_does_not_wait_for_a_busy_stream() {
    let gpu = busy_gpu();
    let other = gpu.fork().unwrap();
    let mut large = GpuArray::<u8, _>::zeros(&gpu, 64 << 20).unwrap();
    let uploaded = GpuArray::from_slice(&gpu, &[1, 2, 3]).unwrap();
    let strided = GpuArray::from_slice(&gpu, &[1, 2, 3, 4]).unwrap();
    let strided = strided.slice(s![..;-2]).unwrap();
    assert_eq!(strided.to_vec().unwrap(), [4, 2]);
    let elsewhere = GpuArray::from_elem(&other, 3, 7).unwrap();
    gpu.device().synchronize().unwrap();
    keep_busy(&mut large);
    let begin = host_time(&gpu);
    assert_eq!(uploaded.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(elsewhere.on(&gpu).to_vec().unwrap(), [7; 3]);
    assert_eq!(strided.to_vec().unwrap(), [4, 2]);
    let waited = host_time(&gpu) - begin;
    gpu.synchronize().unwrap();
    let whole = host_time(&gpu) - begin;
    assert!(waited < whole / 10, "{waited:?} {whole:?}");
}
