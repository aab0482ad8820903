//! Correct programs that a careless detector would report: no findings under any seed. Some have an incorrect twin.

use super::races::{NOTHING, RACE, found};
use super::*;
use std::ptr::without_provenance_mut;

const HOST_RACE: &str = "host access not ordered with the device's";

fn record(gpu: &Machine, event: CUevent, stream: CUstream) {
    // SAFETY: handles are checked by the driver under test.
    unsafe { gpu.cuEventRecord(event, stream).unwrap() };
}

fn wait(gpu: &Machine, stream: CUstream, event: CUevent) {
    // SAFETY: handles are checked by the driver under test.
    unsafe { gpu.cuStreamWaitEvent(stream, event, 0).unwrap() };
}

/// One thread synchronises and signals another, which continues with another stream.
#[test]
fn threads_that_hand_over_by_a_channel() {
    assert_eq!(
        found(|gpu| {
            let (a, b, memory) = (gpu.stream() as usize, gpu.stream() as usize, gpu.alloc(8));
            let (driver, context) = (&gpu.driver, gpu.context as usize);
            // SAFETY: handles and addresses are checked by the driver under test.
            let work = move |stream: usize| unsafe {
                driver.cuCtxSetCurrent(without_provenance_mut(context)).unwrap();
                driver.cuMemsetD8Async(memory, 1, 8, without_provenance_mut(stream)).unwrap();
                driver.cuStreamSynchronize(without_provenance_mut(stream)).unwrap();
            };
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    work(a);
                    sender.send(()).unwrap();
                });
                scope.spawn(move || {
                    receiver.recv().unwrap();
                    work(b);
                });
            });
        }),
        NOTHING
    );
}

#[test]
fn one_event_recorded_again_and_again() {
    assert_eq!(
        found(|gpu| {
            let (a, b, c) = (gpu.stream(), gpu.stream(), gpu.stream());
            let (memory, event) = (gpu.alloc(8), gpu.event());
            gpu.fill(a, memory, 1, 4);
            record(gpu, event, a);
            wait(gpu, b, event);
            gpu.fill(a, memory + 4, 1, 4);
            record(gpu, event, a);
            wait(gpu, c, event);
            gpu.fill(b, memory, 2, 4);
            gpu.fill(c, memory + 4, 2, 4);
            record(gpu, event, b);
            wait(gpu, c, event);
            gpu.fill(c, memory, 3, 4);
            record(gpu, event, c);
            // SAFETY: handles are checked by the driver under test.
            unsafe { gpu.cuEventSynchronize(event).unwrap() };
            gpu.fill(a, memory, 4, 8);
        }),
        NOTHING
    );
}

#[test]
fn streams_that_only_the_null_stream_orders() {
    assert_eq!(
        found(|gpu| {
            let (a, b, apart) = (gpu.blocking_stream(), gpu.blocking_stream(), gpu.stream());
            let (memory, other, event) = (gpu.alloc(8), gpu.alloc(8), gpu.event());
            let between = || gpu.fill(null_mut(), other, 1, 8);
            gpu.fill(a, memory, 1, 8);
            between();
            gpu.fill(b, memory, 2, 8);
            between();
            gpu.fill(without_provenance_mut(2), memory, 3, 8);
            record(gpu, event, null_mut());
            wait(gpu, apart, event);
            gpu.fill(apart, memory, 4, 8);
        }),
        NOTHING
    );
}

/// A value orders the work before it, whether a stream operation or other work writes it.
#[test]
fn streams_that_a_value_orders() {
    let program = |gpu: &Machine, [written, waited_for]: [u64; 2], is_memset| {
        let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(8));
        gpu.fill(a, written, 0, 8);
        gpu.order(a, b);
        gpu.fill(a, memory, 1, 8);
        // SAFETY: handles and addresses are checked by the driver under test.
        unsafe {
            match is_memset {
                true => gpu.cuMemsetD32Async(written, 7, 1, a).unwrap(),
                false => gpu.cuStreamWriteValue32_v2(a, written, 7, 0).unwrap(),
            }
            gpu.cuStreamWaitValue32_v2(b, waited_for, 7, 1).unwrap();
        }
        gpu.fill(b, memory, 2, 8);
        // The mappings must live until all work on them is complete.
        gpu.sync(b);
    };
    for is_memset in [false, true] {
        assert_eq!(found(|gpu| program(gpu, [gpu.alloc(8); 2], is_memset)), NOTHING);
        #[cfg(target_os = "linux")]
        assert_eq!(
            found(|gpu| {
                let (here, there) = virtual_memory::aliased(gpu);
                program(gpu, [here, there], is_memset);
            }),
            NOTHING
        );
    }
}

#[test]
fn an_event_of_a_stream_that_is_gone() {
    assert_eq!(
        found(|gpu| {
            let (a, b, memory, event) = (gpu.stream(), gpu.stream(), gpu.alloc(8), gpu.event());
            gpu.fill(a, memory, 1, 8);
            record(gpu, event, a);
            // SAFETY: handles are checked by the driver under test.
            unsafe { gpu.cuStreamDestroy_v2(a).unwrap() };
            wait(gpu, b, event);
            // SAFETY: handles are checked by the driver under test.
            unsafe { gpu.cuEventDestroy_v2(event).unwrap() };
            gpu.fill(b, memory, 2, 8);
        }),
        NOTHING
    );
}

#[test]
fn a_writer_that_waits_for_every_reader() {
    let program = |gpu: &Machine, waits_for_both| {
        let (a, b, c, memory) = (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(8));
        let targets = [gpu.alloc(8), gpu.alloc(8)];
        gpu.fill(a, memory, 1, 8);
        gpu.order(a, b);
        gpu.order(a, c);
        gpu.copy(b, targets[0], memory, 8);
        gpu.copy(c, targets[1], memory, 8);
        gpu.order(b, a);
        if waits_for_both {
            gpu.order(c, a);
        }
        gpu.fill(a, memory, 2, 8);
    };
    assert_eq!(found(|gpu| program(gpu, true)), NOTHING);
    assert_eq!(found(|gpu| program(gpu, false)), [RACE]);
}

/// Launches of one executable are serialised, and a launch is work of its stream.
#[test]
fn a_graph_that_is_launched_on_two_streams() {
    let program = |gpu: &Machine, is_ordered| {
        let (a, b, side, memory) = (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(8));
        let (mut graph, mut exec) = (null_mut(), null_mut());
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: locals outlive the calls; handles are checked by the driver under test.
        unsafe {
            gpu.cuStreamBeginCapture_v2(a, mode).unwrap();
            gpu.fill(a, memory, 1, 8);
            gpu.order(a, side);
            gpu.fill(a, memory, 2, 4);
            gpu.fill(side, memory + 4, 2, 4);
            gpu.order(side, a);
            gpu.cuStreamEndCapture(a, &mut graph).unwrap();
            gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap();
            gpu.cuGraphDestroy(graph).unwrap();
            gpu.fill(a, memory, 0, 8);
            gpu.cuGraphLaunch(exec, a).unwrap();
            gpu.cuGraphLaunch(exec, b).unwrap();
            gpu.fill(b, memory, 3, 8);
            gpu.cuGraphExecDestroy(exec).unwrap();
        }
        if is_ordered {
            gpu.order(b, a);
        }
        gpu.fill(a, memory + 7, 4, 1);
    };
    assert_eq!(found(|gpu| program(gpu, true)), NOTHING);
    assert_eq!(found(|gpu| program(gpu, false)), [RACE]);
}

#[test]
fn pinned_memory_behind_a_query() {
    let program = |gpu: &Machine, asks| {
        let (stream, memory, host, event) = (gpu.stream(), gpu.alloc(8), gpu.pinned(8), gpu.event());
        gpu.sim().host_writes(host.as_ptr(), 8);
        gpu.upload_from(stream, memory, host.as_ptr().cast(), 8);
        record(gpu, event, stream);
        // SAFETY: handles are checked by the driver under test.
        while asks && unsafe { gpu.cuEventQuery(event).is_err() } {}
        gpu.sim().host_writes(host.as_ptr(), 8);
    };
    assert_eq!(found(|gpu| program(gpu, true)), NOTHING);
    assert_eq!(found(|gpu| program(gpu, false)), [HOST_RACE]);
}

/// Memory of the program, registered for one copy; the next buffer may have the same addresses.
#[test]
fn host_memory_that_is_registered_for_a_while() {
    assert_eq!(
        found(|gpu| {
            let memory = gpu.alloc(4096);
            for stream in [gpu.stream(), gpu.stream()] {
                let bytes = vec![0u8; 4096];
                let host = bytes.as_ptr().cast_mut().cast();
                // SAFETY: the bytes are alive until the stream is complete.
                unsafe { gpu.cuMemHostRegister_v2(host, 4096, 0).unwrap() };
                gpu.upload_from(stream, memory, bytes.as_ptr(), 4096);
                gpu.sync(stream);
                // SAFETY: no work uses the memory.
                unsafe { gpu.cuMemHostUnregister(host).unwrap() };
            }
        }),
        NOTHING
    );
}

#[test]
fn managed_memory_that_is_prefetched_on_both_ways() {
    const SIZE: usize = 1 << 20;
    assert_eq!(
        found(|gpu| {
            let (a, b, mut memory) = (gpu.stream(), gpu.stream(), 0);
            // SAFETY: a local outlives the call; addresses and handles are checked by the driver under test.
            unsafe {
                gpu.cuMemAllocManaged(&mut memory, SIZE, 1).unwrap();
                let host = std::ptr::with_exposed_provenance::<u8>(memory as usize);
                gpu.sim().host_writes(host, SIZE);
                gpu.cuMemPrefetchAsync(memory, SIZE, 0, a).unwrap();
                gpu.order(a, b);
                gpu.fill(b, memory, 1, SIZE);
                gpu.cuMemPrefetchAsync(memory, SIZE, -1, b).unwrap();
                gpu.sync(b);
                gpu.sim().host_reads(host, SIZE);
                gpu.fill(a, memory, 2, SIZE);
                gpu.sync(a);
                gpu.cuMemFree_v2(memory).unwrap();
            }
        }),
        NOTHING
    );
}

/// The blocking call returns once pageable bytes are staged: another stream must wait for the copy.
#[test]
fn an_upload_from_pageable_memory_may_outlast_the_call() {
    let program = |gpu: &Machine, stream: CUstream| {
        let memory = gpu.alloc(8);
        // SAFETY: the bytes are alive; the address is checked by the driver under test.
        unsafe { gpu.cuMemcpyHtoD_v2(memory, b"pageable".as_ptr().cast(), 8).unwrap() };
        gpu.fill(stream, memory, 1, 4);
    };
    assert_eq!(found(|gpu| program(gpu, gpu.blocking_stream())), NOTHING);
    assert_eq!(found(|gpu| program(gpu, gpu.stream())), [RACE]);
}

/// From pinned memory the call returns after the copy is complete, and so does every copy from host to host.
#[test]
fn copies_that_are_done_when_the_call_returns() {
    let upload = |gpu: &Machine| {
        let (host, memory, stream) = (gpu.pinned(8), gpu.alloc(8), gpu.stream());
        // SAFETY: pinned memory lives as long as the machine.
        unsafe { gpu.cuMemcpyHtoD_v2(memory, host.as_ptr().cast(), 8).unwrap() };
        gpu.fill(stream, memory, 1, 8);
    };
    let within_host = |gpu: &Machine| {
        let (source, target, stream) = (gpu.pinned(8), gpu.pinned(8), gpu.stream());
        let address = |host: &[Cell<u8>]| host.as_ptr().expose_provenance() as u64;
        // SAFETY: pinned memory lives as long as the machine.
        unsafe { gpu.cuMemcpyAsync(address(target), address(source), 8, stream).unwrap() };
        gpu.sim().host_reads(target.as_ptr(), 8);
    };
    assert_eq!(found(upload), NOTHING);
    assert_eq!(found(within_host), NOTHING);
}

/// Work of another device's stream must be complete before plain memory is freed: the free waits for its own device only.
#[test]
fn plain_memory_that_another_device_uses() {
    let program = |seed, waits: bool| {
        let gpu = machine(SimConfig::new().devices(2).seed(seed));
        let (memory, other) = (gpu.alloc(64), primary(&gpu.driver, 1));
        // SAFETY: handles and addresses are checked by the driver under test.
        unsafe {
            gpu.cuCtxSetCurrent(other).unwrap();
            gpu.cuCtxEnablePeerAccess(gpu.context, 0).unwrap();
            let stream = gpu.stream();
            gpu.fill(stream, memory, 1, 64);
            if waits {
                gpu.sync(stream);
            }
            gpu.cuMemFree_v2(memory).unwrap();
            let _ = gpu.cuCtxSynchronize();
        }
        gpu.sim().take_findings().len()
    };
    for seed in 0..100 {
        assert_eq!((program(seed, true), program(seed, false)), (0, 1), "seed {seed}");
    }
}
