//! [`AnyStream`]: what the rooms below [`Stream`](crate::Stream) see of it.
//!
//! The clocks, the records of captures and the list of sleeping memory hold streams, weakly or to keep them alive.

use super::calls::{Calls, Closed};
use super::primary::PrimaryContext;
use core::any::Any;
use gpumem_base::order::StreamId;
use gpumem_sys::types::CUstream;
use std::sync::Arc;

/// The shared part of a stream's clones.
pub trait AnyStream: Any + Send + Sync {
    /// The identity of the stream.
    fn id(&self) -> StreamId;

    /// The driver's handle.
    fn raw(&self) -> CUstream;

    /// The context of the stream.
    fn context(&self) -> &PrimaryContext;

    /// The calls that are queueing work on the stream.
    fn calls(&self) -> &Calls;

    /// True if calls of this thread may name the stream.
    fn is_usable(&self) -> bool;

    /// Makes the next call that names the stream check whether a marker was requested.
    fn look_when_named(&self);

    /// The stream captures and cannot be destroyed: it goes with its context.
    fn leave_to_context(&self);
}

/// The stream, if it is of this type.
pub(super) fn typed<S: AnyStream>(stream: Arc<dyn AnyStream>) -> Option<Arc<S>> {
    let stream: Arc<dyn Any + Send + Sync> = stream;
    stream.downcast().ok()
}

/// Closes streams for the end of their capture; see `Calls::close_all`.
pub fn close_for_end(streams: &[Arc<dyn AnyStream>]) -> Vec<Closed<'_>> {
    let calls: Vec<&Calls> = streams.iter().map(|stream| stream.calls()).collect();
    Calls::close_all(&calls)
}
