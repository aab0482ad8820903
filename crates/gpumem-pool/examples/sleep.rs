//! A server that infers and trains in turns on one device. Each phase has a pool, and the pool of the other phase sleeps: its memory is free
//! for this phase, and its blocks keep their addresses and contents.
//!
//! `cargo run -p gpumem-pool --example sleep`, on a GPU or, without one, on the simulator.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_pool::{BackendKind, Bytes, Device, DeviceError, Keep, Pool, PoolError, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::new(&gpumem_sim::driver_or_sim()?, 0)?;
    let stream = Stream::new(&device)?;
    let pool = |name: &str| Pool::builder(&device).name(name).backend(BackendKind::Caching).build();
    let (weights, caches, training) = (pool("weights")?, pool("caches")?, pool("training")?);

    let mut layers = weights.alloc(64 << 20, &stream)?;
    layers.fill(0..64 << 20, 1.5_f32, &stream)?;
    let kv_cache = caches.alloc_zeroed(128 << 20, &stream)?;
    for round in 1..=2 {
        // Inference ends: the weights go to the host, and the caches are lost.
        let slept = [weights.sleep(Keep::OnHost)?, caches.sleep(Keep::Nothing)?];
        let [released_bytes, copied_bytes] =
            [slept.map(|slept| slept.released_bytes), slept.map(|slept| slept.copied_bytes)]
                .map(|bytes| bytes.iter().sum());
        println!(
            "round {round}: {} released, {} copied to the host",
            Bytes(released_bytes),
            Bytes(copied_bytes)
        );
        let refused = layers.fill(0..4, 0_u32, &stream);
        assert!(matches!(refused, Err(PoolError::Device(DeviceError::Asleep { .. }))));

        // Training has the whole device.
        drop(training.alloc_zeroed(192 << 20, &stream)?);
        training.reclaim()?;

        weights.wake()?;
        caches.wake()?;
        let mut first = [0.0_f32; 2];
        layers.copy_to_host(0, &mut first, &stream)?;
        assert_eq!(first, [1.5; 2]);
    }
    println!("{}", weights.status()?);
    drop(kv_cache);
    Ok(())
}
