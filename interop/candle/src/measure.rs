//! candle with both pools in turns: the same training, and a tensor that is made and dropped.

use crate::counters::{self, Of};
use crate::model::{Batch, Training};
use candle_core::cuda::cudarc::driver::CudaContext;
use candle_core::{DType, Device, Tensor};
use gpumem_pool::Pool;
use std::error::Error;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The bytes of the tensor of the small measurement.
pub const TENSOR_BYTES: usize = 64 << 20;

const TENSORS: usize = 200;

/// The pool that candle allocates from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Default,
    Gpumem,
}

impl Mode {
    pub const ALL: [Self; 2] = [Self::Default, Self::Gpumem];
}

/// The device, the pool and the batches of both modes.
pub struct Stage<'a> {
    pub device: &'a Device,
    pub context: &'a CudaContext,
    pub pool: &'a Pool,
    pub batches: &'a [Batch],
}

/// The figures of one mode, a number for each window.
#[derive(Default)]
pub struct Figures {
    /// The losses of the steps of each training.
    pub losses: Vec<Vec<f32>>,
    pub steps_per_second: Vec<f64>,
    /// With a wait for the device after each step, once its tensors are dropped.
    pub waited_steps_per_second: Vec<f64>,
    pub tensor_micros: Vec<f64>,
    pub reserved_peak_bytes: u64,
    /// Bytes that the pool holds after a tensor of [`TENSOR_BYTES`] was dropped and a scalar was read.
    pub held_after_scalar: u64,
    /// Those bytes after a wait for the device.
    pub held_after_wait: u64,
}

impl Stage<'_> {
    /// Runs the modes in turns, and each first in every second window.
    pub fn measure(&self, windows: usize) -> Outcome<[Figures; 2]> {
        // The pool keeps the memory of earlier work, which would count as reserved.
        self.device.synchronize()?;
        self.pool.trim_to(0)?;
        let mut figures = [Figures::default(), Figures::default()];
        for window in 0..windows {
            let order = if window % 2 == 0 { [0, 1] } else { [1, 0] };
            for index in order {
                self.window(Mode::ALL[index], &mut figures[index])?;
            }
        }
        Ok(figures)
    }

    fn window(&self, mode: Mode, figures: &mut Figures) -> Outcome<()> {
        let _current = match mode {
            Mode::Default => None,
            Mode::Gpumem => Some(self.pool.make_current()?),
        };
        counters::reset_peak(self.context, Of::Current)?;
        for (waits, rates) in
            [(false, &mut figures.steps_per_second), (true, &mut figures.waited_steps_per_second)]
        {
            let (losses, seconds) = self.train(waits)?;
            figures.losses.push(losses);
            rates.push(self.batches.len() as f64 / seconds);
        }
        let peak = counters::read(self.context, Of::Current)?.reserved_peak_bytes;
        figures.reserved_peak_bytes = figures.reserved_peak_bytes.max(peak);
        figures.tensor_micros.push(self.tensors()?);
        [figures.held_after_scalar, figures.held_after_wait] = self.held()?;
        Ok(())
    }

    /// Trains a new model; returns the loss of each step, and the time.
    pub fn train(&self, waits: bool) -> Outcome<(Vec<f32>, f64)> {
        let mut training = Training::new(self.device)?;
        self.device.synchronize()?;
        let (mut losses, start) = (Vec::new(), Instant::now());
        for batch in self.batches {
            losses.push(training.step(batch)?);
            if waits {
                self.device.synchronize()?;
            }
        }
        self.device.synchronize()?;
        Ok((losses, start.elapsed().as_secs_f64()))
    }

    /// The time in which a tensor is made, cleared, dropped and waited for.
    fn tensors(&self) -> Outcome<f64> {
        let start = Instant::now();
        for _ in 0..TENSORS {
            drop(self.tensor()?);
            self.device.synchronize()?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / TENSORS as f64)
    }

    fn held(&self) -> Outcome<[u64; 2]> {
        let (tensor, scalar) = (self.tensor()?, Tensor::new(1_f32, self.device)?);
        self.device.synchronize()?;
        drop(tensor);
        scalar.to_scalar::<f32>()?;
        let after_scalar = counters::read(self.context, Of::Current)?.reserved_bytes;
        drop(scalar);
        self.device.synchronize()?;
        Ok([after_scalar, counters::read(self.context, Of::Current)?.reserved_bytes])
    }

    pub fn tensor(&self) -> candle_core::Result<Tensor> {
        Tensor::zeros(TENSOR_BYTES, DType::U8, self.device)
    }
}
