//! Links: several texts become one module.

use super::images::{LZ4, stored};
use super::*;
use std::ffi::{CStr, CString};

const CALLER: &str = "
.version 8.0
.target sm_70
.extern .func (.param .b32 result) bias(.param .b32 value);
.extern .global .align 4 .u32 start;
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<2>; .reg .b64 %rd; .param .b32 value; .param .b32 result;
    ld.param.u64 %rd, [out];
    ld.global.u32 %r0, [start];
    st.param.b32 [value], %r0;
    call.uni (result), bias, (value);
    ld.param.b32 %r1, [result];
    st.global.u32 [%rd], %r1;
    ret;
}";

const CALLEE: &str = "
.version 8.0
.target sm_80
.visible .global .align 4 .u32 start = 40;
.visible .func (.param .b32 result) bias(.param .b32 value) {
    .reg .b32 %r;
    ld.param.b32 %r, [value]; add.u32 %r, %r, 2; st.param.b32 [result], %r; ret;
}";

struct Link<'a> {
    gpu: &'a Machine,
    state: CUlinkState,
    error: Vec<u8>,
    values: Vec<*mut c_void>,
}

impl<'a> Link<'a> {
    fn new(gpu: &'a Machine) -> Self {
        let mut link = Link { gpu, state: null_mut(), error: vec![0x55; 512], values: Vec::new() };
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        link.values = vec![link.error.as_mut_ptr().cast(), std::ptr::without_provenance_mut(512)];
        let values = link.values.as_mut_ptr();
        // SAFETY: buffer and values live as long as the link.
        unsafe { gpu.cuLinkCreate_v2(2, options.as_mut_ptr(), values, &mut link.state).unwrap() };
        link
    }

    fn add(&self, kind: CUjitInputType, image: &[u8]) -> Result<(), DriverError> {
        let (data, name) = (image.as_ptr().cast_mut().cast(), c"input".as_ptr());
        // SAFETY: the size is that of the bytes.
        unsafe {
            self.gpu.cuLinkAddData_v2(self.state, kind, data, image.len(), name, 0, null_mut(), null_mut())
        }
    }

    fn add_text(&self, text: &str) -> Result<(), DriverError> {
        let text = CString::new(text).unwrap();
        self.add(CUjitInputType::CU_JIT_INPUT_PTX, text.to_bytes_with_nul())
    }

    fn complete(&self) -> Result<&[u8], DriverError> {
        let (mut image, mut size_bytes) = (null_mut(), 0);
        // SAFETY: pointers are to locals that outlive the call; the image lives as long as the link.
        unsafe {
            self.gpu.cuLinkComplete(self.state, &mut image, &mut size_bytes)?;
            Ok(std::slice::from_raw_parts(image.cast(), size_bytes))
        }
    }

    fn log(&self) -> String {
        let text = CStr::from_bytes_until_nul(&self.error).unwrap().to_str().unwrap();
        assert_eq!(text.len(), self.values[1].addr());
        text.into()
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: the link was created by this machine.
        unsafe { self.gpu.cuLinkDestroy(self.state).unwrap() };
    }
}

fn run(gpu: &Machine, image: &[u8], name: &CStr) -> u32 {
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the image is whole; pointers are to locals that outlive the calls.
    unsafe {
        gpu.cuModuleLoadData(&mut module, image.as_ptr().cast()).unwrap();
        gpu.cuModuleGetFunction(&mut function, module, name.as_ptr()).unwrap();
    }
    stored(gpu, function).unwrap()
}

#[test]
fn what_one_text_declares_another_defines() {
    let gpu = seeded(1);
    let link = Link::new(&gpu);
    link.add_text(CALLER).unwrap();
    link.add_text(CALLEE).unwrap();
    link.add(CUjitInputType::CU_JIT_INPUT_FATBINARY, LZ4).unwrap();
    let image = link.complete().unwrap();
    assert_eq!((run(&gpu, image, c"k"), run(&gpu, image, c"store")), (42, 80));
    // The image is one until the link is destroyed, and a file of it is an image, too.
    assert_eq!(link.complete().unwrap().as_ptr(), image.as_ptr());
    let copy = image.to_vec();
    drop(link);
    assert_eq!(run(&gpu, &copy, c"k"), 42);
    let again = Link::new(&gpu);
    again.add(CUjitInputType::CU_JIT_INPUT_CUBIN, &copy).unwrap();
    again.add_text(".version 8.0\n.target sm_70\n.visible .entry other() { ret; }").unwrap();
    assert_eq!(run(&gpu, again.complete().unwrap(), c"k"), 42);
    assert_eq!(again.log(), "");
}

#[test]
fn files_are_inputs() {
    let gpu = seeded(1);
    let link = Link::new(&gpu);
    let path = |name: &str| std::env::temp_dir().join(format!("gpumem-link-{}-{name}", std::process::id()));
    for (name, text) in [("caller.ptx", CALLER), ("callee.ptx", CALLEE)] {
        let path = path(name);
        std::fs::write(&path, text).unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let (kind, none) = (CUjitInputType::CU_JIT_INPUT_PTX, null_mut());
        // SAFETY: the name is a string.
        unsafe { gpu.cuLinkAddFile_v2(link.state, kind, name.as_ptr(), 0, none, null_mut()).unwrap() };
        std::fs::remove_file(&path).unwrap();
        // SAFETY: the name is a string.
        let gone = unsafe { gpu.cuLinkAddFile_v2(link.state, kind, name.as_ptr(), 0, none, null_mut()) };
        assert_eq!(code(gone), CUresult::CUDA_ERROR_FILE_NOT_FOUND);
    }
    assert_eq!(run(&gpu, link.complete().unwrap(), c"k"), 42);
}

#[test]
fn what_cannot_be_linked_is_named_in_the_log() {
    let gpu = seeded(1);
    let log = |texts: &[&str]| {
        let link = Link::new(&gpu);
        texts.iter().for_each(|text| link.add_text(text).unwrap());
        assert_eq!(code(link.complete()), CUresult::CUDA_ERROR_INVALID_PTX);
        link.log()
    };
    assert_eq!(log(&[CALLER]), "error   : Undefined reference to 'start' in kernel 'k'\n");
    let half = CALLEE.replace(" bias", " other");
    assert_eq!(log(&[CALLER, &half]), "error   : Undefined reference to 'bias' in kernel 'k'\n");
    let twice = log(&[CALLEE, CALLER, CALLEE]);
    assert_eq!(
        twice,
        "ptxas application ptx input 3, line 5, column 10; error   : `bias` is defined twice\n"
    );

    let link = Link::new(&gpu);
    let wrong = link.add_text(".version 8.0\n.target sm_70\n.visible .entry k() { bra L; }");
    assert_eq!(code(wrong), CUresult::CUDA_ERROR_INVALID_PTX);
    let object = link.add(CUjitInputType::CU_JIT_INPUT_LIBRARY, b"!<arch>\n");
    assert_eq!(code(object), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let unknown = link.add(CUjitInputType_enum(77), b"");
    assert_eq!(code(unknown), CUresult::CUDA_ERROR_INVALID_VALUE);
    let machine_code = link.add(CUjitInputType::CU_JIT_INPUT_CUBIN, b"\x7fELF");
    assert_eq!(code(machine_code), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let log = link.log();
    assert_eq!(log.lines().count(), 4, "{log}");
    assert!(
        log.starts_with("ptxas application ptx input, line 3, column 23; error   : there is no label `L`\n")
    );
    assert!(log.contains("it does not read objects, libraries and NVVM") && log.contains("-gencode"));
}
