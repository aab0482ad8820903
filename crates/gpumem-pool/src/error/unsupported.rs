//! [`Unsupported`]: an operation that this pool, device, driver or build cannot do.

use crate::config::{BackendKind, MemoryKind};
use gpumem_sys::text::{Shown, debug_is_display};

/// A lack of support for an operation. Each text names the alternative.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The pool's backend does not support the operation; another backend does.
    #[error("the backend `{backend}` cannot {what}; use the backend {instead}")]
    OnBackend {
        /// The pool's backend.
        backend: BackendKind,
        /// The operation, as an infinitive.
        what: &'static str,
        /// The backends that support the operation.
        instead: &'static str,
    },
    /// The operation needs virtual memory management, and the pool uses plain segments: the driver lacks it, or the option
    /// `expandable_segments:false` is set.
    #[error(
        "a pool over plain segments cannot {what}, which needs virtual memory management; use a driver and a device that \
         support it, without the option expandable_segments:false"
    )]
    OnSegments {
        /// The operation, as an infinitive.
        what: &'static str,
    },
    /// Memory of the pool's kind does not support the operation.
    #[error("memory of the kind `{kind}` cannot {what}; use a pool of the kind {instead}")]
    OnKind {
        /// The pool's kind.
        kind: MemoryKind,
        /// The operation, as an infinitive.
        what: &'static str,
        /// The kinds that support the operation.
        instead: &'static str,
    },
    /// This program was built without the backend's cargo feature.
    #[error(
        "this program was built without the backend `{backend}`; enable the cargo feature `{feature}`, or use the backend \
         `none`"
    )]
    NotBuilt {
        /// The requested backend.
        backend: BackendKind,
        /// The cargo feature that builds it.
        feature: &'static str,
    },
    /// The backend is built in, but this device or its driver does not support it.
    #[error(
        "the backend `{backend}` does not work here ({}); update the driver, or use the backend `none`",
        Shown::sentence(.reason)
    )]
    Backend {
        /// The requested backend.
        backend: BackendKind,
        /// The missing capability.
        reason: String,
    },
    /// The device or its driver has no memory of this kind.
    #[error("memory of the kind `{kind}` is unavailable here ({}); use `device` or `host`", Shown::sentence(.reason))]
    Kind {
        /// The requested kind.
        kind: MemoryKind,
        /// The missing capability.
        reason: String,
    },
    /// No link connects the two devices, so neither can access the other's memory.
    #[error(
        "{} cannot access the memory of {}: no link connects them; copy through the host",
        Shown::sentence(.peer), Shown::sentence(.device)
    )]
    PeerAccess {
        /// The device that owns the memory.
        device: String,
        /// The device that requested access.
        peer: String,
    },
    /// The block's pool was built without the option `exportable:true`.
    #[error(
        "this block cannot be exported; build its pool with the option exportable:true and the backend `caching`"
    )]
    Export,
}

debug_is_display!(Unsupported);
