//! [`Sink`]: an adaptor that records. It determines the recorded events of each call, for all sinks.

use super::book::{Book, Entry};
use super::event::{EventKind, Raw};
use super::rings::Rings;
use crate::error::PoolError;
use crate::pool::{Adaptor, Figures, Grant, Next, Opening, PoolId, Release, Request, SpillMove, Witness};
use gpumem_device::StreamId;
use gpumem_device::internal::{OrderEvent, OrderObserver};
use std::sync::Arc;

pub(super) trait Sink: Send + Sync {
    const NAME: &'static str;

    fn rings(&self) -> &Rings;

    fn book(&self) -> &Book;

    /// Records the order of streams in the same rings.
    fn observer(&self) -> Arc<dyn OrderObserver>;

    /// Records refusals in the same rings; `None` if the pool passes them to the sink itself.
    fn witness(&self) -> Option<Arc<dyn Witness>>;

    fn record(&self, raw: Raw);

    /// Called when the last handle of a pool is dropped.
    fn end(&self, _pool: PoolId) {}
}

impl<S: Sink> Adaptor for S {
    fn name(&self) -> &str {
        S::NAME
    }

    fn open(&self, opening: &Opening<'_>) {
        self.book().add(Entry::new(opening));
        opening.device().watch().add(&self.observer());
        self.witness().into_iter().for_each(|witness| opening.add_witness(witness));
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let (stream, whose) = (request.stream().id().as_u64(), whose(request.pool(), request.tag_number()));
        let grant = next.alloc(request)?;
        self.record(Raw::alloc(whose, grant.address(), grant.size_bytes(), stream));
        let pool = number(request.pool());
        if request.held_bytes().is_some_and(|held_bytes| self.rings().note_held(pool, held_bytes)) {
            reserved(self, pool, request.figures());
        }
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        let (address, pool) = (release.address(), number(release.pool()));
        for user in release.users() {
            self.record(Raw { kind: EventKind::Use, words: [address, 0, user.as_u64(), u64::from(pool)] });
        }
        let stream = release.stream_id().as_u64();
        self.record(Raw::free(pool, address, release.size_bytes(), stream, release.is_complete()));
    }

    fn allows_growable_blocks(&self) -> bool {
        true
    }

    fn close(&self, pool: PoolId) {
        self.end(pool);
    }
}

/// The event of a refusal that ends a request. `None` for memory that does not wake: its blocks are already live in the record.
pub(super) fn refusal(book: &Book, pool: PoolId, refusal: &PoolError) -> Option<Raw> {
    let (requested_bytes, stream, tag, by) = match refusal {
        PoolError::TooLarge { requested_bytes, origin, .. } => {
            let origin = origin.as_deref();
            let stream = origin.and_then(|origin| origin.stream);
            (*requested_bytes, stream, origin.and_then(|origin| origin.tag.as_deref()), None)
        }
        refusal => {
            let report = refusal.out_of_memory().filter(|report| report.asleep_bytes == 0)?;
            (report.requested_bytes, report.stream, report.tag.as_deref(), Some(report.refused_by))
        }
    };
    let tag = tag.map_or(0, |tag| book.tag(number(pool), tag));
    Some(Raw::refused(whose(pool, tag), requested_bytes, stream.map(StreamId::as_u64), by))
}

/// The events of what could not move for a refused request.
pub(super) fn kept(pool: PoolId, refusal: &PoolError) -> Vec<Raw> {
    let pool = number(pool);
    let Some(report) = refusal.out_of_memory().and_then(|report| report.spilling.as_ref()) else {
        return Vec::new();
    };
    let arrays = report.kept.iter().map(|kept| Raw::kept(pool, Some(kept.by), kept.bytes, kept.array_count));
    let other = (report.other_bytes > 0).then(|| Raw::kept(pool, None, report.other_bytes, 0));
    arrays.chain(other).collect()
}

pub(super) fn moved(pool: PoolId, moved: &SpillMove) -> Raw {
    Raw::moved(whose(pool, moved.tag), moved)
}

#[cold]
fn reserved(sink: &impl Sink, pool: u32, figures: Option<Figures>) {
    if let Some(figures) = figures {
        sink.record(Raw::reserved(pool, &figures));
    }
}

pub(super) fn figures(record: impl Fn(Raw), pool: u32, figures: Option<Figures>) {
    if let Some(figures) = figures {
        record(Raw::reserved(pool, &figures));
        record(Raw::in_use(pool, &figures));
    }
}

pub(super) fn raw_of(event: OrderEvent) -> Raw {
    let (kind, words) = match event {
        OrderEvent::Wait { stream, source } => (EventKind::Wait, [0, source.as_u64(), stream.as_u64(), 0]),
        OrderEvent::Mark { event, stream } => (EventKind::Mark, [event as u64, 0, stream.as_u64(), 0]),
        OrderEvent::WaitForMark { stream, event } => {
            (EventKind::WaitForMark, [event as u64, 0, stream.as_u64(), 0])
        }
        OrderEvent::StreamDone(stream) => (EventKind::StreamDone, [0, 0, stream.as_u64(), 0]),
        OrderEvent::MarkDone(event) => (EventKind::MarkDone, [event as u64, 0, 0, 0]),
        OrderEvent::DeviceDone => (EventKind::DeviceDone, [0; 4]),
    };
    Raw { kind, words }
}

/// Packs a tag and its pool into a word, the tag in the upper half.
pub(super) fn whose(pool: PoolId, tag: u16) -> u64 {
    u64::from(number(pool)) | u64::from(tag) << 32
}

pub(super) fn number(pool: PoolId) -> u32 {
    pool.number() as u32
}
