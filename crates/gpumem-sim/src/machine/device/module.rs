//! Modules: loading, functions and their attributes, checks of a launch.

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::base::handle::Handle;
use crate::device::launch::QueuedLaunch;
use crate::device::module::{Function, Module, REGISTERS_PER_THREAD, Shape};
use crate::device::ptx::{COMPUTE_CAPABILITY, Ptx};
use crate::device::{BLOCK_THREADS_MAX, SHARED_BYTES, SHARED_BYTES_OPTIN};
use crate::machine::Machine;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUfunction_attribute as Attribute;

impl Machine {
    pub(crate) fn module_load(&mut self, context: Handle, image: &[u8]) -> Answer<Handle> {
        let ptx = Ptx::parse(image)?;
        self.modules.insert(Module { context, ptx })
    }

    pub(crate) fn module_unload(&mut self, handle: Handle) -> Answer<()> {
        self.modules.remove(handle).ok_or(INVALID_HANDLE)?;
        self.functions.retain(|function| function.module != handle);
        Ok(())
    }

    /// Unloads the modules of a destroyed context.
    pub(crate) fn modules_forget(&mut self, context: Handle) {
        self.modules.retain(|module| module.context != context);
        self.functions.retain(|function| function.context != context);
    }

    /// An entry of the module for which a kernel is registered; the same handle each time.
    pub(crate) fn module_function(&mut self, module: Handle, name: &str) -> Answer<Handle> {
        let found = self.modules.get(module).ok_or(INVALID_HANDLE)?;
        let signature = found.ptx.entries.get(name).ok_or(NOT_FOUND)?.clone();
        let kernel = *self.kernels.get(name).ok_or(NOT_FOUND)?;
        let known = self.functions.iter().find(|(_, f)| f.module == module && f.kernel.name == name);
        if let Some((handle, _)) = known {
            return Ok(handle);
        }
        let (context, target) = (found.context, found.ptx.target);
        let shared_bytes_max = SHARED_BYTES;
        self.functions.insert(Function { module, context, kernel, signature, shared_bytes_max, target })
    }

    pub(crate) fn function(&self, handle: Handle) -> Answer<&Function> {
        self.functions.get(handle).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn function_attribute(&self, handle: Handle, attribute: Attribute) -> Answer<i32> {
        let function = self.function(handle)?;
        match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => Ok(BLOCK_THREADS_MAX as i32),
            Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => Ok(REGISTERS_PER_THREAD),
            Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => Ok(function.target as i32),
            Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => Ok(COMPUTE_CAPABILITY as i32),
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => Ok(function.shared_bytes_max),
            other if other.0 < Attribute::CU_FUNC_ATTRIBUTE_MAX.0 => Ok(0),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn function_set_attribute(
        &mut self,
        handle: Handle,
        attribute: Attribute,
        value: i32,
    ) -> Answer<()> {
        let function = self.functions.get_mut(handle).ok_or(INVALID_HANDLE)?;
        match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                if (0..=SHARED_BYTES_OPTIN).contains(&value) =>
            {
                function.shared_bytes_max = value;
                Ok(())
            }
            Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Queues a kernel; `parameters` are packed by its signature.
    pub(crate) fn launch(
        &mut self,
        stream: Handle,
        function: Handle,
        shape: Shape,
        parameters: Box<[u8]>,
    ) -> Answer<()> {
        let (handle, function) = (function, self.function(function)?);
        if self.streams.get(stream).ok_or(INVALID_HANDLE)?.context != function.context {
            return Err(INVALID_HANDLE);
        }
        shape.check(function.shared_bytes_max)?;
        let launch = QueuedLaunch {
            function: handle,
            kernel: function.kernel,
            signature: function.signature.clone(),
            parameters,
            shape,
        };
        self.enqueue(stream, Operation::Launch(Box::new(launch)));
        Ok(())
    }
}
