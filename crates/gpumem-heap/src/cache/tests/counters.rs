//! [`Counters`]: sums.

use crate::counters::Counters;

#[test]
fn blocks_that_wander_are_counted_once() {
    let (mut producer, mut consumer) = (Counters::default(), Counters::default());
    producer.count_out(300);
    producer.count_out(700);
    consumer.count_in(300);
    let sum = producer + consumer;
    assert_eq!((sum.in_use_bytes(), sum.block_count(), sum.allocation_count()), (700, 1, 2));
    consumer.count_in(700);
    assert_eq!((producer + consumer).in_use_bytes(), 0);
    assert_eq!((producer + consumer).block_count(), 0);
    assert_eq!(consumer.operation_count(), 2);
}
