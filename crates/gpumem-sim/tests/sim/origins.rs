//! The origin of an allocation, in the findings about it.

use super::*;
use core::hint::black_box;
use gpumem_sim::{Finding, Kernel, Schedule};

fn watched() -> Machine {
    machine(SimConfig::new().seed(1).backtraces(true))
}

// The results pass through `black_box`, because a call at the end of a function may replace its frame.
#[inline(never)]
fn allocates_plain_memory(gpu: &Machine) -> u64 {
    black_box(gpu.alloc(100))
}

#[inline(never)]
fn allocates_from_a_pool(gpu: &Machine, stream: CUstream) -> u64 {
    black_box(gpu.alloc_on(stream, 100))
}

#[inline(never)]
fn allocates_again(gpu: &Machine, stream: CUstream) -> u64 {
    black_box(gpu.alloc_on(stream, 100))
}

/// Checks that there is one finding, that it names the place of the allocation and no internal function, and that it is short.
#[track_caller]
fn assert_says(findings: &[Finding], place: &str) {
    assert_eq!(findings.len(), 1, "{findings:?}");
    let text = findings[0].to_string();
    assert!(text.contains(place) && text.contains("origins.rs:"), "{text}");
    assert!(!text.contains("call.rs") && !text.contains("/rustc/"), "{text}");
}

#[test]
fn a_use_after_free_says_where() {
    let gpu = machine(SimConfig::new().schedule(Schedule::Late).backtraces(true));
    let (a, b) = (gpu.stream(), gpu.stream());
    let memory = allocates_from_a_pool(&gpu, a);
    gpu.sync(a);
    gpu.fill(b, memory, 1, 100);
    gpu.free_on(a, memory);
    // Another place in the program reuses the address.
    assert_eq!(allocates_again(&gpu, a), memory);
    gpu.free_on(a, memory);
    gpu.sync(a);
    assert_eq!(code(gpu.try_sync(b)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let findings = gpu.sim().report().findings;
    assert_eq!(findings[0].name(), "use after free");
    assert_says(&findings, "allocates_again");
}

#[test]
fn a_use_out_of_bounds_says_where() {
    static KERNELS: [Kernel; 1] = [Kernel::new("stray", |launch| {
        let address = launch.arg::<u64>()?;
        launch.read::<u8>(address, 101).map(drop)
    })];
    let gpu = watched();
    gpu.sim().register(&KERNELS);
    let memory = allocates_plain_memory(&gpu);
    let ptx = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry stray(.param .u64 p) { ret; }";
    let (mut module, mut function) = (null_mut(), null_mut());
    let mut parameters = [(&raw const memory).cast_mut().cast()];
    // SAFETY: the pointers are to locals that outlive the calls, as large as the signature says.
    unsafe {
        gpu.cuModuleLoadData(&mut module, ptx.as_ptr().cast()).unwrap();
        gpu.cuModuleGetFunction(&mut function, module, c"stray".as_ptr()).unwrap();
        let (stream, parameters) = (gpu.stream(), parameters.as_mut_ptr());
        gpu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, null_mut()).unwrap();
        assert_eq!(code(gpu.cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let findings = gpu.sim().report().findings;
    assert_eq!(findings[0].name(), "use out of bounds");
    assert_says(&findings, "allocates_plain_memory");
}

#[test]
fn a_race_says_where() {
    let gpu = watched();
    let memory = allocates_plain_memory(&gpu);
    gpu.fill(gpu.stream(), memory, 1, 100);
    gpu.fill(gpu.stream(), memory, 2, 100);
    // SAFETY: a context is current.
    unsafe { gpu.cuCtxSynchronize().unwrap() };
    assert_says(&gpu.sim().report().findings, "allocates_plain_memory");
}

#[test]
fn a_leak_says_where() {
    let gpu = watched();
    allocates_plain_memory(&gpu);
    assert_says(&gpu.sim().report().silent_findings(), "allocates_plain_memory");
}

#[test]
fn without_asking_there_is_the_call_and_the_thread_only() {
    let gpu = seeded(1);
    allocates_plain_memory(&gpu);
    let findings = gpu.sim().report().silent_findings();
    let [Finding::Leak { allocation }] = &findings[..] else { panic!("{findings:?}") };
    assert!(
        allocation.stack.is_none() && allocation.call > 0 && allocation.thread.contains("without_asking")
    );
    assert!(!findings[0].to_string().contains("allocates_plain_memory"));
}
