//! Asking for memory and giving it back, with every answer judged.

use super::coverage::Coverage;
use super::faults::{self, Call, Fault, Seen};
use super::operation::{Pick, Size, Wait};
use super::places::{self, Place};
use super::streams::User;
use super::world::{Live, Step, World, text};
use crate::pool::{Block, PoolError, Stream};
use std::cell::RefCell;
use std::rc::Rc;

impl World<'_> {
    pub(super) fn allocate(
        &mut self,
        (pick, size, place, fault): (Pick, Size, Place, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick).filter(|_| self.blocks.len() < BLOCKS_MAX) else {
            return Ok(());
        };
        let size_bytes = self.bytes(size);
        let name = self.streams.name(&stream);
        said.push(format!("let b{} = pool.alloc({size_bytes}, &{name}){}", self.next_name, at(place)));
        let (pool, on) = (self.pool.clone(), stream.clone());
        let (outcome, seen) = self.at(place, fault, move || pool.alloc(size_bytes, &on))?;
        coverage.count_block(self.subject, &outcome, seen);
        self.note(&outcome, seen, said);
        match outcome {
            Ok(block) => self.allocated(block, size_bytes, &stream),
            Err(error) => self.refused(error, size_bytes, &stream, seen),
        }
    }

    /// Runs work on some thread while something fails there, and says what it asked the driver for.
    fn at<R: Send + 'static>(
        &mut self,
        place: Place,
        fault: Option<Fault>,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<(R, Seen), String> {
        let table = self.real;
        let observed = move || faults::observed(&table, fault, work);
        match place {
            Place::Here => Ok(observed()),
            Place::Other => self.other.start(observed).wait(),
            Place::OfItsOwn => places::of_its_own(observed),
        }
    }

    /// What a pool may hand out when nothing else is allocated.
    fn room_bytes(&self) -> u64 {
        let whole_bytes = self.case.hard_limit_bytes.unwrap_or(u64::MAX).min(self.case.memory_bytes);
        // Our own heap has it in pieces of this.
        if self.subject.is_caching() { whole_bytes & !((2 << 20) - 1) } else { whole_bytes }
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
    fn refused(&mut self, error: PoolError, asked_bytes: u64, stream: &Stream, seen: Seen) -> Step {
        let in_use = self.twin.pools.last().map_or(0, |books| books.in_use_bytes);
        let limit = self.case.hard_limit_bytes;
        let wrong = format!("{asked_bytes} bytes with {in_use} in use: {error:?}");
        match error {
            PoolError::TooLarge { requested_bytes, device_bytes } => {
                let right = (requested_bytes, device_bytes) == (asked_bytes, self.case.memory_bytes);
                if right && asked_bytes > self.case.memory_bytes { Ok(()) } else { Err(wrong) }
            }
            PoolError::LimitReached(report) => {
                if (report.requested_bytes, report.in_use_bytes, report.limit_bytes)
                    != (asked_bytes, in_use, limit)
                {
                    return Err(wrong);
                }
                match self.twin.admits(asked_bytes) {
                    false => Ok(()),
                    // What is reserved counts, and it may be in pieces.
                    true => self.refusal_is_true(asked_bytes, stream, seen),
                }
            }
            PoolError::OutOfMemory(report) => {
                let told = (report.requested_bytes, report.in_use_bytes);
                if told != (asked_bytes, in_use) || !self.twin.admits(asked_bytes) {
                    return Err(wrong);
                }
                self.refusal_is_true(asked_bytes, stream, seen)
            }
            PoolError::Driver(cause)
                if seen.refused().is_some_and(|call| cause.to_string().contains(call.name())) =>
            {
                Ok(())
            }
            _ => Err(wrong),
        }
    }

    /// What a pool says it can't have it must not get after a reclaim by hand, unless the driver was made to refuse.
    fn refusal_is_true(&mut self, asked_bytes: u64, stream: &Stream, seen: Seen) -> Step {
        if seen.refused().is_some() {
            return Ok(());
        }
        // What other backends could not free on a stream of somebody else's stays until they look again.
        let waits = !self.subject.is_caching() && self.streams.had_foreign();
        let is_alone = self.blocks.is_empty() && self.taken_bytes == 0 && !self.has_lost && !waits;
        if is_alone && asked_bytes <= self.room_bytes() {
            return Err(format!("{asked_bytes} bytes were refused, and nothing is allocated"));
        }
        self.pool.reclaim().map_err(text)?;
        match self.pool.alloc(asked_bytes, stream) {
            Err(PoolError::OutOfMemory { .. } | PoolError::LimitReached { .. }) => Ok(()),
            other => Err(format!("{asked_bytes} bytes were refused, but after a reclaim by hand: {other:?}")),
        }
    }

    pub(super) fn free(&mut self, pick: Pick, place: Place, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let Live { name, block, .. } = self.blocks.swap_remove(index);
        said.push(format!("drop(b{name}){}", at(place)));
        self.twin.free(block.address());
        self.at(place, None, move || drop(block)).map(drop)
    }

    pub(super) fn free_completed(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let Live { name, block, writer, readers } = self.blocks.swap_remove(index);
        said.push(format!("the host waits for all that uses b{name}; b{name}.free_completed()"));
        readers.iter().chain([&writer]).try_for_each(|user| self.streams.finish(user))?;
        self.twin.free(block.address());
        // SAFETY: everything that has used it is in these lists, or comes before what is, and was waited for.
        unsafe { block.free_completed() };
        Ok(())
    }

    /// A stream is marked while somebody else fills a block on it and drops it.
    pub(super) fn free_meanwhile(
        &mut self,
        (block, stream, other, value): (Pick, Pick, Pick, u8),
        said: &mut Vec<String>,
    ) -> Step {
        let (Some(index), Some(stream), Some(other)) =
            (block.of(self.blocks.len()), self.streams.pick(stream), self.streams.pick(other))
        else {
            return Ok(());
        };
        // The other backends' frees ask the driver, and so does the end of a pool: that waits for the mark.
        let asks_nothing =
            self.subject.is_caching() && self.twin.is_of_newest_pool(self.blocks[index].block.address());
        if !asks_nothing || stream.id() == other.id() {
            return Ok(());
        }
        let waits = self.order(index, &stream, true, Wait::Fence)?;
        let Live { name, block, .. } = self.blocks.swap_remove(index);
        let (on, by) = (self.streams.name(&stream), self.streams.name(&other));
        said.push(format!(
            "{waits}{by}.wait_for(&{on}), and on another thread behind the event: fill(&b{name}, {value}, &{on}), drop(b{name})"
        ));
        self.twin.free(block.address());
        let (driver, device, on) = (self.driver.clone(), self.device.clone(), stream.clone());
        let table = self.real;
        let fill = move || {
            faults::observed(&table, None, || World::fill_all(&driver, &device, &block, value, &on)).0
        };
        // The thread is told before, so that it needs nothing of ours while the driver is called.
        let outcome = Rc::new(RefCell::new(None));
        let (go, told) = std::sync::mpsc::channel::<()>();
        let pending = self.other.start(move || told.recv().map_err(text).and_then(|()| fill()));
        let note = Rc::clone(&outcome);
        let happens = move || {
            let _ = go.send(());
            *note.borrow_mut() = Some(pending.wait());
        };
        faults::behind_record(&table, happens, || other.wait_for(&stream)).map_err(text)?;
        match outcome.take() {
            Some(result) => result?,
            None => Err("nothing happened".into()),
        }
    }

    /// Tells what the driver refused, and what came of it.
    pub(super) fn note<T>(&mut self, outcome: &Result<T, PoolError>, seen: Seen, said: &mut [String]) {
        let Some(line) = said.last_mut() else { return };
        if let Some(call) = seen.refused() {
            line.push_str(&format!(" // the driver refuses {}", call.name()));
            // The driver keeps what it does not take back.
            self.has_lost |= matches!(call, Call::Release | Call::Unmap);
        }
        if let Err(error) = outcome {
            line.push_str(&format!(" // {}", summary(error)));
        }
    }
}

fn at(place: Place) -> &'static str {
    match place {
        Place::Here => "",
        Place::Other => " // on the other thread",
        Place::OfItsOwn => " // on a thread of its own",
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
