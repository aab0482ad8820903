//! A small transformer that learns which of some numbers is the largest, with batches of varied sizes.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, LayerNorm, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use candle_nn::{layer_norm_no_bias, linear, loss, ops};

/// Numbers at each position of a sequence. The index of the largest is the label.
const FEATURES: usize = 64;
const LENGTH: usize = 64;
const WIDTH: usize = 256;
const HEADS: usize = 4;
const BLOCKS: usize = 2;
const SEED: u64 = 20_261_127;

/// Sequences on the host.
pub struct Batch {
    size: usize,
    numbers: Vec<f32>,
    labels: Vec<u32>,
}

impl Batch {
    /// Returns `steps` batches of 4 to 48 sequences. They are the same in each call.
    pub fn varied(steps: usize) -> Vec<Self> {
        let mut random = Random(SEED);
        let mut batch = |_| {
            let size = 4 + (random.next() % 45) as usize;
            Self::new(size, &mut random)
        };
        (0..steps).map(&mut batch).collect()
    }

    /// A batch of any size.
    pub fn of(size: usize) -> Self {
        Self::new(size, &mut Random(SEED))
    }

    fn new(size: usize, random: &mut Random) -> Self {
        let numbers: Vec<f32> = (0..size * LENGTH * FEATURES).map(|_| random.number()).collect();
        let largest = |position: &[f32]| {
            let numbers = position.iter().zip(0_u32..);
            numbers.max_by(|(a, _), (b, _)| a.total_cmp(b)).map_or(0, |(_, index)| index)
        };
        let labels = numbers.chunks(FEATURES).map(largest).collect();
        Self { size, numbers, labels }
    }
}

/// The model and its optimiser.
pub struct Training {
    embed: Linear,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    optimiser: AdamW,
    device: Device,
}

impl Training {
    /// A model with the same weights each time.
    pub fn new(device: &Device) -> Result<Self> {
        device.set_seed(SEED)?;
        let variables = VarMap::new();
        let vars = VarBuilder::from_varmap(&variables, DType::F32, device);
        let embed = linear(FEATURES, WIDTH, vars.pp("embed"))?;
        let blocks = (0..BLOCKS).map(|index| Block::new(vars.pp(index))).collect::<Result<_>>()?;
        let norm = layer_norm_no_bias(WIDTH, 1e-5, vars.pp("norm"))?;
        let head = linear(WIDTH, FEATURES, vars.pp("head"))?;
        let optimiser = AdamW::new(variables.all_vars(), ParamsAdamW::default())?;
        Ok(Self { embed, blocks, norm, head, optimiser, device: device.clone() })
    }

    /// Trains on a batch and returns its loss.
    pub fn step(&mut self, batch: &Batch) -> Result<f32> {
        let loss = self.loss(batch)?;
        self.optimiser.backward_step(&loss)?;
        loss.to_scalar()
    }

    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let numbers = Tensor::from_slice(&batch.numbers, (batch.size, LENGTH, FEATURES), &self.device)?;
        let labels = Tensor::from_slice(&batch.labels, batch.labels.len(), &self.device)?;
        let mut hidden = self.embed.forward(&numbers)?;
        for block in &self.blocks {
            hidden = block.forward(&hidden)?;
        }
        let logits = self.head.forward(&self.norm.forward(&hidden)?)?;
        loss::cross_entropy(&logits.flatten_to(1)?, &labels)
    }
}

/// Attention and two layers behind it, each beside a residual.
struct Block {
    norms: [LayerNorm; 2],
    query: Linear,
    key: Linear,
    value: Linear,
    mix: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vars: VarBuilder) -> Result<Self> {
        let norm = |name| layer_norm_no_bias(WIDTH, 1e-5, vars.pp(name));
        Ok(Self {
            norms: [norm("norm0")?, norm("norm1")?],
            query: linear(WIDTH, WIDTH, vars.pp("query"))?,
            key: linear(WIDTH, WIDTH, vars.pp("key"))?,
            value: linear(WIDTH, WIDTH, vars.pp("value"))?,
            mix: linear(WIDTH, WIDTH, vars.pp("mix"))?,
            up: linear(WIDTH, 4 * WIDTH, vars.pp("up"))?,
            down: linear(4 * WIDTH, WIDTH, vars.pp("down"))?,
        })
    }

    fn attention(&self, hidden: &Tensor) -> Result<Tensor> {
        let (batch, length, _) = hidden.dims3()?;
        let heads = |layer: &Linear| {
            let all = layer.forward(hidden)?.reshape((batch, length, HEADS, WIDTH / HEADS))?;
            all.transpose(1, 2)?.contiguous()
        };
        let (query, key, value) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let scale = 1.0 / ((WIDTH / HEADS) as f64).sqrt();
        let scores = (query.matmul(&key.t()?)? * scale)?;
        let mixed = ops::softmax(&scores, 3)?.matmul(&value)?;
        self.mix.forward(&mixed.transpose(1, 2)?.reshape((batch, length, WIDTH))?)
    }
}

impl Module for Block {
    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        let hidden = (hidden + self.attention(&self.norms[0].forward(hidden)?)?)?;
        let wide = self.up.forward(&self.norms[1].forward(&hidden)?)?.gelu()?;
        &hidden + self.down.forward(&wide)?
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number between -1 and 1.
    fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
