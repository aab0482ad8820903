//! The CUDA compiler, as a library: CUDA C++ text becomes PTX and machine code at run time.
//!
//! The library is loaded at the first use, if it is installed. Programs that it has compiled are kept for the lifetime of the process.

use crate::error::ArrayError;
use crate::kernel::source::KernelSource;
use core::ffi::{CStr, c_char, c_int};
use cudarc::nvrtc::sys;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) struct Program {
    pub(crate) ptx: String,
    /// For exactly the architecture of the device, if the compiler supports it.
    pub(crate) machine_code: Option<Vec<u8>>,
}

/// Compiles for a compute capability, or returns an earlier result.
pub(crate) fn compile(source: &KernelSource<'_>, capability: (u32, u32)) -> Result<Arc<Program>, ArrayError> {
    if !is_installed() {
        return Err(ArrayError::NoCompiler { reason: NOT_INSTALLED });
    }
    let key = CompiledKey::new(source, capability);
    if let Some(program) = programs().get(&key) {
        return Ok(program.clone());
    }
    // Outside the lock, so that other texts compile at the same time. If another thread compiles the same text, one result is used.
    let program = Arc::new(build(source, capability)?);
    let mut programs = programs();
    if programs.len() >= PROGRAMS_MAX {
        programs.clear();
    }
    Ok(programs.entry(key).or_insert(program).clone())
}

#[derive(PartialEq, Eq, Hash)]
struct CompiledKey {
    text: String,
    options: Vec<String>,
    capability: (u32, u32),
}

impl CompiledKey {
    fn new(source: &KernelSource<'_>, capability: (u32, u32)) -> Self {
        let options = source.compiler_options().iter().map(|option| (*option).to_owned()).collect();
        Self { text: source.text().to_owned(), options, capability }
    }
}

fn programs() -> MutexGuard<'static, HashMap<CompiledKey, Arc<Program>>> {
    static PROGRAMS: OnceLock<Mutex<HashMap<CompiledKey, Arc<Program>>>> = OnceLock::new();
    PROGRAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Limits the memory of a program that keeps generating texts.
const PROGRAMS_MAX: usize = 1000;

/// True if the library can be loaded. `cudarc` panics in every function if it cannot.
fn is_installed() -> bool {
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
    *IS_INSTALLED.get_or_init(|| unsafe { sys::is_culib_present() })
}

fn build(source: &KernelSource<'_>, capability: (u32, u32)) -> Result<Program, ArrayError> {
    let target = CompileTarget::of(capability);
    let mut options = vec![format!("--gpu-architecture={}", target.option())];
    options.extend(source.compiler_options().iter().map(|option| (*option).to_owned()));
    let zero_byte = |_| ArrayError::ZeroByte { what: "the CUDA text or an option" };
    let text = CString::new(source.text()).map_err(zero_byte)?;
    let name = CString::new(format!("{}.cu", source.name())).map_err(zero_byte)?;
    let options: Vec<CString> =
        options.into_iter().map(CString::new).collect::<Result<_, _>>().map_err(zero_byte)?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

    let failed = |log: String| ArrayError::Compile { source_name: source.name().to_owned(), log };
    let program = NvrtcProgram::create(&text, &name).map_err(|code| failed(describe(code)))?;
    // SAFETY: the program is alive, and the options outlive the call.
    let code = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as c_int, options.as_ptr()) };
    if code != nvrtcResult::NVRTC_SUCCESS {
        let log = program.read(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog).unwrap_or_default();
        let log = String::from_utf8_lossy(until_zero(&log)).trim().to_owned();
        return Err(failed(if log.is_empty() { describe(code) } else { log }));
    }
    let ptx = program.read(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX).map_err(|code| failed(describe(code)))?;
    let ptx = String::from_utf8_lossy(until_zero(&ptx)).into_owned();
    let machine_code = match target {
        CompileTarget::Exact(_) => program.read(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN).ok(),
        CompileTarget::Below(_) => None,
    };
    Ok(Program { ptx, machine_code })
}

/// The architecture to compile for, 90 for 9.0.
enum CompileTarget {
    /// The architecture of the device.
    Exact(u32),
    /// The latest that the compiler supports, for a device that is newer: the driver compiles its PTX further.
    Below(u32),
}

impl CompileTarget {
    fn of((major, minor): (u32, u32)) -> Self {
        let wanted = 10 * major + minor;
        let supported = supported();
        match supported.iter().filter(|supported| **supported <= wanted).max() {
            Some(supported) if *supported == wanted => Self::Exact(wanted),
            Some(supported) => Self::Below(*supported),
            // The compiler is newer than the device, or too old to list architectures; if it refuses, its log has the reason.
            None => Self::Below(wanted),
        }
    }

    fn option(&self) -> String {
        match self {
            Self::Exact(architecture) => format!("sm_{architecture}"),
            Self::Below(architecture) => format!("compute_{architecture}"),
        }
    }
}

/// The architectures that the compiler supports; none if the library is older than CUDA 11.2, which has no function for it.
fn supported() -> Vec<u32> {
    let (mut major, mut minor, mut count) = (0, 0, 0);
    // SAFETY: both numbers outlive the call.
    let code = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    if code != nvrtcResult::NVRTC_SUCCESS || (major, minor) < (11, 2) {
        return Vec::new();
    }
    // SAFETY: the number outlives the call.
    let code = unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) };
    let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
    if code != nvrtcResult::NVRTC_SUCCESS || architectures.is_empty() {
        return Vec::new();
    }
    // SAFETY: the buffer has room for as many numbers as the library has just returned.
    let code = unsafe { sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
    match code {
        nvrtcResult::NVRTC_SUCCESS => {
            architectures.into_iter().filter_map(|found| u32::try_from(found).ok()).collect()
        }
        _ => Vec::new(),
    }
}

struct NvrtcProgram(nvrtcProgram);

impl NvrtcProgram {
    fn create(text: &CStr, name: &CStr) -> Result<Self, nvrtcResult> {
        let (mut program, none) = (core::ptr::null_mut(), core::ptr::null());
        // SAFETY: the strings end with a zero byte, and the library copies them; there are no headers to pass.
        let code =
            unsafe { sys::nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none) };
        if code == nvrtcResult::NVRTC_SUCCESS { Ok(Self(program)) } else { Err(code) }
    }

    /// A result of the compilation: `size` returns its length, `bytes` writes as many.
    fn read(
        &self,
        size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        bytes: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, nvrtcResult> {
        let mut size_bytes = 0;
        // SAFETY: the program is alive, and the number outlives the call.
        let code = unsafe { size(self.0, &mut size_bytes) };
        let mut buffer = vec![0_u8; size_bytes];
        if code != nvrtcResult::NVRTC_SUCCESS {
            return Err(code);
        }
        // SAFETY: callers pass two functions that belong together, so the buffer is as large as what is written.
        match unsafe { bytes(self.0, buffer.as_mut_ptr().cast()) } {
            nvrtcResult::NVRTC_SUCCESS => Ok(buffer),
            code => Err(code),
        }
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program was created once and is destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The name of a result code, for a failure without a log.
fn describe(code: nvrtcResult) -> String {
    format!("the compiler returned {code:?}")
}

const NOT_INSTALLED: &str = "the library NVRTC (`libnvrtc.so`, `nvrtc64_*.dll`), which compiles it, was not found; install it with the CUDA toolkit, or \
                             with `pip install nvidia-cuda-nvrtc-cu12`, and add its folder to the library path (`LD_LIBRARY_PATH`, \
                             `PATH` on Windows)";
