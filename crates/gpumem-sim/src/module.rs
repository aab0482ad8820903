//! Modules, the functions found in them, and launches up to the queue.

use super::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use super::device::{BLOCK_MAX, BLOCK_THREADS_MAX, GRID_MAX, SHARED_BYTES, SHARED_BYTES_OPTIN};
use super::handle::Handle;
use super::launch::{Kernel, QueuedLaunch};
use super::machine::Machine;
use super::operation::Operation;
use super::ptx::{COMPUTE_CAPABILITY, Ptx, Signature};
use gpumem_sys::types::CUfunction_attribute as Attribute;
use std::sync::Arc;

/// A module that a context has loaded.
pub(super) struct Module {
    context: Handle,
    ptx: Ptx,
}

impl Module {
    pub(super) fn entry_count(&self) -> usize {
        self.ptx.entries.len()
    }
}

/// An entry of a module, with the Rust function that stands in for its body.
pub(super) struct Function {
    pub(super) module: Handle,
    pub(super) context: Handle,
    kernel: Kernel,
    pub(super) signature: Arc<Signature>,
    pub(super) shared_bytes_max: i32,
    target: u32,
}

/// How a kernel is to be run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
}

impl Machine {
    pub(super) fn module_load(&mut self, context: Handle, image: &[u8]) -> Answer<Handle> {
        let ptx = Ptx::parse(image)?;
        self.modules.insert(Module { context, ptx })
    }

    pub(super) fn module_unload(&mut self, handle: Handle) -> Answer<()> {
        self.modules.remove(handle).ok_or(INVALID_HANDLE)?;
        self.functions.retain(|function| function.module != handle);
        Ok(())
    }

    /// What a context that goes has loaded goes with it.
    pub(super) fn modules_forget(&mut self, context: Handle) {
        self.modules.retain(|module| module.context != context);
        self.functions.retain(|function| function.context != context);
    }

    /// An entry of the module for which a kernel is registered; the same handle each time.
    pub(super) fn module_function(&mut self, module: Handle, name: &str) -> Answer<Handle> {
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

    pub(super) fn function(&self, handle: Handle) -> Answer<&Function> {
        self.functions.get(handle).ok_or(INVALID_HANDLE)
    }

    pub(super) fn function_attribute(&self, handle: Handle, attribute: Attribute) -> Answer<i32> {
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

    pub(super) fn function_set_attribute(
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

    /// Queues a kernel; `parameters` are packed as its signature says.
    pub(super) fn launch(
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

impl Shape {
    fn check(&self, shared_bytes_max: i32) -> Answer<()> {
        let fits = |sizes: [u32; 3], max: [u32; 3]| {
            sizes.into_iter().zip(max).all(|(size, max)| (1..=max).contains(&size))
        };
        let threads: u64 = self.block.into_iter().map(u64::from).product();
        let is_shared_ok = i64::from(self.shared_bytes) <= i64::from(shared_bytes_max);
        if fits(self.grid, GRID_MAX)
            && fits(self.block, BLOCK_MAX)
            && threads <= BLOCK_THREADS_MAX
            && is_shared_ok
        {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// What every kernel is said to need.
pub(super) const REGISTERS_PER_THREAD: i32 = 32;
