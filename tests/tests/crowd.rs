//! Many threads against one limit, short; `cargo run --release -p gpumem-tests --example crowd` does it for as long as
//! wanted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::backends::settings;
use gpumem_tests::cases;
use gpumem_tests::counted::Counted;
use gpumem_tests::crowd::{Mixture, Plan, run};
use gpumem_tests::pool::{Device, PoolError};
use std::time::Duration;

const LIMIT_BYTES: u64 = 1 << 30;

cases! {
    /// The limit is never passed by a byte, and nobody is refused while there is something to give back.
    fn a_crowd_keeps_to_the_limit_and_gets_all_of_it(driver: &Driver) -> Result<(), PoolError> {
        let counted = Counted::new(driver);
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
