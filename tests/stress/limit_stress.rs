//! Many threads at one hard limit, in a short version. For a longer one, use
//! `cargo run --release -p gpumem-tests --example limit_stress`.

use gpumem_tests::cases;
use gpumem_tests::driver::memory_counter::MemoryCounter;
use gpumem_tests::fixtures::backends::settings;
use gpumem_tests::pool::{Device, PoolError};
use gpumem_tests::stress::limit::{Mixture, Plan, run};
use std::time::Duration;

const LIMIT_BYTES: u64 = 1 << 30;

cases! {
    /// The pool never holds more than the limit, and refuses no request that fits.
    fn many_threads_stay_within_the_limit_and_can_use_all_of_it(driver: &Driver) -> Result<(), PoolError> {
        let counted = MemoryCounter::new(driver);
        let device = Device::new(&counted.driver, 0)?;
        for setting in settings(&device) {
            let kind = setting.kind;
            let pool = setting.builder(&device).hard_limit(LIMIT_BYTES).build()?;
            for mixture in [Mixture::Even, Mixture::Mixed] {
                let time = Duration::from_millis(100);
                let plan = Plan { threads: 16, limit_bytes: LIMIT_BYTES, mixture, time, seed: 1 };
                let done = run(&counted, &pool, kind, plan)?;
                assert!(done.held_peak_bytes <= LIMIT_BYTES, "{setting}: {done}");
                assert!(done.refused == 0 && done.blocks > 100, "{setting}, {mixture:?}: {done}");
                pool.check().unwrap();
            }
            pool.reclaim()?;
            drop(pool);
            device.synchronize()?;
            assert_eq!(counted.held_bytes(kind), 0, "{setting}");
        }
        Ok(())
    }
}
