//! [`Sink`]: an adaptor that records. The events that it records of each call are determined here, for all sinks.

use super::book::{Book, Entry};
use super::event::{Kind, Raw};
use super::rings::Rings;
use crate::device::{OrderEvent, OrderObserver};
use crate::error::PoolError;
use crate::pool::{Adaptor, Change, Figures, Grant, Next, Opening, PoolId, Release, Request};
use std::sync::Arc;

pub(super) trait Sink: Send + Sync {
    /// The name of the adaptor.
    const NAME: &'static str;

    /// True if refusals are recorded where they pass the adaptor.
    const RECORDS_REFUSALS: bool;

    fn rings(&self) -> &Rings;

    fn book(&self) -> &Book;

    /// Records the order of streams in the same rings.
    fn observer(&self) -> Arc<dyn OrderObserver>;

    /// Records an event of this thread.
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
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let (stream, whose) = (request.stream().id().as_u64(), whose(request.pool(), request.tag_number()));
        let grant = match next.alloc(request) {
            Ok(grant) => grant,
            Err(error) => {
                if S::RECORDS_REFUSALS {
                    refused(self, request, &error);
                }
                return Err(error);
            }
        };
        let words = [grant.address(), grant.size_bytes(), stream, whose];
        self.record(Raw { kind: Kind::Alloc, words });
        let pool = number(request.pool());
        if request.held_bytes().is_some_and(|held_bytes| self.rings().note_held(pool, held_bytes)) {
            reserved(self, pool, request.figures());
        }
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        let (address, pool) = (release.address(), number(release.pool()));
        for user in release.users() {
            self.record(Raw { kind: Kind::Use, words: [address, 0, user.as_u64(), u64::from(pool)] });
        }
        let stream = release.stream_id().as_u64();
        self.record(Raw::free(pool, address, release.size_bytes(), stream, release.is_complete()));
    }

    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        resize(self, change);
        Ok(())
    }

    fn shrink(&self, change: &Change<'_>) {
        resize(self, change);
    }

    fn close(&self, pool: PoolId) {
        self.end(pool);
    }
}

#[cold]
fn refused(sink: &impl Sink, request: &Request<'_>, error: &PoolError) {
    if !error.is_want_of_memory() {
        return;
    }
    let by = error.out_of_memory().map(|report| report.refused_by);
    let whose = whose(request.pool(), request.tag_number());
    let stream = Some(request.stream().id().as_u64());
    sink.record(Raw::refused(whose, request.size_bytes(), stream, by));
    figures(sink, number(request.pool()), request.figures());
}

#[cold]
fn reserved(sink: &impl Sink, pool: u32, figures: Option<Figures>) {
    if let Some(figures) = figures {
        sink.record(Raw::reserved(pool, &figures));
    }
}

/// Records the figures of a pool.
pub(super) fn figures(sink: &impl Sink, pool: u32, figures: Option<Figures>) {
    if let Some(figures) = figures {
        sink.record(Raw::reserved(pool, &figures));
        sink.record(Raw::in_use(pool, &figures));
    }
}

#[cold]
fn resize<S: Sink>(sink: &S, change: &Change<'_>) {
    let (address, whose) = (change.address(), whose(change.pool(), change.tag_number()));
    if change.is_undone() {
        // The size that the block was to have.
        if S::RECORDS_REFUSALS {
            let stream = Some(change.stream_id().as_u64());
            sink.record(Raw::refused(whose, change.from_bytes(), stream, None));
        }
        return;
    }
    if change.to_bytes() < change.from_bytes() {
        for user in change.users() {
            let pool = u64::from(number(change.pool()));
            sink.record(Raw { kind: Kind::Use, words: [address, 0, user.as_u64(), pool] });
        }
    }
    let words = [address, change.to_bytes(), change.stream_id().as_u64(), whose];
    sink.record(Raw { kind: Kind::Resize, words });
}

pub(super) fn raw_of(event: OrderEvent) -> Raw {
    let (kind, words) = match event {
        OrderEvent::Wait { stream, source } => (Kind::Wait, [0, source.as_u64(), stream.as_u64(), 0]),
        OrderEvent::Mark { event, stream } => (Kind::Mark, [event as u64, 0, stream.as_u64(), 0]),
        OrderEvent::WaitForMark { stream, event } => {
            (Kind::WaitForMark, [event as u64, 0, stream.as_u64(), 0])
        }
        OrderEvent::StreamDone(stream) => (Kind::StreamDone, [0, 0, stream.as_u64(), 0]),
        OrderEvent::MarkDone(event) => (Kind::MarkDone, [event as u64, 0, 0, 0]),
        OrderEvent::DeviceDone => (Kind::DeviceDone, [0; 4]),
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
