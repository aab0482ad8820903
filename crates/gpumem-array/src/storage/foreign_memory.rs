//! [`ForeignMemory`]: memory of another library.

#[cfg(feature = "cudarc")]
use crate::error::ArrayError;
use core::any::Any;
use gpumem_pool::sys::fork;
use gpumem_pool::{Device, DeviceError, MemoryKind, Stream};
use std::sync::{Mutex, PoisonError};

/// The value whose drop returns the memory to its library.
pub(crate) type ForeignOwner = Box<dyn Any + Send + Sync>;

/// Memory of another library, and its owner there.
pub(super) struct ForeignMemory {
    pub(super) device: Device,
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) kind: MemoryKind,
    /// The other library uses the memory again in the order of this stream.
    home: Stream,
    users: Mutex<Vec<Stream>>,
    owner: Option<ForeignOwner>,
}

impl ForeignMemory {
    pub(super) fn new(
        device: Device,
        home: Stream,
        (address, size_bytes, kind): (u64, u64, MemoryKind),
        owner: ForeignOwner,
    ) -> Self {
        let users = Mutex::default();
        Self { device, address, size_bytes, kind, home, users, owner: Some(owner) }
    }

    pub(super) fn record_use(&self, stream: &Stream) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.id() != self.home.id() && !users.iter().any(|user| user.id() == stream.id()) {
            users.push(stream.clone());
        }
    }

    /// Makes the other library's stream wait for all uses.
    fn order_home(&mut self) -> Result<(), DeviceError> {
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        users.iter().try_for_each(|user| {
            if self.home.wait_for_point_outside_captures(user.point())? {
                Ok(())
            } else {
                self.home.wait_for(user)
            }
        })
    }

    /// Returns the owner, whose stream waits for all uses. An error and the memory if it is of another type.
    #[cfg(feature = "cudarc")]
    pub(super) fn into_owner<O: 'static>(mut self: Box<Self>) -> Result<O, (ArrayError, Box<Self>)> {
        let no_slice = ArrayError::NoCudaSlice { memory: "memory of another library" };
        if !self.owner.as_ref().is_some_and(|owner| owner.is::<O>()) {
            return Err((no_slice, self));
        }
        if let Err(error) = self.order_home() {
            return Err((error.into(), self));
        }
        match self.owner.take().map(|owner| owner.downcast::<O>()) {
            Some(Ok(owner)) => Ok(*owner),
            // It has the type, as checked above.
            Some(Err(owner)) => {
                self.owner = Some(owner);
                Err((no_slice, self))
            }
            None => Err((no_slice, self)),
        }
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        if self.owner.is_none() {
            return;
        }
        if fork::is_child() || self.order_home().is_err() {
            // The other library would reuse the memory too early, so it never gets it back.
            core::mem::forget(self.owner.take());
        }
        // Some libraries free in the current context, and leave another one current.
        let _bound = self.device.bind();
        drop(self.owner.take());
    }
}
