//! [`Watch`]: who is told of waits on a device's streams. Nobody, usually: then it costs a look at a flag.

use super::event::{Kind, Raw};
use super::recorder::Recorder;
use crate::clock::StreamId;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_sys::types::CUevent;
use std::sync::{Arc, PoisonError, RwLock, Weak};

#[derive(Default)]
pub(crate) struct Watch {
    is_on: AtomicBool,
    recorders: RwLock<Vec<Weak<Recorder>>>,
}

impl Watch {
    pub(super) fn add(&self, recorder: &Arc<Recorder>) {
        let mut recorders = self.recorders.write().unwrap_or_else(PoisonError::into_inner);
        recorders.retain(|known| known.strong_count() > 0);
        if !recorders.iter().any(|known| core::ptr::eq(known.as_ptr(), Arc::as_ptr(recorder))) {
            recorders.push(Arc::downgrade(recorder));
        }
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wait(&self, stream: StreamId, source: StreamId) {
        self.note(Kind::Wait, 0, source.as_u64(), stream.as_u64());
    }

    pub(crate) fn mark(&self, event: CUevent, stream: StreamId) {
        self.note(Kind::Mark, event as u64, 0, stream.as_u64());
    }

    pub(crate) fn wait_for_mark(&self, stream: StreamId, event: CUevent) {
        self.note(Kind::WaitForMark, event as u64, 0, stream.as_u64());
    }

    pub(crate) fn stream_done(&self, stream: StreamId) {
        self.note(Kind::StreamDone, 0, 0, stream.as_u64());
    }

    pub(crate) fn mark_done(&self, event: CUevent) {
        self.note(Kind::MarkDone, event as u64, 0, 0);
    }

    pub(crate) fn device_done(&self) {
        self.note(Kind::DeviceDone, 0, 0, 0);
    }

    #[inline]
    fn note(&self, kind: Kind, address: u64, value: u64, stream: u64) {
        if self.is_on.load(Ordering::Relaxed) {
            self.tell(Raw { kind, words: [address, value, stream, 0] });
        }
    }

    #[cold]
    fn tell(&self, raw: Raw) {
        let recorders = self.recorders.read().unwrap_or_else(PoisonError::into_inner);
        recorders.iter().filter_map(Weak::upgrade).for_each(|recorder| recorder.record(raw));
    }
}
