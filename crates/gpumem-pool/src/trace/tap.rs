//! [`Tap`]: an adaptor that records from any moment on, until another. While it does not, requests of its pools pass by it.
//!
//! A recording begins in this order, so that blocks are missing only if a thread was within a request while it began:
//!
//! 1. The file is created, and the tap passes events to it.
//! 2. In each pool, requests and frees pass the tap from now on.
//! 3. The thread caches are drained into the heap, and its blocks are listed. The list is compared with the events since: a block whose first
//!    event is an allocation was not live at the beginning, and a block that is freed before it was listed was.
//!
//! The heap knows the address and the size of a block, rounded, and neither its tag nor, if there are several, its stream. `native` and `none` list no blocks: what
//! is in use when the recording ends, and is not accounted for by its events, counts as one block ([`Recording`](super::Recording)).

use super::book::Entry;
use super::event::Raw;
use super::sink::{self, Sink};
use super::{FLUSH_TIME_MAX, Trace};
use crate::error::PoolError;
use crate::pool::listing::Listing;
use crate::pool::{
    Adaptor, Grant, Next, Opening, PoolId, Release, Request, SpillMove, StateRef, Witness, with_recordable,
};
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_device::StreamId;
use gpumem_sys::text::{Shown, debug_is_display};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The tap of all pools of the process.
#[derive(Default)]
pub(crate) struct Tap {
    /// True while `recording` is something: read without its lock.
    is_on: AtomicBool,
    recording: RwLock<Option<Arc<Trace>>>,
}

/// A recording that has begun.
pub(crate) struct RecordingStarted {
    pub(crate) path: PathBuf,
    pub(crate) pool_count: usize,
    pub(crate) live_count: usize,
}

/// A recording that has ended.
pub(crate) struct RecordingStopped {
    pub(crate) path: PathBuf,
    pub(crate) dropped_count: u64,
    /// False if the end of the file may be missing.
    pub(crate) is_whole: bool,
}

/// A recording cannot begin or end.
#[derive(thiserror::Error)]
pub(crate) enum TapError {
    #[error("{} is being recorded already; stop that recording first", Shown::path(.0))]
    IsRecording(PathBuf),
    #[error("nothing is being recorded; start a recording with `record PATH`")]
    IsNotRecording,
    #[error(
        "no pool of this process can be recorded: they were built before GPUMEM_STATUS was read; build a pool with `from_env` first"
    )]
    NoPools,
    #[error("{} cannot be recorded into ({}); name another file, in a folder that this process may write", Shown::path(.0), Shown::sentence_of(.1))]
    File(PathBuf, #[source] io::Error),
}

debug_is_display!(TapError);

impl Tap {
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Tap>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(Arc::default))
    }

    /// Records all pools that have the tap into a file from now on.
    pub(crate) fn start(&self, path: &Path) -> Result<RecordingStarted, TapError> {
        let mut recording = self.recording.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = &*recording {
            return Err(TapError::IsRecording(trace.path().into()));
        }
        let unlisted_count = with_recordable(|pools| {
            let counts = pools.iter().map(|pool| pool.listing.unlisted_count());
            (!pools.is_empty()).then(|| counts.fold(0, u64::saturating_add))
        });
        let unlisted_count = unlisted_count.ok_or(TapError::NoPools)?;
        let trace = Trace::create_amid(path, unlisted_count);
        let trace = Arc::new(trace.map_err(|error| TapError::File(path.into(), error))?);
        *recording = Some(Arc::clone(&trace));
        self.is_on.store(true, Ordering::SeqCst);
        // The pools take it for reading.
        drop(recording);
        let pools: Vec<Arc<Listing>> = with_recordable(|pools| {
            pools.iter().copied().for_each(StateRef::begin_recording);
            pools.iter().map(|pool| Arc::clone(&pool.listing)).collect()
        });
        let mut live = Vec::new();
        for pool in &pools {
            let (whose, stream) = (sink::whose(pool.id(), 0), pool.only_stream());
            let stream = stream.map_or(0, StreamId::as_u64);
            let blocks = pool.live_blocks().into_iter();
            live.extend(blocks.map(|(address, size_bytes)| Raw::alloc(whose, address, size_bytes, stream)));
        }
        let started =
            RecordingStarted { path: trace.path().into(), pool_count: pools.len(), live_count: live.len() };
        trace.recorder.begin_with(live);
        Ok(started)
    }

    /// Ends the recording.
    pub(crate) fn stop(&self) -> Result<RecordingStopped, TapError> {
        // The pools take the lock for reading.
        let trace = self.current().ok_or(TapError::IsNotRecording)?;
        // Pools that are built from here on begin idle.
        self.is_on.store(false, Ordering::SeqCst);
        with_recordable(|pools| pools.iter().copied().for_each(StateRef::end_recording));
        *self.recording.write().unwrap_or_else(PoisonError::into_inner) = None;
        for (pool, figures) in trace.recorder.book.all_figures() {
            // In the other order than at the end of a pool, which this is not.
            trace.record(Raw::in_use(pool, &figures));
            trace.record(Raw::reserved(pool, &figures));
        }
        let is_whole = trace.flush(FLUSH_TIME_MAX);
        Ok(RecordingStopped { path: trace.path().into(), dropped_count: trace.dropped_count(), is_whole })
    }

    /// The file that is being recorded.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.current().map(|trace| trace.path().into())
    }

    #[inline]
    fn current(&self) -> Option<Arc<Trace>> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        self.recording.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Adaptor for Tap {
    fn name(&self) -> &str {
        "tap"
    }

    fn open(&self, opening: &Opening<'_>) {
        opening.add_witness(Self::shared());
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        match self.current() {
            Some(trace) => Adaptor::alloc(&*trace, request, next),
            None => next.alloc(request),
        }
    }

    fn free(&self, release: &Release<'_>) {
        if let Some(trace) = self.current() {
            Adaptor::free(&*trace, release);
        }
    }

    fn allows_growable_blocks(&self) -> bool {
        true
    }

    fn starts_idle(&self) -> bool {
        true
    }

    fn is_idle(&self) -> bool {
        !self.is_on.load(Ordering::SeqCst)
    }

    fn begin(&self, opening: &Opening<'_>) {
        if let Some(trace) = self.current() {
            trace.book().add_once(Entry::new(opening));
            opening.device().watch().add(&trace.observer());
        }
    }

    fn close(&self, pool: PoolId) {
        if let Some(trace) = self.current() {
            trace.end(pool);
        }
    }
}

impl Witness for Tap {
    fn refused(&self, pool: PoolId, refusal: &PoolError) -> Option<Result<PathBuf, String>> {
        self.current()?.recorder.refused(pool, refusal)
    }

    fn moved(&self, pool: PoolId, moved: &SpillMove) {
        if let Some(trace) = self.current() {
            trace.recorder.moved(pool, moved);
        }
    }
}
