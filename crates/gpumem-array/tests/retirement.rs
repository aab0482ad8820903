//! A stream that another thread retires between an operation's look at it and the operation itself: the last mark, behind which
//! other streams get the memory, comes after the work.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use core::ffi::{c_uint, c_void};
use gpumem_array::pool::sys::sim::Schedule;
use gpumem_array::pool::sys::types::{CUdeviceptr, CUfunction, CUresult, CUstream};
use gpumem_array::pool::sys::{Driver, SimConfig, Table};
use gpumem_array::pool::{Device, Pool, Stream};
use gpumem_array::{Gpu, GpuArray, ndarray::Ix1};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The driver's own functions; the thread that is to be told of the next call, and its answer, which may have to wait for it.
static DRIVER: Mutex<Option<Table>> = Mutex::new(None);
static OTHER: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

fn own() -> Table {
    if let Some((tell, told)) = OTHER.lock().unwrap().take() {
        tell.send(()).unwrap();
        let _ = told.recv_timeout(Duration::from_millis(50));
    }
    DRIVER.lock().unwrap().unwrap()
}

#[allow(clippy::too_many_arguments, reason = "the driver's")]
unsafe extern "C" fn launch(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let own = own().cuLaunchKernel.unwrap();
    // SAFETY: the caller's promise, passed on.
    unsafe {
        own(
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            stream,
            parameters,
            extra,
        )
    }
}

unsafe extern "C" fn set(address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) -> CUresult {
    let own = own().cuMemsetD32Async.unwrap();
    // SAFETY: the caller's promise, passed on.
    unsafe { own(address, value, count, stream) }
}

unsafe extern "C" fn copy(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    let own = own().cuMemcpyAsync.unwrap();
    // SAFETY: the caller's promise, passed on.
    unsafe { own(to, from, size_bytes, stream) }
}

type Array = GpuArray<f32, Ix1>;
type Operation = fn(&mut Array, &Array);

#[test]
fn memory_goes_on_behind_the_last_operation_of_a_retired_stream() {
    let operations: [(&str, Operation); 3] = [
        ("a kernel", |array, _| array.try_add_assign_scalar(1.0).unwrap()),
        ("a fill", |array, _| array.fill(1.0).unwrap()),
        ("a copy", |array, source| array.assign(source).unwrap()),
    ];
    for (name, operation) in operations {
        let driver = Driver::sim(SimConfig::new().schedule(Schedule::Late)).unwrap();
        *DRIVER.lock().unwrap() = Some(*driver.table());
        // SAFETY: each wrapper calls the function that it replaces.
        let driver = unsafe {
            driver.with_table(|table| {
                table.cuLaunchKernel = Some(launch);
                table.cuMemsetD32Async = Some(set);
                table.cuMemcpyAsync = Some(copy);
            })
        };
        let device = Device::new(&driver, 0).unwrap();
        let pool = Pool::new(&device).unwrap();
        let legacy = Stream::legacy(&device).unwrap();
        let (gpu, other) = (Gpu::with_stream(&pool, &legacy).unwrap(), Gpu::new(&pool).unwrap());
        let (source, mut array) =
            (Array::zeros(&gpu, 1 << 20).unwrap(), Array::zeros(&gpu, 1 << 20).unwrap());
        let address = array.address();
        let ((tell, told), (answer, answered)) = (channel(), channel());
        *OTHER.lock().unwrap() = Some((tell, answered));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                told.recv().unwrap();
                legacy.retire().unwrap();
                let _the_call_waits_for_nobody = answer.send(());
            });
            operation(&mut array, &source);
        });
        drop(array);
        let theirs = Array::from_slice(&other, &[2.0; 1 << 20]).unwrap();
        assert_eq!(theirs.address(), address, "{name}: the test is about memory that comes again");
        device.synchronize().unwrap();
        assert!(theirs.to_vec().unwrap().iter().all(|value| *value == 2.0), "{name} came later");
        assert_eq!(driver.simulator().unwrap().report().findings, [], "{name}");
    }
}
