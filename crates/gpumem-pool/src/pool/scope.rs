//! [`Scope`]: tags a thread's allocations and counts them. [`Tag`]: a tag as a value, for tasks that change threads.

use crate::pool::frames::{Open, ScopeUsage, open};
use crate::stats::{Name, Tags};
use core::fmt;
use gpumem_sys::text::{Shown, debug_fields};
use std::sync::Arc;

/// While a scope is alive, the blocks that this thread allocates from the pool carry a tag; see [`Pool::scope`](crate::Pool::scope).
///
/// A scope stays on its thread:
///
/// ```compile_fail
/// # use gpumem_pool::Scope;
/// fn elsewhere(scope: Scope) {
///     std::thread::spawn(move || scope.end());
/// }
/// ```
#[must_use = "dropping it ends the scope"]
pub struct Scope {
    open: Open,
    tag: Arc<Name>,
}

/// A tag as a value: blocks that [`Pool::alloc_tagged`](crate::Pool::alloc_tagged) allocates count for it, as those of a [`Scope`] do.
///
/// A scope is bound to its thread, but an asynchronous task may continue on another thread after each `.await`. A tag moves with the task.
/// Tags with one name are one tag, and count together with the scopes of that name. In another pool, a tag counts for its name there.
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
/// let request = {
///     let tag = pool.tag("requests");
///     let (pool, stream) = (pool.clone(), stream.clone());
///     async move {
///         let input = pool.alloc_tagged(1 << 20, &stream, &tag)?;
///         (&stream).await?; // may resume on another thread
///         let output = pool.alloc_tagged(2 << 20, &stream, &tag)?;
///         Ok::<_, gpumem_pool::PoolError>((input, output))
///     }
/// };
/// let blocks = std::thread::spawn(|| pollster::block_on(request)).join().expect("the task does not panic")?;
/// let tags = pool.status()?.tags;
/// assert_eq!((&*tags[0].tag, tags[0].in_use_bytes), ("requests", 3 << 20));
/// # drop(blocks);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tag {
    name: Arc<str>,
    serial: u64,
    number: u16,
    _held: Arc<Name>,
}

impl Tag {
    pub(super) fn new(tags: &Tags, name: &str) -> Self {
        let held = tags.hold(name);
        Self { name: name.into(), serial: tags.serial, number: held.number, _held: held }
    }

    /// Calls `work` with the number of the tag among `tags`, which may be another pool's.
    pub(super) fn with_number_in<R>(&self, tags: &Tags, work: impl FnOnce(u16) -> R) -> R {
        if self.serial == tags.serial {
            return work(self.number);
        }
        work(tags.hold(&self.name).number)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tag").field(&Shown::name(&self.name)).finish()
    }
}

impl Scope {
    pub(super) fn open(tags: &Tags, name: &str) -> Self {
        let tag = tags.hold(name);
        Self { open: open(tags, tag.number), tag }
    }

    /// Returns the name that this scope's blocks count for.
    #[must_use]
    pub fn tag(&self) -> String {
        (*self.tag.text).into()
    }

    /// Returns the usage so far.
    #[must_use]
    pub fn usage(&self) -> ScopeUsage {
        self.open.usage()
    }

    /// Ends the scope and returns its usage.
    pub fn end(self) -> ScopeUsage {
        self.usage()
    }
}

debug_fields!(Scope, it, tag: Shown::name(&it.tag.text), usage: it.usage());
