//! Placement of unified memory, for [`Block::prefetch`](crate::Block::prefetch) and [`Block::advise`](crate::Block::advise).

use gpumem_device::Device;
use gpumem_sys::types::{CUdevice, CUmem_advise};

/// A location of unified memory pages.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Location<'a> {
    /// Host memory.
    Host,
    /// The memory of a device.
    Device(&'a Device),
}

/// Expected usage of a range of unified memory; see [`Block::advise`](crate::Block::advise).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MemoryAdvice<'a> {
    /// True: the range is mostly read, so each reader may have a copy. False removes the advice.
    ReadMostly(bool),
    /// The preferred location of the range, for every user. `None` removes the advice.
    PreferredLocation(Option<Location<'a>>),
    /// True: the range is accessed from this location, so a mapping is kept there, regardless of where the pages are. False removes the
    /// advice.
    AccessedBy(Location<'a>, bool),
}

impl<'a> MemoryAdvice<'a> {
    /// The driver's advice, and the place that it names: `own` if it names none.
    pub(super) fn of_driver(self, own: Location<'a>) -> (CUmem_advise, Location<'a>) {
        match self {
            Self::ReadMostly(true) => (CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, own),
            Self::ReadMostly(false) => (CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY, own),
            Self::PreferredLocation(Some(place)) => {
                (CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place)
            }
            Self::PreferredLocation(None) => (CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, own),
            Self::AccessedBy(place, true) => (CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY, place),
            Self::AccessedBy(place, false) => (CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY, place),
        }
    }
}

pub(super) const HOST: CUdevice = -1;
