//! Modules: loading, functions and their attributes, checks of a launch.

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::device::declared::Declared;
use crate::device::launch::QueuedLaunch;
use crate::device::module::{
    Body, COMPUTE_CAPABILITY, Function, Module, REGISTERS_PER_THREAD, Shape, kept_name, parse,
};
use crate::device::{BLOCK_THREADS_MAX, SHARED_BYTES, SHARED_BYTES_OPTIN};
use crate::machine::Machine;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUfunction_attribute as Attribute;

impl Machine {
    pub(crate) fn module_load(&mut self, context: Handle, image: &[u8]) -> Answer<Handle> {
        let text = parse(image)?;
        let mut variables = Vec::new();
        for variable in text.variables() {
            let address = match variable.is_used && variable.size_bytes > 0 {
                true => self.alloc_variable(context, variable.size_bytes)?,
                false => 0,
            };
            variables.push(address);
        }
        for (variable, &address) in
            text.variables().iter().zip(&variables).filter(|(_, address)| **address != 0)
        {
            self.write_variable(address, &variable.contents(&text, &variables));
        }
        self.modules.insert(Module { context, text, variables: variables.into() })
    }

    pub(crate) fn module_unload(&mut self, handle: Handle) -> Answer<()> {
        let module = self.modules.remove(handle).ok_or(INVALID_HANDLE)?;
        for &address in module.variables.iter().filter(|address| **address != 0) {
            self.free_variable(address);
        }
        self.functions.retain(|function| function.module != handle);
        Ok(())
    }

    /// Unloads the modules of a destroyed context.
    pub(crate) fn modules_forget(&mut self, context: Handle) {
        let of_context = self.modules.iter().filter(|(_, module)| module.context == context);
        let variables: Vec<u64> = of_context.flat_map(|(_, module)| module.variables.to_vec()).collect();
        variables.into_iter().for_each(|address| self.free_variable(address));
        self.modules.retain(|module| module.context != context);
        self.functions.retain(|function| function.context != context);
    }

    /// An entry of the module; the same handle each time.
    pub(crate) fn module_function(&mut self, module: Handle, name: &str) -> Answer<Handle> {
        let found = self.modules.get(module).ok_or(INVALID_HANDLE)?;
        let entry = found.text.entries().iter().position(|entry| entry.name() == name).ok_or(NOT_FOUND)?;
        let known = self.functions.iter().find(|(_, f)| f.module == module && f.body.entry == entry);
        if let Some((handle, _)) = known {
            return Ok(handle);
        }
        let kernel = self.kernels.get(name).copied();
        if kernel.is_none() && found.text.entries()[entry].unsupported().is_some() {
            return Err(NOT_SUPPORTED);
        }
        let body = Body {
            name: kept_name(name),
            kernel,
            text: found.text.clone(),
            entry,
            variables: found.variables.clone(),
        };
        let context = found.context;
        self.functions.insert(Function { module, context, body, shared_bytes_max: SHARED_BYTES })
    }

    pub(crate) fn function(&self, handle: Handle) -> Answer<&Function> {
        self.functions.get(handle).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn function_attribute(&self, handle: Handle, attribute: Attribute) -> Answer<i32> {
        let function = self.function(handle)?;
        match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => {
                let stated = function.body.entry().block_max();
                let threads =
                    stated.map_or(BLOCK_THREADS_MAX, |max| max.into_iter().map(u64::from).product());
                Ok(threads.min(BLOCK_THREADS_MAX) as i32)
            }
            Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => Ok(function.body.entry().shared_bytes() as i32),
            Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => Ok(REGISTERS_PER_THREAD),
            Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => Ok(function.body.text.target() as i32),
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

    /// Queues a kernel; `parameters` are packed by its entry.
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
        shape.check(function.body.entry(), function.shared_bytes_max)?;
        let (body, declared) = (function.body.clone(), Declared::of_launch());
        let launch = QueuedLaunch { function: handle, body, parameters, shape, declared };
        self.enqueue(stream, Operation::Launch(Box::new(launch)));
        Ok(())
    }
}
