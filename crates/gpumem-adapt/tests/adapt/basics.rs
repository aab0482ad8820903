//! Every type with an implementation of `Adapt`, moved to the simulator and back.

use gpumem_adapt::array::ndarray::{Array1, Array2, Array3, Axis, Ix1, Ix2, array, s};
use gpumem_adapt::array::pool::sys::types::{CUdeviceptr, CUstream};
use gpumem_adapt::array::pool::sys::{CUresult, Driver};
use gpumem_adapt::array::pool::{Device, Pool, PoolError};
use gpumem_adapt::array::{ArrayError, Gpu, GpuArray};
use gpumem_adapt::{Adapt, Diagonal, Host, HostVec};
use gpumem_sim::SimConfig;
use std::sync::Mutex;

fn gpu() -> Gpu {
    on(&gpumem_sim::driver(SimConfig::new()).expect("an instance is free"))
}

fn on(driver: &Driver) -> Gpu {
    let device = Device::new(driver, 0).expect("there is one");
    Gpu::new(&Pool::new(&device).expect("it has pools")).expect("it has streams")
}

#[test]
fn slices_and_vecs_keep_their_elements() {
    let gpu = gpu();
    let up: GpuArray<i64, Ix1> = [1_i64, -2, 3][..].adapt(&gpu).unwrap();
    assert_eq!(up.adapt(&HostVec).unwrap(), [1, -2, 3]);
    let up = vec![true, false].adapt(&gpu).unwrap();
    assert_eq!(up.adapt(&Host).unwrap(), array![true, false]);
    let up = [0.5_f64; 3][..].adapt(&gpu).unwrap();
    assert_eq!(up.adapt(&HostVec).unwrap(), [0.5; 3]);
    let empty = Vec::<u8>::new().adapt(&gpu).unwrap();
    assert_eq!(empty.adapt(&HostVec).unwrap(), Vec::<u8>::new());
}

#[test]
fn arrays_and_views_keep_their_shape() {
    let gpu = gpu();
    let matrix = Array2::from_shape_fn((3, 4), |(i, j)| (10 * i + j) as f32);
    let up: GpuArray<f32, Ix2> = matrix.adapt(&gpu).unwrap();
    assert_eq!(up.shape(), [3, 4]);
    assert_eq!(up.adapt(&Host).unwrap(), matrix);
    for view in [matrix.t(), matrix.slice(s![1.., ..;2]), matrix.slice(s![..;-1, ..])] {
        assert_eq!(view.adapt(&gpu).unwrap().adapt(&Host).unwrap(), view);
    }
    assert_eq!(
        matrix.index_axis(Axis(1), 2).adapt(&gpu).unwrap().adapt(&HostVec).unwrap(),
        [2.0, 12.0, 22.0]
    );
    let empty = Array3::<f32>::zeros((2, 0, 3));
    assert_eq!(empty.adapt(&gpu).unwrap().adapt(&Host).unwrap(), empty);
}

#[test]
fn tuples_options_references_and_scalars_nest() {
    let gpu = gpu();
    let inputs = array![[1.0_f32, 2.0], [3.0, 4.0]];
    let value =
        (&inputs, Some(vec![1_u8]), None::<Vec<f64>>, 7_u32, (vec![2_i32],), Diagonal::new(vec![3.0_f32]));
    let up = value.adapt(&gpu).unwrap();
    let (_, Some(_), None, 7, (_,), _): &(GpuArray<f32, Ix2>, _, Option<GpuArray<f64, Ix1>>, _, _, _) = &up
    else {
        panic!("{up:?} is not what went up");
    };
    let (x, some, none, scalar, (nested,), diagonal) = up.adapt(&Host).unwrap();
    assert_eq!((x, some, none, scalar), (inputs.clone(), Some(array![1]), None, 7));
    assert_eq!((nested, diagonal), (array![2], Diagonal::new(array![3.0])));
}

#[test]
fn a_value_on_the_host_adapts_to_the_host() {
    let value = (vec![1_i32, 2], array![3.0_f32], [true]);
    assert_eq!(value.adapt(&HostVec).unwrap(), (vec![1, 2], vec![3.0], [true]));
    assert_eq!(value.adapt(&Host).unwrap(), (array![1, 2], array![3.0], [true]));
}

#[test]
fn a_failing_part_releases_the_others_and_is_named() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    let device = Device::new(&driver, 0).unwrap();
    let pool = Pool::builder(&device).hard_limit(40 << 20).build().unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let fits = Array1::<f32>::zeros(4 << 20);
    let value = (&fits, (vec![1_u8], Some(Array1::<f32>::zeros(8 << 20))));
    let error = value.adapt(&gpu).unwrap_err();
    assert!(error.to_string().starts_with("1.1: "), "{error}");
    assert!(matches!(error.cause(), Some(ArrayError::Pool(PoolError::LimitReached { .. }))), "{error:?}");
    assert_eq!(pool.status().unwrap().in_use_bytes, 0);
    // The other part that failed has released its memory.
    assert!(matches!(fits.adapt(&gpu), Ok(array) if array.len() == 4 << 20));
}

#[test]
fn a_diagonal_prints_the_same_on_either_side() {
    let cpu = Diagonal::new(vec![1.0_f32, 2.0]);
    let up: Diagonal<GpuArray<f32, Ix1>> = cpu.adapt(&gpu()).unwrap();
    assert_eq!(cpu.to_string(), "2×2 Diagonal<Vec<f32>>:\n 1.0   ⋅\n  ⋅   2.0");
    assert_eq!(up.to_string(), "2×2 Diagonal<GpuArray<f32, Ix1>>:\n 1.0   ⋅\n  ⋅   2.0");
    assert_eq!(up.adapt(&HostVec).unwrap(), cpu);
    assert_eq!(up.shape(), [2, 2]);
}

#[test]
fn a_part_of_an_array_on_the_device_is_downloaded_alone() {
    let up = array![[1_i32, 2], [3, 4], [5, 6]].adapt(&gpu()).unwrap();
    let rows = up.slice_axis(Axis(0), (1..).into()).unwrap();
    assert_eq!(rows.adapt(&Host).unwrap(), array![[3, 4], [5, 6]]);
    let up = vec![1_i32, 2, 3].adapt(&gpu()).unwrap();
    let tail = Diagonal::new(up.slice_axis(Axis(0), (1..).into()).unwrap());
    assert_eq!(tail.to_string(), "2×2 Diagonal<GpuView<i32, Ix1>>:\n 2  ⋅\n ⋅  3");
    assert_eq!(tail.adapt(&HostVec).unwrap(), Diagonal::new(vec![2, 3]));
}

/// A driver whose copies fail once a flag is set.
unsafe extern "C" fn copy_or_refuse(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    on: CUstream,
) -> CUresult {
    match *COPY.lock().expect("no test panics with it") {
        // SAFETY: the caller guarantees what the driver's function requires.
        Some(copy) => unsafe { copy(to, from, size, on) },
        None => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

type Copy = unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
static COPY: Mutex<Option<Copy>> = Mutex::new(None);

#[test]
fn a_diagonal_that_cannot_be_downloaded_prints_the_error() {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    *COPY.lock().unwrap() = driver.table().cuMemcpyAsync;
    // SAFETY: the wrapper calls the function that it replaces, or returns one of its error codes.
    let deaf = unsafe { driver.with_table(|table| table.cuMemcpyAsync = Some(copy_or_refuse)) };
    let up = Diagonal::new(vec![1_i32]).adapt(&on(&deaf)).unwrap();
    *COPY.lock().unwrap() = None;
    let text = up.to_string();
    assert!(text.starts_with("1×1 Diagonal<GpuArray<i32, Ix1>>, not shown: "), "{text}");
    let debug = format!("{up:?}");
    assert!(debug.starts_with("Diagonal"), "{debug}");
}

/// A model type as a user would write it.
#[derive(Adapt, Debug, PartialEq)]
struct Layer<A> {
    weight: A,
    bias: Option<A>,
}

#[test]
fn a_struct_generic_over_its_storage_keeps_its_type() {
    let cpu = Layer { weight: vec![1.0_f32, 2.0], bias: Some(vec![0.5]) };
    let up: Layer<GpuArray<f32, Ix1>> = cpu.adapt(&gpu()).unwrap();
    assert_eq!(up.adapt(&HostVec).unwrap(), cpu);
}
