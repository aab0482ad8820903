//! [`SizeClass`] against a naive twin.

use crate::size_class::SizeClass;
use proptest::prelude::*;

/// The naive twin: the first class, counted upwards, that fits the request.
fn first_fit(size_bytes: u64) -> Option<SizeClass> {
    let mut classes = (0..).map_while(SizeClass::at);
    classes.find(|class| class.size_bytes() >= size_bytes).filter(|_| size_bytes > 0)
}

#[test]
fn classes_grow_by_whole_units_from_256_bytes_to_a_mebibyte() {
    let sizes_bytes: Vec<u64> = (0..).map_while(SizeClass::at).map(SizeClass::size_bytes).collect();
    assert_eq!(sizes_bytes.len(), SizeClass::COUNT);
    assert_eq!((sizes_bytes[0], sizes_bytes[SizeClass::COUNT - 1]), (256, 1 << 20));
    assert!(sizes_bytes.iter().all(|size| size.is_multiple_of(256)));
    assert!(sizes_bytes.is_sorted_by(|smaller, larger| smaller < larger));
}

#[test]
fn every_power_of_two_is_a_class_of_its_own() {
    for power in 8..=20 {
        let class = SizeClass::of(1 << power).unwrap();
        assert_eq!(class.size_bytes(), 1 << power);
        assert_eq!(
            SizeClass::of((1 << power) + 1).map(SizeClass::index),
            SizeClass::at(class.index() + 1).map(SizeClass::index)
        );
    }
}

#[test]
fn batches_are_a_mebibyte_or_so() {
    let count = |size_bytes| SizeClass::of(size_bytes).unwrap().batch_count();
    assert_eq!((count(256), count(32 << 10), count(64 << 10), count(1 << 20)), (128, 32, 16, 4));
}

proptest! {
    #[test]
    fn the_smallest_class_that_fits_is_found(size_bytes in 0..SizeClass::SIZE_BYTES_MAX + 2) {
        prop_assert_eq!(SizeClass::of(size_bytes), first_fit(size_bytes));
    }

    #[test]
    fn small_requests_too(size_bytes in 0_u64..80_000) {
        prop_assert_eq!(SizeClass::of(size_bytes), first_fit(size_bytes));
    }

    #[test]
    fn waste_is_as_stated(size_bytes in 1..=SizeClass::SIZE_BYTES_MAX) {
        let waste_bytes = SizeClass::of(size_bytes).unwrap().size_bytes() - size_bytes;
        let allowed_bytes = match size_bytes {
            ..=2048 => 255,
            2049..=65536 => size_bytes / 8,
            _ => size_bytes / 32,
        };
        prop_assert!(waste_bytes <= allowed_bytes, "{waste_bytes} of {size_bytes}");
    }

    #[test]
    fn beyond_a_mebibyte_there_is_none(size_bytes in SizeClass::SIZE_BYTES_MAX + 1..) {
        prop_assert_eq!(SizeClass::of(size_bytes), None);
    }
}
