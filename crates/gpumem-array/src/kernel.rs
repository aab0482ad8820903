//! [`Module`] and [`Function`]: loaded kernels of this crate and of the user.
//!
//! A module is unloaded when the last of its clones and functions is dropped. The drop waits for the device, because a queued kernel
//! still needs its code.

pub(crate) mod generated;
pub(crate) mod library;
#[cfg(feature = "nvrtc")]
mod nvrtc;
pub(crate) mod parameters;
mod signature;
pub(crate) mod source;
pub(crate) mod table;
mod text;

use crate::error::ArrayError;
use core::ffi::c_void;
use gpumem_pool::sys::fork;
use gpumem_pool::sys::text::{Shown, debug_fields};
use gpumem_pool::sys::types::{CUfunc_st, CUfunction, CUjit_option, CUmod_st, CUresult};
use gpumem_pool::{Device, DeviceError, not_forked};
use signature::Signatures;
pub(crate) use signature::{Parameter, Signature};
use source::{KernelSource, Language};
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Loaded kernels; see [`Gpu::compile`](crate::Gpu::compile). Clones share them.
///
/// Dropping the last clone and the last [`Function`] of a module waits for the device.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    device: Device,
    raw: DriverHandle<CUmod_st>,
    /// Empty for the checked-in modules of this crate.
    signatures: Signatures,
    /// The driver's log about a user's text, if it wrote one.
    said: Option<Box<Said>>,
}

/// A driver's log, and the name of the text that it is about.
struct Said {
    source_name: String,
    log: String,
}

/// A kernel of a [`Module`]. It keeps the module loaded.
#[derive(Clone)]
pub struct Function {
    module: Module,
    raw: DriverHandle<CUfunc_st>,
    name: KernelName,
    /// `None` if this crate cannot parse the PTX there.
    signature: Option<Signature>,
    /// The sizes of the parameters; `None` if no launch can have them.
    sizes_bytes: Option<Arc<[u16]>>,
}

/// A text of this crate with one kernel, as the driver takes it, and the parameters of the kernel.
pub(crate) struct OwnText {
    image: Vec<u8>,
    signature: Option<Signature>,
    sizes_bytes: Option<Arc<[u16]>>,
}

impl OwnText {
    pub(crate) fn new(text: &str, name: &str) -> Result<Self, ArrayError> {
        let signature = Signatures::of_entry(text, name);
        let sizes_bytes = signature.as_deref().and_then(sizes_bytes);
        Ok(Self { image: image(text)?, signature, sizes_bytes })
    }

    /// Loads the kernel.
    pub(crate) fn load(&self, device: &Device, name: &str) -> Result<Function, ArrayError> {
        let loaded = Loaded::load(device, &self.image, Signatures::default())?;
        let function = Module(Arc::new(loaded)).function(name)?;
        let (signature, sizes_bytes) = (self.signature.clone(), self.sizes_bytes.clone());
        Ok(Function { signature, sizes_bytes, ..function })
    }
}

/// The number of arguments that a launch can have.
pub(crate) const ARGUMENTS_MAX: usize = 32;

impl Module {
    /// Loads a text of this crate, for [`Module::own_function`].
    pub(crate) fn load_own(device: &Device, ptx: &str) -> Result<Self, ArrayError> {
        Ok(Self(Arc::new(Loaded::load(device, &image(ptx)?, Signatures::default())?)))
    }

    /// Loads kernels, compiled first if they are CUDA text.
    pub(crate) fn compile(device: &Device, source: &KernelSource<'_>) -> Result<Self, ArrayError> {
        not_forked()?;
        let (image, signatures) = match source.language() {
            Language::Ptx => (image(source.text())?, Signatures::parse(source.text())),
            Language::Cuda => compiled(device, source)?,
        };
        Ok(Self(Arc::new(Loaded::load_logged(device, &image, signatures, source.name())?)))
    }

    /// Returns the kernel with this name.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoSuchKernel`] if the module has no such kernel, [`ArrayError::ZeroByte`] if the name contains a zero byte,
    /// [`ArrayError::Compile`] if the simulator cannot run the kernel, [`ArrayError::Pool`] if a driver call fails.
    pub fn function(&self, name: &str) -> Result<Function, ArrayError> {
        let text = CString::new(name).map_err(|_| ArrayError::ZeroByte { what: "the kernel's name" })?;
        let Loaded { device, raw: module, signatures, said } = &*self.0;
        let (_bound, _relaxed) = (device.bind()?, device.relax()?);
        let mut raw = core::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero byte and outlives the call.
        match unsafe { device.driver().cuModuleGetFunction(&mut raw, module.0, text.as_ptr()) } {
            Ok(()) => {
                let (name, signature) = (KernelName::new(name), signatures.of(name));
                let sizes_bytes = signature.as_deref().and_then(sizes_bytes);
                Ok(Function { module: self.clone(), raw: DriverHandle(raw), name, signature, sizes_bytes })
            }
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_FOUND => {
                Err(ArrayError::NoSuchKernel { name: name.into() })
            }
            Err(error) => Err(match said {
                Some(said) if error.code() == CUresult::CUDA_ERROR_NOT_SUPPORTED => said.error(),
                _ => error.into(),
            }),
        }
    }
}

impl Module {
    /// A kernel of this crate, of the text that this module was loaded from.
    pub(crate) fn own_function(&self, text: &str, name: &str) -> Result<Function, ArrayError> {
        let (function, signature) = (self.function(name)?, Signatures::of_entry(text, name));
        let sizes_bytes = signature.as_deref().and_then(sizes_bytes);
        Ok(Function { signature, sizes_bytes, ..function })
    }
}

impl Function {
    /// The name in the PTX.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.text
    }

    pub(crate) fn known_name(&self) -> &KernelName {
        &self.name
    }

    #[inline]
    pub(crate) fn signature(&self) -> Option<&[Parameter]> {
        self.signature.as_deref()
    }

    /// True if the sizes of the parameters are known and equal to these. False decides nothing.
    #[inline]
    pub(crate) fn has_sizes(&self, sizes_bytes: &[u16]) -> bool {
        // Compared one by one: a wider load would wait for the preceding stores of the arguments.
        let are = |known: &[u16]| {
            known.len() == sizes_bytes.len() && known.iter().zip(sizes_bytes).all(|(a, b)| a == b)
        };
        self.sizes_bytes.as_deref().is_some_and(are)
    }

    #[inline]
    pub(crate) fn device(&self) -> &Device {
        &self.module.0.device
    }

    pub(crate) fn raw(&self) -> CUfunction {
        self.raw.0
    }
}

impl Loaded {
    /// The image ends with a zero byte if it is text.
    fn load(device: &Device, image: &[u8], signatures: Signatures) -> Result<Self, ArrayError> {
        not_forked()?;
        let (_bound, _relaxed) = (device.bind()?, device.relax()?);
        let mut raw = core::ptr::null_mut();
        // SAFETY: the image is machine code of the CUDA compiler, or text that ends with a zero byte, and outlives the call; the
        // context is current.
        unsafe { device.driver().cuModuleLoadData(&mut raw, image.as_ptr().cast())? };
        Ok(Self { device: device.clone(), raw: DriverHandle(raw), signatures, said: None })
    }

    /// Loads a user's image. If the driver refuses it, the error is the driver's log, which has the line; the code has none.
    fn load_logged(
        device: &Device,
        image: &[u8],
        signatures: Signatures,
        source_name: &str,
    ) -> Result<Self, ArrayError> {
        not_forked()?;
        let (_bound, _relaxed) = (device.bind()?, device.relax()?);
        let (mut raw, mut errors, mut notes) =
            (core::ptr::null_mut(), vec![0_u8; LOG_BYTES], vec![0_u8; LOG_BYTES]);
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CUjit_option::CU_JIT_INFO_LOG_BUFFER,
            CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        let size = core::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut values = [errors.as_mut_ptr().cast(), size, notes.as_mut_ptr().cast(), size];
        // SAFETY: as in `load`; the options have the types that the driver documents, the buffers are as large as they say, and all outlive the
        // call.
        let loaded = unsafe {
            device.driver().cuModuleLoadDataEx(
                &mut raw,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        // When the simulator loads a module, its log lists the kernels that it cannot run.
        let log = if loaded.is_ok() { &notes } else { &errors };
        let text = log.split(|byte| *byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default();
        let said = (!text.trim().is_empty())
            .then(|| Box::new(Said { source_name: source_name.into(), log: text.trim().into() }));
        match (loaded, said) {
            (Ok(()), said) => Ok(Self { device: device.clone(), raw: DriverHandle(raw), signatures, said }),
            (Err(error), Some(said)) if is_about_image(error.code()) => Err(said.error()),
            (Err(error), _) => Err(error.into()),
        }
    }
}

/// True for the codes of a text or of machine code that the driver does not take.
fn is_about_image(code: CUresult) -> bool {
    [
        CUresult::CUDA_ERROR_INVALID_PTX,
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUresult::CUDA_ERROR_INVALID_IMAGE,
    ]
    .contains(&code)
}

impl Said {
    fn error(&self) -> ArrayError {
        ArrayError::Compile { source_name: self.source_name.clone(), log: self.log.clone() }
    }
}

/// The bytes of a log that the driver writes. It cuts longer ones.
const LOG_BYTES: usize = 1 << 14;

/// `None` for parameters that no launch can have.
fn sizes_bytes(parameters: &[Parameter]) -> Option<Arc<[u16]>> {
    let size_bytes = |parameter: &Parameter| u16::try_from(parameter.size_bytes).ok();
    let sizes_bytes: Option<Arc<[u16]>> = parameters.iter().map(size_bytes).collect();
    sizes_bytes.filter(|sizes_bytes| sizes_bytes.len() <= ARGUMENTS_MAX)
}

/// A text in the form that the driver takes.
fn image(ptx: &str) -> Result<Vec<u8>, ArrayError> {
    let ptx = CString::new(ptx).map_err(|_| ArrayError::ZeroByte { what: "the PTX" })?;
    Ok(ptx.into_bytes_with_nul())
}

#[cfg(feature = "nvrtc")]
fn compiled(device: &Device, source: &KernelSource<'_>) -> Result<(Vec<u8>, Signatures), ArrayError> {
    let program = nvrtc::compile(source, device.compute_capability())?;
    let image = match &program.machine_code {
        Some(code) if device.driver().kind() == gpumem_pool::sys::DriverKind::Cuda => code.clone(),
        _ => image(&program.ptx)?,
    };
    Ok((image, Signatures::parse(&program.ptx)))
}

#[cfg(not(feature = "nvrtc"))]
fn compiled(_device: &Device, _source: &KernelSource<'_>) -> Result<(Vec<u8>, Signatures), ArrayError> {
    Err(ArrayError::NoCompiler {
        reason: "gpumem-array was built without its feature `nvrtc`, which compiles it; enable the feature",
    })
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // Destroying a context unloads its modules.
        let device = &self.device;
        let waited = device.bind().and_then(|_bound| device.synchronize_for_drop());
        match waited.and_then(|()| unload(device, self.raw.0)) {
            Ok(()) | Err(DeviceError::DeviceLost(_)) => {}
            // Waiting for the device is impossible during a capture, and a host function may not call the driver.
            Err(_) => {
                let raw = DriverHandle(self.raw.0);
                device.release_later(move |device| {
                    let DriverHandle(raw) = &raw;
                    unload(device, *raw).is_ok()
                });
            }
        }
    }
}

/// Unloads a module that no thread can launch kernels of, and whose launches are complete.
fn unload(device: &Device, raw: *mut CUmod_st) -> Result<(), DeviceError> {
    let _bound = device.bind()?;
    // A capture may have begun since the wait. It contains none of the module's kernels, and relaxed mode keeps the unload from breaking
    // it.
    let _relaxed = device.relax()?;
    let raw = DriverHandle(raw);
    device.driver().destroy(move |driver| {
        let DriverHandle(raw) = &raw;
        // SAFETY: the last handle is gone, and everything that was queued on the device before its drop has run.
        unsafe { driver.cuModuleUnload(*raw) }
    })?;
    Ok(())
}

debug_fields!(Module, it, device: it.0.device);

debug_fields!(Function, it, name: Shown::name(it.name()));

/// A name with a number, so that a launch records its kernel with one store. The number of a name never changes.
#[derive(Clone)]
pub(crate) struct KernelName {
    text: Arc<str>,
    number: u32,
}

impl KernelName {
    fn new(text: &str) -> Self {
        let mut names = known_names();
        let found = names.iter().position(|known| &**known == text);
        let index = found.unwrap_or_else(|| {
            names.push(text.into());
            names.len() - 1
        });
        Self { text: names[index].clone(), number: index as u32 + 1 }
    }

    /// Not 0.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn of_number(number: u32) -> Option<Arc<str>> {
        known_names().get(number.checked_sub(1)? as usize).cloned()
    }
}

fn known_names() -> MutexGuard<'static, Vec<Arc<str>>> {
    static NAMES: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle of the driver, which any thread may pass to it.
struct DriverHandle<T>(*mut T);

impl<T> Clone for DriverHandle<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

// SAFETY: the pointer is a name that only the driver follows, and its functions take it on any thread.
unsafe impl<T> Send for DriverHandle<T> {}
// SAFETY: a shared handle gives away only the name, and the driver locks what threads share behind it.
unsafe impl<T> Sync for DriverHandle<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_known_if_a_launch_can_have_them_all() {
        let sizes = |sizes_bytes: &[usize]| {
            let parameter = |size_bytes| Parameter { name: String::new(), size_bytes };
            let parameters: Vec<_> = sizes_bytes.iter().copied().map(parameter).collect();
            super::sizes_bytes(&parameters)
        };
        for known in [&[8, 4, 512][..], &[8; ARGUMENTS_MAX]] {
            let found = sizes(known).unwrap();
            assert!(found.iter().map(|size| usize::from(*size)).eq(known.iter().copied()));
        }
        for unknown in [vec![8; ARGUMENTS_MAX + 1], vec![8, 1 << 16]] {
            assert_eq!(sizes(&unknown), None);
        }
    }

    #[test]
    fn without_a_compiler_the_error_names_what_to_install() {
        let device = Device::new(&gpumem_sim::driver(gpumem_sim::SimConfig::new()).unwrap(), 0).unwrap();
        match compiled(&device, &KernelSource::cuda("K", "extern \"C\" __global__ void k() {}")) {
            Err(ArrayError::NoCompiler { reason }) => {
                assert!(reason.contains("nvrtc") || reason.contains("NVRTC"), "{reason}")
            }
            Err(error) => panic!("{error}"),
            Ok((image, signatures)) => assert!(image.len() > 100 && signatures.of("k").is_some()),
        }
    }
}
