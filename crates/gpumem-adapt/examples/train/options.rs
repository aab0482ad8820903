//! The command-line options, and the training plan that follows from them.

use crate::data::{Size, Table};
use crate::exchange::Way;
use anyhow::{Result, ensure};
use clap::Parser;
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{BackendKind, Device, Limit, Pool, PoolBuilder, Spill};
use indicatif::ProgressBar;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Fits a linear model with mini-batch Adam on the GPU, or on the simulator if there is no GPU, and compares the result with a
/// training on the host.
///
/// GPUMEM_DRIVER=cuda|sim chooses the driver; GPUMEM_HARD_LIMIT and GPUMEM_POOL configure the pool.
#[derive(Clone, Debug, Parser)]
#[command(name = "train")]
pub(crate) struct Options {
    /// Passes over the data.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Rows in each step [default: 64, with --synthetic 2048].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Divide each batch into this many parts, and make a step with the sum of their gradients. The result is that of the whole
    /// batch, which needs more memory.
    #[arg(long, value_name = "PARTS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    accumulate: u32,
    /// How many batches, or parts of batches, are uploaded ahead if the data does not fit.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    prefetch: u32,
    /// Adam's step size [default: 0.01, with --synthetic 0.001].
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// A CSV file to train on: a line of names, then numbers; the last column is the target.
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    data: Option<PathBuf>,
    /// Train on random numbers instead of a file, such as 300000x1000.
    #[arg(long, value_name = "ROWSxCOLUMNS")]
    synthetic: Option<Size>,
    /// The hard limit of the pool: 100M, 1.5GiB, 50%.
    #[arg(long, value_name = "LIMIT")]
    hard_limit: Option<Limit>,
    /// Upload the whole table, even if it does not fit: the pool moves the arrays that are not in use to pinned host memory of up to as many
    /// bytes, such as host:8GiB.
    #[arg(long, value_name = "host:BYTES")]
    spill: Option<Spill>,
    /// The backend of the pool: caching (thread caches and virtual memory), native (the driver's stream-ordered pool) or none (plain
    /// allocations).
    #[arg(long, value_name = "KIND")]
    backend: Option<BackendKind>,
    /// The seed of the initial parameters and the random data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Train on this many devices: each has a copy of the model and its share of each batch, and the gradients are summed over all.
    /// Then train on one device, too, and compare the losses of each epoch.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    devices: Option<u32>,
    /// How the gradients are summed.
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Way::Nccl, requires = "devices")]
    exchange: Way,
    /// One process for each device, which this is of RANK (0, 1, …); start one for each. All have the same other options.
    #[arg(long, requires_all = ["devices", "rendezvous"])]
    rank: Option<u32>,
    /// Where the processes meet: the path of a Unix socket, which rank 0 creates.
    #[arg(long, value_name = "PATH", requires = "rank")]
    rendezvous: Option<PathBuf>,
    /// Several ranks may share a device: rank R is on device R modulo the number of devices. NCCL refuses it.
    #[arg(long, requires = "devices")]
    oversubscribe: bool,
}

impl Options {
    /// The devices of the ranks in this process.
    pub(crate) fn devices(&self, driver: &Driver, ranks: &Ranks) -> Result<Vec<Device>> {
        let present = Device::count(driver)?;
        ensure!(
            self.oversubscribe || ranks.count <= present.max(1) as usize,
            "--devices {}: the driver has {present} (see GPUMEM_SIM_DEVICES for the simulator); --oversubscribe lets ranks share them",
            ranks.count
        );
        let ordinals = ranks.local().map(|rank| rank as u32 % present.max(1));
        Ok(ordinals.map(|ordinal| Device::new(driver, ordinal)).collect::<Result<_, _>>()?)
    }

    /// The devices that train together, and those that this process has.
    pub(crate) fn ranks(&self) -> Result<Ranks> {
        let count = self.devices.unwrap_or(1) as usize;
        let own = self.rank.map(|rank| rank as usize);
        if let Some(rank) = own {
            ensure!(rank < count, "--rank {rank}: the ranks of {count} devices are 0 to {}", count - 1);
        }
        Ok(Ranks { count, own })
    }

    /// How the gradients are summed; `None` without `--devices`.
    pub(crate) fn exchange(&self) -> Option<Way> {
        self.devices.map(|_| self.exchange)
    }

    pub(crate) fn rendezvous(&self) -> Option<&Path> {
        self.rendezvous.as_deref()
    }

    /// A number that processes have in common if they train the same model on the same data.
    pub(crate) fn fingerprint(&self) -> u64 {
        let own = Self {
            rank: None,
            rendezvous: None,
            hard_limit: None,
            spill: None,
            backend: None,
            ..self.clone()
        };
        let mut hasher = DefaultHasher::new();
        format!("{own:?}").hash(&mut hasher);
        hasher.finish()
    }

    /// Builds a pool on the device. The environment applies if an option is not given.
    pub(crate) fn pool(&self, device: &Device) -> Result<Pool> {
        let mut builder = PoolBuilder::from_env(device)?;
        if let Some(limit) = self.hard_limit {
            builder = builder.hard_limit(limit);
        }
        if let Some(spill) = &self.spill {
            builder = builder.spill(spill.clone());
        }
        if let Some(backend) = self.backend {
            builder = builder.backend(backend);
        }
        Ok(builder.build()?)
    }

    /// The training table, on the host.
    pub(crate) fn table(&self, progress: &ProgressBar) -> Result<Table> {
        match (&self.data, self.synthetic) {
            (Some(path), _) => Table::from_csv(path),
            (None, None) => Table::diabetes(),
            (None, Some(size)) => Table::synthetic(size, self.seed, progress),
        }
    }

    pub(crate) fn plan(&self) -> Result<Plan> {
        let ranks = self.ranks()?;
        let (batch, learning_rate) = if self.synthetic.is_some() { (2048, 0.001) } else { (64, 0.01) };
        let (batch, learning_rate) =
            (self.batch.unwrap_or(batch), self.learning_rate.unwrap_or(learning_rate));
        let usable = learning_rate.is_finite() && learning_rate > 0.0;
        ensure!(usable, "--learning-rate {learning_rate}: a number above zero is needed");
        ensure!(
            batch.is_multiple_of(self.accumulate),
            "--accumulate {}: batches of {batch} rows cannot be divided into as many equal parts",
            self.accumulate
        );
        ensure!(
            (batch / self.accumulate).is_multiple_of(ranks.count as u32),
            "--devices {}: {} rows cannot be divided evenly among them; choose another --batch",
            ranks.count,
            batch / self.accumulate
        );
        Ok(Plan {
            ranks,
            epochs: self.epochs as usize,
            batch: batch as usize,
            parts_of_batch: self.accumulate as usize,
            prefetch: self.prefetch as usize,
            spills: self.spill.as_ref().is_some_and(|spill| *spill != Spill::Off),
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            seed: self.seed,
        })
    }
}

/// The plan that device and host share: the number of epochs, and the batches and constants of Adam.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) ranks: Ranks,
    pub(crate) epochs: usize,
    /// The rows of each step.
    pub(crate) batch: usize,
    /// The gradient of a batch is the sum over this many parts.
    pub(crate) parts_of_batch: usize,
    pub(crate) prefetch: usize,
    /// The pool spills, so a table that does not fit is uploaded like one that does.
    pub(crate) spills: bool,
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) epsilon: f64,
    pub(crate) seed: u64,
}

impl Plan {
    /// The rows of each batch, in order; the last one may be shorter.
    pub(crate) fn batches(&self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        ranges(rows, self.batch)
    }

    /// The rows of each part of a batch, in order. Only the last of all can be shorter.
    pub(crate) fn parts(&self, batch: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (start, length) = (batch.start, self.part_rows());
        ranges(batch.len(), length).map(move |part| start + part.start..start + part.end)
    }

    /// The rows of a part of a batch.
    pub(crate) fn part_rows(&self) -> usize {
        self.batch / self.parts_of_batch
    }

    /// The rows of a part that each rank has.
    pub(crate) fn share_rows(&self) -> usize {
        self.part_rows() / self.ranks.count
    }

    /// Returns these options with one device, for the reference run.
    pub(crate) fn on_one_device(&self) -> Self {
        Self { ranks: Ranks { count: 1, own: None }, ..self.clone() }
    }

    /// The memory of each device of a training whose table is fed: the batches, or parts of batches, that are there at a time, the model, its
    /// moments, the losses, and the residuals and gradients of a step.
    pub(crate) fn needed_bytes(&self, table: &Table) -> u64 {
        let (rows, columns) = (self.share_rows().min(table.rows()), table.columns());
        let parameters = columns + 1;
        let gradients = if self.parts_of_batch > 1 { 2 } else { 1 };
        let numbers = (self.prefetch + 1) * rows * (columns + 1) + (3 + gradients) * parameters + rows;
        (numbers * size_of::<f32>() + self.epochs * size_of::<f64>()) as u64
    }
}

/// The devices that train together, each with a rank, and those of this process.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    pub(crate) count: usize,
    /// The only rank of this process; `None` if it has them all.
    pub(crate) own: Option<usize>,
}

impl Ranks {
    /// The ranks of this process.
    pub(crate) fn local(&self) -> Range<usize> {
        self.own.map_or(0..self.count, |rank| rank..rank + 1)
    }

    /// True if this process reports the result.
    pub(crate) fn has_first(&self) -> bool {
        self.local().start == 0
    }
}

fn ranges(rows: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(length).map(move |start| start..rows.min(start.saturating_add(length)))
}
