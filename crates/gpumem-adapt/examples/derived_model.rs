//! A model with a derived `Adapt`, on a GPU or the simulator and back.

use gpumem_adapt::array::kind::DeviceLocal;
use gpumem_adapt::array::ndarray::{Ix1, Ix2, array};
use gpumem_adapt::array::{Gpu, pool};
use gpumem_adapt::{Adapt, Host, Storage};
use std::sync::Arc;

#[derive(Adapt)]
struct Layer<S: Storage> {
    weight: S::Array<f32, Ix2>,
    bias: Arc<S::Array<f32, Ix1>>,
}

#[derive(Adapt)]
struct Model<S: Storage> {
    layers: Vec<Layer<S>>,
    rate: f32,
}

#[allow(clippy::print_stdout, reason = "an example")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver_or_sim()?;
    let gpu = Gpu::new(&pool::Pool::new(&pool::Device::new(&driver, 0)?)?)?;

    let bias = Arc::new(array![0.5, -0.5]);
    let layer = |scale: f32| Layer { weight: array![[1.0, 2.0], [3.0, 4.0]] * scale, bias: bias.clone() };
    let model: Model<Host> = Model { layers: vec![layer(1.0), layer(0.5)], rate: 0.1 };

    let on_gpu: Model<DeviceLocal> = model.adapt(&gpu)?;
    println!("on the {}:", driver.kind());
    for layer in &on_gpu.layers {
        println!("{} with bias {}", layer.weight, layer.bias);
    }
    let back = on_gpu.into_adapted(&Host)?;
    println!("the bias is shared: {}", Arc::ptr_eq(&back.layers[0].bias, &back.layers[1].bias));
    assert_eq!((back.rate, &back.layers[1].weight), (model.rate, &model.layers[1].weight));
    Ok(())
}
