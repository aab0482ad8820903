//! The reference: a training on the host with `ndarray` alone, for comparison with the device's result.
//!
//! It shares the data, the initial parameters and the order of the batches with the device, but no code.

use crate::data::Table;
use crate::model::Dense;
use crate::options::Plan;
use indicatif::ProgressBar;
use ndarray::parallel::prelude::*;
use ndarray::{Array1, ArrayView1, ArrayView2, Axis, Slice, Zip};

/// Trains on the host; returns the mean loss of each epoch and the parameters at the end.
pub(crate) fn train(
    table: &Table,
    initial: &Dense<Array1<f32>>,
    plan: &Plan,
    progress: &ProgressBar,
) -> (Vec<f64>, Dense<Array1<f32>>) {
    let mut model = initial.clone();
    let mut adam = Adam::new(&model);
    let mut losses = Vec::with_capacity(plan.epochs);
    progress.set_length(plan.epochs as u64);
    for _ in progress.wrap_iter(0..plan.epochs) {
        let mut squares = 0.0;
        for batch in plan.batches(table.rows()) {
            let slice = Slice::from(batch);
            let (inputs, targets) =
                (table.inputs.slice_axis(Axis(0), slice), table.targets.slice_axis(Axis(0), slice));
            let sums = Sums::of_batch(&model, inputs, targets);
            squares += sums.squares;
            adam.step(&mut model, &sums, plan);
        }
        losses.push(squares / table.rows() as f64);
    }
    (losses, model)
}

/// The rows per task: 16 threads share a batch of 2,048.
const ROWS_PER_PART: usize = 128;

/// The sums over a batch.
struct Sums {
    weight: Array1<f32>,
    bias: f32,
    squares: f64,
    rows: usize,
}

impl Sums {
    fn of_batch(
        model: &Dense<Array1<f32>>,
        inputs: ArrayView2<'_, f32>,
        targets: ArrayView1<'_, f32>,
    ) -> Self {
        let parts: Vec<Self> = inputs
            .axis_chunks_iter(Axis(0), ROWS_PER_PART)
            .into_par_iter()
            .zip(targets.axis_chunks_iter(Axis(0), ROWS_PER_PART))
            .map(|(inputs, targets)| Self::of_part(model, inputs, targets))
            .collect();
        let zero = Self { weight: Array1::zeros(inputs.ncols()), bias: 0.0, squares: 0.0, rows: 0 };
        parts.into_iter().fold(zero, |sum, part| Self {
            weight: sum.weight + part.weight,
            bias: sum.bias + part.bias,
            squares: sum.squares + part.squares,
            rows: sum.rows + part.rows,
        })
    }

    fn of_part(
        model: &Dense<Array1<f32>>,
        inputs: ArrayView2<'_, f32>,
        targets: ArrayView1<'_, f32>,
    ) -> Self {
        let residual = inputs.dot(&model.weight) + model.bias[0] - targets;
        let mut weight = Array1::zeros(inputs.ncols());
        // Row by row, so that memory is read sequentially.
        for (row, factor) in inputs.rows().into_iter().zip(&residual) {
            weight.scaled_add(*factor, &row);
        }
        Self {
            weight,
            bias: residual.sum(),
            squares: residual.iter().map(|value| f64::from(*value).powi(2)).sum(),
            rows: targets.len(),
        }
    }
}

/// Adam as published (Kingma and Ba 2015, algorithm 1).
struct Adam {
    mean: Dense<Array1<f32>>,
    square: Dense<Array1<f32>>,
    steps: i32,
}

impl Adam {
    fn new(model: &Dense<Array1<f32>>) -> Self {
        let zeros =
            Dense { weight: Array1::zeros(model.weight.len()), bias: Array1::zeros(model.bias.len()) };
        Self { mean: zeros.clone(), square: zeros, steps: 0 }
    }

    fn step(&mut self, model: &mut Dense<Array1<f32>>, sums: &Sums, plan: &Plan) {
        self.steps += 1;
        let scale = 2.0 / sums.rows as f32;
        let corrections = (1.0 - plan.beta1.powi(self.steps), 1.0 - plan.beta2.powi(self.steps));
        let update = |value: &mut f32, mean: &mut f32, square: &mut f32, sum: &f32| {
            let gradient = f64::from(scale * sum);
            let new_mean = plan.beta1 * f64::from(*mean) + (1.0 - plan.beta1) * gradient;
            let new_square = plan.beta2 * f64::from(*square) + (1.0 - plan.beta2) * gradient * gradient;
            let (mean_hat, square_hat) = (new_mean / corrections.0, new_square / corrections.1);
            let change = plan.learning_rate * mean_hat / (square_hat.sqrt() + plan.epsilon);
            (*mean, *square) = (new_mean as f32, new_square as f32);
            *value = (f64::from(*value) - change) as f32;
        };
        let (mean, square) = (&mut self.mean, &mut self.square);
        Zip::from(&mut model.weight)
            .and(&mut mean.weight)
            .and(&mut square.weight)
            .and(&sums.weight)
            .for_each(update);
        update(&mut model.bias[0], &mut mean.bias[0], &mut square.bias[0], &sums.bias);
    }
}
