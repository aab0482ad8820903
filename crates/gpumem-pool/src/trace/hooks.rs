//! The events that an adaptor records of each call.

use super::event::{Kind, Raw};
use super::rings::Rings;
use crate::device::OrderEvent;
use crate::error::PoolError;
use crate::pool::{Change, Figures, Grant, Next, PoolId, Release, Request};

/// An adaptor that records.
pub(super) trait Record {
    fn rings(&self) -> &Rings;

    /// Records an event of this thread.
    fn record(&self, raw: Raw);

    /// True if refusals are recorded where they pass this adaptor.
    const RECORDS_REFUSALS: bool;
}

#[inline]
pub(super) fn alloc<R: Record>(
    recorder: &R,
    request: &Request<'_>,
    next: Next<'_>,
) -> Result<Grant, PoolError> {
    let (stream, whose) = (request.stream().id().as_u64(), whose(request.pool(), request.tag_number()));
    let grant = match next.alloc(request) {
        Ok(grant) => grant,
        Err(error) => {
            if R::RECORDS_REFUSALS {
                refused(recorder, request, &error);
            }
            return Err(error);
        }
    };
    let words = [grant.address(), grant.size_bytes(), stream, whose];
    recorder.record(Raw { kind: Kind::Alloc, words });
    let pool = number(request.pool());
    if request.held_bytes().is_some_and(|held_bytes| recorder.rings().note_held(pool, held_bytes)) {
        reserved(recorder, pool, request.figures());
    }
    Ok(grant)
}

#[cold]
fn refused(recorder: &impl Record, request: &Request<'_>, error: &PoolError) {
    if !error.is_want_of_memory() {
        return;
    }
    let by = error.out_of_memory().map(|report| report.refused_by);
    let whose = whose(request.pool(), request.tag_number());
    let stream = Some(request.stream().id().as_u64());
    recorder.record(Raw::refused(whose, request.size_bytes(), stream, by));
    figures(recorder, number(request.pool()), request.figures());
}

#[cold]
fn reserved(recorder: &impl Record, pool: u32, figures: Option<Figures>) {
    if let Some(figures) = figures {
        recorder.record(Raw::reserved(pool, &figures));
    }
}

/// Records the figures of a pool.
pub(super) fn figures(recorder: &impl Record, pool: u32, figures: Option<Figures>) {
    if let Some(figures) = figures {
        recorder.record(Raw::reserved(pool, &figures));
        recorder.record(Raw::in_use(pool, &figures));
    }
}

#[inline]
pub(super) fn free(recorder: &impl Record, release: &Release<'_>) {
    let (address, pool) = (release.address(), number(release.pool()));
    for user in release.users() {
        recorder.record(Raw { kind: Kind::Use, words: [address, 0, user.as_u64(), u64::from(pool)] });
    }
    let stream = release.stream_id().as_u64();
    recorder.record(Raw::free(pool, address, release.size_bytes(), stream, release.is_complete()));
}

#[cold]
pub(super) fn resize<R: Record>(recorder: &R, change: &Change<'_>) {
    let (address, whose) = (change.address(), whose(change.pool(), change.tag_number()));
    if change.is_undone() {
        // The size that the block was to have.
        if R::RECORDS_REFUSALS {
            let stream = Some(change.stream_id().as_u64());
            recorder.record(Raw::refused(whose, change.from_bytes(), stream, None));
        }
        return;
    }
    if change.to_bytes() < change.from_bytes() {
        for user in change.users() {
            let pool = u64::from(number(change.pool()));
            recorder.record(Raw { kind: Kind::Use, words: [address, 0, user.as_u64(), pool] });
        }
    }
    let words = [address, change.to_bytes(), change.stream_id().as_u64(), whose];
    recorder.record(Raw { kind: Kind::Resize, words });
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
