//! [`StreamError`]: a call cannot use its stream.

use gpumem_base::order::StreamId;
use gpumem_sys::text::debug_is_display;

/// The reason why a call cannot use its stream.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream was retired, because its owner is about to destroy it.
    #[error("this stream was retired because its owner destroys it; wrap another stream")]
    Retired,
    /// A thread named another thread's default stream.
    #[error(
        "this is the default stream of another thread; use it there, or create a stream with Stream::new"
    )]
    WrongThread,
    /// Another library's stream uses the block, and only calls that name that stream can wait for it.
    #[error(
        "{stream} of another library uses this block, and only calls that name it can wait for its work; use that stream \
         for this operation, or wrap it with Stream::from_raw_long_lived"
    )]
    NotOrdered {
        /// The stream that uses the block.
        stream: StreamId,
    },
    /// The call would wait for the closure of [`Stream::run_borrowed`](crate::Stream::run_borrowed) that contains it.
    #[error(
        "this call waits for the closure of a borrow of the stream that it is made in; make it after that closure returns"
    )]
    Borrowed,
}

debug_is_display!(StreamError);
