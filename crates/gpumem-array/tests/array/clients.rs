//! Programs without `unsafe` that would access host memory while a device may use it, if only a destructor prevented that.

#![forbid(unsafe_code)]

use crate::support::gpu;
use gpumem_array::GpuArray;
use gpumem_array::pool::{Capture, CaptureMode, DeviceError, HostMemory};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// A forgotten owner, or one in a reference cycle, leaks its buffer.
#[test]
fn an_owner_that_never_drops_leaks_its_buffer() {
    struct Cycle {
        _memory: HostMemory<Vec<u8>>,
        own: RefCell<Option<Rc<Cycle>>>,
    }
    let gpu = gpu();
    std::mem::forget(HostMemory::register(gpu.device(), vec![1_u8; 4096]).unwrap());
    let memory = HostMemory::register(gpu.device(), vec![2_u8; 4096]).unwrap();
    let cycle = Rc::new(Cycle { _memory: memory, own: RefCell::new(None) });
    *cycle.own.borrow_mut() = Some(Rc::clone(&cycle));
    drop(cycle);
    // Other memory of the same size can be pinned.
    for _ in 0..8 {
        let table = HostMemory::register(gpu.device(), vec![3_u8; 4096]).unwrap().into_inner().unwrap();
        assert_eq!(table, [3; 4096]);
    }
}

/// If a closure panics, or leaks its handle, the registration still ends.
#[test]
fn a_slice_can_be_registered_again_whatever_the_closure_did() {
    let gpu = gpu();
    let mut table = vec![1_u8; 4096];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        gpu.device().with_host_memory(&mut table, |_| std::panic::resume_unwind(Box::new("on purpose")))
    }));
    assert!(panicked.is_err());
    gpu.device().with_host_memory(&mut table, |memory| Box::leak(Box::new(memory)).size_bytes()).unwrap();
    let nested = gpu.device().with_host_memory(&mut table, |memory| {
        assert_eq!(memory.size_bytes(), 4096);
        GpuArray::from_slice(&gpu, &[5_u8; 8]).unwrap().to_vec().unwrap()
    });
    assert_eq!(nested.unwrap(), [5; 8]);
    // While devices only read a slice, the host may read it and copy from it.
    let copied = gpu.device().with_host_memory_read_only(&table, |_| {
        let array = GpuArray::from_slice(&gpu, &table).unwrap();
        array.to_vec().unwrap()
    });
    assert_eq!(copied.unwrap(), table);
}

/// A capture that is open when the memory ends stays valid, and the copy that the capture refuses does not begin.
#[test]
fn a_capture_that_is_open_stays_whole() {
    let gpu = gpu();
    let mut table = vec![1_u8; 4096];
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let mut array = GpuArray::from_slice(&gpu, &table).unwrap();
        let shared: Arc<[u8]> = table.as_slice().into();
        let owned = HostMemory::register_read_only(gpu.device(), Arc::clone(&shared)).unwrap();
        let capture =
            gpu.device().with_host_memory(&mut table, |_| Capture::begin(gpu.stream(), mode).unwrap());
        let refused = array.copy_from_slice(&shared).unwrap_err();
        assert!(refused.to_string().contains("an upload from borrowed memory"), "{refused}");
        drop(owned);
        capture.unwrap().end().unwrap();
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}

/// An error returns the arguments of the call.
#[test]
fn a_buffer_that_cannot_be_registered_is_returned() {
    let gpu = gpu();
    let table: &'static [u8] = Vec::leak(vec![1_u8; 4096]);
    let first = HostMemory::register_read_only(gpu.device(), table).unwrap();
    let refused = HostMemory::register_read_only(gpu.device(), table).unwrap_err();
    assert!(matches!(refused.error(), DeviceError::Driver(_)), "{refused}");
    assert_eq!(refused.into_value().as_ptr(), first.into_inner().unwrap().as_ptr());
}
