//! [`Watch`]: observers of the waits on a device's streams. Without an observer, a wait costs one load of a flag.

use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_base::order::StreamId;
use gpumem_sys::types::CUevent;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// An operation of the program that orders streams or observes their completion.
#[derive(Clone, Copy, Debug)]
pub enum OrderEvent {
    /// A stream waits for all work of another.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that it waits for.
        source: StreamId,
    },
    /// An event is recorded on a stream.
    Mark {
        /// The event.
        event: CUevent,
        /// The stream.
        stream: StreamId,
    },
    /// A stream waits for an event.
    WaitForMark {
        /// The stream that waits.
        stream: StreamId,
        /// The event that it waits for.
        event: CUevent,
    },
    /// The host has observed that a stream's work is done.
    StreamDone(StreamId),
    /// The host has observed that an event is complete.
    MarkDone(CUevent),
    /// The host has waited for the device.
    DeviceDone,
}

/// Records the operations that order streams.
pub trait OrderObserver: Send + Sync {
    /// Records one operation.
    fn note(&self, event: OrderEvent);
}

/// The observers of a GPU.
#[derive(Default)]
pub struct Watch {
    is_on: AtomicBool,
    observers: RwLock<Vec<Weak<dyn OrderObserver>>>,
}

impl Watch {
    /// Adds an observer, once.
    pub fn add(&self, observer: &Arc<dyn OrderObserver>) {
        let mut observers = self.observers.write().unwrap_or_else(PoisonError::into_inner);
        observers.retain(|known| known.strong_count() > 0);
        let own = Arc::as_ptr(observer).cast::<()>();
        if !observers.iter().any(|known| core::ptr::eq(known.as_ptr().cast::<()>(), own)) {
            observers.push(Arc::downgrade(observer));
        }
        self.is_on.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn note(&self, event: OrderEvent) {
        if self.is_on.load(Ordering::Relaxed) {
            self.publish(event);
        }
    }

    #[cold]
    fn publish(&self, event: OrderEvent) {
        let observers = self.observers.read().unwrap_or_else(PoisonError::into_inner);
        let mut is_observed = false;
        for observer in observers.iter().filter_map(Weak::upgrade) {
            is_observed = true;
            observer.note(event);
        }
        drop(observers);
        if !is_observed {
            self.settle();
        }
    }

    /// Turns the flag off if no observer is left.
    fn settle(&self) {
        let mut observers = self.observers.write().unwrap_or_else(PoisonError::into_inner);
        observers.retain(|known| known.strong_count() > 0);
        if observers.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
        }
    }
}
