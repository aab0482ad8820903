//! Injected faults.

use super::*;
use gpumem_sim::{Effect, FaultKind, Finding, Rule, Schedule};

const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

#[test]
fn the_nth_call_of_a_kind_fails_and_does_nothing() {
    let rule = Rule::new("cuMemAlloc*", Effect::Fail(OUT_OF_MEMORY)).nth(2);
    let gpu = machine(SimConfig::new().rule(rule));
    let codes: Vec<_> = (0..3).map(|_| code(gpu.try_alloc(16))).collect();
    assert_eq!(codes, [CUresult::CUDA_SUCCESS, OUT_OF_MEMORY, CUresult::CUDA_SUCCESS]);
    assert_eq!(gpu.sim().report().allocations.len(), 2);
}

#[test]
fn chance_comes_from_the_seed() {
    let failures = |seed| {
        let rule = Rule::new("cuMemAlloc_v2", Effect::Fail(OUT_OF_MEMORY)).chance(0.25);
        let gpu = machine(SimConfig::new().seed(seed).rule(rule));
        (0..400).map(|_| gpu.try_alloc(16).is_err()).collect::<Vec<_>>()
    };
    let first = failures(1);
    assert_eq!(first, failures(1));
    assert_ne!(first, failures(2));
    let count = first.iter().filter(|&&failed| failed).count();
    assert!((60..140).contains(&count), "{count}");
}

#[test]
fn another_process_takes_memory() {
    let rule = Rule::new("cuMemGetInfo_v2", Effect::TakeMemory { device: 0, size_bytes: 6 << 30 }).nth(2);
    let gpu = machine(SimConfig::new().memory_bytes(8 << 30).rule(rule));
    let free_bytes = || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: locals outlive the call.
        unsafe { gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
        (free, total)
    };
    assert_eq!(free_bytes(), (8 << 30, 8 << 30));
    assert_eq!(free_bytes(), (2 << 30, 8 << 30));
    assert_eq!(code(gpu.try_alloc(3 << 30)), OUT_OF_MEMORY);
    gpu.alloc(1 << 30);
    assert_eq!(gpu.sim().return_memory(0, u64::MAX), 6 << 30);
    gpu.alloc(6 << 30);
}

#[test]
fn a_lost_device_returns_its_error_until_its_context_is_destroyed() {
    let lost = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE;
    let rule = Rule::new("cuMemsetD8Async", Effect::LoseDevice { device: 0, code: lost }).nth(2);
    let gpu = machine(SimConfig::new().devices(2).rule(rule));
    let other = primary(&gpu.driver, 1);
    let (stream, memory) = (gpu.stream(), gpu.alloc(4));
    gpu.fill(stream, memory, 1, 4);
    // SAFETY: handles and addresses are checked by the driver under test.
    unsafe {
        assert_eq!(code(gpu.cuMemsetD8Async(memory, 1, 4, stream)), lost);
        assert_eq!(code(gpu.try_sync(stream)), lost);
        assert_eq!(code(gpu.try_alloc(4)), lost);
        gpu.cuCtxSetCurrent(other).unwrap();
        gpu.alloc(4);
        gpu.cuDevicePrimaryCtxReset_v2(0).unwrap();
    }
    let context = primary(&gpu.driver, 0);
    // SAFETY: the context was just retained.
    unsafe { gpu.cuCtxSetCurrent(context).unwrap() };
    gpu.alloc(4);
    let findings = gpu.sim().report().findings;
    assert!(matches!(findings[..], [Finding::Fault { kind: FaultKind::DeviceLost, .. }]), "{findings:?}");
}

#[test]
fn a_delayed_stream_runs_when_others_have_nothing_to_do() {
    let last_writer = |rules: &[Rule]| {
        let late = SimConfig::new().schedule(Schedule::Late).races(false);
        let gpu = machine(rules.iter().cloned().fold(late, SimConfig::rule));
        let (first, second, byte) = (gpu.stream(), gpu.stream(), gpu.alloc(1));
        gpu.fill(first, byte, 1, 1);
        gpu.fill(second, byte, 2, 1);
        // SAFETY: a context is current.
        unsafe { gpu.cuCtxSynchronize().unwrap() };
        gpu.download(first, byte, 1)[0]
    };
    let delay = |stream_number| {
        [Rule::new("cuStreamCreate", Effect::Delay { stream_number, step_count: 1_000 }).nth(1)]
    };
    assert_eq!([last_writer(&delay(1)), last_writer(&delay(2))], [1, 2]);
}

#[test]
fn the_report_names_seed_schedule_and_rules() {
    let rule = Rule::new("cuLaunchKernel", Effect::Fail(OUT_OF_MEMORY)).chance(0.5);
    let gpu = machine(SimConfig::new().seed(9).schedule(Schedule::Late).rule(rule));
    let text = gpu.sim().report().to_string();
    assert!(text.contains("seed 9, schedule late"), "{text}");
    assert!(text.contains("rule: cuLaunchKernel%0.5=fail:CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
}

/// With safe code alone: if a call only claims to have waited, a borrow would end while queued work uses the memory.
#[test]
fn a_machine_with_a_rule_that_could_never_apply_or_lies_does_not_start() {
    use gpumem_sim::{RuleError, SimError};
    let refusal = |rule: Rule| match gpumem_sim::driver(SimConfig::new().rule(rule)) {
        Err(SimError::Rule(error)) => error,
        other => panic!("{other:?}"),
    };
    let fail = |call| Rule::new(call, Effect::Fail(OUT_OF_MEMORY));
    assert!(
        matches!(refusal(fail("cuMemAloc*")), RuleError::UnknownCall { nearest: Some(name), .. } if name == "cuMemAlloc*")
    );
    assert!(matches!(refusal(fail("cuArrayCreate")), RuleError::LackingCall { .. }));
    assert!(matches!(refusal(fail("cuInit").nth(0)), RuleError::ZerothCall { .. }));
    assert!(matches!(refusal(fail("cuInit").chance(f64::NAN)), RuleError::BadChance { .. }));
    let lie = Rule::new("cuCtxSynchronize", Effect::Fail(CUresult::CUDA_SUCCESS));
    assert!(matches!(refusal(lie), RuleError::NoFailure { .. }));
    let elsewhere = Rule::new("cuInit", Effect::TakeMemory { device: 1, size_bytes: 1 });
    assert!(matches!(refusal(elsewhere), RuleError::UnknownDevice { device: 1, count: 1, .. }));
}

#[test]
fn a_rule_may_hold_from_the_nth_call_on() {
    let gpu = machine(SimConfig::new().rule("cuMemAlloc#2+=fail:OUT_OF_MEMORY".parse().unwrap()));
    let codes: Vec<_> = (0..4).map(|_| code(gpu.try_alloc(16))).collect();
    assert_eq!(codes, [CUresult::CUDA_SUCCESS, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY]);
}
