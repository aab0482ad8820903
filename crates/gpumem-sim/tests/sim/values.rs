//! Values in memory that streams wait for, on many schedules.

use super::*;

/// Writes bytes and then a flag on one stream; another stream waits for the flag, or does not, and copies.
fn hand_over(gpu: &Machine, waits: bool) -> u8 {
    let (writer, reader) = (gpu.stream(), gpu.stream());
    let (flag, bytes) = (gpu.alloc(8), gpu.alloc(2));
    gpu.fill(writer, flag, 0, 8);
    gpu.fill(writer, bytes, 1, 2);
    gpu.sync(writer);
    // SAFETY: handles and addresses are checked by the driver under test.
    unsafe {
        if waits {
            gpu.cuStreamWaitValue64_v2(reader, flag, 5, 0).unwrap();
        }
        gpu.copy(reader, bytes + 1, bytes, 1);
        gpu.fill(writer, bytes, 2, 1);
        gpu.cuStreamWriteValue64_v2(writer, flag, 5, 0).unwrap();
    }
    gpu.download(reader, bytes + 1, 1)[0]
}

#[test]
fn a_value_orders_for_every_seed_and_nothing_else_does() {
    let seen = |waits| {
        let outcomes = (0..500).map(|seed| hand_over(&seeded(seed), waits));
        Vec::from_iter(outcomes.collect::<std::collections::BTreeSet<_>>())
    };
    assert_eq!(seen(true), [2]);
    assert_eq!(seen(false), [1, 2]);
}

#[test]
fn a_value_orders_for_the_race_detector_and_nothing_else_does() {
    for seed in 0..50 {
        for waits in [true, false] {
            let gpu = machine(SimConfig::new().seed(seed).races(true));
            hand_over(&gpu, waits);
            // SAFETY: no pointers.
            unsafe { gpu.cuCtxSynchronize().unwrap() };
            let findings = gpu.sim().report().findings;
            assert_eq!(findings.is_empty(), waits, "seed {seed}: {findings:?}");
        }
    }
}

#[test]
fn a_thread_that_waits_sleeps_until_another_writes() {
    for seed in 0..20 {
        let gpu = seeded(seed);
        let (stream, flag) = (gpu.stream(), gpu.alloc(4));
        gpu.fill(stream, flag, 0, 4);
        // SAFETY: handles and addresses are checked by the driver under test.
        unsafe { gpu.cuStreamWaitValue32_v2(stream, flag, 7, 1).unwrap() };
        let (driver, context) = (gpu.driver.clone(), gpu.context as usize);
        let writer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let mut other = null_mut();
            // SAFETY: a local outlives the calls; the context is alive.
            unsafe {
                driver.cuCtxSetCurrent(context as CUcontext).unwrap();
                driver.cuStreamCreate(&mut other, 1).unwrap();
                driver.cuStreamWriteValue32_v2(other, flag, 7, 0).unwrap();
            }
        });
        gpu.sync(stream);
        writer.join().unwrap();
        assert_eq!(gpu.download(stream, flag, 4), [7, 0, 0, 0]);
    }
}

#[test]
fn a_batch_waits_and_writes_in_order() {
    let gpu = seeded(3);
    let (stream, words) = (gpu.stream(), gpu.alloc(8));
    gpu.fill(stream, words, 0, 8);
    let mut operations = [CUstreamBatchMemOpParams::default(); 2];
    operations[0].writeValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        address: words,
        __bindgen_anon_1: CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
            value: 6,
        },
        flags: 0,
        alias: 0,
    };
    operations[1].waitValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
        address: words,
        __bindgen_anon_1: CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
            value: 4,
        },
        flags: 2,
        alias: 0,
    };
    // SAFETY: the operations are an array of two that outlives the call.
    unsafe { gpu.cuStreamBatchMemOp_v2(stream, 2, operations.as_mut_ptr(), 0).unwrap() };
    assert_eq!(gpu.download(stream, words, 1), [6]);
}

#[test]
fn a_wait_on_memory_that_is_gone_ends_the_context() {
    let gpu = seeded(4);
    let (a, b) = (gpu.stream(), gpu.stream());
    let flag = gpu.alloc_on(a, 4);
    gpu.sync(a);
    gpu.free_on(a, flag);
    gpu.sync(a);
    // SAFETY: the call is refused, because the address no longer belongs to the program.
    let refused = unsafe { gpu.cuStreamWaitValue32_v2(b, flag, 1, 0) };
    assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_VALUE);
    let flag = gpu.alloc_on(a, 4);
    gpu.fill(a, flag, 0, 4);
    gpu.sync(a);
    // SAFETY: addresses are checked by the driver under test.
    unsafe { gpu.cuStreamWaitValue32_v2(b, flag, 1, 1).unwrap() };
    gpu.free_on(a, flag);
    assert_eq!(code(gpu.try_sync(b)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}
