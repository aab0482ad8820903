//! A request that the thread's cache does not serve.

use super::{Origin, check, fast, found, ladder};
use crate::backend::Allocation;
use crate::config::ALIGNMENT_MIN;
use crate::error::PoolError;
use crate::pool::adaptors::{AdaptedCall, Grant, Request, Stack};
use crate::pool::graph_memory::rounded;
use crate::pool::state::StateRef;
use gpumem_device::Stream;
use gpumem_device::internal::GRAPH_BIT;

/// The slow path of an allocation: checks the request, then allocates from the graph that the stream captures, through
/// the adaptors, or from the backend. Returns the allocation and its initial uses.
#[inline(never)]
pub(super) fn alloc(
    state: StateRef,
    size_bytes: u64,
    alignment: u64,
    stream: &Stream,
) -> Result<(Allocation, u64), PoolError> {
    state.check_awake()?;
    if let Some(stack) = state.stack()
        && size_bytes > 0
        && state.has_only_adaptors_to_ask(stream)
    {
        return adapted(state, stack, size_bytes, alignment, stream);
    }
    check::usable(&state, stream)?;
    state.name_stream(stream, size_bytes);
    if size_bytes == 0 {
        state.lifetime.count_in();
        return Ok((Allocation::EMPTY, 0));
    }
    if state.has_captures()
        && let Some(part) = captured(state, size_bytes, alignment, stream)?
    {
        return Ok(part);
    }
    match state.stack() {
        Some(stack) => adapted(state, stack, size_bytes, alignment, stream),
        None => {
            let allocated = found::from_backend(&state, size_bytes, alignment, stream);
            Ok((
                state.with_report(
                    allocated,
                    &Origin { size_bytes: Some(size_bytes), stream: Some(stream.id()), tag: 0 },
                )?,
                0,
            ))
        }
    }
}

/// Allocates on a stream that may be part of a capture, for a request that has been checked. Returns the allocation
/// and its initial uses; `None` if the stream does not capture.
fn captured(
    state: StateRef,
    size_bytes: u64,
    alignment: u64,
    stream: &Stream,
) -> Result<Option<(Allocation, u64)>, PoolError> {
    let Some(graph) = stream.captures_for()? else { return Ok(None) };
    let memory = &state.graph_memory;
    let part = |address| (Allocation::new(address, 0, Allocation::NO_CLASS), GRAPH_BIT);
    if alignment <= ALIGNMENT_MIN
        && let Some(address) = memory.take_part(graph, state, size_bytes, stream.id())
    {
        return Ok(Some(part(address)));
    }
    let source = stream.source_of(graph)?;
    let chunk = fast::alloc(state, rounded(size_bytes), alignment, &source)?;
    let address = chunk.address();
    memory.add_chunk(graph, state, chunk, stream.id());
    Ok(Some(part(address)))
}

/// Allocates through all adaptors, for a request that has been checked. Returns the allocation and its initial uses: none. Inlined, so
/// that the allocation's fields move directly to where the caller needs them.
#[inline(always)]
fn adapted(
    state: StateRef,
    stack: &Stack,
    size_bytes: u64,
    alignment: u64,
    stream: &Stream,
) -> Result<(Allocation, u64), PoolError> {
    let call = AdaptedCall::new(stack, &state, stream);
    let request = call.request(size_bytes, alignment);
    let answer = call.begin(&request);
    if let Some(allocation) = call.plain_allocation(&answer, &request) {
        // The allocation belongs to the block now.
        core::mem::forget(answer);
        return Ok((allocation, 0));
    }
    finish_adapted(state, &call, answer, &request)
}

/// Handles every answer that is not a plain allocation. A refusal by a budget runs the reclaim callbacks and repeats
/// the request.
#[inline(never)]
fn finish_adapted(
    state: StateRef,
    call: &AdaptedCall<'_>,
    answer: Result<Grant, PoolError>,
    request: &Request<'_>,
) -> Result<(Allocation, u64), PoolError> {
    let again = || call.finish(call.begin(request), request);
    let finished = call.finish(answer, request);
    let finished = finished.or_else(|error| ladder::retry_over_budget(&state, error, again));
    let origin = Origin {
        size_bytes: Some(request.size_bytes()),
        stream: Some(request.stream().id()),
        tag: request.tag_number(),
    };
    Ok((state.with_report(finished, &origin)?, 0))
}
