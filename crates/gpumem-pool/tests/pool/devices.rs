//! Several devices, several simulated machines, and objects of one used with another.

#![forbid(unsafe_code)]

use crate::fixture::{built_backends, on_each_backend, small};
use gpumem_pool::{Device, DeviceError, Event, Pool, PoolError, Stream};
use gpumem_sim::SimConfig;

#[test]
fn a_device_reports_its_properties() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2).memory_bytes(3 << 30)).unwrap();
    assert_eq!(Device::count(&driver).unwrap(), 2);
    let device = Device::new(&driver, 1).unwrap();
    assert_eq!((device.ordinal(), device.total_bytes()), (1, 3 << 30));
    assert!(!device.name().is_empty() && device.compute_capability() >= (5, 0));
    assert_eq!(device.to_string(), format!("{} (device 1, 3.0 GiB)", device.name()));
    assert_eq!(device, Device::new(&driver, 1).unwrap());
    assert_ne!(device, Device::new(&driver, 0).unwrap());
    let info = device.memory_info().unwrap();
    assert_eq!((info.free_bytes, info.total_bytes), (3 << 30, 3 << 30));
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    for count in [0, 2] {
        let driver = gpumem_sim::driver(SimConfig::new().devices(count)).unwrap();
        for ordinal in [2, u32::MAX] {
            let error = Device::new(&driver, ordinal).unwrap_err();
            assert!(
                matches!(error, DeviceError::NotFound { ordinal: o, count: c, .. } if (o, c) == (ordinal, count))
            );
            let devices = if count == 0 { "no devices" } else { "2 devices, numbered from 0" };
            assert!(
                error.to_string().contains(&format!("the simulator has {devices}; set GPUMEM_SIM_DEVICES")),
                "{error}"
            );
        }
    }
}

#[test]
fn each_device_has_its_own_memory_and_books() {
    on_each_backend(&small().devices(2), |fixture| {
        let second = Device::new(&fixture.driver, 1).unwrap();
        let pools = [fixture.pool(), Pool::builder(&second).backend(fixture.backend).build().unwrap()];
        let streams = [fixture.stream(), Stream::new(&second).unwrap()];
        let blocks = [0, 1].map(|at| pools[at].alloc((at as u64 + 1) << 20, &streams[at]).unwrap());
        for at in [0, 1] {
            fixture.fill(&blocks[at], at as u8 + 1, &streams[at]);
            assert_eq!(pools[at].status().unwrap().in_use_bytes, (at as u64 + 1) << 20);
            assert_eq!(pools[at].status().unwrap().device_ordinal, at as u32);
        }
        for at in [0, 1] {
            assert!(fixture.holds(&blocks[at], at as u8 + 1, &streams[at]));
        }
        // An event and a stream of one device work on the other.
        let event = Event::new(&second).unwrap();
        event.record(&streams[1]).unwrap();
        streams[0].wait(&event).unwrap();
        streams[1].wait_for(&streams[0]).unwrap();
        blocks[0].record_use(&streams[1]);
        drop(blocks);
        fixture.device.synchronize().unwrap();
        assert_eq!(pools[0].status().unwrap().block_count, 0);
    });
}

#[test]
fn devices_must_not_be_mixed() {
    on_each_backend(&small().devices(2), |fixture| {
        let second = Device::new(&fixture.driver, 1).unwrap();
        let stranger = Stream::new(&second).unwrap();
        let error = fixture.pool().alloc(4096, &stranger).unwrap_err();
        assert!(matches!(error, PoolError::Device(DeviceError::WrongDevice { .. })), "{error:?}");
        assert!(error.to_string().contains("device 1"), "{error}");
        let event = Event::new(&fixture.device).unwrap();
        assert!(matches!(event.record(&stranger), Err(DeviceError::WrongDevice { .. })));
    });
}

/// A stream of another machine is refused, or ignored by functions without a result: its work cannot use this memory.
#[test]
fn machines_must_not_be_mixed() {
    on_each_backend(&small(), |fixture| {
        let elsewhere = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
        let stranger = Stream::new(&elsewhere).unwrap();
        assert_ne!(fixture.device, elsewhere);
        let (pool, home) = (fixture.pool(), fixture.stream());
        let Err(PoolError::Device(DeviceError::WrongDevice { expected, found })) =
            pool.alloc(4096, &stranger)
        else {
            panic!()
        };
        assert_ne!(expected, found);
        assert!(found.ends_with("of another simulator (no GPU)"), "{found}");
        assert!(matches!(home.wait_for(&stranger), Err(DeviceError::WrongDevice { .. })));
        let block = pool.alloc(4096, &home).unwrap();
        block.record_use(&stranger);
        drop(block);
        drop(pool.alloc(4096, &home).unwrap());
    });
}

/// Two machines in one process, each with threads of its own.
#[test]
fn machines_share_nothing() {
    let backends = built_backends();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let backends = &backends;
            scope.spawn(move || {
                let driver = gpumem_sim::driver(small().seed(seed)).unwrap();
                let device = Device::new(&driver, 0).unwrap();
                for backend in backends {
                    let pool = Pool::builder(&device).backend(*backend).build().unwrap();
                    let stream = Stream::new(&device).unwrap();
                    let blocks: Vec<_> = (1..20).map(|n| pool.alloc(n << 12, &stream).unwrap()).collect();
                    assert_eq!(pool.status().unwrap().block_count, 19);
                    std::thread::scope(|inner| {
                        inner.spawn(move || drop(blocks));
                    });
                    assert_eq!(pool.status().unwrap().block_count, 0);
                }
            });
        }
    });
}
