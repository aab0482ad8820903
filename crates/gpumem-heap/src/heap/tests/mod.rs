//! The heap against naive twins, and its pure parts against naive walks.

mod back;
mod fit;
mod known;
mod pair;
mod partial_page;
mod random;
mod size;
mod sleep;
mod twin;

use super::BlockRequest;
use gpumem_base::HeapTuning;
use gpumem_base::order::{Stamp, StreamIndex};
use pair::Pair;

#[test]
fn a_program_that_repeats_itself_asks_the_driver_no_more() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    let take = |pair: &mut Pair, size_bytes| {
        pair.climb(&BlockRequest { size_bytes, alignment: 256, stream: StreamIndex(0) }).unwrap().record
    };
    let give = |pair: &mut Pair, record| pair.heap.give(record, &[Stamp::new(StreamIndex(0), 1)]);
    let layers: Vec<u64> = (0..24_u64).map(|i| ((i * i * 37) % 23 + 1) << 20).collect();
    let mut mapped = Vec::new();
    for _ in 0..16 {
        // Forwards, the blocks of each layer are kept; backwards, each is used for something smaller, and freed.
        let mut kept = Vec::new();
        for layer_bytes in &layers {
            let scratch = take(&mut pair, layer_bytes * 2);
            kept.push(take(&mut pair, *layer_bytes));
            give(&mut pair, scratch);
        }
        for layer_bytes in layers.iter().rev() {
            let gradient = take(&mut pair, layer_bytes / 2 + 5_000);
            if let Some(record) = kept.pop() {
                give(&mut pair, record);
            }
            give(&mut pair, gradient);
        }
        pair.heap.check().unwrap();
        mapped.push((pair.driver.mapped.len(), pair.driver.created.len()));
    }
    assert_eq!(mapped[8..].iter().max(), mapped[8..].iter().min(), "{mapped:?}");
}

#[test]
fn sizes_beyond_any_device_are_refused() {
    let mut pair = Pair::new(HeapTuning::BALANCED);
    for size_bytes in [1 << 50, (1 << 50) + 1, 1 << 63, u64::MAX] {
        assert_eq!(pair.climb(&BlockRequest { size_bytes, alignment: 256, stream: StreamIndex(0) }), None);
    }
    assert_eq!(
        pair.climb(&BlockRequest { size_bytes: 1 << 20, alignment: 1 << 63, stream: StreamIndex(0) }),
        None
    );
    pair.heap.check().unwrap();
    assert_eq!(pair.heap.reserved_bytes(), 0);
}
