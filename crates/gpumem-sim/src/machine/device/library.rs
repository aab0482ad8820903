//! Libraries: their modules in each context, and their kernels.

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::base::handle::{Handle, Kind};
use crate::device::SHARED_BYTES;
use crate::device::library::{Library, LibraryKernel};
use crate::machine::Machine;
use crate::machine::device::module::{entry_attribute, shared_bytes_max};
use gpumem_ptx::Entry;
use gpumem_sys::types::CUfunction_attribute as Attribute;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Machine {
    pub(crate) fn library_load(&mut self, text: Arc<gpumem_ptx::Module>) -> Answer<Handle> {
        self.libraries.insert(Library { text, modules: BTreeMap::new(), kernels: BTreeMap::new() })
    }

    /// Unloads a library with its module of each context.
    pub(crate) fn library_unload(&mut self, handle: Handle) -> Answer<()> {
        let library = self.libraries.remove(handle).ok_or(INVALID_HANDLE)?;
        self.library_kernels.retain(|kernel| kernel.library != handle);
        library.modules.into_values().try_for_each(|module| self.module_unload(module))
    }

    pub(crate) fn library(&self, handle: Handle) -> Answer<&Library> {
        self.libraries.get(handle).ok_or(INVALID_HANDLE)
    }

    /// The module of a library in a context, which the first use loads.
    pub(crate) fn library_module(&mut self, library: Handle, context: Handle) -> Answer<Handle> {
        let found = self.library(library)?;
        if let Some(module) = found.modules.get(&context) {
            return Ok(*module);
        }
        let module = self.module_load(context, found.text.clone())?;
        if let (Some(loaded), Some(found)) = (self.modules.get_mut(module), self.libraries.get_mut(library)) {
            loaded.library = Some(library);
            found.modules.insert(context, module);
        }
        Ok(module)
    }

    /// A kernel of the library; the same handle each time.
    pub(crate) fn library_kernel(&mut self, library: Handle, name: &str) -> Answer<Handle> {
        let text = self.library(library)?.text.clone();
        let entry = self.runnable_entry(&text, name)?;
        self.library_entry(library, entry)
    }

    /// The kernel of an entry, whether it can run or not.
    pub(crate) fn library_entry(&mut self, library: Handle, entry: usize) -> Answer<Handle> {
        let found = self.libraries.get_mut(library).ok_or(INVALID_HANDLE)?;
        if let Some(kernel) = found.kernels.get(&entry) {
            return Ok(*kernel);
        }
        let kernel = LibraryKernel { library, entry, shared_bytes_max: BTreeMap::new() };
        let kernel = self.library_kernels.insert(kernel)?;
        found.kernels.insert(entry, kernel);
        Ok(kernel)
    }

    pub(crate) fn kernel(&self, handle: Handle) -> Answer<&LibraryKernel> {
        self.library_kernels.get(handle).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn kernel_entry(&self, handle: Handle) -> Answer<&Entry> {
        let kernel = self.kernel(handle)?;
        Ok(&self.library(kernel.library)?.text.entries()[kernel.entry])
    }

    /// The function of a kernel in a context.
    pub(crate) fn kernel_function(&mut self, handle: Handle, context: Handle) -> Answer<Handle> {
        let device = self.context_device(context)?;
        let name = self.kernel_entry(handle)?.name().to_string();
        let kernel = self.kernel(handle)?;
        let (library, allowed) = (kernel.library, kernel.shared_bytes_max.get(&device).copied());
        let module = self.library_module(library, context)?;
        let function = self.module_function(module, &name)?;
        if let (Some(found), Some(allowed)) = (self.functions.get_mut(function), allowed) {
            found.shared_bytes_max = found.shared_bytes_max.max(allowed);
        }
        Ok(function)
    }

    /// The function that a launch names. A program may pass a kernel in its place, which becomes the function in a context.
    pub(crate) fn launchable(
        &mut self,
        handle: Handle,
        context: impl FnOnce(&Self) -> Answer<Handle>,
    ) -> Answer<Handle> {
        if !handle.is(Kind::LibraryKernel) {
            return Ok(handle);
        }
        let context = context(self)?;
        self.kernel_function(handle, context)
    }

    pub(crate) fn kernel_attribute(&self, handle: Handle, attribute: Attribute, device: i32) -> Answer<i32> {
        let device = self.device_index(device)?;
        let kernel = self.kernel(handle)?;
        let allowed = kernel.shared_bytes_max.get(&device).copied().unwrap_or(SHARED_BYTES);
        entry_attribute(&self.library(kernel.library)?.text, kernel.entry, allowed, attribute)
    }

    /// Sets an attribute for all contexts of a device.
    pub(crate) fn kernel_set_attribute(
        &mut self,
        handle: Handle,
        attribute: Attribute,
        value: i32,
        device: i32,
    ) -> Answer<()> {
        let device = self.device_index(device)?;
        let kernel = self.library_kernels.get_mut(handle).ok_or(INVALID_HANDLE)?;
        if let Some(allowed) = shared_bytes_max(attribute, value)? {
            kernel.shared_bytes_max.insert(device, allowed);
        }
        Ok(())
    }

    /// The first kernels of a library, at most this many.
    pub(crate) fn library_entries(&mut self, library: Handle, count: usize) -> Answer<Vec<Handle>> {
        let entry_count = self.library(library)?.text.entries().len();
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        (0..count.min(entry_count)).map(|entry| self.library_entry(library, entry)).collect()
    }
}
