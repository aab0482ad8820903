//! Arrays on two devices: copies, reads and broadcasts, with a link between the devices and without. Each case holds on the simulator
//! and on a machine with two GPUs.

#![deny(unsafe_code)]

use gpumem_tests::array::ndarray::{Array, Array1, Array2, Array3, Axis, Dimension, Ix1, Ix2, Ix3, array, s};
use gpumem_tests::array::{ArrayError, Gpu, GpuArray, UnifiedArray};
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::two_devices::{Link, check_findings, gpus, two_devices};
use gpumem_tests::pool::{BackendKind, Device, Limit, MemoryKind, Pool, PoolError};
use gpumem_tests::sys::Driver;
use gpumem_tests::{cases, for_each_seed};

/// Calls `body` with a `Gpu` on each of two devices, once for each link.
fn with_and_without_link(driver: &Driver, body: impl Fn([&Gpu; 2], Link)) {
    for link in [Link::Direct, Link::None] {
        on_two(driver, link, |gpus| body(gpus, link));
    }
}

fn on_two(driver: &Driver, link: Link, body: impl FnOnce([&Gpu; 2])) {
    if let Some(driver) = two_devices(driver, link) {
        let [first, second] = gpus(&driver);
        body([&first, &second]);
        drop([first, second]);
        check_findings(&driver);
    }
}

/// Distinct numbers.
fn numbers<D: Dimension>(shape: D) -> Array<f32, D> {
    let mut next = 0.0;
    Array::from_shape_simple_fn(shape, || {
        next += 1.0;
        next
    })
}

cases! {
    /// An array arrives on the other device, whatever its size: none, one, less than a chunk, several rounds through all slots.
    fn copies_of_any_size(driver: &Driver) {
        with_and_without_link(driver, |[first, second], _| {
            for len in [0, 1, 1000, 100_000, 5_000_000] {
                let host: Array1<f32> = numbers(Ix1(len));
                let there = GpuArray::from_array(first, &host).unwrap().copy_to(second).unwrap();
                assert_eq!(there.gpu().device(), second.device());
                let back = there.copy_to(first).unwrap();
                drop(there);
                assert_eq!(back.to_array().unwrap(), host, "{len}");
            }
        });
    }

    /// Rows, columns, every other element, backwards, transposed and repeated: on each side.
    fn copies_of_any_layout(driver: &Driver) {
        with_and_without_link(driver, |[first, second], link| {
            let host: Array3<f32> = numbers(Ix3(6, 40, 200));
            let source = GpuArray::from_array(first, &host).unwrap();
            let mut target = GpuArray::<f32, _>::zeros(second, (6, 40, 200)).unwrap();
            let mut expected = Array3::<f32>::zeros((6, 40, 200));
            let slices = [
                (s![.., .., ..], s![.., .., ..]),
                (s![1..3, .., ..], s![3..5, .., ..]),
                (s![.., 2..20, 10..150], s![.., 5..23, 60..200]),
                (s![..;2, ..;-1, ..;3], s![..3, .., ..67]),
                (s![..3, .., ..50], s![..;-2, .., ..;4]),
            ];
            for (from, to) in slices {
                target.slice_mut(to).unwrap().assign(&source.slice(from).unwrap()).unwrap();
                expected.slice_mut(to).assign(&host.slice(from));
                assert_eq!(target.to_array().unwrap(), expected, "{link:?} {from:?} {to:?}");
            }
            // Turned, on the side of the source and of the target.
            let turned = source.t().copy_to(second).unwrap();
            assert_eq!(turned.to_array().unwrap(), host.t());
            let mut back = GpuArray::<f32, _>::zeros(first, (6, 40, 200)).unwrap();
            back.view_mut().permuted_axes_mut([2, 1, 0]).unwrap().assign(&turned).unwrap();
            assert_eq!(back.to_array().unwrap(), host);
            back.assign(&target.slice(s![.., .., 0..1]).unwrap()).unwrap();
            assert_eq!(back.to_array().unwrap(), expected.slice(s![.., .., 0..1]).broadcast((6, 40, 200)).unwrap());
        });
    }

    /// The stream of any of the devices may be asked to copy, to upload and to download.
    fn copies_on_any_stream(driver: &Driver) {
        with_and_without_link(driver, |[first, second], link| {
            let host: Array2<f32> = numbers(Ix2(30, 100));
            let source = GpuArray::from_array(first, &host).unwrap();
            let mut target = GpuArray::<f32, _>::zeros(second, (30, 100)).unwrap();
            target.on_mut(first).assign(&source).unwrap();
            assert_eq!(target.on(first).to_array().unwrap(), host, "{link:?}");
            target.fill(0.0).unwrap();
            target.on_mut(first).assign(&source.on(second)).unwrap();
            assert_eq!(target.on(first).slice(s![..;2, ..;3]).unwrap().to_array().unwrap(), host.slice(s![..;2, ..;3]));
            let mut local = target.try_clone().unwrap();
            local.fill(1.0).unwrap();
            local.on_mut(first).assign(&target).unwrap();
            assert_eq!(local.to_array().unwrap(), host, "both arrays on the other device");
            target.on_mut(first).copy_from_slice(&[7.0; 3000]).unwrap();
            let ones = [1.0; 1500];
            target.on_mut(first).slice_mut(s![.., ..;2]).unwrap().copy_from_slice(&ones).unwrap();
            let found = target.to_array().unwrap();
            assert!(found.indexed_iter().all(|((_, j), x)| *x == if j % 2 == 0 { 1.0 } else { 7.0 }));
        });
    }

    /// With a link, operations read arrays of the other device. Without, they say what to do, and nothing is broken.
    fn reads(driver: &Driver) {
        on_two(driver, Link::Direct, |[first, second]| {
            let mut x = GpuArray::from_elem(first, 1000, 2.0_f32).unwrap();
            let y = GpuArray::from_elem(second, 1000, 3.0_f32).unwrap();
            assert_eq!(x.on(second).sum().unwrap().into_scalar().unwrap(), 2000.0);
            assert_eq!(y.try_mul(&x).unwrap().sum().unwrap().into_scalar().unwrap(), 6000.0);
            assert_eq!(x.on(second).dot(&y).unwrap().into_scalar().unwrap(), 6000.0);
            x.on_mut(second).try_add_assign(&y).unwrap();
            x.on_mut(second).slice_mut(s![..;2]).unwrap().fill(0.0).unwrap();
            // The first device waits for the second.
            assert_eq!(x.sum().unwrap().into_scalar().unwrap(), 2500.0);
        });
        on_two(driver, Link::None, |[first, second]| {
            let x = GpuArray::from_elem(first, 1000, 2.0_f32).unwrap();
            let y = GpuArray::from_elem(second, 1000, 3.0_f32).unwrap();
            let refused = [
                ("sum", x.on(second).sum().map(drop)),
                ("mul", y.try_mul(&x).map(drop)),
                ("dot", x.on(second).dot(&y).map(drop)),
                ("fill", GpuArray::from_elem(first, 10, 1.0_f32).unwrap().on_mut(second).fill(0.0)),
            ];
            for (operation, refused) in refused {
                let error = refused.unwrap_err();
                assert!(matches!(error, ArrayError::NoPeerAccess { .. }), "{error}");
                let text = error.to_string();
                let parts = [operation, &first.device().to_string(), &second.device().to_string(), "no link", "copy_to", "`on`"];
                assert!(parts.into_iter().all(|part| text.contains(part)), "{text}");
            }
            assert_eq!(y.try_mul(&x.copy_to(second).unwrap()).unwrap().sum().unwrap().into_scalar().unwrap(), 6000.0);
        });
    }

    /// One array for every device, and a row for every row of an array on the other device.
    fn broadcasts(driver: &Driver) {
        with_and_without_link(driver, |both, link| {
            let [first, second] = both;
            let row = GpuArray::from_array(first, &array![1.0_f32, 2.0, 3.0]).unwrap();
            for (gpu, copy) in both.map(|gpu| (gpu, row.copy_to(gpu).unwrap())) {
                assert_eq!(copy.gpu().device(), gpu.device());
                assert_eq!(copy.sum().unwrap().into_scalar().unwrap(), 6.0);
            }
            let mut table = GpuArray::<f32, _>::zeros(second, (2, 3)).unwrap();
            table.assign(&row).unwrap();
            assert_eq!(table.to_array().unwrap(), array![[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]);
            if link == Link::Direct {
                assert_eq!(table.try_add(&row).unwrap().to_array().unwrap(), array![[2.0, 4.0, 6.0], [2.0, 4.0, 6.0]]);
            }
        });
    }

    /// Every device can use pinned and unified memory, with a link or without.
    fn memory_of_the_host(driver: &Driver) {
        with_and_without_link(driver, |[first, second], link| {
            let pinned = GpuArray::from_elem(&first.pinned(), 1000, 2.0_f32).unwrap();
            assert_eq!(pinned.on(second).sum().unwrap().into_scalar().unwrap(), 2000.0, "{link:?}");
            let mut unified = UnifiedArray::<f32, _>::zeros(&first.unified(), 1000).unwrap();
            unified.on_mut(second).assign(&pinned).unwrap();
            unified.on_mut(second).try_add_assign(1.0).unwrap();
            assert_eq!(unified[999], 3.0);
            let there = unified.copy_to(second).unwrap();
            assert_eq!(there.copy_to(&first.pinned()).unwrap().as_slice().unwrap(), [3.0; 1000]);
        });
    }

    /// A copy without a link takes as much pinned memory as the limit leaves (1 MiB), but not less than four pieces of 64 KiB.
    fn little_pinned_memory(driver: &Driver) {
        // What remains of the limit, in KiB. Nothing else may need pinned memory: the elements are set on the device.
        let with_limit = |left_kib: usize, check: fn(Result<GpuArray<f64, Ix1>, ArrayError>)| {
            on_two(driver, Link::None, |[first, second]| {
                let pinned = Pool::builder(first.device()).kind(MemoryKind::Host).hard_limit(Limit::Bytes(2 << 20)).build().unwrap();
                first.set_pool(&pinned).unwrap();
                let _used = GpuArray::<u8, _, _>::zeros(&first.pinned(), (2 << 20) - (left_kib << 10)).unwrap();
                let mut x = GpuArray::<f64, _>::zeros(first, 1_000_000).unwrap();
                (0..100).for_each(|part| x.slice_mut(s![part * 10_000..(part + 1) * 10_000]).unwrap().fill(part as f64).unwrap());
                check(x.copy_to(second));
            });
        };
        with_limit(1024, |copied| {
            let elements = copied.unwrap().to_vec().unwrap();
            assert!(elements.len() == 1_000_000 && elements.iter().enumerate().all(|(at, x)| *x == (at / 10_000) as f64));
        });
        with_limit(200, |copied| {
            let error = copied.unwrap_err();
            assert!(matches!(error, ArrayError::Pool(PoolError::LimitReached(_))), "{error}");
        });
    }

    /// Memory may be freed while a copy between devices still uses it.
    fn sources_are_dropped_at_once(driver: &Driver) {
        with_and_without_link(driver, |[first, second], link| {
            let copies: Vec<_> = (0..20)
                .map(|round| GpuArray::from_elem(first, 1_000_000, round as f32).unwrap().copy_to(second).unwrap())
                .collect();
            for (round, copy) in copies.iter().enumerate() {
                assert_eq!(copy.slice(s![-1]).unwrap().into_scalar().unwrap(), round as f32, "{link:?}");
            }
        });
    }

    /// A copy is part of a graph if the devices are linked. Otherwise it is refused before anything is queued.
    fn captures(driver: &Driver) {
        with_and_without_link(driver, |[first, second], link| {
            let mut x = GpuArray::from_elem(first, 100, 1.0_f32).unwrap();
            let mut y = GpuArray::<f32, _>::zeros(second, 100).unwrap();
            let captured = second.capture(|c| y.on_mut(c).assign(&x));
            if link == Link::None {
                let error = captured.map(drop).unwrap_err();
                assert!(matches!(error, ArrayError::NoPeerAccess { .. }), "{error}");
                y.assign(&x).unwrap();
                assert_eq!(y.to_vec().unwrap(), [1.0; 100]);
                return;
            }
            let (mut graph, ()) = captured.unwrap();
            for round in 0..3 {
                x.fill(round as f32).unwrap();
                graph.launch(second).write(&mut y).read(&x).run().unwrap();
                assert_eq!(y.to_vec().unwrap(), [round as f32; 100]);
            }
        });
    }

    /// Pools of every kind and backend share their memory.
    fn every_backend(driver: &Driver) {
        for link in [Link::Direct, Link::None] {
            let Some(driver) = two_devices(driver, link) else { return };
            for backend in backends(&Device::new(&driver, 0).unwrap()) {
                let gpu = |ordinal, kind| {
                    let device = Device::new(&driver, ordinal).unwrap();
                    Gpu::new(&Pool::builder(&device).backend(backend).kind(kind).build().unwrap()).unwrap()
                };
                for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host] {
                    if backend == BackendKind::Native && kind != MemoryKind::Device {
                        continue;
                    }
                    let (first, second) = (gpu(0, kind), gpu(1, MemoryKind::Device));
                    let case = format!("{backend} {kind} {link:?}");
                    let x = GpuArray::from_elem(&first, 1_000_000, 2.5_f32).unwrap();
                    let y = x.copy_to(&second).unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert_eq!(y.copy_to(&first).unwrap().to_vec().unwrap(), vec![2.5; 1_000_000], "{case}");
                    if link == Link::Direct || kind != MemoryKind::Device {
                        assert_eq!(x.on(&second).sum().unwrap().into_scalar().unwrap(), 2_500_000.0, "{case}");
                    }
                }
            }
            check_findings(&driver);
        }
    }

    /// An array of another driver cannot be copied on the device.
    fn another_driver(driver: &Driver) {
        on_two(driver, Link::Direct, |[first, _]| {
            let stranger = gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap();
            let stranger = Gpu::new(&Pool::new(&Device::new(&stranger, 0).unwrap()).unwrap()).unwrap();
            let x = GpuArray::<f32, _>::zeros(first, 10).unwrap();
            assert!(matches!(x.copy_to(&stranger), Err(ArrayError::WrongDevice { .. })));
            assert!(matches!(x.on(&stranger).sum(), Err(ArrayError::WrongDevice { .. })));
        });
    }
}

/// The source is overwritten right after the copy is queued, and the copy again right after it is read.
#[test]
fn uses_are_ordered_across_devices() {
    for_each_seed!(20, |driver: &Driver, _| {
        with_and_without_link(driver, |[first, second], link| {
            let mut x = GpuArray::<f32, _>::zeros(first, (3, 300_000)).unwrap();
            let mut y = GpuArray::<f32, _>::zeros(second, (3, 300_000)).unwrap();
            for round in 0..5 {
                x.fill(round as f32).unwrap();
                y.assign(&x).unwrap();
                x.fill(-1.0).unwrap();
                let sum = y.index_axis(Axis(0), 1).unwrap().sum().unwrap();
                y.fill(-2.0).unwrap();
                assert_eq!(sum.into_scalar().unwrap(), round as f32 * 300_000.0, "{link:?}");
            }
        });
    });
}
