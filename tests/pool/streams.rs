//! A program without a necessary wait fails under some seed of the simulator, and under that seed every time; with the wait it
//! passes.

use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{Device, Event, Pool, Stream};
use gpumem_tests::cases;

const SIZE_BYTES: usize = 1 << 20;

/// Fills on one stream, copies on another, and returns the last byte copied. With `wait`, the second stream waits.
fn hand_over(driver: &Driver, wait: bool) -> u8 {
    let device = Device::new(driver, 0).unwrap();
    let pool = Pool::new(&device).unwrap();
    let (producer, consumer) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let source = pool.alloc(SIZE_BYTES as u64, &producer).unwrap();
    let target = pool.alloc(SIZE_BYTES as u64, &consumer).unwrap();
    source.record_use(&consumer);
    let _bound = device.bind().unwrap();
    let mut last = [0u8];
    // SAFETY: both blocks are alive and have that size. Without the wait, the bytes are wrong but the memory is valid.
    unsafe {
        driver.cuMemsetD8Async(source.address(), 1, SIZE_BYTES, producer.raw()).unwrap();
        device.synchronize().unwrap();
        driver.cuMemsetD8Async(source.address(), 2, SIZE_BYTES, producer.raw()).unwrap();
        if wait {
            let event = Event::new(&device).unwrap();
            event.record(&producer).unwrap();
            consumer.wait(&event).unwrap();
        }
        driver.cuMemcpyDtoDAsync_v2(target.address(), source.address(), SIZE_BYTES, consumer.raw()).unwrap();
        consumer.synchronize().unwrap();
        driver
            .cuMemcpyDtoH_v2(last.as_mut_ptr().cast(), target.address() + SIZE_BYTES as u64 - 1, 1)
            .unwrap();
    }
    last[0]
}

cases! {
    /// With the wait, the consumer sees what the producer wrote.
    fn waiting_sees_the_write(driver: &Driver) {
        assert_eq!(hand_over(driver, true), 2);
    }
}

/// With the wait, no seed sees the old bytes.
#[test]
fn the_program_with_the_wait_passes_under_every_seed() {
    gpumem_tests::for_each_seed!(1_000, |driver: &Driver, _| assert_eq!(hand_over(driver, true), 2));
}

/// Without the wait, some seed reads the old bytes every time, and the failure has the command that repeats it.
#[test]
fn the_program_without_the_wait_fails_under_some_seed() {
    let found = gpumem_tests::find_failing_seed!(1_000, |driver: &Driver, _| {
        assert_eq!(hand_over(driver, false), 2, "the copy saw old bytes");
        // This case compares the bytes, so the findings are discarded.
        gpumem_sim::Sim::of(driver).unwrap().take_findings();
    });
    assert!(found.message.contains("the copy saw old bytes"), "{found:?}");
    assert!(found.command.starts_with(&format!("GPUMEM_SIM_SEED={} cargo test", found.seed)), "{found:?}");
}

/// Without the wait, the first seed reports the race, whatever bytes it reads.
#[test]
fn the_race_of_the_program_without_the_wait_is_found_under_the_first_seed() {
    let found = gpumem_tests::find_failing_seed!(1, |driver: &Driver, _| {
        hand_over(driver, false);
    });
    assert!(found.message.starts_with("race between streams: "), "{found:?}");
}
