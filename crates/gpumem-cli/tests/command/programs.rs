//! Programs with a pool on the simulator, which are recorded and run again under limits.

use gpumem_sim::SimConfig;
use gpumem_trace::pool::trace::Trace as Recorder;
use gpumem_trace::pool::{Block, Device, Pool, PoolError, Stream};
use std::path::PathBuf;
use std::process::Command;

/// What a program does with memory; each reads its sizes from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The same temporaries in each step.
    Steady,
    /// Some blocks of each step stay.
    Leak,
    /// A cache is filled, and then serves.
    Warming,
    /// Blocks of many sizes with mixed lifetimes.
    Fragmented,
    /// A table that grows by copies.
    Doubling,
    /// Two phases with blocks of different sizes, on two streams.
    Phases,
}

pub(crate) const ALL: [Program; 6] = [
    Program::Steady,
    Program::Leak,
    Program::Warming,
    Program::Fragmented,
    Program::Doubling,
    Program::Phases,
];

/// Runs a program with a limit, or with the memory of the device.
pub(crate) fn run(program: Program, seed: u64, limit: Option<u64>) -> Result<(), PoolError> {
    with_pool(limit, None, |pool| program.run(pool, seed))
}

/// Runs a program, and records it.
pub(crate) fn record(program: Program, seed: u64, limit: Option<u64>, file: &str) -> Result<(), PoolError> {
    with_pool(limit, Some(file), |pool| program.run(pool, seed))
}

/// Records a cache that is filled, with a chunk of the file for each step.
pub(crate) fn record_in_pieces(file: &str) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    let recorder = Recorder::create(file).unwrap();
    let pool = Pool::builder(&device).adaptor(recorder.clone()).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let mut kept = Vec::new();
    for _ in 0..30 {
        kept.push(scoped(&pool, "cache", 1 << 20, &stream).unwrap());
        drop(scoped(&pool, "request", 3 << 20, &stream).unwrap());
        assert!(recorder.flush(core::time::Duration::from_secs(10)));
    }
}

fn with_pool(
    limit: Option<u64>,
    file: Option<&str>,
    work: impl FnOnce(&Pool) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0)?;
    let mut builder = Pool::builder(&device).name("program");
    if let Some(limit_bytes) = limit {
        builder = builder.hard_limit(limit_bytes);
    }
    if let Some(file) = file {
        builder = builder.adaptor(Recorder::create(file).unwrap());
    }
    let pool = builder.build()?;
    work(&pool)
}

impl Program {
    fn run(self, pool: &Pool, seed: u64) -> Result<(), PoolError> {
        let stream = Stream::new(pool.device())?;
        let mut random = fastrand::Rng::with_seed(seed);
        let unit = (64 << 10) + seed * (200 << 10);
        let mut kept: Vec<Block> = Vec::new();
        match self {
            Self::Steady => {
                let _weights = scoped(pool, "weights", 20 * unit, &stream)?;
                for _ in 0..60 {
                    let activations: Vec<Block> = (1..8)
                        .map(|layer| scoped(pool, "activations", layer * unit, &stream))
                        .collect::<Result<_, _>>()?;
                    drop((activations, scoped(pool, "workspace", 9 * unit, &stream)?));
                }
            }
            Self::Leak => {
                for step in 0..200_u64 {
                    drop(scoped(pool, "step", (4 + step % 3) * unit, &stream)?);
                    kept.push(scoped(pool, "kept", unit, &stream)?);
                }
            }
            Self::Warming => {
                for step in 0..150 {
                    if kept.len() < 40 {
                        kept.push(scoped(pool, "cache", 2 * unit, &stream)?);
                    }
                    drop(scoped(pool, "request", (1 + step % 7) * unit, &stream)?);
                }
            }
            Self::Fragmented => {
                for _ in 0..400 {
                    if kept.len() > 30 || (kept.len() > 3 && random.bool()) {
                        drop(kept.swap_remove(random.usize(..kept.len())));
                    } else {
                        kept.push(scoped(pool, "mixed", random.u64(1000..12 * unit), &stream)?);
                    }
                }
            }
            Self::Doubling => {
                let mut table = scoped(pool, "table", unit, &stream)?;
                for _ in 0..7 {
                    let larger = scoped(pool, "table", 2 * table.size_bytes(), &stream)?;
                    table = larger;
                    drop(scoped(pool, "rows", unit / 2, &stream)?);
                }
            }
            Self::Phases => {
                let second = Stream::new(pool.device())?;
                for _ in 0..50 {
                    kept.push(scoped(pool, "first", 3 * unit, &stream)?);
                }
                kept.clear();
                second.wait_for(&stream)?;
                for _ in 0..20 {
                    kept.push(scoped(pool, "second", 7 * unit, &second)?);
                }
            }
        }
        Ok(())
    }
}

fn scoped(pool: &Pool, tag: &str, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
    let _scope = pool.scope(tag);
    pool.alloc(size_bytes, stream)
}

/// What the command has printed.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// Runs the command.
pub(crate) fn gpumem(args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
    command.args(args);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), error: text(output.stderr) }
}

/// A folder for the files of a test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gpumem-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}
