//! Situations with their whole reports that need rules of the simulator, a device of a known size, or two devices. The other
//! situations run on GPUs too, and are in `tests/pool/situations.rs` of the repository.

use crate::fixture::{built_backends, on_device_memory, on_each_backend, small};
use crate::out_of_memory::{assert_text, observed, refused, until_refused};
use gpumem_pool::sys::CUresult;
use gpumem_pool::{Advice, BackendKind, Block, Device, MemoryKind, Pool, Reclaimable, Registration, Stream};
use gpumem_sim::{Effect, Rule};
use std::error::Error;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

/// The driver gives plain allocations whole pages of 2 MiB.
#[test]
fn blocks_that_the_driver_rounds_up() {
    on_device_memory(&small(), |fixture| {
        if fixture.backend != BackendKind::None {
            return;
        }
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let (_held, error) = until_refused(&pool, MIB + 1000, &stream);
        assert_eq!(refused(fixture, "rounded_by_the_driver", &error, &seen), Advice::NeedLess);
        let report = error.out_of_memory().unwrap();
        assert!(report.others_bytes() < MIB && report.rounding_bytes > 400 * MIB, "{error}");
    });
}

#[test]
fn pinned_memory_that_the_host_refuses() {
    let rules = ["cuMemAllocHost", "cuMemHostAlloc", "cuMemAllocFromPoolAsync"]
        .map(|call| Rule::new(call, Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
    let config = rules.into_iter().fold(small(), |config, rule| config.rule(rule));
    on_each_backend(&config, |fixture| {
        if fixture.kind == MemoryKind::Host {
            let (options, seen) = observed(fixture);
            let error = options.build().unwrap().alloc(300 * MIB, &fixture.stream()).unwrap_err();
            assert_eq!(refused(fixture, "pinned", &error, &seen), Advice::NeedLess);
            assert!(!error.to_string().contains("pageable memory (HostMemory"), "{error}");
        }
    });
}

/// Two devices: the report names the one that is full.
#[test]
fn one_of_two_devices_is_full() {
    for backend in built_backends() {
        let driver = gpumem_sim::driver(small().devices(2)).unwrap();
        let devices = [0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap());
        let pools = devices.each_ref().map(|device| Pool::builder(device).backend(backend).build().unwrap());
        let streams = devices.each_ref().map(|device| Stream::new(device).unwrap());
        let _held = pools[0].alloc(100 * MIB, &streams[0]).unwrap();
        let (_full, error) = until_refused(&pools[1], 300 * MIB, &streams[1]);
        let text = error.to_string();
        assert_text(&format!("two_devices_{backend}"), &text);
        assert!(text.lines().next().unwrap().contains("(device 1, pool "), "{text}");
        assert!(!text.contains("other pools of this program"), "{text}");
    }
}

/// A cache of the program that releases half of what is needed, and fails to release the rest.
struct Shelf(Mutex<Option<Block>>);

impl Reclaimable for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.lock().unwrap().take();
        Ok(())
    }

    fn release(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the rest is in use".into())
    }
}

/// The report lists the steps that gained memory, and those that failed.
#[test]
fn steps_that_make_too_little_room() {
    on_device_memory(&small(), |fixture| {
        let (options, seen) = observed(fixture);
        let (pool, stream) = (options.build().unwrap(), fixture.stream());
        let shelf = Arc::new(Shelf(Mutex::new(Some(pool.alloc(256 * MIB, &stream).unwrap()))));
        let _registered = Registration::new(&fixture.device, &shelf);
        let _held = pool.alloc(512 * MIB, &stream).unwrap();
        let error = pool.alloc(640 * MIB, &stream).unwrap_err();
        assert_eq!(refused(fixture, "steps", &error, &seen), Advice::NeedLess);
        let text = error.to_string();
        assert!(text.contains("tried: run reclaim callbacks (purge): gained 256.000 MiB in "), "{text}");
        assert!(text.contains("failed: shelf: the rest is in use"), "{text}");
    });
}
