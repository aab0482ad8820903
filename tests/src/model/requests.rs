//! Asking for memory and giving it back, with every answer judged.

use super::operation::{Pick, Size};
use super::refusal;
use super::search::Coverage;
use super::streams::User;
use super::world::{Live, Step, World, text};
use crate::pool::{BackendKind, Block, PoolError, Stream};

impl World<'_> {
    pub(super) fn allocate(
        &mut self,
        pick: Pick,
        size: Size,
        refusals: u32,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick).filter(|_| self.blocks.len() < BLOCKS_MAX) else {
            return Ok(());
        };
        let size_bytes = self.bytes(size);
        let refused =
            if refusals == 0 { String::new() } else { format!(" // the driver refuses {refusals} times") };
        said.push(format!(
            "let b{} = pool.alloc({size_bytes}, &{}){refused}",
            self.next_name,
            self.streams.name(&stream)
        ));
        let outcome = refusal::during(refusals, || self.pool.alloc(size_bytes, &stream));
        coverage.count(&outcome);
        match outcome {
            Ok(block) => self.allocated(block, size_bytes, &stream),
            Err(error) => {
                if let Some(line) = said.last_mut() {
                    line.push_str(&format!(" // {}", summary(&error)));
                }
                self.refused(error, size_bytes, &stream, refusals)
            }
        }
    }

    fn bytes(&self, size: Size) -> u64 {
        match size {
            Size::Bytes(count) => count,
            Size::Room(more) => {
                let in_use_bytes = self.twin.pools.last().map_or(0, |books| books.in_use_bytes);
                let whole_bytes = self.case.hard_limit_bytes.unwrap_or(self.case.memory_bytes);
                whole_bytes.saturating_sub(in_use_bytes).saturating_add_signed(more)
            }
        }
    }

    fn allocated(&mut self, block: Block, size_bytes: u64, stream: &Stream) -> Step {
        if block.size_bytes() != size_bytes || block.stream_id() != stream.id() {
            return Err(format!("{block:?} is not what was asked for"));
        }
        if size_bytes == 0 {
            return if block.address() == 0 { Ok(()) } else { Err(format!("{block:?} is not empty")) };
        }
        if size_bytes > self.case.memory_bytes || !self.twin.admits(size_bytes) {
            return Err(format!("{size_bytes} bytes were handed out beyond the device or the limit"));
        }
        self.twin.allocate(block.address(), size_bytes)?;
        let writer = User::Stream(stream.id());
        self.blocks.push(Live { name: self.next_name, block, writer, readers: Vec::new() });
        self.next_name += 1;
        Ok(())
    }

    /// Whether an error was the right one.
    fn refused(&mut self, error: PoolError, asked_bytes: u64, stream: &Stream, refusals: u32) -> Step {
        let in_use = self.twin.pools.last().map_or(0, |books| books.in_use_bytes);
        let limit = self.case.hard_limit_bytes;
        let wrong = format!("{asked_bytes} bytes with {in_use} in use: {error:?}");
        match error {
            PoolError::TooLarge { requested_bytes, device_bytes } => {
                let right = (requested_bytes, device_bytes) == (asked_bytes, self.case.memory_bytes);
                if right && asked_bytes > self.case.memory_bytes { Ok(()) } else { Err(wrong) }
            }
            PoolError::LimitReached { requested_bytes, in_use_bytes, limit_bytes } => {
                let right =
                    (requested_bytes, in_use_bytes, Some(limit_bytes)) == (asked_bytes, in_use, limit);
                if right && !self.twin.admits(asked_bytes) { Ok(()) } else { Err(wrong) }
            }
            PoolError::OutOfMemory { requested_bytes, in_use_bytes, .. } => {
                if (requested_bytes, in_use_bytes) != (asked_bytes, in_use) || !self.twin.admits(asked_bytes)
                {
                    return Err(wrong);
                }
                self.out_of_memory_is_true(asked_bytes, stream, refusals)
            }
            _ => Err(wrong),
        }
    }

    /// A pool that keeps memory tries twice; what still fails must not succeed after a reclaim by hand.
    fn out_of_memory_is_true(&mut self, asked_bytes: u64, stream: &Stream, refusals: u32) -> Step {
        let tries = if self.backend == BackendKind::None { 1 } else { 2 };
        if refusals >= tries {
            return Ok(());
        }
        if self.blocks.is_empty() {
            return Err(format!("out of memory for {asked_bytes} bytes, and nothing is allocated"));
        }
        self.pool.reclaim().map_err(text)?;
        match self.pool.alloc(asked_bytes, stream) {
            Err(PoolError::OutOfMemory { .. }) => Ok(()),
            other => {
                Err(format!("out of memory for {asked_bytes} bytes, but after a reclaim by hand: {other:?}"))
            }
        }
    }

    pub(super) fn free(&mut self, pick: Pick, elsewhere: bool, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let Live { name, block, .. } = self.blocks.swap_remove(index);
        let place = if elsewhere { " // on a thread of its own" } else { "" };
        said.push(format!("drop(b{name}){place}"));
        self.twin.free(block.address());
        match elsewhere {
            false => drop(block),
            true => std::thread::scope(|scope| scope.spawn(move || drop(block)).join())
                .map_err(|_| "dropping a block panicked")?,
        }
        Ok(())
    }
}

fn summary(error: &PoolError) -> &'static str {
    match error {
        PoolError::OutOfMemory { .. } => "out of memory",
        PoolError::TooLarge { .. } => "too large",
        PoolError::LimitReached { .. } => "limit reached",
        _ => "an error",
    }
}

const BLOCKS_MAX: usize = 64;
