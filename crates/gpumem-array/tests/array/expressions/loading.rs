//! The first use of an expression: its kernel is loaded once for all threads and `Gpu`s of a device, and only those that need it wait.

use gpumem_array::ndarray::{Axis, Ix1, Ix2, s};
use gpumem_array::pool::sys::types::{CUfunction, CUmodule, CUresult, CUstream};
use gpumem_array::pool::{Device, Pool};
use gpumem_array::{ArrayError, Gpu, GpuArray, update};
use gpumem_sim::SimConfig;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, c_uint, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

type LoadData = unsafe extern "C" fn(*mut CUmodule, *const c_void) -> CUresult;

/// The simulator's function that [`slow_load`] calls. Each simulator has its own functions, so tests share no static for them.
static SLOW_LOAD: OnceLock<LoadData> = OnceLock::new();
/// The simulator's function that [`counted_load`] calls.
static COUNTED_LOAD: OnceLock<LoadData> = OnceLock::new();
static LOADS: AtomicUsize = AtomicUsize::new(0);
/// How many loads of texts with a square root have begun, and whether they may go on.
static SLOW: Mutex<(usize, bool)> = Mutex::new((0, false));
static CHANGED: Condvar = Condvar::new();

/// Loads a module; a text with a square root when it may.
unsafe extern "C" fn slow_load(module: *mut CUmodule, image: *const c_void) -> CUresult {
    LOADS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the caller passes a text that ends with a zero.
    if unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().contains("sqrt.rn") {
        let mut slow = SLOW.lock().unwrap();
        slow.0 += 1;
        CHANGED.notify_all();
        drop(CHANGED.wait_timeout_while(slow, Duration::from_secs(60), |slow| !slow.1).unwrap());
    }
    let Some(load) = SLOW_LOAD.get() else { return CUresult::CUDA_ERROR_UNKNOWN };
    // SAFETY: these are the arguments of the caller.
    unsafe { load(module, image) }
}

thread_local!(static LOADS_HERE: Cell<usize> = const { Cell::new(0) });

/// Loads a module, and counts it for this thread.
unsafe extern "C" fn counted_load(module: *mut CUmodule, image: *const c_void) -> CUresult {
    LOADS_HERE.set(LOADS_HERE.get() + 1);
    let Some(load) = COUNTED_LOAD.get() else { return CUresult::CUDA_ERROR_UNKNOWN };
    // SAFETY: these are the arguments of the caller.
    unsafe { load(module, image) }
}

/// The system's allocator, with a count for each thread.
struct Counted;

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

// SAFETY: these are the functions of the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending is not counted.
        let _ended = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    // The functions that the trait provides would write all bytes, and copy those of every array that grows.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _ended = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let _ended = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Launches nothing.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
unsafe extern "C" fn launch(
    _: CUfunction,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: CUstream,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// Measured in a process of its own: while another test captures, arrays note their uses for it, and allocate.
#[test]
fn a_repeated_expression_allocates_nothing() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output =
        alone.args(["expressions::loading::repeated_alone", "--exact", "--ignored"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a_repeated_expression_allocates_nothing starts it"]
fn repeated_alone() {
    let sim = gpumem_sim::driver(SimConfig::new()).unwrap();
    // SAFETY: the function has the signature of the one that it replaces, and queues nothing.
    let driver = unsafe { sim.with_table(|table| table.cuLaunchKernel = Some(launch)) };
    let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    // The simulator allocates where a call makes the context current.
    let _bound = gpu.device().bind().unwrap();
    let [mut x, mut y] = [(); 2].map(|()| GpuArray::<f32, _>::zeros(&gpu, (3, 5)).unwrap());
    let row = GpuArray::<f32, _>::zeros(&gpu, 5).unwrap();
    let allocations = |work: &mut dyn FnMut()| {
        (0..3).for_each(|_| work());
        let before = ALLOCATIONS.get();
        (0..10).for_each(|_| work());
        ALLOCATIONS.get() - before
    };
    assert_eq!(allocations(&mut || y.assign_expr(x.lazy() * 2.0 + (row.lazy() - &row).exp()).unwrap()), 0);
    assert_eq!(allocations(&mut || y.try_sub_assign(&row).unwrap()), 0);
    assert_eq!(allocations(&mut || update((&mut x, &mut y), |(x, y)| (x + y, y - &row)).unwrap()), 0);
    assert_ne!(allocations(&mut || drop(Box::new(0))), 0);
}

#[test]
fn what_was_loaded_ahead_is_not_loaded_again() {
    type Matrix = GpuArray<f32, Ix2>;
    fn step(
        gpu: &Gpu,
        (x, long): (&Matrix, &GpuArray<f32, Ix1>),
        (p, v): (&mut Matrix, &mut Matrix),
    ) -> Result<(), ArrayError> {
        let (x, mut p, mut v) = (x.on(gpu), p.on_mut(gpu), v.on_mut(gpu));
        update((&mut p, &mut v), |(p, v)| (p + v * 0.5, v - x.lazy()))?;
        p.view_mut().slice_mut(s![1.., ..])?.assign_expr((x.slice(s![..2, ..])?.lazy() * 3.0).exp())?;
        p.try_add_assign(1.0)?;
        x.lazy().insert_axis(Axis(1)).mean_axis(Axis(0))?;
        (long.on(gpu).lazy() * 2.0).norm()?;
        long.on(gpu).lazy().gt(0.0).any()?;
        (x.t().lazy() * 2.0).eval()?;
        x.dot(&x.t())?;
        Ok(())
    }
    let sim = gpumem_sim::driver(SimConfig::new()).unwrap();
    // SAFETY: the function has the signature of the one that it replaces, and calls it.
    let driver = unsafe {
        sim.with_table(|table| {
            COUNTED_LOAD.get_or_init(|| table.cuModuleLoadData.unwrap());
            table.cuModuleLoadData = Some(counted_load);
        })
    };
    let gpu = Gpu::new(&Pool::new(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let x = GpuArray::from_elem(&gpu, (3, 5), 2.0_f32).unwrap();
    let long = GpuArray::from_elem(&gpu, 100_000, 1.0_f32).unwrap();
    let [mut p, mut v] = [(); 2].map(|()| GpuArray::from_elem(&gpu, (3, 5), 7.0_f32).unwrap());
    let before = LOADS_HERE.get();
    gpu.preload_for(|c| step(c, (&x, &long), (&mut p, &mut v))).unwrap();
    let loaded = LOADS_HERE.get();
    assert!(loaded >= before + 8, "each operation has a kernel of its own");
    assert_eq!((p.to_vec().unwrap(), v.to_vec().unwrap()), (vec![7.0; 15], vec![7.0; 15]), "nothing has run");
    step(&gpu, (&x, &long), (&mut p, &mut v)).unwrap();
    assert_eq!(v.to_vec().unwrap(), [5.0; 15]);
    assert_eq!(LOADS_HERE.get(), loaded);
    (x.lazy() / 2.0).eval().unwrap();
    assert_eq!(LOADS_HERE.get(), loaded + 1, "a kernel that was not loaded ahead");
}

#[test]
fn only_threads_that_need_a_kernel_wait_while_it_is_loaded() {
    let sim = gpumem_sim::driver(SimConfig::new()).unwrap();
    // SAFETY: the function has the signature of the one that it replaces, and calls it.
    let driver = unsafe {
        sim.with_table(|table| {
            SLOW_LOAD.get_or_init(|| table.cuModuleLoadData.unwrap());
            table.cuModuleLoadData = Some(slow_load);
        })
    };
    let pool = Pool::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let gpu = Gpu::new(&pool).unwrap();
    let host = [1.0_f32, 4.0];
    let add = |gpu: &Gpu| {
        let x = GpuArray::from_slice(gpu, &host).unwrap();
        assert_eq!((x.lazy() + 1.0).eval().unwrap().to_vec().unwrap(), [2.0, 5.0]);
    };
    let root = |gpu: &Gpu| {
        let x = GpuArray::from_slice(gpu, &host).unwrap();
        assert_eq!(x.lazy().sqrt().eval().unwrap().to_vec().unwrap(), [1.0, 2.0]);
    };
    add(&gpu);
    std::thread::scope(|scope| {
        let roots = [(); 4].map(|()| {
            let gpu = gpu.fork().unwrap();
            scope.spawn(move || root(&gpu))
        });
        let slow = SLOW.lock().unwrap();
        let (slow, timeout) =
            CHANGED.wait_timeout_while(slow, Duration::from_secs(60), |slow| slow.0 == 0).unwrap();
        assert!(!timeout.timed_out());
        drop(slow);
        // A kernel that is there, and another that is not.
        add(&gpu);
        let x = GpuArray::from_slice(&gpu, &host).unwrap();
        assert_eq!((x.lazy() * 2.0).eval().unwrap().to_vec().unwrap(), [2.0, 8.0]);
        assert!(roots.iter().all(|thread| !thread.is_finished()));
        SLOW.lock().unwrap().1 = true;
        CHANGED.notify_all();
    });
    assert_eq!(SLOW.lock().unwrap().0, 1, "four threads needed it");
    let x = GpuArray::from_slice(&gpu, &host).unwrap();
    gpu.preload_for(|c| (x.on(c).lazy() + 3.0).exp().eval()).unwrap();
    let before = LOADS.load(Ordering::SeqCst);
    (x.lazy() + 4.0).exp().eval().unwrap();
    root(&Gpu::new(&pool).unwrap());
    add(&Gpu::new(&Pool::new(gpu.device()).unwrap()).unwrap());
    assert_eq!(LOADS.load(Ordering::SeqCst), before, "all `Gpu`s of a device have the same kernels");
}
