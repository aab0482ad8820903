//! Kernels that run from their text: no Rust function is registered for them.

use super::*;
use gpumem_sim::Finding;
use std::ffi::CStr;

const PTX: &CStr = c"
.version 8.0
.target sm_70
.address_size 64
.global .align 4 .u32 scale = 3;
.visible .entry axpy(.param .u64 y, .param .u64 x, .param .u32 n) {
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<6>;
    ld.param.u64 %rd0, [y]; ld.param.u64 %rd1, [x]; ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    setp.ge.u32 %p0, %r1, %r0;
    @%p0 bra END;
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd0, %rd0, %rd2; add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r4, [%rd0]; ld.global.u32 %r5, [%rd1]; ld.global.u32 %r6, [scale];
    mad.lo.u32 %r4, %r5, %r6, %r4;
    st.global.u32 [%rd0], %r4;
END:
    ret;
}
.visible .entry comb(.param .u64 y, .param .u32 n) .maxntid 64, 1, 1 {
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<6>;
    ld.param.u64 %rd0, [y]; ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x; setp.ge.u32 %p0, %r1, %r0; @%p0 ret;
    mul.wide.u32 %rd2, %r1, 8; add.u64 %rd0, %rd0, %rd2; st.global.u32 [%rd0], %r1;
    ret;
}
.visible .entry exact() .reqntid 8, 2 { ret; }
.visible .entry any() .maxntid 4294967295, 4294967295, 4294967295 { ret; }
.visible .entry broken() { trap; }
.visible .entry count(.param .u64 y, .param .u32 n) {
    .reg .b64 %rd; ld.param.u64 %rd, [y]; red.global.add.u32 [%rd], 1; ret;
}
.visible .entry count_block(.param .u64 y, .param .u32 n) {
    .reg .b64 %rd; ld.param.u64 %rd, [y]; red.relaxed.cta.global.add.u32 [%rd], 1; ret;
}
.visible .entry exchange(.param .u64 y, .param .u32 n) {
    .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd, [y]; atom.acq_rel.sys.global.exch.b32 %r, [%rd], 1; ret;
}
.visible .entry look(.param .u64 y, .param .u32 n) {
    .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd, [y]; ld.volatile.global.u32 %r, [%rd]; ret;
}
.visible .entry look_block(.param .u64 y, .param .u32 n) {
    .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd, [y]; ld.relaxed.cta.global.u32 %r, [%rd]; ret;
}
.visible .entry mark(.param .u64 y, .param .u32 n) {
    .reg .b64 %rd; ld.param.u64 %rd, [y]; st.volatile.global.u32 [%rd], 1; ret;
}
.visible .entry read(.param .u64 y, .param .u32 n) {
    .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd, [y]; ld.global.u32 %r, [%rd]; ret;
}
.visible .entry write(.param .u64 y, .param .u32 n) {
    .reg .b64 %rd; ld.param.u64 %rd, [y]; st.global.u32 [%rd], 1; ret;
}
.visible .entry multiprocessors(.param .u64 y, .param .u32 n) {
    .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd, [y]; mov.u32 %r, %nsmid; st.global.u32 [%rd], %r; ret;
}
.visible .entry pair(.param .u64 y, .param .u32 n) {
    .reg .b32 %r<2>; .reg .b64 %rd; ld.param.u64 %rd, [y]; ld.global.v2.u32 {%r0, %r1}, [%rd]; ret;
}
.visible .entry wait(.param .u64 y, .param .u32 n) {
    .reg .pred %p; .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd, [y];
LOOP:
    ld.volatile.global.u32 %r, [%rd];
    setp.eq.u32 %p, %r, 0; @%p bra LOOP;
    ret;
}
.visible .entry follow(.param .u64 y, .param .u32 n) {
    .reg .pred %p; .reg .b32 %r; .reg .b64 %rd<3>; ld.param.u64 %rd0, [y];
    ld.global.u32 %r, [%rd0]; mul.wide.u32 %rd1, %r, 4; add.u64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1], 0; add.u32 %r, %r, 1; st.global.u32 [%rd0], %r;
    ret;
}
.visible .entry foreign() { .reg .b32 %r<3>; vadd.s32.s32.s32 %r0, %r1, %r2; ret; }
";

struct Texts {
    gpu: Machine,
    module: CUmodule,
    stream: CUstream,
}

fn texts(seed: u64) -> Texts {
    let gpu = seeded(seed);
    let mut module = null_mut();
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe { gpu.cuModuleLoadData(&mut module, PTX.as_ptr().cast()).unwrap() };
    // `foreign` cannot run.
    let found = gpu.sim().take_findings();
    assert!(matches!(found[..], [Finding::Module { code: CUresult::CUDA_SUCCESS, .. }]), "{found:?}");
    let stream = gpu.stream();
    Texts { gpu, module, stream }
}

impl Texts {
    fn function(&self, name: &CStr) -> Result<CUfunction, DriverError> {
        let mut function = null_mut();
        // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
        unsafe { self.gpu.cuModuleGetFunction(&mut function, self.module, name.as_ptr())? };
        Ok(function)
    }

    fn launch_on(
        &self,
        stream: CUstream,
        name: &CStr,
        (grid, block): (u32, u32),
        mut parameters: Vec<*mut c_void>,
    ) -> Result<(), DriverError> {
        let function = self.function(name)?;
        let parameters = parameters.as_mut_ptr();
        // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
        unsafe {
            self.gpu.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, parameters, null_mut())
        }
    }

    fn axpy(&self, mut y: u64, mut x: u64, mut len: u32) -> Result<(), DriverError> {
        let parameters = vec![(&raw mut y).cast(), (&raw mut x).cast(), (&raw mut len).cast()];
        self.launch_on(self.stream, c"axpy", (len.div_ceil(32), 32), parameters)
    }

    fn comb(&self, stream: CUstream, mut y: u64, mut len: u32) -> Result<(), DriverError> {
        let parameters = vec![(&raw mut y).cast(), (&raw mut len).cast()];
        self.launch_on(stream, c"comb", (1, 64), parameters)
    }
}

fn bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_kernel_computes_what_its_text_says_in_stream_order() {
    for seed in 0..if cfg!(miri) { 2 } else { 50 } {
        let all = texts(seed);
        let (x, y) = (all.gpu.alloc(400), all.gpu.alloc(400));
        let numbers: Vec<u32> = (0..100).collect();
        all.gpu.upload(all.stream, x, &bytes(&numbers));
        all.gpu.upload(all.stream, y, &bytes(&[10; 100]));
        all.axpy(y, x, 100).unwrap();
        all.axpy(y, y, 100).unwrap();
        let expected: Vec<u32> = numbers.iter().map(|n| 4 * (10 + 3 * n)).collect();
        assert_eq!(all.gpu.download(all.stream, y, 400), bytes(&expected), "seed {seed}");
        // Variables of modules are no memory of the program.
        assert_eq!(all.gpu.sim().report().allocations.len(), 2);
    }
}

#[test]
fn an_overrun_names_kernel_line_thread_and_allocation() {
    let all = texts(1);
    let (x, y) = (all.gpu.alloc(128), all.gpu.alloc(256));
    all.axpy(y, x, 33).unwrap();
    assert_eq!(code(all.gpu.try_sync(all.stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let report = all.gpu.sim().report();
    let text = &report.faults[0];
    for part in [
        "kernel `axpy`",
        "line 14",
        "block (1, 0, 0), thread (0, 0, 0)",
        "reads 4 bytes",
        "allocation of 128 bytes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        matches!(&report.findings[..], [Finding::Fault { allocation: Some(found), .. }] if found.address == x)
    );
    let place = report.findings[0].place().unwrap();
    assert_eq!((place.block, place.thread, place.address), ([1, 0, 0], [0, 0, 0], Some(x + 128)));
    assert_eq!(place.to_string(), "kernel `axpy`, line 14, block (1, 0, 0), thread (0, 0, 0)");
}

/// Whatever the size, no block that kernels may use begins where another one ends.
#[test]
fn an_access_to_no_allocation_names_the_nearest() {
    let all = texts(3);
    let mut allocated = [(); 3].map(|()| all.gpu.alloc(100));
    allocated.sort_unstable();
    let [low, high, _] = allocated;
    let mut address = low + 140;
    let parameters = vec![(&raw mut address).cast(), (&raw mut address).cast()];
    all.launch_on(all.stream, c"write", (1, 1), parameters).unwrap();
    assert_eq!(code(all.gpu.try_sync(all.stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let report = all.gpu.sim().report();
    let before = high - low - 144;
    let nearest = format!(
        "{address:#x} is in no allocation: 40 bytes past the end of the allocation of 100 bytes at {low:#x}, and {before} bytes before the \
         allocation of 100 bytes at {high:#x}"
    );
    assert!(report.faults[0].contains(&nearest), "{report}");
}

#[test]
fn a_kernel_sees_the_multiprocessors_of_the_device() {
    let all = texts(4);
    let (mut address, mut count) = (all.gpu.alloc(4), 0);
    let parameters = vec![(&raw mut address).cast(), (&raw mut address).cast()];
    all.launch_on(all.stream, c"multiprocessors", (1, 1), parameters).unwrap();
    let found = all.gpu.download(all.stream, address, 4);
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe { all.gpu.cuDeviceGetAttribute(&mut count, attribute, 0).unwrap() };
    assert_eq!(found, bytes(&[count as u32]));
}

#[test]
fn an_overrun_by_one_into_a_neighbour_is_found() {
    for size_bytes in [4, 508, 512, 1024, 4096, 1 << 20] {
        for is_of_pool in [false, true] {
            let all = texts(1);
            let alloc = || match is_of_pool {
                true => all.gpu.alloc_on(all.stream, size_bytes),
                false => all.gpu.alloc(size_bytes),
            };
            // One of them is between two others.
            let blocks = [alloc(), alloc(), alloc()];
            blocks.iter().for_each(|block| all.gpu.fill(all.stream, *block, 0, size_bytes));
            let len = size_bytes as u32 / 4;
            for block in blocks {
                all.comb(all.stream, block + size_bytes as u64 - 4, 1).unwrap();
            }
            all.axpy(blocks[1], blocks[1], len.min(64)).unwrap();
            all.gpu.sync(all.stream);
            all.comb(all.stream, blocks[1] + size_bytes as u64, 1).unwrap();
            let outcome = all.gpu.try_sync(all.stream);
            assert_eq!(
                code(outcome),
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
                "{size_bytes} bytes, of a pool: {is_of_pool}"
            );
        }
    }
}

/// What a kernel did decides, to the byte: two kernels may use every second word each, and not the same ones.
#[test]
fn races_are_those_of_the_bytes_that_kernels_touched() {
    for (offset, is_race) in [(4, false), (8, true)] {
        let all = texts(2);
        let other = all.gpu.stream();
        let memory = all.gpu.alloc(1024);
        all.comb(all.stream, memory, 40).unwrap();
        all.comb(other, memory + offset, 40).unwrap();
        all.gpu.sync(all.stream);
        all.gpu.sync(other);
        let races = all.gpu.sim().report().findings;
        assert_eq!(races.iter().any(|found| matches!(found, Finding::Race { .. })), is_race, "{races:?}");
    }
}

#[test]
fn a_kernel_that_stops_loses_its_context() {
    let all = texts(3);
    all.launch_on(all.stream, c"broken", (1, 1), Vec::new()).unwrap();
    assert_eq!(code(all.gpu.try_sync(all.stream)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert!(all.gpu.sim().report().faults[0].contains("kernel `broken` failed at line "));
}

#[test]
fn what_does_not_run_here_is_refused() {
    let all = texts(4);
    assert_eq!(code(all.function(c"foreign")), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // More threads than the text allows.
    let mut memory = all.gpu.alloc(64);
    let mut len = 1_u32;
    let parameters = vec![(&raw mut memory).cast(), (&raw mut len).cast()];
    let refused = all.launch_on(all.stream, c"comb", (1, 65), parameters);
    assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_VALUE);
}

/// `.maxntid` states a product that blocks may not exceed, `.reqntid` the shape that they have.
#[test]
fn blocks_have_the_shape_that_the_text_requires() {
    let all = texts(1);
    let launch = |name: &CStr, [x, y, z]: [u32; 3]| {
        let function = all.function(name).unwrap();
        let (mut place, mut len) = (all.gpu.alloc(1024), 0_u32);
        let mut parameters = [(&raw mut place).cast(), (&raw mut len).cast()];
        let start = parameters.as_mut_ptr();
        // SAFETY: pointers are to locals that outlive the call, as large as the signatures say.
        code(unsafe { all.gpu.cuLaunchKernel(function, 1, 1, 1, x, y, z, 0, all.stream, start, null_mut()) })
    };
    let (right, wrong) = (CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE);
    for (name, block, expected) in [
        (c"exact", [8, 2, 1], right),
        (c"exact", [16, 1, 1], wrong),
        (c"exact", [2, 8, 1], wrong),
        (c"exact", [8, 1, 1], wrong),
        (c"exact", [8, 2, 2], wrong),
        (c"comb", [64, 1, 1], right),
        (c"comb", [1, 8, 8], right),
        (c"comb", [3, 1, 1], right),
        (c"comb", [65, 1, 1], wrong),
        (c"any", [32, 32, 1], right),
        (c"any", [33, 32, 1], wrong),
    ] {
        assert_eq!(launch(name, block), expected, "{name:?} {block:?}");
    }
}

/// The findings of two kernels on two streams that access the same word.
fn on_two_streams(one: &CStr, other: &CStr) -> Vec<Finding> {
    let all = texts(5);
    let memory = all.gpu.alloc(256);
    all.gpu.fill(all.stream, memory, 0, 256);
    all.gpu.sync(all.stream);
    let second = all.gpu.stream();
    for (stream, name) in [(all.stream, one), (second, other)] {
        let (mut place, mut len) = (memory, 1_u32);
        all.launch_on(stream, name, (2, 2), vec![(&raw mut place).cast(), (&raw mut len).cast()]).unwrap();
    }
    all.gpu.sync(all.stream);
    all.gpu.sync(second);
    all.gpu.sim().take_findings()
}

/// By the memory model of PTX: two accesses race if one of them writes and one of them is weak, or has a scope without the other.
#[test]
fn strong_accesses_of_two_streams_do_not_race() {
    let strong = [c"count", c"exchange", c"mark", c"look"];
    let weak = [c"count_block", c"write", c"read", c"look_block"];
    let writes = [c"count", c"exchange", c"mark", c"count_block", c"write"];
    for one in strong.iter().chain(&weak) {
        for other in strong.iter().chain(&weak) {
            let is_race = (writes.contains(one) || writes.contains(other))
                && !(strong.contains(one) && strong.contains(other));
            let found = on_two_streams(one, other);
            assert_eq!(!found.is_empty(), is_race, "{one:?} {other:?} {found:?}");
            assert!(found.iter().all(|found| matches!(found, Finding::Race { .. })), "{found:?}");
        }
    }
}

#[test]
fn a_race_between_streams_names_lines_and_threads_of_both_kernels() {
    let found = on_two_streams(c"write", c"count");
    let [finding @ Finding::Race { first, second, .. }] = &found[..] else { panic!("{found:?}") };
    let lines: Vec<u32> = [first, second].map(|access| access.place.as_ref().unwrap().line).into();
    let line_of = |name: &str| {
        let text = PTX.to_str().unwrap();
        1 + text.lines().position(|line| line.contains(&format!("entry {name}("))).unwrap() as u32 + 1
    };
    let mut expected = [line_of("write"), line_of("count")];
    if first.to_string().contains("`count`") {
        expected.reverse();
    }
    assert_eq!(lines, expected);
    for place in [finding.place().unwrap(), finding.other_place().unwrap()] {
        assert_eq!(place.address, Some(first.address));
        assert!(place.block[0] < 2 && place.thread == [0, 0, 0], "{place}");
        let place = format!(" at line {}, block ({}, 0, 0), thread (0, 0, 0)", place.line, place.block[0]);
        assert!(finding.to_string().contains(&place), "{finding}");
    }
    // A memset has no place, and the kernel keeps its own.
    let all = texts(6);
    let memory = all.gpu.alloc(1024);
    let other = all.gpu.stream();
    all.comb(all.stream, memory, 40).unwrap();
    all.gpu.fill(other, memory + 8 * 30, 0, 4);
    all.gpu.sync(all.stream);
    all.gpu.sync(other);
    let found = all.gpu.sim().take_findings();
    let [finding @ Finding::Race { .. }] = &found[..] else { panic!("{found:?}") };
    let place = finding.place().unwrap();
    assert_eq!((place.thread, place.address), ([30, 0, 0], Some(memory + 8 * 30)));
    assert_eq!(finding.other_place(), None);
}

/// A kernel that does something else when it runs again has no place, rather than a wrong one.
#[test]
fn a_place_is_one_of_what_the_kernel_did() {
    let found = on_two_streams(c"follow", c"write");
    assert!(!found.is_empty());
    for finding in &found {
        let Finding::Race { first, second, .. } = finding else { panic!("{found:?}") };
        for access in [first, second] {
            let is_follow = access.to_string().contains("`follow`");
            assert_eq!(access.place.is_none(), is_follow, "{finding}");
        }
    }
}

#[test]
fn a_misaligned_access_names_its_allocation() {
    let all = texts(7);
    let memory = all.gpu.alloc(64);
    let (mut place, mut len) = (memory + 4, 1_u32);
    all.launch_on(all.stream, c"pair", (1, 1), vec![(&raw mut place).cast(), (&raw mut len).cast()]).unwrap();
    assert_eq!(code(all.gpu.try_sync(all.stream)), CUresult::CUDA_ERROR_MISALIGNED_ADDRESS);
    let found = all.gpu.sim().take_findings();
    let [finding @ Finding::Fault { allocation: Some(allocation), place: Some(place), .. }] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!((allocation.address, place.address), (memory, Some(memory + 4)));
    assert!(finding.to_string().contains(&format!("64 bytes at {memory:#x}")), "{finding}");
}

#[test]
fn a_kernel_without_an_end_is_stopped_with_its_place_and_the_setting() {
    let gpu = machine(SimConfig::new().kernel_steps(10_000));
    let mut module = null_mut();
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe { gpu.cuModuleLoadData(&mut module, PTX.as_ptr().cast()).unwrap() };
    gpu.sim().take_findings();
    let stream = gpu.stream();
    let all = Texts { gpu, module, stream };
    let memory = all.gpu.alloc(64);
    all.gpu.fill(all.stream, memory, 0, 64);
    let (mut place, mut len) = (memory, 1_u32);
    all.launch_on(all.stream, c"wait", (3, 32), vec![(&raw mut place).cast(), (&raw mut len).cast()])
        .unwrap();
    assert_eq!(code(all.gpu.try_sync(all.stream)), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    let found = all.gpu.sim().take_findings();
    let [finding @ Finding::Fault { place: Some(place), .. }] = &found[..] else { panic!("{found:?}") };
    let text = PTX.to_str().unwrap();
    let first = 1 + text.lines().position(|line| line == "LOOP:").unwrap() as u32;
    assert!((first + 1..=first + 2).contains(&place.line), "{finding}");
    for part in
        ["kernel `wait` failed at line", "block (", "after 100", "GPUMEM_SIM_KERNEL_STEPS", "kernel_steps"]
    {
        assert!(finding.to_string().contains(part), "{part}: {finding}");
    }
}
