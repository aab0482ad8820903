//! Images of modules: fat binaries, and the logs of their compilation.
//!
//! The files in `images/` have the kernel `store`, which writes a number: 70, 80 and 100 in the PTX for these compute capabilities. They were
//! made by `fatbinary` of CUDA 13.0, with `--image3=kind=ptx,sm=70,file=…` and so on: `plain` with `--compress-mode=none`, `lz4` with `speed`,
//! `zstd` with `size`, `newer` of the last text alone, `machine_code` of `ptxas -arch=sm_90` of the second, and `mixed` of both.

use super::*;
use gpumem_sim::Finding;
use proptest::prelude::*;
use std::ffi::{CStr, c_char};

pub(crate) const PLAIN: &[u8] = include_bytes!("images/plain.fatbin");
pub(crate) const LZ4: &[u8] = include_bytes!("images/lz4.fatbin");
const ZSTD: &[u8] = include_bytes!("images/zstd.fatbin");
const MIXED: &[u8] = include_bytes!("images/mixed.fatbin");
const NEWER: &[u8] = include_bytes!("images/newer.fatbin");
const MACHINE_CODE: &[u8] = include_bytes!("images/machine_code.fatbin");

/// What `nvcc` puts around a fat binary.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const u8,
    name: *const c_void,
}

fn wrapper(data: &[u8]) -> Wrapper {
    Wrapper { magic: 0x4662_43B1, version: 1, data: data.as_ptr(), name: null_mut() }
}

/// A compilation with buffers of `size_bytes` for its logs.
struct Loaded {
    outcome: Result<CUmodule, DriverError>,
    info: String,
    error: String,
}

fn load(gpu: &Machine, image: *const c_void, size_bytes: usize) -> Loaded {
    use CUjit_option as O;
    let mut buffers = [vec![0x55_u8; size_bytes + 1], vec![0x55_u8; size_bytes + 1]];
    let options = [
        O::CU_JIT_OPTIMIZATION_LEVEL,
        O::CU_JIT_INFO_LOG_BUFFER,
        O::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        O::CU_JIT_ERROR_LOG_BUFFER,
        O::CU_JIT_WALL_TIME,
    ];
    let size = std::ptr::without_provenance_mut(size_bytes);
    let [info, error] = &mut buffers;
    let mut values = [null_mut(), info.as_mut_ptr().cast(), size, size, error.as_mut_ptr().cast(), size];
    let mut module = null_mut();
    let (options, values_start) = (options.as_ptr().cast_mut(), values.as_mut_ptr());
    // SAFETY: pointers are to locals that outlive the call, as large as the options say.
    let outcome = unsafe { gpu.cuModuleLoadDataEx(&mut module, image, 6, options, values_start) };
    assert_eq!(values[5].addr() as u32, 0.0_f32.to_bits());
    let text = |buffer: &[u8], len: usize| {
        assert_eq!(
            (buffer.get(len).copied().filter(|_| size_bytes > 0), buffer[size_bytes]),
            ((size_bytes > 0).then_some(0), 0x55)
        );
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    let [info, error] = [text(&buffers[0], values[2].addr()), text(&buffers[1], values[3].addr())];
    Loaded { outcome: outcome.map(|()| module), info, error }
}

/// Loads an image without options, and runs `store` of it.
fn store(gpu: &Machine, image: *const c_void) -> Result<u32, DriverError> {
    let mut module = null_mut();
    // SAFETY: the image is whole; the pointer is to a local.
    unsafe { gpu.cuModuleLoadData(&mut module, image)? };
    let mut function = null_mut();
    // SAFETY: pointers are to locals that outlive the call.
    unsafe { gpu.cuModuleGetFunction(&mut function, module, c"store".as_ptr())? };
    stored(gpu, function)
}

/// What a function with the parameters of `store` writes.
pub(crate) fn stored(gpu: &Machine, function: CUfunction) -> Result<u32, DriverError> {
    let (stream, mut address) = (gpu.stream(), gpu.alloc(4));
    let mut parameters = [(&raw mut address).cast()];
    let start = parameters.as_mut_ptr();
    // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
    unsafe { gpu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, start, null_mut())? };
    let bytes = gpu.try_download(stream, address, 4)?;
    // SAFETY: the memory was allocated above, and the work on it is complete.
    unsafe { gpu.cuMemFree_v2(address)? };
    Ok(u32::from_le_bytes(bytes.try_into().unwrap()))
}

#[test]
fn the_newest_text_that_the_device_can_run_is_taken_from_a_fat_binary() {
    let gpu = seeded(1);
    for image in [PLAIN, LZ4, ZSTD, MIXED] {
        assert_eq!(store(&gpu, image.as_ptr().cast()).unwrap(), 80);
    }
    let wrapper = wrapper(ZSTD);
    assert_eq!(store(&gpu, (&raw const wrapper).cast()).unwrap(), 80);
    let mut module = null_mut();
    // SAFETY: the image is whole; the pointer is to a local.
    unsafe { gpu.cuModuleLoadFatBinary(&mut module, (&raw const wrapper).cast()).unwrap() };
}

#[test]
fn what_has_no_text_for_the_device_names_the_remedy() {
    let gpu = seeded(1);
    for (image, remedy) in [
        (MACHINE_CODE, "-gencode arch=compute_XX,code=compute_XX"),
        (b"\x7fELF\x02\x01\x01\x33", "-gencode arch=compute_XX,code=compute_XX"),
        (NEWER, "PTX for compute_100 and later, and the device has compute_90"),
    ] {
        let loaded = load(&gpu, image.as_ptr().cast(), 512);
        assert_eq!(code(loaded.outcome), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert!(loaded.error.contains(remedy), "{}", loaded.error);
        assert_eq!(loaded.info, "");
    }
    let elsewhere = wrapper(b"nothing");
    let refused = load(&gpu, (&raw const elsewhere).cast(), 512);
    assert_eq!(code(refused.outcome), CUresult::CUDA_ERROR_INVALID_IMAGE);
}

const WRONG: &CStr = c".version 8.0\n.target sm_70\n.visible .entry k() {\n    bra NOWHERE;\n}";
const PARTLY: &CStr =
    c".version 8.0\n.target sm_70\n.visible .entry good() { ret; }\n.visible .entry foreign() {\n    \
    .reg .b32 %r<3>;\n    vadd.s32.s32.s32 %r0, %r1, %r2;\n    ret;\n}";

#[test]
fn the_logs_have_what_the_compiler_says() {
    let gpu = seeded(1);
    let wrong = load(&gpu, WRONG.as_ptr().cast(), 512);
    assert_eq!(code(wrong.outcome), CUresult::CUDA_ERROR_INVALID_PTX);
    let expected = "ptxas application ptx input, line 4, column 5; error   : there is no label `NOWHERE`\n";
    assert_eq!((wrong.error.as_str(), wrong.info.as_str()), (expected, ""));
    let undefined =
        c".version 8.0\n.target sm_70\n.extern .func f();\n.visible .entry k() { call.uni f, (); ret; }";
    let undefined = load(&gpu, undefined.as_ptr().cast(), 512);
    assert_eq!(code(undefined.outcome), CUresult::CUDA_ERROR_INVALID_PTX);
    assert_eq!(undefined.error, "error   : Undefined reference to 'f' in kernel 'k'\n");
    // Cut at the buffer, with the NUL in it.
    for size_bytes in [0, 1, 2, 30] {
        let cut = load(&gpu, WRONG.as_ptr().cast(), size_bytes);
        assert_eq!(cut.error, expected[..size_bytes.saturating_sub(1)]);
    }
    let partly = load(&gpu, PARTLY.as_ptr().cast(), 512);
    let note = "kernel `foreign` cannot run here: line 6, column 5: the instruction `vadd.s32.s32.s32` is not supported";
    assert_eq!((partly.error.as_str(), partly.info), ("", format!("{note}\n")));
    let module = partly.outcome.unwrap();
    let function = |name: &CStr| {
        let mut function = null_mut();
        // SAFETY: pointers are to locals that outlive the call.
        unsafe { gpu.cuModuleGetFunction(&mut function, module, name.as_ptr()) }
    };
    assert!(function(c"good").is_ok());
    assert_eq!(code(function(c"foreign")), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // Without a log, the report has the reasons. They are not silent: the calls have failed.
    let report = gpu.sim().report();
    let last: Vec<String> = report.findings.iter().rev().take(3).rev().map(ToString::to_string).collect();
    assert!(
        last[0].starts_with("refused module: cuModuleLoadDataEx returned CUDA_ERROR_INVALID_PTX"),
        "{last:?}"
    );
    // Known at the load already, which has succeeded.
    assert_eq!(last[1], format!("kernels that cannot run: cuModuleLoadDataEx: {note}"));
    assert!(last[2].starts_with("refused module: cuModuleGetFunction returned CUDA_ERROR_NOT_SUPPORTED"));
    assert!(last[2].ends_with(note), "{last:?}");
    assert!(report.findings.iter().all(|found| matches!(found, Finding::Module { .. })));
    assert!(report.silent_findings().is_empty());
}

/// One finding for a module, whatever calls loaded it and however many kernels cannot run. Those that a Rust function replaces can.
#[test]
fn kernels_that_cannot_run_are_found_at_the_load() {
    static REPLACED: [gpumem_sim::Kernel; 1] = [gpumem_sim::Kernel::new("k0", |_| Ok(()))];
    let kernel = |number: usize| {
        format!(".visible .entry k{number}() {{ .reg .b32 %r<3>; vadd.s32.s32.s32 %r0, %r1, %r2; ret; }}\n")
    };
    let text = |count: usize| {
        let kernels: String = (0..count).map(kernel).collect();
        let text = format!(".version 8.0\n.target sm_70\n.visible .entry good() {{ ret; }}\n{kernels}");
        std::ffi::CString::new(text).unwrap()
    };
    let gpu = seeded(1);
    gpu.sim().register(&REPLACED);
    let found = |text: &CStr| {
        let (mut module, mut library) = (null_mut(), null_mut());
        let image = text.as_ptr().cast();
        // SAFETY: pointers are to locals that outlive the calls.
        unsafe {
            gpu.cuModuleLoadData(&mut module, image).unwrap();
            let none = (null_mut(), null_mut(), null_mut(), null_mut());
            gpu.cuLibraryLoadData(&mut library, image, none.0, none.1, 0, none.2, none.3, 0).unwrap();
        }
        let found = gpu.sim().take_findings();
        assert!(found.iter().all(|finding| !finding.is_silent()));
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(found(&text(1)), [""; 0]);
    let cannot = |number: usize| {
        format!(
            "kernel `k{number}` cannot run here: line {}, column 41: the instruction `vadd.s32.s32.s32` is not supported",
            4 + number
        )
    };
    let loads = ["cuModuleLoadData", "cuLibraryLoadData"];
    assert_eq!(found(&text(2)), loads.map(|call| format!("kernels that cannot run: {call}: {}", cannot(1))));
    let many = found(&text(9));
    assert_eq!(many.len(), 2, "{many:?}");
    assert!(many[0].ends_with(&format!("{}; and 4 other kernels cannot", cannot(4))), "{many:?}");
}

const TARGET: CUjit_option = CUjit_option::CU_JIT_TARGET;

/// Loads a text with one option.
fn load_with(gpu: &Machine, text: &CStr, mut option: CUjit_option, value: usize) -> Result<(), DriverError> {
    let (mut module, mut value) = (null_mut(), std::ptr::without_provenance_mut(value));
    // SAFETY: pointers are to locals that outlive the call, and the option has a number.
    unsafe { gpu.cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 1, &mut option, &mut value) }
}

#[test]
fn a_target_is_the_devices_or_refused() {
    let gpu = seeded(1);
    let text = c".version 8.0\n.target sm_80";
    for target in [CUjit_target::CU_TARGET_COMPUTE_90, CUjit_target::CU_TARGET_COMPUTE_90A] {
        load_with(&gpu, text, TARGET, target.0 as usize).unwrap();
    }
    for (target, reason) in [
        (CUjit_target::CU_TARGET_COMPUTE_70, "the PTX is for sm_80, and CU_JIT_TARGET asks for sm_70"),
        (CUjit_target::CU_TARGET_COMPUTE_80, "CU_JIT_TARGET asks for sm_80, and the device has sm_90"),
        (CUjit_target::CU_TARGET_COMPUTE_120A, "CU_JIT_TARGET asks for sm_120, and the device has sm_90"),
    ] {
        let refused = load_with(&gpu, text, TARGET, target.0 as usize);
        assert_eq!(code(refused), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        let report = gpu.sim().report();
        assert!(report.to_string().contains(reason), "{report}");
    }
}

#[test]
fn options_are_known_or_refused() {
    let gpu = seeded(1);
    let text = c".version 8.0\n.target sm_70";
    let with = |option: u32| load_with(&gpu, text, CUjit_option_enum(option), 0);
    for option in (0..CUjit_option::CU_JIT_NUM_OPTIONS.0).filter(|option| *option != TARGET.0) {
        // A null buffer for a log is none.
        with(option).unwrap();
    }
    for option in [CUjit_option::CU_JIT_NUM_OPTIONS.0, 1000, u32::MAX] {
        assert_eq!(code(with(option)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut module = null_mut();
    // SAFETY: the driver refuses null options.
    let refused =
        unsafe { gpu.cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 1, null_mut(), null_mut()) };
    assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_VALUE);
}

const VARIABLES: &CStr = c"
.version 8.0
.target sm_70
.visible .global .align 4 .u32 used[3] = {1, 2, 3};
.visible .const .align 8 .u64 unused[2] = {pointed, 7};
.global .align 4 .u32 pointed = 9;
.extern .global .align 4 .u32 elsewhere;
.shared .align 4 .u32 shared[4];
.visible .entry k(.param .u64 out) {
    .reg .b32 %r; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [out]; ld.global.u32 %r, [used+8]; st.global.u32 [%rd0], %r; ret;
}";

#[test]
fn variables_have_an_address_a_size_and_their_contents() {
    let gpu = seeded(1);
    let mut module = null_mut();
    // SAFETY: pointers are to locals that outlive the call.
    unsafe { gpu.cuModuleLoadData(&mut module, VARIABLES.as_ptr().cast()).unwrap() };
    let global = |name: &CStr| {
        let (mut address, mut size_bytes) = (0, 0);
        // SAFETY: pointers are to locals that outlive the call.
        unsafe { gpu.cuModuleGetGlobal_v2(&mut address, &mut size_bytes, module, name.as_ptr())? };
        Ok::<_, DriverError>((address, size_bytes))
    };
    let stream = gpu.stream();
    let words = |(address, size_bytes): (u64, usize)| {
        let bytes = gpu.download(stream, address, size_bytes);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(words(global(c"used").unwrap()), [1, 2, 3]);
    let unused = words(global(c"unused").unwrap());
    let pointed = global(c"pointed").unwrap();
    assert_eq!((pointed.1, words(pointed)), (4, vec![9]));
    assert_eq!(unused, [pointed.0 as u32, (pointed.0 >> 32) as u32, 7, 0]);
    for name in [c"elsewhere", c"shared", c"k", c"nothing"] {
        assert_eq!(code(global(name)), CUresult::CUDA_ERROR_NOT_FOUND, "{name:?}");
    }
    // What the host writes, kernels read.
    gpu.upload(stream, global(c"used").unwrap().0 + 8, &33_u32.to_le_bytes());
    gpu.sync(stream);
    let mut function = null_mut();
    // SAFETY: pointers are to locals that outlive the call.
    unsafe { gpu.cuModuleGetFunction(&mut function, module, c"k".as_ptr()).unwrap() };
    assert_eq!(stored(&gpu, function).unwrap(), 33);
    let sizes: (*mut u64, *mut usize) = (null_mut(), null_mut());
    // SAFETY: the places may be null, and the module is this machine's.
    unsafe {
        gpu.cuModuleGetGlobal_v2(sizes.0, sizes.1, module, c"used".as_ptr()).unwrap();
        gpu.cuModuleUnload(module).unwrap();
    }
    assert!(gpu.sim().report().silent_findings().is_empty());
    assert_eq!(code(global(c"used")), CUresult::CUDA_ERROR_INVALID_HANDLE);
}

/// Bytes of a fat binary with some of them changed, cut off or repeated.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let image = prop::sample::select(vec![PLAIN, LZ4, ZSTD, MIXED, NEWER, MACHINE_CODE]);
    let change = (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(0xFF)]);
    (image, prop::collection::vec(change, 0..8), any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(image, changes, end, is_cut)| {
            let mut bytes = image.to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if is_cut {
                bytes.truncate(end.index(bytes.len()));
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 3000 }, ..ProptestConfig::default() })]

    /// A link takes the size of its inputs from the caller, so no header can make it read further.
    #[test]
    fn hostile_fat_binaries_are_refused_or_loaded(mut bytes in damaged()) {
        let gpu = seeded(1);
        let (mut link, name): (CUlinkState, *const c_char) = (null_mut(), null_mut());
        let (data, len, kind) =
            (bytes.as_mut_ptr().cast(), bytes.len(), CUjitInputType::CU_JIT_INPUT_FATBINARY);
        // SAFETY: pointers are to locals that outlive the calls, and the size is that of the bytes.
        unsafe {
            gpu.cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link).unwrap();
            let added = gpu.cuLinkAddData_v2(link, kind, data, len, name, 0, null_mut(), null_mut());
            let code = code(added);
            prop_assert!(code != CUresult::CUDA_ERROR_UNKNOWN, "a panic");
            gpu.cuLinkDestroy(link).unwrap();
        }
    }
}

/// Memory whose last bytes lie before memory that nobody may read.
struct Guarded {
    pages: *mut c_void,
    bytes: usize,
    image: *const c_void,
}

const GUARD_BYTES: usize = 64 << 10;

impl Guarded {
    fn new(image: &[u8]) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let before = image.len().next_multiple_of(GUARD_BYTES);
        let bytes = before + GUARD_BYTES;
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, of which the last part is made inaccessible before anything refers to it; the image fits before that part.
        unsafe {
            let pages = mmap_anonymous(null_mut(), bytes, flags, MapFlags::PRIVATE).unwrap();
            mprotect(pages.byte_add(before), GUARD_BYTES, MprotectFlags::empty()).unwrap();
            let start = pages.byte_add(before - image.len());
            start.cast::<u8>().copy_from_nonoverlapping(image.as_ptr(), image.len());
            Self { pages, bytes, image: start }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which nothing refers any more.
        unsafe { rustix::mm::munmap(self.pages, self.bytes).unwrap() };
    }
}

/// Loads an image by all functions that take one without its size. Reads behind it would end the process.
fn load_by_all(gpu: &Machine, image: &[u8]) {
    let guarded = Guarded::new(image);
    let in_wrapper = Wrapper { magic: 0x4662_43B1, version: 1, data: guarded.image.cast(), name: null_mut() };
    let wrapped: *const c_void = (&raw const in_wrapper).cast();
    let (mut module, mut library) = (null_mut(), null_mut());
    let none = (null_mut(), null_mut(), null_mut(), null_mut());
    for image in [guarded.image, wrapped] {
        // SAFETY: pointers are to locals that outlive the calls; the image has as many bytes as its header says, or ends in NUL.
        let codes = unsafe {
            [
                gpu.cuModuleLoadData(&mut module, image),
                gpu.cuModuleLoadDataEx(&mut module, image, 0, null_mut(), null_mut()),
                gpu.cuModuleLoadFatBinary(&mut module, image),
                gpu.cuLibraryLoadData(&mut library, image, none.0, none.1, 0, none.2, none.3, 0),
            ]
        };
        for code in codes.map(code) {
            assert_ne!(code, CUresult::CUDA_ERROR_UNKNOWN, "a panic");
        }
    }
}

/// Fat binaries that say wrong sizes, each with as many bytes as its header states, or the header alone if it states none that can be.
fn lying() -> impl Strategy<Value = Vec<u8>> {
    // The fields of the header, and those of the first entry.
    let field = prop::sample::select(vec![4, 6, 8, 16, 20, 24, 32, 36, 44, 56, 57, 72, 76]);
    let number = prop_oneof![
        any::<u64>(),
        0_u64..2048,
        prop::sample::select(vec![u64::MAX, u64::from(u32::MAX), 1 << 63, 1 << 31, (64 << 20) + 1, 64 << 20]),
    ];
    let change = (field, number, prop::sample::select(vec![2_usize, 4, 8]));
    (damaged(), prop::collection::vec(change, 0..3)).prop_map(|(mut bytes, changes)| {
        bytes.resize(bytes.len().max(96), 0);
        for (at, number, len) in changes {
            bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
        }
        bytes[..4].copy_from_slice(&PLAIN[..4]);
        let header_bytes = u64::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        let stated = header_bytes.saturating_add(u64::from_le_bytes(bytes[8..16].try_into().unwrap()));
        let is_sound = header_bytes >= 16 && stated <= 1 << 30;
        bytes.resize(if is_sound { stated.min(1 << 20) as usize } else { 16 }, 0x5A);
        // More than that would be a test of the host's memory.
        if is_sound && stated > 1 << 20 {
            bytes[8..16].copy_from_slice(&((1_u64 << 20) - header_bytes).to_le_bytes());
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "maps memory that nobody may read")]
    fn no_more_is_read_than_a_header_states(bytes in lying()) {
        load_by_all(&seeded(1), &bytes);
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps memory that nobody may read")]
fn no_more_is_read_than_an_image_has() {
    let gpu = seeded(1);
    for image in [PLAIN, LZ4, ZSTD, MIXED, NEWER, MACHINE_CODE] {
        load_by_all(&gpu, image);
    }
    let text = b".version 8.0\n.target sm_80\n// the last line\0";
    for image in [
        &b"\0"[..],
        b"\x7f\0",
        b"\x7fEL\0",
        b"\x50\xED\0",
        b"\xB1\x43\0",
        b"\xff\xfe\xfd\0",
        b"\x7fELF",
        text,
    ] {
        load_by_all(&gpu, image);
    }
}

/// Comments come from a source, in whatever encoding that has.
#[test]
fn a_comment_may_have_bytes_that_are_no_characters() {
    let gpu = seeded(1);
    let load = |text: &[u8]| {
        let text = std::ffi::CString::new(text).unwrap();
        load(&gpu, text.as_ptr().cast(), 512)
    };
    load(b".version 8.0\n.target sm_80\n// na\xefve\n/* \xe9t\xe9 */ .entry k() { ret; }").outcome.unwrap();
    let name = load(b".version 8.0\n.target sm_80\n.entry na\xefve() { ret; }");
    assert_eq!(code(name.outcome), CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(name.error.contains("line 3, column 10"), "{}", name.error);
    let neither = load(b"\xff\xfe\xfd");
    assert_eq!(code(neither.outcome), CUresult::CUDA_ERROR_INVALID_IMAGE);
}
