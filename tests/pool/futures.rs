//! Futures of streams and events: any executor, any thread, any waker. On both drivers.

use gpumem_tests::cases;
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::pool::{
    Capture, CaptureError, CaptureMode, Completion, Device, DeviceError, Event, Pool, Stream,
};
use pollster::block_on;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(8);

fn close_gate(stream: &Stream) -> StreamGate {
    let _bound = stream.device().bind().unwrap();
    // SAFETY: the stream is alive and of the context that is current.
    unsafe { StreamGate::close(stream.device().driver(), stream.raw()).unwrap() }
}

/// A waker that runs a closure, and reports it.
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

fn call<F: Fn() + Send + Sync + 'static>(work: F) -> (Arc<Call<F>>, Receiver<()>) {
    let (done, wakes) = channel();
    (Arc::new(Call { count: AtomicUsize::new(0), done: Mutex::new(done), work }), wakes)
}

fn poll(future: &mut Completion, waker: &Waker) -> Poll<Result<(), DeviceError>> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

cases! {
    fn a_future_resolves_when_the_work_is_done(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
        let (block, event) = (pool.alloc(1 << 20, &stream).unwrap(), Event::new(&device).unwrap());
        block_on(&event).unwrap(); // never recorded
        let gate = close_gate(&stream);
        {
            let _bound = device.bind().unwrap();
            // SAFETY: the block has these bytes, and is freed in the order of the stream.
            unsafe { driver.cuMemsetD8Async(block.address(), 7, 1 << 20, stream.raw()).unwrap() };
        }
        event.record(&stream).unwrap();
        let (mut behind, mut at_event) = (stream.completion(), event.completion());
        for future in [&mut behind, &mut at_event] {
            assert!(poll(future, Waker::noop()).is_pending());
            assert!(!future.is_complete().unwrap());
        }
        assert!(gate.open());
        block_on(async { (&mut behind).await.and((&mut at_event).await) }).unwrap();
        assert!(event.is_complete().unwrap() && stream.is_complete().unwrap());
        // It was awaited, so it may be polled again.
        assert_eq!(poll(&mut behind, Waker::noop()).map(|outcome| outcome.is_ok()), Poll::Ready(true));
        stream.completion().wait().unwrap();
        block_on(&stream).unwrap();
    }

    fn later_work_and_records_do_not_count(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let [one, two] = [(); 2].map(|()| Stream::new(&device).unwrap());
        let event = Event::new(&device).unwrap();
        let first = close_gate(&one);
        event.record(&one).unwrap();
        let (at_event, behind) = (event.completion(), one.completion());
        let second = close_gate(&two);
        one.wait_for(&two).unwrap();
        event.record(&two).unwrap();
        drop(event);
        assert!(first.open());
        block_on(async { at_event.await.and(behind.await) }).unwrap();
        assert!(second.open());
        device.synchronize().unwrap();
    }

    fn the_waker_of_the_last_poll_is_woken(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let gate = close_gate(&stream);
        let mut future = stream.completion();
        let (old, _wakes) = call(|| ());
        assert!(poll(&mut future, &old.clone().into()).is_pending());
        // The future moves to another thread, with another waker.
        let (new, wakes) = call(|| ());
        let (waker, future) = (Waker::from(new.clone()), std::thread::spawn({
            let waker = Waker::from(new.clone());
            move || {
                assert!(poll(&mut future, &waker).is_pending());
                future
            }
        }));
        let mut future = future.join().unwrap();
        assert!(gate.open());
        wakes.recv_timeout(LONG).unwrap();
        assert_eq!((old.count.load(Ordering::SeqCst), new.count.load(Ordering::SeqCst)), (0, 1));
        assert!(matches!(poll(&mut future, &waker), Poll::Ready(Ok(()))));
    }

    fn a_waker_may_call_the_driver_or_panic(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let pool = Pool::new(&device).unwrap();
        let [first, second] = [(); 2].map(|()| Stream::new(&device).unwrap());
        let gate = close_gate(&first);
        second.wait_for(&first).unwrap();
        let (calls, wakes) = call({
            let (pool, stream) = (pool.clone(), first.clone());
            move || {
                drop(pool.alloc(3 << 20, &stream).unwrap());
                stream.synchronize().unwrap();
                panic!("a waker that panics, deliberately");
            }
        });
        let (mut futures, (last, last_wakes)) = ([first.completion(), second.completion()], call(|| ()));
        assert!(poll(&mut futures[0], &calls.clone().into()).is_pending());
        assert!(poll(&mut futures[1], &last.clone().into()).is_pending());
        assert!(gate.open());
        last_wakes.recv_timeout(LONG).unwrap();
        device.synchronize().unwrap();
        // It panicked before its report.
        let start = Instant::now();
        while Arc::strong_count(&calls) > 1 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Arc::strong_count(&calls) == 1 && wakes.try_recv().is_err());
    }

    /// The drop neither waits nor keeps anything: the driver and its streams end as always.
    fn pending_futures_are_dropped_and_forgotten(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        // NVIDIA's driver waits for the device when it creates about the 34th stream. With the lanes these are 16.
        let streams = [(); 8].map(|()| Stream::new(&device).unwrap());
        let gate = close_gate(&streams[0]);
        streams[1..].iter().for_each(|stream| stream.wait_for(&streams[0]).unwrap());
        let (held, _wakes) = call(|| ());
        let waker = Waker::from(held.clone());
        for (index, stream) in streams.iter().cycle().take(60).enumerate() {
            let mut future = stream.completion();
            if index % 3 > 0 {
                assert!(poll(&mut future, &waker).is_pending());
            }
            match index {
                // Without a poll there is no waker to keep.
                30 => core::mem::forget(future),
                _ => drop(future),
            }
        }
        drop(waker);
        let start = Instant::now();
        // The notifier may be at one of them.
        while Arc::strong_count(&held) > 1 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(gate.open(), "a drop has waited");
        block_on(&streams[7]).unwrap();
        device.synchronize().unwrap();
    }

    fn a_future_outlives_its_stream_and_its_device(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let (stream, event) = (Stream::new(&device).unwrap(), Event::new(&device).unwrap());
        let gate = close_gate(&stream);
        event.record(&stream).unwrap();
        let futures = [stream.completion(), event.completion()];
        drop((stream, event, device));
        assert!(gate.open());
        futures.into_iter().for_each(|future| block_on(future).unwrap());
    }

    fn a_capture_has_no_completion(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::new(&device).unwrap());
        let event = Event::new(&device).unwrap();
        let gate = close_gate(&other);
        let before = other.completion();
        let capture = Capture::begin(&stream, CaptureMode::Global).unwrap();
        event.record(&stream).unwrap();
        assert!(matches!(block_on(&stream), Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))));
        assert!(matches!(block_on(&event), Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))));
        // Others are awaited during a capture, and break none.
        assert!(gate.open());
        block_on(before).unwrap();
        block_on(&other).unwrap();
        capture.end().unwrap();
        block_on(&stream).unwrap();
    }

    fn many_tasks_on_many_threads(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let pool = Pool::new(&device).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let streams = [(); 6].map(|()| Stream::new(&device).unwrap());
                    let mut futures = Vec::new();
                    for stream in streams.iter().cycle().take(120) {
                        let block = pool.alloc(1 << 16, stream).unwrap();
                        let _bound = device.bind().unwrap();
                        // SAFETY: the block has these bytes, and is freed in the order of the stream.
                        unsafe { driver.cuMemsetD8Async(block.address(), 7, 1 << 16, stream.raw()).unwrap() };
                        futures.push(stream.completion());
                    }
                    futures.iter_mut().for_each(|future| drop(poll(future, Waker::noop())));
                    futures.into_iter().for_each(|future| block_on(future).unwrap());
                });
            }
        });
    }
}
