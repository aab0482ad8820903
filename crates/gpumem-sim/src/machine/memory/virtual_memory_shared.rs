//! Export and import of physical handles.

use crate::backing::pages::PageFile;
use crate::backing::ticket::TicketKind;
use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::machine::memory::virtual_memory::check_size;
use crate::memory::virtual_memory::Physical;
use crate::memory::virtual_memory_shared::Shared;
use gpumem_sys::types::CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags;

impl Machine {
    /// Creates a descriptor of an exportable handle.
    pub(crate) fn physical_export(&mut self, handle: Handle) -> Answer<i32> {
        self.virtual_memory.held(handle)?.shared.as_ref().ok_or(INVALID_VALUE)?.file.export()
    }

    /// Imports a descriptor: a known handle with an additional reference, or a new one.
    pub(crate) fn physical_import(&mut self, descriptor: i32) -> Answer<Handle> {
        let (file, label) = PageFile::open(descriptor, TicketKind::Physical)?;
        let device = self.device_index(label.device as i32)?;
        check_size(label.size_bytes)?;
        let all = &mut self.virtual_memory;
        let is_same =
            |found: &Physical| found.shared.as_ref().is_some_and(|shared| shared.label.is_about(&label));
        let known = all.handles.iter().find(|(_, found)| is_same(found)).map(|(handle, _)| handle);
        if let Some(found) = known.and_then(|handle| all.handles.get_mut(handle)) {
            found.holder_count += 1;
            return known.ok_or(INVALID_VALUE);
        }
        let shared = Shared { file, label, is_imported: true };
        let handle = all.create(device, label.size_bytes, AllocationFlags::default(), Some(shared))?;
        let call = self.made_here();
        if let Some(physical) = self.virtual_memory.handles.get_mut(handle) {
            physical.call = call;
        }
        Ok(handle)
    }
}
