//! cudarc with the proposed allocator hook: its slices come from a caching pool of gpumem, on whatever answers as libcuda. A wrong result
//! ends the program. The figures at the end are those of the machine; on the simulator only the driver's calls mean something.

mod allocator;

use allocator::PoolAllocator;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gpumem_pool::sys::Driver;
use gpumem_pool::{Device, Pool};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Checked = Result<(), Box<dyn Error>>;

const CHECKS: &[(&str, fn() -> Checked)] = &[
    ("slices come from the pool", from_the_pool),
    ("slices from before are the driver's", from_before),
    ("the pool keeps memory, the driver's default pool does not", kept),
    ("a refusal is an error of cudarc, with a report", refused),
    ("memory goes to another stream", reuse),
    ("streams end", streams_end),
    ("threads", threads),
    ("ownership leaves and returns", ownership),
    ("alloc and drop", pairs),
];

fn main() {
    for (name, check) in CHECKS {
        check().unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name}: ok");
    }
}

/// A context whose slices come from a pool.
struct Setup {
    context: Arc<CudaContext>,
    pool: Pool,
    allocator: Arc<PoolAllocator>,
}

impl Setup {
    fn new(conf: &str) -> Result<Self, Box<dyn Error>> {
        Self::of(CudaContext::new(0)?, conf)
    }

    /// The lines that a program needs.
    fn of(context: Arc<CudaContext>, conf: &str) -> Result<Self, Box<dyn Error>> {
        let driver = Driver::cuda().or_else(|_| Driver::drop_in())?;
        let pool = Pool::builder(&Device::new(&driver, context.ordinal() as u32)?).conf(conf)?.build()?;
        let allocator = Arc::new(PoolAllocator::new(&pool, &context).ok_or("the context is another one")?);
        context.set_allocator(allocator.clone()).map_err(|_| "an allocator is set already")?;
        Ok(Self { context, pool, allocator })
    }

    fn in_use_bytes(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.pool.status()?.in_use_bytes)
    }

    fn end(self) -> Checked {
        self.context.synchronize()?;
        self.context.check_err()?;
        assert_eq!(self.in_use_bytes()?, 0);
        assert!(self.allocator.take_refusal().is_none());
        Ok(())
    }
}

fn from_the_pool() -> Checked {
    let setup = Setup::new("backend:caching")?;
    assert!(setup.context.allocator().is_some());
    let again: Arc<PoolAllocator> = setup.allocator.clone();
    assert!(setup.context.set_allocator(again).is_err(), "an allocator is set once");
    for stream in
        [setup.context.new_stream()?, setup.context.default_stream(), setup.context.per_thread_stream()]
    {
        let slice = stream.clone_htod(&[5_u32; 1000])?;
        assert!(setup.in_use_bytes()? >= 4000);
        let mut copy = slice.try_clone()?;
        stream.memset_zeros(&mut copy.slice_mut(500..))?;
        assert_eq!(stream.clone_dtoh(&copy)?, [[5; 500], [0; 500]].concat());
        let empty: CudaSlice<u8> = stream.null()?;
        assert!(stream.clone_dtoh(&empty)?.is_empty() && stream.alloc_zeros::<u8>(0)?.is_empty());
        drop((slice, copy));
        assert_eq!(setup.in_use_bytes()?, 0);
    }
    setup.end()
}

fn from_before() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let early = stream.clone_htod(&[1_u8; 100])?;
    let setup = Setup::of(context, "backend:caching")?;
    assert_eq!(setup.in_use_bytes()?, 0);
    let late = stream.clone_dtod(&early)?;
    assert!(setup.in_use_bytes()? > 0);
    drop(early);
    assert_eq!(stream.clone_dtoh(&late)?, [1; 100]);
    drop(late);
    setup.end()
}

fn kept() -> Checked {
    let round = |context: &CudaContext, stream: &Arc<CudaStream>| -> Result<usize, Box<dyn Error>> {
        drop(stream.alloc_zeros::<u8>(FRAME_BYTES)?);
        stream.synchronize()?;
        Ok(context.mem_get_info()?.0)
    };
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let at_start = context.mem_get_info()?.0;
    assert_eq!(round(&context, &stream)?, at_start, "the driver's default pool keeps nothing");

    let setup = Setup::of(context, "backend:caching")?;
    let after_one = round(&setup.context, &stream)?;
    assert!(after_one + FRAME_BYTES <= at_start, "the pool keeps the frame");
    assert_eq!(round(&setup.context, &stream)?, after_one, "the next frame needs no memory of the device");
    setup.end()
}

fn refused() -> Checked {
    let setup = Setup::new("backend:caching, hard_limit:64MiB")?;
    let stream = setup.context.new_stream()?;
    let refused = stream.alloc_zeros::<u8>(65 << 20);
    assert!(refused.is_err_and(|error| error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    let report = setup.allocator.take_refusal().ok_or("no report")?.to_string();
    assert!(report.contains("the limit of 64"), "{report}");
    // The request has no effect on the next.
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[4_u8; 9])?)?, [4; 9]);
    setup.end()
}

fn reuse() -> Checked {
    let setup = Setup::new("backend:caching")?;
    let (first, second) = (setup.context.new_stream()?, setup.context.new_stream()?);
    for value in 0..200_u8 {
        let mut slice: CudaSlice<u8> = first.alloc_zeros(4096)?;
        second.memcpy_htod(&[value; 4096], &mut slice)?;
        // Freed on the first stream, behind the write on the second, which may get the memory.
        drop(slice);
        let [next, other] =
            [first.clone_htod(&[value ^ 255; 4096])?, second.clone_htod(&[value ^ 15; 4096])?];
        assert_eq!(second.clone_dtoh(&next)?, [value ^ 255; 4096]);
        assert_eq!(first.clone_dtoh(&other)?, [value ^ 15; 4096]);
    }
    setup.end()
}

/// Memory of a stream that is destroyed goes to other streams, behind its last work.
fn streams_end() -> Checked {
    let setup = Setup::new("backend:caching, hard_limit:4MiB")?;
    let main = setup.context.new_stream()?;
    for value in 0..50_u8 {
        let stream = main.fork()?;
        let slice = stream.clone_htod(&vec![value; 3 << 20])?;
        // SAFETY: the stream outlives its wrapper.
        let borrowed = unsafe { setup.context.wrap_borrowed_stream(stream.cu_stream()) };
        drop(borrowed.clone_htod(&[value])?);
        drop(borrowed);
        assert_eq!(main.clone_dtoh(&slice)?, vec![value; 3 << 20]);
        drop((slice, stream));
    }
    setup.end()
}

fn threads() -> Checked {
    let setup = Setup::new("backend:caching")?;
    std::thread::scope(|scope| {
        let work = |value: u32| {
            let context = &setup.context;
            move || -> Result<(), cudarc::driver::DriverError> {
                let stream = context.new_stream()?;
                for round in 0..20 {
                    let slice = stream.clone_htod(&vec![value + round; 1000])?;
                    assert_eq!(stream.clone_dtoh(&slice)?, vec![value + round; 1000]);
                }
                Ok(())
            }
        };
        let threads = [100, 200, 300, 400].map(|value| scope.spawn(work(value)));
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })?;
    setup.end()
}

fn ownership() -> Checked {
    let setup = Setup::new("backend:caching")?;
    let (stream, other) = (setup.context.new_stream()?, setup.context.new_stream()?);
    let address = stream.clone_htod(&[1_i32, 2, 3])?.leak();
    assert!(setup.in_use_bytes()? > 0);
    other.join(&stream)?;
    // SAFETY: the memory is this program's alone, and holds three values.
    let slice = unsafe { other.upgrade_device_ptr::<i32>(address, 2) };
    assert_eq!(other.clone_dtoh(&slice)?, [1, 2]);
    drop(slice);
    assert_eq!(setup.in_use_bytes()?, 0);
    setup.end()
}

/// The host's time of a pair, and the driver's allocations, without the hook and with it.
fn pairs() -> Checked {
    let context = CudaContext::new(0)?;
    // SAFETY: each slice is used on one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let before = pair(&stream)?;
    let setup = Setup::of(context, "backend:caching")?;
    pair(&stream)?;
    let calls = setup.pool.status()?.counters.driver_call_count;
    let after = pair(&stream)?;
    assert_eq!(setup.pool.status()?.counters.driver_call_count, calls, "a pair calls the driver");
    println!(
        "  a pair of 1 MiB: {before:.0?} from the driver, {after:.0?} from the pool, without a call of the driver"
    );
    setup.end()
}

fn pair(stream: &Arc<CudaStream>) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        // SAFETY: nothing reads the memory.
        drop(unsafe { stream.alloc::<u8>(1 << 20)? });
    }
    let taken = start.elapsed() / PAIRS;
    stream.synchronize()?;
    Ok(taken)
}

const PAIRS: u32 = 1000;
const FRAME_BYTES: usize = 64 << 20;
