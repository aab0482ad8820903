//! Constructors of regular arrays, and how arrays print.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod support;

use gpumem_array::ndarray::{Array, Array1, Array2, array, s};
use gpumem_array::pool::sys::types::{CUdeviceptr, CUresult, CUstream};
use gpumem_array::pool::{CaptureMode, Device, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, PinnedArray};
use gpumem_sim::SimConfig;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::gpu;

#[test]
fn regular_arrays_are_those_of_ndarray() {
    let gpu = gpu();
    assert_eq!(
        GpuArray::<i64, _>::ones(&gpu, (2, 3)).unwrap().to_array().unwrap(),
        Array2::<i64>::ones((2, 3))
    );
    for size in [0, 1, 5, 40] {
        assert_eq!(
            GpuArray::<f32, _>::eye(&gpu, size).unwrap().to_array().unwrap(),
            Array2::<f32>::eye(size)
        );
    }
    for len in [0, 1, 2, 100] {
        let ours = GpuArray::linspace(&gpu, -1.0_f64, 2.5, len).unwrap();
        assert_eq!(ours.to_array().unwrap(), Array1::linspace(-1.0, 2.5, len));
    }
    for (start, end, step) in [(0.0, 1.0, 0.1), (1.0, 0.0, -0.3), (0.0, 1.0, 2.0)] {
        let ours = GpuArray::arange(&gpu, start, end, step).unwrap();
        assert_eq!(ours.to_array().unwrap(), Array1::range(start, end, step));
    }
    let function = |(i, j, k)| (i + 2 * j) as f32 / (1 + k) as f32;
    let ours = GpuArray::from_fn(&gpu.unified(), (2, 3, 4), function).unwrap();
    assert_eq!(ours.as_array().unwrap(), Array::from_shape_fn((2, 3, 4), function));
}

#[test]
fn ranges_of_integers_end_before_their_end() {
    let gpu = gpu();
    let range =
        |start, end, step| GpuArray::<i32, _>::arange(&gpu, start, end, step).unwrap().to_vec().unwrap();
    assert_eq!(range(0, 7, 3), [0, 3, 6]);
    assert_eq!(range(0, 6, 3), [0, 3]);
    assert_eq!(range(2, -3, -2), [2, 0, -2]);
    assert_eq!(range(i32::MIN, i32::MAX, i32::MAX), [i32::MIN, -1, i32::MAX - 1]);
    for (start, end, step) in [(0, 5, 0), (0, 5, -1), (5, 0, 1), (3, 3, 1)] {
        assert_eq!(range(start, end, step), []);
    }
    let empty = |step| GpuArray::arange(&gpu, 0.0_f32, 1.0, step).unwrap().len();
    assert_eq!([empty(0.0), empty(-0.0), empty(f32::NAN), empty(-1.0)], [0; 4]);
    let endless = GpuArray::arange(&gpu, 0.0_f64, f64::INFINITY, 1.0).unwrap_err();
    assert!(matches!(endless, ArrayError::TooManyElements { .. } | ArrayError::Pool(_)), "{endless}");
}

#[test]
fn arrays_print_like_those_of_ndarray() {
    let gpu = gpu();
    let host = array![[1.5_f32, 2.0], [3.0, 4.25]];
    let device = GpuArray::from_array(&gpu, &host).unwrap();
    assert_eq!(device.to_string(), host.to_string());
    assert_eq!(format!("{device:.2}"), format!("{host:.2}"));
    assert_eq!(device.slice(s![.., 1]).unwrap().to_string(), host.slice(s![.., 1]).to_string());
    let capture = gpu.stream().begin_capture(CaptureMode::Relaxed).unwrap();
    assert!(device.to_string().starts_with("<2×2 elements that cannot be downloaded: "), "{device}");
    capture.end().unwrap();
}

type Copy = unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
static COPIES: AtomicUsize = AtomicUsize::new(0);
static COPY: std::sync::OnceLock<Copy> = std::sync::OnceLock::new();

unsafe extern "C" fn counted(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    COPIES.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's promise, passed on.
    unsafe { COPY.get().unwrap()(to, from, size_bytes, stream) }
}

#[test]
fn debug_shows_the_kind_and_copies_nothing() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    COPY.set(driver.table().cuMemcpyAsync.unwrap()).unwrap();
    // SAFETY: the wrapper calls the function that it replaces.
    let driver = unsafe { driver.with_table(|table| table.cuMemcpyAsync = Some(counted)) };
    let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let array = PinnedArray::<u8, _>::zeros(&gpu.pinned(), (2, 3)).unwrap();
    let text = format!("{array:?}");
    assert!(
        text.contains("element: u8") && text.contains("shape: [2, 3]") && text.contains("kind: pinned"),
        "{text}"
    );
    assert_eq!(COPIES.load(Ordering::Relaxed), 0);
    assert_eq!(array.to_string(), Array2::<u8>::zeros((2, 3)).to_string());
    assert_eq!(COPIES.load(Ordering::Relaxed), 1);
}
