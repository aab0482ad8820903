//! Prints the results and the progress bar, and compares the losses and weights with the reference.

use crate::data::Table;
use crate::device::{Feeding, Placement, Training};
use crate::exchange::Exchange;
use crate::model::Dense;
use crate::options::Plan;
use anyhow::{Result, ensure};
use gpumem_adapt::array::ndarray::Array1;
use gpumem_adapt::array::pool::sys::DriverKind;
use gpumem_adapt::array::pool::{Device, MemoryKind, Pool, Status};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use std::io::{Stdout, Write};
use std::time::Duration;

/// The maximum difference of the last epoch's loss from the reference's, relative to that loss or, if it is larger, to the loss
/// of a model that always predicts 0. Both sides compute in `f32` but sum in different orders, and Adam amplifies the difference.
/// Over hundreds of runs with 1 to 1,000 columns the maximum was 8e-6, for the weights too.
const LOSS_TOLERANCE: f64 = 5e-5;

/// The maximum difference of any weight from the reference's, relative to the largest weight: with many weights, the loss hardly
/// depends on a single one. The bias is excluded: if every batch is the whole of a standardised table, its gradient is only
/// rounding error, which Adam scales to full steps.
const WEIGHT_TOLERANCE: f64 = 1e-4;

/// The maximum difference of the loss of any epoch from that of a training on one device, relative to it.
const DEVICES_TOLERANCE: f64 = 1e-5;

/// Writes the results of a run, one labelled line each.
pub(crate) struct Report {
    /// `None` in a process that leaves the report to another one.
    out: Option<Stdout>,
}

impl Report {
    pub(crate) fn to_stdout() -> Self {
        Self { out: Some(std::io::stdout()) }
    }

    pub(crate) fn to_nowhere() -> Self {
        Self { out: None }
    }

    fn line(&mut self, label: &str, text: &str) -> Result<()> {
        match &mut self.out {
            Some(out) => Ok(writeln!(out, "{label:<10} {text}")?),
            None => Ok(()),
        }
    }

    pub(crate) fn device(&mut self, device: &Device) -> Result<()> {
        let kind = device.driver().kind();
        let remark = match kind {
            DriverKind::Sim => "; its times say nothing about a GPU's",
            _ => "",
        };
        self.line("device", &format!("{device}, {kind}{remark}"))
    }

    pub(crate) fn task(&mut self, table: &Table, plan: &Plan, placement: Placement) -> Result<()> {
        let (rows, columns) = (table.rows(), table.columns());
        let shape = format!("{} × {}", count(rows, "row"), count(columns, "column"));
        self.line("data", &format!("{}: {shape}, {}", table.name, HumanBytes(table.bytes())))?;
        let steps = plan.epochs * plan.batches(rows).count();
        let amount = format!(
            "{}, {} of {}",
            count(plan.epochs, "epoch"),
            count(steps, "step"),
            count(plan.batch, "row")
        );
        self.line("task", &format!("Dense {columns} → 1 with Adam at {}: {amount}", plan.learning_rate))?;
        if plan.parts_of_batch > 1 {
            let parts = count(plan.parts_of_batch, "part");
            self.line(
                "",
                &format!("each step with the sum over {parts} of {}", count(plan.part_rows(), "row")),
            )?;
        }
        match placement {
            Placement::Resident if plan.ranks.count > 1 => {
                self.line("table", "fits: a share on each device during the training")
            }
            Placement::Resident => self.line("table", "fits: on the device during the training"),
            Placement::Spilled => {
                let of = if plan.ranks.count > 1 { "a share on each device" } else { "on the device" };
                self.line(
                    "table",
                    &format!(
                        "does not fit: {of} as {}, which move to the host",
                        count(plan.parts(0..rows).count(), "array")
                    ),
                )
            }
            Placement::Fed => {
                let bytes =
                    HumanBytes((plan.share_rows().min(rows) * (columns + 1) * size_of::<f32>()) as u64);
                let ahead = plan.prefetch;
                self.line("table", &format!("does not fit: fed in batches of {bytes}, {ahead} ahead"))
            }
        }
    }

    /// The figures of a table that was fed: the training beside its compute and its transfers, and the memory beside the batches.
    pub(crate) fn feeding(&mut self, feeding: &Feeding, time: Duration) -> Result<()> {
        let Feeding { moved_bytes, transfers, link_rate, compute_time, peak_bytes, needed_bytes } = feeding;
        let rate = *moved_bytes as f64 / time.as_secs_f64() / 1e9;
        self.line(
            "moved",
            &format!("{} at {rate:.2} GB/s; link {:.1} GB/s", HumanBytes(*moved_bytes), link_rate / 1e9),
        )?;
        let transfer_time = Duration::from_secs_f64(*moved_bytes as f64 / link_rate);
        let ratio = time.as_secs_f64() / transfer_time.max(*compute_time).as_secs_f64();
        self.line(
            "overlap",
            &format!(
                "training {time:.2?}, compute {compute_time:.2?}, transfer at the link's rate {transfer_time:.2?}: {ratio:.3} × the larger"
            ),
        )?;
        let ratio = *peak_bytes as f64 / *needed_bytes as f64;
        let [peak, needed] = [*peak_bytes, *needed_bytes].map(HumanBytes);
        self.line("peak", &format!("{peak} reserved, batches and model {needed}: {ratio:.3} ×"))?;
        transfers.to_string().lines().try_for_each(|line| self.line("", line))
    }

    /// The moves of arrays in a pool that spills, and the bytes copied.
    pub(crate) fn spilled(&mut self, status: &Status) -> Result<()> {
        let counters = &status.counters;
        let moves = count(usize::try_from(counters.spill_count)?, "move");
        let [down, up] = [counters.spilled_down_bytes, counters.spilled_up_bytes].map(HumanBytes);
        self.line("spilled", &format!("{moves} to the host: {down} copied there, {up} back"))
    }

    /// The status of the pool, with its ignored options.
    pub(crate) fn pool(&mut self, pool: &Pool) -> Result<()> {
        let status = pool.status()?;
        let limit = status.hard_limit_bytes.map(|bytes| format!(", at most {}", HumanBytes(bytes)));
        let kind = match status.kind {
            MemoryKind::Device => String::new(),
            other => format!(" of {other} memory"),
        };
        self.line("pool", &format!("{}{kind}{}", status.backend, limit.unwrap_or_default()))?;
        pool.ignored_options().iter().try_for_each(|notice| self.line("", &notice.to_string()))
    }

    pub(crate) fn memory(&mut self, when: &str, status: &Status) -> Result<()> {
        let label = if when == "before" { "memory" } else { "" };
        self.line(
            label,
            &format!(
                "{when:<6}  {:>11} in use, {:>11} reserved; device {} of {}",
                HumanBytes(status.in_use_bytes).to_string(),
                HumanBytes(status.reserved_bytes).to_string(),
                HumanBytes(status.device_used_bytes),
                HumanBytes(status.device_total_bytes)
            ),
        )
    }

    /// How the gradients of several devices are summed.
    pub(crate) fn exchange(&mut self, plan: &Plan, exchange: &Exchange) -> Result<()> {
        let processes = match plan.ranks.own {
            Some(_) => "a process each",
            None => "one process",
        };
        self.line(
            "ranks",
            &format!("{}, {processes}; exchange: {exchange}", count(plan.ranks.count, "device")),
        )
    }

    /// The losses of each epoch beside those of a training on one device. An error if they do not agree.
    pub(crate) fn epochs(&mut self, plan: &Plan, training: &Training, single: &Training) -> Result<()> {
        let devices = count(plan.ranks.count, "device");
        self.line("epoch", &format!("{:>16} {:>16} {:>12}", devices, "one device", "difference"))?;
        let mut largest = 0.0_f64;
        for (epoch, (ours, expected)) in (1..).zip(training.losses.iter().zip(&single.losses)) {
            let difference = (ours - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
            self.line(&epoch.to_string(), &format!("{ours:>16.9} {expected:>16.9} {difference:>12.1e}"))?;
            // `max` would ignore a loss that is not a number.
            largest = if difference > largest || difference.is_nan() { difference } else { largest };
        }
        self.line(
            "devices",
            &format!(
                "losses differ by at most {largest:.1e} (at most {DEVICES_TOLERANCE:.0e}); training {:.2?}, on one device {:.2?}",
                training.training_time, single.training_time
            ),
        )?;
        ensure!(
            largest <= DEVICES_TOLERANCE,
            "{devices} and one device disagree by {largest:.1e}; where the loss jumps about, lower --learning-rate, else please report it"
        );
        Ok(())
    }

    pub(crate) fn losses(&mut self, training: &Training) -> Result<()> {
        let losses = &training.losses;
        let first = losses.first().copied().unwrap_or(f64::NAN);
        self.line(
            "loss",
            &format!("{first:.6} {} {:.6} from the first epoch to the last", sparkline(losses), last(losses)),
        )
    }

    pub(crate) fn times(
        &mut self,
        training: &Training,
        plan: &Plan,
        table: &Table,
        reference: Duration,
        total: Duration,
    ) -> Result<()> {
        let steps = plan.epochs * plan.batches(table.rows()).count();
        let step = training.training_time.div_f64(steps as f64);
        self.line(
            "time",
            &format!(
                "upload {:.2?}, training {:.2?} ({step:.1?} a step), reference {reference:.2?}, all {total:.2?}",
                training.upload_time, training.training_time
            ),
        )
    }

    /// Compares device and host. An error if they do not agree.
    pub(crate) fn agreement(
        &mut self,
        table: &Table,
        training: &Training,
        (losses, model): &(Vec<f64>, Dense<Array1<f32>>),
    ) -> Result<()> {
        let (ours, expected) = (last(&training.losses), last(losses));
        let mut parameters = training.model.weight.iter().chain(&training.model.bias);
        ensure!(
            ours.is_finite() && expected.is_finite() && parameters.all(|parameter| parameter.is_finite()),
            "the loss is {ours} on the device and {expected} on the host, or a parameter is not a number: training diverged; lower --learning-rate"
        );
        let loss_of_zero =
            table.targets.fold(0.0, |sum, target| sum + f64::from(*target).powi(2)) / table.rows() as f64;
        let loss_error = (ours - expected).abs() / expected.max(loss_of_zero).max(f64::MIN_POSITIVE);
        let weight_error = difference(&training.model.weight, &model.weight);
        self.line("reference", &format!("{expected:.6} by ndarray on the host"))?;
        self.line(
            "difference",
            &format!(
                "loss {loss_error:.1e} (at most {LOSS_TOLERANCE:.0e}), weights {weight_error:.1e} (at most {WEIGHT_TOLERANCE:.0e})"
            ),
        )?;
        let since = training.losses.iter().zip(losses).position(|(ours, expected)| {
            (ours - expected).abs() > LOSS_TOLERANCE * expected.max(loss_of_zero)
        });
        ensure!(
            loss_error <= LOSS_TOLERANCE && weight_error <= WEIGHT_TOLERANCE,
            "device and host disagree, {}; where the loss jumps about, lower --learning-rate, else please report it",
            since.map_or("in the weights alone".to_owned(), |epoch| format!("from epoch {} on", epoch + 1))
        );
        Ok(())
    }
}

fn last(losses: &[f64]) -> f64 {
    losses.last().copied().unwrap_or(f64::NAN)
}

/// `1 epoch`, `2,000 epochs`.
fn count(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", HumanCount(number as u64), if number == 1 { "" } else { "s" })
}

/// A progress bar on standard error; hidden if that is not a terminal.
pub(crate) fn progress(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(what);
    match ProgressStyle::with_template("{msg:<10} {wide_bar} {human_pos}/{human_len} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Like [`progress`], with the bytes that were moved and their rate.
pub(crate) fn progress_of_bytes(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(what);
    match ProgressStyle::with_template(
        "{msg:<10} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    ) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The largest difference of two weights, relative to the largest weight.
fn difference(ours: &Array1<f32>, expected: &Array1<f32>) -> f64 {
    let (mut apart, mut largest) = (0.0_f64, f64::MIN_POSITIVE);
    for (ours, expected) in ours.iter().zip(expected) {
        apart = apart.max(f64::from((ours - expected).abs()));
        largest = largest.max(f64::from(expected.abs()));
    }
    apart / largest
}

/// The losses as a row of bars: the height is the position between the lowest and the highest loss, on a logarithmic scale.
fn sparkline(losses: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const WIDTH: usize = 32;
    let logs: Vec<f64> = losses.iter().map(|loss| loss.max(f64::MIN_POSITIVE).ln()).collect();
    let low = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let width = WIDTH.min(logs.len());
    let bar = |place: usize| {
        let log = logs[place * (logs.len() - 1) / (width - 1).max(1)];
        BARS[((log - low) / (high - low).max(f64::MIN_POSITIVE) * 7.0).round() as usize]
    };
    (0..width).map(bar).collect()
}
