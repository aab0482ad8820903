//! [`State`]: the shared state of a pool, with the way of a freed block. It lives until no handle and no block of the pool is left, as its
//! [`Lifetime`](gpumem_base::sync::Lifetime) counts them. Requests come through `request`, and end at its [`Hub`].

use crate::backend::{self, Allocation, FreeRequest, MemorySource};
use crate::config::{ALIGNMENT_MIN, PeerOption};
use crate::error::{PoolError, Unsupported};
use crate::pool::adaptors::{Adaptor, Stack};
#[cfg(feature = "status-socket")]
use crate::pool::adaptors::{Opening, PoolSettings};
use crate::pool::block::Block;
use crate::pool::graph_memory::GraphMemory;
use crate::pool::hub::Hub;
use crate::pool::request::report::{self, Origin};
use crate::pool::{events, frames};
use core::ops::Deref;
use core::ptr::NonNull;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{
    CapturePart, Clocks, GRAPH_BIT, PeerDevice, StreamIndex, catch_panic, is_sticky,
};
use gpumem_device::{Device, DeviceError, Stream, StreamId};
use gpumem_sys::fork;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct State {
    hub: Hub,
    pub(crate) graph_memory: Arc<GraphMemory>,
    stack: Option<Stack>,
    /// The adaptors that the pool was built with, innermost first.
    pub(crate) adaptors: Vec<Arc<dyn Adaptor>>,
    pub(crate) parts: Lock<PoolParts>,
}

#[derive(Default)]
pub(crate) struct PoolParts {
    pub(crate) by_name: BTreeMap<String, PoolHandle>,
    /// The length at which parts that nothing uses are forgotten.
    purge_at: usize,
}

/// A pointer to a state that a handle of the pool, or a counted block, keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct StateRef(NonNull<State>);

// SAFETY: any thread may use and drop a state: all of it is `Send` and `Sync`, which `shared` checks.
unsafe impl Send for StateRef {}
// SAFETY: a shared pointer gives shared access to the state, which any thread may use: it is `Sync`, which `shared`
// checks.
unsafe impl Sync for StateRef {}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<State>();
};

/// A handle of a pool, which keeps its state alive.
#[repr(transparent)]
pub(crate) struct PoolHandle(StateRef);

impl PoolHandle {
    /// Creates a state with one handle. `adaptors` are those of `stack`, innermost first.
    pub(crate) fn new(hub: Hub, adaptors: Vec<Arc<dyn Adaptor>>, stack: Option<Stack>) -> Self {
        let graph_memory = GraphMemory::of(&hub.clocks);
        let state = State { hub, graph_memory, stack, adaptors, parts: Lock::default() };
        Self(StateRef(NonNull::from(Box::leak(Box::new(state)))))
    }
}

impl Clone for PoolHandle {
    fn clone(&self) -> Self {
        self.0.lifetime.add_handle();
        Self(self.0)
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        if fork::is_child() || !self.0.lifetime.drop_handle() {
            return;
        }
        if let Some(stack) = &self.0.stack {
            stack.close(self.0.id());
        }
        if self.0.lifetime.close(self.0.backend.close()) {
            self.0.take_down();
        }
    }
}

impl Deref for PoolHandle {
    type Target = StateRef;

    #[inline]
    fn deref(&self) -> &StateRef {
        &self.0
    }
}

impl StateRef {
    /// Drops one block. The caller does not use the pointer again.
    fn drop_block(self) {
        if self.lifetime.count_off() {
            self.take_down();
        }
    }

    /// Destroys the state, after the last handle and the last block.
    fn take_down(self) {
        #[cfg(feature = "status-socket")]
        self.unlist();
        // SAFETY: the pointer came from a box in `PoolHandle::new`. No handle is left and every block has been counted off, so
        // this is the only pointer still in use. The lifetime returns true only once.
        let mut state = unsafe { Box::from_raw(self.0.as_ptr()) };
        // Before the backend is dropped, after which others may get its addresses.
        if !state.sleep_state.is_awake() {
            state.device().sleepers().remove(state.id().number());
        }
        // This runs in a drop. An adaptor's drop may panic; all of them must still be dropped.
        let adaptors = core::mem::take(&mut state.adaptors);
        drop(state.stack.take());
        adaptors.into_iter().for_each(|adaptor| drop(catch_panic(|| drop(adaptor))));
        drop(catch_panic(|| drop(state)));
    }

    /// Allocates from the thread's cache in a pool with adaptors. A pool without adaptors has already looked there.
    #[inline(always)]
    pub(crate) fn hit(self, size_bytes: u64, alignment: u64, stream: &Stream) -> Option<Allocation> {
        if alignment <= ALIGNMENT_MIN && self.clocks.captures().slow_path().is_none() {
            backend::hit(self.backend_cache_key, size_bytes, stream.fast_path_id())
        } else {
            None
        }
    }

    /// Counts a block that is being dropped as freed for its tag if that is the tag of the innermost scope. Otherwise it counts nothing and
    /// returns false.
    #[inline(always)]
    pub(crate) fn untag_in_scope(self, allocation: &Allocation, size_bytes: u64) -> bool {
        let (serial, tag) = (self.tags.serial, allocation.tag());
        frames::with_here(|here| frames::count_in_here(here, serial, tag, size_bytes, || true))
    }

    /// Counts a block that is being dropped as freed for its tag, if it has one.
    pub(crate) fn untag(self, allocation: Allocation, size_bytes: u64) -> Allocation {
        if allocation.tag() != 0 {
            frames::count_in(&self.tags, allocation.tag(), size_bytes);
        }
        allocation.without_tag()
    }

    /// Called by a block's drop, when the free is ordered only on the owner stream. Returns false if the thread's cache cannot take the
    /// block, as for every large block.
    #[inline(always)]
    pub(crate) fn put_back_small(
        self,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        match self.fast_path_key() {
            Some(key) => backend::put_back_small(key, allocation, size_bytes, owner_stream),
            None => false,
        }
    }

    pub(crate) fn put_back(self, allocation: &Allocation, size_bytes: u64, owner_stream: StreamId) -> bool {
        match self.fast_path_key() {
            Some(key) => self.backend.put_back(key, allocation, size_bytes, owner_stream),
            None => false,
        }
    }

    /// Called by a block's drop, which cannot return an error: a failure is kept for the next call. A graph may keep the memory; otherwise
    /// it goes through the adaptors to the backend.
    pub(crate) fn free(self, freed: &FreeRequest) {
        if fork::is_child() {
            return;
        }
        if freed.size_bytes == 0 {
            return self.drop_block();
        }
        let freed = match freed.uses & GRAPH_BIT != 0 || self.has_captures() {
            true => self.free_captured(*freed),
            false => Some(*freed),
        };
        let Some(freed) = freed else { return };
        let stack = self.stack.as_ref().filter(|stack| stack.is_open() || freed.allocation.is_special());
        match stack {
            Some(stack) => stack.free(self, &freed),
            None => self.free_to_backend(&freed),
        }
    }

    /// Handles a free while streams capture, or of a block that a graph uses. Returns the request if the block must still be freed in the
    /// usual way. After `None` the pool may be gone.
    fn free_captured(self, freed: FreeRequest) -> Option<FreeRequest> {
        // This call may end the pool, but the graph memory must outlive it.
        let memory = Arc::clone(&self.graph_memory);
        let clocks = &memory.clocks;
        let is_noted = freed.uses & GRAPH_BIT != 0;
        let graphs = if clocks.captures().is_open() { captures_of(clocks, &freed) } else { Vec::new() };
        match (is_noted, graphs.is_empty()) {
            (true, _) => memory.drop_noted(&graphs, self, freed),
            (false, true) => Some(freed),
            (false, false) => memory.keep(&graphs, self, freed),
        }
    }

    /// Frees to the backend, after all adaptors. The pool may be gone afterwards.
    fn free_to_backend(self, freed: &FreeRequest) {
        // Streams that used the block and cannot be marked here are marked by the next calls that name them, and
        // this free waits for those markers. The request for markers follows the free's stamps, after which the
        // pool may be gone.
        let is_pending = freed.uses & !GRAPH_BIT != 0 && !freed.is_complete;
        let device = (is_pending && self.clocks.has_named_streams()).then(|| self.device().clone());
        let outcome = self.backend.free(freed);
        if let Err(cause) = outcome.result {
            let poison = match is_sticky(cause.code()) {
                true => PoolError::Device(DeviceError::DeviceLost(cause)),
                false => PoolError::Poisoned {
                    pool: self.name().as_str().into(),
                    address: freed.allocation.address,
                    size_bytes: freed.size_bytes,
                    cause,
                },
            };
            events::poisoned(&self, &poison);
            self.set_poison(poison);
        }
        if !outcome.counted {
            self.drop_block();
        }
        if let Some(device) = device {
            device.clocks().want_marks(device.clocks().used(freed.uses));
        }
    }

    /// Frees an allocation of the backend, after all adaptors.
    pub(crate) fn free_own(
        self,
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
        uses: u64,
        is_complete: bool,
    ) {
        let is_plain = uses == 0 && !is_complete && self.clocks.captures().slow_path().is_none();
        let key = self.backend_cache_key;
        let put_back = || {
            backend::put_back_small(key, &allocation, size_bytes, owner_stream)
                || self.backend.put_back(key, &allocation, size_bytes, owner_stream)
        };
        if !(is_plain && self.poison().is_none() && put_back()) {
            self.free_to_backend(&FreeRequest {
                allocation,
                size_bytes,
                owner_stream,
                uses,
                is_complete,
                behind: None,
            });
        }
    }

    /// Frees another pool's block that a block of this pool consisted of.
    pub(crate) fn free_other(self, block: Block, uses: u64, is_complete: bool) {
        block.add_uses(uses);
        match is_complete {
            // SAFETY: the caller that dropped this pool's block has guaranteed completion, and the lent block is
            // its memory.
            true => unsafe { block.free_completed() },
            false => drop(block),
        }
        self.drop_block();
    }

    /// Counts a block of another pool as a block of this pool.
    pub(crate) fn count_other(self) {
        self.lifetime.count_in();
    }

    /// Returns the allocation of a backend that contains a live block, and the pool that owns it.
    pub(crate) fn backing_allocation(self, allocation: Allocation) -> (Self, Allocation) {
        if allocation.class() == Allocation::NO_CLASS {
            let chunk = self.graph_memory.chunk_of(allocation.address);
            return chunk
                .map_or((self, allocation), |(pool, allocation)| pool.backing_allocation(allocation));
        }
        let stack = self.stack.as_ref().filter(|_| allocation.is_special());
        match stack.and_then(|stack| stack.backing_allocation(allocation.record())) {
            None => (self, allocation),
            Some((None, allocation)) => (self, allocation),
            Some((Some(pool), allocation)) => pool.backing_allocation(allocation),
        }
    }

    /// Returns the nesting depth of other pools' blocks in a live block.
    pub(crate) fn nesting(self, allocation: Allocation) -> usize {
        let stack = self.stack.as_ref().filter(|_| allocation.is_special());
        stack.map_or(0, |stack| stack.nesting(allocation.record()))
    }
}

/// The pools that can be recorded from any moment on, while they exist.
#[cfg(feature = "status-socket")]
static RECORDABLE: Lock<Vec<StateRef>> = Lock::new(Vec::new());

/// Calls `work` with the pools that can be recorded from any moment on. They exist during the call, and no pool begins or ends, so `work`
/// drops neither pools nor blocks.
#[cfg(feature = "status-socket")]
pub(crate) fn with_recordable<R>(work: impl FnOnce(&[StateRef]) -> R) -> R {
    work(&RECORDABLE.lock())
}

#[cfg(feature = "status-socket")]
impl StateRef {
    /// Lists a new pool if one of its adaptors records on demand.
    pub(crate) fn list_if_recordable(self) {
        if self.adaptors.iter().any(|adaptor| adaptor.starts_idle()) {
            let mut pools = RECORDABLE.lock();
            pools.push(self);
            if !self.adaptors.iter().any(|adaptor| adaptor.is_idle()) {
                self.begin_recording();
            }
        }
    }

    /// Lets the idle adaptors see requests and frees from now on.
    pub(crate) fn begin_recording(self) {
        let settings = PoolSettings::new(&self);
        let opening = Opening { hub: &self, settings: &settings };
        self.adaptors
            .iter()
            .filter(|adaptor| adaptor.starts_idle())
            .for_each(|adaptor| adaptor.begin(&opening));
        if let Some(stack) = &self.stack {
            stack.set_open(true);
            self.take_cache_key();
        }
    }

    /// Ends [`begin_recording`](Self::begin_recording).
    pub(crate) fn end_recording(self) {
        if let Some(stack) = &self.stack {
            stack.set_open(false);
            self.settle_cache_key();
        }
    }

    fn unlist(self) {
        if self.adaptors.iter().any(|adaptor| adaptor.starts_idle()) {
            RECORDABLE.lock().retain(|pool| *pool != self);
        }
    }
}

impl Deref for StateRef {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: the pointer belongs to a handle, or to a block that has not been counted off, so the state is
        // alive.
        unsafe { self.0.as_ref() }
    }
}

impl PoolParts {
    /// Forgets parts that nothing uses, if there are many. The caller drops them outside the lock, because that ends each.
    pub(crate) fn purge(&mut self) -> BTreeMap<String, PoolHandle> {
        if self.by_name.len() < self.purge_at {
            return BTreeMap::new();
        }
        let (unused, used) =
            core::mem::take(&mut self.by_name).into_iter().partition(|(_, part)| part.is_unused());
        self.by_name = used;
        self.purge_at = (2 * self.by_name.len()).max(PURGE_MIN);
        unused
    }
}

const PURGE_MIN: usize = 64;

impl Deref for State {
    type Target = Hub;

    #[inline]
    fn deref(&self) -> &Hub {
        &self.hub
    }
}

impl State {
    /// True if the caller's handle is the only one, no block is alive, and nothing sleeps.
    fn is_unused(&self) -> bool {
        self.lifetime.is_idle() && self.backend.counts().block_count == 0 && self.sleep_state.is_awake()
    }

    /// The adaptors that requests and frees pass; `None` without any, and while all of them are idle.
    #[inline]
    pub(crate) fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref().filter(|stack| stack.is_open())
    }

    /// The stack that granted memory belongs to, also while its adaptors are idle.
    pub(crate) fn stack_of_grants(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    /// Returns the adaptors if they are the only stage between a block and the backend: no graph may keep the
    /// block.
    #[inline]
    pub(crate) fn fast_path_stack(&self, uses: u64) -> Option<&Stack> {
        let stack = self.stack()?;
        (uses & GRAPH_BIT == 0 && self.clocks.captures().slow_path().is_none()).then_some(stack)
    }

    pub(crate) fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.check_usable()?;
        let device = self.device();
        let is_of_driver = device.driver().is_same_machine(peer.driver());
        let named = PeerDevice::of(peer);
        if peer == device || is_of_driver && self.listing.peers.has(named) {
            return Ok(());
        }
        if !is_of_driver || !named.reaches(device)? {
            let [device, peer] = device.names_apart(peer);
            return Err(PoolError::Unsupported(Unsupported::PeerAccess { device, peer }));
        }
        self.open_to(named)
    }

    pub(crate) fn open_to_configured(&self) -> Result<(), PoolError> {
        let device = self.device();
        let (ordinals, are_required) = match &self.config().peers {
            PeerOption::None => return Ok(()),
            PeerOption::All => ((0..Device::count(device.driver())?).collect(), false),
            PeerOption::Ordinals(ordinals) => (ordinals.clone(), true),
        };
        for ordinal in ordinals.into_iter().filter(|ordinal| *ordinal != device.ordinal()) {
            let peer = PeerDevice::new(device.driver(), ordinal)?;
            match peer.reaches(device)? {
                true => self.open_to(peer)?,
                false if are_required => {
                    return Err(PoolError::Unsupported(Unsupported::PeerAccess {
                        device: device.to_string(),
                        peer: peer.to_string(),
                    }));
                }
                false => {}
            }
        }
        Ok(())
    }

    /// Gives access to the devices that have access to the memory of `parent`. Called once this pool is listed, because `parent` opens
    /// listed pools to later devices.
    pub(crate) fn open_like(&self, parent: &Self) -> Result<(), PoolError> {
        parent.listing.peers.list().into_iter().try_for_each(|peer| self.open_to(peer))
    }

    /// Gives a device with a link access to the memory of this pool, its adaptors, its parts and its private pools.
    pub(crate) fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError> {
        self.listing.open_to(peer)?;
        self.adaptors.iter().try_for_each(|adaptor| adaptor.open_to(peer))?;
        self.family().iter().try_for_each(|pool| pool.open_to(peer))
    }

    pub(crate) fn wait_for_peers(&self) -> Result<(), PoolError> {
        let driver = self.device().driver();
        for peer in self.listing.peers.list() {
            if let Some(peer) = peer.open_if_active(driver)? {
                peer.synchronize_for_drop()?;
            }
        }
        Ok(())
    }

    /// Lets operations use the memory after a sleep.
    pub(crate) fn be_awake(&self) {
        self.device().sleepers().remove(self.id().number());
    }

    /// Lets requests take the fast path if nothing needs to see them: called after a sleep or a recording.
    pub(crate) fn settle_cache_key(&self) {
        self.hub.settle_cache_key(|| self.sleep_state.is_awake() && self.stack().is_none());
    }

    /// Completes and counts the error of a request that leaves the pool.
    pub(crate) fn with_report<T>(
        &self,
        result: Result<T, PoolError>,
        origin: &Origin,
    ) -> Result<T, PoolError> {
        report::with_report(&self.hub, result, origin, || self.graph_memory.kept(self))
    }
}

/// Returns the captures that a block's streams are part of now.
fn captures_of(clocks: &Clocks, freed: &FreeRequest) -> Vec<u64> {
    let slots = core::iter::once(freed.owner_stream.stream_index()).chain(clocks.used(freed.uses));
    let mut graphs: Vec<u64> = slots.filter_map(|slot| capture_of(clocks, slot)).collect();
    graphs.sort_unstable();
    graphs.dedup();
    graphs
}

fn capture_of(clocks: &Clocks, slot: StreamIndex) -> Option<u64> {
    match clocks.own_part(slot) {
        Some(CapturePart::In(graph)) => Some(graph).filter(|graph| clocks.captures().knows(*graph)),
        Some(CapturePart::Broken) => clocks.captures().capture_of(slot, true),
        Some(CapturePart::Runs) => None,
        // A stream of another library is queried only in calls that name it.
        None => clocks.captures().capture_of(slot, false),
    }
}
