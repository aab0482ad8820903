//! [`Reclaimable`]: what a program holds of a device's memory and can do without: library handles, workspaces, caches.
//!
//! Whoever has some registers it with the [`Device`](crate::Device). It is asked when an allocation of any pool of that device would fail
//! otherwise, and by [`Pool::reclaim`](crate::Pool::reclaim): first everybody to purge, and if that was not enough everybody
//! to release. Only holders whose memory helps the kind of that pool are asked ([`Reclaimable::helps`]). No lock is held then, so all of this crate may be used; only an allocation that fails within is refused
//! without asking anybody again. What one of them does wrong, by an error or by a panic, is kept from the others and from
//! the caller: the report of the request says it, if that is refused after all.

pub(crate) mod catch_panic;

pub(crate) use catch_panic::ReentrancyGuard;

use crate::config::MemoryKind;
use crate::reclaim::catch_panic::catch_panic;
use core::cell::Cell;
use core::fmt;
use core::time::Duration;
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Something that can make room on a device. A thread that allocates calls it, with all locks that it holds at that moment.
///
/// ```
/// use gpumem_pool::{Block, Device, Pool, Reclaimable, Stream};
/// use gpumem_sim::SimConfig;
/// use std::error::Error;
/// use std::sync::{Arc, Mutex};
///
/// /// What was computed before, for as long as there is room for it.
/// struct Cache(Mutex<Vec<Block>>);
///
/// impl Reclaimable for Cache {
///     fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
///         // The thread that asks may have the lock.
///         Ok(self.0.try_lock().map_err(|error| error.to_string())?.clear())
///     }
/// }
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(64 << 20))?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
/// let cache = Arc::new(Cache(Mutex::default()));
/// let _registration = device.register_reclaimable(&cache);
///
/// let cached = pool.alloc(40 << 20, &stream)?;
/// cache.0.lock().unwrap().push(cached);
/// let block = pool.alloc(40 << 20, &stream)?; // instead of an error
/// assert!(cache.0.lock().unwrap().is_empty());
/// # drop(block);
/// # Ok::<(), Box<dyn Error>>(())
/// ```
pub trait Reclaimable: Send + Sync {
    /// What it is called in reports.
    fn name(&self) -> &str {
        core::any::type_name::<Self>()
    }

    /// Whether releasing what it holds makes room for memory of this kind. It is asked for no other.
    ///
    /// Unless overridden, it is taken to hold memory of the device, which helps the device's own memory and unified
    /// memory. A cache of pinned blocks overrides this with `kind == MemoryKind::Host`.
    fn helps(&self, kind: MemoryKind) -> bool {
        kind != MemoryKind::Host
    }

    /// Lets go of what is cheap to have again. May be called by several threads at once.
    ///
    /// # Errors
    ///
    /// Anything, for the report.
    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Lets go of all that it can do without, whatever it costs to have it again; of what [`Reclaimable::purge`] does if
    /// there is no more. May be called by several threads at once.
    ///
    /// # Errors
    ///
    /// Anything, for the report.
    fn release(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.purge()
    }
}

/// For as long as this lives, and the other too, a [`Reclaimable`] is asked. A call that is under way on another thread may
/// end later.
#[must_use = "dropping it ends the registration"]
pub struct Registration {
    registry: Arc<Registry>,
    id: u64,
}

impl Registration {
    pub(crate) fn new(registry: &Arc<Registry>, holder: Weak<dyn Reclaimable>) -> Self {
        Self { registry: Arc::clone(registry), id: registry.add(holder) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.remove(self.id);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All that are registered with a device.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<Entries>,
    /// Told when somebody has asked.
    asked: Condvar,
}

#[derive(Default)]
struct Entries {
    list: Vec<(u64, Weak<dyn Reclaimable>)>,
    last_id: u64,
    /// Threads that are asking, by a number of each.
    asking: BTreeSet<u64>,
}

/// How far one of them goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Purge,
    Release,
}

impl Registry {
    fn add(&self, holder: Weak<dyn Reclaimable>) -> u64 {
        let mut entries = self.entries();
        entries.list.retain(|(_, other)| other.strong_count() > 0);
        entries.last_id += 1;
        let id = entries.last_id;
        entries.list.push((id, holder));
        id
    }

    fn remove(&self, id: u64) {
        self.entries().list.retain(|(other, _)| *other != id);
    }

    /// Asks all holders that can help a kind of memory, and says what went wrong; `None` if there are none, or if a holder
    /// is asking. What holders are letting go of for other threads is waited for, until the deadline: it is room too.
    pub(crate) fn ask(&self, extent: Extent, kind: MemoryKind, until: Instant) -> Option<Vec<String>> {
        let _asking = ReentrancyGuard::begin(&IS_ASKING)?;
        let (id, holders) = self.begin();
        let asked: Vec<Asked> =
            holders.into_iter().filter_map(|holder| asked(holder, extent, kind)).collect();
        let waited = self.end(id, until);
        let is_any = !asked.is_empty() || waited;
        is_any.then(|| asked.into_iter().filter_map(Result::err).collect())
    }

    fn begin(&self) -> (u64, Vec<Arc<dyn Reclaimable>>) {
        let mut entries = self.entries();
        entries.last_id += 1;
        let id = entries.last_id;
        entries.asking.insert(id);
        (id, entries.list.iter().filter_map(|(_, holder)| holder.upgrade()).collect())
    }

    /// Whether others were asking.
    fn end(&self, id: u64, until: Instant) -> bool {
        let mut entries = self.entries();
        entries.asking.remove(&id);
        let others = entries.asking.clone();
        self.asked.notify_all();
        let is_any_left = |entries: &mut Entries| !entries.asking.is_disjoint(&others);
        // One that waits for this thread is not waited for for ever.
        let patience = until.saturating_duration_since(Instant::now()).min(OTHERS_TIME_MAX);
        let waited = self.asked.wait_timeout_while(entries, patience, is_any_left);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        !others.is_empty()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a holder answered: a failure in words.
type Asked = Result<(), String>;

/// Asks one of them, whose end this may be. `None` if its memory does not help this kind.
fn asked(holder: Arc<dyn Reclaimable>, extent: Extent, kind: MemoryKind) -> Option<Asked> {
    let name = catch_panic(|| holder.name().to_owned()).unwrap_or_else(|_| "one that has no name".into());
    let asked = catch_panic(move || match extent {
        _ if !holder.helps(kind) => None,
        Extent::Purge => Some(holder.purge().map_err(|error| error.to_string())),
        Extent::Release => Some(holder.release().map_err(|error| error.to_string())),
    });
    match asked {
        Ok(answer) => answer.map(|answer| answer.map_err(|error| format!("{name}: {error}"))),
        Err(said) => Some(Err(format!("{name} panicked: {said}"))),
    }
}

thread_local! {
    /// What is asked may allocate, but not ask in its turn.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// How long the calls of other threads are waited for: as long as running work is.
pub(crate) const OTHERS_TIME_MAX: Duration = Duration::from_secs(10);
