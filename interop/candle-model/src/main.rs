//! A small network of candle, trained by the same steps on candle's CPU device and on its CUDA device. The losses must be equal, but for
//! rounding. A wrong one ends the program.

use candle_core::{D, Device, Result, Tensor, Var};
use candle_nn::{AdamW, LayerNorm, Linear, Module, Optimizer, ParamsAdamW, loss};

const POINTS: usize = 192;
const CLASSES: usize = 3;
const WIDTH: usize = 32;
const STEPS: usize = 30;
/// Sums are added up in another order on a GPU, and thirty steps carry that on.
const TOLERANCE: f32 = 2e-4;

fn main() -> Result<()> {
    let (on_cpu, _) = train(&Device::Cpu)?;
    let (on_gpu, accuracy) = train(&Device::new_cuda(0)?)?;
    let mut largest = 0.0_f32;
    for (step, (cpu, gpu)) in on_cpu.iter().zip(&on_gpu).enumerate() {
        let difference = (cpu - gpu).abs() / cpu.abs();
        assert!(difference <= TOLERANCE, "step {step}: {gpu}, and {cpu} on the CPU");
        largest = largest.max(difference);
    }
    let [first, .., last] = &on_gpu[..] else { unreachable!("there are several steps") };
    assert!(last < &(first / 4.0) && accuracy > 0.9, "it learns: {first} to {last}, {accuracy}");
    println!(
        "{STEPS} steps: losses from {first:.4} to {last:.4}, {:.0} % right; the CPU's differ by at most {largest:.1e} of them: ok",
        accuracy * 100.0
    );
    Ok(())
}

/// Returns the loss of each step, and the share of points with the right class after the last one.
fn train(device: &Device) -> Result<(Vec<f32>, f32)> {
    let mut random = Random(7);
    let (points, classes) = points(&mut random, device)?;
    let network = Network::new(&mut random, device)?;
    let parameters = ParamsAdamW { lr: 0.02, ..ParamsAdamW::default() };
    let mut optimiser = AdamW::new(network.vars.clone(), parameters)?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = loss::cross_entropy(&network.forward(&points)?, &classes)?;
        optimiser.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    let right = network.forward(&points)?.argmax(D::Minus1)?.eq(&classes)?;
    let right = right.to_dtype(candle_core::DType::F32)?.mean_all()?.to_scalar::<f32>()?;
    Ok((losses, right))
}

/// Points of three spirals, and the spiral of each.
fn points(random: &mut Random, device: &Device) -> Result<(Tensor, Tensor)> {
    let (mut points, mut classes) = (Vec::new(), Vec::new());
    for index in 0..POINTS {
        let class = index % CLASSES;
        let radius = index as f32 / POINTS as f32;
        let angle =
            2.0 * radius + class as f32 * std::f32::consts::TAU / CLASSES as f32 + 0.1 * random.number();
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        classes.push(class as u32);
    }
    Ok((Tensor::from_vec(points, (POINTS, 2), device)?, Tensor::from_vec(classes, POINTS, device)?))
}

/// Three layers, with a normalisation and an activation of candle between them.
struct Network {
    layers: Vec<Linear>,
    norm: LayerNorm,
    vars: Vec<Var>,
}

impl Network {
    fn new(random: &mut Random, device: &Device) -> Result<Self> {
        let mut vars = Vec::new();
        let mut var = |rows: usize, columns: usize, scale: f32| {
            let numbers: Vec<f32> = (0..rows * columns).map(|_| random.number() * scale).collect();
            let shape = if rows == 1 { vec![columns] } else { vec![rows, columns] };
            vars.push(Var::from_tensor(&Tensor::from_vec(numbers, shape, device)?)?);
            Ok::<_, candle_core::Error>(vars[vars.len() - 1].as_tensor().clone())
        };
        let mut layers = Vec::new();
        for (inputs, outputs) in [(2, WIDTH), (WIDTH, WIDTH), (WIDTH, CLASSES)] {
            let weight = var(outputs, inputs, (3.0 / inputs as f32).sqrt())?;
            layers.push(Linear::new(weight, Some(var(1, outputs, 0.1)?)));
        }
        let norm =
            LayerNorm::new(Tensor::ones(WIDTH, candle_core::DType::F32, device)?, var(1, WIDTH, 0.1)?, 1e-5);
        Ok(Self { layers, norm, vars })
    }
}

impl Module for Network {
    fn forward(&self, points: &Tensor) -> Result<Tensor> {
        let hidden = self.layers[0].forward(points)?.gelu()?;
        let hidden = self.layers[1].forward(&self.norm.forward(&hidden)?)?.tanh()?;
        self.layers[2].forward(&hidden)
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    /// A number between -1 and 1.
    fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
