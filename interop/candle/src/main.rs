//! candle on a GPU, unchanged: its tensors come from the driver's default pool, and then from a pool of gpumem that is made current.
//!
//! Checks that both give equal losses, that the pool counts candle's tensors, that its limit is an error of candle's after which the
//! program goes on, and that the former pool is current again once the guard is dropped. Then prints the speed and the reserved memory of
//! both. The argument is the number of windows.

mod counters;
mod measure;
mod model;

use candle_core::cuda::cudarc::driver::CudaContext;
use candle_core::{DType, Device, Tensor};
use counters::Of;
use gpumem_pool::sys::Driver;
use gpumem_pool::{CurrentPool, Pool, PoolError};
use measure::{Figures, Mode, Stage, TENSOR_BYTES};
use model::{Batch, Training};
use std::error::Error;
use std::process::ExitCode;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A check returns a remark.
type Check = (&'static str, fn(&Stage) -> Outcome<String>);

const CHECKS: &[Check] = &[
    ("tensors are in the pool", tensors_are_in_the_pool),
    ("the former pool returns", the_former_pool_returns),
    ("a tensor beyond the limit", a_tensor_beyond_the_limit),
    ("a batch beyond the limit", a_batch_beyond_the_limit),
];

const WINDOWS: usize = 9;
const STEPS: usize = 40;

const CONF: &str = "backend:native, hard_limit:2GiB";
const LIMIT_BYTES: u64 = 2 << 30;
/// The driver may reserve up to two of its growth units more, for allocations that gpumem does not see.
const SLACK_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", headline(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every check passed.
fn run() -> Outcome<bool> {
    let windows = std::env::args().nth(1).map_or(Ok(WINDOWS), |text| text.parse())?;
    let device = Device::new_cuda(0)?;
    let stream = device.as_cuda_device()?.cuda_stream();
    let context: &CudaContext = stream.context();
    let pool = pool()?;
    let batches = Batch::varied(STEPS);
    let stage = Stage { device: &device, context, pool: &pool, batches: &batches };
    println!("candle 0.11.1 on {}, a pool of gpumem with `{CONF}`", context.name()?);

    let mut has_passed = true;
    let mut report = |name: &str, result: Outcome<String>| match result {
        Ok(remark) => println!("{name}: ok, {remark}"),
        Err(error) => {
            println!("{name}: FAILED: {}", headline(error.as_ref()));
            has_passed = false;
        }
    };
    for (name, check) in CHECKS {
        report(name, check(&stage));
    }
    let figures = stage.measure(windows)?;
    report("losses", losses_are_equal(&figures));
    println!("\n{}", table(&figures));
    Ok(has_passed)
}

fn pool() -> Outcome<Pool> {
    let device = gpumem_pool::Device::new(&Driver::cuda()?, 0)?;
    Ok(Pool::builder(&device).conf(CONF).map_err(PoolError::from)?.build()?)
}

fn tensors_are_in_the_pool(stage: &Stage) -> Outcome<String> {
    let default_bytes = || counters::read(stage.context, Of::Default).map(|counters| counters.used_bytes);
    let current = stage.pool.make_current()?;
    let (before, default_before) = (current.usage()?.used_bytes, default_bytes()?);
    let tensor = stage.tensor()?;
    expect("bytes in use with a tensor", current.usage()?.used_bytes, before + TENSOR_BYTES as u64)?;
    expect("bytes in use in the default pool", default_bytes()?, default_before)?;
    let driver = counters::read(stage.context, Of::Current)?;
    expect("gpumem's count and the driver's", current.usage()?.reserved_bytes, driver.reserved_bytes)?;
    drop(tensor);
    stage.device.synchronize()?;
    let usage = current.usage()?;
    expect("bytes in use after the drop", usage.used_bytes, before)?;
    ensure(usage.reserved_bytes >= TENSOR_BYTES as u64, || {
        format!("the pool holds {} bytes after a wait", usage.reserved_bytes)
    })?;
    Ok(format!("the pool keeps {} MiB after the drop and a wait", mib(usage.reserved_bytes)))
}

fn the_former_pool_returns(stage: &Stage) -> Outcome<String> {
    let former = counters::read(stage.context, Of::Current)?;
    let current = stage.pool.make_current()?;
    let before = current.usage()?.used_bytes;
    ensure(counters::read(stage.context, Of::Current)?.id != former.id, || {
        "the same pool is current".into()
    })?;
    let numbers: Vec<u32> = (0..1 << 20).collect();
    let kept = Tensor::from_slice(&numbers, numbers.len(), stage.device)?;
    drop(current);
    let after = counters::read(stage.context, Of::Current)?;
    expect("the current pool", after.id as u64, former.id as u64)?;
    let tensor = stage.tensor()?;
    let used = counters::read(stage.context, Of::Current)?.used_bytes;
    expect("bytes in use in the former pool", used, after.used_bytes + TENSOR_BYTES as u64)?;
    drop(tensor);
    // A tensor outlives the guard, and its memory goes back to the pool that it came from.
    ensure(kept.to_vec1::<u32>()? == numbers, || "a tensor that outlived the guard has changed".into())?;
    drop(kept);
    stage.device.synchronize()?;
    expect("bytes in use in gpumem's pool", stage.pool.make_current()?.usage()?.used_bytes, before)?;
    Ok("a tensor may outlive the guard".into())
}

fn a_tensor_beyond_the_limit(stage: &Stage) -> Outcome<String> {
    let size = LIMIT_BYTES as usize + (1 << 30);
    let tensor = || Tensor::zeros(size, DType::U8, stage.device);
    drop(tensor().map_err(|error| format!("the default pool refuses it: {error}"))?);
    stage.device.synchronize()?;
    let current = stage.pool.make_current()?;
    let error = refusal(tensor())?;
    drop(stage.tensor()?);
    stage.device.synchronize()?;
    within_the_limit(&current)?;
    Ok(format!("candle says: {error}"))
}

/// The step is refused somewhere within the model; the training goes on and gives the losses that it gives without that step.
fn a_batch_beyond_the_limit(stage: &Stage) -> Outcome<String> {
    let (expected, _) = stage.train(false)?;
    let huge = Batch::of(2048);
    let current = stage.pool.make_current()?;
    let mut training = Training::new(stage.device)?;
    let (mut losses, mut error) = (Vec::new(), String::new());
    for (index, batch) in stage.batches.iter().enumerate() {
        if index == STEPS / 2 {
            error = refusal(training.loss(&huge))?;
            within_the_limit(&current)?;
        }
        losses.push(training.step(batch)?);
    }
    same_bits("with a refused step", &losses, &expected)?;
    Ok(format!("candle says: {error}; the training goes on with equal losses"))
}

fn losses_are_equal(figures: &[Figures; 2]) -> Outcome<String> {
    let all = figures.iter().flat_map(|figures| &figures.losses);
    let first = all.clone().next().ok_or("no window was measured")?;
    for (mode, figures) in Mode::ALL.iter().zip(figures) {
        for losses in &figures.losses {
            same_bits(&format!("{mode:?}"), losses, first)?;
        }
    }
    let (start, end) = (first[0], first[first.len() - 1]);
    ensure(end < start, || format!("the loss goes from {start} to {end}"))?;
    Ok(format!("every bit equal in {} trainings, from {start} to {end} in {STEPS} steps", all.count()))
}

fn same_bits(what: &str, losses: &[f32], expected: &[f32]) -> Outcome<()> {
    let differ = losses.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    match differ {
        Some(step) => {
            Err(format!("{what}: the loss of step {step} is {}, expected {}", losses[step], expected[step])
                .into())
        }
        None => expect("steps", losses.len() as u64, expected.len() as u64),
    }
}

/// The text of candle's error, which must be that of a driver without memory.
fn refusal(result: candle_core::Result<Tensor>) -> Outcome<String> {
    let Err(error) = result else { return Err("the limit does not refuse it".into()) };
    let text = headline(&error);
    ensure(text.contains("CUDA_ERROR_OUT_OF_MEMORY"), || format!("another error: {text}"))?;
    Ok(text)
}

/// An error of candle without its backtrace.
fn headline(error: &dyn Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}

fn within_the_limit(current: &CurrentPool) -> Outcome<()> {
    let reserved = current.usage()?.reserved_peak_bytes;
    ensure(reserved <= LIMIT_BYTES + SLACK_BYTES, || format!("the pool held {} MiB", mib(reserved)))
}

fn expect(what: &str, found: u64, expected: u64) -> Outcome<()> {
    ensure(found == expected, || format!("{what}: {found}, expected {expected}"))
}

fn ensure(condition: bool, text: impl FnOnce() -> String) -> Outcome<()> {
    if condition { Ok(()) } else { Err(text().into()) }
}

fn table(figures: &[Figures; 2]) -> String {
    type Cell = fn(&Figures) -> String;
    let rows: [(&str, Cell); 6] = [
        ("training, the loss read each step", |figures| spread(&figures.steps_per_second)),
        ("and a wait after each step", |figures| spread(&figures.waited_steps_per_second)),
        ("a tensor of 64 MiB, µs", |figures| spread(&figures.tensor_micros)),
        ("peak reserved in training, MiB", |figures| mib(figures.reserved_peak_bytes).to_string()),
        ("held after a drop and to_scalar, MiB", |figures| mib(figures.held_after_scalar).to_string()),
        ("held after a drop and a wait, MiB", |figures| mib(figures.held_after_wait).to_string()),
    ];
    let mut text = format!("{:38}{:>26}{:>26}\n", "median (least to most)", "the default pool", "gpumem");
    for (name, cell) in rows {
        text += &format!("{name:38}{:>26}{:>26}\n", cell(&figures[0]), cell(&figures[1]));
    }
    text
}

fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted[..] {
        [least, .., most] => format!("{:.1} ({least:.1} to {most:.1})", sorted[sorted.len() / 2]),
        [one] => format!("{one:.1}"),
        [] => String::new(),
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
