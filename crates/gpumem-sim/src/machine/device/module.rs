//! Modules: loading, functions and their attributes, variables, checks of a launch.

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_PERMITTED, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::device::declared::Declared;
use crate::device::image::{COMPUTE_CAPABILITY, ImageError, cannot_run};
use crate::device::launch::QueuedLaunch;
use crate::device::module::{Body, Function, Module, REGISTERS_PER_THREAD, Shape, thread_count};
use crate::device::{BLOCK_THREADS_MAX, SHARED_BYTES, SHARED_BYTES_OPTIN};
use crate::machine::Machine;
use crate::report::finding::Finding;
use crate::stream::operation::Operation;
use gpumem_ptx::ModuleVariable;
use gpumem_sys::types::{CUfunction_attribute as Attribute, CUresult};
use std::ffi::CString;
use std::sync::Arc;

impl Machine {
    pub(crate) fn module_load(&mut self, context: Handle, text: Arc<gpumem_ptx::Module>) -> Answer<Handle> {
        let variables = vec![0; text.variables().len()].into();
        let handle = self.modules.insert(Module { context, library: None, text, variables })?;
        let placed = self.variables_place(handle, |variable| variable.is_used);
        match placed {
            Ok(()) => Ok(handle),
            Err(code) => self.module_unload(handle).and(Err(code)),
        }
    }

    /// Allocates those variables of a module that are wanted and have no memory, and writes their initial contents.
    fn variables_place(&mut self, handle: Handle, is_wanted: impl Fn(&ModuleVariable) -> bool) -> Answer<()> {
        let module = self.modules.get(handle).ok_or(INVALID_HANDLE)?;
        let (context, text, mut variables) = (module.context, module.text.clone(), module.variables.to_vec());
        let mut placed = Vec::new();
        for (number, variable) in text.variables().iter().enumerate() {
            if variables[number] == 0 && variable.size_bytes > 0 && is_wanted(variable) {
                variables[number] = self.alloc_variable(context, variable.size_bytes)?;
                placed.push(number);
                // Kept after each, so that an unload frees them.
                if let Some(module) = self.modules.get_mut(handle) {
                    module.variables = variables.as_slice().into();
                }
            }
        }
        for number in placed {
            self.write_variable(variables[number], &text.variables()[number].contents(&variables));
        }
        Ok(())
    }

    /// The address and size of a variable of a module.
    pub(crate) fn module_global(&mut self, handle: Handle, name: &str) -> Answer<(u64, u64)> {
        let module = self.modules.get(handle).ok_or(INVALID_HANDLE)?;
        let text = module.text.clone();
        let number = text.variable(name).ok_or(NOT_FOUND)?;
        if module.variables[number] == 0 {
            // A variable that no kernel uses. Its contents may have the addresses of others.
            self.variables_place(handle, |_| true)?;
        }
        let module = self.modules.get(handle).ok_or(INVALID_HANDLE)?;
        Ok((module.variables[number], text.variables()[number].size_bytes))
    }

    /// Unloads a module that the program has loaded.
    pub(crate) fn module_unload_by_program(&mut self, handle: Handle) -> Answer<()> {
        match self.modules.get(handle).ok_or(INVALID_HANDLE)?.library {
            Some(_) => Err(NOT_PERMITTED),
            None => self.module_unload(handle),
        }
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
        for library in self.libraries.values_mut() {
            library.modules.remove(&context);
        }
    }

    /// The number of an entry that can run.
    pub(crate) fn runnable_entry(&mut self, text: &gpumem_ptx::Module, name: &str) -> Answer<usize> {
        let entries = text.entries();
        let entry = entries.iter().position(|entry| entry.name() == name).ok_or(NOT_FOUND)?;
        match entries[entry].unsupported() {
            Some(error) if !self.kernels.contains_key(name) && !self.config.is_work_skipped => {
                Err(self.note_image(&ImageError::new(NOT_SUPPORTED, cannot_run(name, error))))
            }
            _ => Ok(entry),
        }
    }

    /// An entry of the module; the same handle each time.
    pub(crate) fn module_function(&mut self, module: Handle, name: &str) -> Answer<Handle> {
        let found = self.modules.get(module).ok_or(INVALID_HANDLE)?;
        let (context, text, variables) = (found.context, found.text.clone(), found.variables.clone());
        let entry = self.runnable_entry(&text, name)?;
        let known = self.functions.iter().find(|(_, f)| f.module == module && f.body.entry == entry);
        if let Some((handle, _)) = known {
            return Ok(handle);
        }
        let kernel = self.kernels.get(name).copied();
        let body = Body { name: name.into(), kernel, text, entry, variables };
        // A name of PTX has no NUL in it.
        let name = CString::new(name).map_err(|_| NOT_FOUND)?;
        self.functions.insert(Function { module, context, body, name, shared_bytes_max: SHARED_BYTES })
    }

    /// Reports why a module or a kernel is refused. Returns the code.
    pub(crate) fn note_image(&mut self, error: &ImageError) -> CUresult {
        let (call, code, text) = (self.call_name, error.code, error.text.clone());
        self.findings.add(Finding::Module { call, code, text });
        code
    }

    /// Reports kernels of a module that cannot run, though the module was loaded: one finding, which names the first of them.
    pub(crate) fn note_kernels(&mut self, notes: &[String]) {
        let mut text = notes.iter().take(NOTES_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
        match notes.len() {
            0 => return,
            count if count > NOTES_MAX => {
                text += &format!("; and {} other kernels cannot", count - NOTES_MAX)
            }
            _ => {}
        }
        self.findings.add(Finding::Module { call: self.call_name, code: CUresult::CUDA_SUCCESS, text });
    }

    pub(crate) fn function(&self, handle: Handle) -> Answer<&Function> {
        self.functions.get(handle).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn function_attribute(&self, handle: Handle, attribute: Attribute) -> Answer<i32> {
        let function = self.function(handle)?;
        let body = &function.body;
        entry_attribute(&body.text, body.entry, function.shared_bytes_max, attribute)
    }

    pub(crate) fn function_set_attribute(
        &mut self,
        handle: Handle,
        attribute: Attribute,
        value: i32,
    ) -> Answer<()> {
        let function = self.functions.get_mut(handle).ok_or(INVALID_HANDLE)?;
        if let Some(shared_bytes_max) = shared_bytes_max(attribute, value)? {
            function.shared_bytes_max = shared_bytes_max;
        }
        Ok(())
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
        self.enqueue(stream, Operation::Launch(Arc::new(launch)));
        Ok(())
    }
}

/// The kernels of a module that one finding names.
const NOTES_MAX: usize = 4;

/// An attribute of an entry for which this much dynamic shared memory is allowed.
pub(crate) fn entry_attribute(
    text: &gpumem_ptx::Module,
    entry: usize,
    shared_bytes_max: i32,
    attribute: Attribute,
) -> Answer<i32> {
    let entry = &text.entries()[entry];
    match attribute {
        Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => {
            let stated = entry.block_max();
            let threads = stated.map_or(BLOCK_THREADS_MAX, thread_count);
            Ok(threads.min(BLOCK_THREADS_MAX) as i32)
        }
        Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => Ok(entry.shared_bytes() as i32),
        Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => Ok(REGISTERS_PER_THREAD),
        Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => Ok(text.target() as i32),
        Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => Ok(COMPUTE_CAPABILITY as i32),
        Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => Ok(shared_bytes_max),
        other if other.0 < Attribute::CU_FUNC_ATTRIBUTE_MAX.0 => Ok(0),
        _ => Err(INVALID_VALUE),
    }
}

/// The dynamic shared memory that a program allows by setting an attribute, if it is that attribute. Others have no effect.
pub(crate) fn shared_bytes_max(attribute: Attribute, value: i32) -> Answer<Option<i32>> {
    match attribute {
        Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            if (0..=SHARED_BYTES_OPTIN).contains(&value) =>
        {
            Ok(Some(value))
        }
        Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => Ok(None),
        _ => Err(INVALID_VALUE),
    }
}
