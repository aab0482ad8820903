//! [`Module`] and [`Function`]: loaded kernels of this crate and of the user.
//!
//! A module is unloaded when the last of its clones and functions is dropped. The drop waits for the device, because a queued kernel
//! still needs its code.

pub(crate) mod library;
#[cfg(feature = "sim")]
mod twins;

use crate::error::ArrayError;
use core::fmt;
use gpumem_pool::sys::types::{CUfunc_st, CUfunction, CUmod_st, CUresult};
use gpumem_pool::{Device, PoolError};
use std::ffi::CString;
use std::sync::Arc;

/// Kernels loaded from one PTX text; see [`Gpu::module`](crate::Gpu::module). Clones share them.
///
/// Dropping the last clone and the last [`Function`] of a module waits for the device.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    device: Device,
    raw: Handle<CUmod_st>,
}

/// A kernel of a [`Module`]. It keeps the module loaded.
#[derive(Clone)]
pub struct Function {
    module: Module,
    raw: Handle<CUfunc_st>,
    name: Arc<str>,
}

impl Module {
    pub(crate) fn load(device: &Device, ptx: &str) -> Result<Self, ArrayError> {
        let ptx = CString::new(ptx).map_err(|_| ArrayError::ZeroByte { what: "the PTX" })?;
        let (_bound, _relaxed) = (device.bind()?, device.relax()?);
        let mut raw = core::ptr::null_mut();
        // SAFETY: the text ends with a zero byte and outlives the call; the context is current.
        unsafe { device.driver().cuModuleLoadData(&mut raw, ptx.as_ptr().cast())? };
        Ok(Self(Arc::new(Loaded { device: device.clone(), raw: Handle(raw) })))
    }

    /// Returns the kernel of this name.
    ///
    /// # Errors
    ///
    /// [`ArrayError::NoSuchKernel`] if the module has no such kernel, or if no twin of it is registered on the simulator;
    /// [`ArrayError::ZeroByte`] if the name contains a zero byte; [`ArrayError::Pool`] if a driver call fails.
    pub fn function(&self, name: &str) -> Result<Function, ArrayError> {
        let text = CString::new(name).map_err(|_| ArrayError::ZeroByte { what: "the kernel's name" })?;
        let Loaded { device, raw: module } = &*self.0;
        let (_bound, _relaxed) = (device.bind()?, device.relax()?);
        let mut raw = core::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero byte and outlives the call.
        let found = unsafe { device.driver().cuModuleGetFunction(&mut raw, module.0, text.as_ptr()) };
        match found {
            Ok(()) => Ok(Function { module: self.clone(), raw: Handle(raw), name: name.into() }),
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_FOUND => {
                Err(ArrayError::NoSuchKernel { name: name.into() })
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Function {
    /// The name in the PTX.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn device(&self) -> &Device {
        &self.module.0.device
    }

    pub(crate) fn raw(&self) -> CUfunction {
        self.raw.0
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The end of a context unloads its modules. During a capture the device cannot be waited for, and the module stays loaded.
        let unload = || -> Result<(), PoolError> {
            let _bound = self.device.bind()?;
            self.device.synchronize_for_drop()?;
            // A capture may have begun since. It has none of the module's kernels, and with relaxed mode the unload does not break it.
            let _relaxed = self.device.relax()?;
            let _guard = self.device.driver().teardown();
            // SAFETY: the last handle is going, so that no kernel of the module can be launched any more, and everything that
            // was queued on the device before the wait has run: it fails if a capture keeps it from waiting for all of it.
            unsafe { self.device.driver().cuModuleUnload(self.raw.0)? };
            Ok(())
        };
        let _ = unload();
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("device", &self.0.device).finish_non_exhaustive()
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A handle of the driver, which any thread may pass to it.
struct Handle<T>(*mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

// SAFETY: the pointer is a name that only the driver follows, and its functions take it on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a shared handle gives away only the name, and the driver locks what threads share behind it.
unsafe impl<T> Sync for Handle<T> {}
