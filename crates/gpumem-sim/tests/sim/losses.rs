//! A device lost at any call of a program: nothing hangs, every call on the context returns the error, and the end of the context
//! frees everything.

use super::*;
use gpumem_sim::{Effect, Finding, Rule, Schedule};
use std::ptr::without_provenance_mut;

const LOST: CUresult = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE;

/// One call of each kind; failing calls are skipped. Returns the result of each call on the context.
fn everything(gpu: &Machine) -> Vec<(&'static str, CUresult)> {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let mut codes = Vec::new();
    let mut say = |call: &'static str, result: Result<(), DriverError>| codes.push((call, code(result)));
    let (mut a, mut b, mut event) = (null_mut(), null_mut(), null_mut());
    let (mut plain, mut pooled, mut managed, mut free, mut total) = (0, 0, 0, 0, 0);
    let (mut host, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: locals outlive the work, which is synchronised at the end; the driver under test checks handles, including null
    // ones.
    unsafe {
        say("cuStreamCreate", gpu.cuStreamCreate(&mut a, 1));
        say("cuStreamCreate", gpu.cuStreamCreate(&mut b, 0));
        say("cuEventCreate", gpu.cuEventCreate(&mut event, 2));
        say("cuMemAlloc_v2", gpu.cuMemAlloc_v2(&mut plain, 4096));
        say("cuMemAllocManaged", gpu.cuMemAllocManaged(&mut managed, 4096, 1));
        say("cuMemHostAlloc", gpu.cuMemHostAlloc(&mut host, 64, 0));
        say("cuMemAllocAsync", gpu.cuMemAllocAsync(&mut pooled, 4096, a));
        say("cuMemsetD8Async", gpu.cuMemsetD8Async(pooled, 1, 64, a));
        say("cuMemcpyDtoHAsync_v2", gpu.cuMemcpyDtoHAsync_v2(host, pooled, 64, a));
        say("cuEventRecord", gpu.cuEventRecord(event, a));
        say("cuStreamWaitEvent", gpu.cuStreamWaitEvent(b, event, 0));
        say("cuMemcpyDtoDAsync_v2", gpu.cuMemcpyDtoDAsync_v2(plain, pooled, 64, b));
        say("cuLaunchHostFunc", gpu.cuLaunchHostFunc(b, Some(nothing), null_mut()));
        say("cuMemsetD8Async", gpu.cuMemsetD8Async(managed, 1, 64, null_mut()));
        say("cuStreamWriteValue32_v2", gpu.cuStreamWriteValue32_v2(b, plain, 7, 0));
        say("cuStreamWaitValue32_v2", gpu.cuStreamWaitValue32_v2(b, plain, 7, 1));
        say("cuEventRecord", gpu.cuEventRecord(event, b));
        say("cuStreamWaitEvent", gpu.cuStreamWaitEvent(a, event, 0));
        say("cuMemFreeAsync", gpu.cuMemFreeAsync(pooled, a));
        say("cuStreamBeginCapture_v2", gpu.cuStreamBeginCapture_v2(a, mode));
        say("cuMemsetD8Async", gpu.cuMemsetD8Async(plain, 1, 64, a));
        say("cuStreamEndCapture", gpu.cuStreamEndCapture(a, &mut graph));
        let _ = gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0);
        say("cuGraphLaunch", gpu.cuGraphLaunch(exec, a));
        let _ = gpu.cuGraphExecDestroy(exec);
        let _ = gpu.cuGraphDestroy(graph);
        say("cuMemGetInfo_v2", gpu.cuMemGetInfo_v2(&mut free, &mut total));
        say("cuEventSynchronize", gpu.cuEventSynchronize(event));
        say("cuStreamSynchronize", gpu.cuStreamSynchronize(a));
        say("cuStreamSynchronize", gpu.cuStreamSynchronize(b));
        say("cuCtxSynchronize", gpu.cuCtxSynchronize());
        // Freeing a null address is not an error.
        for memory in [plain, managed].into_iter().filter(|&memory| memory != 0) {
            say("cuMemFree_v2", gpu.cuMemFree_v2(memory));
        }
        say("cuMemFreeHost", gpu.cuMemFreeHost(host));
    }
    codes
}

#[test]
fn a_device_lost_at_any_call() {
    let mut lost_count = 0;
    for seed in 0..8 {
        let length = {
            let gpu = seeded(seed);
            let codes = everything(&gpu);
            assert!(codes.iter().all(|&(_, code)| code == CUresult::CUDA_SUCCESS), "{codes:?}");
            codes.len() as u64
        };
        // The first two calls retain the context and make it current. The results of three more calls are not in the list.
        for nth in 3..length + 6 {
            let rule = Rule::new("*", Effect::LoseDevice { device: 0, code: LOST }).nth(nth);
            let gpu = machine(SimConfig::new().seed(seed).rule(rule));
            let codes = everything(&gpu);
            let first = codes.iter().position(|&(_, code)| code == LOST);
            let behind = &codes[first.unwrap_or(codes.len())..];
            lost_count += usize::from(first.is_some());
            // An event that could not be created is an invalid handle.
            let is_refused = |code| [LOST, CUresult::CUDA_ERROR_INVALID_HANDLE].contains(&code);
            assert!(behind.iter().all(|&(_, code)| is_refused(code)), "seed {seed}, call {nth}: {behind:?}");
            assert_is_new_behind_a_reset(&gpu);
            let findings = gpu.sim().take_findings();
            let silent = findings.iter().filter(|finding| finding.is_silent());
            assert_eq!(silent.collect::<Vec<_>>(), Vec::<&Finding>::new(), "seed {seed}, call {nth}");
        }
    }
    assert!(lost_count > 200, "{lost_count}");
}

/// After the context is destroyed, a new one works, and all memory is free.
fn assert_is_new_behind_a_reset(gpu: &Machine) {
    // SAFETY: locals outlive the calls; handles and addresses are checked by the driver under test.
    unsafe {
        gpu.cuDevicePrimaryCtxReset_v2(0).unwrap();
        gpu.cuCtxSetCurrent(primary(&gpu.driver, 0)).unwrap();
        let (mut free, mut total) = (0, 0);
        gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap();
        assert_eq!(free, total);
    }
    let memory = gpu.alloc(8);
    gpu.fill(null_mut(), memory, 3, 8);
    assert_eq!(gpu.download(null_mut(), memory, 8), [3; 8]);
    let report = gpu.sim().report();
    assert_eq!((report.allocations.len(), report.stream_count, report.event_count), (1, 0, 0), "{report}");
}

/// Each thread captures on streams of its own while others capture, launch and free.
#[test]
fn threads_that_capture_at_once() {
    for seed in 0..20 {
        let gpu = seeded(seed);
        let (driver, context) = (&gpu.driver, gpu.context as usize);
        std::thread::scope(|scope| {
            for value in 1..5_u8 {
                scope.spawn(move || {
                    // SAFETY: the context is alive.
                    unsafe { driver.cuCtxSetCurrent(without_provenance_mut(context)).unwrap() };
                    let gpu = Machine { driver: driver.clone(), context: without_provenance_mut(context) };
                    (0..10).for_each(|_| capture_and_launch(&gpu, value));
                });
            }
        });
        let report = gpu.sim().report();
        assert_eq!(report.silent_findings(), [], "seed {seed}");
        assert_eq!((report.graph_count, report.executable_graph_count, report.faults.len()), (0, 0, 0));
    }
}

fn capture_and_launch(gpu: &Machine, value: u8) {
    let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(64));
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: locals outlive the calls; handles and addresses are checked by the driver under test.
    unsafe {
        gpu.cuStreamBeginCapture_v2(a, mode).unwrap();
        let inner = gpu.alloc_on(a, 64);
        gpu.fill(a, inner, value, 64);
        gpu.order(a, b);
        gpu.copy(b, memory, inner, 32);
        gpu.copy(a, memory + 32, inner, 32);
        gpu.order(b, a);
        gpu.free_on(a, inner);
        gpu.cuStreamEndCapture(a, &mut graph).unwrap();
        gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap();
        gpu.cuGraphDestroy(graph).unwrap();
        gpu.cuGraphLaunch(exec, a).unwrap();
        gpu.cuGraphLaunch(exec, a).unwrap();
        assert_eq!(gpu.download(a, memory, 64), [value; 64]);
        gpu.cuGraphExecDestroy(exec).unwrap();
        gpu.cuMemFree_v2(memory).unwrap();
        gpu.cuStreamDestroy_v2(a).unwrap();
        gpu.cuStreamDestroy_v2(b).unwrap();
    }
}

/// The loss ends the work of a device, and the error says so: memory of another device that it used is free of it.
#[test]
fn memory_of_another_device_outlives_the_loss() {
    let effect = Effect::LoseDevice { device: 0, code: LOST };
    let config = SimConfig::new().devices(2).schedule(Schedule::Early);
    let gpu = machine(config.rule(Rule::new("cuCtxGetStreamPriorityRange", effect)));
    let (other, stream, here) = (primary(&gpu, 1), gpu.stream(), gpu.alloc(64));
    // SAFETY: addresses and handles are checked by the driver under test; the locals outlive the calls.
    unsafe {
        gpu.cuCtxSetCurrent(other).unwrap();
        let there = gpu.alloc(64);
        gpu.cuMemsetD8_v2(there, 1, 64).unwrap();
        gpu.cuCtxSynchronize().unwrap();
        gpu.cuCtxSetCurrent(gpu.context).unwrap();
        gpu.cuMemcpyPeerAsync(here, gpu.context, there, other, 64, stream).unwrap();
        let (mut least, mut greatest) = (0, 0);
        assert_eq!(code(gpu.cuCtxGetStreamPriorityRange(&mut least, &mut greatest)), LOST);
        gpu.cuCtxSetCurrent(other).unwrap();
        gpu.cuMemFree_v2(there).unwrap();
    }
    let findings = gpu.sim().take_findings();
    assert_eq!(findings.iter().map(Finding::name).collect::<Vec<_>>(), ["lost device"]);
}
