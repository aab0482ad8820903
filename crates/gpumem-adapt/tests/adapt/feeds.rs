//! Feeds under attack: captures, other threads, panics, faults, and random programs, on the simulator with its race detection. Also the
//! overlap of uploads with other work.

#![forbid(unsafe_code)]

use crate::machine::{COLUMNS, ROW_BYTES, first_column, machine, machine_of, table};
use gpumem_adapt::array::kind;
use gpumem_adapt::array::ndarray::{Array1, Array2, CowArray, Dimension, Ix1, Ix2};
use gpumem_adapt::array::pool::sys::CUresult;
use gpumem_adapt::array::pool::{BackendKind, Capture, CaptureMode, Device, Pool, PoolError};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, PinnedArray, StagingOptions, UnifiedArray};
use gpumem_adapt::{
    Adapt, AdaptError, Destination, F32, Feed, Host, Policy, Rows, Source, Storage, batches, feed,
    feed_stream, try_feed,
};
use gpumem_sim::{Effect, Rule, Schedule, Sim, SimConfig};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// The virtual time of uploads and kernels beside the larger of both, for kernels that take less time than the uploads, as much, and
/// more.
#[test]
fn uploads_run_beside_the_work_on_the_batch_before() {
    const ROW_COUNT: usize = 24;
    // Each allocation and each free of the backend `none` waits for the device.
    if machine(0, None).gpu.pool().backend() == BackendKind::None {
        return;
    }
    let x = Array2::<f32>::ones((ROW_COUNT, 4 * COLUMNS));
    let vectors: Vec<Vec<f32>> = x.rows().into_iter().map(|row| row.to_vec()).collect();
    fn work<D: Dimension>(mut batch: GpuArray<f32, D>, kernel_count: usize) {
        (0..kernel_count).for_each(|_| batch.fill(1.0).unwrap());
    }
    for prefetch in [1, 2, 8] {
        for of_vectors in [false, true] {
            let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
            let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
            gpu.preload::<f32>().unwrap();
            let sim = Sim::of(&driver).unwrap();
            let time_once = |run: &dyn Fn()| {
                gpu.device().synchronize().unwrap();
                let begin = sim.host_time();
                run();
                gpu.device().synchronize().unwrap();
                (sim.host_time() - begin).as_secs_f64()
            };
            // On a busy machine the staging buffers may be idle for so long that they are freed, and a run pins them again.
            let time = |run: &dyn Fn()| (0..3).map(|_| time_once(run)).fold(f64::INFINITY, f64::min);
            let fed = |kernel_count: usize| match of_vectors {
                true => {
                    let feed = feed(vectors.clone()).prefetch(prefetch).on(&gpu).unwrap();
                    feed.for_each(|batch| work(batch.unwrap(), kernel_count));
                }
                false => {
                    let feed = batches(&x).batch_size(1).prefetch(prefetch).on(&gpu).unwrap();
                    feed.for_each(|batch| work(batch.unwrap(), kernel_count));
                }
            };
            // Pins the buffers, which takes long.
            fed(0);
            let upload = time(&|| fed(0));
            for kernel_count in [8, 24, 48] {
                let resident = GpuArray::<f32, _>::zeros(&gpu, 4 * COLUMNS).unwrap();
                let once = time(&|| work(resident.try_clone().unwrap(), kernel_count));
                let larger = upload.max(once * ROW_COUNT as f64);
                let both = time(&|| fed(kernel_count)) - once;
                assert!(
                    both < 1.15 * larger,
                    "{prefetch} ahead, {kernel_count} kernels: {both}, upload {upload}, kernels {}",
                    once * ROW_COUNT as f64
                );
            }
        }
    }
}

/// Two batches are enough to overlap, whatever the prefetch, if the consumer drops each.
#[test]
fn two_batches_are_on_the_device() {
    let x = table(12);
    for (schedule, prefetch) in [(Schedule::Early, 1), (Schedule::Late, 1), (Schedule::Early, 8)] {
        let machine = machine_of(SimConfig::new().schedule(schedule.clone()), 0, None);
        for batch in batches(&x).batch_size(1).prefetch(prefetch).on(&machine.gpu).unwrap() {
            batch.unwrap().try_add_assign(1.0).unwrap();
        }
        let peak_rows = machine.gpu.pool().status().unwrap().in_use_peak_bytes / ROW_BYTES;
        assert_eq!(peak_rows, 2, "{schedule:?}, {prefetch} ahead");
        machine.end();
    }
}

/// The feed goes as far ahead as it may where the device is behind by the work on a whole batch, and not where it has less work. Uploads
/// into new memory wait for no work, so the consumer keeps all batches.
#[test]
fn more_is_ahead_only_while_the_device_is_behind() {
    let x = table(12);
    for (is_behind, expected) in [(true, 8), (false, 1)] {
        let machine = machine_of(SimConfig::new().schedule(Schedule::Late), 0, None);
        let (mut kept, mut ahead_max) = (Vec::new(), 0);
        for batch in batches(&x).batch_size(1).prefetch(8).on(&machine.gpu).unwrap() {
            let mut batch = batch.unwrap();
            let in_use = machine.gpu.pool().status().unwrap().in_use_bytes / ROW_BYTES;
            ahead_max = ahead_max.max(in_use - kept.len() as u64 - 1);
            if !is_behind {
                machine.gpu.synchronize().unwrap();
            }
            batch.try_add_assign(1.0).unwrap();
            kept.push(batch);
        }
        assert_eq!(ahead_max, expected, "behind: {is_behind}");
        drop(kept);
        machine.end();
    }
}

#[test]
fn feeds_upload_to_every_place() {
    let machine = machine(3, None);
    let gpu = &machine.gpu;
    let x = table(4);
    let firsts = |batch: &[f32]| (batch[0], batch[batch.len() - 1]);
    let unified: Vec<UnifiedArray<f32, Ix2>> =
        batches(&x).batch_size(2).on(&gpu.unified()).unwrap().map(Result::unwrap).collect();
    assert_eq!(firsts(unified[1].as_slice().unwrap()), (2.0, 3.0));
    drop(unified);
    let doubles = || (0..3).map(|index| (vec![f64::from(index); 100_000], index));
    let single = Destination::new(gpu).elements::<F32>();
    for (batch, index) in feed(doubles()).on(&single).unwrap().map(Result::unwrap) {
        let batch: GpuArray<f32, Ix1> = batch;
        assert_eq!(batch.gpu(), gpu);
        assert_eq!(batch.to_vec().unwrap(), vec![index as f32; 100_000]);
    }
    let mut places = Vec::new();
    for (batch, index) in feed(doubles()).on(&single.clone().unified()).unwrap().map(Result::unwrap) {
        let mut batch: UnifiedArray<f32, Ix1> = batch;
        batch.try_add_assign(1.0).unwrap();
        assert_eq!(firsts(batch.as_slice().unwrap()), (index as f32 + 1.0, index as f32 + 1.0));
        places.push(batch.address());
    }
    // What is there passes through, at its address.
    let there: Vec<_> = (0..3).map(|_| GpuArray::from_elem(gpu, 1000, 1.0_f32).unwrap()).collect();
    let addresses: Vec<_> = there.iter().map(GpuArray::address).collect();
    let passed = feed(there).on(&single).unwrap().map(|batch| batch.unwrap().address());
    assert_eq!(passed.collect::<Vec<_>>(), addresses);
    drop((places, single));
    machine.end();
}

#[test]
fn items_in_other_memory_are_copied() {
    let machine = machine(3, None);
    let gpu = &machine.gpu;
    let pinned: Vec<PinnedArray<f32, Ix1>> =
        (0..3).map(|_| PinnedArray::zeros(&gpu.pinned(), 100).unwrap()).collect();
    let copied: Vec<GpuArray<f32, Ix1>> = feed(pinned).on(gpu).unwrap().map(Result::unwrap).collect();
    assert_eq!(copied[2].to_vec().unwrap(), [0.0; 100]);
    drop(copied);
    machine.end();
}

/// Changes the values without changing their type.
struct Negated;

impl Policy<f32> for Negated {
    type Elem = f32;

    fn convert(value: f32) -> f32 {
        -value
    }
}

fn doubled<To>(scale: &f32, _: &mut gpumem_adapt::Context<'_, To>) -> Result<f32, AdaptError> {
    Ok(2.0 * scale)
}

#[derive(Adapt)]
struct Sample<S: Storage> {
    values: S::Array<f32, Ix1>,
    shared: Rc<S::Array<f32, Ix1>>,
    #[adapt(with = doubled)]
    scale: f32,
}

/// By the policy and by the functions of fields. All arrays then belong to the consumer's `Gpu`.
#[test]
fn items_are_converted_once() {
    let machine = machine(0, None);
    let gpu = &machine.gpu;
    let (values, shared) = (Array1::<f32>::ones(COLUMNS), Rc::new(Array1::<f32>::ones(3)));
    let sample = || Sample::<Host> { values: values.clone(), shared: shared.clone(), scale: 1.0 };
    let place = Destination::new(gpu).elements::<Negated>();
    let fed: Vec<Sample<kind::DeviceLocal>> =
        feed((0..3).map(|_| sample())).on(&place).unwrap().map(Result::unwrap).collect();
    for sample in fed {
        assert_eq!((sample.values.to_vec().unwrap()[COLUMNS - 1], sample.scale), (-1.0, 2.0));
        assert_eq!(sample.shared.to_vec().unwrap(), [-1.0; 3]);
        for array in [&sample.values, &sample.shared] {
            assert_eq!(array.gpu().stream().id(), gpu.stream().id());
        }
    }
    let x = table(3);
    let rows: Vec<f32> =
        batches(&x).batch_size(1).on(&place).unwrap().map(|b| b.unwrap().to_vec().unwrap()[0]).collect();
    assert_eq!(rows, [0.0, -1.0, -2.0]);
    drop(place);
    machine.end();
}

#[test]
fn items_of_an_iterator_are_collected() {
    let machine = machine(0, None);
    let lengths = |feed: Vec<Result<usize, String>>| feed;
    let read = |items: Vec<Result<f32, String>>, drop_last: bool| {
        let feeder = try_feed(items).batch_size(3);
        let feeder = if drop_last { feeder.drop_last() } else { feeder };
        let feed = feeder.on(&machine.gpu).unwrap();
        let (least, most) = feed.size_hint();
        let read: Vec<_> = feed
            .map(|batch| {
                batch.map(|batch: GpuArray<f32, Ix1>| batch.len()).map_err(|error| error.to_string())
            })
            .collect();
        assert!(
            least <= read.len() && most.is_none_or(|most| read.len() <= most),
            "{least} {most:?} {read:?}"
        );
        lengths(read)
    };
    let numbers = |count: usize| (0..count).map(|number| Ok(number as f32)).collect::<Vec<_>>();
    assert_eq!(read(numbers(7), false), [Ok(3), Ok(3), Ok(1)]);
    assert_eq!(read(numbers(7), true), [Ok(3), Ok(3)]);
    assert_eq!(read(numbers(6), true), [Ok(3), Ok(3)]);
    assert_eq!(read(numbers(0), false), []);
    let mut damaged = numbers(8);
    damaged[4] = Err("damaged".into());
    damaged[5] = Err("again".into());
    assert_eq!(read(damaged, false), [Ok(3), Ok(1), Err("damaged".into()), Err("again".into()), Ok(2)]);
    let refused = feed(0..3_u8).batch_size(0).on(&machine.gpu).unwrap_err().to_string();
    assert!(refused.contains("batch_size"), "{refused}");
    assert_eq!(feed(0..3_u8).batch_size(usize::MAX).on(&machine.gpu).unwrap().count(), 1);
    machine.end();
}

/// A data set with rows that no host could list.
struct Endless(usize);

impl Source for Endless {
    type Batch = Vec<u64>;

    fn row_count(&self) -> usize {
        self.0
    }

    fn batch(&self, rows: &Rows) -> Result<Vec<u64>, AdaptError> {
        Ok(match rows {
            Rows::Range(rows) => vec![rows.start as u64, rows.end as u64],
            Rows::Indices(rows) => rows.iter().map(|row| *row as u64).collect(),
        })
    }
}

#[test]
fn data_sets_of_any_length_are_shuffled() {
    let machine = machine(0, None);
    for row_count in [1 << 40, usize::MAX] {
        let mut feed = batches(Endless(row_count)).batch_size(1000).shuffle(5).on(&machine.gpu).unwrap();
        assert_eq!(feed.len(), row_count.div_ceil(1000));
        let mut rows = feed.next().unwrap().unwrap().to_vec().unwrap();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 1000);
        assert!(rows[999] < row_count as u64 && rows[999] - rows[0] > row_count as u64 / 2);
        drop(feed);
        // A batch whose rows cannot be listed is an error, and not an abort.
        let mut feed =
            batches(Endless(row_count)).batch_size(usize::MAX).shuffle(5).on(&machine.gpu).unwrap();
        if row_count == usize::MAX {
            let refused = feed.next().unwrap().unwrap_err();
            assert!(matches!(refused.cause(), Some(ArrayError::HostFull { .. })), "{refused}");
            assert!(feed.next().is_none());
        }
    }
    machine.end();
}

/// Rows that the host cannot gather, of an array that repeats one element, are an error of their part, and not an abort.
#[test]
fn a_shuffled_batch_larger_than_the_host_is_an_error() {
    let machine = machine(0, None);
    let one = Array1::<f32>::ones(1);
    let wide = one.broadcast((2, 1 << 58)).unwrap();
    let numbers = [1_u8, 2];
    let mut feed = batches((&numbers[..], &wide)).batch_size(2).shuffle(1).on(&machine.gpu).unwrap();
    let refused = feed.next().unwrap().unwrap_err();
    assert!(
        matches!(refused.cause(), Some(ArrayError::HostFull { size_bytes }) if *size_bytes == 1 << 61),
        "{refused}"
    );
    assert!(refused.is_out_of_memory() && refused.path().ends_with('1'), "{refused}");
    assert!(feed.next().is_none());
    drop(feed);
    machine.end();
}

/// Uploads have a stream of their own, which a capture of the consumer's stream does not concern. To the `Gpu` of a capture nothing is
/// uploaded.
#[test]
fn captures_and_feeds_leave_each_other_alone() {
    for mode in [CaptureMode::Relaxed, CaptureMode::ThreadLocal, CaptureMode::Global] {
        let machine = machine_of(SimConfig::new().schedule(Schedule::Late), 0, None);
        let gpu = &machine.gpu;
        let x = table(8);
        let mut feed = batches(&x).batch_size(1).prefetch(3).on(gpu).unwrap();
        // The device is behind, so the feed queries its marks during the capture.
        let next = |feed: &mut dyn Iterator<Item = Result<_, _>>| {
            let mut batch: GpuArray<f32, _> = feed.next().unwrap().unwrap();
            batch.try_add_assign(0.0).unwrap();
            batch
        };
        let before: Vec<_> = (0..2).map(|_| next(&mut feed)).collect();
        let capture = Capture::begin(gpu.stream(), mode).unwrap();
        let during: Vec<_> = (0..3).map(|_| feed.next().unwrap().unwrap()).collect();
        capture.end().unwrap();
        let all: Vec<_> = before.into_iter().chain(during).chain(feed.map(Result::unwrap)).collect();
        assert_eq!(all.iter().flat_map(first_column).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        drop(all);
        machine.end();
    }
    let machine = machine(0, None);
    let x = table(2);
    let (mut graph, ()) = machine
        .gpu
        .capture(|c| {
            let gpu: &Gpu = c;
            let fed = batches(&x).batch_size(1).on(gpu);
            let results: Vec<_> = fed.into_iter().flatten().map(|batch| batch.map(drop)).collect();
            assert!(results.iter().all(Result::is_err), "{results:?}");
            Ok(())
        })
        .unwrap();
    graph.launch(&machine.gpu).run().unwrap();
    drop(graph);
    machine.end();
}

/// A feed moves to another thread between its items, and several feeds share a `Gpu`.
#[test]
fn feeds_move_between_threads() {
    for seed in 0..4 {
        let machine = machine(seed, None);
        let x = table(8);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (gpu, x) = (&machine.gpu, &x);
                scope.spawn(move || {
                    let here = gpu.here().unwrap();
                    let mut feed = batches(x).batch_size(2).prefetch(1 + thread).on(&here).unwrap();
                    let (mut rows, mut kept) = (Vec::new(), Vec::new());
                    for _ in 0..4 {
                        let (next, batch) = std::thread::scope(|inner| {
                            let step = move || {
                                let mut batch = feed.next().unwrap().unwrap();
                                batch.try_add_assign(1.0).unwrap();
                                (feed, batch)
                            };
                            inner.spawn(step).join().unwrap()
                        });
                        feed = next;
                        kept.push(batch);
                    }
                    kept.iter().for_each(|batch| rows.extend(first_column(batch)));
                    assert_eq!(rows, (1..9).collect::<Vec<_>>());
                    assert!(feed.next().is_none() && feed.next().is_none());
                });
            }
        });
        machine.end();
    }
}

/// A data set whose third batch panics, once.
struct Fragile<'a>(&'a Array2<f32>, AtomicUsize);

impl<'a> Source for &'a Fragile<'_> {
    type Batch = CowArray<'a, f32, Ix2>;

    fn row_count(&self) -> usize {
        self.0.nrows()
    }

    fn batch(&self, rows: &Rows) -> Result<Self::Batch, AdaptError> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 2 {
            resume_unwind(Box::new("the source"));
        }
        self.0.batch(rows)
    }
}

#[test]
fn a_data_set_that_panics_loses_one_batch() {
    for seed in 0..3 {
        let machine = machine(seed, None);
        let x = table(6);
        let fragile = Fragile(&x, AtomicUsize::new(0));
        let mut feed = batches(&fragile).batch_size(1).prefetch(2).on(&machine.gpu).unwrap();
        let (mut rows, mut kept, mut panic_count) = (Vec::new(), Vec::new(), 0);
        loop {
            match catch_unwind(AssertUnwindSafe(|| feed.next())) {
                Ok(Some(batch)) => kept.push(batch.unwrap()),
                Ok(None) => break,
                Err(_) => panic_count += 1,
            }
        }
        kept.iter().for_each(|batch| rows.extend(first_column(batch)));
        assert_eq!((rows, panic_count), (vec![0, 1, 3, 4, 5], 1));
        drop((kept, feed));
        machine.end();
    }
}

/// A stream of numbered vectors that is pending now and then, and counts its polls after the end.
struct Numbers {
    next: usize,
    count: usize,
    polls: usize,
    polls_after_end: usize,
    panics_at: usize,
}

impl Numbers {
    fn new(count: usize) -> Self {
        Self { next: 0, count, polls: 0, polls_after_end: 0, panics_at: usize::MAX }
    }
}

impl futures_core::Stream for &mut Numbers {
    type Item = Result<Vec<f32>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.polls += 1;
        if self.polls.is_multiple_of(3) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.next == self.count {
            self.polls_after_end += 1;
            return Poll::Ready(None);
        }
        self.next += 1;
        if self.next - 1 == self.panics_at {
            resume_unwind(Box::new("the source"));
        }
        Poll::Ready(Some(Ok(vec![(self.next - 1) as f32; COLUMNS])))
    }
}

fn poll<S: futures_core::Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
    Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn streams_are_polled_until_their_end_and_no_further() {
    for (seed, prefetch) in [(0, 1), (1, 2), (2, 8)] {
        // Room for four of the twelve items.
        let machine = machine(seed, Some(4));
        let mut source = Numbers::new(12);
        let mut stream = feed_stream(&mut source, &machine.gpu).unwrap().prefetch(prefetch);
        let (mut read, mut pending_count) = (Vec::new(), 0);
        loop {
            match poll(&mut stream) {
                Poll::Ready(Some(batch)) => {
                    let mut batch: GpuArray<f32, Ix1> = batch.unwrap();
                    batch.try_add_assign(1.0).unwrap();
                    read.push(batch.to_vec().unwrap()[COLUMNS - 1] as usize);
                }
                Poll::Ready(None) => break,
                Poll::Pending => pending_count += 1,
            }
            assert!(pending_count < 100);
        }
        assert!(poll(&mut stream).is_ready() && poll(&mut stream).is_ready());
        drop(stream);
        assert_eq!((read, source.polls_after_end), ((1..13).collect::<Vec<_>>(), 1));
        // Dropped and forgotten in the middle.
        for is_forgotten in [false, true] {
            let mut source = Numbers::new(12);
            let mut stream = feed_stream(&mut source, &machine.gpu).unwrap().prefetch(1);
            let _ = poll(&mut stream);
            match is_forgotten {
                false => drop(stream),
                true => {
                    let left = machine.gpu.pool().status().unwrap().in_use_bytes;
                    std::mem::forget(stream);
                    assert!(left <= 3 * ROW_BYTES);
                }
            }
            if is_forgotten {
                // Its batches stay in use, and nothing else happens.
                let report = Sim::of(machine.gpu.device().driver()).unwrap().report();
                assert_eq!(report.findings, []);
            }
        }
    }
    let machine = machine(0, None);
    let mut source = Numbers { panics_at: 2, ..Numbers::new(5) };
    let mut stream = feed_stream(&mut source, &machine.gpu.unified()).unwrap().prefetch(1);
    let (mut read, mut panic_count) = (Vec::new(), 0);
    loop {
        match catch_unwind(AssertUnwindSafe(|| poll(&mut stream))) {
            Ok(Poll::Ready(Some(batch))) => {
                let batch: UnifiedArray<f32, Ix1> = batch.unwrap();
                read.push(batch[0] as usize);
            }
            Ok(Poll::Ready(None)) => break,
            Ok(Poll::Pending) => {}
            Err(_) => panic_count += 1,
        }
    }
    assert_eq!((read, panic_count), (vec![0, 1, 3, 4], 1));
    drop(stream);
    machine.end();
}

/// Every driver call fails once, for every place, with batches that are kept: at most one batch is lost, and no memory.
#[test]
fn a_failed_call_loses_one_batch_at_every_place() {
    // Two buffers each.
    let x = Array2::<f32>::ones((4, 30_000));
    for place in ["device", "unified", "pinned", "single"] {
        let mut failed_count = 0;
        for nth in 1.. {
            let rule = |effect| Rule::new("*", effect).nth(nth);
            // The byte is taken in the call that fails, and shows that the call was made.
            let taken = rule(Effect::TakeMemory { device: 0, size_bytes: 1 });
            let fails = rule(Effect::Fail(CUresult::CUDA_ERROR_INVALID_VALUE));
            let driver = gpumem_sim::driver(SimConfig::small().races(true).rule(taken).rule(fails)).unwrap();
            let mut is_poisoned = false;
            let mut run = || -> Result<usize, AdaptError> {
                let device = Device::new(&driver, 0).map_err(ArrayError::from)?;
                let gpu = Gpu::new(&Pool::new(&device).map_err(ArrayError::from)?)?;
                gpu.set_staging(StagingOptions::new().buffer_bytes(64 << 10).buffers(3).threads(1));
                let error_count = match place {
                    "device" => consume(batches(&x).batch_size(1).prefetch(1).on(&gpu)?),
                    "unified" => consume(batches(&x).batch_size(1).shuffle(1).on(&gpu.unified())?),
                    "pinned" => consume(batches(&x).batch_size(1).prefetch(8).on(&gpu.pinned())?),
                    _ => consume(batches(&x).batch_size(1).on(&Destination::single(&gpu))?),
                };
                is_poisoned = matches!(gpu.pool().alloc(0, gpu.stream()), Err(PoolError::Poisoned { .. }));
                Ok(error_count)
            };
            let error_count = run().unwrap_or(0);
            assert!(error_count <= 1 || is_poisoned, "{place}, call {nth}: {error_count} batches failed");
            failed_count += error_count;
            let sim = Sim::of(&driver).unwrap();
            assert_eq!(sim.report().silent_findings(), [], "{place}, call {nth}: {}", sim.report());
            if sim.others_bytes(0) == 0 {
                break;
            }
        }
        assert!(failed_count > 3, "{place}: {failed_count}");
    }
}

/// Counts the batches that fail. The last two stay.
fn consume<I, V, E, To, A>(feed: Feed<I, V, To>) -> usize
where
    I: Iterator<Item = Result<V, E>>,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
    To: gpumem_adapt::Target,
    V: Adapt<To, Adapted = A>,
    A: Adapt<To, Adapted = A>,
{
    let (mut kept, mut error_count, mut batch_count) = (VecDeque::new(), 0, 0);
    for batch in feed {
        batch_count += 1;
        match batch {
            Ok(batch) => kept.push_back(batch),
            Err(_) => error_count += 1,
        }
        if kept.len() > 2 {
            kept.pop_front();
        }
    }
    assert_eq!(batch_count, 4);
    error_count
}

/// Random programs on two feeds: items are taken, worked on, kept, read on other streams, and dropped in any order; feeds end anywhere.
#[test]
fn random_programs_are_right_under_every_seed() {
    let x = table(10);
    for seed in 0..30 {
        let mut rng = Lcg(seed);
        let machine = machine(seed, (seed % 3 == 0).then_some(24));
        let gpu = &machine.gpu;
        let other = gpu.fork().unwrap();
        let mut feeds: Vec<_> = (0..2)
            .map(|index| {
                let data = batches(&x).batch_size(1).prefetch(1 + rng.below(4));
                if index == 0 { data.on(gpu).unwrap() } else { data.shuffle(seed).on(&other).unwrap() }
            })
            .collect();
        let mut kept: Vec<(GpuArray<f32, Ix2>, usize)> = Vec::new();
        let mut next = 0;
        for _ in 0..60 {
            match rng.below(6) {
                0 | 1 => {
                    let index = rng.below(2);
                    if let Some(batch) = feeds[index].next() {
                        let batch = batch.unwrap();
                        let row = if index == 0 { next } else { first_column(&batch)[0] };
                        next += usize::from(index == 0);
                        kept.push((batch, row));
                    }
                }
                2 if !kept.is_empty() => {
                    let index = rng.below(kept.len());
                    let (batch, value) = &mut kept[index];
                    let stream = if rng.below(2) == 0 { gpu } else { &other };
                    batch.on_mut(stream).try_add_assign(100.0).unwrap();
                    *value += 100;
                }
                3 if kept.len() > 4 || rng.below(4) == 0 && !kept.is_empty() => {
                    kept.swap_remove(rng.below(kept.len()));
                }
                4 if !kept.is_empty() => {
                    let (batch, value) = &kept[rng.below(kept.len())];
                    let stream = if rng.below(2) == 0 { gpu } else { &other };
                    assert_eq!(
                        batch.on(stream).to_vec().unwrap(),
                        vec![*value as f32; COLUMNS],
                        "seed {seed}"
                    );
                }
                _ => {}
            }
            while kept.len() > 6 {
                kept.swap_remove(rng.below(kept.len()));
            }
        }
        for (batch, value) in &kept {
            assert_eq!(batch.to_vec().unwrap(), vec![*value as f32; COLUMNS], "seed {seed}");
        }
        drop((kept, feeds, other));
        machine.end();
    }
}

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
