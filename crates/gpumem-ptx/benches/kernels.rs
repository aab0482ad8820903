//! Kernels on one core: thread-instructions per second, and the time of tinygrad's PTX emulator on the same texts.
//!
//! `cargo bench -p gpumem-ptx --bench kernels`; with `-- --rows`, in the format of `cargo xtask bench`; with `--quick`, small kernels; with
//! `--cores`, on all cores. For the peer, `TINYGRAD_EMULATOR` names its file `test/mockgpu/nv/emu.py`, and `PYTHON` a Python with NumPy (default `python3`).

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_ptx::{Checks, DeviceMemory, Launch, Module, Region};
use std::cell::Cell;
use std::error::Error;
use std::num::NonZeroUsize;
use std::process::Command;
use std::time::Instant;

/// A text whose kernel `k` has two pointers and a number as its parameters.
struct Work {
    name: &'static str,
    what: &'static str,
    body: &'static str,
    threads: u32,
    number: u32,
    is_checked: bool,
}

const WORKS: [Work; 5] = [
    Work {
        name: "saxpy",
        what: "b[i] = 2 a[i] + b[i]",
        body: include_str!("kernels/saxpy.ptx"),
        threads: 1 << 20,
        number: 1 << 20,
        is_checked: false,
    },
    Work {
        name: "product",
        what: "a product of two matrices, 256 × 256",
        body: include_str!("kernels/product.ptx"),
        threads: 1 << 16,
        number: 256,
        is_checked: false,
    },
    Work {
        name: "collatz",
        what: "lanes that leave a loop one by one",
        body: include_str!("kernels/collatz.ptx"),
        threads: 1 << 16,
        number: 1 << 16,
        is_checked: false,
    },
    Work {
        name: "block_sum",
        what: "sums of blocks, in shared memory",
        body: include_str!("kernels/block_sum.ptx"),
        threads: 1 << 18,
        number: 1 << 18,
        is_checked: false,
    },
    Work {
        name: "tickets",
        what: "fence and atomic, races looked for",
        body: include_str!("kernels/tickets.ptx"),
        threads: 1 << 16,
        number: 1 << 16,
        is_checked: true,
    },
];

const BLOCK: u32 = 256;
const WORDS: usize = 1 << 20;
const ROUNDS: usize = 5;

struct Memory([Vec<Cell<u8>>; 2]);

const PLACES: [u64; 2] = [0x1000_0000, 0x2000_0000];

impl DeviceMemory for Memory {
    fn region(&self, address: u64, size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
        let (start, cells) = PLACES
            .into_iter()
            .zip(&self.0)
            .find(|(start, cells)| address >= *start && address + size_bytes <= start + cells.len() as u64)?;
        Some(Region { start, cells, is_writable: true })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let has = |option: &str| std::env::args().any(|arg| arg == option);
    let is_quick = has("--quick");
    let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = if has("--cores") { all } else { 1 };
    if !has("--rows") {
        let title = if cores == 1 { "on one core".into() } else { format!("on {cores} cores") };
        println!(
            "{:<40} {:>16} {:>10} {:>14} {:>7}",
            title, "M instructions/s", "ms", "tinygrad, ms", "ratio"
        );
    }
    for work in &WORKS {
        let threads = if is_quick { work.threads.min(1 << 12) } else { work.threads };
        let (instructions, seconds) = measured(work, threads, cores)?;
        let rate = instructions / seconds / 1e6;
        if has("--rows") {
            println!("row\tptx/{}/1\t{rate}\tMop/s", work.name);
            continue;
        }
        let peer = if is_quick || work.is_checked { None } else { peer(work, threads)? };
        let [peer, ratio] = match peer {
            Some(peer) => [format!("{:.1}", 1e3 * peer), format!("{:.1}", peer / seconds)],
            None => [String::new(), String::new()],
        };
        println!("{:<40} {rate:>16.0} {:>10.1} {peer:>14} {ratio:>7}", work.what, 1e3 * seconds);
    }
    Ok(())
}

/// The instructions of all threads, and the seconds of the best round.
fn measured(work: &Work, threads: u32, cores: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let module = Module::parse(work.body)?;
    let entry = module.entry("k").ok_or("there is no kernel")?;
    let words = |f: fn(usize) -> f32| (0..WORDS).flat_map(move |at| f(at).to_le_bytes()).map(Cell::new);
    let memory = Memory([words(|at| (at % 64) as f32).collect(), words(|_| 0.0).collect()]);
    let mut parameters = Vec::new();
    PLACES.iter().for_each(|place| parameters.extend(place.to_le_bytes()));
    parameters.extend(work.number.to_le_bytes());
    let launch = Launch {
        grid: [threads / BLOCK, 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
        parameters: &parameters,
        variables: &[],
        seed: 1,
        steps_max: u64::MAX,
        multiprocessors: 132,
        checks: Checks { races: work.is_checked, uninitialised: false },
        cores,
    };
    let mut best = f64::MAX;
    let mut steps = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let outcome = entry.run(launch, &memory)?;
        best = best.min(start.elapsed().as_secs_f64());
        if let Some(mistake) = outcome.mistake.or_else(|| outcome.hazards.into_iter().next()) {
            return Err(mistake.into());
        }
        steps = outcome.steps;
    }
    Ok((32.0 * steps as f64, best))
}

/// The seconds of tinygrad's emulator, if there is one.
fn peer(work: &Work, threads: u32) -> Result<Option<f64>, Box<dyn Error>> {
    let Some(emulator) = std::env::var_os("TINYGRAD_EMULATOR") else { return Ok(None) };
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/tinygrad.py");
    let numbers = [threads / BLOCK, BLOCK, work.number, WORDS as u32, ROUNDS as u32];
    let output = Command::new(python)
        .args([program.as_ref(), emulator.as_os_str()])
        .arg(work.body)
        .args(numbers.map(|number| number.to_string()))
        // NumPy's own threads would be more than one core.
        .env("OMP_NUM_THREADS", "1")
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(Some(String::from_utf8(output.stdout)?.trim().parse()?))
}
