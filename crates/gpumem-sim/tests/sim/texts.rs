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
