//! Allocations and frees, with every result checked.

use super::coverage::Coverage;
use super::faults::{self, Call, Fault, Seen};
use super::objects::RetainedBlock;
use super::operation::{Pick, Size, Wait};
use super::places::{self, Place};
use super::step::{Step, text};
use super::streams::Uses;
use super::twin::{Fate, NewBlock};
use super::world::{Live, World};
use crate::pool::{Block, DeviceError, MemoryKind, PoolError, Scope, ScopeUsage, Stream, StreamError};
use std::cell::RefCell;
use std::rc::Rc;

/// A request to a pool.
pub(super) struct Request {
    /// The index of the pool in the world.
    pool: usize,
    stream: Stream,
    size_bytes: u64,
    /// The alignment. Values below 256 are raised to 256.
    alignment: u64,
    is_elsewhere: bool,
    /// The scopes around the request, each nested in the one before.
    scopes: &'static [&'static str],
}

impl World<'_> {
    pub(super) fn allocate(
        &mut self,
        (pool, pick, exponent, size, place, fault): (Pick, Pick, u32, Size, Place, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick).filter(|_| self.blocks.len() < BLOCKS_MAX) else {
            return Ok(());
        };
        let pool = pool.of(self.pools.len()).unwrap_or(0);
        let size_bytes = self.bytes(pool, size);
        let is_elsewhere = place != Place::Here;
        let scopes = self.scopes(&stream);
        let request = Request { pool, stream, size_bytes, alignment: 1 << exponent, is_elsewhere, scopes };
        let name = self.streams.name(&request.stream);
        let from = if pool == 0 { "pool".into() } else { format!("private{pool}") };
        let aligned = if exponent == 0 { String::new() } else { format!("_aligned(2^{exponent})") };
        said.push(format!(
            "let b{} = {from}.alloc{aligned}({size_bytes}, &{name}){}{}",
            self.next_name,
            at(place),
            scopes.last().map(|scope| format!(" // in the scope `{scope}`")).unwrap_or_default()
        ));
        let (asked, on, alignment) =
            (self.pools[pool].pool.clone(), request.stream.clone(), request.alignment);
        let ((outcome, usage), seen) = self.at(place, fault, move || {
            let open: Vec<Scope> = scopes.iter().map(|name| asked.scope(name)).collect();
            let outcome = match exponent {
                0 => asked.alloc(size_bytes, &on),
                _ => asked.alloc_aligned(size_bytes, alignment, &on),
            };
            (outcome, open.last().map(Scope::usage))
        })?;
        let counted_bytes = if outcome.is_ok() { size_bytes } else { 0 };
        let is_counted = |usage: ScopeUsage| {
            (usage.allocated_bytes, usage.allocation_count) == (counted_bytes, u64::from(counted_bytes > 0))
        };
        if !usage.is_none_or(is_counted) {
            return Err(format!("{counted_bytes} bytes were handed out in a scope that has {usage:?}"));
        }
        coverage.count_block(self.subject, &outcome, seen);
        self.note(&outcome, seen, said);
        match outcome {
            Ok(block) => self.allocated(block, &request, coverage, said),
            Err(error) => self.refused(error, &request, seen),
        }
    }

    /// The scopes of the next allocation. A capture gets none: the whole chunk is allocated, and tagged, with its first part.
    fn scopes(&self, stream: &Stream) -> &'static [&'static str] {
        match self.next_name % 4 {
            _ if self.streams.is_captured(stream.id()) => &[],
            1 => &["a"],
            2 => &["a", "b"],
            _ => &[],
        }
    }

    /// Runs work on a thread with an injected failure, and returns the driver calls made.
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

    /// The largest request that a pool can serve while nothing else is allocated.
    fn room_bytes(&self, pool: usize) -> u64 {
        let limit_bytes = self.twin.limit_bytes(self.pools[pool].counters);
        let whole_bytes = limit_bytes.unwrap_or(u64::MAX).min(self.subject.machine_bytes(self.case));
        // The caching backend reserves memory in units of 2 MiB.
        if self.subject.is_caching() { whole_bytes & !((2 << 20) - 1) } else { whole_bytes }
    }

    fn bytes(&self, pool: usize, size: Size) -> u64 {
        match size {
            Size::Bytes(count) => count,
            Size::Room(more) => {
                let counters = &self.twin.pools[self.pools[pool].counters];
                let whole_bytes = counters.limit_bytes.unwrap_or(self.subject.machine_bytes(self.case));
                whole_bytes.saturating_sub(counters.in_use_bytes).saturating_add_signed(more)
            }
        }
    }

    /// The bytes that the backend counts for a block.
    fn counted_bytes(&self, request: &Request) -> u64 {
        let padding_bytes = if self.subject.is_caching() { 0 } else { request.alignment.saturating_sub(256) };
        let guards_bytes = self.guards_bytes(request.size_bytes, request.alignment);
        request.size_bytes.saturating_add(padding_bytes).saturating_add(guards_bytes)
    }

    fn allocated(
        &mut self,
        block: Block,
        request: &Request,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Request { pool, ref stream, size_bytes, alignment, .. } = *request;
        if block.size_bytes() != size_bytes || block.stream_id() != stream.id() {
            return Err(format!("{block:?} is not what was asked for"));
        }
        if size_bytes == 0 {
            return if block.address() == 0 { Ok(()) } else { Err(format!("{block:?} is not empty")) };
        }
        let (counters, counted_bytes) = (self.pools[pool].counters, self.counted_bytes(request));
        // Host memory is not limited by the size of the device.
        let is_beyond = size_bytes > self.case.memory_bytes && self.subject.kind != MemoryKind::Host;
        if is_beyond || !self.twin.admits(counters, counted_bytes) {
            return Err(format!("{size_bytes} bytes were handed out beyond the device or the limit"));
        }
        let (name, address) = (self.next_name, block.address());
        let part_of = self.open_graph().filter(|_| self.streams.is_captured(stream.id()));
        // A part counts as its own size; the size of its chunk is an internal decision of the pool.
        let whole_bytes = size_bytes.next_multiple_of(256) + alignment.saturating_sub(256);
        let chunk_bytes = whole_bytes + self.guards_bytes(size_bytes, alignment);
        let counted_bytes = if part_of.is_some() { size_bytes } else { counted_bytes };
        let tag = request.scopes.last().copied();
        let made = NewBlock {
            name,
            address,
            size_bytes,
            counted_bytes,
            chunk_bytes,
            alignment,
            pool: counters,
            part_of,
            tag,
        };
        self.twin.allocate(made)?;
        if let Some(value) = self.fresh_byte().filter(|_| part_of.is_none()) {
            self.twin.fill(name, value);
        }
        coverage.tagged += u64::from(tag.is_some());
        coverage.parts += u64::from(part_of.is_some());
        // Host-accessible memory is complete when it is allocated, and not ordered behind a stream.
        let is_hosts = self.subject.kind.is_host_accessible();
        let uses = if part_of.is_some() || is_hosts { Uses::default() } else { Uses::of(stream) };
        let (recorded, graphs) = (Vec::new(), part_of.into_iter().collect());
        self.blocks.push(Live { name, block, uses, recorded, graphs, part_of });
        self.next_name += 1;
        if is_hosts { self.fill_by_host(self.blocks.len() - 1, name as u8, coverage, said) } else { Ok(()) }
    }

    /// Checks that an error is the right one.
    fn refused(&mut self, error: PoolError, request: &Request, seen: Seen) -> Step {
        let Request { pool, ref stream, size_bytes, .. } = *request;
        if self.is_adaptors_right(&error, size_bytes) {
            return Ok(());
        }
        let (place, counted_bytes) = (self.pools[pool].counters, self.counted_bytes(request));
        if matches!(error, PoolError::Device(DeviceError::Driver(_))) && self.subject.is_adapted {
            self.twin.note_undone(place, counted_bytes);
        }
        let counters = &self.twin.pools[place];
        let in_use = counters.in_use_bytes..=counters.in_use_bytes + counters.spare_bytes;
        // A reported size may include padding of adaptors and backend; in a capture the pool requests whole units of 256 bytes.
        let is_size = |bytes: u64| (size_bytes..=counted_bytes.saturating_add(255)).contains(&bytes);
        let wrong = format!("{counted_bytes} bytes with {in_use:?} in use: {error:?}");
        let wrong = |is_right: bool| if is_right { Ok(()) } else { Err(wrong.clone()) };
        match error {
            PoolError::TooLarge { requested_bytes, device_bytes, .. } => {
                wrong(is_size(requested_bytes) && device_bytes == self.case.memory_bytes)?;
                wrong(counted_bytes.saturating_add(255) > self.case.memory_bytes)
            }
            PoolError::LimitReached(report) => {
                wrong(is_size(report.requested_bytes) && in_use.contains(&report.in_use_bytes))?;
                let is_known = |limit: u64| {
                    let of_machine = self.subject.kind == MemoryKind::Unified;
                    self.twin.limits(place).contains(&limit)
                        || of_machine && limit == self.subject.machine_bytes(self.case)
                };
                wrong(report.limit_bytes.is_some_and(is_known))?;
                match self.twin.surely_admits(place, counted_bytes.saturating_add(255)) {
                    false => Ok(()),
                    // Reserved memory counts against the limit, and may be fragmented.
                    true => self.refusal_is_true(request, seen),
                }
            }
            PoolError::OutOfMemory(report) => {
                wrong(is_size(report.requested_bytes) && in_use.contains(&report.in_use_bytes))?;
                wrong(self.twin.admits(place, counted_bytes))?;
                self.refusal_is_true(request, seen)
            }
            PoolError::Device(DeviceError::Stream(StreamError::WrongThread)) => {
                wrong(request.is_elsewhere && self.streams.is_default(stream.id()))
            }
            PoolError::Device(DeviceError::Driver(cause)) => {
                wrong(seen.refused().is_some_and(|call| cause.to_string().contains(call.name())))
            }
            _ => wrong(false),
        }
    }

    /// Checks that a refused request also fails after an explicit reclaim. Skipped if a driver call failed by injection.
    fn refusal_is_true(&mut self, request: &Request, seen: Seen) -> Step {
        let Request { pool, ref stream, size_bytes, alignment, is_elsewhere, .. } = *request;
        let is_own = is_elsewhere && self.streams.is_default(stream.id());
        if seen.refused().is_some() || self.capturing.is_some() || is_own {
            return Ok(());
        }
        // Backends other than `caching` retry frees on streams of other libraries later, so some memory may be pending.
        let waits = !self.subject.is_caching() && self.streams.had_foreign();
        // Without virtual memory, an alignment costs padding in front of the block.
        let alignment_max = if self.subject.maps() { 2 << 20 } else { 256 };
        let is_plain = alignment <= alignment_max && self.twin.is_empty() && self.growing.is_empty();
        let is_alone = is_plain && self.pools.len() == 1 && self.taken_bytes == 0 && !self.has_lost && !waits;
        if is_alone && self.counted_bytes(request) <= self.room_bytes(pool) {
            return Err(format!("{size_bytes} bytes were refused, and nothing is allocated"));
        }
        let pool = &self.pools[pool].pool;
        pool.reclaim().map_err(text)?;
        match pool.alloc_aligned(size_bytes, alignment, stream) {
            Err(PoolError::OutOfMemory { .. } | PoolError::LimitReached { .. }) => Ok(()),
            Err(error) if self.is_adaptors_right(&error, size_bytes) => Ok(()),
            other => Err(format!("{size_bytes} bytes were refused, but after a reclaim by hand: {other:?}")),
        }
    }

    pub(super) fn free(&mut self, pick: Pick, place: Place, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let live = self.blocks.swap_remove(index);
        said.push(format!("drop(b{}){}", live.name, at(place)));
        let block = self.freed(live);
        self.at(place, None, move || drop(block)).map(drop)
    }

    /// Frees a block with `free_on`. Skipped in a capture: there the free counts as a use by the stream, and may become a plain
    /// drop.
    pub(super) fn free_on(&mut self, pick: Pick, user: Pick, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()).filter(|_| self.capturing.is_none()) else {
            return Ok(());
        };
        let Live { block, recorded, .. } = &self.blocks[index];
        let users = core::iter::once(block.stream_id()).chain(recorded.iter().copied());
        let users: Vec<Stream> = users.filter_map(|user| self.streams.find(user).ok().cloned()).collect();
        let Some(stream) = user.of(users.len()).map(|at| &users[at]) else { return Ok(()) };
        let live = self.blocks.swap_remove(index);
        said.push(format!("b{}.free_on(&{})", live.name, self.streams.name(stream)));
        self.freed(live).free_on(stream);
        Ok(())
    }

    /// Removes a block from the twin before its drop. A graph may keep the block.
    pub(super) fn freed(&mut self, live: Live) -> Block {
        let Live { name, block, uses, recorded, mut graphs, .. } = live;
        let mut is_unsure = false;
        if let Some(open) = self.open_graph().filter(|open| !graphs.contains(open)) {
            let captured = self.streams.captured();
            let users = || recorded.iter().copied().chain([block.stream_id()]);
            if users()
                .any(|user| captured.contains(&user) && (self.streams.is_ours(user) || user == captured[0]))
            {
                graphs.push(open);
            } else {
                // The pool does not query another library's stream, and the index of a dropped stream may belong to a captured
                // one now.
                is_unsure = users().any(|user| captured.contains(&user) || self.streams.is_gone(user));
            }
        }
        let fate = match (graphs.is_empty(), is_unsure) {
            (true, true) => Fate::Unsure,
            (true, false) => Fate::Free,
            (false, _) => Fate::Retained,
        };
        self.twin.free(block.address(), fate);
        if !graphs.is_empty() {
            self.kept.push(RetainedBlock { name, uses, graphs });
        }
        block
    }

    /// Takes a block apart with `into_raw` and reassembles it.
    pub(super) fn carry(&mut self, pick: Pick, place: Place, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let Live { name, block, uses, recorded, graphs, part_of } = self.blocks.swap_remove(index);
        said.push(format!("let b{name} = Block::from_raw(b{name}.into_raw()){}", at(place)));
        let raw = block.into_raw();
        // SAFETY: the raw block comes from `into_raw`, and is converted once.
        let (block, _) = self.at(place, None, move || unsafe { Block::from_raw(raw) })?;
        if (block.address(), block.size_bytes()) != (raw.address, raw.size_bytes) {
            return Err(format!("{raw:?} became {block:?}"));
        }
        self.blocks.push(Live { name, block, uses, recorded, graphs, part_of });
        Ok(())
    }

    pub(super) fn free_completed(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let Live { block, uses, .. } = &self.blocks[index];
        if !self.streams.can_finish(uses) || self.streams.is_captured(block.stream_id()) {
            return Ok(());
        }
        let live = self.blocks.swap_remove(index);
        let name = live.name;
        said.push(format!("the host waits for all that uses b{name}; b{name}.free_completed()"));
        self.streams.finish_uses(&live.uses)?;
        let block = self.freed(live);
        // SAFETY: every use of the block is in these lists or ordered before one that is, and the host waited for all of them.
        unsafe { block.free_completed() };
        Ok(())
    }

    /// One stream waits for another; right after the event was recorded, a second thread fills a block on the awaited stream and
    /// drops the block.
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
        // Frees through adaptors or other backends call the driver, and so does the drop of a pool; the driver would wait for the
        // event.
        let counters = self.twin.pool_of(self.blocks[index].block.address());
        let asks_nothing = self.subject.is_caching()
            && !self.subject.is_adapted
            && self.pools.iter().any(|handle| Some(handle.counters) == counters);
        // In a capture the event becomes part of it, and a per-thread default stream is a different stream on another thread.
        let is_plain = self.capturing.is_none() && !self.streams.is_default(stream.id());
        if !asks_nothing || !is_plain || stream.id() == other.id() || !self.can_use(index, &stream) {
            return Ok(());
        }
        let waits = self.order(index, &stream, true, Wait::Fence)?;
        let live = self.blocks.swap_remove(index);
        let name = live.name;
        let (on, by) = (self.streams.name(&stream), self.streams.name(&other));
        said.push(format!(
            "{waits}{by}.wait_for(&{on}), and on another thread behind the event: fill(&b{name}, {value}, &{on}), drop(b{name})"
        ));
        // If a graph keeps the block, it reads this value.
        self.twin.fill(name, value);
        let block = self.freed(live);
        let (driver, device, on) = (self.driver.clone(), self.device.clone(), stream.clone());
        let table = self.real;
        let fill = move || {
            faults::observed(&table, None, || World::fill_all(&driver, &device, &block, value, &on)).0
        };
        // The thread is started first, because the hook runs inside of a driver call and cannot borrow the world.
        let outcome = Rc::new(RefCell::new(None));
        let (go, gone_ahead) = std::sync::mpsc::channel::<()>();
        let pending = self.other.start(move || gone_ahead.recv().map_err(text).and_then(|()| fill()));
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

    /// Adds the injected failure and the outcome to the transcript.
    pub(super) fn note<T>(&mut self, outcome: &Result<T, PoolError>, seen: Seen, said: &mut [String]) {
        let Some(line) = said.last_mut() else { return };
        if let Some(call) = seen.refused() {
            line.push_str(&format!(" // the driver refuses {}", call.name()));
            // The driver keeps memory whose release failed.
            self.has_lost |= matches!(call, Call::Release | Call::Unmap | Call::AddressFree);
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
