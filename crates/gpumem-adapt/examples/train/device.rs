//! The training on the device. A table that fits is uploaded once, and its batches are views; another one is fed in batches, in each
//! epoch again. The host waits for nothing between the first step and the last, except for the pinned memory of the feed.

use crate::adam::Adam;
use crate::data::Table;
use crate::kernels::Kernels;
use crate::model::Dense;
use crate::options::Plan;
use anyhow::{Context, Result};
use gpumem_adapt::array::ndarray::{Array1, Axis, Ix1, Ix2, Slice};
use gpumem_adapt::array::pool::{Pool, Status};
use gpumem_adapt::array::{Gpu, GpuArray, GpuView, LinkRate, Transfers};
use gpumem_adapt::{Adapt, Host, batches};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// Where the table is during the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On the device, as a whole.
    Resident,
    /// On the host: the device has one batch in use and others that are uploaded ahead.
    Fed,
}

impl Placement {
    /// On the device if the limit of the pool and the free memory of the device leave room for it.
    pub(crate) fn of(table: &Table, pool: &Pool) -> Result<Self> {
        let status = pool.status()?;
        let free_bytes = status.device_total_bytes.saturating_sub(status.device_used_bytes);
        let room_bytes = status.hard_limit_bytes.map_or(free_bytes, |limit| limit.min(free_bytes));
        // A step needs memory beside the table.
        let is_resident = table.bytes() + table.bytes() / 10 <= room_bytes;
        Ok(if is_resident { Self::Resident } else { Self::Fed })
    }
}

/// The result of a training.
pub(crate) struct Training {
    /// The mean loss of each epoch.
    pub(crate) losses: Vec<f64>,
    /// The final parameters, on the host.
    pub(crate) model: Dense<Array1<f32>>,
    /// The status of the pool in the middle of the training, with the gradient of a batch.
    pub(crate) status: Option<Status>,
    pub(crate) upload_time: Duration,
    /// The time from the first step until the losses were on the host.
    pub(crate) training_time: Duration,
    /// `None` if the table was resident.
    pub(crate) feeding: Option<Feeding>,
}

/// The figures of a training with a table that was fed.
pub(crate) struct Feeding {
    /// The bytes of the table, once for each epoch.
    pub(crate) moved_bytes: u64,
    pub(crate) transfers: Transfers,
    pub(crate) link: LinkRate,
    /// The time of as many steps with a batch that is on the device.
    pub(crate) compute_time: Duration,
    /// The maximum that the pool had reserved.
    pub(crate) peak_bytes: u64,
    /// The batches that are on the device at a time, the model, the state of Adam, and the results of a step.
    pub(crate) needed_bytes: u64,
}

/// Trains on `gpu`, starting from `initial`.
pub(crate) fn train(
    gpu: &Gpu,
    table: &Table,
    initial: &Dense<Array1<f32>>,
    plan: &Plan,
    placement: Placement,
    progress: &ProgressBar,
) -> Result<Training> {
    let kernels = Kernels::load(gpu)?;
    gpu.preload::<f32>()?;
    match placement {
        Placement::Resident => train_resident(gpu, kernels, table, initial, plan, progress),
        Placement::Fed => train_fed(gpu, kernels, table, initial, plan, progress),
    }
}

fn train_resident(
    gpu: &Gpu,
    kernels: Kernels,
    table: &Table,
    initial: &Dense<Array1<f32>>,
    plan: &Plan,
    progress: &ProgressBar,
) -> Result<Training> {
    let upload_started = Instant::now();
    let (inputs, targets) = (&table.inputs, &table.targets).adapt(gpu).context("uploading the table")?;
    let mut trainer = Trainer::new(gpu, kernels, initial, plan)?;
    let upload_time = upload_started.elapsed();

    let training_started = Instant::now();
    let parts: Vec<_> = plan
        .parts(table.rows())
        .map(|rows| {
            let rows = Slice::from(rows);
            Ok((inputs.slice_axis(Axis(0), rows)?, targets.slice_axis(Axis(0), rows)?))
        })
        .collect::<Result<_>>()?;
    progress.set_length(plan.epochs as u64);
    for epoch in 0..plan.epochs {
        parts.iter().try_for_each(|(inputs, targets)| trainer.add(inputs, targets, epoch))?;
        trainer.step()?;
        progress.inc(1);
    }
    let training = trainer.finish(table, upload_time, training_started)?;
    progress.finish_and_clear();
    Ok(training)
}

fn train_fed(
    gpu: &Gpu,
    kernels: Kernels,
    table: &Table,
    initial: &Dense<Array1<f32>>,
    plan: &Plan,
    progress: &ProgressBar,
) -> Result<Training> {
    let link = gpu.measure_link()?;
    gpu.pool().reclaim()?;
    gpu.pool().reset_peaks()?;
    let upload_started = Instant::now();
    let mut trainer = Trainer::new(gpu, kernels, initial, plan)?;
    let upload_time = upload_started.elapsed();

    let all_bytes = table.bytes() * plan.epochs as u64;
    progress.set_length(all_bytes);
    let training_started = Instant::now();
    for epoch in 0..plan.epochs {
        let data = batches((&table.inputs, &table.targets)).batch_size(plan.part_rows());
        for batch in data.prefetch(plan.prefetch).on(gpu)? {
            let (inputs, targets) = batch?;
            trainer.add(&inputs.view(), &targets.view(), epoch)?;
            progress.inc((size_of::<f32>() * (inputs.len() + targets.len())) as u64);
        }
        trainer.step()?;
    }
    let mut training = trainer.finish(table, upload_time, training_started)?;
    progress.finish_and_clear();

    training.feeding = Some(Feeding {
        moved_bytes: all_bytes,
        transfers: gpu.transfers(),
        link,
        peak_bytes: gpu.pool().status()?.reserved_peak_bytes,
        needed_bytes: plan.needed_bytes(table),
        compute_time: compute_time(gpu, table, initial, plan)?,
    });
    Ok(training)
}

/// The time of the steps of a training without its uploads: every step has the same batch.
fn compute_time(gpu: &Gpu, table: &Table, initial: &Dense<Array1<f32>>, plan: &Plan) -> Result<Duration> {
    let rows = Slice::from(0..plan.part_rows().min(table.rows()));
    let first = (table.inputs.slice_axis(Axis(0), rows), table.targets.slice_axis(Axis(0), rows));
    let (inputs, targets) = first.adapt(gpu)?;
    let mut trainer = Trainer::new(gpu, Kernels::load(gpu)?, initial, plan)?;
    gpu.synchronize()?;
    let started = Instant::now();
    for epoch in 0..plan.epochs {
        for _ in plan.parts(table.rows()) {
            trainer.add(&inputs.view(), &targets.view(), epoch)?;
        }
        trainer.step()?;
    }
    gpu.synchronize()?;
    Ok(started.elapsed())
}

/// The sum of the gradients of parts of a batch.
struct Gradient {
    sum: Dense<GpuArray<f32, Ix1>>,
    part_count: usize,
    row_count: usize,
}

/// The model and its optimiser.
struct Trainer<'a> {
    gpu: Gpu,
    kernels: Kernels,
    plan: &'a Plan,
    model: Dense<GpuArray<f32, Ix1>>,
    adam: Adam,
    losses: GpuArray<f64, Ix1>,
    /// The gradient of a batch so far.
    gradient: Option<Gradient>,
    status: Option<Status>,
}

impl<'a> Trainer<'a> {
    fn new(gpu: &Gpu, kernels: Kernels, initial: &Dense<Array1<f32>>, plan: &'a Plan) -> Result<Self> {
        Ok(Self {
            gpu: gpu.clone(),
            kernels,
            plan,
            model: initial.adapt(gpu).context("uploading the model")?,
            adam: Adam::new(gpu, plan, initial.weight.len())?,
            losses: GpuArray::zeros(gpu, plan.epochs)?,
            gradient: None,
            status: None,
        })
    }

    /// Adds the gradient of a part to the gradient of its batch. After the last part of a batch, makes a step.
    fn add(
        &mut self,
        inputs: &GpuView<'_, f32, Ix2>,
        targets: &GpuView<'_, f32, Ix1>,
        epoch: usize,
    ) -> Result<()> {
        let part = self.gradient_of(inputs, targets, epoch)?;
        if self.status.is_none() && epoch == self.plan.epochs / 2 {
            self.status = Some(self.gpu.pool().status()?);
        }
        let gradient = match self.gradient.take() {
            None => Gradient { sum: part, part_count: 1, row_count: targets.len() },
            Some(Gradient { mut sum, part_count, row_count }) => {
                sum.weight.try_add_assign(&part.weight)?;
                sum.bias.try_add_assign(&part.bias)?;
                Gradient { sum, part_count: part_count + 1, row_count: row_count + targets.len() }
            }
        };
        let is_whole = gradient.part_count == self.plan.parts_of_batch;
        self.gradient = Some(gradient);
        if is_whole { self.step() } else { Ok(()) }
    }

    /// Makes a step with the parts so far. The last batch of an epoch can have fewer than the others.
    fn step(&mut self) -> Result<()> {
        match self.gradient.take() {
            Some(Gradient { sum, row_count, .. }) => {
                self.adam.step(&self.gpu, &self.kernels, &mut self.model, &sum, row_count)
            }
            None => Ok(()),
        }
    }

    /// Computes the gradient of the squared error of some rows up to a factor, and adds the error to the epoch's loss.
    fn gradient_of(
        &mut self,
        inputs: &GpuView<'_, f32, Ix2>,
        targets: &GpuView<'_, f32, Ix1>,
        epoch: usize,
    ) -> Result<Dense<GpuArray<f32, Ix1>>> {
        let Self { gpu, kernels, model, losses, .. } = self;
        let mut residual = inputs.dot(&model.weight)?;
        let bias = kernels.residual(gpu, &mut residual, targets, &model.bias, losses, epoch)?;
        Ok(Dense { weight: inputs.t().dot(&residual)?, bias })
    }

    fn finish(self, table: &Table, upload_time: Duration, training_started: Instant) -> Result<Training> {
        let losses = self.losses.to_vec()?;
        Ok(Training {
            training_time: training_started.elapsed(),
            losses: losses.iter().map(|squares| squares / table.rows() as f64).collect(),
            model: self.model.adapt(&Host)?,
            status: self.status,
            upload_time,
            feeding: None,
        })
    }
}
