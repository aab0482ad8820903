//! Tests of the twin itself.

use super::*;

fn block(name: u32, address: u64, size_bytes: u64) -> NewBlock {
    NewBlock {
        name,
        address,
        size_bytes,
        counted_bytes: size_bytes,
        chunk_bytes: size_bytes.next_multiple_of(256),
        alignment: 256,
        pool: 0,
        part_of: None,
        tag: None,
    }
}

#[test]
fn overlaps_are_seen_from_both_sides() {
    let mut twin = Twin::default();
    twin.open(Some(10_000), None);
    twin.allocate(block(0, 0x1000, 256)).unwrap();
    assert!(twin.allocate(block(1, 0x1000, 1)).is_err() && twin.allocate(block(1, 0xf00, 257)).is_err());
    assert!(twin.allocate(block(1, 0, 1)).is_err() && twin.allocate(block(1, 0x1081, 1)).is_err());
    assert!(twin.allocate(NewBlock { alignment: 8192, ..block(1, 0x5000, 1) }).is_err());
    twin.allocate(block(1, 0x1100, 256)).unwrap();
    assert!(twin.allocate(block(2, 0x1000 - 256, 300)).is_err());
    assert!(twin.admits(0, 10_000 - 512) && !twin.admits(0, 10_000 - 511) && !twin.admits(0, u64::MAX));
    twin.free(0x1000, Fate::Free);
    twin.allocate(block(2, 0xf00, 0x200)).unwrap();
    let counters = &twin.pools[0];
    assert_eq!((counters.in_use_bytes, counters.peak_bytes, counters.block_count), (768, (768, 768), 2));
    assert_eq!(counters.allocation_count, 3);
}

#[test]
fn contents_follow_fills_and_copies() {
    let mut twin = Twin::default();
    twin.open(None, None);
    for (name, address, size_bytes) in [(1, 0x1000, 256), (2, 0x2000, 512), (3, 0x10000, 1 << 20)] {
        twin.allocate(block(name, address, size_bytes)).unwrap();
    }
    assert_eq!(copyable_bytes((256, false), (512, true)), None, "nothing to copy yet");
    assert_eq!(copyable_bytes((256, true), (512, false)), None, "the rest of the target is unknown");
    assert_eq!(copyable_bytes((256, true), (1 << 20, true)), None, "only its ends are followed");
    assert_eq!(copyable_bytes((256, true), (512, true)), Some(256));
    assert_eq!(copyable_bytes((512, true), (256, false)), Some(256));
    twin.fill(1, 7);
    twin.fill(2, 8);
    twin.fill(3, 9);
    twin.copy(1, 2, 256);
    let contents = twin.contents(2).unwrap();
    assert!(contents[..256].iter().all(|byte| *byte == 7) && contents[256..].iter().all(|byte| *byte == 8));
    assert_eq!(twin.contents(3).map(<[u8]>::len), Some(8192));
}

#[test]
fn a_private_pool_counts_with_the_one_above() {
    let mut twin = Twin::default();
    let root = twin.open(Some(1000), None);
    let inner = twin.open(Some(600), Some(root));
    twin.allocate(NewBlock { pool: inner, ..block(0, 0x1000, 500) }).unwrap();
    assert!(twin.admits(inner, 100) && !twin.admits(inner, 101));
    assert!(twin.admits(root, 500) && !twin.admits(root, 501));
    assert_eq!((twin.pools[root].in_use_bytes, twin.pools[inner].in_use_bytes), (0, 500));
}

#[test]
fn what_a_graph_leaves_in_a_capture_may_stay_for_that() {
    let mut twin = Twin::default();
    twin.open(None, None);
    twin.begin_capture(1);
    for (name, address) in [(0, 0x1000), (1, 0x2000)] {
        twin.allocate(NewBlock { part_of: Some(1), ..block(name, address, 1) }).unwrap();
    }
    twin.free(0x1000, Fate::Free);
    twin.end_capture();
    twin.begin_capture(2);
    twin.close_graph(1);
    twin.end_capture();
    twin.free(0x2000, Fate::Free);
    assert_eq!(twin.chunk_counts(0), (0, 2));
    assert!(twin.pools[0].spare_bytes >= 256);
    twin.close_graph(2);
    assert_eq!((twin.chunk_counts(0), twin.pools[0].spare_bytes), ((0, 0), 0));
}

#[test]
fn a_tag_has_what_was_allocated_for_it() {
    let mut twin = Twin::default();
    twin.open(None, None);
    for (name, address) in [(0, 0x1000), (1, 0x2000)] {
        twin.allocate(NewBlock { tag: Some("forward"), ..block(name, address, 300) }).unwrap();
    }
    twin.allocate(block(2, 0x3000, 300)).unwrap();
    twin.free(0x1000, Fate::Retained);
    twin.free(0x3000, Fate::Free);
    let expected = Tagged { in_use_bytes: 300, peak_bytes: 600, block_count: 1, allocation_count: 2 };
    assert_eq!(twin.pools[0].tags, BTreeMap::from([("forward", expected)]));
    assert_eq!((twin.whole_bytes(), twin.pools[0].in_use_bytes), (1024, 600));
}

#[test]
fn what_a_graph_keeps_is_nobody_elses_and_its_parts_are_spare() {
    let mut twin = Twin::default();
    twin.open(None, None);
    twin.begin_capture(1);
    twin.allocate(block(0, 0x1000, 256)).unwrap();
    let part = NewBlock { part_of: Some(1), ..block(1, 0x2000, 300) };
    twin.allocate(part).unwrap();
    assert_eq!((twin.pools[0].in_use_bytes, twin.pools[0].spare_bytes), (556, 212));
    twin.free(0x1000, Fate::Retained);
    twin.free(0x2000, Fate::Retained);
    assert_eq!((twin.pools[0].in_use_bytes, twin.pools[0].spare_bytes), (256, 512));
    assert!(twin.allocate(block(2, 0x1000, 1)).is_err() && twin.allocate(block(2, 0x2000, 1)).is_err());
    twin.allocate(NewBlock { name: 3, ..part }).unwrap();
    assert_eq!(twin.overlapped_by_kept(&[0, 1]), [3]);
    twin.end_capture();
    twin.let_go(0);
    twin.let_go(1);
    twin.close_graph(1);
    assert_eq!(twin.chunk_counts(0), (1, 2), "the program has the second part");
    twin.free(0x2000, Fate::Free);
    let counters = &twin.pools[0];
    assert_eq!((counters.in_use_bytes, counters.spare_bytes, counters.block_count), (0, 0, 0));
    assert_eq!(twin.chunk_counts(0), (0, 0));
}
