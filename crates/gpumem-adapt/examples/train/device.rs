//! The training on the devices. A table that fits is uploaded once, and its batches are views; another one is fed in batches, in each
//! epoch again. If the pool spills, such a table is uploaded once, too, in an array for each part of a batch. Several devices have a copy of
//! the model each, and a share of each batch: the sum of their gradients is that of the batch, so all copies make the same step. The host waits for nothing between the first step and the last, except for the pinned memory of the
//! feed and for other processes without NCCL.

use crate::adam::Adam;
use crate::data::{Share, Table};
use crate::exchange::Exchange;
use crate::kernels::Kernels;
use crate::model::Dense;
use crate::options::Plan;
use anyhow::{Context, Result};
use gpumem_adapt::array::ndarray::{Array1, Axis, Ix1, Ix2, Slice};
use gpumem_adapt::array::pool::{Event, Pool, Status};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, GpuView, PinnedArray, Transfers};
use gpumem_adapt::{Adapt, AdaptError, Host, batches};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// Where the table is during the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On the device, as a whole.
    Resident,
    /// On the device, in an array for each part of a batch. Those that do not fit move to the host and back.
    Spilled,
    /// On the host: the device has one batch in use and others that are uploaded ahead.
    Fed,
}

impl Placement {
    /// On the device if the limit of the pool and the free memory of the device leave room for the share of a rank.
    pub(crate) fn of(table: &Table, plan: &Plan, pool: &Pool) -> Result<Self> {
        let status = pool.status()?;
        let free_bytes = status.device_total_bytes.saturating_sub(status.device_used_bytes);
        let room_bytes = status.hard_limit_bytes.map_or(free_bytes, |limit| limit.min(free_bytes));
        // A step needs memory beside the table.
        let share_bytes = table.bytes().div_ceil(plan.ranks.count as u64);
        let is_resident = share_bytes + share_bytes / 10 <= room_bytes;
        Ok(match is_resident {
            true => Self::Resident,
            false if plan.spills => Self::Spilled,
            false => Self::Fed,
        })
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

/// The figures of a training with a table that was fed; those of the first device, if there are several.
pub(crate) struct Feeding {
    /// The bytes of the table, or of the device's share, once for each epoch.
    pub(crate) moved_bytes: u64,
    pub(crate) transfers: Transfers,
    /// The bytes that the link moves to the device in a second, from pinned memory.
    pub(crate) link_rate: f64,
    /// The time of as many steps with a batch that is on the device.
    pub(crate) compute_time: Duration,
    /// The maximum that the pool had reserved.
    pub(crate) peak_bytes: u64,
    /// The batches that are on the device at a time, the model, the state of Adam, and the results of a step.
    pub(crate) needed_bytes: u64,
}

/// The work of a training: the devices of this process and what the ranks have in common.
pub(crate) struct Work<'a> {
    pub(crate) gpus: &'a [Gpu],
    pub(crate) table: &'a Table,
    pub(crate) initial: &'a Dense<Array1<f32>>,
    pub(crate) plan: &'a Plan,
    pub(crate) exchange: Exchange,
    pub(crate) progress: &'a ProgressBar,
}

/// Trains, starting from the initial model.
pub(crate) fn train(work: Work<'_>, placement: Placement) -> Result<Training> {
    let kernels = work.gpus.iter().map(Kernels::load).collect::<Result<Vec<_>>>()?;
    work.gpus.iter().try_for_each(Gpu::preload::<f32>)?;
    match placement {
        Placement::Resident | Placement::Spilled => train_resident(work, kernels, placement),
        Placement::Fed => train_fed(work, kernels),
    }
}

fn train_resident(work: Work<'_>, kernels: Vec<Kernels>, placement: Placement) -> Result<Training> {
    let Work { gpus, table, initial, plan, exchange, progress } = work;
    let shares = shares(table, plan);
    let upload_started = Instant::now();
    // The rows of each array.
    let rows_each = if placement == Placement::Spilled { plan.share_rows() } else { table.rows() };
    let upload = |(gpu, share): (&Gpu, &Share<'_>)| {
        batches((&share.inputs, &share.targets)).batch_size(rows_each).on(gpu)?.collect()
    };
    let uploaded: Vec<Vec<Rows>> = gpus
        .iter()
        .zip(&shares)
        .map(upload)
        .collect::<Result<_, AdaptError>>()
        .context("uploading the table")?;
    let mut trainers = Trainers::new(gpus, kernels, initial, plan, exchange)?;
    let upload_time = upload_started.elapsed();

    let training_started = Instant::now();
    progress.set_length(plan.epochs as u64);
    for epoch in 0..plan.epochs {
        for batch in plan.batches(table.rows()) {
            for part in plan.parts(batch.clone()) {
                let members = trainers.members.iter_mut().zip(&shares).zip(&uploaded);
                for ((trainer, share), uploaded) in members {
                    let rows = share.rows(part.clone());
                    let Some((inputs, targets)) = uploaded.get(rows.start / rows_each) else { continue };
                    let start = rows.start / rows_each * rows_each;
                    let rows = Slice::from(rows.start - start..rows.end - start);
                    let inputs = inputs.slice_axis(Axis(0), rows)?;
                    trainer.add(&inputs, &targets.slice_axis(Axis(0), rows)?, epoch)?;
                }
            }
            trainers.step(batch.len())?;
        }
        progress.inc(1);
    }
    let training = trainers.finish(table, upload_time, training_started)?;
    progress.finish_and_clear();
    Ok(training)
}

fn train_fed(work: Work<'_>, kernels: Vec<Kernels>) -> Result<Training> {
    let Work { gpus, table, initial, plan, exchange, progress } = work;
    let shares = shares(table, plan);
    let (first, first_share) = (&gpus[0], &shares[0]);
    let link_rate = link_rate(first)?;
    for gpu in gpus {
        gpu.pool().reclaim()?;
        gpu.pool().reset_peaks()?;
    }
    let upload_started = Instant::now();
    let mut trainers = Trainers::new(gpus, kernels, initial, plan, exchange)?;
    let upload_time = upload_started.elapsed();

    let share_bytes = |bytes: u64, share: &Share<'_>| bytes + share.bytes();
    progress.set_length(shares.iter().fold(0, share_bytes) * plan.epochs as u64);
    let training_started = Instant::now();
    for epoch in 0..plan.epochs {
        let mut feeds = gpus
            .iter()
            .zip(&shares)
            .map(|(gpu, share)| feed(gpu, share, plan))
            .collect::<Result<Vec<_>, _>>()?;
        for batch in plan.batches(table.rows()) {
            for part in plan.parts(batch.clone()) {
                let members = trainers.members.iter_mut().zip(&shares).zip(&mut feeds);
                let with_rows = members.filter(|((_, share), _)| !share.rows(part.clone()).is_empty());
                for ((trainer, _), feed) in with_rows {
                    let (inputs, targets) = feed.next().context("the feed has ended early")??;
                    trainer.add(&inputs.view(), &targets.view(), epoch)?;
                    progress.inc((size_of::<f32>() * (inputs.len() + targets.len())) as u64);
                }
            }
            trainers.step(batch.len())?;
        }
    }
    let mut training = trainers.finish(table, upload_time, training_started)?;
    progress.finish_and_clear();

    training.feeding = Some(Feeding {
        moved_bytes: first_share.bytes() * plan.epochs as u64,
        transfers: first.transfers(),
        link_rate,
        peak_bytes: first.pool().status()?.reserved_peak_bytes,
        needed_bytes: plan.needed_bytes(table),
        compute_time: compute_time(first, first_share, table, initial, plan)?,
    });
    Ok(training)
}

/// The rate of the fastest of several copies to the device, in bytes a second; of smaller copies where a limit of the
/// pool refuses large ones.
fn link_rate(gpu: &Gpu) -> Result<f64> {
    let mut size_bytes = LARGEST_COPY;
    let best_ms = loop {
        match fastest_copy_ms(gpu, size_bytes) {
            Err(error) if error.is_out_of_memory() && size_bytes > SMALLEST_COPY => size_bytes /= 2,
            measured => break measured?,
        }
    };
    Ok(size_bytes as f64 / f64::from(best_ms.max(1e-6)) * 1e3)
}

fn fastest_copy_ms(gpu: &Gpu, size_bytes: usize) -> Result<f32, ArrayError> {
    let pinned = PinnedArray::<u8, Ix1>::zeros(&gpu.pinned(), size_bytes)?;
    let mut array = GpuArray::<u8, Ix1>::zeros(gpu, size_bytes)?;
    let (begin, end) = (Event::with_timing(gpu.device())?, Event::with_timing(gpu.device())?);
    let mut best_ms = f32::INFINITY;
    for _ in 0..4 {
        begin.record(gpu.stream())?;
        array.assign(&pinned)?;
        end.record(gpu.stream())?;
        end.synchronize()?;
        best_ms = best_ms.min(end.elapsed_ms_since(&begin)?);
    }
    Ok(best_ms)
}

const LARGEST_COPY: usize = 16 << 20;
const SMALLEST_COPY: usize = 1 << 20;

/// Inputs and targets on a device.
type Rows = (GpuArray<f32, Ix2>, GpuArray<f32, Ix1>);

/// The share of a rank in the parts of an epoch, uploaded ahead.
fn feed<'a>(
    gpu: &Gpu,
    share: &'a Share<'_>,
    plan: &Plan,
) -> Result<impl Iterator<Item = Result<Rows, AdaptError>> + use<'a>> {
    let data = batches((&share.inputs, &share.targets)).batch_size(plan.share_rows());
    Ok(data.prefetch(plan.prefetch).on(gpu)?)
}

/// The rows of each rank of this process.
fn shares<'a>(table: &'a Table, plan: &Plan) -> Vec<Share<'a>> {
    plan.ranks.local().map(|rank| table.share(rank, plan.ranks.count)).collect()
}

/// The time of the steps of a training on the first device, without its uploads and without sums over the ranks: every step has the
/// same batch.
fn compute_time(
    gpu: &Gpu,
    share: &Share<'_>,
    table: &Table,
    initial: &Dense<Array1<f32>>,
    plan: &Plan,
) -> Result<Duration> {
    let rows = Slice::from(share.rows(0..plan.part_rows().min(table.rows())));
    let first = (share.inputs.slice_axis(Axis(0), rows), share.targets.slice_axis(Axis(0), rows));
    let (inputs, targets) = first.adapt(gpu)?;
    let kernels = vec![Kernels::load(gpu)?];
    let mut trainers = Trainers::new(std::slice::from_ref(gpu), kernels, initial, plan, Exchange::Alone)?;
    gpu.synchronize()?;
    let started = Instant::now();
    for epoch in 0..plan.epochs {
        for batch in plan.batches(table.rows()) {
            for _ in plan.parts(batch.clone()) {
                trainers.members[0].add(&inputs.view(), &targets.view(), epoch)?;
            }
            trainers.step(batch.len())?;
        }
    }
    gpu.synchronize()?;
    Ok(started.elapsed())
}

/// The models of the ranks in this process, which stay equal to each other and to those of other processes.
struct Trainers {
    members: Vec<Trainer>,
    exchange: Exchange,
}

impl Trainers {
    fn new(
        gpus: &[Gpu],
        kernels: Vec<Kernels>,
        initial: &Dense<Array1<f32>>,
        plan: &Plan,
        exchange: Exchange,
    ) -> Result<Self> {
        let members =
            gpus.iter().zip(kernels).map(|(gpu, kernels)| Trainer::new(gpu, kernels, initial, plan));
        Ok(Self { members: members.collect::<Result<_>>()?, exchange })
    }

    /// Makes a step on each device, with the sum of all gradients of a batch of `rows` rows.
    fn step(&mut self, rows: usize) -> Result<()> {
        let gradients = self.members.iter_mut().map(Trainer::take_gradient);
        let mut gradients = gradients.collect::<Result<Vec<_>>>()?;
        let mut parts: Vec<_> =
            gradients.iter_mut().map(|gradient| vec![&mut gradient.weight, &mut gradient.bias]).collect();
        self.exchange.sum(&mut parts)?;
        let mut members = self.members.iter_mut().zip(&gradients);
        members.try_for_each(|(member, gradient)| member.step(gradient, rows))
    }

    fn finish(mut self, table: &Table, upload_time: Duration, training_started: Instant) -> Result<Training> {
        let mut losses: Vec<_> = self.members.iter_mut().map(|member| vec![&mut member.losses]).collect();
        self.exchange.sum(&mut losses)?;
        let losses = losses[0][0].to_vec()?;
        self.members.iter().try_for_each(|member| member.gpu.synchronize())?;
        let training_time = training_started.elapsed();
        self.exchange.finish()?;
        let first = self.members.swap_remove(0);
        Ok(Training {
            training_time,
            losses: losses.iter().map(|squares| squares / table.rows() as f64).collect(),
            model: first.model.adapt(&Host)?,
            status: first.status,
            upload_time,
            feeding: None,
        })
    }
}

/// The model and its optimiser on one device.
struct Trainer {
    gpu: Gpu,
    kernels: Kernels,
    model: Dense<GpuArray<f32, Ix1>>,
    adam: Adam,
    /// The sum of the squared errors of each epoch.
    losses: GpuArray<f64, Ix1>,
    /// The gradient of a batch so far.
    gradient: Option<Dense<GpuArray<f32, Ix1>>>,
    /// The pool in the middle of the training, taken in this epoch.
    status: Option<Status>,
    status_epoch: usize,
}

impl Trainer {
    fn new(gpu: &Gpu, kernels: Kernels, initial: &Dense<Array1<f32>>, plan: &Plan) -> Result<Self> {
        Ok(Self {
            gpu: gpu.clone(),
            kernels,
            model: initial.adapt(gpu).context("uploading the model")?,
            adam: Adam::new(gpu, plan, initial.weight.len())?,
            losses: GpuArray::zeros(gpu, plan.epochs)?,
            gradient: None,
            status: None,
            status_epoch: plan.epochs / 2,
        })
    }

    /// Adds the gradient of some rows to the gradient of their batch.
    fn add(
        &mut self,
        inputs: &GpuView<'_, f32, Ix2>,
        targets: &GpuView<'_, f32, Ix1>,
        epoch: usize,
    ) -> Result<()> {
        if targets.is_empty() {
            return Ok(());
        }
        let part = self.gradient_of(inputs, targets, epoch)?;
        if self.status.is_none() && epoch == self.status_epoch {
            self.status = Some(self.gpu.pool().status()?);
        }
        match &mut self.gradient {
            None => self.gradient = Some(part),
            Some(sum) => {
                sum.weight.try_add_assign(&part.weight)?;
                sum.bias.try_add_assign(&part.bias)?;
            }
        }
        Ok(())
    }

    /// The gradient of the batch so far; zero for a rank that has none of its rows.
    fn take_gradient(&mut self) -> Result<Dense<GpuArray<f32, Ix1>>> {
        match self.gradient.take() {
            Some(gradient) => Ok(gradient),
            None => {
                let zeros = |like: &GpuArray<f32, Ix1>| GpuArray::zeros(&self.gpu, like.len());
                Ok(Dense { weight: zeros(&self.model.weight)?, bias: zeros(&self.model.bias)? })
            }
        }
    }

    fn step(&mut self, gradient: &Dense<GpuArray<f32, Ix1>>, rows: usize) -> Result<()> {
        self.adam.step(&self.gpu, &self.kernels, &mut self.model, gradient, rows)
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
}
