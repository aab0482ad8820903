//! [`Driver`]: a cheap, cloneable handle to a filled table and to the state behind it.

use crate::process::ProcessUsage;
use crate::table::Table;
use core::any::Any;
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A driver: the table of its functions, and the state that keeps them callable.
///
/// Clones share the table. The vendor's library is loaded once a process and never unloaded. A driver made by
/// [`Driver::from_parts`] owns its [`Extension`] until its last clone is dropped.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    table: Table,
    kind: DriverKind,
    /// Its address identifies the machine; `None` for the vendor's driver, of which a process has one.
    extension: Option<Arc<dyn Extension>>,
    /// Shared with every table made from this one: they all take down the same objects.
    teardown: Arc<Mutex<()>>,
}

/// Which kind of driver fills a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriverKind {
    /// The vendor's library, with real GPUs.
    Cuda,
    /// A simulator on the host, such as that of the crate `gpumem-sim`.
    Sim,
}

/// The state behind a table that the vendor's library did not fill: dropped with the last clone of its [`Driver`].
///
/// The crate that made the driver finds its own type again by [`Any`]:
///
/// ```
/// use gpumem_sys::{Driver, DriverKind, Extension, Table};
/// use std::any::Any;
/// use std::sync::Arc;
///
/// struct Empty;
/// impl Extension for Empty {}
///
/// // SAFETY: the table has no functions.
/// let driver = unsafe { Driver::from_parts(Table::default(), DriverKind::Sim, Some(Arc::new(Empty))) };
/// let extension: &dyn Any = driver.extension().ok_or("no extension")?;
/// assert!(extension.is::<Empty>());
/// # Ok::<(), &str>(())
/// ```
pub trait Extension: Any + Send + Sync {
    /// The processes that have memory of a device, as the vendor's management library reports them for a GPU. Empty
    /// unless implemented.
    fn processes(&self, device: u32) -> Vec<ProcessUsage> {
        let _ = device;
        Vec::new()
    }
}

impl Driver {
    /// A driver whose table another crate has filled, with the state that its functions need.
    ///
    /// Drivers that share one `extension` are one machine, see [`Driver::is_same_machine`].
    ///
    /// # Safety
    ///
    /// - Each function in `table` behaves as the vendor documents it for the symbol of its field, and is callable from
    ///   every thread as long as a clone of `extension` lives (without one, for the rest of the process).
    /// - The table's handles and addresses belong to this machine alone: a table with `DriverKind::Cuda` and no
    ///   `extension` is one of the vendor's driver.
    #[must_use]
    pub unsafe fn from_parts(table: Table, kind: DriverKind, extension: Option<Arc<dyn Extension>>) -> Self {
        Self(Arc::new(Inner { table, kind, extension, teardown: Arc::default() }))
    }

    /// The kind of driver that fills the table.
    #[must_use]
    pub fn kind(&self) -> DriverKind {
        self.0.kind
    }

    /// The state that [`Driver::from_parts`] was given; `None` for the vendor's driver.
    #[must_use]
    pub fn extension(&self) -> Option<&dyn Extension> {
        self.0.extension.as_deref()
    }

    /// The raw table.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &Table {
        &self.0.table
    }

    /// The same driver with some functions wrapped, replaced or taken away: `change` gets a copy of the table.
    ///
    /// For tests that count or fail calls.
    ///
    /// # Safety
    ///
    /// Whatever `change` puts into a field has the behaviour that the driver documents for that function.
    #[must_use]
    pub unsafe fn with_table(&self, change: impl FnOnce(&mut Table)) -> Self {
        let mut table = self.0.table;
        change(&mut table);
        let Inner { kind, extension, teardown, .. } = &*self.0;
        let (extension, teardown) = (extension.clone(), Arc::clone(teardown));
        Self(Arc::new(Inner { table, kind: *kind, extension, teardown }))
    }

    /// Whether both reach the same devices: the vendor's driver, or one simulator, through whatever table.
    ///
    /// A handle of one machine means nothing to another, and the vendor's driver would follow a foreign one.
    #[must_use]
    pub fn is_same_machine(&self, other: &Self) -> bool {
        match (&self.0.extension, &other.0.extension) {
            (None, None) => self.0.kind == other.0.kind,
            (Some(ours), Some(theirs)) => core::ptr::addr_eq(Arc::as_ptr(ours), Arc::as_ptr(theirs)),
            _ => false,
        }
    }

    /// Held around the destruction of streams, events and contexts: the vendor's driver crashes when several threads
    /// take things down at once.
    ///
    /// The lock is not reentrant: a stream or an event of the layers above that is dropped while its own thread holds
    /// the guard waits forever.
    pub fn teardown(&self) -> MutexGuard<'_, ()> {
        self.0.teardown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether both handles reach the same table.
impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("kind", &self.kind())
            .field("missing", &self.table().missing().count())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "NVIDIA driver",
            Self::Sim => "simulator (no GPU)",
        })
    }
}
