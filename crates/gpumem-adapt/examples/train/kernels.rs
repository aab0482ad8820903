//! The kernels of this example, `kernels.cu`, and their launches.

use crate::adam::Rates;
use crate::model::Dense;
use anyhow::Result;
use gpumem_adapt::array::ndarray::{Ix1, Ix2};
use gpumem_adapt::array::{Function, Gpu, GpuArray, GpuView, LaunchShape, kernels};

/// The loaded kernels.
pub(crate) struct Kernels {
    residual: Function,
    adam: Function,
}

/// The number of threads of the single block of `residual`: whole warps, at most 32 of them.
const RESIDUAL_THREADS: u32 = 1024;

impl Kernels {
    /// Loads the kernels for the device of `gpu`.
    pub(crate) fn load(gpu: &Gpu) -> Result<Self> {
        let module = gpu.compile(&KERNELS)?;
        Ok(Self { residual: module.function("residual")?, adam: module.function("adam")? })
    }

    /// `prediction += bias - target`, in place. Returns its sum, and adds the sum of its squares to `losses[epoch]`.
    pub(crate) fn residual(
        &self,
        gpu: &Gpu,
        prediction: &mut GpuArray<f32, Ix1>,
        target: &GpuView<'_, f32, Ix1>,
        bias: &GpuArray<f32, Ix1>,
        losses: &mut GpuArray<f64, Ix1>,
        epoch: usize,
    ) -> Result<GpuArray<f32, Ix1>> {
        let rows = u32::try_from(prediction.len())?;
        assert!(target.len() == prediction.len() && bias.len() == 1 && epoch < losses.len());
        let mut sum = GpuArray::uninit(gpu, 1)?;
        let shape = LaunchShape { grid: [1, 1, 1], block: [RESIDUAL_THREADS, 1, 1], shared_bytes: 0 };
        let launch = self.residual.launch(shape).write(prediction).read(target).read(bias);
        let launch = launch.write_uninit(&mut sum).write(losses).scalar(u32::try_from(epoch)?).scalar(rows);
        // SAFETY: the arguments are the kernel's parameters. It accesses `rows` elements of `prediction` and `target`, one of
        // `bias` and `sum`, and element `epoch` of `losses`; all of this is checked above.
        unsafe { launch.enqueue(gpu)? };
        // SAFETY: the kernel writes its only element.
        Ok(unsafe { sum.assume_init() })
    }

    /// Makes one step for every parameter of `model`.
    pub(crate) fn adam(
        &self,
        gpu: &Gpu,
        model: &mut Dense<GpuArray<f32, Ix1>>,
        moments: &mut GpuArray<f32, Ix2>,
        sums: &Dense<GpuArray<f32, Ix1>>,
        rates: &Rates,
    ) -> Result<()> {
        let columns = model.weight.len();
        assert!(sums.weight.len() == columns && moments.shape() == [2, columns + 1]);
        assert!(model.bias.len() == 1 && sums.bias.len() == 1);
        let launch = self.adam.launch(LaunchShape::for_len(columns + 1));
        let launch = launch.write(&mut model.weight).write(&mut model.bias).write(moments);
        let launch = launch.read(&sums.weight).read(&sums.bias).scalar(u32::try_from(columns)?);
        let launch = launch.scalar(rates.scale).scalar(rates.beta1).scalar(rates.beta2);
        let launch = launch.scalar(rates.rate).scalar(rates.root_correction).scalar(rates.epsilon);
        // SAFETY: the arguments are the kernel's parameters. It accesses `columns` elements of the weights, one of the biases and
        // twice `columns + 1` of the moments; all of this is checked above.
        unsafe { launch.enqueue(gpu)? };
        Ok(())
    }
}

kernels! {
    static KERNELS = ptx include_str!("kernels.ptx");
}
