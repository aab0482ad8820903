//! Data sets in batches and feeds: contents, order, every way of leaving the loop, bounds, on the simulator with its race detection.

use crate::machine::{COLUMNS, ROW_BYTES, first_column, machine, machine_of, table};
use gpumem_adapt::array::ndarray::{Array, Array1, Array2, ArrayD, ArrayView2, Axis, Ix1, IxDyn, s};
use gpumem_adapt::array::pool::sys::CUresult;
use gpumem_adapt::array::pool::{Device, Pool, PoolError};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, StagingOptions, UnifiedArray};
use gpumem_adapt::{Adapt, AdaptError, Host, Rows, Source, batches, feed, feed_stream, try_feed};
use gpumem_sim::{Effect, Rule, Schedule, Sim, SimConfig};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

#[test]
fn batches_have_all_rows_in_order() {
    for seed in 0..6 {
        let machine = machine(seed, None);
        let x = table(10);
        let y = Array1::from_iter(0..10_i32);
        for prefetch in [0, 1, 2, 8] {
            let mut rows = Vec::new();
            for batch in batches((&x, &y)).batch_size(3).prefetch(prefetch).on(&machine.gpu).unwrap() {
                let (mut x, y) = batch.unwrap();
                // On the stream of the consumer, while the next batches are on their way.
                assert_eq!(x.gpu(), &machine.gpu);
                x.try_mul_assign(2.0).unwrap();
                let expected: Vec<_> = y.to_vec().unwrap().iter().map(|row| 2 * *row as usize).collect();
                assert_eq!(first_column(&x), expected);
                rows.extend(expected);
            }
            assert_eq!(rows, (0..10).map(|row| 2 * row).collect::<Vec<_>>());
        }
        machine.end();
    }
}

#[test]
fn options_choose_the_rows() {
    let machine = machine(0, None);
    let rows: Vec<u16> = (0..100).collect();
    let read = |batches: gpumem_adapt::Batches<&Vec<u16>>| -> Vec<Vec<u16>> {
        let feed = batches.on(&machine.gpu).unwrap();
        feed.map(|batch| batch.unwrap().to_vec().unwrap()).collect()
    };
    assert_eq!(read(batches(&rows)).iter().map(Vec::len).collect::<Vec<_>>(), [32, 32, 32, 4]);
    let dropped = read(batches(&rows).batch_size(30).drop_last());
    assert_eq!(dropped.concat(), (0..90).collect::<Vec<_>>());
    let shuffled = read(batches(&rows).batch_size(30).shuffle(5));
    assert_eq!(shuffled, read(batches(&rows).batch_size(30).shuffle(5)), "the seed decides");
    assert_ne!(shuffled, read(batches(&rows).batch_size(30).shuffle(6)));
    let mut sorted = shuffled.concat();
    assert_ne!(sorted, rows);
    sorted.sort_unstable();
    assert_eq!(sorted, rows);
    assert_eq!(read(batches(&Vec::new())), Vec::<Vec<u16>>::new());
    let feed = batches(&rows).batch_size(usize::MAX).on(&machine.gpu).unwrap();
    assert_eq!((feed.size_hint(), feed.count()), ((1, Some(1)), 1));
    // Records of a memory-mapped file.
    let bytes: &[u8] = &[7; 60];
    let records = ArrayView2::from_shape((10, 6), bytes).unwrap();
    let shapes =
        batches(&records).batch_size(4).on(&machine.gpu).unwrap().map(|batch| batch.unwrap().shape()[0]);
    assert_eq!(shapes.collect::<Vec<_>>(), [4, 4, 2]);
    assert_eq!((bytes, &records).row_count(), 10);
    let third = (&records).batch(&Rows::Indices(vec![3])).unwrap();
    assert_eq!(records.view().row(3).to_vec(), third.row(0).to_vec());
    // Rows are gathered from arrays of any layout and number of axes, as `select` does.
    let cube = Array::from_shape_fn((4, 3, 2), |(i, j, k)| (100 * i + 10 * j + k) as u16);
    let order = [2, 0, 3, 3];
    for view in [cube.view(), cube.slice(s![.., ..;-1, ..]), cube.view().permuted_axes([0, 2, 1])] {
        let gathered = (&view).batch(&Rows::Indices(order.to_vec())).unwrap();
        assert_eq!(gathered, view.select(Axis(0), &order));
        let dynamic = view.into_dyn();
        let gathered = (&dynamic).batch(&Rows::Indices(order.to_vec())).unwrap();
        assert_eq!(gathered, dynamic.select(Axis(0), &order));
    }
    machine.end();
}

/// A source of a program can ask the ones inside of it for any rows.
#[test]
fn rows_that_do_not_exist_are_errors() {
    let (x, scalar) = (Array2::<u8>::zeros((3, 2)), ArrayD::<u8>::zeros(IxDyn(&[])));
    #[expect(clippy::reversed_empty_ranges, reason = "a range of a client")]
    let ranges = [2..4, 4..4, usize::MAX..usize::MAX, 3..2, 0..usize::MAX];
    let indices = [vec![3], vec![0, usize::MAX]].map(Rows::Indices);
    for rows in ranges.map(Rows::Range).into_iter().chain(indices) {
        let error = (&x).batch(&rows).unwrap_err();
        assert!(error.to_string().contains("a data set of 3 rows has no row "), "{error}");
        assert!((&x.view().into_dyn()).batch(&rows).is_err() && (&scalar).batch(&rows).is_err());
        assert!((&vec![0_u8; 3], &x).batch(&rows).is_err());
    }
    assert!((&scalar).batch(&Rows::Range(0..0)).is_err());
    assert_eq!((&x).batch(&Rows::Range(3..3)).unwrap().nrows(), 0);
    assert_eq!((&x).batch(&Rows::Indices(Vec::new())).unwrap().nrows(), 0);
}

#[test]
fn arrays_without_axes_and_without_columns_are_data_sets() {
    let machine = machine(0, None);
    let scalar = ArrayD::<f32>::zeros(IxDyn(&[]));
    assert_eq!(batches(&scalar).on(&machine.gpu).unwrap().count(), 0);
    assert_eq!(batches((&scalar, &scalar)).shuffle(1).on(&machine.gpu).unwrap().count(), 0);
    let wide = Array2::<f32>::zeros((5, 0));
    let rows = batches(&wide).batch_size(2).on(&machine.gpu).unwrap().map(|batch| batch.unwrap().shape()[0]);
    assert_eq!(rows.collect::<Vec<_>>(), [2, 2, 1]);
    machine.end();
}

#[test]
fn batches_without_rows_and_data_sets_of_different_lengths_are_refused() {
    let machine = machine(0, None);
    let (x, y) = (table(3), Array1::<i32>::zeros(4));
    let refused = batches(&x).batch_size(0).on(&machine.gpu).unwrap_err().to_string();
    assert!(refused.contains("batch_size"), "{refused}");
    for refused in [
        batches((&x, &y)).on(&machine.gpu).unwrap_err().to_string(),
        batches((&x, &y)).on_host().unwrap_err().to_string(),
        batches(((&x, &y), &x)).on(&machine.gpu).unwrap_err().to_string(),
    ] {
        assert!(refused.contains("4 rows") && refused.contains("has 3"), "{refused}");
    }
    machine.end();
}

#[test]
fn feeds_know_how_many_items_are_left() {
    let machine = machine(0, None);
    let mut feed = feed((0..5).map(|index| vec![index as f32; 10])).prefetch(2).on(&machine.gpu).unwrap();
    for left in (0..5).rev() {
        assert_eq!(feed.len(), left + 1);
        drop(feed.next().unwrap().unwrap());
    }
    assert_eq!((feed.len(), feed.next().is_none()), (0, true));
    let x = table(7);
    assert_eq!(batches(&x).batch_size(2).on(&machine.gpu).unwrap().len(), 4);
    drop(feed);
    machine.end();
}

/// Both sides take turns in being slow, and the consumer keeps batches.
#[test]
fn kept_batches_come_on_top_of_the_prefetched_ones() {
    let x = Array2::<f32>::ones((12, 8 << 10));
    let row_bytes = 32 << 10;
    for (consumer_is_slow, kept_count) in
        [(false, 0), (true, 0), (false, 1), (true, 1), (false, 3), (true, 3)]
    {
        for prefetch in [1_usize, 2, 4] {
            let machine = machine(7, None);
            let gpu = machine.gpu.clone();
            let rows = x.rows().into_iter().map(|row| {
                if !consumer_is_slow {
                    // The device is idle when the next item comes.
                    gpu.device().synchronize().unwrap();
                }
                row.to_vec()
            });
            let mut kept = VecDeque::new();
            for batch in feed(rows).prefetch(prefetch).on(&machine.gpu).unwrap() {
                let mut batch = batch.unwrap();
                let rounds = if consumer_is_slow { 30 } else { 1 };
                (0..rounds).for_each(|_| batch.try_add_assign(1.0).unwrap());
                kept.push_back(batch);
                if kept.len() > kept_count {
                    kept.pop_front();
                }
            }
            assert_eq!(kept.len(), kept_count);
            drop(kept);
            let peak_rows = machine.gpu.pool().status().unwrap().in_use_peak_bytes / row_bytes;
            let bounds = kept_count as u64 + 1..=(kept_count + prefetch) as u64 + 1;
            assert!(bounds.contains(&peak_rows), "{peak_rows} rows with {kept_count} kept, {prefetch} ahead");
            drop(gpu);
            machine.end();
        }
    }
}

/// The number of batches that are in use at a time, by the pool's own peak.
#[test]
fn at_most_one_batch_more_than_the_prefetched_ones_is_on_the_device() {
    for schedule in [Schedule::Late, Schedule::Early] {
        let x = table(12);
        for prefetch in [1, 2, 4] {
            let driver = gpumem_sim::driver(SimConfig::new().schedule(schedule.clone())).unwrap();
            let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
            for batch in batches(&x).batch_size(1).prefetch(prefetch).on(&gpu).unwrap() {
                batch.unwrap().try_add_assign(1.0).unwrap();
            }
            let peak = gpu.pool().status().unwrap().in_use_peak_bytes;
            assert!(peak <= (prefetch as u64 + 1) * ROW_BYTES, "{prefetch}: {peak}");
        }
    }
}

/// Three times as many rows as fit on the device. The batch that the consumer keeps and the batch ahead fill the device, so the upload of a
/// third is refused and repeated once the consumer has dropped one.
#[test]
fn a_data_set_that_does_not_fit_passes_through() {
    let configs = (0..4).map(|seed| SimConfig::new().seed(seed));
    for config in configs.chain([Schedule::Late, Schedule::Early].map(|one| SimConfig::new().schedule(one))) {
        let machine = machine_of(config, 0, Some(8));
        let x = table(24);
        let mut rows = UnifiedArray::<f32, _>::zeros(&machine.gpu.unified(), 24).unwrap();
        let mut kept = None;
        for (index, batch) in batches(&x).batch_size(4).prefetch(8).on(&machine.gpu).unwrap().enumerate() {
            let mut batch = batch.unwrap();
            batch.try_add_assign(1.0).unwrap();
            let first = batch.slice(s![.., 0]).unwrap();
            rows.slice_mut(s![4 * index..4 * index + 4]).unwrap().assign(&first).unwrap();
            kept = Some(batch);
        }
        assert_eq!(rows.to_vec().unwrap(), (1..25).map(|row| row as f32).collect::<Vec<_>>());
        assert_eq!(machine.gpu.pool().status().unwrap().in_use_peak_bytes, 8 * ROW_BYTES);
        drop((rows, kept));
        machine.end();
    }
}

/// The same with items that become arrays: an upload that is refused is delayed, and no item is lost.
#[test]
fn vectors_that_do_not_fit_pass_through() {
    for schedule in [Schedule::Late, Schedule::Early] {
        let machine = machine_of(SimConfig::new().schedule(schedule), 0, Some(8));
        let items = (0..12).map(|index| (vec![index as f32; 4 * COLUMNS], index));
        let mut sums = UnifiedArray::<f32, _>::zeros(&machine.gpu.unified(), 12).unwrap();
        let (mut read, mut kept) = (Vec::new(), None);
        for batch in feed(items).prefetch(8).on(&machine.gpu).unwrap() {
            let (mut values, index) = batch.unwrap();
            values.try_add_assign(1.0).unwrap();
            let last = values.slice(s![-1..]).unwrap();
            sums.slice_mut(s![index..=index]).unwrap().assign(&last).unwrap();
            read.push(index);
            kept = Some(values);
        }
        assert_eq!(read, (0..12).collect::<Vec<_>>());
        assert_eq!(sums.to_vec().unwrap(), (1..13).map(|value| value as f32).collect::<Vec<_>>());
        assert_eq!(machine.gpu.pool().status().unwrap().in_use_peak_bytes, 8 * ROW_BYTES);
        drop((sums, kept));
        machine.end();
    }
}

/// Elements of a `Vec` become an array; those of an array `[T; N]`, and numbers by themselves, stay on the host.
#[test]
fn vectors_of_elements_are_not_at_a_gpu() {
    let machine = machine(0, None);
    let gpu = &machine.gpu;
    assert!(!vec![1.0_f32].is_at(gpu));
    assert!(!(vec![true], 1).is_at(gpu));
    assert!(!vec![[1_u8; 4]].is_at(gpu));
    assert!(!Some(vec!['a']).is_at(gpu));
    assert!(1.0_f32.is_at(gpu) && [1.0_f32; 3].is_at(gpu) && vec![String::new()].is_at(gpu));
    assert!(vec![1.0_f32].is_at(&Host));
    let array = GpuArray::from_elem(gpu, 10, 1.0_f32).unwrap();
    assert!((array, vec![(); 2]).is_at(gpu));
    machine.end();
}

#[test]
fn every_way_of_leaving_the_loop_returns_all_memory() {
    let x = table(12);
    for seed in 0..6 {
        let machine = machine(seed, None);
        let feed = || batches(&x).batch_size(2).prefetch(3).on(&machine.gpu).unwrap();
        // The end, a break at each batch, a return by `?`.
        for last in 0..7 {
            for (index, batch) in feed().enumerate() {
                if index == last {
                    break;
                }
                batch.unwrap().try_add_assign(1.0).unwrap();
            }
        }
        // Batches that are kept outlive the feed.
        let kept: Vec<_> = feed().map(Result::unwrap).collect();
        assert_eq!(first_column(&kept[5]), [10, 11]);
        drop(kept);
        // A panic of the consumer.
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            for (index, batch) in feed().enumerate() {
                batch.unwrap().try_add_assign(1.0).unwrap();
                if index == 2 {
                    std::panic::resume_unwind(Box::new("the consumer"));
                }
            }
        }));
        assert!(unwound.is_err());
        // A feed that was never asked, and one that is dropped with batches on their way.
        drop(feed());
        let mut started = feed();
        drop(started.next());
        drop(started);
        machine.end();
    }
}

/// Forgotten feeds keep their batches, but nothing on the device uses the source afterwards.
#[test]
fn a_forgotten_feed_leaves_the_source_alone() {
    let machine = machine(1, None);
    let mut x = table(4);
    let mut feed = batches(&x).batch_size(1).prefetch(2).on(&machine.gpu).unwrap();
    let first = feed.next().unwrap().unwrap();
    std::mem::forget(feed);
    x.fill(-1.0);
    assert_eq!(first_column(&first), [0]);
    machine.gpu.device().synchronize().unwrap();
    let report = Sim::of(machine.gpu.device().driver()).unwrap().report();
    assert_eq!(report.findings, []);
}

#[test]
fn errors_of_the_source_come_in_order_and_the_feed_goes_on() {
    let machine = machine(0, None);
    let items = (0..6).map(|index| match index {
        1 | 4 => Err(format!("file {index} is damaged")),
        _ => Ok(vec![index as f32; 1000]),
    });
    let read = try_feed(items).prefetch(3).on(&machine.gpu).unwrap().map(|batch| match batch {
        Ok(batch) => batch.to_vec().unwrap()[0].to_string(),
        Err(error) => error.to_string(),
    });
    let expected = ["0", "file 1 is damaged", "2", "3", "file 4 is damaged", "5"];
    assert_eq!(read.collect::<Vec<_>>(), expected);
    machine.end();
}

#[test]
fn a_panic_of_the_source_leaves_the_feed_usable() {
    let machine = machine(0, None);
    let pulled = AtomicUsize::new(0);
    let items = std::iter::from_fn(|| {
        let index = pulled.fetch_add(1, Ordering::Relaxed);
        if index == 2 {
            std::panic::resume_unwind(Box::new("the source"));
        }
        (index < 5).then(|| vec![index as u8; 100_000])
    });
    let mut feed = feed(items).prefetch(2).on(&machine.gpu).unwrap();
    let (mut read, mut panics) = (Vec::new(), 0);
    loop {
        match catch_unwind(AssertUnwindSafe(|| feed.next())) {
            Ok(Some(batch)) => read.push(batch.unwrap().to_vec().unwrap()[0]),
            Ok(None) => break,
            Err(_) => panics += 1,
        }
    }
    assert_eq!((read, panics), (vec![0, 1, 3, 4], 1));
    drop(feed);
    machine.end();
}

#[test]
fn a_batch_that_is_there_passes_through() {
    let machine = machine(0, None);
    let gpu = &machine.gpu;
    let arrays: Vec<_> = (0..3).map(|index| GpuArray::from_elem(gpu, 1000, index as f32).unwrap()).collect();
    let addresses: Vec<_> = arrays.iter().map(GpuArray::address).collect();
    let passed = feed(arrays).prefetch(2).on(gpu).unwrap();
    assert_eq!(passed.map(|batch| batch.unwrap().address()).collect::<Vec<_>>(), addresses);
    machine.end();
}

#[test]
fn every_driver_call_that_fails_is_an_error_of_one_batch() {
    // Two buffers a batch.
    let (buffer_bytes, x) = (64 << 10, Array2::<f32>::ones((6, 16 << 10)));
    let mut failed_count = 0;
    for nth in 1.. {
        let rule = |effect| Rule::new("*", effect).nth(nth);
        // The byte is taken in the call that fails, and shows that the call was made.
        let taken = rule(Effect::TakeMemory { device: 0, size_bytes: 1 });
        let fails = rule(Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let driver = gpumem_sim::driver(SimConfig::new().rule(taken).rule(fails)).unwrap();
        let mut is_poisoned = false;
        let mut run = || -> Result<usize, AdaptError> {
            let device = Device::new(&driver, 0).map_err(ArrayError::from)?;
            let gpu = Gpu::new(&Pool::from_env(&device).map_err(ArrayError::from)?)?;
            gpu.set_staging(StagingOptions::new().buffer_bytes(buffer_bytes).buffers(3).threads(1));
            let (mut error_count, mut batch_count) = (0, 0);
            for batch in batches(&x).batch_size(2).on(&gpu)? {
                batch_count += 1;
                error_count +=
                    usize::from(batch.and_then(|mut batch| Ok(batch.try_add_assign(1.0)?)).is_err());
            }
            assert_eq!(batch_count, 3, "call {nth}");
            is_poisoned = matches!(gpu.pool().alloc(0, gpu.stream()), Err(PoolError::Poisoned { .. }));
            Ok(error_count)
        };
        let error_count = run().unwrap_or(0);
        assert!(error_count <= 1 || is_poisoned, "call {nth}: {error_count} batches failed");
        failed_count += error_count;
        let sim = Sim::of(&driver).unwrap();
        assert_eq!(sim.report().silent_findings(), [], "call {nth}: {}", sim.report());
        if sim.others_bytes(0) == 0 {
            break;
        }
    }
    assert!(failed_count > 6, "{failed_count}");
}

/// A stream that is pending every other time.
struct Hesitant(Vec<Result<Vec<f32>, String>>, bool);

impl futures_core::Stream for Hesitant {
    type Item = Result<Vec<f32>, String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.1 = !self.1;
        if self.1 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
    }
}

async fn next<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[test]
fn feeds_are_streams() {
    let machine = machine(0, None);
    let items =
        vec![Ok(vec![1.0; 40_000]), Err("lost".to_string()), Ok(vec![2.0; 40_000]), Ok(vec![3.0; 10])];
    let mut stream = feed_stream(Hesitant(items, false), &machine.gpu).unwrap().prefetch(3);
    let read = pollster::block_on(async {
        let mut read = Vec::new();
        while let Some(batch) = next(&mut stream).await {
            read.push(
                batch
                    .map(|batch: GpuArray<f32, Ix1>| batch.to_vec().unwrap()[0])
                    .map_err(|error| error.to_string()),
            );
        }
        read
    });
    assert_eq!(read, [Ok(1.0), Err("lost".into()), Ok(2.0), Ok(3.0)]);
    drop(stream);
    let x = table(3);
    let mut feed = batches(&x).batch_size(2).on(&machine.gpu).unwrap();
    let lengths = pollster::block_on(async {
        let mut lengths = Vec::new();
        while let Some(batch) = next(&mut feed).await {
            lengths.push(batch.unwrap().shape()[0]);
        }
        lengths
    });
    assert_eq!(lengths, [2, 1]);
    drop(feed);
    machine.end();
}
