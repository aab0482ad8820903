//! The cost of an operation: host time of the call, and device time by events, for the sizes of the training job and for large
//! ones. Runs on the driver that `GPUMEM_DRIVER` names, or on a GPU if there is one, and prints which.
//!
//! `cargo bench -p gpumem-array`; with `-- --rows`, in the format of `cargo xtask bench`. `-- WORDS` runs the operations whose names have them.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_array::ndarray::{Axis, Ix1, Ix2, Slice};
use gpumem_array::pool::sys::DriverKind;
use gpumem_array::pool::{Device, Event, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, Rng, update};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let gpu = Gpu::new(&Pool::new(&device)?)?;
    let rounds = if driver.kind() == DriverKind::Cuda { 2000 } else { 20 };
    if !is_for_rows() {
        println!("{:<34} {:>9} {:>9} {:>9} {:>9}", "operation", "first ms", "host µs", "device µs", "GB/s");
    }
    let (often, seldom) =
        (Bench { gpu: &gpu, rounds, suffix: "" }, Bench { gpu: &gpu, rounds: rounds / 20, suffix: "" });
    main_job(&often)?;
    large(&seldom)?;
    expressions(&seldom, [large_len(&gpu, 1 << 16) / 1024, 1024])?;
    // Few enough calls for the stream's queue, so that the host never waits for the device.
    let small = Bench { gpu: &gpu, rounds: rounds / 4, suffix: ", 1024" };
    expressions(&small, [32, 32])?;
    by_hand(&small)?;
    by_indices(&seldom)?;
    crossing(&often)
}

/// A length far larger than any cache, or a short one for the simulator.
fn large_len(gpu: &Gpu, simulated: usize) -> usize {
    if gpu.device().driver().kind() == DriverKind::Cuda { 1 << 28 } else { simulated }
}

/// The shapes of a training step: 2048 rows of 1000 from a table of many rows.
fn main_job(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let gpu = bench.gpu;
    let batches = if gpu.device().driver().kind() == DriverKind::Cuda { 64 } else { 4 };
    let table = GpuArray::from_elem(gpu, (2048 * batches, 1000), 0.5_f32)?;
    let batch = |round: usize| {
        let first = (round % batches * 2048).cast_signed();
        table.slice_axis(Axis(0), Slice::from(first..first + 2048))
    };
    let w = GpuArray::from_elem(gpu, 1000, 0.25_f32)?;
    let r = GpuArray::from_elem(gpu, 2048, 0.125_f32)?;
    let bytes = 2048 * 1000 * 4;
    bench.run("x · w, 2048 × 1000", bytes, |round| batch(round)?.dot(&w).map(drop))?;
    bench.run("xᵀ · r, 2048 × 1000", bytes, |round| batch(round)?.t().dot(&r).map(drop))?;
    bench.run("x · w, then xᵀ · r", 2 * bytes, |round| {
        let batch = batch(round)?;
        batch.dot(&w)?;
        batch.t().dot(&r).map(drop)
    })?;
    bench.run("sum, 2048", 2048 * 4, |_| r.sum().map(drop))?;
    bench.run("dot, 2048", 2048 * 8, |_| r.dot(&r).map(drop))?;
    bench.run("a - b, 2048", 2048 * 12, |_| r.try_sub(&r).map(drop))?;
    let mut t = r.try_clone()?;
    bench.run("a += b, 2048", 2048 * 12, |_| t.try_add_assign(&r))?;
    bench.run("fill, 2048", 2048 * 4, |_| t.fill(0.0))?;
    bench.run("zeros, 2048", 2048 * 4, |_| GpuArray::<f32, Ix1>::zeros(gpu, 2048).map(drop))?;
    Ok(())
}

/// Arrays far larger than any cache.
fn large(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let gpu = bench.gpu;
    let n = large_len(gpu, 1 << 22);
    let a = GpuArray::from_elem(gpu, n, 0.5_f32)?;
    let b = GpuArray::from_elem(gpu, n, 0.25_f32)?;
    let mut c = GpuArray::<f32, Ix1>::zeros(gpu, n)?;
    bench.run("c += a, large", n * 12, |_| c.try_add_assign(&a))?;
    bench.run("c *= 0.5, large", n * 8, |_| c.try_mul_assign(0.5))?;
    bench.run("cumsum, large", n * 8, |_| a.cumsum().map(drop))?;
    let mut rng = Rng::new(1);
    bench.run("normal numbers", n * 4, |_| c.fill_random_normal(&mut rng))?;
    bench.run("sum, large", n * 4, |_| a.sum().map(drop))?;
    bench.run("dot, large", n * 8, |_| a.dot(&b).map(drop))?;
    let x: GpuArray<f32, Ix2> = a.into_shape((n / 1024, 1024))?;
    let v = GpuArray::from_elem(gpu, 1024, 1.0_f32)?;
    let u = GpuArray::from_elem(gpu, n / 1024, 1.0_f32)?;
    bench.run("x · v, large × 1024", n * 4, |_| x.dot(&v).map(drop))?;
    bench.run("xᵀ · u, large × 1024", n * 4, |_| x.t().dot(&u).map(drop))?;
    let wide: GpuArray<f32, Ix2> = x.into_shape((16, n / 16))?;
    let v = GpuArray::from_elem(gpu, n / 16, 1.0_f32)?;
    let u = GpuArray::from_elem(gpu, 16, 1.0_f32)?;
    bench.run("x · v, 16 × large", n * 4, |_| wide.dot(&v).map(drop))?;
    bench.run("xᵀ · u, 16 × large", n * 4, |_| wide.t().dot(&u).map(drop))?;
    Ok(())
}

/// Expressions, beside a copy that moves as many bytes in each direction as the first ones read from one array and write. Matrices have this
/// shape.
fn expressions(bench: &Bench<'_>, shape: [usize; 2]) -> Result<(), Box<dyn Error>> {
    let (gpu, n) = (bench.gpu, shape[0] * shape[1]);
    let a = GpuArray::from_elem(gpu, n, 0.5_f32)?;
    let b = GpuArray::from_elem(gpu, n, 0.25_f32)?;
    let mut c = GpuArray::<f32, Ix1>::zeros(gpu, n)?;
    bench.run("copy", n * 8, |_| c.assign(&a))?;
    bench.run("(a * 2 + b) * 0.5 - a", n * 12, |_| c.assign_expr((a.lazy() * 2.0 + &b) * 0.5 - &a))?;
    bench.run("max(a * exp(b * 0.1) - 0.6, 0)", n * 12, |_| {
        c.assign_expr((a.lazy() * (b.lazy() * 0.1).exp() - 0.6).max(0.0))
    })?;
    bench.run("tanh(a) * ln(b + 1)", n * 12, |_| c.assign_expr(a.lazy().tanh() * (b.lazy() + 1.0).ln()))?;
    bench.run("a if a > b, otherwise 0", n * 12, |_| c.assign_expr(a.lazy().gt(&b).select(&a, 0.0)))?;
    let (mut m, mut v) = (GpuArray::<f32, Ix1>::zeros(gpu, n)?, GpuArray::<f32, Ix1>::zeros(gpu, n)?);
    bench.run("Adam, three arrays", n * 28, |_| {
        update((&mut c, &mut m, &mut v), |(x, m, v)| {
            let m = m * 0.9 + a.lazy() * 0.1;
            let v = v * 0.999 + a.lazy().square() * 0.001;
            (x - m * 0.01 / (v.sqrt() + 1e-8), m, v)
        })
    })?;
    let (x, y) = (a.into_shape(shape)?, b.into_shape(shape)?);
    bench.run("sums of exp(x), rows", n * 4, |_| x.lazy().exp().sum_axis(Axis(1)).map(drop))?;
    bench.run("sums of x, columns", n * 4, |_| x.lazy().sum_axis(Axis(0)).map(drop))?;
    bench.run("argmin of x", n * 4, |_| x.lazy().argmin().map(drop))?;
    let mut z: GpuArray<f32, Ix2> = c.into_shape(shape)?;
    let (column, row) =
        (x.slice_axis(Axis(1), Slice::from(0..1))?, y.slice_axis(Axis(0), Slice::from(0..1))?);
    bench.run("column - row", n * 4, |_| z.assign_expr(column.lazy() - row.lazy()))?;
    bench.run("z += row", n * 8, |_| z.try_add_assign(&row))?;
    let square = (n as f64).sqrt() as usize;
    let rows = (square * square / shape[1]) as isize;
    let wide = x.slice_axis(Axis(0), Slice::from(0..rows))?.to_owned()?;
    let wide: GpuArray<f32, Ix2> = wide.into_shape((square, square))?;
    let mut sums = GpuArray::<f32, Ix2>::zeros(gpu, (square, square))?;
    bench.run("x + x.t()", n * 12, |_| sums.assign_expr(wide.lazy() + wide.t().lazy()))?;
    bench.run("softmax, rows", n * 8, |_| x.softmax_axis(Axis(1)).map(drop))?;
    let points = (n / 16).min(1 << 22);
    let table = x.reshape((n / 16, 16))?;
    let points_of = table.slice_axis(Axis(0), Slice::from(0..points.cast_signed()))?;
    let centres = y.reshape((n / 16, 16))?.slice_axis(Axis(0), Slice::from(0..16))?.to_owned()?;
    bench.run("distances of 16 from 16", points * 128, |_| {
        let apart = points_of.lazy().insert_axis(Axis(1)) - centres.lazy().insert_axis(Axis(0));
        apart.square().sum_axis(Axis(2)).map(drop)
    })?;
    let pixels = (n / 3).min(1 << 26);
    let bytes = GpuArray::<u8, _>::from_elem(gpu, (pixels, 3), 100)?;
    let channel = GpuArray::from_slice(gpu, &[0.485_f32, 0.456, 0.406])?;
    let mut image = GpuArray::<f32, Ix2>::zeros(gpu, (pixels, 3))?;
    bench.run("images, bytes by channel", pixels * 15, |_| {
        image.assign_expr((bytes.lazy().cast::<f32>() / 255.0 - &channel) / &channel)
    })?;
    Ok(())
}

/// `c = (a * 2 + b) * 0.5 - a` as a kernel by hand.
const CHAIN: &str = "
    .version 7.8
    .target sm_70
    .address_size 64
    .visible .entry chain(.param .u64 c, .param .u64 a, .param .u64 b, .param .u32 n) {
        .reg .pred %p;
        .reg .b32 %i, %size, %n;
        .reg .b64 %c, %a, %b, %at;
        .reg .f32 %x, %y;
        ld.param.u64 %c, [c];
        ld.param.u64 %a, [a];
        ld.param.u64 %b, [b];
        ld.param.u32 %n, [n];
        mov.u32 %i, %ctaid.x;
        mov.u32 %size, %ntid.x;
        mul.lo.u32 %i, %i, %size;
        mov.u32 %size, %tid.x;
        add.u32 %i, %i, %size;
        setp.ge.u32 %p, %i, %n;
        @%p ret;
        mul.wide.u32 %at, %i, 4;
        add.u64 %a, %a, %at;
        add.u64 %b, %b, %at;
        add.u64 %c, %c, %at;
        ld.global.f32 %x, [%a];
        ld.global.f32 %y, [%b];
        fma.rn.f32 %y, %x, 0f40000000, %y;
        neg.f32 %x, %x;
        fma.rn.f32 %y, %y, 0f3F000000, %x;
        st.global.f32 [%c], %y;
        ret;
    }";

/// The driver's calls alone, and with an allocation of the pool, beside expressions of as few elements with a new result.
fn by_hand(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    const LEN: u32 = 1024;
    let (gpu, driver) = (bench.gpu, bench.gpu.device().driver());
    let _bound = gpu.device().bind()?;
    let text = std::ffi::CString::new(CHAIN)?;
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the text ends with a zero, and the results outlive the calls. The module is never unloaded.
    unsafe {
        driver.cuModuleLoadData(&mut module, text.as_ptr().cast())?;
        driver.cuModuleGetFunction(&mut function, module, c"chain".as_ptr())?;
    }
    let array = |value: f32| GpuArray::from_elem(gpu, LEN as usize, value);
    let (a, b, mut c) = (array(0.5)?, array(0.25)?, array(0.0)?);
    let [from_a, from_b] = [a.address(), b.address()];
    let to_c = c.address();
    gpu.synchronize()?;
    let launch = |mut to: u64| {
        let (mut a, mut b, mut n) = (from_a, from_b, LEN);
        let words: [*mut std::ffi::c_void; 4] =
            [(&raw mut to).cast(), (&raw mut a).cast(), (&raw mut b).cast(), (&raw mut n).cast()];
        // SAFETY: the arguments are those of the kernel, and the arrays and the block have `LEN` elements.
        unsafe {
            driver.cuLaunchKernel(
                function,
                LEN.div_ceil(256),
                1,
                1,
                256,
                1,
                1,
                0,
                gpu.stream().raw(),
                words.as_ptr().cast_mut(),
                std::ptr::null_mut(),
            )
        }
    };
    let mut context = std::ptr::null_mut();
    let mut id = 0;
    bench.run("by hand: context and launch", 0, |_| {
        // SAFETY: both outlive the calls, and the device's context is current.
        unsafe {
            driver.cuCtxGetCurrent(&mut context)?;
            driver.cuCtxGetId(context, &mut id)?;
        }
        Ok(launch(to_c)?)
    })?;
    // SAFETY: both arrays have as many bytes.
    bench.run("by hand: copy", 0, |_| unsafe {
        Ok(driver.cuMemcpyDtoDAsync_v2(to_c, from_a, 4 * LEN as usize, gpu.stream().raw())?)
    })?;
    bench.run("by hand: launch", 0, |_| Ok(launch(to_c)?))?;
    bench.run("by hand: allocate and launch", 0, |_| {
        let block = gpu.pool().alloc(4 * u64::from(LEN), gpu.stream())?;
        Ok(launch(block.address())?)
    })?;
    bench.run("assigned: (a * 2 + b) * 0.5 - a", 0, |_| c.assign_expr((a.lazy() * 2.0 + &b) * 0.5 - &a))?;
    bench.run("new: (a * 2 + b) * 0.5 - a", 0, |_| ((a.lazy() * 2.0 + &b) * 0.5 - &a).eval().map(drop))?;
    bench.run("new: a + b", 0, |_| a.try_add(&b).map(drop))?;
    bench.run("new: sum", 0, |_| a.sum().map(drop))?;
    Ok(())
}

/// Rows of 64 elements, by indices that are spread over 65,536 rows, and the places of half of many elements.
fn by_indices(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let gpu = bench.gpu;
    let shift = if gpu.device().driver().kind() == DriverKind::Cuda { 20 } else { 10 };
    let (count, rows) = (1 << shift, 1 << (shift - 4));
    let places: Vec<i32> = (0..count as u64).map(|i| (i * 2_654_435_761 % rows) as i32).collect();
    let places = GpuArray::from_slice(gpu, &places)?;
    let mut table = GpuArray::<f32, _>::zeros(gpu, (rows as usize, 64))?;
    let values = GpuArray::from_elem(gpu, (count, 64), 0.5_f32)?;
    bench.run("rows by indices", count * 512, |_| table.select(Axis(0), &places).map(drop))?;
    bench.run("additions by indices", count * 256, |_| table.scatter_add(Axis(0), &places, &values))?;
    let numbers = GpuArray::random(gpu, count << 8, &mut Rng::new(1))?;
    bench.run("places above 0.5", count << 10, |_| numbers.lazy().gt(0.5_f32).nonzero().map(drop))?;
    Ok(())
}

/// The cost of tracking when two streams alternate; with one stream alone there is none.
fn crossing(bench: &Bench<'_>) -> Result<(), Box<dyn Error>> {
    let (gpu, other) = (bench.gpu, bench.gpu.fork()?);
    let mut a = GpuArray::from_elem(gpu, 256, 1.0_f32)?;
    bench.run("a += 1, one stream", 0, |_| a.try_add_assign(1.0))?;
    bench.run("a += 1, two streams in turn", 0, |round| {
        let gpu = if round % 2 == 0 { gpu } else { &other };
        a.on_mut(gpu).try_add_assign(1.0)
    })?;
    Ok(())
}

/// The batches of an operation: other programs can only make one slower.
const BATCHES: usize = 5;

struct Bench<'a> {
    gpu: &'a Gpu,
    rounds: usize,
    /// Behind each name.
    suffix: &'static str,
}

impl Bench<'_> {
    /// Prints the time of the first call, including the loading of its kernel, then the best mean of several batches of calls.
    fn run(
        &self,
        name: &str,
        bytes: usize,
        mut operation: impl FnMut(usize) -> Result<(), ArrayError>,
    ) -> Result<(), Box<dyn Error>> {
        let name = format!("{name}{}", self.suffix);
        let wanted =
            std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect::<Vec<_>>().join(" ");
        if !name.contains(&wanted) {
            return Ok(());
        }
        let begin = Instant::now();
        operation(0)?;
        self.gpu.synchronize()?;
        let first_ms = begin.elapsed().as_secs_f64() * 1e3;
        for round in 0..self.rounds / 10 {
            operation(round)?;
        }
        self.gpu.synchronize()?;

        let (start, end) = (Event::with_timing(self.gpu.device())?, Event::with_timing(self.gpu.device())?);
        let (mut host_us, mut device_us) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..BATCHES {
            start.record(self.gpu.stream())?;
            let begin = Instant::now();
            for round in 0..self.rounds {
                operation(round)?;
            }
            host_us = host_us.min(begin.elapsed().as_secs_f64() * 1e6 / self.rounds as f64);
            end.record(self.gpu.stream())?;
            end.synchronize()?;
            device_us = device_us.min(f64::from(end.elapsed_ms_since(&start)?) * 1e3 / self.rounds as f64);
        }
        let rate = bytes as f64 / device_us / 1e3;
        if is_for_rows() {
            let name: String = name.chars().map(|letter| if letter == ' ' { '_' } else { letter }).collect();
            println!("row\tarray/{name}/host\t{host_us}\tus\nrow\tarray/{name}/device\t{device_us}\tus");
        } else {
            println!("{name:<34} {first_ms:>9.2} {host_us:>9.2} {device_us:>9.2} {rate:>9.0}");
        }
        Ok(())
    }
}

fn is_for_rows() -> bool {
    std::env::args().any(|arg| arg == "--rows")
}
