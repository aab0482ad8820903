//! A block is freed on one stream. Another stream may use its memory once it waits for the first, and the host once the work is complete.
//!
//! `cargo run -p gpumem-base --example stamps`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_base::order::{Epochs, Order, StreamId, StreamIndex};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let epochs = Epochs::new();
    let streams = [1, 2].map(|number| StreamId::new(u64::from(number), StreamIndex(number)));
    streams.iter().for_each(|stream| epochs.open(*stream));
    let [first, second] = streams.map(StreamId::stream_index);

    let freed = epochs.stamp(first);
    println!("freed at {freed:?}: the other stream may use it: {}", epochs.is_ordered(freed, second));
    assert!(!epochs.is_ordered(freed, second));

    // A program would record an event here, and make the second stream wait for it.
    let covered = epochs.close(first).ok_or("too many epochs")?;
    epochs.raise_order(second, &covered);
    println!("after a wait: {}, complete: {}", epochs.is_ordered(freed, second), epochs.is_complete(freed));
    assert!(epochs.is_ordered(freed, second) && !epochs.is_complete(freed));

    // And here the event is complete.
    epochs.raise_complete(&covered);
    assert!(epochs.is_ordered(freed, StreamIndex::HOST));
    Ok(())
}
