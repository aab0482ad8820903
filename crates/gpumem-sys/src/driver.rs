//! [`Driver`]: a cheap, cloneable handle to a function table and the state behind it.

use crate::error::DriverError;
use crate::fork;
use crate::process::ProcessUsage;
use crate::table::Table;
use core::any::Any;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A driver: the table of its functions, and the state that they need.
///
/// Clones share the table. The vendor's library is loaded once per process and never unloaded. A driver made by
/// [`Driver::from_parts`] owns its [`Extension`] until its last clone is dropped.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    table: Table,
    kind: DriverKind,
    /// Its address identifies the machine; `None` for the vendor's driver, of which a process has one.
    extension: Option<Arc<dyn Extension>>,
    /// Shared with every table made from this one, because they destroy the same objects.
    teardown: Arc<Teardown>,
}

/// The destruction of objects, one at a time.
#[derive(Default)]
struct Teardown {
    turn: Mutex<()>,
    /// Calls that the driver refused in a host function.
    refused: Mutex<Vec<Box<Refused>>>,
    has_refused: AtomicBool,
}

type Refused = dyn FnMut(&Driver) -> Result<(), DriverError> + Send;

/// The kind of driver that fills a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriverKind {
    /// The vendor's library, with GPUs.
    Cuda,
    /// A simulator on the host, such as that of the crate `gpumem-sim`.
    Sim,
}

/// The state behind a table that another crate filled. It is dropped with the last clone of its [`Driver`].
///
/// The crate that created the driver downcasts to its own type with [`Any`]:
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
    /// The processes that have memory on a device, as the vendor's management library reports them for a GPU. The default is
    /// empty.
    fn processes(&self, device: u32) -> Vec<ProcessUsage> {
        let _ = device;
        Vec::new()
    }

    /// The memory that the system can still give to an integrated device, whose memory is the host's: what is free, and what the
    /// system takes back when it is needed, such as the page cache. The default is `None`: not known.
    fn available_bytes(&self, device: u32) -> Option<u64> {
        let _ = device;
        None
    }
}

impl Driver {
    /// Creates a driver from a table that the caller has filled, and the state that its functions need.
    ///
    /// Drivers that share one `extension` are one machine; see [`Driver::is_same_machine`].
    ///
    /// # Safety
    ///
    /// - Each function in `table` behaves as the vendor documents it for the symbol of its field, and is callable from
    ///   every thread as long as a clone of `extension` lives (without one, for the rest of the process).
    /// - The handles and addresses that the functions return belong to this machine alone: a table with `DriverKind::Cuda` and
    ///   no `extension` is the vendor's driver.
    #[must_use]
    pub unsafe fn from_parts(table: Table, kind: DriverKind, extension: Option<Arc<dyn Extension>>) -> Self {
        Self(Arc::new(Inner { table, kind, extension, teardown: Arc::default() }))
    }

    /// The kind of driver that fills the table.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> DriverKind {
        self.0.kind
    }

    /// The state that was passed to [`Driver::from_parts`]; `None` for the vendor's driver.
    #[must_use]
    pub fn extension(&self) -> Option<&dyn Extension> {
        self.0.extension.as_deref()
    }

    /// The function table.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &Table {
        &self.0.table
    }

    /// Creates a driver for the same machine with some functions wrapped, replaced or removed: `change` edits a copy of the table.
    ///
    /// For tests that count calls or make them fail.
    ///
    /// # Safety
    ///
    /// Every function that `change` puts into a field behaves as the driver documents it.
    #[must_use]
    pub unsafe fn with_table(&self, change: impl FnOnce(&mut Table)) -> Self {
        let mut table = self.0.table;
        change(&mut table);
        let Inner { kind, extension, teardown, .. } = &*self.0;
        let (extension, teardown) = (extension.clone(), Arc::clone(teardown));
        Self(Arc::new(Inner { table, kind: *kind, extension, teardown }))
    }

    /// True if both drivers reach the same devices, through the vendor's driver or one simulator, even with different
    /// tables.
    ///
    /// A handle is valid on its own machine only. The vendor's driver dereferences a foreign handle without a check.
    #[must_use]
    pub fn is_same_machine(&self, other: &Self) -> bool {
        match (&self.0.extension, &other.0.extension) {
            (None, None) => self.0.kind == other.0.kind,
            (Some(ours), Some(theirs)) => core::ptr::addr_eq(Arc::as_ptr(ours), Arc::as_ptr(theirs)),
            _ => false,
        }
    }

    /// Destroys a stream, an event, a context or another object of the driver: `call` does, and is called again if the driver refuses it
    /// now, because this is a host function (`cuLaunchHostFunc`). Then the result is `Ok`, and a later call of this function or of
    /// [`Driver::destroy_refused`] on another thread repeats `call` until the driver accepts it.
    ///
    /// In a forked child nothing happens: the objects are those of the parent.
    ///
    /// Objects are destroyed one at a time: the vendor's driver crashes if several threads destroy some at once. `call` must not
    /// destroy others in this way.
    ///
    /// # Errors
    ///
    /// The error of `call`, unless [`DriverError::is_not_permitted`].
    pub fn destroy(
        &self,
        mut call: impl FnMut(&Self) -> Result<(), DriverError> + Send + 'static,
    ) -> Result<(), DriverError> {
        if fork::is_child() {
            return Ok(());
        }
        self.destroy_refused();
        let mut in_turn = move |driver: &Self| {
            let _turn = driver.0.teardown.turn.lock().unwrap_or_else(PoisonError::into_inner);
            call(driver)
        };
        match in_turn(self) {
            Err(error) if error.is_not_permitted() => {
                self.destroy_later(in_turn);
                Ok(())
            }
            result => result,
        }
    }

    fn destroy_later(&self, call: impl FnMut(&Self) -> Result<(), DriverError> + Send + 'static) {
        let Teardown { refused, has_refused, .. } = &*self.0.teardown;
        refused.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(call));
        has_refused.store(true, Ordering::Release);
    }

    /// Repeats the calls that the driver refused in host functions. Reads one flag if there are none. A call that fails for another
    /// reason is repeated a few times, and then given up: nobody is left who could be told.
    pub fn destroy_refused(&self) {
        let Teardown { refused, has_refused, .. } = &*self.0.teardown;
        if !has_refused.load(Ordering::Acquire) || fork::is_child() {
            return;
        }
        let refused = || refused.lock().unwrap_or_else(PoisonError::into_inner);
        // Out of the lock, which no call of the driver is made under.
        let mut calls = core::mem::take(&mut *refused());
        calls.retain_mut(|call| {
            let mut try_to_destroy = || match call(self) {
                Ok(()) => Some(false),
                Err(error) => error.is_not_permitted().then_some(true),
            };
            let is_kept = (0..TRIES).find_map(|_| try_to_destroy());
            is_kept.unwrap_or(false)
        });
        let mut refused = refused();
        calls.append(&mut refused);
        has_refused.store(!calls.is_empty(), Ordering::Release);
        *refused = calls;
    }
}

/// The number of times that a call is made which the driver refused in a host function, if it fails again.
const TRIES: usize = 3;

/// True if both are clones of one handle.
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
