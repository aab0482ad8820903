//! Work that writes, copies and compares what blocks hold, ordered as a correct user must and no more.

use super::operation::{Pick, Wait};
use super::streams::User;
use super::twin::windows;
use super::world::{Live, Step, World, text};
use crate::pool::{Block, Device, PoolError, Stream};
use crate::sys::Driver;

impl World<'_> {
    pub(super) fn fill(
        &mut self,
        (block, stream, value, wait): (Pick, Pick, u8, Wait),
        said: &mut Vec<String>,
    ) -> Step {
        let (Some(index), Some(stream)) = (block.of(self.blocks.len()), self.streams.pick(stream)) else {
            return Ok(());
        };
        let waits = self.order(index, &stream, true, wait)?;
        said.push(format!(
            "{waits}fill(&b{}, {value}, &{})",
            self.blocks[index].name,
            self.streams.name(&stream)
        ));
        let block = &self.blocks[index].block;
        Self::fill_all(&self.driver, &self.device, block, value, &stream)?;
        self.twin.fill(block.address(), value);
        Ok(())
    }

    /// Fills what is followed of a block.
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
        let (from, to) = (self.blocks[source].block.address(), self.blocks[target].block.address());
        let Some(count) = self.twin.copyable_bytes(from, to) else { return Ok(()) };
        let waits = self.order(source, &stream, false, wait)? + &self.order(target, &stream, true, wait)?;
        let (source, target) = (self.blocks[source].name, self.blocks[target].name);
        said.push(format!("{waits}copy(&b{source}, &b{target}, {count}, &{})", self.streams.name(&stream)));
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: both blocks are alive, at least this long, and record this stream.
        unsafe { self.driver.cuMemcpyDtoDAsync_v2(to, from, count as usize, stream.raw()).map_err(text)? };
        self.twin.copy(from, to, count);
        Ok(())
    }

    pub(super) fn read(&mut self, block: Pick, stream: Pick, wait: Wait, said: &mut Vec<String>) -> Step {
        let (Some(index), Some(stream)) = (block.of(self.blocks.len()), self.streams.pick(stream)) else {
            return Ok(());
        };
        if self.twin.contents(self.blocks[index].block.address()).is_none() {
            return Ok(());
        }
        let waits = self.order(index, &stream, false, wait)?;
        said.push(format!("{waits}read(&b{}, &{})", self.blocks[index].name, self.streams.name(&stream)));
        let block = &self.blocks[index].block;
        let (_, length) = windows(block.size_bytes())[0];
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: the window is inside the block, which is alive and records this stream; the sink has room for it and
        // is freed after the device was waited for.
        unsafe {
            let sink = self.sink.add(self.streams.place(&stream) * SINK_BYTES);
            let (address, length) = (block.address(), length as usize);
            self.driver.cuMemcpyDtoHAsync_v2(sink.cast(), address, length, stream.raw()).map_err(text)
        }
    }

    /// Pinned memory that reads go to, a place for each stream there can be.
    pub(super) fn open_sink(driver: &Driver, device: &Device) -> Result<*mut u8, PoolError> {
        let _bound = device.bind()?;
        let mut sink = std::ptr::null_mut();
        // SAFETY: `sink` outlives the call.
        unsafe { driver.cuMemHostAlloc(&mut sink, SINK_COUNT * SINK_BYTES, 0)? };
        Ok(sink.cast())
    }

    pub(super) fn close_sink(&self) -> Step {
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: it came from `open_sink`, nothing that reads into it is queued any more, and it is used no more.
        unsafe { self.driver.cuMemFreeHost(self.sink.cast()).map_err(text) }
    }

    /// Makes a stream wait for what it must before it touches a block, and enters it in the block's lists.
    pub(super) fn order(
        &mut self,
        index: usize,
        stream: &Stream,
        writes: bool,
        wait: Wait,
    ) -> Result<String, String> {
        let live = &mut self.blocks[index];
        let mut said = String::new();
        let readers = if writes { std::mem::take(&mut live.readers) } else { Vec::new() };
        for user in readers.into_iter().chain([live.writer.clone()]) {
            said += &self.streams.order(stream, &user, wait)?;
        }
        live.block.record_use(stream);
        match writes {
            true => live.writer = User::Stream(stream.id()),
            false => live.readers.push(User::Stream(stream.id())),
        }
        Ok(said)
    }

    /// Compares a block's contents with the twin's, once its last writer is done.
    pub(super) fn check(&self, index: usize) -> Step {
        let Live { name, block, writer, .. } = &self.blocks[index];
        let Some(expected) = self.twin.contents(block.address()) else { return Ok(()) };
        self.streams.finish(writer)?;
        let _bound = self.device.bind().map_err(text)?;
        let mut found = Vec::with_capacity(expected.len());
        for (offset, length) in windows(block.size_bytes()) {
            let mut bytes = vec![0_u8; length as usize];
            // SAFETY: the window is inside the block, and the buffer is as long as the window.
            unsafe {
                let address = block.address() + offset;
                self.driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()).map_err(text)?;
            }
            found.extend(bytes);
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
}

/// As much as the largest window.
const SINK_BYTES: usize = 8192;
const SINK_COUNT: usize = 128;
