//! [`Recent`]: what is handed out again, and what leaves for the heap.

use crate::backend::caching::magazine::Piece;
use crate::backend::caching::recent::{Large, Recent};

fn large(record: u32, size_bytes: u64) -> Large {
    Large { piece: Piece { address: u64::from(record) << 32, record }, size_bytes, stamp: 7 }
}

#[test]
fn the_block_that_went_out_last_comes_out_again_if_it_came_back_last() {
    let mut recent = Recent::new();
    recent.note_out(3);
    assert!(recent.put(large(3, 64)));
    assert_eq!(recent.take(65), None);
    for _ in 0..2 {
        assert_eq!(recent.take(64), Some(large(3, 64).piece));
        assert_eq!(recent.take(64), None);
        assert!(recent.put(large(3, 64)));
    }
    // Another of the same size was freed since: where a block goes is the heap's to say.
    assert!(recent.put(large(4, 64)));
    assert_eq!(recent.take(64), None);
}

#[test]
fn a_few_wait_and_leave_together_as_they_came() {
    let mut recent = Recent::new();
    let put = (0..9).take_while(|record| recent.put(large(*record, 64))).count();
    assert!(put > 1 && put < 9);
    let all = recent.empty();
    assert_eq!(all.as_slice(), (0..put as u32).map(|record| large(record, 64)).collect::<Vec<_>>());
    assert!(recent.as_slice().is_empty() && recent.put(large(9, 64)));
}
