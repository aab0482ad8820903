//! A heap for two streams over memory that only counts. One stream reuses the freed memory of the other only once the streams are
//! ordered; until then the heap grows.
//!
//! `cargo run -p gpumem-heap --example two_streams`

#![allow(clippy::print_stdout)] // printing is what it is for

use core::convert::Infallible;
use gpumem_base::HeapTuning;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use gpumem_heap::heap::{BlockRequest, Heap};
use gpumem_heap::{HeapBlock, PhysicalMemory, RawHandle};

/// Physical memory that is only a number of handles.
#[derive(Default)]
struct Counted {
    handles: u64,
}

impl PhysicalMemory for Counted {
    type Error = Infallible;
    type Refusal = Infallible;

    fn create(&mut self, _size_bytes: u64) -> Result<RawHandle, Infallible> {
        self.handles += 1;
        Ok(RawHandle(self.handles))
    }

    fn map(&mut self, _address: u64, _size_bytes: u64, _handle: RawHandle) -> Result<(), Infallible> {
        Ok(())
    }

    fn set_access(&mut self, _address: u64, _size_bytes: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn unmap(&mut self, _address: u64, _size_bytes: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn release(&mut self, _handle: RawHandle, _size_bytes: u64) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The work of one stream is ordered; the work of two streams is ordered if one has waited for the other.
struct Streams {
    have_met: bool,
}

impl Order for Streams {
    fn is_ordered(&self, stamp: Stamp, before: StreamIndex) -> bool {
        stamp.stream_index() == before || self.have_met
    }

    fn is_complete(&self, _stamp: Stamp) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const MIB: u64 = 1 << 20;
    // One address range for small blocks, and one for blocks above 1 MiB.
    let mut heap = Heap::new(HeapTuning::BALANCED, [(1 << 40, 1 << 40), (1 << 41, 1 << 40)]);
    let mut memory = Counted::default();
    let mut streams = Streams { have_met: false };
    let (first, second) = (StreamIndex(0), StreamIndex(1));

    let block = allocate(&mut heap, &mut memory, &streams, 64 * MIB, first)?;
    println!("the first stream has 64 MiB: {} MiB reserved", heap.reserved_bytes() / MIB);
    heap.give(block.record, &[Stamp::new(first, 1)]);

    let apart = allocate(&mut heap, &mut memory, &streams, 64 * MIB, second)?;
    println!("the second takes 64 MiB, not ordered: {} MiB reserved", heap.reserved_bytes() / MIB);
    assert_ne!(apart.address, block.address);

    streams.have_met = true;
    let shared = allocate(&mut heap, &mut memory, &streams, 64 * MIB, second)?;
    println!("and 64 MiB more after a wait: {} MiB reserved", heap.reserved_bytes() / MIB);
    assert_eq!(shared.address, block.address);
    Ok(())
}

/// Takes free memory that the stream may use, or else new memory.
fn allocate(
    heap: &mut Heap,
    memory: &mut Counted,
    streams: &Streams,
    size_bytes: u64,
    stream: StreamIndex,
) -> Result<HeapBlock, Box<dyn std::error::Error>> {
    let request = BlockRequest { size_bytes, alignment: 256, stream };
    if let Some(block) = heap.take_ready(&request, streams) {
        return Ok(block);
    }
    let grown = heap.take_grown(&request, streams, memory, u64::MAX)?;
    Ok(grown.ok_or("no addresses are left")?)
}
