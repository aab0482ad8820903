//! Work that writes, copies and compares the contents of blocks, with exactly the waits that a correct user needs.

use super::coverage::Coverage;
use super::operation::{Pick, Wait};
use super::step::{Step, text};
use super::streams::Uses;
use super::twin::{copyable_bytes, windows};
use super::world::{Live, World};
use crate::pool::{Block, Device, PoolError, Stream};
use crate::sys::Driver;

impl World<'_> {
    pub(super) fn fill(
        &mut self,
        (block, stream, value, wait): (Pick, Pick, u8, Wait),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let (Some(index), Some(stream)) = (block.of(self.blocks.len()), self.streams.pick(stream)) else {
            return Ok(());
        };
        if self.streams.is_captured(stream.id()) {
            return self.captured_fill((index, value, wait), &stream, said);
        }
        if !self.can_use(index, &stream) {
            return Ok(());
        }
        let is_hosts = self.blocks[index].block.host_ptr().is_some();
        if wait == Wait::Host && is_hosts && self.streams.can_finish(&self.blocks[index].uses) {
            return self.fill_by_host(index, value, coverage, said);
        }
        let waits = self.order(index, &stream, true, wait)?;
        let Live { name, block, .. } = &self.blocks[index];
        said.push(format!("{waits}fill(&b{name}, {value}, &{})", self.streams.name(&stream)));
        Self::fill_all(&self.driver, &self.device, block, value, &stream)?;
        self.twin.fill(*name, value);
        Ok(())
    }

    /// Fills a block from the host after all its uses are complete. Work queued later is ordered behind the fill.
    pub(super) fn fill_by_host(
        &mut self,
        index: usize,
        value: u8,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Live { name, block, uses, .. } = &mut self.blocks[index];
        let Some(start) = block.host_ptr() else { return Ok(()) };
        said.push(format!("the host fills b{name} with {value}"));
        self.streams.finish_uses(uses)?;
        *uses = Uses { count: uses.count + 1, ..Uses::default() };
        for (offset, length) in windows(block.size_bytes()) {
            let length = length as usize;
            // SAFETY: the window is inside the block, which is alive. The simulator runs queued work only during driver calls,
            // and no other thread of a case makes one now.
            unsafe {
                let place = start.as_ptr().add(offset as usize);
                self.sim.host_writes(place, length);
                place.write_bytes(value, length);
            }
        }
        self.twin.fill(*name, value);
        coverage.host_fills += 1;
        Ok(())
    }

    /// Fills the windows of a block.
    pub(super) fn fill_all(
        driver: &Driver,
        device: &Device,
        block: &Block,
        value: u8,
        stream: &Stream,
    ) -> Step {
        let _bound = device.bind().map_err(text)?;
        for (offset, length) in windows(block.size_bytes()) {
            let address = block.address() + offset;
            // SAFETY: the window is inside the block, which is alive and records this stream.
            unsafe { driver.cuMemsetD8Async(address, value, length as usize, stream.raw()).map_err(text)? };
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, picks: (Pick, Pick, Pick, Wait), said: &mut Vec<String>) -> Step {
        let (source, target, stream, wait) = picks;
        let count = self.blocks.len();
        let (Some(source), Some(target), Some(stream)) =
            (source.of(count), target.of(count), self.streams.pick(stream))
        else {
            return Ok(());
        };
        if self.streams.is_captured(stream.id()) {
            return self.captured_copy((source, target, wait), &stream, said);
        }
        let known = |index: usize| {
            let Live { name, block, .. } = &self.blocks[index];
            (block.size_bytes(), self.twin.contents(*name).is_some())
        };
        let can_use = source != target && self.can_use(source, &stream) && self.can_use(target, &stream);
        let Some(count) = copyable_bytes(known(source), known(target)).filter(|_| can_use) else {
            return Ok(());
        };
        let waits = self.order(source, &stream, false, wait)? + &self.order(target, &stream, true, wait)?;
        let (from, to) = (&self.blocks[source], &self.blocks[target]);
        let on = self.streams.name(&stream);
        said.push(format!("{waits}copy(&b{}, &b{}, {count}, &{on})", from.name, to.name));
        self.twin.copy(from.name, to.name, count);
        let (from, to) = (from.block.address(), to.block.address());
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: both blocks are alive, at least this long, and record this stream.
        unsafe { self.driver.cuMemcpyAsync(to, from, count as usize, stream.raw()).map_err(text) }
    }

    pub(super) fn read(&mut self, block: Pick, stream: Pick, wait: Wait, said: &mut Vec<String>) -> Step {
        let (Some(index), Some(stream)) = (block.of(self.blocks.len()), self.streams.pick(stream)) else {
            return Ok(());
        };
        let is_known = self.twin.contents(self.blocks[index].name).is_some();
        // A graph would read into the same part of the sink at each launch.
        if !is_known || self.streams.is_captured(stream.id()) || !self.can_use(index, &stream) {
            return Ok(());
        }
        let waits = self.order(index, &stream, false, wait)?;
        said.push(format!("{waits}read(&b{}, &{})", self.blocks[index].name, self.streams.name(&stream)));
        let block = &self.blocks[index].block;
        let (_, length) = windows(block.size_bytes())[0];
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: the window is inside the block, which is alive and records this stream; the sink has room for the window and is
        // freed after the device was synchronised.
        unsafe {
            let sink = self.sink.add(self.streams.place(&stream) * SINK_BYTES);
            let (address, length) = (block.address(), length as usize);
            let sink = sink.expose_provenance() as u64;
            self.driver.cuMemcpyAsync(sink, address, length, stream.raw()).map_err(text)
        }
    }

    /// Allocates pinned memory as the target of reads, with one slot for each stream.
    pub(super) fn open_sink(driver: &Driver, device: &Device) -> Result<*mut u8, PoolError> {
        let _bound = device.bind()?;
        let mut sink = std::ptr::null_mut();
        // SAFETY: `sink` outlives the call.
        unsafe { driver.cuMemHostAlloc(&mut sink, SINK_COUNT * SINK_BYTES, 0)? };
        Ok(sink.cast())
    }

    pub(super) fn close_sink(&self) -> Step {
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: the memory came from `open_sink`; no queued work reads into it, and it is not used again.
        unsafe { self.driver.cuMemFreeHost(self.sink.cast()).map_err(text) }
    }

    /// True if a stream can use a block now. Memory allocated in a capture is usable outside of it after the capture has
    /// ended.
    pub(super) fn can_use(&self, index: usize, stream: &Stream) -> bool {
        let live = &self.blocks[index];
        let is_there = live.part_of.is_none() || live.uses.writer.is_some();
        is_there && self.streams.can_order(&live.uses, stream)
    }

    /// Makes a stream wait for the earlier uses of a block that conflict, and records this use.
    pub(super) fn order(
        &mut self,
        index: usize,
        stream: &Stream,
        writes: bool,
        wait: Wait,
    ) -> Result<String, String> {
        let live = &mut self.blocks[index];
        let said = self.streams.order_uses(&mut live.uses, stream, writes, wait)?;
        live.record(stream, None);
        Ok(said)
    }

    /// Compares the contents of a block with the twin's after the last write is complete.
    pub(super) fn check(&self, index: usize) -> Step {
        let Live { name, block, uses, .. } = &self.blocks[index];
        let Some(expected) = self.twin.contents(*name) else { return Ok(()) };
        if !self.streams.can_finish(uses) {
            return Ok(());
        }
        uses.writer.iter().try_for_each(|writer| self.streams.finish(writer))?;
        let mut found = Vec::with_capacity(expected.len());
        for (offset, length) in windows(block.size_bytes()) {
            found.extend(self.read_now(block.address() + offset, length as usize)?);
        }
        match expected.iter().zip(&found).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} of b{name} ({} bytes at {:#x}) is {}, and {} was written last",
                block.size_bytes(),
                block.address(),
                found[at],
                expected[at]
            )),
        }
    }

    /// Reads memory that no queued work writes. Host-accessible memory is read by the host itself.
    pub(super) fn read_now(&self, address: u64, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0_u8; length];
        if self.subject.kind.is_host_accessible() {
            let place: *const u8 = std::ptr::with_exposed_provenance(address as usize);
            self.sim.host_reads(place, length);
            // SAFETY: like `fill_by_host`; the buffer has `length` bytes.
            unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
            return Ok(bytes);
        }
        let _bound = self.device.bind().map_err(text)?;
        let _relaxed = self.device.relax().map_err(text)?;
        // SAFETY: the bytes belong to a live block, and the buffer has `length` bytes.
        unsafe { self.driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, length).map_err(text)? };
        Ok(bytes)
    }
}

/// The size of the largest window.
const SINK_BYTES: usize = 8192;
const SINK_COUNT: usize = 128;
