//! Adam (Kingma and Ba 2015): one launch updates every parameter.

use crate::kernels::Kernels;
use crate::model::Dense;
use crate::options::Plan;
use anyhow::Result;
use gpumem_adapt::array::ndarray::{Ix1, Ix2};
use gpumem_adapt::array::{Gpu, GpuArray};

/// The optimiser's state.
pub(crate) struct Adam {
    /// The running means of the gradient, and in the second row those of its square: one column for each parameter, bias last.
    moments: GpuArray<f32, Ix2>,
    steps: i32,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

/// The factors of one step, equal for every parameter.
pub(crate) struct Rates {
    /// The factor from the sums over a batch to the gradient.
    pub(crate) scale: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    /// The step size, corrected for a mean that started at zero.
    pub(crate) rate: f32,
    /// The correction for the root of the mean square, which also started at zero.
    pub(crate) root_correction: f32,
    pub(crate) epsilon: f32,
}

impl Adam {
    pub(crate) fn new(gpu: &Gpu, plan: &Plan, columns: usize) -> Result<Self> {
        let &Plan { learning_rate, beta1, beta2, epsilon, .. } = plan;
        let moments = GpuArray::zeros(gpu, (2, columns + 1))?;
        Ok(Self { moments, steps: 0, learning_rate, beta1, beta2, epsilon })
    }

    /// Makes one step along `gradient`, which contains sums over `rows` rows.
    pub(crate) fn step(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        model: &mut Dense<GpuArray<f32, Ix1>>,
        gradient: &Dense<GpuArray<f32, Ix1>>,
        rows: usize,
    ) -> Result<()> {
        self.steps += 1;
        let rates = Rates {
            scale: 2.0 / rows as f32,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            rate: (self.learning_rate / (1.0 - self.beta1.powi(self.steps))) as f32,
            root_correction: (1.0 - self.beta2.powi(self.steps)).sqrt().recip() as f32,
            epsilon: self.epsilon as f32,
        };
        kernels.adam(gpu, model, &mut self.moments, gradient, &rates)
    }
}
