//! Growable blocks: created, resized, filled, compared and dropped, with every result checked.

use super::coverage::Coverage;
use super::faults::{self, Fault};
use super::objects::Growing;
use super::operation::{Pick, Wait};
use super::step::{Step, text};
use super::streams::Uses;
use super::world::World;
use crate::pool::{DeviceError, PoolError, Unsupported};

impl World<'_> {
    pub(super) fn new_growable(
        &mut self,
        (stream, max_bytes, fault): (Pick, u64, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(stream).filter(|_| self.growing.len() < GROWING_MAX) else {
            return Ok(());
        };
        let name = self.streams.name(&stream);
        said.push(format!("let g{} = pool.growable({max_bytes}, &{name})", self.next_name));
        let (outcome, seen) =
            faults::observed(&self.real, fault, || self.pool().growable(max_bytes, &stream));
        coverage.count("growable", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(block) if block.size_bytes() > 0 || block.max_bytes() != max_bytes => {
                Err(format!("{block:?} is not what was asked for"))
            }
            Ok(block) => {
                let counters = self.pools[0].counters;
                self.growing.push(Growing {
                    name: self.next_name,
                    block,
                    uses: Uses::default(),
                    head: None,
                    counters,
                });
                self.next_name += 1;
                Ok(())
            }
            Err(
                PoolError::Unsupported(
                    Unsupported::OnBackend { .. }
                    | Unsupported::OnSegments { .. }
                    | Unsupported::OnKind { .. },
                )
                | PoolError::Refused { .. },
            ) if !self.subject.grows() => Ok(()),
            Err(PoolError::TooLarge { .. }) if max_bytes > self.case.memory_bytes => Ok(()),
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn resize(
        &mut self,
        (pick, per_mille, fault): (Pick, u64, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(index) = pick.of(self.growing.len()) else { return Ok(()) };
        let Growing { name, block, .. } = &mut self.growing[index];
        let (before_bytes, size_bytes) = (block.size_bytes(), block.max_bytes() * per_mille / 1000);
        let shrinks = size_bytes < before_bytes;
        said.push(format!("g{name}.{}({size_bytes})", if shrinks { "shrink_to" } else { "grow_to" }));
        let (outcome, seen) = faults::observed(&self.real, fault, || match shrinks {
            true => block.shrink_to(size_bytes),
            false => block.grow_to(size_bytes),
        });
        let (after_bytes, counters) = (block.size_bytes(), self.growing[index].counters);
        coverage.count("resize", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        let expected_bytes = if shrinks || outcome.is_ok() { size_bytes } else { before_bytes };
        if after_bytes != expected_bytes {
            return Err(format!("it has {after_bytes} bytes, not {expected_bytes}"));
        }
        self.twin.change(counters, after_bytes.cast_signed() - before_bytes.cast_signed());
        if let Some(head) = &mut self.growing[index].head {
            head.truncate(after_bytes as usize);
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(()),
            Err(PoolError::LimitReached { .. } | PoolError::OutOfMemory { .. }) if !shrinks => {
                self.growth_is_impossible(index, size_bytes, seen.refused().is_some())
            }
            // Work queued before by a captured stream may still use the pages that the block gave up, and the pool cannot wait
            // for it.
            other => self.unless_captured(other),
        }
    }

    /// Checks that a refused growth also fails after an explicit reclaim. Skipped if a driver call failed by injection.
    fn growth_is_impossible(&mut self, index: usize, size_bytes: u64, is_faulted: bool) -> Step {
        if is_faulted || self.capturing.is_some() {
            return Ok(());
        }
        self.pool().reclaim().map_err(text)?;
        match self.growing[index].block.grow_to(size_bytes) {
            Err(PoolError::OutOfMemory { .. } | PoolError::LimitReached { .. }) => Ok(()),
            other => Err(format!("it could not grow, but after a reclaim by hand: {other:?}")),
        }
    }

    pub(super) fn fill_growable(
        &mut self,
        (pick, stream, value, wait): (Pick, Pick, u8, Wait),
        said: &mut Vec<String>,
    ) -> Step {
        let (Some(index), Some(stream)) = (pick.of(self.growing.len()), self.streams.pick(stream)) else {
            return Ok(());
        };
        // Graphs do not keep growable blocks.
        let Growing { name, block, uses, head, .. } = &mut self.growing[index];
        let size_bytes = block.size_bytes();
        if size_bytes == 0 || self.streams.is_captured(stream.id()) || !self.streams.can_order(uses, &stream)
        {
            return Ok(());
        }
        let waits = self.streams.order_uses(uses, &stream, true, wait)?;
        block.record_use(&stream);
        said.push(format!("{waits}fill(&g{name}, {value}, &{})", self.streams.name(&stream)));
        *head = Some(vec![value; size_bytes.min(HEAD_BYTES) as usize]);
        let tail_bytes = size_bytes.min(HEAD_BYTES);
        let parts = [(0, tail_bytes), (size_bytes - tail_bytes, tail_bytes)];
        let _bound = self.device.bind().map_err(text)?;
        for (offset, length) in parts {
            let address = block.address() + offset;
            // SAFETY: the bytes belong to the block, which is alive and records this stream.
            unsafe {
                self.driver.cuMemsetD8Async(address, value, length as usize, stream.raw()).map_err(text)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_growable(&self, index: usize) -> Step {
        let Growing { name, block, uses, head, .. } = &self.growing[index];
        let Some(head) = head.as_ref().filter(|head| !head.is_empty()) else { return Ok(()) };
        if !self.streams.can_finish(uses) {
            return Ok(());
        }
        self.streams.finish_uses(uses)?;
        let found = self.read_now(block.address(), head.len())?;
        match head.iter().zip(&found).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => {
                Err(format!("byte {at} of g{name} is {}, and {} was written last", found[at], head[at]))
            }
        }
    }

    pub(super) fn drop_growable(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.growing.len()) else { return Ok(()) };
        let Growing { name, block, counters, .. } = self.growing.swap_remove(index);
        said.push(format!("drop(g{name})"));
        self.twin.change(counters, -block.size_bytes().cast_signed());
        drop(block);
        Ok(())
    }
}

/// The number of bytes at the start of a block that are compared.
const HEAD_BYTES: u64 = 4096;
const GROWING_MAX: usize = 6;
