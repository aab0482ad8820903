//! Reclaim callbacks: device memory that a program can do without, such as library handles, workspaces and caches.
//!
//! An owner of such memory implements [`Reclaimable`] and registers it with the [`Device`](crate::Device). The
//! callbacks run when an allocation of any pool of that device would otherwise fail, and in
//! [`Pool::reclaim`](crate::Pool::reclaim): first all [`Reclaimable::purge`], and if that was not enough all
//! [`Reclaimable::release`]. Only holders whose memory helps the pool's kind are called ([`Reclaimable::helps`]).
//!
//! No lock is held during a callback, so it may use all of this crate. An allocation that fails inside a callback is refused without
//! further callbacks. An error or panic of one holder does not affect the others or the caller. If the request is refused, its report names
//! the failure.

use crate::config::MemoryKind;
use core::cell::Cell;
use core::time::Duration;
use gpumem_base::sync::Lock;
use gpumem_device::Device;
use gpumem_device::internal::{ReentrancyGuard, catch_panic};
use gpumem_sys::fork;
use gpumem_sys::text::{Shown, debug_fields};
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Condvar, PoisonError, Weak};
use std::time::Instant;

/// Reclaim callbacks of a holder of device memory. They run on the allocating thread, which may hold locks of the
/// program.
///
/// ```
/// use gpumem_pool::{Block, Device, Pool, Reclaimable, Registration, Stream};
/// use gpumem_sim::SimConfig;
/// use std::error::Error;
/// use std::sync::{Arc, Mutex};
///
/// /// Earlier results, kept as long as there is room for them.
/// struct Cache(Mutex<Vec<Block>>);
///
/// impl Reclaimable for Cache {
///     fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
///         // The allocating thread may hold the lock.
///         Ok(self.0.try_lock().map_err(|error| error.to_string())?.clear())
///     }
/// }
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(64 << 20))?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
/// let cache = Arc::new(Cache(Mutex::default()));
/// let _registration = Registration::new(&device, &cache);
///
/// let cached = pool.alloc(40 << 20, &stream)?;
/// cache.0.lock().unwrap().push(cached);
/// let block = pool.alloc(40 << 20, &stream)?; // instead of an error
/// assert!(cache.0.lock().unwrap().is_empty());
/// # drop(block);
/// # Ok::<(), Box<dyn Error>>(())
/// ```
pub trait Reclaimable: Send + Sync {
    /// The name in reports.
    fn name(&self) -> &str {
        core::any::type_name::<Self>()
    }

    /// True if releasing this holder's memory makes room for memory of this kind. The callbacks run only for such kinds.
    ///
    /// By default the holder has device memory, which helps device memory and unified memory. A cache of pinned blocks
    /// overrides this with `kind == MemoryKind::Host`.
    fn helps(&self, kind: MemoryKind) -> bool {
        kind != MemoryKind::Host
    }

    /// Releases memory that is cheap to restore. Several threads may call this at once.
    ///
    /// # Errors
    ///
    /// Any error; the report of the request includes it.
    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Releases all memory that the holder can do without, at any cost. By default this calls [`Reclaimable::purge`].
    /// Several threads may call this at once.
    ///
    /// # Errors
    ///
    /// Any error; the report of the request includes it.
    fn release(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.purge()
    }
}

/// Keeps a [`Reclaimable`] registered until this or the holder is dropped. A call that is active on another thread may
/// end later.
#[must_use = "dropping it ends the registration"]
pub struct Registration {
    registry: Arc<Registry>,
    id: u64,
}

impl Registration {
    /// Registers reclaim callbacks of `holder`, which run when memory of the device is short, until `holder` or the
    /// registration is dropped. All `Device`s opened on one GPU share the registrations.
    pub fn new<T: Reclaimable + 'static>(device: &Device, holder: &Arc<T>) -> Self {
        let registry = Registry::on(device);
        let id = registry.add(Arc::<T>::downgrade(holder));
        Self { registry, id }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.remove(self.id);
    }
}

debug_fields!(Registration, it, id: it.id);

#[derive(Default)]
pub(crate) struct Registry {
    entries: Lock<Entries>,
    /// Notified when a round of callbacks has ended.
    asked: Condvar,
}

#[derive(Default)]
struct Entries {
    list: Vec<(u64, Weak<dyn Reclaimable>)>,
    last_id: u64,
    asking: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Purge,
    Release,
}

impl Registry {
    pub(crate) fn on(device: &Device) -> Arc<Self> {
        device.extension(Self::default)
    }

    fn add(&self, holder: Weak<dyn Reclaimable>) -> u64 {
        if fork::is_child() {
            return 0;
        }
        let mut entries = self.entries.lock();
        entries.list.retain(|(_, other)| other.strong_count() > 0);
        entries.last_id += 1;
        let id = entries.last_id;
        entries.list.push((id, holder));
        id
    }

    fn remove(&self, id: u64) {
        if fork::is_child() {
            return;
        }
        self.entries.lock().list.retain(|(other, _)| *other != id);
    }

    /// Runs the callbacks of all holders that can help a kind of memory, and returns their failures. `None` if there are none, or inside a
    /// callback. Waits for rounds of other threads, until the deadline, because they make room too.
    pub(crate) fn ask(&self, round: Round, kind: MemoryKind, until: Instant) -> Option<Vec<String>> {
        let _asking = ReentrancyGuard::begin(&IS_ASKING)?;
        let (id, holders) = self.begin();
        let asked: Vec<_> = holders.into_iter().filter_map(|holder| asked(holder, round, kind)).collect();
        let waited = self.end(id, until);
        let is_any = !asked.is_empty() || waited;
        is_any.then(|| asked.into_iter().filter_map(Result::err).collect())
    }

    fn begin(&self) -> (u64, Vec<Arc<dyn Reclaimable>>) {
        let mut entries = self.entries.lock();
        entries.last_id += 1;
        let id = entries.last_id;
        entries.asking.insert(id);
        (id, entries.list.iter().filter_map(|(_, holder)| holder.upgrade()).collect())
    }

    /// Ends a round, and waits for rounds of other threads. False if there were none.
    fn end(&self, id: u64, until: Instant) -> bool {
        let mut entries = self.entries.lock();
        entries.asking.remove(&id);
        let others = entries.asking.clone();
        self.asked.notify_all();
        let is_any_left = |entries: &mut Entries| !entries.asking.is_disjoint(&others);
        // The wait is bounded: another round may itself wait for this thread.
        let patience = until.saturating_duration_since(Instant::now()).min(OTHERS_TIME_MAX);
        let waited = self.asked.wait_timeout_while(entries, patience, is_any_left);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        !others.is_empty()
    }
}

/// Runs one callback. `None` if the holder's memory does not help this kind. The holder may be dropped here.
fn asked(holder: Arc<dyn Reclaimable>, round: Round, kind: MemoryKind) -> Option<Result<(), String>> {
    let name = catch_panic(|| holder.name().to_owned()).unwrap_or_else(|_| "an unnamed holder".into());
    let asked = catch_panic(move || match round {
        _ if !holder.helps(kind) => None,
        Round::Purge => Some(holder.purge().map_err(|error| error.to_string())),
        Round::Release => Some(holder.release().map_err(|error| error.to_string())),
    });
    // A long name leaves room for the failure.
    let name = Shown::name(&name);
    match asked {
        Ok(answer) => answer.map(|answer| answer.map_err(|error| format!("{name}: {error}"))),
        Err(said) => Some(Err(format!("{name} panicked: {said}"))),
    }
}

thread_local! {
    /// Set during callbacks: they may allocate, but must not run further callbacks.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// The longest wait for callbacks of other threads: the default of [`wait_deadline_ms`](crate::conf).
pub(crate) const OTHERS_TIME_MAX: Duration = Duration::from_secs(10);
