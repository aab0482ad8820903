//! Copies between devices that cannot access each other's memory: through pinned memory, in chunks.
//!
//! One stream per device copies: from the source into a slot, and from the slot into the target. They wait for each other on the device, so
//! one chunk enters a slot while the previous chunk leaves another slot. The host only queues.

use crate::array::{GpuView, GpuViewMut};
use crate::copy::COPY;
use crate::element::Element;
use crate::error::ArrayError;
use crate::gpu::Gpu;
use crate::gpu::stage::{Slot, Stage};
use crate::storage::{Touched, Use, queue_copy};
use gpumem_pool::{Stream, StreamPoint};
use ndarray::Dimension;

/// Copies elements that are contiguous in one order in both views. `receiver` is on the target's device.
pub(super) fn copy<T: Element, D: Dimension, E: Dimension>(
    receiver: &Gpu,
    target: &GpuViewMut<'_, T, D>,
    source: &GpuView<'_, T, E>,
) -> Result<(), ArrayError> {
    let size_bytes = source.len() * size_of::<T>();
    source.home().with_stage(|sender, Stage { stream, slots }| {
        let ends = Ends { sender, receiver, target: target.writes(), source: source.reads() };
        let chunk_bytes = chunk_bytes(size_bytes, slots);
        let starts = (0..size_bytes).step_by(chunk_bytes);
        let copied = starts.enumerate().try_for_each(|(index, start)| {
            let slot = index % slots.len();
            let chunk = StagedChunk {
                to: target.planned() + start as u64,
                from: source.planned() + start as u64,
                size_bytes: chunk_bytes.min(size_bytes - start),
            };
            ends.copy_through(&mut slots[slot], &chunk)
        });
        if receiver.stream().is_foreign() {
            // Other streams can wait for its points only while it can be named.
            stream.wait_for(receiver.stream())?;
            slots.iter_mut().for_each(|slot| slot.read = StreamPoint::COMPLETE);
        }
        copied
    })
}

/// The two sides of a copy, each with its stream.
struct Ends<'a> {
    sender: &'a Gpu,
    receiver: &'a Gpu,
    target: Use<'a>,
    source: Use<'a>,
}

struct StagedChunk {
    to: u64,
    from: u64,
    size_bytes: usize,
}

impl Ends<'_> {
    fn copy_through(&self, slot: &mut Slot, chunk: &StagedChunk) -> Result<(), ArrayError> {
        let Self { sender, receiver, target, source } = *self;
        let &StagedChunk { to, from, size_bytes } = chunk;
        let (driver, middle) = (sender.device().driver(), slot.block.address());
        // The target first: a stream that captures refuses the write before anything is queued.
        target.order(receiver, COPY)?;
        source.order(sender, COPY)?;
        wait(sender.stream(), slot.read, receiver.stream())?;
        queue_copy(sender, [Touched::Array(source), Touched::Other(slot.memory())], |stream, placed| {
            let from = source.at(from, placed);
            // SAFETY: the chunk lies within the source, in live memory of this device, and the stream has been ordered to read it. The
            // slot has room for a chunk, and the stream waits for the last copy out of it.
            unsafe { driver.cuMemcpyAsync(middle, from, size_bytes, stream) }
        })?;
        wait(receiver.stream(), sender.stream().point(), sender.stream())?;
        let is_marked = receiver.stream().has_waiters();
        slot.block.record_use(receiver.stream());
        let queued = queue_copy(
            receiver,
            [Touched::Array(target), Touched::Other(slot.memory())],
            |stream, placed| {
                let to = target.at(to, placed);
                // SAFETY: the chunk lies within the target, in live memory of this device, and the stream has been ordered to write it.
                // Every device can access the slot, which the stream waits for.
                unsafe { driver.cuMemcpyAsync(to, middle, size_bytes, stream) }
            },
        );
        // Even after an error: the copy may have been queued.
        slot.read = receiver.stream().point();
        if !is_marked {
            // The next chunk in this slot waits only for this one. The next call reports a failure.
            let _ = receiver.stream().mark();
        }
        queued
    }
}

/// Makes `stream` wait for a point of `other`, or of a stream that can be waited for without its name.
fn wait(stream: &Stream, point: StreamPoint, other: &Stream) -> Result<(), ArrayError> {
    if !stream.wait_for_point(point)? {
        stream.wait_for(other)?;
    }
    Ok(())
}

/// Several chunks even for small copies, so that both devices copy at once.
fn chunk_bytes(size_bytes: usize, slots: &[Slot]) -> usize {
    let slot_bytes = slots.iter().map(|slot| slot.block.size_bytes()).min().unwrap_or(0) as usize;
    size_bytes.div_ceil(CHUNK_COUNT_MIN).clamp(CHUNK_BYTES_MIN.min(slot_bytes), slot_bytes).max(1)
}

const CHUNK_COUNT_MIN: usize = 8;
/// For smaller chunks, the calls of the host take longer than the copies.
const CHUNK_BYTES_MIN: usize = 256 << 10;
