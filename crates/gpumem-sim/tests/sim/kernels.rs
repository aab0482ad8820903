//! Modules and kernels.

use super::*;
use gpumem_sim::{Finding, Kernel, KernelFault, Launch};
use std::ffi::CStr;

const PTX: &CStr = c"
.version 8.0
.target sm_70
.address_size 64
.visible .entry axpy(
    .param .u64 axpy_param_0, // y
    .param .u64 axpy_param_1, // x
    .param .f32 axpy_param_2,
    .param .u32 axpy_param_3
) { ret; }
.visible .entry shape(.param .u64 shape_param_0) { ret; }
.visible .entry broken() { ret; }
.visible .entry greedy(.param .u32 greedy_param_0) { ret; }
.visible .entry curious() { ret; }
.visible .entry meddling() { ret; }
.visible .entry explosive() { ret; }
.visible .entry scribble(.param .u64 s_0, .param .u32 s_1) { ret; }
.visible .entry comb(.param .u64 c_0, .param .u32 c_1) {
    .reg .pred %p; .reg .b32 %n; .reg .b64 %at;
    ld.param.u64 %at, [c_0];
    ld.param.u32 %n, [c_1];
next:
    st.global.u32 [%at], %n;
    add.u64 %at, %at, 8;
    sub.u32 %n, %n, 1;
    setp.ne.u32 %p, %n, 0;
    @%p bra next;
    ret;
}
";

/// A panic payload whose drop reads the machine's state, and then panics with another such payload.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        with_sim(|sim| sim.take_findings());
        std::panic::panic_any(Bomb);
    }
}

static KERNELS: [Kernel; 8] = [
    Kernel::new("axpy", axpy),
    Kernel::new("scribble", |launch| {
        // Writes through a pointer declared for reading, twice.
        let (address, len) = (launch.arg::<u64>()?, launch.arg::<u32>()?);
        let numbers = launch.read::<f32>(address, len as usize)?;
        numbers.iter().for_each(|number| number.set(-1.0));
        let again = launch.read::<f32>(address, len as usize)?;
        again.iter().for_each(|number| assert_eq!(number.replace(-2.0), 1.0));
        assert_eq!(numbers[0].get(), -1.0);
        Ok(())
    }),
    Kernel::new("shape", shape),
    Kernel::new("broken", |_| panic!("by design")),
    Kernel::new("explosive", |_| std::panic::panic_any(Bomb)),
    Kernel::new("greedy", |launch| launch.arg::<u64>().map(drop)),
    Kernel::new("curious", |_| {
        let report = with_sim(|sim| (sim.report(), sim.seed()));
        LOOKS.with_borrow_mut(|looks| looks.push(report));
        Ok(())
    }),
    Kernel::new("meddling", |_| {
        let taken_bytes = with_sim(|sim| sim.take_memory(0, 1));
        assert_eq!(taken_bytes, 0);
        Ok(())
    }),
];

// The simulator that a kernel inspects, and the reports that it has read.
thread_local! {
    static SIM: std::cell::RefCell<Option<Sim>> = const { std::cell::RefCell::new(None) };
    static LOOKS: std::cell::RefCell<Vec<(gpumem_sim::Report, u64)>> =
        const { std::cell::RefCell::new(Vec::new()) };
}

fn with_sim<T>(look: impl FnOnce(&Sim) -> T) -> T {
    SIM.with_borrow(|sim| look(sim.as_ref().unwrap()))
}

fn axpy(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let (y, x) = (launch.arg::<u64>()?, launch.arg::<u64>()?);
    let (factor, len) = (launch.arg::<f32>()?, launch.arg::<u32>()?);
    let (y, x) = (launch.write::<f32>(y, len as usize)?, launch.read::<f32>(x, len as usize)?);
    for (y, x) in y.iter().zip(x) {
        y.set(y.get() + factor * x.get());
    }
    Ok(())
}

fn shape(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let target = launch.arg::<u64>()?;
    let [x, y, z] = launch.grid();
    let numbers = [x, y, z, launch.block()[0], launch.shared_bytes()];
    let cells = launch.write::<u32>(target, numbers.len())?;
    cells.iter().zip(numbers).for_each(|(cell, number)| cell.set(number));
    Ok(())
}

struct Kernels {
    gpu: Machine,
    module: CUmodule,
    stream: CUstream,
}

fn kernels(seed: u64) -> Kernels {
    kernels_on(seeded(seed))
}

fn kernels_on(gpu: Machine) -> Kernels {
    gpu.sim().register(&KERNELS);
    let mut module = null_mut();
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe { gpu.cuModuleLoadData(&mut module, PTX.as_ptr().cast()).unwrap() };
    let stream = gpu.stream();
    Kernels { gpu, module, stream }
}

impl Kernels {
    fn function(&self, name: &CStr) -> Result<CUfunction, DriverError> {
        let mut function = null_mut();
        // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
        unsafe { self.gpu.cuModuleGetFunction(&mut function, self.module, name.as_ptr())? };
        Ok(function)
    }

    fn launch(
        &self,
        name: &CStr,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        parameters: Vec<*mut c_void>,
    ) -> Result<(), DriverError> {
        self.launch_on(self.stream, name, (grid, block), shared_bytes, parameters)
    }

    fn launch_on(
        &self,
        stream: CUstream,
        name: &CStr,
        ([gx, gy, gz], [bx, by, bz]): ([u32; 3], [u32; 3]),
        shared_bytes: u32,
        mut parameters: Vec<*mut c_void>,
    ) -> Result<(), DriverError> {
        let function = self.function(name)?;
        // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
        unsafe {
            let parameters = parameters.as_mut_ptr();
            self.gpu.cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                stream,
                parameters,
                null_mut(),
            )
        }
    }

    fn axpy(&self, mut y: u64, mut x: u64, mut factor: f32, mut len: u32) -> Result<(), DriverError> {
        let parameters =
            vec![(&raw mut y).cast(), (&raw mut x).cast(), (&raw mut factor).cast(), (&raw mut len).cast()];
        self.launch(c"axpy", [1; 3], [32, 1, 1], 0, parameters)
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_kernel_computes_in_stream_order_with_parameters_copied_at_the_call() {
    for seed in 0..if cfg!(miri) { 4 } else { 100 } {
        let all = kernels(seed);
        let (x, y) = (all.gpu.alloc(12), all.gpu.alloc(12));
        all.gpu.upload(all.stream, x, &bytes(&[1.0, 2.0, 3.0]));
        all.gpu.upload(all.stream, y, &bytes(&[10.0; 3]));
        all.axpy(y, x, 2.0, 3).unwrap();
        // Aliased operands are allowed: y += y.
        all.axpy(y, y, 1.0, 3).unwrap();
        assert_eq!(all.gpu.download(all.stream, y, 12), bytes(&[24.0, 28.0, 32.0]), "seed {seed}");
    }
}

/// Kernels that write every second word do not race with each other.
#[test]
fn words_between_those_of_a_kernel_are_not_its_own() {
    // More take minutes under miri, for the same code.
    let count = if cfg!(miri) { 100_u32 } else { 5000 };
    for (offset, is_race) in [(4, false), (8, true)] {
        let all = kernels(4);
        let first = all.stream;
        let other = Kernels { stream: all.gpu.stream(), ..all };
        let memory = other.gpu.alloc(1 << 20);
        for (stream, mut address) in [(first, memory), (other.stream, memory + offset)] {
            let mut count = count;
            let parameters = vec![(&raw mut address).cast(), (&raw mut count).cast()];
            other.launch_on(stream, c"comb", ([1; 3], [1; 3]), 0, parameters).unwrap();
        }
        other.gpu.sync(first);
        other.gpu.sync(other.stream);
        assert_eq!(!other.gpu.sim().take_findings().is_empty(), is_race, "{offset}");
    }
}

#[test]
fn a_function_that_reads_unwritten_memory_is_found() {
    let all = kernels_on(machine(SimConfig::new().uninitialised(true)));
    let (y, x) = (all.gpu.alloc(64), all.gpu.alloc(64));
    let read = || {
        all.axpy(y, x, 1.0, 16).unwrap();
        all.gpu.sync(all.stream);
        all.gpu.sim().take_findings()
    };
    let found = read();
    assert!(matches!(found[..], [Finding::Uninitialised { size_bytes: 64, .. }]), "{found:?}");
    all.gpu.fill(all.stream, x, 1, 64);
    assert_eq!(read(), []);
}

#[test]
fn the_shape_of_a_launch_arrives() {
    let all = kernels(1);
    let mut target = all.gpu.alloc(20);
    all.launch(c"shape", [2, 3, 4], [64, 1, 1], 1000, vec![(&raw mut target).cast()]).unwrap();
    let numbers: Vec<u8> = [2u32, 3, 4, 64, 1000].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(all.gpu.download(all.stream, target, 20), numbers);
}

#[test]
fn packed_parameters() {
    let all = kernels(2);
    let target = all.gpu.alloc(20);
    let function = all.function(c"shape").unwrap();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        (&raw const target).cast_mut().cast(),
        std::ptr::without_provenance_mut(2),
        null_mut(),
        null_mut(),
    ];
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    let mut launch = |mut size_bytes: usize| unsafe {
        extra[3] = (&raw mut size_bytes).cast();
        let extra = extra.as_mut_ptr();
        all.gpu.cuLaunchKernel(function, 5, 1, 1, 1, 1, 1, 0, all.stream, null_mut(), extra)
    };
    launch(8).unwrap();
    assert_eq!(all.gpu.download(all.stream, target, 1), [5]);
    assert_eq!(code(launch(7)), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn shapes_beyond_the_device_are_refused() {
    let all = kernels(3);
    let mut target = all.gpu.alloc(20);
    let mut refused = |grid, block, shared_bytes| {
        let parameters = vec![(&raw mut target).cast()];
        code(all.launch(c"shape", grid, block, shared_bytes, parameters))
            == CUresult::CUDA_ERROR_INVALID_VALUE
    };
    assert!(refused([0, 1, 1], [1; 3], 0) && refused([1; 3], [1, 0, 1], 0));
    assert!(
        refused([1; 3], [1025, 1, 1], 0) && refused([1; 3], [32, 32, 2], 0) && refused([1; 3], [1, 1, 65], 0)
    );
    assert!(refused([1, 65_536, 1], [1; 3], 0) && refused([1; 3], [1; 3], (48 << 10) + 1));
    assert!(!refused([1; 3], [1024, 1, 1], 48 << 10));
    let function = all.function(c"shape").unwrap();
    let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe { all.gpu.cuFuncSetAttribute(function, shared, 100 << 10).unwrap() };
    assert!(!refused([1; 3], [1; 3], 100 << 10));
}

#[test]
fn names_and_images_that_are_not_there() {
    let all = kernels(4);
    assert_eq!(code(all.function(c"nothing")), CUresult::CUDA_ERROR_NOT_FOUND);
    let mut module = null_mut();
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe {
        let no_ptx = code(all.gpu.cuModuleLoadData(&mut module, c"no ptx".as_ptr().cast()));
        assert_eq!(no_ptx, CUresult::CUDA_ERROR_INVALID_PTX);
        let function = all.function(c"axpy").unwrap();
        all.gpu.cuModuleUnload(all.module).unwrap();
        let mut value = 0;
        let gone = code(all.gpu.cuFuncGetAttribute(&mut value, CUfunction_attribute(0), function));
        assert_eq!(gone, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

#[track_caller]
fn assert_lost(all: &Kernels, expected: CUresult, words: &[&str]) {
    assert_eq!(code(all.gpu.try_sync(all.stream)), expected);
    assert_eq!(code(all.gpu.try_alloc(1)), expected);
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    assert_eq!(code(unsafe { all.gpu.cuCtxSynchronize() }), expected);
    let report = all.gpu.sim().report();
    assert_eq!(report.faults.len(), 1, "{report}");
    assert!(words.iter().all(|word| report.faults[0].contains(word)), "{report}");
}

#[test]
fn a_kernel_that_leaves_its_memory_loses_the_context() {
    let all = kernels(5);
    let (x, y) = (all.gpu.alloc(12), all.gpu.alloc(12));
    all.axpy(y, x, 1.0, 4).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["`axpy`", "16 bytes", "past the end"]);
}

#[test]
fn a_kernel_may_not_use_pageable_memory() {
    let all = kernels(6);
    let (host, y) = ([1.0f32; 3], all.gpu.alloc(12));
    all.axpy(y, host.as_ptr() as u64, 1.0, 3).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["in no allocation"]);
}

#[test]
fn a_kernel_uses_pinned_memory() {
    let all = kernels(7);
    let (host, y) = (all.gpu.pinned(12), all.gpu.alloc(12));
    write(host, &bytes(&[1.0, 2.0, 3.0]));
    all.gpu.fill(all.stream, y, 0, 12);
    all.axpy(y, host.as_ptr() as u64, 1.0, 3).unwrap();
    assert_eq!(all.gpu.download(all.stream, y, 12), bytes_of(host));
}

#[test]
fn a_misaligned_pointer_a_wrong_parameter_and_a_panic_each_lose_the_context() {
    let all = kernels(8);
    let y = all.gpu.alloc(16);
    all.axpy(y, y + 1, 1.0, 1).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, &["not aligned to 4 bytes"]);

    let all = kernels(9);
    let mut number = 1u32;
    all.launch(c"greedy", [1; 3], [1; 3], 0, vec![(&raw mut number).cast()]).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_ASSERT, &["4 bytes in the PTX", "u64 (8 bytes)"]);

    let all = kernels(10);
    all.launch(c"broken", [1; 3], [1; 3], 0, vec![]).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_LAUNCH_FAILED, &["panicked: by design"]);
}

#[test]
fn a_panic_whose_payload_panics_when_dropped_loses_the_context_only() {
    let all = kernels(11);
    SIM.set(Some(all.gpu.sim().clone()));
    all.launch(c"explosive", [1; 3], [1; 3], 0, vec![]).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_LAUNCH_FAILED, &["`explosive` panicked: no text"]);
    // SAFETY: handles are checked by the driver under test.
    unsafe { all.gpu.cuDevicePrimaryCtxReset_v2(0).unwrap() };
    let context = primary(&all.gpu.driver, 0);
    // SAFETY: the context was just retained.
    unsafe { all.gpu.cuCtxSetCurrent(context).unwrap() };
    all.gpu.alloc(4);
    SIM.set(None);
}

#[test]
fn what_a_kernel_reads_of_memory_that_is_registered_for_reading_only_is_a_copy() {
    let (all, numbers) = (kernels(13), [1.0_f32; 5]);
    let mut host = numbers.as_ptr() as u64;
    // SAFETY: the numbers outlive the machine's use of them.
    unsafe { all.gpu.cuMemHostRegister_v2(host as *mut c_void, 20, 8).unwrap() };
    let mut len = 5_u32;
    let parameters = vec![(&raw mut host).cast(), (&raw mut len).cast()];
    all.launch(c"scribble", [1; 3], [1; 3], 0, parameters).unwrap();
    all.gpu.sync(all.stream);
    assert_eq!(numbers, [1.0; 5]);
}

#[test]
fn a_kernel_writes_no_memory_that_is_registered_for_reading_only() {
    let (all, numbers) = (kernels(12), [1.0_f32; 4]);
    let host = numbers.as_ptr() as u64;
    let x = all.gpu.alloc(16);
    all.gpu.upload(all.stream, x, &bytes(&[1.0; 4]));
    // SAFETY: the numbers outlive the machine's use of them.
    unsafe { all.gpu.cuMemHostRegister_v2(host as *mut c_void, 16, 8).unwrap() };
    all.axpy(x, host, 2.0, 4).unwrap();
    assert_eq!(all.gpu.download(all.stream, x, 16), bytes(&[3.0; 4]));
    all.axpy(host, x, 2.0, 4).unwrap();
    assert_lost(&all, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["read-only"]);
    assert_eq!(numbers, [1.0; 4]);
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))] // miri maps no memory
fn a_kernel_goes_over_handles_side_by_side_and_not_past_them() {
    use super::virtual_memory::{PIECE, mapped};
    let all = kernels(5);
    let (base, _) = mapped(&all.gpu, 2);
    let (x, y) = (all.gpu.alloc(12), base + PIECE as u64 - 8);
    all.gpu.upload(all.stream, x, &bytes(&[1.0, 2.0, 3.0]));
    all.gpu.upload(all.stream, y, &bytes(&[10.0; 3]));
    all.axpy(y, x, 2.0, 3).unwrap();
    assert_eq!(all.gpu.download(all.stream, y, 12), bytes(&[12.0, 14.0, 16.0]));
    all.axpy(base + 2 * PIECE as u64 - 8, x, 2.0, 3).unwrap();
    assert_eq!(code(all.gpu.try_sync(all.stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn a_kernel_may_look_at_its_machine_but_not_change_it() {
    let kernels = kernels(7);
    SIM.set(Some(kernels.gpu.sim().clone()));
    let memory = kernels.gpu.alloc(100);
    kernels.launch(c"curious", [1; 3], [1; 3], 0, vec![]).unwrap();
    kernels.gpu.sync(kernels.stream);
    let looks = LOOKS.take();
    assert_eq!(looks.len(), 1);
    assert_eq!((looks[0].0.allocations[0].address, looks[0].1), (memory, 7));
    kernels.launch(c"meddling", [1; 3], [1; 3], 0, vec![]).unwrap();
    assert_eq!(code(kernels.gpu.try_sync(kernels.stream)), CUresult::CUDA_ERROR_NOT_PERMITTED);
    let faults = kernels.gpu.sim().report().faults;
    assert!(faults[0].contains("`meddling`") && faults[0].contains("`Sim::take_memory`"), "{faults:?}");
    // The machine continues.
    assert_eq!(kernels.gpu.sim().take_memory(0, 1), 1);
    SIM.set(None);
}

#[test]
fn a_captured_kernel_says_what_it_was_given() {
    let kernels = kernels(1);
    let (gpu, memory) = (&kernels.gpu, kernels.gpu.alloc(20));
    let (mut graph, mut node, mut count) = (null_mut(), null_mut(), 1);
    // SAFETY: pointers are to locals that outlive the calls, as large as the signature says; the returned parameters are valid
    // until the graph is destroyed.
    unsafe {
        gpu.cuStreamBeginCapture_v2(kernels.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
            .unwrap();
        let parameters = vec![(&raw const memory).cast_mut().cast()];
        kernels.launch(c"shape", [3, 1, 1], [64, 1, 1], 16, parameters).unwrap();
        gpu.cuStreamEndCapture(kernels.stream, &mut graph).unwrap();
        gpu.cuGraphGetNodes(graph, &mut node, &mut count).unwrap();
        let mut node_params = std::mem::zeroed::<CUDA_KERNEL_NODE_PARAMS>();
        gpu.cuGraphKernelNodeGetParams_v2(node, &mut node_params).unwrap();
        assert_eq!(node_params.func, kernels.function(c"shape").unwrap());
        assert_eq!((node_params.gridDimX, node_params.blockDimX, node_params.sharedMemBytes), (3, 64, 16));
        assert_eq!(node_params.kernelParams.cast::<*mut u64>().read().read_unaligned(), memory);
        // The parameters can be passed back unchanged.
        node_params.gridDimX = 4;
        gpu.cuGraphKernelNodeSetParams_v2(node, &node_params).unwrap();
        let mut again = std::mem::zeroed::<CUDA_KERNEL_NODE_PARAMS_v1>();
        gpu.cuGraphKernelNodeGetParams(node, &mut again).unwrap();
        assert_eq!(
            (again.gridDimX, again.kernelParams.cast::<*mut u64>().read().read_unaligned()),
            (4, memory)
        );
        assert_eq!(code(gpu.cuGraphMemcpyNodeGetParams(node, &mut CUDA_MEMCPY3D::default())), INVALID_VALUE);
        gpu.cuGraphDestroy(graph).unwrap();
    }
}

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
