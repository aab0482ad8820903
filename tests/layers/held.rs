//! Calls in functions of the program that arrays and adapt call, and beside guards of arrays that the program holds: each returns,
//! whatever the library holds or waits for at that moment. The table is places × calls, and a pair that takes long has a deadlock. The
//! suite of the pool has the same table for its functions.

#![forbid(unsafe_code)]

use gpumem_sim::SimConfig;
use gpumem_tests::adapt::{
    Adapt, AdaptError, Checkpoint, Context as Move, Destination, Host, Rows, Separate, Source, batches, cu,
    feed, fit_batch_size, halve_on_out_of_memory, save, try_feed,
};
#[cfg(unix)]
use gpumem_tests::array::dlpack::dlpark::versioned::Dlpack;
use gpumem_tests::array::ndarray::{Array1, Ix1};
use gpumem_tests::array::{Gpu, GpuArray, GpuGraph, KernelSource, PinnedArray, StagingOptions, UnifiedArray};
#[cfg(unix)]
use gpumem_tests::harness::fork::{End, in_child};
use gpumem_tests::pool::{
    Capture, CaptureMode, Device, Keep, MemoryKind, MemoryRange, Pool, Reclaimable, Registration, Stream,
};
use std::cell::RefCell;
use std::error::Error;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A pair takes milliseconds, and a bounded wait a quarter of a second.
const DEADLOCK_AFTER: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// Elements of an array that is staged in several pieces.
const LARGE_LEN: usize = 1 << 18;

/// The objects that the calls name. Those of a `Mutex` are used by one thread, and by a call only if its place does not use them.
struct Scene {
    device: Device,
    pool: Pool,
    gpu: Gpu,
    other: Gpu,
    foreign: Stream,
    x: GpuArray<f32, Ix1>,
    large: GpuArray<f32, Ix1>,
    unified: UnifiedArray<f32, Ix1>,
    pinned: PinnedArray<f32, Ix1>,
    graph: Mutex<GpuGraph>,
    folder: PathBuf,
}

impl Scene {
    fn new(number: usize) -> Self {
        let device =
            Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30)).unwrap(), 0).unwrap();
        let pool = Pool::builder(&device).hard_limit(512 * MIB).build().unwrap();
        let gpu = Gpu::new(&pool).unwrap();
        gpu.set_staging(StagingOptions::new().buffer_bytes(1 << 17).buffers(2).threads(2));
        let other = gpu.fork().unwrap();
        let foreign = Stream::legacy(&device).unwrap();
        let x = GpuArray::from_slice(&gpu, &[1.0_f32; 1000]).unwrap();
        let large = GpuArray::zeros(&other, LARGE_LEN).unwrap();
        let unified = UnifiedArray::from_slice(&gpu.unified(), &[1.0_f32; 100]).unwrap();
        let pinned = PinnedArray::from_slice(&gpu.pinned(), &[1.0_f32; 100]).unwrap();
        let (graph, _) = gpu.capture(|gpu| x.on(gpu).try_mul(2.0)).unwrap();
        let folder = std::env::temp_dir().join(format!("gpumem-held-{}-{number}", std::process::id()));
        let graph = Mutex::new(graph);
        Self { device, pool, gpu, other, foreign, x, large, unified, pinned, graph, folder }
    }

    /// A file of this pair, whose folder is removed at the end.
    fn file(&self, name: &str) -> Result<PathBuf, Failure> {
        std::fs::create_dir_all(&self.folder)?;
        Ok(self.folder.join(name))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Most pairs make no file.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

type Failure = Box<dyn Error>;
type Outcome = Result<(), Failure>;

/// Drops what a call has returned.
fn finished<T>(_: T) -> Outcome {
    Ok(())
}

/// A call. Errors are fine: that nothing waits for its own caller is what counts.
type Call = (&'static str, fn(&Scene) -> Outcome);

const CALLS: &[Call] = &[
    ("wait for the stream", |my| Ok(my.gpu.synchronize()?)),
    ("wait for another stream", |my| Ok(my.other.synchronize()?)),
    ("wait for the device", |my| Ok(my.device.synchronize()?)),
    ("await the stream", |my| Ok(my.gpu.stream().completion().wait()?)),
    ("download", |my| finished(my.x.to_vec()?)),
    ("download through buffers", |my| finished(my.large.to_vec()?)),
    ("download a number", |my| {
        assert!(my.x.sum()?.into_scalar()? > 0.0);
        Ok(())
    }),
    ("download to come", |my| finished(my.x.download().wait()?)),
    ("download that is dropped", |my| finished(my.large.download())),
    ("download a unified array", |my| finished(my.unified.to_vec()?)),
    ("upload", |my| finished(GpuArray::from_slice(&my.gpu, &[1.0_f32; 1000])?)),
    ("upload through buffers", |my| finished(GpuArray::from_slice(&my.other, &vec![1.0_f32; LARGE_LEN])?)),
    ("upload to come", |my| {
        finished(GpuArray::upload(&my.gpu, vec![1.0_f32; 1000]).wait().map_err(|error| error.to_string())?)
    }),
    ("upload a batch", |my| finished(my.gpu.upload_all(&[&[1.0_f32; 10][..]; 20])?)),
    ("copy to another stream", |my| finished(my.x.copy_to(&my.other)?)),
    ("copy to unified memory", |my| finished(my.x.copy_to(&my.gpu.unified())?)),
    ("read on the host", |my| {
        assert_eq!(my.unified.as_slice()?[0], my.pinned.as_slice()?[0]);
        Ok(())
    }),
    ("write on the host", |my| {
        let mut made = UnifiedArray::<f32, _>::zeros(&my.gpu.unified(), 10)?;
        made.as_mut_slice()?[0] = 1.0;
        Ok(())
    }),
    ("fill by a function", |my| finished(GpuArray::from_fn(&my.gpu, 10, |index| index as f32)?)),
    ("calculate", |my| finished(my.x.try_add(1.0)?.try_mul(2.0)?)),
    ("print", |my| finished(format!("{} {:?} {}", my.x, my.x, my.unified))),
    ("lend to a stream", |my| finished(my.x.read_on(&my.foreign)?)),
    ("lend to a stream, to write", |my| {
        let mut made = GpuArray::<f32, _>::zeros(&my.gpu, 10)?;
        finished(made.write_on(&my.foreign)?)
    }),
    ("lend host memory", |my| {
        finished(my.gpu.with_registered(&mut [1.0_f32; 100], |view| view.sum().map(drop))?)
    }),
    ("lend host memory, to read", |my| {
        finished(my.gpu.with_registered_read_only(&[1.0_f32; 100], |view| view.sum().map(drop))?)
    }),
    ("lend pageable memory", |my| {
        finished(my.gpu.with_pageable(&mut [1.0_f32; 100], |view| view.sum().map(drop))?)
    }),
    ("capture", |my| finished(my.gpu.capture(|gpu| my.x.on(gpu).try_mul(3.0))?)),
    ("capture on a thread", |my| {
        std::thread::scope(|scope| {
            let captured = scope.spawn(|| my.other.capture(|gpu| my.x.on(gpu).try_mul(3.0)).map(drop));
            Ok(captured.join().unwrap()?)
        })
    }),
    ("begin a capture", |my| finished(Capture::begin(my.gpu.stream(), CaptureMode::Relaxed)?)),
    ("launch a graph", |my| {
        let (mut graph, _) = my.other.capture(|gpu| GpuArray::<f32, _>::ones(gpu, 10))?;
        finished(graph.launch(&my.other).run()?)
    }),
    ("launch the graph", |my| {
        // A place may hold it.
        let Ok(mut graph) = my.graph.try_lock() else { return Ok(()) };
        finished(graph.launch(&my.gpu).read(&my.x).run()?)
    }),
    ("update the graph", |my| {
        let Ok(mut graph) = my.graph.try_lock() else { return Ok(()) };
        finished(graph.update(&my.gpu, |gpu| my.x.on(gpu).try_mul(4.0))?)
    }),
    ("compile", |my| {
        let source = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{ ret; }\n";
        finished(my.gpu.compile(&KernelSource::ptx("held", source))?)
    }),
    ("preload", |my| Ok(my.gpu.preload::<f64>()?)),
    ("status", |my| finished(my.gpu.status()?)),
    ("change the buffers", |my| {
        my.gpu.set_staging(StagingOptions::new().buffer_bytes(1 << 16).buffers(3).threads(1));
        Ok(())
    }),
    ("change the pool", |my| Ok(my.other.set_pool(&Pool::new(&my.device)?)?)),
    ("another gpu", |my| {
        let gpu = Gpu::new(&Pool::new(&my.device)?)?;
        finished(GpuArray::<f32, _>::ones(&gpu, 10)?.to_vec()?)
    }),
    ("fork", |my| finished(my.gpu.fork()?.here()?)),
    ("another machine", |_| {
        let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
        let gpu = Gpu::new(&Pool::new(&device)?)?;
        let made = GpuArray::<f32, _>::ones(&gpu, 10)?;
        drop((gpu, device));
        finished(made.to_vec()?)
    }),
    ("retire", |my| {
        let stream = Stream::new(&my.device)?;
        let gpu = Gpu::with_stream(&my.pool, &stream)?;
        let made = GpuArray::<f32, _>::ones(&gpu, 10)?;
        stream.retire()?;
        finished(made)
    }),
    ("retire the stream", |my| Ok(my.gpu.stream().retire()?)),
    ("sleep", |my| {
        my.pool.sleep(Keep::OnHost)?;
        my.pool.wake()?;
        Ok(())
    }),
    ("reclaim", |my| {
        my.pool.reclaim()?;
        Ok(())
    }),
    ("trim", |my| {
        my.pool.trim_to(0)?;
        Ok(())
    }),
    ("allocate too much", |my| finished(GpuArray::<f32, _>::zeros(&my.gpu, 1 << 28)?)),
    ("borrow", |my| Ok(my.gpu.stream().run_borrowed("a test", MemoryRange::NONE, |_| ())?)),
    ("adapt", |my| {
        let there = vec![vec![1.0_f32; 100]; 30].adapt(&my.gpu)?;
        finished(there.adapt(&Host)?)
    }),
    ("adapt in single precision", |my| finished(cu(&vec![1.0_f64; 100]).unified().on(&my.gpu)?)),
    ("move", |my| finished(vec![1.0_f32; 100].into_adapted(&Destination::new(&my.gpu).pinned())?)),
    ("feed", |my| {
        for batch in feed((0..4).map(|number| vec![number as f32; 1000])).prefetch(2).on(&my.gpu)? {
            batch?.sum()?.into_scalar()?;
        }
        Ok(())
    }),
    ("a feed that is dropped", |my| {
        let mut fed = feed((0..4).map(|number| vec![number as f32; 1000])).on(&my.other)?;
        finished(fed.next().transpose()?)
    }),
    ("find a batch size", |my| {
        finished(fit_batch_size(&my.gpu, 1..=4, |count| GpuArray::<f32, _>::zeros(&my.gpu, count).map(drop))?)
    }),
    ("save and load", |my| {
        let path = my.file("call.safetensors")?;
        save(&path, [("x", &my.x)])?;
        finished(Checkpoint::open(&path)?.load_all(&my.gpu)?)
    }),
];

/// The call under test. It runs once, however often the place is reached.
type Inside = Arc<dyn Fn() + Send + Sync>;

/// A function of the program that the library calls, or a guard of the library that the program holds.
type Place = (&'static str, fn(&Scene, Inside) -> Outcome);

const PLACES: &[Place] = &[
    ("a function of an index", |my, inside| {
        let made = GpuArray::from_fn(&my.gpu, 3, |index| {
            inside();
            index as f32
        });
        finished(made?)
    }),
    ("a closure with registered memory", |my, inside| {
        Ok(my.gpu.with_registered(&mut [1.0_f32; 100], |mut view| {
            let added = view.try_add_assign(1.0);
            inside();
            added
        })??)
    }),
    ("a closure with registered memory to read", |my, inside| {
        let sum = my.gpu.with_registered_read_only(&[1.0_f32; 100], |view| {
            let sum = view.sum();
            inside();
            sum.map(drop)
        })?;
        Ok(sum?)
    }),
    // No device of the simulator can access pageable memory, so `with_pageable` calls no closure.
    ("a capture", |my, inside| {
        let captured = my.gpu.capture(|gpu| {
            let made = my.x.on(gpu).try_mul(2.0)?;
            inside();
            Ok(made)
        });
        finished(captured?)
    }),
    ("an update of a graph", |my, inside| {
        let mut graph = my.graph.lock().unwrap();
        let updated = graph.update(&my.gpu, |gpu| {
            let made = my.x.on(gpu).try_mul(5.0)?;
            inside();
            Ok(made)
        });
        finished(updated?)
    }),
    ("a launch that is prepared", |my, inside| {
        let mut graph = my.graph.lock().unwrap();
        let launch = graph.launch(&my.gpu).read(&my.x);
        inside();
        finished(launch.run()?)
    }),
    ("the results of a launch", |my, inside| {
        let mut graph = my.graph.lock().unwrap();
        let launched = graph.launch(&my.gpu).read(&my.x).run()?;
        inside();
        finished(launched)
    }),
    ("a slice of unified memory", |my, inside| {
        let slice = my.unified.as_slice()?;
        inside();
        {
            assert_eq!(slice[0], 1.0);
            Ok(())
        }
    }),
    ("a slice of pinned memory to write", |my, inside| {
        let mut made = PinnedArray::<f32, _>::zeros(&my.gpu.pinned(), 10)?;
        let slice = made.as_mut_slice()?;
        inside();
        slice[0] = 1.0;
        Ok(())
    }),
    ("an array lent to a stream", |my, inside| {
        let lent = my.x.read_on(&my.foreign)?;
        inside();
        finished(lent)
    }),
    ("an array lent to a stream to write", |my, inside| {
        let mut made = GpuArray::<f32, _>::zeros(&my.gpu, 10)?;
        let lent = made.write_on(&my.foreign)?;
        inside();
        finished(lent)
    }),
    ("an upload to come", |my, inside| {
        let upload = GpuArray::upload(&my.gpu, vec![1.0_f32; 1000]);
        inside();
        finished(upload.wait().map_err(|error| error.to_string())?)
    }),
    ("a download to come", |my, inside| {
        let download = my.large.download();
        inside();
        finished(download.wait()?)
    }),
    ("a batch of uploads", |my, inside| {
        let host = Array1::from_elem(100, 1.0_f32);
        let mut pack = my.gpu.pack();
        let packed = pack.add(&my.gpu, &host)?;
        inside();
        pack.upload()?;
        finished(packed.into_array().map_err(|error| error.to_string())?)
    }),
    ("a waker of a download", |my, inside| {
        let wakes = Arc::new(Wakes(Mutex::default(), inside));
        let (waker, (told, heard)) = (Waker::from(wakes.clone()), channel());
        *wakes.0.lock().unwrap() = Some(told);
        let mut download = my.large.download();
        match Pin::new(&mut download).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => {
                waker.wake();
                finished(done?)
            }
            Poll::Pending => {
                my.device.synchronize()?;
                let _ = heard.recv();
                Ok(())
            }
        }
    }),
    ("a reclaim callback", |my, inside| {
        let callback = Arc::new(Callback(inside));
        let _registration = Registration::new(&my.device, &callback);
        finished(GpuArray::<f32, _>::zeros(&my.gpu, 1 << 28)?)
    }),
    ("an observer of refusals", |my, inside| {
        let builder = Pool::builder(&my.device).hard_limit(64 * MIB).on_out_of_memory(move |_| inside());
        let gpu = Gpu::new(&builder.build()?)?;
        finished(GpuArray::<f32, _>::zeros(&gpu, 1 << 28)?)
    }),
    ("the bound context", |my, inside| {
        let _bound = my.device.bind()?;
        inside();
        Ok(())
    }),
    ("a pool that sleeps", |my, inside| {
        let slept = my.pool.sleep(Keep::OnHost);
        inside();
        slept?;
        my.pool.wake()?;
        Ok(())
    }),
    ("a closure with the stream", |my, inside| {
        Ok(my.gpu.stream().run_borrowed("a test", MemoryRange::NONE, |_| inside())?)
    }),
    ("the next item of a feed", |my, inside| {
        let items = (0..3).map(|number| {
            inside();
            vec![number as f32; 1000]
        });
        for batch in feed(items).prefetch(2).on(&my.gpu)? {
            batch?.sum()?;
        }
        Ok(())
    }),
    ("the next item of a feed that fails", |my, inside| {
        let items = (0..3).map(|number| {
            inside();
            if number == 2 { Err("no more") } else { Ok(vec![number as f32; LARGE_LEN]) }
        });
        for batch in try_feed(items).on(&my.gpu)? {
            batch?.sum()?;
        }
        Ok(())
    }),
    ("a feed", |my, inside| {
        let mut fed = feed((0..4).map(|number| vec![number as f32; 1000])).on(&my.gpu)?;
        let first = fed.next().transpose()?;
        inside();
        finished((first, fed.next().transpose()?))
    }),
    ("the rows of a batch", |my, inside| {
        for batch in batches(Numbers(inside)).batch_size(4).on(&my.gpu)? {
            batch?.sum()?;
        }
        Ok(())
    }),
    ("an attempt at a batch size", |my, inside| {
        let fit = fit_batch_size(&my.gpu, 1..=4, |count| {
            inside();
            GpuArray::<f32, _>::zeros(&my.gpu, count).map(drop)
        });
        finished(fit?)
    }),
    ("a part of a batch", |my, inside| {
        let done = halve_on_out_of_memory(&my.gpu, 4, 2, |items| {
            inside();
            GpuArray::<f32, _>::zeros(&my.gpu, items.len()).map(drop)
        });
        finished(done?)
    }),
    ("a type of the program that is moved", |my, inside| {
        INSIDE.set(Some(inside));
        let moved = (vec![1.0_f32; 100], Own, vec![2.0_f32; 100]).adapt(&my.gpu);
        INSIDE.set(None);
        finished(moved?)
    }),
    ("the tensors of a checkpoint", |my, inside| {
        let tensors = std::iter::once_with(|| {
            inside();
            ("x", &my.x)
        });
        Ok(save(my.file("place.safetensors")?, tensors)?)
    }),
];

struct Callback(Inside);

impl Reclaimable for Callback {
    fn helps(&self, _: MemoryKind) -> bool {
        true
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        (self.0)();
        Ok(())
    }
}

struct Wakes(Mutex<Option<Sender<()>>>, Inside);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        (self.1)();
        self.0.lock().unwrap().take();
    }
}

/// A data set of ten numbers.
struct Numbers(Inside);

impl Source for Numbers {
    type Batch = Vec<f32>;

    fn row_count(&self) -> usize {
        10
    }

    fn batch(&self, rows: &Rows) -> Result<Vec<f32>, AdaptError> {
        (self.0)();
        let count = match rows {
            Rows::Range(range) => range.len(),
            Rows::Indices(indices) => indices.len(),
        };
        Ok(vec![1.0; count])
    }
}

thread_local!(static INSIDE: RefCell<Option<Inside>> = const { RefCell::new(None) });

/// A value whose move makes the call.
struct Own;

impl Adapt<Gpu> for Own {
    type Adapted = Self;
    type Many = Separate;

    fn adapt_with(&self, _: &mut Move<'_, Gpu>) -> Result<Self, AdaptError> {
        let inside = INSIDE.with_borrow(Clone::clone);
        inside.iter().for_each(|inside| inside());
        Ok(Self)
    }

    fn into_adapted_with(self, to: &mut Move<'_, Gpu>) -> Result<Self, AdaptError> {
        self.adapt_with(to)
    }
}

/// Makes one call in one place, on a thread of its own. Returns what went wrong.
fn run(number: usize, place: Place, call: Call) -> Option<String> {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        let scene = Arc::new(Scene::new(number));
        let (inside, once) = (scene.clone(), Mutex::new(true));
        let reached = Arc::new(Mutex::new(false));
        let seen = reached.clone();
        let inside: Inside = Arc::new(move || {
            if std::mem::take(&mut *once.lock().unwrap()) {
                let _ = (call.1)(&inside);
                *seen.lock().unwrap() = true;
            }
        });
        let _ = (place.1)(&scene, inside);
        // The scene still works, or says why not.
        let _ = scene.x.to_vec();
        drop(scene);
        done.send(*reached.lock().unwrap()).unwrap();
    });
    let what = match ended.recv_timeout(DEADLOCK_AFTER) {
        Ok(true) => {
            thread.join().err()?;
            "panics in the end"
        }
        Ok(false) => "is not called",
        Err(RecvTimeoutError::Timeout) => "hangs",
        Err(RecvTimeoutError::Disconnected) => "panics",
    };
    Some(format!("{} in {}: {what}", call.0, place.0))
}

#[test]
fn no_call_of_arrays_waits_for_its_own_caller() {
    let mut wrong = Vec::new();
    for place in PLACES {
        // A process can have 64 simulators, and a place or a call may make another.
        for calls in CALLS.chunks(12) {
            let threads: Vec<_> = calls
                .iter()
                .enumerate()
                .map(|(number, call)| std::thread::spawn(move || run(number, *place, *call)))
                .collect();
            wrong.extend(threads.into_iter().filter_map(|thread| thread.join().unwrap()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A child is refused each call, and all that goes on with what the parent has begun: each in a child of its own, because its first refusal
/// answers for the rest of a call.
#[cfg(unix)]
#[test]
fn every_call_refuses_a_child() {
    let scene = Scene::new(CALLS.len());
    // Threads that stage pieces, and buffers; the child has no such threads.
    drop((
        scene.large.to_vec().unwrap(),
        GpuArray::from_slice(&scene.other, &vec![1.0_f32; LARGE_LEN]).unwrap(),
    ));
    let my = &scene;
    let calls = CALLS.iter().map(|(name, call)| (*name, Box::new(move || call(my)) as Begun<'_>));
    let mut wrong = Vec::new();
    for (name, call) in calls.chain(begun(my).unwrap()) {
        let refused = in_child(End::AtOnce, |_| match call() {
            Ok(()) if SILENT.contains(&name) => Ok(()),
            Ok(()) => Err("is not refused".into()),
            Err(error) if error.to_string().contains("forked: start workers with spawn") => Ok(()),
            Err(error) => Err(error.to_string()),
        });
        wrong.extend(refused.err().map(|error| format!("{name}: {error}")));
    }
    let (all, gpu) = (begun(&scene).unwrap(), scene.gpu.clone());
    let ended = in_child(End::AtOnce, move |report| {
        report.step("drops");
        drop((all, gpu));
        Ok(())
    });
    wrong.extend(ended.err());
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The parent goes on.
    assert_eq!(scene.x.to_vec().unwrap(), [1.0; 1000]);
}

/// Calls that return no error, and do nothing there.
#[cfg(unix)]
const SILENT: [&str; 3] = ["download that is dropped", "print", "change the buffers"];

/// A call with what it consumes.
#[cfg(unix)]
type Begun<'a> = Box<dyn FnOnce() -> Outcome + 'a>;

/// Work that the parent begins, and that the child would go on with.
#[cfg(unix)]
fn begun(my: &Scene) -> Result<Vec<(&'static str, Begun<'_>)>, Failure> {
    let upload = GpuArray::<f32, Ix1>::upload(&my.gpu, vec![1.0_f32; 1000]);
    let (download, mut polled) = (my.large.download(), my.large.download());
    let host = Array1::from_elem(100, 1.0_f32);
    let (mut pack, mut done) = (my.gpu.pack(), my.gpu.pack());
    let unsent = pack.add(&my.gpu, &[1.0_f32; 100])?;
    let sent = done.add(&my.gpu, &host)?;
    done.upload()?;
    let mut fed = feed((0..4).map(|number| vec![number as f32; 1000])).prefetch(2).on(&my.gpu)?;
    let first = fed.next().transpose()?;
    let (mut graph, _) = my.gpu.capture(|gpu| my.x.on(gpu).try_mul(2.0))?;
    let source = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{ ret; }\n";
    let module = my.gpu.compile(&KernelSource::ptx("held", source))?;
    let there = vec![vec![1.0_f32; 100]; 3].adapt(&my.gpu)?;
    let path = my.file("begun.safetensors")?;
    save(&path, [("x", &my.x)])?;
    let checkpoint = Checkpoint::open(&path)?;
    let mut written = UnifiedArray::<f32, Ix1>::zeros(&my.gpu.unified(), 10)?;
    let mut lent = GpuArray::<f32, Ix1>::zeros(&my.gpu, 10)?;
    let mut changed = GpuArray::<f32, Ix1>::zeros(&my.gpu, 10)?;
    let tensor = GpuArray::<f32, Ix1>::zeros(&my.gpu, 10)?;
    let (pool, stream) = (Pool::new(&my.device)?, Stream::new(&my.device)?);
    Ok(vec![
        ("wait for an upload", Box::new(|| finished(upload.wait().map_err(|error| error.to_string())?))),
        ("wait for a download", Box::new(|| finished(download.wait()?))),
        (
            "poll a download",
            Box::new(move || match Pin::new(&mut polled).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => finished(outcome?),
                Poll::Pending => Ok(()),
            }),
        ),
        (
            "upload a pack",
            Box::new(move || {
                pack.upload()?;
                finished(unsent)
            }),
        ),
        (
            "take an array from a pack",
            Box::new(|| finished(sent.into_array().map_err(|error| error.to_string())?)),
        ),
        (
            "the next items of a feed",
            Box::new(move || {
                // What is uploaded is there, and the rest is not.
                let rest = fed.try_for_each(|item| item.map(drop));
                drop(first);
                Ok(rest?)
            }),
        ),
        ("launch a graph", Box::new(move || finished(graph.launch(&my.gpu).read(&my.x).run()?))),
        ("a function of a module", Box::new(move || finished(module.function("k")?))),
        (
            "compile a text without kernels",
            Box::new(|| finished(my.gpu.compile(&KernelSource::cuda("none", "a text"))?)),
        ),
        ("adapt to the host", Box::new(move || finished(there.adapt(&Host)?))),
        ("load a checkpoint", Box::new(move || finished(checkpoint.load_all(&my.gpu)?))),
        (
            "write on the host",
            Box::new(move || {
                written.as_mut_slice()?[0] = 1.0;
                Ok(())
            }),
        ),
        ("lend to a stream, to write", Box::new(move || finished(lent.write_on(&my.foreign)?))),
        ("add in place", Box::new(move || Ok(changed.try_add_assign(1.0)?))),
        (
            "lend a tensor",
            Box::new(move || {
                let lent: Dlpack = tensor.into_dlpack(&my.foreign).map_err(|error| error.to_string())?;
                finished(lent)
            }),
        ),
        ("set a pool", Box::new(move || Ok(my.other.set_pool(&pool)?))),
        ("a gpu with a stream", Box::new(move || finished(Gpu::with_stream(&my.pool, &stream)?))),
    ])
}
