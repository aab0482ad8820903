//! Safe programs that use adaptors, events, streams and transfers in unusual orders. None may break a capture or read foreign memory.

#![forbid(unsafe_code)]

use crate::support::gpu;
use gpumem_array::ndarray::Ix1;
use gpumem_array::pool::adaptor::{Adaptor, Budget, Grant, Guard, Next, Release, Request};
use gpumem_array::pool::{
    Capture, CaptureError, CaptureMode, DeviceError, Event, MemoryKind, Pool, PoolError, Stream,
};
use gpumem_array::{ArrayError, GpuArray};
use pollster::block_on;
use std::sync::Arc;

/// Forwards frees to the guard, but not allocations.
struct HalfGuarded(Guard);

impl Adaptor for HalfGuarded {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        match request.size_bytes() {
            // Larger, so that the guard has room for its copies.
            1 => self.0.alloc(request, next),
            _ => next.alloc(request),
        }
    }

    fn free(&self, release: &Release<'_>) {
        self.0.free(release);
    }
}

/// There may be no memory in front of such a block, which once crashed the process for host memory.
#[test]
fn a_guard_reads_only_its_own_bytes() {
    let gpu = gpu();
    for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host] {
        let adaptor = Arc::new(HalfGuarded(Guard::new()));
        let pool = Pool::builder(gpu.device()).kind(kind).adaptor(Arc::clone(&adaptor) as _).build().unwrap();
        let sizes = [1, 256, 1000, 2 << 20, 32 << 20];
        for size_bytes in sizes {
            drop(pool.alloc(size_bytes, gpu.stream()).unwrap());
        }
        gpu.synchronize().unwrap();
        assert_eq!(adaptor.0.settle(), [], "{kind}");
        let counts = (adaptor.0.checked_count(), adaptor.0.unchecked_count());
        assert_eq!(counts, (1, sizes.len() as u64 - 1), "{kind}");
    }
}

/// Forwards frees to the budget, but not allocations.
struct Muddled(Budget);

impl Adaptor for Muddled {
    fn free(&self, release: &Release<'_>) {
        self.0.free(release);
    }
}

#[test]
fn a_budget_of_less_than_nothing_is_none() {
    let gpu = gpu();
    let pool = Pool::builder(gpu.device()).adaptor(Arc::new(Muddled(Budget::new(1)))).build().unwrap();
    drop([(); 2].map(|()| pool.alloc(1 << 20, gpu.stream()).unwrap()));
}

#[test]
fn waits_for_marks_break_no_capture() {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let gpu = gpu();
        let [first, second] = [(); 2].map(|()| Stream::new(gpu.device()).unwrap());
        let (mark, blank) = (Event::new(gpu.device()).unwrap(), Event::new(gpu.device()).unwrap());
        let captures = (Capture::begin(&first, mode).unwrap(), Capture::begin(&second, mode).unwrap());
        mark.record(&first).unwrap();
        first.wait(&blank).unwrap();
        first.wait(&mark).unwrap();
        let refused = second.wait(&mark);
        assert!(
            matches!(refused, Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
            "{refused:?}"
        );
        captures.0.end().unwrap();
        let refused = second.wait(&mark);
        assert!(
            matches!(refused, Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
            "{refused:?}"
        );
        captures.1.end().unwrap();
        let refused = second.wait(&mark);
        assert!(
            matches!(refused, Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
            "{refused:?}"
        );
        mark.record(&first).unwrap();
        second.wait(&mark).unwrap();
        second.synchronize().unwrap();
        assert_eq!(gpumem_sim::Sim::of(gpu.device().driver()).unwrap().report().findings, []);
    }
}

/// The program cannot use a stream that has joined a capture and been waited for there.
#[test]
fn a_stream_that_joined_a_capture_may_be_dropped() {
    let gpu = gpu();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let before = gpumem_sim::Sim::of(gpu.device().driver()).unwrap().report().stream_count;
        let capture = Capture::begin(gpu.stream(), mode).unwrap();
        let side = Stream::new(gpu.device()).unwrap();
        side.wait_for(gpu.stream()).unwrap();
        gpu.stream().wait_for(&side).unwrap();
        drop(side);
        capture.end().unwrap();
        assert_eq!(gpumem_sim::Sim::of(gpu.device().driver()).unwrap().report().stream_count, before);
    }
}

#[test]
fn a_transfer_that_has_resolved_is_an_error_from_then_on() {
    let gpu = gpu();
    let array = GpuArray::from_elem(&gpu, 3, 1_u8).unwrap();
    let mut download = array.download();
    assert_eq!(block_on(&mut download).unwrap(), [1; 3]);
    let again = block_on(&mut download);
    assert!(matches!(again, Err(ArrayError::TransferOver)), "{again:?}");
    assert!(download.is_complete());
    assert!(matches!(download.wait(), Err(ArrayError::TransferOver)));

    let mut download = array.download_into(vec![0_u8; 3]);
    assert_eq!(block_on(&mut download).unwrap(), [1; 3]);
    let again = block_on(&mut download).unwrap_err();
    assert!(matches!(again.into_parts(), (ArrayError::TransferOver, None)));
    assert!(matches!(download.wait().unwrap_err().into_parts(), (ArrayError::TransferOver, None)));

    let mut upload = GpuArray::<_, Ix1>::upload(&gpu, vec![2_u8; 3]);
    assert_eq!(block_on(&mut upload).unwrap().1, [2; 3]);
    let again = block_on(&mut upload).unwrap_err();
    assert!(matches!(again.into_parts(), (ArrayError::TransferOver, None)));
    assert!(matches!(upload.wait().unwrap_err().into_parts(), (ArrayError::TransferOver, None)));
}
