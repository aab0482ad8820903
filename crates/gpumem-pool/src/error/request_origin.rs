//! [`RequestOrigin`]: the device, pool, stream and tag that a refusal names.

use core::fmt;
use gpumem_device::StreamId;
use gpumem_sys::text::Shown;

/// Where a refused request came from. `Display` prints it as reports do: `device 0, pool training, stream 3, tag `forward``.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestOrigin {
    /// The ordinal of the device.
    pub device_ordinal: u32,
    /// The name of the pool ([`Pool::name`](crate::Pool::name)).
    pub pool: String,
    /// The stream of the request, or the owner stream of a growable block; `None` for a reservation.
    pub stream: Option<StreamId>,
    /// The tag of the request: the one given to [`Pool::alloc_tagged`](crate::Pool::alloc_tagged), the tag of the scope in which a growable
    /// block was created, or otherwise the tag of the thread's innermost scope ([`Pool::scope`](crate::Pool::scope)).
    pub tag: Option<String>,
}

impl fmt::Display for RequestOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}, pool {}", self.device_ordinal, Shown::name(&self.pool))?;
        if let Some(stream) = self.stream {
            write!(f, ", {stream}")?;
        }
        match &self.tag {
            Some(tag) => write!(f, ", tag `{}`", Shown::name(tag)),
            None => Ok(()),
        }
    }
}
