//! A short version of the stress test. For a longer one, use `cargo run --release -p gpumem-tests --example stress`.

use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::settings;
use gpumem_tests::fixtures::pattern::Wrong;
use gpumem_tests::pool::adaptor::{Guard, Side};
use gpumem_tests::pool::{BackendKind, Device, PoolError};
use gpumem_tests::stress::{Mistake, Plan, Until, run};
use gpumem_tests::sys::{Driver, DriverKind};
use std::sync::Arc;
use std::time::Duration;

cases! {
    /// No block ever has wrong contents, with each backend and profile.
    fn nothing_is_overwritten(driver: &Driver) -> Result<(), PoolError> {
        let device = Device::new(driver, 0)?;
        for setting in settings(&device) {
            let pool = setting.builder(&device).build()?;
            let done = run(&pool, &plan(driver))?;
            assert_eq!(done.wrong, Wrong::default(), "{setting}: {done}");
            assert!(done.hand_overs > 0 && done.sent > 0 && done.refusals == 0, "{setting}: {done}");
            let status = pool.status()?;
            assert_eq!((status.in_use_bytes, status.block_count), (0, 0), "{setting}");
            assert_eq!(status.allocation_count, done.blocks, "{setting}");
        }
        Ok(())
    }

    /// No block has wrong contents when memory is scarce.
    fn nothing_is_overwritten_at_the_limit(driver: &Driver) -> Result<(), PoolError> {
        let device = Device::new(driver, 0)?;
        for setting in settings(&device) {
            let plan = plan(driver);
            let pool = setting.builder(&device).hard_limit(plan.budget_bytes / 4).build()?;
            let done = run(&pool, &plan)?;
            assert_eq!(done.wrong, Wrong::default(), "{setting}: {done}");
            assert!(done.refusals > 0 && done.blocks > done.refusals, "{setting}: {done}");
        }
        Ok(())
    }

    /// No guard bytes are written while threads and streams pass blocks to each other.
    fn no_guard_is_written(driver: &Driver) -> Result<(), PoolError> {
        let device = Device::new(driver, 0)?;
        for setting in settings(&device) {
            let guard = Arc::new(Guard::new());
            let pool = setting.builder(&device).adaptor(guard.clone()).build()?;
            let done = run(&pool, &plan(driver))?;
            device.synchronize()?;
            assert_eq!((guard.settle(), done.wrong), (Vec::new(), Wrong::default()), "{setting}: {done}");
            assert!(guard.checked_count() > done.blocks / 10, "{setting}: {guard:?}");
            assert_eq!(guard.checked_count() + guard.unchecked_count(), done.blocks, "{setting}: {guard:?}");
        }
        Ok(())
    }

    /// A written guard byte is reported, by an allocation or at the end.
    fn a_guard_that_is_written_is_found(driver: &Driver) -> Result<(), PoolError> {
        let device = Device::new(driver, 0)?;
        for setting in settings(&device) {
            let guard = Arc::new(Guard::new());
            let pool = setting.builder(&device).adaptor(guard.clone()).build()?;
            let outcome = run(&pool, &Plan { mistake: Some(Mistake::End), ..plan(driver) });
            device.synchronize()?;
            let at_the_end = guard.settle();
            let at_once = match &outcome {
                Err(PoolError::Damaged(damage)) => Some(&**damage),
                _ => None,
            };
            let damages: Vec<_> = at_once.into_iter().chain(&at_the_end).collect();
            assert!(!damages.is_empty(), "{setting}: {guard:?}");
            for damage in damages {
                let found = (damage.side, damage.distance_bytes, damage.count);
                assert_eq!(found, (Side::Behind, 0, 1), "{setting}");
            }
        }
        Ok(())
    }
}

/// A missing wait or use is detected, on every backend. Whether it matters in one run depends on how the threads meet: one of some runs has to
/// find it.
#[test]
fn deliberate_mistakes_are_found() {
    for mistake in [Mistake::NoWait, Mistake::NoRecordUse] {
        let machine = || {
            let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
            let device = Device::new(&driver, 0).unwrap();
            (driver, device)
        };
        for setting in settings(&machine().1) {
            // A plain free waits for all work of the device.
            if setting.backend == BackendKind::None && mistake == Mistake::NoRecordUse {
                continue;
            }
            let is_found = |seed| {
                let (driver, device) = machine();
                let pool = setting.builder(&device).build().unwrap();
                let done = run(&pool, &Plan { mistake: Some(mistake), seed, ..plan(&driver) });
                let findings = gpumem_sim::Sim::of(&driver).unwrap().take_findings();
                !findings.is_empty() || done.is_err()
            };
            assert!((1..=5).any(is_found), "{setting} {mistake:?}");
        }
    }
}

fn plan(driver: &Driver) -> Plan {
    match driver.kind() {
        DriverKind::Sim => Plan {
            threads: 4,
            streams: 8,
            until: Until::Steps(250),
            size_bytes_max: 1 << 20,
            budget_bytes: 32 << 20,
            seed: 1,
            mistake: None,
        },
        _ => Plan {
            threads: 16,
            streams: 16,
            until: Until::Elapsed(Duration::from_secs(2)),
            size_bytes_max: 64 << 20,
            budget_bytes: 8 << 30,
            seed: 1,
            mistake: None,
        },
    }
}
