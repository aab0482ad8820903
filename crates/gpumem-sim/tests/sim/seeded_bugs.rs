//! Eleven bugs that a GPU hides, in small programs: the simulator finds and names each under every seed, and the corrected twin has
//! no finding under 10,000 seeds.

use super::*;
use gpumem_sim::{Effect, Finding, Rule};

const SEEDS_CORRECT: u64 = 10_000;
const SEEDS_WRONG: u64 = 50;

/// Runs a program with and without its bug.
#[track_caller]
fn seeded_bug(names: &[&str], program: impl Fn(&Machine, bool)) {
    seeded_bug_on(SimConfig::new(), names, program);
}

#[track_caller]
fn seeded_bug_on(config: SimConfig, names: &[&str], program: impl Fn(&Machine, bool)) {
    let found = |seed, is_wrong| {
        let gpu = machine(config.clone().seed(seed));
        program(&gpu, is_wrong);
        // SAFETY: a context is current.
        let _ = unsafe { gpu.cuCtxSynchronize() };
        gpu.sim().take_findings()
    };
    for seed in 0..SEEDS_WRONG {
        let findings = found(seed, true);
        let first = findings.first().map(Finding::name);
        assert!(first.is_some_and(|name| names.contains(&name)), "seed {seed}: {findings:#?}");
    }
    for seed in 0..SEEDS_CORRECT {
        let findings = found(seed, false);
        let lost = findings.iter().filter(|finding| finding.name() != "lost device");
        assert_eq!(lost.collect::<Vec<_>>(), Vec::<&Finding>::new(), "seed {seed}");
    }
}

#[test]
fn missing_wait() {
    seeded_bug(&["race between streams"], |gpu, is_wrong| {
        let (writer, reader, source, target) = (gpu.stream(), gpu.stream(), gpu.alloc(64), gpu.alloc(64));
        gpu.fill(writer, source, 7, 64);
        if !is_wrong {
            gpu.order(writer, reader);
        }
        gpu.copy(reader, target, source, 64);
    });
}

#[test]
fn freed_too_early_on_another_stream() {
    // If the free runs first, the use is a use after free.
    seeded_bug(&["free not ordered after a use", "use after free"], |gpu, is_wrong| {
        let (user, owner) = (gpu.stream(), gpu.stream());
        let memory = gpu.alloc_on(owner, 64);
        gpu.order(owner, user);
        gpu.fill(user, memory, 1, 64);
        if !is_wrong {
            gpu.order(user, owner);
        }
        gpu.free_on(owner, memory);
    });
}

#[test]
fn reuse_after_an_event_of_the_wrong_stream() {
    seeded_bug(&["race between streams"], |gpu, is_wrong| {
        let (user, bystander, next, memory) = (gpu.stream(), gpu.stream(), gpu.stream(), gpu.alloc(64));
        gpu.fill(user, memory, 1, 64);
        gpu.order(if is_wrong { bystander } else { user }, next);
        gpu.fill(next, memory, 2, 64);
    });
}

#[test]
fn use_inside_a_capture() {
    seeded_bug(&["use inside a capture"], |gpu, is_wrong| {
        let (stream, memory) = (gpu.stream(), gpu.alloc(64));
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut graph = null_mut();
        // SAFETY: handles are checked by the driver; locals outlive the calls.
        unsafe {
            gpu.cuStreamBeginCapture_v2(stream, mode).unwrap();
            gpu.fill(stream, memory, 1, 64);
            if is_wrong {
                assert!(gpu.try_sync(stream).is_err());
            }
            let ended = gpu.cuStreamEndCapture(stream, &mut graph);
            assert_eq!(ended.is_err(), is_wrong);
        }
        gpu.sync(stream);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn an_alias_used_unordered() {
    seeded_bug(&["unordered use through an alias"], |gpu, is_wrong| {
        let (first, second) = virtual_memory::aliased(gpu);
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.fill(a, first, 1, 64);
        if !is_wrong {
            gpu.order(a, b);
        }
        gpu.fill(b, second, 2, 64);
        // The mappings must live until all work on them is complete.
        gpu.sync(a);
        gpu.sync(b);
    });
}

#[test]
fn a_host_read_before_the_copy_is_done() {
    seeded_bug(&["host access not ordered with the device's"], |gpu, is_wrong| {
        let (stream, memory, host) = (gpu.stream(), gpu.alloc(64), gpu.pinned(64));
        gpu.fill(stream, memory, 1, 64);
        gpu.download_to(stream, host, memory);
        if !is_wrong {
            gpu.sync(stream);
        }
        // The program reads `host` here.
        gpu.sim().host_reads(host.as_ptr(), host.len());
    });
}

#[test]
fn a_free_on_a_lost_device() {
    let lost = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE;
    let rule = Rule::new("cuMemsetD8Async", Effect::LoseDevice { device: 0, code: lost }).nth(2);
    seeded_bug_on(SimConfig::new().rule(rule), &["lost device"], |gpu, is_wrong| {
        let (stream, memory) = (gpu.stream(), gpu.alloc(64));
        gpu.fill(stream, memory, 1, 64);
        // SAFETY: addresses and handles are checked by the driver under test.
        unsafe {
            let error = gpu.cuMemsetD8Async(memory, 2, 64, stream).unwrap_err();
            assert_eq!(error.code(), lost);
            if is_wrong {
                assert_eq!(code(gpu.cuMemFree_v2(memory)), lost);
                let findings = gpu.sim().report().findings;
                let names: Vec<_> = findings.iter().map(Finding::name).collect();
                assert_eq!(names, ["lost device", "free on a lost device"]);
            } else {
                // The memory was freed with the context.
                gpu.cuDevicePrimaryCtxReset_v2(0).unwrap();
            }
        }
    });
}

#[test]
fn a_stream_whose_context_is_gone() {
    type Use = fn(&Machine, CUstream) -> Result<(), DriverError>;
    // SAFETY: handles are checked by the driver under test.
    let uses: [Use; 4] = unsafe {
        [
            |gpu, stream| gpu.cuStreamQuery(stream),
            |gpu, stream| gpu.cuStreamDestroy_v2(stream),
            |gpu, stream| gpu.cuMemsetD8Async(gpu.alloc(64), 1, 64, stream),
            |gpu, stream| {
                let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
                gpu.cuStreamIsCapturing(stream, &mut status)
            },
        ]
    };
    for used in uses {
        seeded_bug(&["use of a stream whose context is gone"], |gpu, is_wrong| {
            let former = gpu.stream();
            // SAFETY: handles are checked by the driver under test.
            unsafe { gpu.cuDevicePrimaryCtxReset_v2(0).unwrap() };
            let context = primary(&gpu.driver, 0);
            // SAFETY: the context was retained above.
            unsafe { gpu.cuCtxSetCurrent(context).unwrap() };
            let stream = if is_wrong { former } else { gpu.stream() };
            assert_eq!(used(gpu, stream).is_err(), is_wrong);
        });
    }
}

#[test]
fn an_access_on_the_wrong_device() {
    seeded_bug_on(SimConfig::new().devices(2), &["use of another device's memory"], |gpu, is_wrong| {
        let memory = gpu.alloc(64);
        let other = primary(&gpu.driver, 1);
        // SAFETY: handles and addresses are checked by the driver under test.
        unsafe {
            gpu.cuCtxSetCurrent(other).unwrap();
            if !is_wrong {
                gpu.cuCtxEnablePeerAccess(gpu.context, 0).unwrap();
            }
            let stream = gpu.stream();
            assert_eq!(gpu.cuMemsetD8Async(memory, 1, 64, stream).is_err(), is_wrong);
            gpu.sync(stream);
        }
    });
}

#[test]
fn a_double_free() {
    seeded_bug(&["double free"], |gpu, is_wrong| {
        let stream = gpu.stream();
        let memory = gpu.alloc_on(stream, 64);
        gpu.fill(stream, memory, 1, 64);
        gpu.free_on(stream, memory);
        if is_wrong {
            // SAFETY: addresses are checked by the driver under test.
            assert!(unsafe { gpu.cuMemFreeAsync(memory, stream) }.is_err());
        }
    });
}

#[test]
fn a_read_of_stale_managed_memory() {
    seeded_bug(&["host access not ordered with the device's"], |gpu, is_wrong| {
        let (stream, mut memory) = (gpu.stream(), 0);
        // SAFETY: a local outlives the call.
        unsafe { gpu.cuMemAllocManaged(&mut memory, 64, 1).unwrap() };
        gpu.fill(stream, memory, 1, 64);
        if !is_wrong {
            gpu.sync(stream);
        }
        // The program reads `memory` here.
        gpu.sim().host_reads(std::ptr::with_exposed_provenance::<u8>(memory as usize), 64);
    });
}
