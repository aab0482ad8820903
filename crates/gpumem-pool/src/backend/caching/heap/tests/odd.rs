//! Frames that blocks of one stream share, each byte in one of several windows.

use super::super::Request;
use super::super::space::FRAME_BYTES;
use super::pair::{Pair, Step};
use crate::clock::Slot;
use crate::dials::{Dials, Profile};

fn take(pair: &mut Pair, frames: f64, stream: usize) {
    let size_bytes = (frames * FRAME_BYTES as f64) as u64;
    pair.run(&Step::Take { size_bytes, alignment: 256, stream });
}

fn give(pair: &mut Pair, index: usize) {
    pair.run(&Step::Give { index, uses: 1, complete: false });
}

fn frames(pair: &Pair) -> u64 {
    pair.heap.reserved_bytes() / FRAME_BYTES
}

/// Another stream's frame, and a block that leaves half a frame behind it, of what its stream has used before.
fn begun() -> Pair {
    let mut pair = Pair::new(Dials::of(Profile::Tight));
    take(&mut pair, 1.0, 1);
    take(&mut pair, 3.0, 0);
    give(&mut pair, 1);
    take(&mut pair, 2.5, 0);
    assert_eq!(frames(&pair), 4);
    pair
}

#[test]
fn a_block_starts_with_what_its_stream_left_of_a_frame() {
    let mut pair = begun();
    take(&mut pair, 4.5, 0);
    assert_eq!((frames(&pair), pair.heap.frames.shared().count()), (8, 1));
    // Once nobody holds any of it, the frame is whole again wherever it is wanted.
    give(&mut pair, 1);
    give(&mut pair, 1);
    take(&mut pair, 7.0, 0);
    assert_eq!((frames(&pair), pair.heap.frames.shared().count()), (8, 0));
}

#[test]
fn what_one_stream_left_is_not_what_another_starts_with() {
    let mut pair = begun();
    take(&mut pair, 4.5, 1);
    assert_eq!((frames(&pair), pair.heap.frames.shared().count()), (9, 0));
}

#[test]
fn a_frame_in_several_windows_goes_back_with_the_rest() {
    let mut pair = begun();
    take(&mut pair, 4.5, 0);
    (0..3).for_each(|_| give(&mut pair, 0));
    [0, 1].into_iter().for_each(|stream| pair.known.observe(stream));
    pair.run(&Step::Trim { keep_bytes: 0 });
    assert!(pair.driver.created.is_empty() && pair.driver.mapped.is_empty());
}

#[test]
fn what_is_asked_for_at_an_alignment_starts_there() {
    let mut pair = begun();
    let size_bytes = 9 * FRAME_BYTES / 2;
    let piece = pair.climb(&Request { size_bytes, alignment: FRAME_BYTES, slot: Slot(0) }).unwrap();
    assert_eq!(piece.address % FRAME_BYTES, 0);
    pair.heap.check().unwrap();
}
