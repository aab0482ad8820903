//! Memory that host and device share: closure scopes over the program's own memory, and prefetches of unified memory.

use crate::support::{gpu, gpu_with};
use gpumem_array::ndarray::{Axis, Ix1, Slice};
use gpumem_array::pool::sys::types::{CUdevice, CUdevice_attribute, CUdeviceptr, CUresult, CUstream};
use gpumem_array::pool::{Capture, CaptureMode, Device, DeviceError, Pool, PoolError};
use gpumem_array::{ArrayError, Element, Gpu, GpuArray, PinnedArray, UnifiedArray};
use gpumem_sim::{Schedule, Sim, SimConfig};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Prefetch = unsafe extern "C" fn(CUdeviceptr, usize, CUdevice, CUstream) -> CUresult;

thread_local! {
    static REAL: Cell<Option<Prefetch>> = const { Cell::new(None) };
    /// Address, size and device of each call.
    static PREFETCHES: RefCell<Vec<(u64, usize, CUdevice)>> = const { RefCell::new(Vec::new()) };
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn prefetch(address: CUdeviceptr, size: usize, to: CUdevice, stream: CUstream) -> CUresult {
    PREFETCHES.with_borrow_mut(|calls| calls.push((address, size, to)));
    match REAL.get() {
        // SAFETY: the caller guarantees what the wrapped function requires.
        Some(real) if !REFUSES.get() => unsafe { real(address, size, to, stream) },
        _ => CUresult::CUDA_ERROR_INVALID_DEVICE,
    }
}

/// A machine whose prefetches are counted.
fn counted() -> Gpu {
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    REAL.set(driver.table().cuMemPrefetchAsync);
    // SAFETY: the function calls the one that it replaces, or fails without doing anything.
    let driver = unsafe { driver.with_table(|table| table.cuMemPrefetchAsync = Some(prefetch)) };
    Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap()
}

/// The ranges that were prefetched since the last call, from the start of `x`.
fn moved<T: Element>(x: &UnifiedArray<T, Ix1>) -> Vec<(u64, usize)> {
    let calls = PREFETCHES.with_borrow_mut(std::mem::take);
    assert!(calls.iter().all(|(.., to)| *to == 0));
    calls.into_iter().map(|(address, size, _)| (address - x.address(), size)).collect()
}

const LEN: usize = 1 << 20;
const BYTES: usize = LEN * 4;

#[test]
fn unified_memory_is_prefetched_when_the_host_may_have_moved_it() {
    let gpu = counted();
    let mut x = UnifiedArray::<f32, _>::zeros(&gpu.unified(), LEN).unwrap();
    let first = moved(&x);
    assert_eq!(first, [(0, BYTES)], "the fill");
    x += 1.0;
    let _sum = x.sum().unwrap();
    assert_eq!(moved(&x), [], "it is there");
    assert_eq!(x.as_slice().unwrap()[7], 1.0);
    x *= 2.0;
    x *= 2.0;
    assert_eq!(moved(&x), [(0, BYTES)]);
    x.as_mut_slice().unwrap()[7] = 0.0;
    x[8] = 0.0;
    assert_eq!(x.sum().unwrap().into_scalar().unwrap(), 4.0 * (LEN - 2) as f32);
    assert_eq!(moved(&x), [(0, BYTES)]);
    // Reads alternate, without a wait between them.
    assert_eq!(x[7], 0.0);
    let _sum = x.sum().unwrap();
    assert_eq!(x[7], 0.0);
    let _sum = x.sum().unwrap();
    assert_eq!(moved(&x), [(0, BYTES); 2]);
    // Copies move no pages.
    assert_eq!(x[7], 0.0);
    let _host = x.to_vec().unwrap();
    assert_eq!(moved(&x), []);
}

#[test]
fn only_the_used_range_is_prefetched() {
    let gpu = counted();
    let mut x = UnifiedArray::<f32, _>::from_slice(&gpu.unified(), &vec![1.0; LEN]).unwrap();
    assert_eq!(moved(&x), []);
    let half = (LEN / 2) as isize;
    for _ in 0..2 {
        let _sum = x.slice_axis(Axis(0), Slice::from(..half)).unwrap().sum().unwrap();
    }
    assert_eq!(moved(&x), [(0, BYTES / 2)]);
    x.slice_axis_mut(Axis(0), Slice::from(half / 2..)).unwrap().fill(2.0).unwrap();
    assert_eq!(moved(&x), [(BYTES as u64 / 2, BYTES / 2)]);
    assert_eq!(x.sum().unwrap().into_scalar().unwrap(), LEN as f32 * 1.75);
    assert_eq!(moved(&x), []);
}

#[test]
fn other_memory_is_not_prefetched_and_a_refused_prefetch_changes_nothing() {
    let gpu = counted();
    let pinned = PinnedArray::from_elem(&gpu.pinned(), 1000, 2.0_f32).unwrap();
    let device = GpuArray::from_elem(&gpu, 1000, 2.0_f32).unwrap();
    assert_eq!((&pinned + &device).sum().unwrap().into_scalar().unwrap(), 4000.0);
    assert_eq!(PREFETCHES.with_borrow(Vec::len), 0);
    REFUSES.set(true);
    let mut x = UnifiedArray::from_elem(&gpu.unified(), 1000, 2.0_f32).unwrap();
    x += &device;
    assert_eq!(x.as_slice().unwrap(), [4.0; 1000]);
    assert_eq!(moved(&x), [(0, 4000)]);
}

/// A captured prefetch would be part of the graph; a launch prefetches by itself.
#[test]
fn launches_of_graphs_prefetch() {
    let gpu = counted();
    let mut x = UnifiedArray::from_elem(&gpu.unified(), LEN, 1.0_f32).unwrap();
    assert_eq!(x[0], 1.0);
    assert_eq!(moved(&x), [(0, BYTES)]);
    let (mut graph, ()) = gpu.capture(|c| x.on_mut(c).try_add_assign(1.0)).unwrap();
    assert_eq!(moved(&x), []);
    graph.launch(&gpu).write(&mut x).run().unwrap();
    graph.launch(&gpu).write(&mut x).run().unwrap();
    assert_eq!(moved(&x), [(0, BYTES)]);
    assert_eq!(x[LEN - 1], 3.0);
}

/// The device works on the slice in place, on any stream, and its end waits.
#[test]
fn a_registered_slice_is_an_array() {
    for schedule in [Schedule::Random, Schedule::Late] {
        let gpu = gpu_with(SimConfig::new().schedule(schedule));
        let other = gpu.fork().unwrap();
        let mut table: Vec<i32> = (0..1000).collect();
        let (sum, head) = gpu
            .with_registered(&mut table, |mut x| {
                assert_eq!((x.shape(), x.gpu()), (&[1000][..], &gpu));
                x.try_add_assign(1).unwrap();
                let head = x.view().slice_axis(Axis(0), Slice::from(..10)).unwrap().to_owned().unwrap();
                x.view_mut()
                    .on_mut(&other)
                    .slice_axis_mut(Axis(0), Slice::from(..10))
                    .unwrap()
                    .fill(7)
                    .unwrap();
                (x.view().sum().unwrap(), head)
            })
            .unwrap();
        assert_eq!((table[9], table[10], table[999]), (7, 11, 1000));
        assert_eq!(sum.into_scalar().unwrap(), table.iter().sum::<i32>());
        assert_eq!(head.to_vec().unwrap(), (1..11).collect::<Vec<_>>());
        let doubled = gpu.with_registered_read_only(&table, |x| x.to_owned()).unwrap().unwrap();
        assert_eq!(doubled.to_vec().unwrap(), table);
        let downloaded = gpu.with_registered_read_only(&table, |x| x.download()).unwrap();
        assert_eq!(downloaded.wait().unwrap(), table);
        gpu.with_registered(&mut [0_u8; 0], |x| assert!(x.is_empty())).unwrap();
        let sim = Sim::of(gpu.device().driver()).unwrap();
        assert!(sim.take_findings().is_empty(), "{}", sim.report());
    }
}

#[test]
fn pageable_memory_needs_a_device_that_reads_it() {
    let gpu = gpu();
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
    let mut table = [1.0_f32; 100];
    match gpu.device().attribute(attribute).unwrap() {
        0 => {
            let refused = gpu.with_pageable(&mut table, |_| unreachable!("the device cannot access it"));
            assert!(matches!(
                refused,
                Err(ArrayError::Pool(PoolError::Device(DeviceError::HostAccess { .. })))
            ));
        }
        _ => {
            gpu.with_pageable(&mut table, |mut x| x.try_add_assign(1.0)).unwrap().unwrap();
            assert_eq!(table, [2.0; 100]);
        }
    }
}

/// The slice is the program's again, so it has valid values only, after a panic too.
#[test]
fn invalid_elements_in_a_registered_slice_are_mended() {
    let gpu = gpu();
    let bytes = GpuArray::from_slice(&gpu, &[1_u8, 2, 0, 3]).unwrap();
    for panics in [false, true] {
        let mut flags = [false; 4];
        let write = |address: u64| {
            let _bound = gpu.device().bind().unwrap();
            // SAFETY: both have four bytes. That two are no `bool` is the purpose of this test.
            unsafe { gpu.device().driver().cuMemcpy(address, bytes.address(), 4).unwrap() };
            assert!(!panics, "deliberately");
        };
        let result =
            catch_unwind(AssertUnwindSafe(|| gpu.with_registered(&mut flags, |x| write(x.address()))));
        match panics {
            true => assert!(result.is_err()),
            false => assert!(matches!(result.unwrap(), Err(ArrayError::InvalidElement { index: 1, .. }))),
        }
        assert_eq!(flags, [true, false, false, false]);
    }
}

/// A graph would use the memory after the closure.
#[test]
fn scopes_and_captures_do_not_mix() {
    let gpu = gpu();
    let mut table = [1.0_f32; 10];
    let capture = Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap();
    assert!(gpu.with_registered(&mut table, |_| ()).is_err());
    drop(capture);
    let captured = gpu.capture(|c| c.with_registered(&mut table, |_| ()));
    assert!(captured.is_err());
    // A graph of a scope cannot be launched after it.
    let graph =
        gpu.with_registered(&mut table, |mut x| gpu.capture(|c| x.view_mut().on_mut(c).try_add_assign(1.0)));
    let (mut graph, ()) = graph.unwrap().unwrap();
    assert!(matches!(graph.launch(&gpu).run(), Err(ArrayError::Graph(_))));
    assert_eq!(table, [1.0; 10]);
}
