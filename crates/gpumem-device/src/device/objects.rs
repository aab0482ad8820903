//! [`Object`]: a driver object whose owner is dropped, and [`Refused`]: objects that the driver did not destroy then.
//!
//! A drop cannot return an error, and one refused call would leak the object. So it is destroyed by the next drop of an object, by
//! maintenance, or at the latest with its device.

use super::context::ContextGuard;
use crate::error::is_over;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_base::sync::Lock;
use gpumem_sys::types::{CUcontext, CUevent, CUgraph, CUgraphExec, CUresult, CUstream};
use gpumem_sys::{Driver, DriverError, fork};

/// A driver object. Code that creates one of these does not use the handle any more.
#[derive(Clone, Copy)]
pub enum Object {
    /// A stream.
    Stream(CUstream),
    /// An event.
    Event(CUevent),
    /// A graph.
    Graph(CUgraph),
    /// An executable graph.
    Exec(CUgraphExec),
}

/// An object and the context that it belongs to.
#[derive(Clone, Copy)]
pub struct Owned {
    /// The object.
    pub object: Object,
    /// The context of the object.
    pub context: CUcontext,
}

// SAFETY: the handles are only passed to the driver, whose entry points take them on any thread.
unsafe impl Send for Owned {}

/// Objects that the driver refused to destroy, oldest first.
#[derive(Default)]
pub(super) struct Refused {
    objects: Lock<Vec<Owned>>,
    has_any: AtomicBool,
}

impl Owned {
    /// Destroys the object; in a host function, later ([`Driver::destroy`]). It is not used after a success.
    pub fn destroy(self, driver: &Driver) -> Result<(), DriverError> {
        driver.destroy(move |driver| {
            let Self { object, context } = self.whole();
            let _bound = ContextGuard::enter(driver, context)?;
            // SAFETY: the handle is not used any more, and the driver keeps the state that queued work needs: waits for an event, launches
            // of an executable. Executables do not need their graph.
            unsafe {
                match object {
                    Object::Stream(raw) => driver.cuStreamDestroy_v2(raw),
                    Object::Event(raw) => driver.cuEventDestroy_v2(raw),
                    Object::Graph(raw) => driver.cuGraphDestroy(raw),
                    Object::Exec(raw) => driver.cuGraphExecDestroy(raw),
                }
            }
        })
    }

    /// Like [`Owned::destroy`], at the end of its device, after which nothing repeats the call.
    #[inline]
    pub fn destroy_at_end(self, driver: &Driver) {
        at_end(|| self.destroy(driver));
    }

    /// A closure that calls this captures the whole value: the fields are not `Send`.
    fn whole(self) -> Self {
        self
    }
}

impl Refused {
    pub(super) fn add(&self, owned: Owned) {
        self.objects.lock().push(owned);
        self.has_any.store(true, Ordering::Release);
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Destroys the objects, up to the first that the driver refuses again.
    pub(super) fn destroy(&self, driver: &Driver) {
        if !self.has_any() || fork::is_child() {
            return;
        }
        // The driver is not called under the lock.
        while let Some(owned) = self.take_first() {
            match owned.destroy(driver) {
                Err(error) if !(is_over(error.code()) || error.code() == GONE) => return self.add(owned),
                _ => {}
            }
        }
    }

    /// Called at the end of the device. Objects that the driver still refuses go with the context.
    pub(super) fn destroy_at_end(&self, driver: &Driver) {
        while let Some(owned) = self.take_first() {
            owned.destroy_at_end(driver);
        }
    }

    /// The program has reset the device, and all objects are gone.
    pub(super) fn forget(&self) {
        self.objects.lock().clear();
        self.has_any.store(false, Ordering::Release);
    }

    fn take_first(&self) -> Option<Owned> {
        let mut objects = self.objects.lock();
        let first = if objects.is_empty() { None } else { Some(objects.remove(0)) };
        self.has_any.store(!objects.is_empty(), Ordering::Release);
        first
    }
}

/// Repeats a refused call a few times, because nothing else will. The last error is ignored, because a drop cannot return it.
pub(crate) fn at_end<T>(mut call: impl FnMut() -> Result<T, DriverError>) -> Option<T> {
    (0..TRIES).find_map(|_| call().ok())
}

/// The object does not exist.
const GONE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const TRIES: usize = 3;
