//! Copies between host and device: every type, shape and order keeps its contents.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Array, Array2, Axis, Ix0, Ix2, IxDyn, Slice, arr0, array};
use gpumem_array::pool::sys::Table;
use gpumem_array::pool::sys::types::{CUdeviceptr, CUresult, CUstream};
use gpumem_array::pool::{Capture, CaptureMode, Device, Pool, PoolError};
use gpumem_array::{ArrayError, Gpu, GpuArray, Place};
use gpumem_sim::{Sim, SimConfig};
use proptest::prelude::*;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

proptest! {
    #[test]
    fn any_order_of_any_shape(shape in proptest::collection::vec(0_usize..6, 0..4), reverse in any::<bool>(), step in 1_isize..3) {
        let gpu = gpu();
        let count = shape.iter().product::<usize>() as i64;
        let mut host = Array::from_shape_vec(IxDyn(&shape), (0..count).collect()).unwrap();
        if reverse {
            host = host.reversed_axes();
        }
        let device = GpuArray::from_array(&gpu, &host).unwrap();
        prop_assert_eq!(&device.to_array().unwrap(), &host);
        prop_assert_eq!(device.to_vec().unwrap(), host.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(device.t().to_array().unwrap(), host.t());
        prop_assert_eq!(&device.try_clone().unwrap().to_array().unwrap(), &host);
        if !shape.is_empty() {
            // A host view with gaps is gathered before the upload.
            let gaps = host.slice_axis(Axis(0), Slice::from(..).step_by(step));
            prop_assert_eq!(GpuArray::from_array(&gpu, &gaps).unwrap().to_array().unwrap(), gaps);
        }
    }
}

#[test]
fn a_view_that_repeats_one_element_is_too_large_before_it_is_gathered() {
    let one = arr0(1.0_f32);
    let repeated = one.broadcast((1 << 30, 1 << 29)).unwrap();
    let error = GpuArray::from_array(&gpu(), &repeated).unwrap_err();
    assert!(matches!(error, ArrayError::Pool(PoolError::TooLarge { .. })), "{error:?}");
}

#[test]
fn arrays_without_elements_work_everywhere() {
    let gpu = gpu();
    let empty = GpuArray::<f32, _>::zeros(&gpu, (0, 3)).unwrap();
    assert_eq!(empty.address(), 0);
    assert_eq!((&empty + &empty).to_array().unwrap(), Array2::<f32>::zeros((0, 3)));
    let three = GpuArray::<f32, _>::zeros(&gpu, 3).unwrap();
    assert_eq!(empty.dot(&three).unwrap().to_vec().unwrap(), [0.0_f32; 0]);
    let none = GpuArray::<f32, _>::from_slice(&gpu, &[]).unwrap();
    assert_eq!(empty.t().dot(&none).unwrap().to_vec().unwrap(), [0.0; 3]);
    assert_eq!(none.sum().unwrap().into_scalar().unwrap(), 0.0);
    let mut target = none.try_clone().unwrap();
    target.fill(1.0).unwrap();
    target.assign(&none).unwrap();
    assert!(target.into_shape((4, 0)).unwrap().is_empty());
}

#[test]
fn parts_can_be_written_and_read() {
    let gpu = gpu();
    let mut table = GpuArray::<i32, _>::zeros(&gpu, (4, 2)).unwrap();
    let rows = GpuArray::from_array(&gpu, &array![[1, 2], [3, 4]]).unwrap();
    table.slice_axis_mut(Axis(0), Slice::from(1..3)).unwrap().assign(&rows).unwrap();
    table.slice_axis_mut(Axis(0), Slice::from(3..)).unwrap().fill(9).unwrap();
    table.slice_axis_mut(Axis(0), Slice::from(..1)).unwrap().copy_from_slice(&[7, 8]).unwrap();
    assert_eq!(table.to_array().unwrap(), array![[7, 8], [1, 2], [3, 4], [9, 9]]);
    assert_eq!(table.slice_axis(Axis(0), Slice::from(1..2)).unwrap().to_vec().unwrap(), [1, 2]);
    assert_eq!(
        table.reshape(8).unwrap().slice_axis(Axis(0), Slice::from(-1..)).unwrap().to_vec().unwrap(),
        [9]
    );
    let column = table.slice_axis(Axis(1), Slice::from(..1)).unwrap();
    assert_eq!(column.to_vec().unwrap(), [7, 1, 3, 9]);
}

#[test]
fn impossible_copies_are_refused() {
    let (gpu, elsewhere) = (gpu(), gpu_with(SimConfig::new()));
    let mut target = GpuArray::<i32, _>::zeros(&gpu, 4).unwrap();
    let (longer, foreign) =
        (GpuArray::<i32, _>::zeros(&gpu, 6).unwrap(), GpuArray::<i32, _>::zeros(&elsewhere, 4).unwrap());
    assert!(matches!(target.assign(&longer), Err(ArrayError::Shape { .. })));
    let Err(ArrayError::WrongDevice { expected, found }) = target.assign(&foreign) else { panic!() };
    assert!(expected != found && found.ends_with("of another simulator (no GPU)"), "{expected}, {found}");
    assert!(matches!(target.on_mut(&elsewhere).assign(&foreign), Err(ArrayError::WrongDevice { .. })));
    // Refused before it joins a graph, so that the capture stays valid.
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    let refused = target.to_vec().unwrap_err().to_string();
    assert!(refused.contains("a download"), "{refused}");
    let refused = target.copy_from_slice(&[1, 2, 3, 4]).unwrap_err().to_string();
    assert!(refused.contains("an upload"), "{refused}");
    // A copy of no elements queues no work.
    GpuArray::<i32, _>::zeros(&gpu, 0).unwrap().copy_from_slice(&[]).unwrap();
    capture.end().unwrap();
    assert_eq!(target.to_vec().unwrap(), [0; 4]);
}

#[test]
fn scalars_come_back_as_items() {
    let gpu = gpu();
    let scalar: GpuArray<f64, Ix0> = GpuArray::from_array(&gpu, &arr0(2.5)).unwrap();
    assert_eq!(scalar.view().into_scalar().unwrap(), 2.5);
    assert_eq!(scalar.into_shape((1, 1)).unwrap().shape(), [1, 1]);
}

#[test]
fn uninitialised_memory_is_written_before_it_is_read() {
    let gpu = gpu();
    let empty = || GpuArray::<u16, Ix2>::uninit(&gpu, (2, 2)).unwrap();
    assert_eq!(empty().fill(3).unwrap().to_vec().unwrap(), [3; 4]);
    assert_eq!(empty().copy_from_slice(&[1, 2, 3, 4]).unwrap().to_vec().unwrap(), [1, 2, 3, 4]);
    assert!(matches!(empty().copy_from_slice(&[1]), Err(ArrayError::Shape { .. })));
    let source = GpuArray::from_array(&gpu, &array![[5_u16, 6], [7, 8]]).unwrap();
    assert_eq!(empty().assign(&source).unwrap().to_vec().unwrap(), [5, 6, 7, 8]);
}

#[test]
fn a_full_device_is_an_error_and_room_comes_back() {
    let gpu = gpu_with(SimConfig::new().memory_bytes(64 << 20));
    let half = GpuArray::<u8, _>::zeros(&gpu, 40 << 20).unwrap();
    let refused = GpuArray::<u8, _>::zeros(&gpu, 40 << 20).unwrap_err();
    assert!(matches!(refused, ArrayError::Pool(PoolError::OutOfMemory { .. })), "{refused}");
    let refused = half.try_clone().unwrap_err();
    assert!(matches!(refused, ArrayError::Pool(PoolError::OutOfMemory { .. })), "{refused}");
    drop(half);
    assert!(GpuArray::<u8, _>::zeros(&gpu, 40 << 20).is_ok());
    let never = GpuArray::<u64, _>::zeros(&gpu, usize::MAX / 4).unwrap_err();
    assert!(matches!(never, ArrayError::TooManyElements { .. }), "{never}");
}

/// The driver's own functions, behind [`copy_and_complain`] and [`upload_and_complain`]. Each simulator has its own.
static DRIVER: Mutex<Option<Table>> = Mutex::new(None);

/// Queues the copy, and returns an error the first time.
unsafe extern "C" fn copy_and_complain(
    target: CUdeviceptr,
    source: CUdeviceptr,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    let own = DRIVER.lock().unwrap().and_then(|table| table.cuMemcpyAsync).unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    complained(unsafe { own(target, source, size_bytes, stream) })
}

/// Like [`copy_and_complain`].
unsafe extern "C" fn upload_and_complain(
    target: CUdeviceptr,
    source: *const c_void,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    let own = DRIVER.lock().unwrap().and_then(|table| table.cuMemcpyHtoDAsync_v2).unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    complained(unsafe { own(target, source, size_bytes, stream) })
}

fn complained(code: CUresult) -> CUresult {
    if COMPLAINS.swap(false, Ordering::Relaxed) { CUresult::CUDA_ERROR_UNKNOWN } else { code }
}

static COMPLAINS: AtomicBool = AtomicBool::new(false);

#[test]
fn borrowed_memory_is_released_even_if_the_copy_fails() {
    fn copy<P: Place>(gpu: &Gpu, place: &P, seed: u64) {
        let driver = gpu.device().driver();
        let mut array = GpuArray::<u8, _, P::Kind>::zeros(place, 64).unwrap();
        let mut host = vec![1_u8; 64];
        // Pinned memory is read when the copy runs; pageable memory is staged during the call.
        let address = host.as_mut_ptr().cast::<c_void>();
        let _bound = gpu.device().bind().unwrap();
        // SAFETY: the memory belongs to the vector, and is unregistered before the vector is dropped.
        unsafe { driver.cuMemHostRegister_v2(address, host.len(), 0).unwrap() };
        COMPLAINS.store(true, Ordering::Relaxed);
        array.copy_from_slice(&host).unwrap_err();
        // A pending copy would read this.
        host.fill(2);
        assert_eq!(array.to_vec().unwrap(), [1; 64], "replay: GPUMEM_SIM_SEED={seed}");
        // SAFETY: registered above, and all work of the device is complete.
        unsafe { driver.cuMemHostUnregister(address).unwrap() };
    }
    for seed in 0..100 {
        let driver = gpumem_sim::driver(SimConfig::new().seed(seed)).unwrap();
        *DRIVER.lock().unwrap() = Some(*driver.table());
        // SAFETY: the wrappers call the functions that they replace, and return one of their codes.
        let driver = unsafe {
            driver.with_table(|table| {
                table.cuMemcpyAsync = Some(copy_and_complain);
                table.cuMemcpyHtoDAsync_v2 = Some(upload_and_complain);
            })
        };
        let device = Device::new(&driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::from_env(&device).unwrap()).unwrap();
        copy(&gpu, &gpu, seed);
        copy(&gpu, &gpu.unified(), seed);
    }
}

#[test]
fn debug_needs_no_device() {
    let driver = gpumem_sim::driver(SimConfig::h200()).unwrap();
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let array = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0]).unwrap();
    // Each call takes time by the simulator's clock.
    let host_time = || Sim::of(&driver).unwrap().host_time();
    let before = host_time();
    let text = format!("{array:?} {:?} {gpu:?}", array.view());
    assert_eq!(host_time(), before);
    gpu.synchronize().unwrap();
    assert!(host_time() > before);
    assert!(text.contains("shape: [2]") && text.contains("f32"), "{text}");
}
