//! [`Tracking`]: the live blocks, and where they were allocated.

use super::{Adaptor, Grant, Next, PoolId, Release, Request};
use crate::error::PoolError;
use core::fmt;
use gpumem_base::sync::Lock;
use gpumem_device::{Bytes, StreamId};
use gpumem_sys::fork;
use gpumem_sys::text::{Shown, debug_fields};
use gpumem_sys::types::CUdeviceptr;
use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tracks every live block, with its allocating thread and, optionally, a backtrace.
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream, adaptor::Tracking};
/// use gpumem_sim::SimConfig;
/// use std::sync::Arc;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let tracking = Arc::new(Tracking::new().with_backtraces().on_end(|live| eprintln!("left alive: {live}")));
/// let pool = Pool::builder(&device).adaptor(tracking.clone()).build()?;
/// let block = pool.alloc(5 << 20, &Stream::new(&device)?)?;
/// let live = tracking.live();
/// assert_eq!(live.blocks[0].address, block.address());
/// println!("{live}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Tracking {
    table: Lock<LiveTable>,
    has_backtraces: bool,
    on_end: Option<Box<OnEnd>>,
}

type OnEnd = dyn Fn(&LiveBlocks) + Send + Sync;

#[derive(Default)]
struct LiveTable {
    /// By pool, address and number. Of nested blocks, the outermost has the highest number.
    live: BTreeMap<(PoolId, CUdeviceptr, u64), LiveBlock>,
    count: u64,
}

impl LiveTable {
    /// The block that starts at this address, the outermost of several.
    fn find(&mut self, pool: PoolId, address: CUdeviceptr) -> Option<&mut LiveBlock> {
        let (_, block) = self.live.range_mut((pool, address, 0)..=(pool, address, u64::MAX)).next_back()?;
        Some(block)
    }

    fn remove(&mut self, pool: PoolId, address: CUdeviceptr) {
        if let Some(number) = self.find(pool, address).map(|block| block.number) {
            self.live.remove(&(pool, address, number));
        }
    }
}

/// The live blocks, largest first. `Display` lists the first ones with their details.
#[derive(Clone, Debug, Default)]
pub struct LiveBlocks {
    /// The blocks.
    pub blocks: Vec<LiveBlock>,
}

/// A live block.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LiveBlock {
    /// The number among all tracked blocks, from 1.
    pub number: u64,
    /// The address.
    pub address: CUdeviceptr,
    /// The size.
    pub size_bytes: u64,
    /// The stream that the block was allocated on.
    pub stream: StreamId,
    /// The tag: the name of the scope in which it was allocated.
    pub tag: Option<Arc<str>>,
    /// The pool of the block.
    pub pool: PoolId,
    /// The name of that pool ([`Pool::name`](crate::Pool::name)).
    pub pool_name: Arc<str>,
    /// The name of the allocating thread, if any.
    pub thread: Option<Arc<str>>,
    /// The backtrace of the allocation, with [`Tracking::with_backtraces`].
    pub backtrace: Option<Arc<Backtrace>>,
}

impl Tracking {
    /// Creates a tracker without backtraces.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Captures a backtrace of each allocation, which takes microseconds each. Function names are resolved when it is
    /// printed.
    #[must_use]
    pub fn with_backtraces(mut self) -> Self {
        self.has_backtraces = true;
        self
    }

    /// Calls `callback` when the last handle of a pool is dropped while some of its blocks are still alive, with those blocks. They keep
    /// the pool's memory until they are dropped.
    #[must_use]
    pub fn on_end(mut self, callback: impl Fn(&LiveBlocks) + Send + Sync + 'static) -> Self {
        self.on_end = Some(Box::new(callback));
        self
    }

    /// The blocks that are alive now.
    #[must_use]
    pub fn live(&self) -> LiveBlocks {
        if fork::is_child() {
            return LiveBlocks::of(Vec::new());
        }
        LiveBlocks::of(self.table.lock().live.values().cloned().collect())
    }

    fn add(
        &self,
        (address, size_bytes): (CUdeviceptr, u64),
        stream: StreamId,
        tag: Option<Arc<str>>,
        (pool, pool_name): (PoolId, Arc<str>),
    ) {
        let thread = std::thread::current().name().map(Arc::from);
        let backtrace = self.has_backtraces.then(|| Arc::new(Backtrace::force_capture()));
        let mut table = self.table.lock();
        table.count += 1;
        let number = table.count;
        let block =
            LiveBlock { number, address, size_bytes, stream, tag, pool, pool_name, thread, backtrace };
        table.live.insert((pool, address, number), block);
    }
}

impl LiveBlocks {
    fn of(mut blocks: Vec<LiveBlock>) -> Self {
        blocks.sort_by_key(|block| (core::cmp::Reverse(block.size_bytes), block.number));
        Self { blocks }
    }

    /// The sum of the sizes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.size_bytes))
    }
}

impl Adaptor for Tracking {
    fn name(&self) -> &str {
        "tracking"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let grant = next.alloc(request)?;
        let whole = (grant.address(), grant.size_bytes());
        self.add(whole, request.stream().id(), request.tag(), (request.pool(), request.pool_name()));
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.table.lock().remove(release.pool(), release.address());
    }

    fn close(&self, pool: PoolId) {
        let Some(callback) = &self.on_end else { return };
        let of_pool: Vec<_> =
            self.table.lock().live.values().filter(|block| block.pool == pool).cloned().collect();
        if !of_pool.is_empty() {
            callback(&LiveBlocks::of(of_pool));
        }
    }
}

debug_fields!(Tracking, it, live_count: it.table.lock().live.len(), has_backtraces: it.has_backtraces);

impl fmt::Display for LiveBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.blocks.len() == 1 { "" } else { "s" };
        write!(f, "{} in {} block{plural}", Bytes(self.size_bytes()), self.blocks.len())?;
        for block in self.blocks.iter().take(SHOWN_COUNT) {
            write!(f, "\n  {block}")?;
        }
        match self.blocks.len().saturating_sub(SHOWN_COUNT) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl fmt::Display for LiveBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, number, stream, .. } = self;
        let pool_name = Shown::name(&self.pool_name);
        write!(f, "{} at {address:#x}, number {number}, pool {pool_name}, {stream}", Bytes(self.size_bytes))?;
        if let Some(tag) = &self.tag {
            write!(f, ", tag {:?}", Shown::name(tag))?;
        }
        if let Some(thread) = &self.thread {
            write!(f, ", thread {:?}", Shown::name(thread))?;
        }
        match &self.backtrace {
            Some(backtrace) => write!(f, "\n{backtrace}"),
            None => Ok(()),
        }
    }
}

const SHOWN_COUNT: usize = 20;
