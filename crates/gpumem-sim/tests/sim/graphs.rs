//! Graphs under many schedules: every order that a graph's edges allow happens under some seed, and no other order under any.

use super::*;
use std::collections::BTreeSet;

const SEEDS: u64 = 400;

fn outcomes<T: Ord>(program: impl Fn(&Machine) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(|seed| program(&seeded(seed))).collect()
}

// Pointers are to locals that outlive the calls; handles and addresses are checked by the driver under test.
impl Machine {
    fn begin(&self, stream: CUstream) {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream is a handle that the driver under test checks.
        unsafe { self.cuStreamBeginCapture_v2(stream, mode).unwrap() };
    }

    /// Ends a capture and instantiates the graph, which is then destroyed.
    fn end(&self, stream: CUstream) -> CUgraphExec {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: `graph` and `exec` outlive the calls, and the graph is destroyed once, here, through its only handle.
        unsafe {
            self.cuStreamEndCapture(stream, &mut graph).unwrap();
            self.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap();
            self.cuGraphDestroy(graph).unwrap();
        }
        exec
    }

    fn launch(&self, exec: CUgraphExec, stream: CUstream) {
        // SAFETY: executable and stream are handles that the driver under test checks.
        unsafe { self.cuGraphLaunch(exec, stream).unwrap() };
    }

    fn end_exec(&self, exec: CUgraphExec) {
        // SAFETY: the driver under test checks the handle, even if it was destroyed.
        unsafe { self.cuGraphExecDestroy(exec).unwrap() };
    }
}

/// A fork with a write on both branches, joined or not before a node of a third stream. Returns the final value.
fn fork(gpu: &Machine, value_a: u8, value_b: u8) -> u8 {
    let (a, b, byte) = (gpu.stream(), gpu.stream(), gpu.alloc(1));
    gpu.begin(a);
    gpu.fill(a, byte, 9, 1);
    gpu.order(a, b);
    gpu.fill(a, byte, value_a, 1);
    gpu.fill(b, byte, value_b, 1);
    gpu.order(b, a);
    let exec = gpu.end(a);
    gpu.launch(exec, a);
    let seen = gpu.download(a, byte, 1)[0];
    gpu.end_exec(exec);
    seen
}

#[test]
fn both_orders_of_two_branches_happen_and_neither_comes_before_the_fork() {
    assert_eq!(Vec::from_iter(outcomes(|gpu| fork(gpu, 1, 2))), [1, 2]);
}

#[test]
fn branches_that_nothing_orders_race_and_edges_order() {
    for seed in 0..50 {
        let gpu = machine(SimConfig::new().seed(seed).races(true));
        fork(&gpu, 1, 2);
        let findings = gpu.sim().report().findings;
        assert_eq!(findings.len(), 1, "seed {seed}: {findings:?}");

        let gpu = machine(SimConfig::new().seed(seed).races(true));
        let (a, b, bytes) = (gpu.stream(), gpu.stream(), gpu.alloc(3));
        gpu.begin(a);
        let inner = gpu.alloc_on(a, 1);
        gpu.fill(a, bytes, 1, 3);
        gpu.order(a, b);
        gpu.copy(b, inner, bytes, 1);
        gpu.copy(a, bytes + 1, bytes, 1);
        gpu.order(b, a);
        gpu.copy(a, bytes + 2, inner, 1);
        gpu.free_on(a, inner);
        let exec = gpu.end(a);
        gpu.launch(exec, a);
        gpu.launch(exec, b);
        gpu.order(b, a);
        gpu.fill(a, bytes, 1, 3);
        gpu.end_exec(exec);
        gpu.sync(a);
        let findings = gpu.sim().report().findings;
        assert_eq!(findings, [], "seed {seed}");
    }
}

#[test]
fn edges_order_for_every_seed() {
    let seen = outcomes(|gpu| {
        let (a, b, bytes) = (gpu.stream(), gpu.stream(), gpu.alloc(4));
        gpu.begin(a);
        gpu.fill(a, bytes, 1, 1);
        gpu.order(a, b);
        gpu.copy(b, bytes + 1, bytes, 1);
        gpu.copy(a, bytes + 2, bytes, 1);
        gpu.order(b, a);
        gpu.copy(a, bytes + 3, bytes + 1, 1);
        gpu.fill(a, bytes, 8, 1);
        let exec = gpu.end(a);
        // Launched twice, on two streams: launches of one executable do not overlap.
        gpu.launch(exec, a);
        gpu.launch(exec, b);
        gpu.sync(a);
        gpu.download(b, bytes, 4)
    });
    assert_eq!(Vec::from_iter(seen), [vec![8, 1, 1, 1]]);
}

#[test]
fn a_launch_takes_its_place_in_the_stream() {
    let seen = outcomes(|gpu| {
        let (a, b, bytes) = (gpu.stream(), gpu.stream(), gpu.alloc(3));
        gpu.begin(a);
        gpu.order(a, b);
        gpu.copy(b, bytes + 1, bytes, 1);
        gpu.order(b, a);
        let exec = gpu.end(a);
        gpu.fill(a, bytes, 1, 1);
        gpu.launch(exec, a);
        gpu.fill(a, bytes, 2, 1);
        gpu.launch(exec, a);
        gpu.copy(a, bytes + 2, bytes + 1, 1);
        gpu.fill(a, bytes, 3, 1);
        gpu.end_exec(exec);
        gpu.download(a, bytes, 3)
    });
    assert_eq!(Vec::from_iter(seen), [vec![3, 2, 2]]);
}

#[test]
fn another_streams_work_comes_between_two_nodes_for_some_seed() {
    let seen = outcomes(|gpu| {
        let (a, b, bytes) = (gpu.stream(), gpu.stream(), gpu.alloc(3));
        gpu.fill(a, bytes, 0, 3);
        gpu.sync(a);
        gpu.begin(a);
        gpu.copy(a, bytes + 1, bytes, 1);
        gpu.copy(a, bytes + 2, bytes, 1);
        let exec = gpu.end(a);
        gpu.launch(exec, a);
        gpu.fill(b, bytes, 1, 1);
        gpu.sync(b);
        gpu.download(a, bytes + 1, 2)
    });
    assert_eq!(Vec::from_iter(seen), [[0, 0], [0, 1], [1, 1]]);
}

#[test]
fn the_null_stream_waits_for_a_launch_on_a_blocking_stream() {
    let seen = outcomes(|gpu| {
        let (a, b, bytes) = (gpu.blocking_stream(), gpu.stream(), gpu.alloc(2));
        gpu.fill(null_mut(), bytes, 0, 2);
        gpu.begin(b);
        gpu.fill(b, bytes, 5, 1);
        let exec = gpu.end(b);
        gpu.launch(exec, a);
        gpu.copy(null_mut(), bytes + 1, bytes, 1);
        gpu.download(null_mut(), bytes, 2)
    });
    assert_eq!(Vec::from_iter(seen), [[5, 5]]);
}

#[test]
fn a_captured_copy_reads_pageable_memory_when_it_runs() {
    let seen = outcomes(|gpu| {
        let (stream, byte) = (gpu.stream(), gpu.alloc(1));
        let host = [Cell::new(1u8)];
        gpu.begin(stream);
        gpu.upload_from(stream, byte, host.as_ptr().cast(), 1);
        let exec = gpu.end(stream);
        host[0].set(2);
        gpu.launch(exec, stream);
        host[0].set(3);
        gpu.download(stream, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [2, 3]);
}

#[test]
fn a_graphs_memory_used_before_its_node_is_found_out_for_some_seed() {
    let run = |is_ordered: bool| {
        outcomes(|gpu| {
            let (a, b) = (gpu.stream(), gpu.stream());
            gpu.begin(a);
            gpu.order(a, b);
            let inner = gpu.alloc_on(a, 512);
            if is_ordered {
                gpu.order(a, b);
            }
            gpu.fill(b, inner, 1, 512);
            gpu.order(b, a);
            gpu.free_on(a, inner);
            let exec = gpu.end(a);
            gpu.launch(exec, a);
            code(gpu.try_sync(a)).0
        })
    };
    assert_eq!(Vec::from_iter(run(true)), [CUresult::CUDA_SUCCESS.0]);
    assert_eq!(
        Vec::from_iter(run(false)),
        [CUresult::CUDA_SUCCESS.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS.0]
    );
}

#[test]
fn a_graphs_memory_counts_from_its_launch_until_it_is_trimmed_or_gone() {
    const SIZE_BYTES: usize = 6 << 20;
    for seed in 0..20 {
        let gpu = seeded(seed);
        let stream = gpu.stream();
        let free_bytes = || {
            let (mut free, mut total) = (0, 0);
            // SAFETY: locals outlive the call.
            unsafe { gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
            free
        };
        let attribute = |attribute| {
            let mut value = 0u64;
            // SAFETY: a local outlives the call.
            unsafe { gpu.cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut value).cast()).unwrap() };
            value as usize
        };
        let before = free_bytes();
        gpu.begin(stream);
        let inner = gpu.alloc_on(stream, SIZE_BYTES);
        gpu.fill(stream, inner, 1, SIZE_BYTES);
        gpu.free_on(stream, inner);
        let exec = gpu.end(stream);
        assert_eq!(free_bytes(), before);
        gpu.launch(exec, stream);
        gpu.sync(stream);
        assert_eq!(before - free_bytes(), SIZE_BYTES);
        assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
        assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), SIZE_BYTES);
        assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), SIZE_BYTES);
        // SAFETY: no pointers.
        unsafe { gpu.cuDeviceGraphMemTrim(0).unwrap() };
        assert_eq!(free_bytes(), before);
        gpu.launch(exec, stream);
        // Queued work keeps the objects that it needs alive.
        gpu.end_exec(exec);
        gpu.sync(stream);
        assert_eq!(free_bytes(), before);
        assert_eq!(gpu.sim().report().allocations, []);
        assert_eq!(gpu.sim().report().faults, [] as [String; 0]);
    }
}

#[test]
fn memory_that_leaves_a_graph_outlives_it() {
    for seed in 0..50 {
        let gpu = seeded(seed);
        let stream = gpu.stream();
        gpu.begin(stream);
        let left = gpu.alloc_on(stream, 512);
        gpu.fill(stream, left, 4, 512);
        let exec = gpu.end(stream);
        let report = gpu.sim().report();
        assert_eq!((report.allocations.len(), report.graph_count, report.executable_graph_count), (0, 0, 1));
        gpu.launch(exec, stream);
        gpu.end_exec(exec);
        assert_eq!(gpu.sim().report().allocations.len(), 1);
        assert_eq!(gpu.download(stream, left, 1), [4]);
        let report = gpu.sim().report();
        assert_eq!((report.graph_count, report.executable_graph_count), (0, 0));
        gpu.free_on(stream, left);
        assert_eq!(gpu.sim().report().allocations.len(), 0);
        gpu.sync(stream);
        assert_eq!(code(gpu.try_sync(stream)), CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn a_graph_that_does_not_fit_is_out_of_memory_and_takes_nothing() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    let stream = gpu.stream();
    gpu.begin(stream);
    let addresses = [gpu.alloc_on(stream, 40 << 20), gpu.alloc_on(stream, 40 << 20)];
    addresses.into_iter().for_each(|address| gpu.free_on(stream, address));
    let exec = gpu.end(stream);
    // SAFETY: handles are checked by the driver under test.
    let launched = unsafe { gpu.cuGraphLaunch(exec, stream) };
    assert_eq!(code(launched), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    gpu.alloc(60 << 20);
}

#[test]
fn a_capture_goes_with_its_context() {
    let gpu = seeded(1);
    let stream = gpu.stream();
    gpu.begin(stream);
    // SAFETY: device 0's primary context was retained once; it is retained again.
    unsafe {
        gpu.cuDevicePrimaryCtxRelease_v2(0).unwrap();
        let context = primary(&gpu, 0);
        gpu.cuCtxSetCurrent(context).unwrap();
    }
    // A plain allocation would be refused if the capture were still open.
    gpu.alloc(1);
}
