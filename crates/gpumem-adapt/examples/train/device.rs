//! The training on the device: the table is uploaded once, its batches are views, and the host waits for nothing between the
//! first step and the last.

use crate::adam::Adam;
use crate::data::Table;
use crate::kernels::Kernels;
use crate::model::Dense;
use crate::options::Plan;
use anyhow::{Context, Result};
use gpumem_adapt::array::ndarray::{Array1, Axis, Ix1, Ix2, Slice};
use gpumem_adapt::array::pool::Status;
use gpumem_adapt::array::{Gpu, GpuArray, GpuView};
use gpumem_adapt::{Adapt, Host};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

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
}

/// Trains on `gpu`, starting from `initial`.
pub(crate) fn train(
    gpu: &Gpu,
    table: &Table,
    initial: &Dense<Array1<f32>>,
    plan: &Plan,
    progress: &ProgressBar,
) -> Result<Training> {
    let kernels = Kernels::load(gpu)?;
    gpu.preload::<f32>()?;
    let upload_started = Instant::now();
    let (inputs, targets) = (&table.inputs, &table.targets).adapt(gpu).context("uploading the table")?;
    let mut model = initial.adapt(gpu).context("uploading the model")?;
    let upload_time = upload_started.elapsed();

    let training_started = Instant::now();
    let mut adam = Adam::new(gpu, plan, table.columns())?;
    let mut losses = GpuArray::<f64, Ix1>::zeros(gpu, plan.epochs)?;
    let batches = batches(&inputs, &targets, plan)?;
    let mut status = None;
    progress.set_length(plan.epochs as u64);
    for epoch in 0..plan.epochs {
        for batch in &batches {
            let gradient = gradient(gpu, &kernels, &model, batch, &mut losses, epoch)?;
            if status.is_none() && epoch == plan.epochs / 2 {
                status = Some(gpu.pool().status()?);
            }
            adam.step(gpu, &kernels, &mut model, &gradient, batch.targets.len())?;
        }
        progress.inc(1);
    }
    let losses = losses.to_vec()?;
    let training_time = training_started.elapsed();
    progress.finish_and_clear();
    Ok(Training {
        losses: losses.iter().map(|squares| squares / table.rows() as f64).collect(),
        model: model.adapt(&Host)?,
        status,
        upload_time,
        training_time,
    })
}

/// A batch: a range of the table's rows.
struct Batch<'a> {
    inputs: GpuView<'a, f32, Ix2>,
    targets: GpuView<'a, f32, Ix1>,
}

fn batches<'a>(
    inputs: &'a GpuArray<f32, Ix2>,
    targets: &'a GpuArray<f32, Ix1>,
    plan: &Plan,
) -> Result<Vec<Batch<'a>>> {
    let rows = plan.batches(targets.len()).map(Slice::from);
    let batch = |rows| {
        let (inputs, targets) = (inputs.slice_axis(Axis(0), rows)?, targets.slice_axis(Axis(0), rows)?);
        Ok(Batch { inputs, targets })
    };
    rows.map(batch).collect()
}

/// Computes the gradient of a batch's squared error up to a factor, and adds the error to the epoch's loss.
fn gradient(
    gpu: &Gpu,
    kernels: &Kernels,
    model: &Dense<GpuArray<f32, Ix1>>,
    batch: &Batch<'_>,
    losses: &mut GpuArray<f64, Ix1>,
    epoch: usize,
) -> Result<Dense<GpuArray<f32, Ix1>>> {
    let mut residual = batch.inputs.dot(&model.weight)?;
    let bias = kernels.residual(gpu, &mut residual, &batch.targets, &model.bias, losses, epoch)?;
    Ok(Dense { weight: batch.inputs.t().dot(&residual)?, bias })
}
