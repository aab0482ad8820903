//! Libraries: modules that belong to no context and are loaded into each that uses them.

use crate::base::handle::Handle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A library.
pub(crate) struct Library {
    pub(crate) text: Arc<gpumem_ptx::Module>,
    /// The module of each context that has used it.
    pub(crate) modules: BTreeMap<Handle, Handle>,
    /// The kernels that have a handle, by the number of their entry.
    pub(crate) kernels: BTreeMap<usize, Handle>,
}

/// A kernel of a library, which becomes a function of each context that uses it.
pub(crate) struct LibraryKernel {
    pub(crate) library: Handle,
    pub(crate) entry: usize,
    /// The dynamic shared memory that the program has allowed, by device.
    pub(crate) shared_bytes_max: BTreeMap<usize, i32>,
}
