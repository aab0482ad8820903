//! The driver calls of a copy: one for contiguous elements, one for rows at a pitch, and otherwise one kernel, which also moves rows
//! within the memory of a device. Between memory of the program, pinned, unified and device memory, and another device. Each case holds on the simulator and on GPUs.

#![deny(unsafe_code)]

use gpumem_tests::array::kind::{self, Kind};
use gpumem_tests::array::ndarray::{Array3, Array4, ArrayD, Dimension, Ix3, SliceInfoElem, s};
use gpumem_tests::array::{Element, Gpu, GpuArray, GpuView, GpuViewMut, Place};
use gpumem_tests::cases;
use gpumem_tests::driver::count_calls;
use gpumem_tests::fixtures::two_devices::{Link, check_findings, gpus, two_devices};
use gpumem_tests::pool::{Device, MemoryKind, Pool};
use gpumem_tests::sys::{Driver, DriverKind};
use gpumem_trace::calls::reading;
use std::any::TypeId;

const SHAPE: (usize, usize, usize) = (6, 40, 200);

/// The elements that a copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    Slices,
    /// Rows at a pitch, in one slice.
    Rows,
    /// Rows at a pitch, in slices at a pitch.
    Boxes,
    /// Steps, one of them backwards.
    Steps,
}

use Part::{All, Boxes, Rows, Slices, Steps};

impl Part {
    fn of(self, view: GpuView<'_, f32, Ix3>) -> GpuView<'_, f32, Ix3> {
        match self {
            All => view,
            Slices => view.slice(s![1..4, .., ..]).unwrap(),
            Rows => view.slice(s![2..3, 3..30, 20..180]).unwrap(),
            Boxes => view.slice(s![1..5, 3..30, 20..180]).unwrap(),
            Steps => view.slice(s![..;2, ..;-3, ..;2]).unwrap(),
        }
    }

    fn of_mut(self, view: GpuViewMut<'_, f32, Ix3>) -> GpuViewMut<'_, f32, Ix3> {
        match self {
            All => view,
            Slices => view.slice_mut(s![1..4, .., ..]).unwrap(),
            Rows => view.slice_mut(s![2..3, 3..30, 20..180]).unwrap(),
            Boxes => view.slice_mut(s![1..5, 3..30, 20..180]).unwrap(),
            Steps => view.slice_mut(s![..;2, ..;-3, ..;2]).unwrap(),
        }
    }

    fn of_host(self, host: &Array3<f32>) -> Array3<f32> {
        match self {
            All => host.clone(),
            Slices => host.slice(s![1..4, .., ..]).to_owned(),
            Rows => host.slice(s![2..3, 3..30, 20..180]).to_owned(),
            Boxes => host.slice(s![1..5, 3..30, 20..180]).to_owned(),
            Steps => host.slice(s![..;2, ..;-3, ..;2]).to_owned(),
        }
    }

    /// The call that moves it within the memory of one device.
    fn local_call(self) -> &'static str {
        match self {
            All | Slices => "cuMemcpyAsync",
            Rows | Boxes | Steps => "cuLaunchKernel",
        }
    }

    /// The call that moves it elsewhere.
    fn call(self) -> &'static str {
        match self {
            All | Slices => "cuMemcpyAsync",
            Rows => "cuMemcpy2DAsync_v2",
            Boxes => "cuMemcpy3DAsync_v2",
            Steps => "cuLaunchKernel",
        }
    }
}

const PARTS: [Part; 5] = [All, Slices, Rows, Boxes, Steps];

/// The calls of `work` that move elements.
fn moves(work: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let before = reading();
    work();
    let is_move =
        |name: &str| ["cuMemcpy", "cuMemset", "cuLaunch"].iter().any(|start| name.starts_with(start));
    reading().since(&before).calls.by_name().into_iter().filter(|(name, _)| is_move(name)).collect()
}

fn numbers() -> Array3<f32> {
    let mut next = 0.0;
    Array3::from_shape_simple_fn(SHAPE, || {
        next += 1.0;
        next
    })
}

/// A counted `Gpu` with its kernels loaded.
fn counted(driver: &Driver) -> Gpu {
    let device = Device::new(&count_calls(driver), 0).unwrap();
    let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
    load(&gpu);
    gpu
}

/// Loads the kernels of strided copies.
fn load(gpu: &Gpu) {
    let x = GpuArray::<f32, _>::zeros(gpu, SHAPE).unwrap();
    Steps.of(x.view()).to_owned().unwrap();
}

/// Copies each part from an array in one place to an array in another, with one call.
fn one_call_each<P: Place, Q: Place>(from: &P, to: &Q, pair: &str)
where
    P::Kind: Kind,
    Q::Kind: Kind,
{
    let host = numbers();
    let source = GpuArray::from_array(from, &host).unwrap();
    for part in PARTS {
        let mut target = GpuArray::<f32, _, Q::Kind>::zeros(to, SHAPE).unwrap();
        let calls = moves(|| part.of_mut(target.view_mut()).assign(&part.of(source.view())).unwrap());
        let is_local = [source.gpu(), target.gpu()].iter().all(|gpu| gpu.device() == to.gpu().device())
            && [TypeId::of::<P::Kind>(), TypeId::of::<Q::Kind>()] == [TypeId::of::<kind::DeviceLocal>(); 2]
            && to.gpu().pool().kind() == MemoryKind::Device;
        let call = if is_local { part.local_call() } else { part.call() };
        assert_eq!(calls, [(call, 1)], "{pair}: {part:?}");
        let found = target.to_array().unwrap();
        assert_eq!(part.of_host(&found), part.of_host(&host), "{pair}: {part:?}");
        let moved: f64 = part.of_host(&host).iter().map(|x| f64::from(*x)).sum();
        assert_eq!(
            found.iter().map(|x| f64::from(*x)).sum::<f64>(),
            moved,
            "{pair}: {part:?} and nothing else"
        );
    }
}

/// Copies a view with its axes in each order, and some of its elements, with one call.
fn in_another_order<T: Element + PartialEq>(
    gpu: &Gpu,
    shape: (usize, usize, usize),
    number: impl Fn(usize) -> T,
) {
    let mut next = 0;
    let host = Array3::from_shape_simple_fn(shape, || {
        next += 1;
        number(next)
    });
    let device = GpuArray::from_array(gpu, &host).unwrap();
    for order in [[0, 2, 1], [2, 1, 0], [1, 2, 0]] {
        let name = format!("{} {shape:?} {order:?}", std::any::type_name::<T>());
        let (ours, theirs) = (device.view().permuted_axes(order).unwrap(), host.view().permuted_axes(order));
        let mut target = GpuArray::<T, _>::zeros(gpu, theirs.raw_dim()).unwrap();
        target.assign(&ours).unwrap();
        target.view_mut().fill(number(0)).unwrap();
        assert_eq!(moves(|| target.assign(&ours).unwrap()), [("cuLaunchKernel", 1)], "{name}");
        assert!(target.to_array().unwrap() == theirs, "{name}");
        // Both sides have steps, and what lies between stays.
        let mut expected = theirs.to_owned();
        let (from, to) = (s![.., ..;-2, ..;2], s![.., 1..;2, ..;-2]);
        let to_shape = expected.slice(to).raw_dim();
        let part = theirs.slice(from).slice(s![.., ..to_shape[1], ..to_shape[2]]).to_owned();
        expected.slice_mut(to).assign(&part);
        let part = ours.slice(from).unwrap().slice(s![.., ..to_shape[1], ..to_shape[2]]).unwrap();
        let calls = moves(|| target.slice_mut(to).unwrap().assign(&part).unwrap());
        assert_eq!(calls, [("cuLaunchKernel", 1)], "{name}");
        assert!(target.to_array().unwrap() == expected, "{name}");
    }
}

/// Copies `count` rows of each length, in reverse order and of two slices, and fills their places.
fn rows_of<T: Element + PartialEq>(gpu: &Gpu, count: usize, lens: &[usize], number: impl Fn(usize) -> T) {
    for &len in lens {
        let name = format!("{count} rows of {len} {}", std::any::type_name::<T>());
        let mut next = 0;
        let host = Array3::from_shape_simple_fn((2, count, 2 * len), || {
            next += 1;
            number(next)
        });
        let source = GpuArray::from_array(gpu, &host).unwrap();
        let mut expected = Array3::from_elem((2, count, len + 2), number(0));
        let mut target = GpuArray::from_array(gpu, &expected).unwrap();
        let (from, to) = (s![..;-1, ..;-1, len..], s![.., .., 1..=len]);
        expected.slice_mut(to).assign(&host.slice(from));
        let part = source.view().slice(from).unwrap();
        assert_eq!(
            moves(|| target.slice_mut(to).unwrap().assign(&part).unwrap()),
            [("cuLaunchKernel", 1)],
            "{name}"
        );
        assert!(target.to_array().unwrap() == expected, "{name}");
        target.slice_mut(to).unwrap().fill(number(7)).unwrap();
        expected.slice_mut(to).fill(number(7));
        assert!(target.to_array().unwrap() == expected, "{name}");
    }
}

cases! {
    /// Between arrays of every two kinds on a device.
    fn between_kinds(driver: &Driver) {
        let gpu = counted(driver);
        one_call_each(&gpu, &gpu, "device to device");
        one_call_each(&gpu, &gpu.unified(), "device to unified");
        one_call_each(&gpu, &gpu.pinned(), "device to pinned");
        one_call_each(&gpu.unified(), &gpu, "unified to device");
        one_call_each(&gpu.unified(), &gpu.unified(), "unified to unified");
        one_call_each(&gpu.unified(), &gpu.pinned(), "unified to pinned");
        one_call_each(&gpu.pinned(), &gpu, "pinned to device");
        one_call_each(&gpu.pinned(), &gpu.unified(), "pinned to unified");
        one_call_each(&gpu.pinned(), &gpu.pinned(), "pinned to pinned");
    }

    /// Between arrays of every two kinds on two devices with a link.
    fn between_devices(driver: &Driver) {
        let Some(driver) = two_devices(driver, Link::Direct) else { return };
        let [first, second] = gpus(&count_calls(&driver));
        load(&first);
        load(&second);
        one_call_each(&first, &second, "device to the other device");
        one_call_each(&second, &first, "the other device to device");
        one_call_each(&first.pinned(), &second, "pinned to the other device");
        one_call_each(&first.unified(), &second, "unified to the other device");
        one_call_each(&second, &first.pinned(), "the other device to pinned");
        one_call_each(&second, &first.unified(), "the other device to unified");
        drop([first, second]);
        check_findings(&driver);
    }

    /// Without a link, a copy takes two calls for each chunk, through pinned memory, and a kernel on each side whose elements are not
    /// contiguous.
    fn between_devices_without_a_link(driver: &Driver) {
        let Some(driver) = two_devices(driver, Link::None) else { return };
        let [first, second] = gpus(&count_calls(&driver));
        load(&first);
        load(&second);
        let host = numbers();
        let source = GpuArray::from_array(&first, &host).unwrap();
        let mut target = GpuArray::<f32, _>::zeros(&second, SHAPE).unwrap();
        assert_eq!(moves(|| target.assign(&source).unwrap()), [("cuMemcpyAsync", 2)]);
        assert_eq!(target.to_array().unwrap(), host);
        let calls = moves(|| Steps.of_mut(target.view_mut()).assign(&Steps.of(source.view())).unwrap());
        assert_eq!(calls, [("cuLaunchKernel", 2), ("cuMemcpyAsync", 2)]);
        drop((source, target));
        let large = GpuArray::from_elem(&first, 8 << 20, 1_u8).unwrap();
        let there = GpuArray::<u8, _>::uninit(&second, 8 << 20).unwrap();
        // Eight chunks of a MiB.
        assert_eq!(moves(|| drop(there.assign(&large).unwrap())), [("cuMemcpyAsync", 16)]);
        drop(large);
        drop([first, second]);
        check_findings(&driver);
    }

    /// From and to memory of the program. A kernel cannot reach that memory, so elements at other steps take a copy besides.
    fn with_memory_of_the_program(driver: &Driver) {
        let gpu = counted(driver);
        let host = numbers();
        let source = GpuArray::from_array(&gpu, &host).unwrap();
        for part in PARTS {
            let expected = match part {
                Steps => vec![("cuLaunchKernel", 1), ("cuMemcpyAsync", 1)],
                _ => vec![(part.call(), 1)],
            };
            let mut down = None;
            assert_eq!(moves(|| down = Some(part.of(source.view()).to_array().unwrap())), expected, "{part:?}");
            assert_eq!(down.unwrap(), part.of_host(&host));
            let mut target = GpuArray::<f32, _>::zeros(&gpu, SHAPE).unwrap();
            let elements: Vec<f32> = part.of_host(&host).iter().copied().collect();
            let up = moves(|| part.of_mut(target.view_mut()).copy_from_slice(&elements).unwrap());
            let expected = match part {
                // The elements go to the device as they are, and from there into their places.
                Steps => vec![("cuLaunchKernel", 1), ("cuMemcpyHtoDAsync_v2", 1)],
                _ => expected,
            };
            assert_eq!(up, expected, "{part:?}");
            assert_eq!(part.of_host(&target.to_array().unwrap()), part.of_host(&host));
        }
    }

    /// Views whose fastest axis is another than that of the copy, around the sizes of a tile, for all sizes of elements.
    fn axes_in_another_order(driver: &Driver) {
        let gpu = counted(driver);
        for (rows, columns) in [(8, 8), (31, 33), (32, 32), (64, 129)] {
            in_another_order(&gpu, (3, rows, columns), |number| number as u8);
            in_another_order(&gpu, (3, rows, columns), |number| number as u16);
            in_another_order(&gpu, (3, rows, columns), |number| number as f32);
            in_another_order(&gpu, (3, rows, columns), |number| number as f64);
            in_another_order(&gpu, (3, rows, columns), |number| [number as f64, -(number as f64)]);
        }
    }

    /// Bytes go by words of 16 bytes, by words of 4 or one by one: tiles and what is left of them, at addresses and distances that are
    /// multiples of 16, of 4 and odd, two axes besides, rows in reverse order. What lies between stays.
    fn transposed_bytes(driver: &Driver) {
        let gpu = counted(driver);
        for (rows, columns) in [(256_usize, 128_usize), (255, 129), (257, 127), (512, 260), (8, 1_025)] {
            for (pitch, to_first, from_first) in [(16, 0, 0), (16, 16, 32), (16, 4, 0), (4, 8, 12), (4, 0, 4), (1, 1, 3), (1, 0, 1)] {
                let name = format!("{rows} by {columns}, pitches of {pitch}, from {from_first} to {to_first}");
                let host = Array4::from_shape_fn(
                    (2, 2, rows, from_first + columns.next_multiple_of(pitch)),
                    |(i, j, k, l)| (i * 131 + j * 71 + k * 7 + l * 13 + (k * l) / 251) as u8,
                );
                let to_len = to_first + rows.next_multiple_of(pitch);
                let mut expected = Array4::from_elem((2, 2, columns, to_len), 0x5a_u8);
                let source = GpuArray::from_array(&gpu, &host).unwrap();
                let mut target = GpuArray::from_array(&gpu, &expected).unwrap();
                let from = s![.., ..;-1, ..;-1, from_first..from_first + columns];
                let to = s![.., .., .., to_first..to_first + rows];
                let order = [1, 0, 3, 2];
                expected.slice_mut(to).assign(&host.slice(from).permuted_axes(order));
                let part = source.view().slice(from).unwrap().permuted_axes(order).unwrap();
                let calls = moves(|| target.slice_mut(to).unwrap().assign(&part).unwrap());
                assert_eq!(calls, [("cuLaunchKernel", 1)], "{name}");
                assert!(target.to_array().unwrap() == expected, "{name}");
            }
        }
    }

    /// Short rows, of which a thread moves several: all of them, and nothing else, for counts that do not divide evenly among threads.
    fn short_rows(driver: &Driver) {
        let gpu = counted(driver);
        let last = if driver.kind() == DriverKind::Sim { 4_099 } else { 65_537 };
        for count in [1, 3, 4, 5, 31, 1_023, last] {
            let lens: &[usize] = if count < 2_000 { &[1, 2, 3, 5, 15, 31, 32, 33] } else { &[1, 3] };
            rows_of(&gpu, count, lens, |number| number as u8);
            rows_of(&gpu, count, lens, |number| number as f32);
            rows_of(&gpu, count, lens, |number| [number as f64, -(number as f64)]);
        }
        // More rows than fall to the largest grid at a time.
        if driver.kind() != DriverKind::Sim {
            rows_of(&gpu, 1_050_001, &[17], |number| number as u8);
        }
    }

    /// Rows of bytes without gaps, at addresses and distances of any alignment: none but their bytes are written.
    fn dense_rows(driver: &Driver) {
        let gpu = counted(driver);
        let step = if driver.kind() == DriverKind::Sim { 7 } else { 1 };
        for len in [64_usize, 447, 448, 511, 1_000, 4_095] {
            for (to_first, from_first) in (0..16).map(|first| (first, 5 * first % 16)).chain([(3, 3), (0, 1), (1, 0)]).step_by(step) {
                for pitch in [1, 16] {
                    let name = format!("{len} bytes from {from_first} to {to_first}, pitches of {pitch}");
                    let width = (len + 16).next_multiple_of(pitch);
                    let host = Array3::from_shape_fn((2, 5, width), |(i, j, k)| (i * 131 + j * 71 + k * 7 + k / 251) as u8);
                    let mut expected = Array3::from_elem((2, 5, width + 1), 0x5a_u8);
                    let source = GpuArray::from_array(&gpu, &host).unwrap();
                    let mut target = GpuArray::from_array(&gpu, &expected).unwrap();
                    let to = s![.., .., to_first..to_first + len];
                    // The second are rows at a pitch, of which the driver has a copy too.
                    for from in [s![.., ..;-1, from_first..from_first + len], s![.., ..;1, from_first..from_first + len]] {
                        expected.slice_mut(to).assign(&host.slice(from));
                        let part = source.view().slice(from).unwrap();
                        let calls = moves(|| target.slice_mut(to).unwrap().assign(&part).unwrap());
                        assert_eq!(calls, [("cuLaunchKernel", 1)], "{name}");
                        assert!(target.to_array().unwrap() == expected, "{name}");
                    }
                }
            }
        }
    }

    /// Many axes that cannot be merged, more positions than a dimension of the grid, and a view in reverse order.
    fn many_axes_in_another_order(driver: &Driver) {
        let gpu = counted(driver);
        let host = ArrayD::from_shape_fn(vec![2, 2, 2, 2, 2, 2, 2, 2, 2, 9, 10], |at| at.slice().iter().fold(0, |sum, at| 10 * sum + *at as i64));
        let device = GpuArray::from_array(&gpu, &host).unwrap();
        let order = vec![10, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9];
        let view = device.view().permuted_axes(order.clone()).unwrap();
        assert_eq!(moves(|| drop(view.to_owned().unwrap())), [("cuLaunchKernel", 1)]);
        assert_eq!(view.to_owned().unwrap().to_array().unwrap(), host.view().permuted_axes(order));
        let host = ArrayD::from_shape_vec(vec![2; 16], (0..1_i32 << 16).collect()).unwrap();
        let device = GpuArray::from_array(&gpu, &host).unwrap();
        let mut reversed = GpuArray::<i32, _>::zeros(&gpu, vec![2; 16]).unwrap();
        assert_eq!(moves(|| reversed.assign(&device.t()).unwrap()), [("cuLaunchKernel", 1)]);
        assert_eq!(reversed.to_array().unwrap(), host.t());
        let mut host = ArrayD::<u16>::zeros(vec![3; 12]);
        let mut device = GpuArray::from_array(&gpu, &host).unwrap();
        let corners = vec![SliceInfoElem::Slice { start: 0, end: None, step: 2 }; 12];
        let mut part = device.slice_mut(corners.as_slice()).unwrap();
        part.fill(1).unwrap();
        assert_eq!(moves(|| part.fill(7).unwrap()), [("cuLaunchKernel", 1)]);
        host.slice_mut(corners.as_slice()).fill(7);
        assert_eq!(device.to_array().unwrap(), host);
        let host = Array3::from_shape_fn((65_540, 8, 9), |(i, j, k)| (i * 72 + j * 9 + k) as u16);
        let device = GpuArray::from_array(&gpu, &host).unwrap();
        let view = device.view().permuted_axes([0, 2, 1]).unwrap().slice(s![..;-1, .., ..;-1]).unwrap();
        let mut copied = None;
        assert_eq!(moves(|| copied = Some(view.to_owned().unwrap())), [("cuLaunchKernel", 1)]);
        assert_eq!(copied.unwrap().to_array().unwrap(), host.view().permuted_axes([0, 2, 1]).slice(s![..;-1, .., ..;-1]));
    }

    /// A fill is one call too.
    fn fills(driver: &Driver) {
        let gpu = counted(driver);
        let mut target = GpuArray::<f32, _>::zeros(&gpu, SHAPE).unwrap();
        Steps.of_mut(target.view_mut()).fill(0.5).unwrap();
        for (part, call) in [(All, "cuMemsetD32Async"), (Rows, "cuMemsetD2D32Async"), (Boxes, "cuLaunchKernel"), (Steps, "cuLaunchKernel")] {
            target.fill(0.0).unwrap();
            assert_eq!(moves(|| part.of_mut(target.view_mut()).fill(1.5).unwrap()), [(call, 1)], "{part:?}");
            let found = target.to_array().unwrap();
            assert!(part.of_host(&found).iter().all(|x| *x == 1.5), "{part:?}");
            assert_eq!(found.sum(), part.of_host(&found).len() as f32 * 1.5, "{part:?} and nothing else");
        }
    }
}
