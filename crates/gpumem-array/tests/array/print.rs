//! Arrays as text: the elements as `ndarray` prints them, what the array is, and what is downloaded for it.

use crate::support::gpu;
use gpumem_array::ndarray::{Array, Array1, ArrayD, Axis, Ix3, IxDyn, ShapeBuilder, Slice, array, s};
use gpumem_array::pool::sys::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUdeviceptr, CUresult, CUstream};
use gpumem_array::pool::sys::{Driver, Table};
use gpumem_array::pool::{Capture, CaptureMode, Device, Limit, Pool};
use gpumem_array::{Gpu, GpuArray};
use gpumem_sim::SimConfig;
use proptest::prelude::*;
use std::cell::Cell;
use std::sync::OnceLock;

#[test]
fn arrays_print_like_those_of_ndarray() {
    let gpu = gpu();
    let host = array![[1.5_f32, 2.0], [3.0, 4.25]];
    let mut device = GpuArray::from_array(&gpu, &host).unwrap();
    let is = ", type=f32, shape=[2, 2], strides=[2, 1], kind=device, device=0";
    assert_eq!(device.to_string(), format!("{host}{is}"));
    assert_eq!(format!("{device:.2}"), format!("{host:.2}{is}"));
    assert_eq!(device.view_mut().to_string(), format!("{host}{is}"));
    let column = ", type=f32, shape=[2], strides=[2], kind=device, device=0";
    assert_eq!(device.slice(s![.., 1]).unwrap().to_string(), format!("{}{column}", host.slice(s![.., 1])));
    let pinned = GpuArray::from_slice(&gpu.pinned(), &[true]).unwrap();
    assert_eq!(pinned.to_string(), "[true], type=bool, shape=[1], strides=[1], kind=pinned, device=0");
    assert!(pinned.view().to_string().ends_with("kind=pinned, device=0"));
    let number = GpuArray::from_elem(&gpu, (), 7).unwrap();
    assert_eq!(number.to_string(), "7, type=i32, shape=[], strides=[], kind=device, device=0");
    let empty = GpuArray::<u8, Ix3>::zeros(&gpu, (2, 0, 1 << 40)).unwrap();
    assert!(empty.to_string().starts_with("[[[]]], type=u8, shape=[2, 0, 1099511627776]"), "{empty}");

    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    let refused = device.to_string();
    assert!(
        refused.starts_with("<the elements cannot be downloaded: ") && refused.ends_with(is),
        "{refused}"
    );
    capture.end().unwrap();
}

#[test]
fn other_devices_are_named() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2).without_link(0, 1)).unwrap();
    let gpu = |ordinal| Gpu::new(&Pool::from_env(&Device::new(&driver, ordinal).unwrap()).unwrap()).unwrap();
    let (first, second) = (gpu(0), gpu(1));
    let x = GpuArray::from_elem(&second, 1000, 3_i64).unwrap();
    let expected =
        format!("{}, type=i64, shape=[1000], strides=[1], kind=device, device=1", Array1::from_elem(1000, 3));
    assert_eq!(x.to_string(), expected);
    // The memory's device, whatever stream prints it.
    assert_eq!(x.on(&first).to_string(), expected);
}

proptest! {
    /// Any shape, order and view, abridged or in full.
    #[test]
    fn any_view_prints_like_that_of_ndarray(
        shape in prop_oneof![
            4 => proptest::collection::vec(prop_oneof![1 => Just(1_usize), 3 => 2_usize..14, 2 => 40_usize..60], 0..4),
            1 => proptest::collection::vec(1_usize..8, 4..6),
            1 => proptest::collection::vec(490_usize..520, 1..2),
        ],
        by_columns in any::<bool>(),
        slices in proptest::collection::vec((0_usize..3, prop_oneof![4 => Just(1_isize), 1 => Just(-1), 1 => Just(2)]), 6),
        swapped in any::<(usize, usize)>(),
        repeated in prop_oneof![3 => Just(None), 1 => (1_usize..40).prop_map(Some)],
    ) {
        let gpu = gpu();
        let count = shape.iter().product::<usize>();
        let host = ArrayD::from_shape_vec(IxDyn(&shape).set_f(by_columns), (0..count as u32).collect()).unwrap();
        let device = GpuArray::from_array(&gpu, &host).unwrap();
        let (mut ours, mut theirs) = (device.view(), host.view());
        for (axis, (start, step)) in slices.into_iter().enumerate().take(shape.len()) {
            let slice = Slice::new(start.min(shape[axis]) as isize, None, step);
            ours = ours.slice_axis(Axis(axis), slice).unwrap();
            theirs.slice_axis_inplace(Axis(axis), slice);
        }
        if !shape.is_empty() {
            let (a, b) = (swapped.0 % shape.len(), swapped.1 % shape.len());
            let mut axes: Vec<usize> = (0..shape.len()).collect();
            axes.swap(a, b);
            ours = ours.permuted_axes(axes).unwrap();
            theirs.swap_axes(a, b);
        }
        let shape: Vec<usize> = repeated.into_iter().chain(ours.shape().to_vec()).collect();
        let (ours, theirs) = (ours.broadcast(shape.clone()).unwrap(), theirs.broadcast(shape).unwrap());
        let printed = ours.to_string();
        prop_assert!(printed.starts_with(&format!("{theirs}, type=u32, ")), "{} instead of {}", printed, theirs);
        if theirs.len() < 5000 {
            let printed = format!("{ours:#}");
            prop_assert!(printed.starts_with(&format!("{theirs:#}, type=u32, ")), "{} instead of {}", printed, theirs);
        }
    }
}

thread_local!(static COPIED_BYTES: Cell<usize> = const { Cell::new(0) });
static REAL: OnceLock<Table> = OnceLock::new();

fn count(size_bytes: usize) {
    COPIED_BYTES.set(COPIED_BYTES.get() + size_bytes);
}

unsafe extern "C" fn copy(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    count(size_bytes);
    // SAFETY: the caller's promise, passed on.
    unsafe { REAL.get().unwrap().cuMemcpyAsync.unwrap()(to, from, size_bytes, stream) }
}

unsafe extern "C" fn copy_rows(what: *const CUDA_MEMCPY2D, stream: CUstream) -> CUresult {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        count((*what).WidthInBytes * (*what).Height);
        REAL.get().unwrap().cuMemcpy2DAsync_v2.unwrap()(what, stream)
    }
}

unsafe extern "C" fn copy_boxes(what: *const CUDA_MEMCPY3D, stream: CUstream) -> CUresult {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        count((*what).WidthInBytes * (*what).Height * (*what).Depth);
        REAL.get().unwrap().cuMemcpy3DAsync_v2.unwrap()(what, stream)
    }
}

/// Counts the bytes of copies on the calling thread.
fn counted(driver: &Driver) -> Driver {
    REAL.get_or_init(|| *driver.table());
    // SAFETY: each function calls the one that it replaces.
    unsafe {
        driver.with_table(|table| {
            table.cuMemcpyAsync = Some(copy);
            table.cuMemcpy2DAsync_v2 = Some(copy_rows);
            table.cuMemcpy3DAsync_v2 = Some(copy_boxes);
        })
    }
}

/// The pool is full and nothing is queued but copies, so it also works when memory has run out.
#[test]
fn large_arrays_download_what_is_printed() {
    const SIZE: usize = 64 << 20;
    let device = Device::new(&counted(&gpumem_sim::driver(SimConfig::new()).unwrap()), 0).unwrap();
    let pool = Pool::builder(&device).hard_limit(Limit::Bytes(SIZE as u64)).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let mut x = GpuArray::<u8, _>::zeros(&gpu, SIZE).unwrap();
    for (shape, printed) in [
        (&[SIZE][..], 10),
        (&[8192, 8192], 10 * 10),
        (&[64, 1024, 1024], 6 * 10 * 10),
        (&[4, 16, 1024, 1024], 4 * 6 * 10 * 10),
        (&[8192, 1 << 12, 2], 6 * 10 * 2),
    ] {
        let view = x.reshape(IxDyn(shape)).unwrap();
        let host = Array::from_elem((), 0_u8);
        let expected = host.broadcast(IxDyn(shape)).unwrap().to_string();
        for view in [view.clone(), view.t()] {
            COPIED_BYTES.set(0);
            let text = view.to_string();
            assert_eq!(COPIED_BYTES.get(), printed_bytes(view.shape()), "{shape:?}");
            if view.shape() == shape {
                assert!(text.starts_with(&format!("{expected}, type=u8")), "{text}");
                assert_eq!(printed_bytes(view.shape()), printed);
            }
        }
    }
    x.slice_mut(s![-1..]).unwrap().fill(9).unwrap();
    assert!(x.to_string().starts_with("[0, 0, 0, 0, 0, ..., 0, 0, 0, 0, 9], type=u8"), "{x}");
}

/// The limits of `ndarray`'s documentation: 11 elements along the last two axes, 6 along the others.
fn printed_bytes(shape: &[usize]) -> usize {
    let limits = [11, 11].into_iter().chain(std::iter::repeat(6));
    shape
        .iter()
        .rev()
        .zip(limits)
        .map(|(len, limit)| if *len <= limit { *len } else { limit / 2 * 2 })
        .product()
}
