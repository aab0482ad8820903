//! Contexts: the owners of streams and memory, the current context of a thread, and failed contexts.
//!
//! The stack of contexts of a thread is stored here under the thread's number, not in a thread-local: it ends with the instance,
//! and the destructor of a thread-local may still call the driver.

use crate::base::handle::Handle;
use crate::base::thread::{Life, ThreadKey};
use crate::device::settings::Settings;
use gpumem_sys::types::CUresult;
use std::collections::{BTreeMap, BTreeSet};

/// A context of a device.
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) is_primary: bool,
    /// The null stream.
    pub(crate) legacy: Handle,
    /// The per-thread default streams, created on first use. Those of ended threads go when another thread gets one.
    pub(crate) of_thread: BTreeMap<ThreadKey, (Handle, Life)>,
    /// The error that every later call returns.
    pub(crate) error: Option<CUresult>,
    /// The contexts whose plain memory this context may use.
    pub(crate) peers: BTreeSet<Handle>,
    pub(crate) settings: Settings,
}
