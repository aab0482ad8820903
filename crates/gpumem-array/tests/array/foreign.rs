//! Other libraries use arrays: their work is ordered with that of arrays, also if a guard is never dropped.

use crate::choices::Choices;
use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Axis, Ix1};
use gpumem_array::pool::{
    Capture, CaptureError, CaptureMode, DeviceError, MemoryKind, Pool, PoolError, Stream,
};
use gpumem_array::{ArrayError, Gpu, GpuArray, GraphError, PinnedArray, ReadOn, WriteOn};
use gpumem_sim::{Schedule, Sim, SimConfig};

type Array = GpuArray<u32, Ix1>;

const SEEDS: u64 = 200;
const LEN: usize = 64;

/// The other library: copies on the stream of both guards.
fn copy(to: &WriteOn<'_, u32, Ix1>, from: &ReadOn<'_, u32, Ix1>) {
    assert_eq!((to.shape(), to.strides()), (from.shape(), vec![1]));
    let device = to.stream().device();
    let _bound = device.bind().unwrap();
    // SAFETY: both have as many elements, and the guards have ordered the stream.
    unsafe {
        let size = 4 * to.shape()[0];
        device.driver().cuMemcpyDtoDAsync_v2(to.address(), from.address(), size, to.stream().raw()).unwrap();
    }
}

/// Likewise: sets all elements.
fn set(to: &WriteOn<'_, u32, Ix1>, value: u32) {
    let device = to.stream().device();
    let _bound = device.bind().unwrap();
    // SAFETY: the elements are contiguous, and the guard has ordered the stream.
    unsafe {
        device.driver().cuMemsetD32Async(to.address(), value, to.shape()[0], to.stream().raw()).unwrap();
    }
}

fn check_clean(gpu: &Gpu, seed: u64) {
    gpu.device().synchronize().unwrap();
    let findings = Sim::of(gpu.device().driver()).unwrap().report().findings;
    assert_eq!(findings, [], "replay: GPUMEM_SIM_SEED={seed}");
}

/// A random program of this crate and another library. Guards are dropped or forgotten.
#[test]
fn any_program_is_right_in_every_order() {
    for seed in 0..SEEDS {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let gpus = [gpu.clone(), gpu.fork().unwrap()];
        let streams = [Stream::new(gpu.device()).unwrap(), Stream::new(gpu.device()).unwrap()];
        let mut choices = Choices(seed);
        let mut hosts = [1_u32, 2, 3].map(|value| vec![value; LEN]);
        let mut arrays = hosts.each_ref().map(|host| Array::from_slice(&gpu, host).unwrap());
        for _ in 0..30 {
            let (gpu, stream) = (&gpus[choices.below(2)], &streams[choices.below(2)]);
            let (index, number) = (choices.below(3), choices.below(9) as u32);
            let source = (index + 1 + choices.below(2)) % 3;
            match choices.below(6) {
                0 => {
                    arrays[index].on_mut(gpu).fill(number).unwrap();
                    hosts[index].fill(number);
                }
                1 => {
                    let [to, from] = arrays.get_disjoint_mut([index, source]).unwrap();
                    to.on_mut(gpu).assign(&*from).unwrap();
                    hosts[index] = hosts[source].clone();
                }
                2 => {
                    let guard = arrays[index].write_on(stream).unwrap();
                    set(&guard, number);
                    if choices.below(2) == 0 {
                        core::mem::forget(guard);
                    }
                    hosts[index].fill(number);
                }
                3 => {
                    let [to, from] = arrays.get_disjoint_mut([index, source]).unwrap();
                    // Two guards of one stream on one array; one of them may never end.
                    let (to, from, other) = (
                        to.write_on(stream).unwrap(),
                        from.read_on(stream).unwrap(),
                        from.read_on(stream).unwrap(),
                    );
                    copy(&to, &from);
                    if choices.below(2) == 0 {
                        core::mem::forget(from);
                    }
                    drop(other);
                    drop(to);
                    hosts[index] = hosts[source].clone();
                }
                4 => {
                    let half = choices.below(LEN);
                    let (left, right) = arrays[index].split_at_mut(Axis(0), half).unwrap();
                    let (left, right) =
                        (left.write_on(&streams[0]).unwrap(), right.write_on(&streams[1]).unwrap());
                    set(&right, number);
                    if half > 0 {
                        set(&left, number + 1);
                    }
                    if choices.below(3) == 0 {
                        core::mem::forget(left);
                    }
                    hosts[index].fill(number);
                    hosts[index][..half].fill(number + 1);
                }
                // The memory of the old array comes again, and may still be in use.
                _ => {
                    arrays[index] = Array::from_elem(gpu, LEN, number).unwrap();
                    hosts[index].fill(number);
                }
            }
        }
        for (array, host) in arrays.iter().zip(&hosts) {
            let found = array.on(&gpus[choices.below(2)]).to_vec().unwrap();
            assert_eq!(found, *host, "replay: GPUMEM_SIM_SEED={seed}");
        }
        check_clean(&gpu, seed);
    }
}

#[test]
fn a_guard_that_ends_is_waited_for_exactly() {
    const LARGE: usize = 16 << 20;
    let time = |forget: bool| {
        let gpu = gpu();
        let sim = Sim::of(gpu.device().driver()).unwrap();
        let stream = Stream::new(gpu.device()).unwrap();
        let (mut array, mut other) = (Array::zeros(&gpu, 4).unwrap(), Array::zeros(&gpu, LARGE).unwrap());
        gpu.device().synchronize().unwrap();
        let guard = array.write_on(&stream).unwrap();
        set(&guard, 7);
        if forget {
            core::mem::forget(guard)
        } else {
            drop(guard)
        }
        stream.mark().unwrap();
        let begin = sim.host_time();
        let busy = other.write_on(&stream).unwrap();
        (0..100).for_each(|value| set(&busy, value));
        assert_eq!(array.to_vec().unwrap(), [7; 4]);
        sim.host_time() - begin
    };
    let (ended, forgotten) = (time(false), time(true));
    assert!(ended * 2 < forgotten, "{ended:?} {forgotten:?}");
}

#[test]
fn a_stream_that_captures_is_refused_and_not_joined() {
    let gpu = gpu();
    let stream = Stream::new(gpu.device()).unwrap();
    let mut array = Array::zeros(&gpu, LEN).unwrap();
    let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
    for refused in [array.read_on(&stream).map(drop), array.write_on(&stream).map(drop)] {
        assert!(matches!(refused, Err(ArrayError::Graph(GraphError::StreamCaptures))), "{refused:?}");
    }
    capture.end().unwrap();
    let guard = array.write_on(&stream).unwrap();
    set(&guard, 3);
    core::mem::forget(guard);
    // The array waits for all that is on the stream, and none of it runs before a launch.
    let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
    assert!(array.to_vec().is_err());
    assert!(!gpu.stream().is_capturing().unwrap());
    capture.end().unwrap();
    assert_eq!(array.to_vec().unwrap(), [3; LEN]);
    let elsewhere = crate::support::gpu();
    assert!(matches!(array.read_on(elsewhere.stream()), Err(ArrayError::WrongDevice { .. })));
    check_clean(&gpu, 0);
}

/// The other library's work becomes part of the graph, and each launch takes its arrays.
#[test]
fn work_of_another_library_is_captured() {
    for seed in 0..SEEDS {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let other = gpu.fork().unwrap();
        let (mut x, mut y) = (Array::from_elem(&gpu, LEN, 1).unwrap(), Array::zeros(&gpu, LEN).unwrap());
        let (mut graph, ()) = gpu
            .capture(|c| {
                copy(&y.write_on(c)?, &x.read_on(c)?);
                Ok(())
            })
            .unwrap();
        for round in 2..5 {
            x.on_mut(&other).fill(round).unwrap();
            graph.launch(&gpu).read(&x).write(&mut y).run().unwrap();
        }
        assert_eq!(y.on(&other).to_vec().unwrap(), [4; LEN]);
        assert!(graph.launch(&gpu).write(&mut y).run().is_err());
        drop((graph, x, y));
        check_clean(&gpu, seed);
    }
}

#[test]
fn blocks_become_arrays_and_arrays_blocks() {
    for seed in 0..SEEDS {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let other = gpu.fork().unwrap();
        let block = gpu.pool().alloc(4 * LEN as u64, other.stream()).unwrap();
        let address = block.address();
        // The block is another stream's.
        let mut array: Array = GpuArray::from_block(&gpu, block, LEN).unwrap().fill(1).unwrap();
        array.on_mut(&other).fill(5).unwrap();
        assert_eq!(array.address(), address);
        let block = array.into_block().unwrap();
        let array: Array = GpuArray::from_block(&gpu, block, LEN)
            .map(|array| {
                // SAFETY: the array that the block came from had written all of it.
                unsafe { array.assume_init() }
            })
            .unwrap();
        assert_eq!(array.to_vec().unwrap(), [5; LEN], "replay: GPUMEM_SIM_SEED={seed}");
        drop(array);
        check_clean(&gpu, seed);
    }
}

#[test]
fn unsuitable_blocks_are_refused() {
    let gpu = gpu_with(SimConfig::new().schedule(Schedule::Late));
    let block = |pool: &Pool| pool.alloc(64, gpu.stream()).unwrap();
    let refused = Array::from_block(&gpu, block(gpu.pool()), 17).unwrap_err();
    assert!(refused.to_string().contains("a block of 64 bytes of kind device"), "{refused}");
    let refused = PinnedArray::<u8, Ix1>::from_block(&gpu, refused.into_value(), 1).unwrap_err();
    assert!(matches!(refused.error(), ArrayError::UnsuitableBlock { expected: "pinned", .. }), "{refused}");
    assert_eq!(
        Array::from_block(&gpu, refused.into_value(), 16).unwrap().fill(3).unwrap().to_vec().unwrap(),
        [3; 16]
    );
    let pinned = Pool::builder(gpu.device()).kind(MemoryKind::Host).build().unwrap();
    let array = PinnedArray::<u8, Ix1>::from_block(&gpu, block(&pinned), 64).unwrap().fill(9).unwrap();
    assert_eq!(array[63], 9);
    let refused = Array::from_block(&crate::support::gpu(), block(gpu.pool()), 1).unwrap_err();
    assert!(matches!(refused.error(), ArrayError::WrongDevice { .. }), "{refused}");
    let mut kept = None;
    let captured = gpu.capture(|c| {
        let made = Array::zeros(c, LEN)?;
        kept = Some(made.into_block());
        Ok(())
    });
    drop(captured.unwrap());
    let refused = kept.unwrap().unwrap_err();
    assert!(
        matches!(
            refused.error(),
            ArrayError::Pool(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
        ),
        "{refused}"
    );
}

/// An array over a block is behind all uses of the block, also those on streams that did not allocate it.
#[test]
fn an_array_over_a_block_is_behind_its_uses() {
    for seed in 0..SEEDS {
        let gpu = gpu_with(SimConfig::new().seed(seed));
        let (first, second) = (gpu.fork().unwrap(), gpu.fork().unwrap());
        let mut x = Array::zeros(&gpu, LEN).unwrap().into_gpu(&first).unwrap();
        for value in 0..10 {
            x.fill(value).unwrap();
        }
        let block = x.into_block().unwrap();
        let y = Array::from_block(&second, block, LEN).unwrap().fill(7).unwrap();
        assert_eq!(y.to_vec().unwrap(), [7; LEN]);
        check_clean(&gpu, seed);
        assert_eq!(y.to_vec().unwrap(), [7; LEN]);
    }
}

/// In a capture, the writes of such an array would not run, and its memory was never written.
#[test]
fn blocks_and_arrays_do_not_change_into_each_other_in_a_capture() {
    let gpu = gpu();
    let block = gpu.pool().alloc(4 * LEN as u64, gpu.stream()).unwrap();
    let array = Array::zeros(&gpu, LEN).unwrap();
    let mut refused = Vec::new();
    let (mut kept, mut kept_array) = (None, None);
    let captured = gpu.capture(|c| {
        let (error, block) = Array::from_block(c, block, LEN).unwrap_err().into_parts();
        refused.push(error);
        kept = Some(block);
        let (error, array) = array.into_gpu(c)?.into_block().unwrap_err().into_parts();
        refused.push(error);
        kept_array = Some(array);
        Ok(())
    });
    drop(captured.unwrap());
    // Nothing is lost.
    let array = kept_array.unwrap().into_gpu(&gpu).unwrap();
    assert_eq!(array.to_vec().unwrap(), [0; LEN]);
    assert_eq!(
        Array::from_block(&gpu, kept.unwrap(), LEN).unwrap().fill(5).unwrap().to_vec().unwrap(),
        [5; LEN]
    );
    for error in refused {
        assert!(
            matches!(
                error,
                ArrayError::Pool(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
            ),
            "{error}"
        );
    }
    check_clean(&gpu, 0);
}
