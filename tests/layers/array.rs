//! Arrays end to end on both drivers: round trips, views, joins, growth, tracking across streams and threads, and uses by other
//! libraries.

use gpumem_adapt::array::dlpack::{DlpackArray, dlpark};
use gpumem_adapt::array::ndarray::{self, Array2, Array3, Axis, Ix1, Ix2, IxDyn, Slice, arr2};
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{BackendKind, Device, Pool, Stream};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray, PinnedArray, concatenate, stack};
use gpumem_tests::cases;
use gpumem_tests::driver::count_calls;
use gpumem_trace::calls::reading;

fn gpu(driver: &Driver) -> Gpu {
    let device = Device::new(driver, 0).unwrap();
    Gpu::new(&Pool::from_env(&device).unwrap()).unwrap()
}

cases! {
    /// An upload and a download return equal elements, for any shape, order and size.
    fn round_trips(driver: &Driver) {
        let gpu = gpu(driver);
        let cube = Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (i * 100 + j * 10 + k) as f64);
        assert_eq!(GpuArray::from_array(&gpu, &cube).unwrap().to_array().unwrap(), cube);
        let turned = cube.view().reversed_axes();
        assert_eq!(GpuArray::from_array(&gpu, &turned).unwrap().to_array().unwrap(), turned);
        let empty: [i32; 0] = [];
        assert_eq!(GpuArray::from_slice(&gpu, &empty).unwrap().to_vec().unwrap(), empty);
        let large: Vec<u32> = (0..10_000_000).collect();
        assert_eq!(GpuArray::from_slice(&gpu, &large).unwrap().to_vec().unwrap(), large);
        assert_eq!(GpuArray::from_slice(&gpu, &[true, false]).unwrap().to_vec().unwrap(), [true, false]);
    }

    /// Rows of a matrix are views: nothing is copied, and a write through a view changes the matrix.
    fn views(driver: &Driver) {
        let gpu = gpu(driver);
        let host = Array2::from_shape_fn((6, 3), |(i, j)| (i * 3 + j) as f32);
        let mut matrix = GpuArray::from_array(&gpu, &host).unwrap();
        let middle = matrix.slice_axis(Axis(0), Slice::from(2..4)).unwrap();
        assert_eq!(middle.to_array().unwrap(), arr2(&[[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]));
        let ones = GpuArray::from_elem(&gpu, (2, 3), 1.0f32).unwrap();
        matrix.slice_axis_mut(Axis(0), Slice::from(2..4)).unwrap().assign(&ones).unwrap();
        let mut expected = host;
        expected.slice_axis_mut(Axis(0), Slice::from(2..4)).fill(1.0);
        assert_eq!(matrix.to_array().unwrap(), expected);
    }

    /// A vector over growable memory keeps its address and its elements while it grows and shrinks, beside work on another stream.
    fn growing_in_place(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::builder(&device).backend(BackendKind::Caching).build().unwrap()).unwrap();
        let other = gpu.fork().unwrap();
        let mut x = GpuArray::<i32, Ix1>::growable(&gpu, 64 << 20).unwrap();
        let (address, mut expected) = (x.address(), Vec::new());
        for round in 0..12_i32 {
            let piece: Vec<i32> = (0..(1 << 18) * (round + 1)).map(|i| i ^ round).collect();
            x.extend_from_slice(&piece).unwrap();
            expected.extend_from_slice(&piece);
            x.on_mut(&other).try_add_assign(&GpuArray::from_elem(&other, (), round).unwrap()).unwrap();
            expected.iter_mut().for_each(|element| *element += round);
            if round % 5 == 4 {
                x.resize(1 << 18, 0).unwrap();
                expected.truncate(1 << 18);
            }
            assert_eq!((x.address(), x.len()), (address, expected.len()));
        }
        assert!(x.to_vec().unwrap() == expected);
    }

    /// `Debug` of arrays, views and `Gpu`s calls no function of the driver, and prints the kind.
    fn debug_makes_no_call(driver: &Driver) {
        let gpu = gpu(&count_calls(driver));
        let mut x = PinnedArray::<f32, Ix2>::zeros(&gpu.pinned(), (2, 3)).unwrap();
        let y = GpuArray::<u8, Ix1>::uninit(&gpu, 5).unwrap();
        let before = reading();
        let texts = [format!("{x:?}"), format!("{:?}", x.view()), format!("{:?}", x.view_mut()), format!("{y:?} {gpu:?}")];
        assert_eq!(reading().since(&before).calls.by_name(), []);
        assert!(texts[..3].iter().all(|text| text.contains("kind: pinned")), "{texts:?}");
        assert!(texts[..3].iter().all(|text| text.contains("element: f32, shape: [2, 3]")), "{texts:?}");
        assert!(texts[3].contains("element: u8, shape: [5]") && texts[3].contains("kind: device"), "{texts:?}");
    }

    /// Text of a large array downloads the elements that are printed.
    fn text_of_a_large_array(driver: &Driver) {
        let gpu = gpu(driver);
        let host = Array2::from_shape_fn((3000, 4000), |(i, j)| (i * 7 + j) as f32);
        let x = GpuArray::from_array(&gpu, &host).unwrap();
        for (ours, theirs) in [(x.view(), host.view()), (x.t(), host.t())] {
            let text = ours.to_string();
            assert!(text.starts_with(&theirs.to_string()), "{text}");
            assert!(text.contains(", type=f32, shape=[") && text.ends_with(", device=0"), "{text}");
        }
    }

    /// An array written on one stream and read on another needs no explicit wait; its drop needs none either.
    fn two_streams(driver: &Driver) {
        let first = gpu(driver);
        let second = first.fork().unwrap();
        let mut x = GpuArray::<f32, Ix1>::zeros(&first, 1 << 20).unwrap();
        for round in 0..20 {
            x += 1.0;
            let doubled = x.on(&second) * 2.0;
            x += 1.0;
            drop(x.try_clone().unwrap());
            let expected = (round * 2 + 1) as f32 * 2.0;
            assert!(doubled.to_vec().unwrap().iter().all(|&value| value == expected), "round {round}");
        }
    }

    /// Arrays move between threads, each with a stream of its own.
    fn threads(driver: &Driver) {
        let gpu = gpu(driver);
        let shared = GpuArray::from_elem(&gpu, 100_000, 3.0f64).unwrap();
        let sums: Vec<f64> = std::thread::scope(|scope| {
            let run = |i: usize| {
                let (gpu, shared) = (gpu.fork().unwrap(), &shared);
                scope.spawn(move || (shared.on(&gpu) * i as f64).sum().unwrap().into_scalar().unwrap())
            };
            let threads: Vec<_> = (0..4).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(sums, [0.0, 300_000.0, 600_000.0, 900_000.0]);
    }

    /// Arrays are joined along an axis, whatever the order of their elements.
    fn joins(driver: &Driver) {
        let gpu = gpu(driver);
        let host = [3, 1, 4].map(|rows| Array2::from_shape_fn((rows, 300), |(i, j)| (rows * 1000 + i * 300 + j) as f32));
        let arrays = host.each_ref().map(|host| GpuArray::from_array(&gpu, host).unwrap());
        let joined = concatenate(Axis(0), &arrays.each_ref().map(GpuArray::view)).unwrap();
        let expected = ndarray::concatenate(Axis(0), &host.each_ref().map(|host| host.view())).unwrap();
        assert_eq!(joined.to_array().unwrap(), expected);
        let joined = concatenate(Axis(1), &arrays.each_ref().map(GpuArray::t)).unwrap();
        assert_eq!(joined.to_array().unwrap(), expected.t());
        let (left, right) = (arrays[0].view(), arrays[0].on(&gpu));
        let expected = ndarray::stack(Axis(1), &[host[0].view(), host[0].view()]).unwrap();
        assert_eq!(stack(Axis(1), &[left, right]).unwrap().to_array().unwrap(), expected);
    }

    /// A vector that grows and shrinks has the elements of a `Vec`.
    fn vectors_grow(driver: &Driver) {
        let gpu = gpu(driver);
        let other = gpu.fork().unwrap();
        let (mut x, mut host) = (GpuArray::<f32, Ix1>::zeros(&gpu, 0).unwrap(), Vec::new());
        for round in 1..=12_u16 {
            let value = f32::from(round);
            x.resize(host.len() + 1000, value).unwrap();
            host.resize(host.len() + 1000, value);
            x.extend_from_slice(&[value, -value]).unwrap();
            host.extend([value, -value]);
            let more = GpuArray::from_elem(&other, 77, value).unwrap();
            x.append(&more).unwrap();
            host.extend([value; 77]);
            assert_eq!(x.on(&other).to_vec().unwrap(), host);
        }
        x.resize(5, 0.0).unwrap();
        assert_eq!(x.to_vec().unwrap(), host[..5]);
        assert!(x.capacity() < host.len());
    }

    /// Another library's stream writes one array and reads another, between work of arrays on both sides.
    fn uses_by_other_libraries(driver: &Driver) {
        const LEN: usize = 1 << 20;
        let gpu = gpu(driver);
        let theirs = Stream::new(gpu.device()).unwrap();
        let mut x = GpuArray::<u32, Ix1>::zeros(&gpu, LEN).unwrap();
        let mut y = GpuArray::<u32, Ix1>::zeros(&gpu, LEN).unwrap();
        for round in 1..=20 {
            x.fill(round).unwrap();
            {
                let (from, to) = (x.read_on(&theirs).unwrap(), y.write_on(&theirs).unwrap());
                let _bound = gpu.device().bind().unwrap();
                let (target, source) = (to.address(), from.address());
                // SAFETY: both arrays have as many elements, and the guards have ordered the stream.
                unsafe {
                    let driver = gpu.device().driver();
                    driver.cuMemcpyDtoDAsync_v2(target, source, 4 * LEN, to.stream().raw()).unwrap();
                }
                if round % 2 == 0 {
                    std::mem::forget((from, to));
                }
            }
            // Overwritten at once: the copy comes first.
            x.fill(0).unwrap();
            assert!(y.to_vec().unwrap().iter().all(|value| *value == round), "round {round}");
        }
    }

    /// A block of the pool becomes an array and a block again, behind uses on other streams.
    fn blocks_are_arrays(driver: &Driver) {
        const LEN: usize = 1 << 20;
        let gpu = gpu(driver);
        let other = gpu.fork().unwrap();
        let mut block = gpu.pool().alloc(4 * LEN as u64, other.stream()).unwrap();
        for round in 1..=5_u32 {
            let uninit = GpuArray::<u32, Ix1>::from_block(if round % 2 == 0 { &gpu } else { &other }, block, LEN).unwrap();
            let array = uninit.fill(round).unwrap();
            let copied = array.on(&gpu).to_owned().unwrap();
            block = array.into_block().unwrap();
            assert_eq!(block.size_bytes(), 4 * LEN as u64);
            assert!(copied.to_vec().unwrap().iter().all(|value| *value == round), "round {round}");
        }
        let small = GpuArray::<u32, Ix1>::from_block(&gpu, block, LEN + 1).err();
        let (error, block) = small.unwrap().into_parts();
        assert!(matches!(error, ArrayError::UnsuitableBlock { .. }), "{error}");
        assert_eq!(block.size_bytes(), 4 * LEN as u64);
    }

    /// An array travels as a tensor of DLPack to another stream, is written there, and comes back.
    fn tensors_travel(driver: &Driver) {
        let gpu = gpu(driver);
        let host = Array2::from_shape_fn((300, 1000), |(i, j)| (i * 1000 + j) as f32);
        let theirs = Stream::new(gpu.device()).unwrap();
        let other = Gpu::with_stream(gpu.pool(), &theirs).unwrap();
        let doubled = GpuArray::from_array(&gpu, &host).unwrap() * 2.0;
        let tensor: dlpark::legacy::Dlpack = doubled.into_dlpack(&theirs).unwrap();
        // SAFETY: the pointer comes from `into_raw`, and is used once.
        let tensor = unsafe { dlpark::legacy::Dlpack::from_raw(tensor.into_raw()) }.unwrap();
        // SAFETY: the tensor is one of this crate, and nothing else uses it.
        let mut back: DlpackArray<f32, Ix2> = unsafe { DlpackArray::from_dlpack(&other, tensor) }.unwrap();
        back.view_mut().unwrap().try_add_assign(1.0).unwrap();
        // Read on a third stream, while the tensor is dropped.
        let copied = back.view().on(&gpu).to_owned().unwrap();
        drop(back);
        let _next = GpuArray::from_elem(&other, (300, 1000), -1.0_f32).unwrap();
        assert_eq!(copied.to_array().unwrap(), host * 2.0 + 1.0);

        let tensor: dlpark::versioned::Dlpack = copied.into_dlpack(&theirs).unwrap();
        // SAFETY: the tensor is one of this crate, and nothing else uses it.
        let wrong = unsafe { DlpackArray::<i64, IxDyn>::from_dlpack(&other, tensor) }.unwrap_err();
        assert!(matches!(wrong.error(), ArrayError::Dlpack { field: "dtype", .. }), "{wrong}");
    }

    /// Shapes that do not fit and sizes that overflow are errors.
    fn bad_shapes(driver: &Driver) {
        let gpu = gpu(driver);
        let a = GpuArray::<f32, _>::zeros(&gpu, 3).unwrap();
        let b = GpuArray::<f32, _>::zeros(&gpu, 4).unwrap();
        assert!(matches!(a.try_add(&b), Err(ArrayError::Shape { .. })));
        let m = GpuArray::<f32, _>::zeros(&gpu, (2, 4)).unwrap();
        assert!(matches!(m.dot(&a), Err(ArrayError::Shape { .. })));
        assert!(GpuArray::<f64, _>::zeros(&gpu, (usize::MAX / 2, 3)).is_err());
        assert!(a.slice_axis(Axis(1), Slice::from(..)).is_err());
        assert!(a.slice_axis(Axis(0), Slice::from(2..9)).is_err());
    }
}
