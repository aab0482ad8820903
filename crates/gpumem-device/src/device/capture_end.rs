//! The end of a capture, and the waits that it has deferred.

use super::any_stream::{AnyStream, close_for_end};
use super::objects::Object;
use super::order::{CapturePart, Clocks};
use super::primary::PrimaryContext;
use gpumem_base::order::StreamIndex;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUgraph, CUresult};
use std::sync::Arc;

/// Ends a capture that this thread has begun and that prevents the wait at the end of a borrow: the borrowed memory
/// takes precedence over the graph. `Capture::end` reports the capture as broken.
pub(crate) fn cut_short(device: &PrimaryContext, clocks: &Clocks, graph: u64, origin: StreamIndex) {
    let members = clocks.captures().members(graph);
    let _alone = close_for_end(&members);
    if clocks.captures().end_begins(graph) {
        // If the driver refuses, the next attempt to wait fails and reports it.
        let ended = end_of(&members, clocks, origin);
        if let Some(raw) = ended.ok().filter(|raw| !raw.is_null()) {
            device.destroy(Object::Graph(raw));
        }
        let _ = run_again(device, clocks, graph, origin);
    }
}

/// Ends a capture that was begun on `origin`. If the driver refuses, as it does once the device is lost, the streams keep capturing.
pub fn end_of(
    members: &[Arc<dyn AnyStream>],
    clocks: &Clocks,
    origin: StreamIndex,
) -> Result<CUgraph, DriverError> {
    let ended = clocks.end_capture(origin);
    if ended.is_err() && !matches!(clocks.part(origin), Ok(CapturePart::Runs)) {
        members.iter().for_each(|stream| stream.leave_to_context());
    }
    ended
}

/// Queues the deferred waits on the streams of a capture that is over.
pub fn run_again(
    device: &PrimaryContext,
    clocks: &Clocks,
    graph: u64,
    origin: StreamIndex,
) -> Result<(), DriverError> {
    let waits = clocks.captures().end(graph, clocks.epochs());
    let ours = waits
        .into_iter()
        .filter(|(index, _)| *index == origin || clocks.own_part(*index) == Some(CapturePart::Runs));
    let mut refused = Ok(());
    // Every wait is tried, even after one was refused.
    for (index, stamp) in ours {
        let ordered = clocks.order_launch(stamp, index).and_then(|is_ordered| {
            if is_ordered {
                Ok(())
            } else {
                DriverError::check("cuEventRecord", CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
        });
        refused = ordered.and(refused);
    }
    // No later call repeats these waits, and blocks of the capture may live on: the host waits instead.
    if refused.is_err() && clocks.finish_everything(device)? { Ok(()) } else { refused }
}
