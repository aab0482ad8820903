//! [`CaptureError`]: a capture prevents a call, or a call has broken a capture.

use gpumem_sys::text::debug_is_display;

/// A conflict between a call and a capture.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The operation cannot be part of a graph, and a capture is active. The capture is unchanged.
    #[error("{operation} cannot be part of a graph; do it before the capture begins or after it ends")]
    NotCapturable {
        /// The refused operation.
        operation: &'static str,
    },
    /// A stream of another library is part of a capture that was not announced, so that its memory would be reused while the graph exists.
    /// The capture is unchanged.
    #[error(
        "the stream is part of a capture that was not announced; call ForeignCaptures::expect before the capture begins, or name the \
         stream after the capture ends"
    )]
    Unannounced,
    /// A call that cannot be part of a graph was made during the capture and broke it.
    #[error(
        "this capture is broken: a call that cannot be part of a graph was made during it; end it, and capture again \
         without that call"
    )]
    Broken,
    /// A stream joined the capture, and the capturing stream did not wait for it before the end.
    #[error(
        "this capture produced no graph: a stream that joined it has work that the capturing stream does not wait for; \
         make the capturing stream wait for that stream before the capture ends"
    )]
    Unjoined,
}

debug_is_display!(CaptureError);
