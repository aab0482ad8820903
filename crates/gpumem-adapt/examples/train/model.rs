//! The model: one dense layer with one output, generic over the place of its parameters.
//!
//! `Dense<Array1<f32>>` is on the host, `Dense<GpuArray<f32, Ix1>>` on the device; [`Adapt`] is derived and
//! converts between them field by field, as for a model of any size.

use crate::data::uniform;
use gpumem_adapt::Adapt;
use ndarray::Array1;

/// `output = input · weight + bias`; the bias is an array of one element, so that it is on the device like the weight.
#[derive(Adapt, Clone, Debug)]
pub(crate) struct Dense<A> {
    pub(crate) weight: A,
    pub(crate) bias: A,
}

impl Dense<Array1<f32>> {
    /// Small random weights (Glorot and Bengio 2010) and no bias.
    pub(crate) fn new(inputs: usize, seed: u64) -> Self {
        let bound = (6.0 / (inputs as f32 + 1.0)).sqrt();
        // Indices from the far end of the sequence, because the random data uses it from the start.
        let weight =
            Array1::from_shape_fn(inputs, |i| (2.0 * uniform(seed, u64::MAX - 1 - i as u64) - 1.0) * bound);
        Self { weight, bias: Array1::zeros(1) }
    }
}
