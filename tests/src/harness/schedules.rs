//! Schedules: one body under every order in which the simulator may run its work.
//!
//! For small programs: each further stream, and each call while work is queued, multiplies the number of orders. For larger programs,
//! [`seeds`](crate::harness::seeds) sample the orders.

use crate::harness::seeds::{Outcome, Suite, explain, run_on};
use crate::sys::{Driver, env};
use gpumem_sim::{Schedule, SimConfig};

/// Runs a body under each of its schedules, or under the first `limit` of them; or only under the one in
/// `GPUMEM_SIM_SCHEDULE`. The body gets a new driver each time, and fails by a panic or an `Err`. Its calls of
/// the driver must not depend on anything but the schedule.
///
/// ```
/// let explored = gpumem_tests::for_each_schedule!(1_000, |driver: &gpumem_tests::sys::Driver| {
///     let mut count = 0;
///     // SAFETY: `count` outlives the call.
///     unsafe { driver.cuDeviceGetCount(&mut count) }
/// });
/// # if std::env::var_os("GPUMEM_SIM_SCHEDULE").is_none() {
/// assert!(explored.is_complete && explored.count == 1);
/// # }
/// ```
///
/// # Panics
///
/// At the first schedule that fails, after printing the command that repeats it.
#[macro_export]
macro_rules! for_each_schedule {
    ($limit:expr, $body:expr $(,)?) => {
        $crate::harness::schedules::for_each($crate::suite!(), $limit, $body)
    };
}

/// The result of [`for_each_schedule!`](crate::for_each_schedule!).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a limit may have been reached"]
pub struct Explored {
    /// The number of schedules that were run.
    pub count: u64,
    /// True if all schedules were run.
    pub is_complete: bool,
}

/// [`for_each_schedule!`](crate::for_each_schedule!) without the macro.
pub fn for_each<R: Outcome>(suite: Suite, limit: u64, body: impl Fn(&Driver) -> R) -> Explored {
    let body = |driver: &Driver| body(driver).failure();
    let config = SimConfig::from_env().unwrap_or_else(|error| panic!("{error}"));
    let is_given = env::read(gpumem_sim::VARIABLES, "GPUMEM_SIM_SCHEDULE")
        .unwrap_or_else(|error| panic!("{error}"))
        .is_some();
    let first =
        if is_given { config.clone() } else { config.clone().schedule(Schedule::Choices(Vec::new())) };
    let mut next = Some(first);
    let mut count = 0;
    while let Some(now) = next.take_if(|_| count < limit) {
        count += 1;
        let (choices, outcome) = run_on(now, &body);
        if let Err(failed) = outcome {
            let schedule = failed.report.schedule.to_string();
            let command = suite.command(&[
                ("GPUMEM_SIM_SEED", failed.report.seed.to_string()),
                ("GPUMEM_SIM_SCHEDULE", schedule.clone()),
            ]);
            explain(failed, &format!("schedule {schedule}"), &command);
        }
        next =
            Schedule::next(&choices).filter(|_| !is_given).map(|schedule| config.clone().schedule(schedule));
    }
    Explored { count, is_complete: next.is_none() && !is_given }
}

#[cfg(test)]
mod tests {
    use crate::driver::raw::Raw;
    use crate::sys::{Driver, DriverError};
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// Two streams write one byte; without the wait, either may come last.
    fn last_writer(driver: &Driver, waits: bool) -> Result<u8, DriverError> {
        let raw = Raw::new(driver)?;
        let (a, b, event, byte) = (raw.stream()?, raw.stream()?, raw.event()?, raw.alloc(1)?);
        // SAFETY: this function owns the handles and the memory, and all work is complete when they are destroyed.
        unsafe {
            driver.cuMemsetD8Async(byte, 1, 1, a)?;
            driver.cuEventRecord(event, a)?;
            if waits {
                driver.cuStreamWaitEvent(b, event, 0)?;
            }
            driver.cuMemsetD8Async(byte, 2, 1, b)?;
            let last = raw.read(byte, 1)?[0];
            driver.cuMemFree_v2(byte)?;
            driver.cuEventDestroy_v2(event)?;
            driver.cuStreamDestroy_v2(a)?;
            driver.cuStreamDestroy_v2(b)?;
            Ok(last)
        }
    }

    fn is_given() -> bool {
        std::env::var_os("GPUMEM_SIM_SCHEDULE").is_some()
    }

    #[test]
    fn every_outcome_is_reached() {
        let seen = RefCell::new(BTreeSet::new());
        let explored = crate::for_each_schedule!(10_000, |driver: &Driver| {
            seen.borrow_mut().insert(last_writer(driver, false)?);
            // The race is deliberate.
            let _ = gpumem_sim::Sim::of(driver).map(gpumem_sim::Sim::take_findings);
            Ok::<_, DriverError>(())
        });
        assert!(explored.is_complete && explored.count > 2 && *seen.borrow() == [1, 2].into() || is_given());
    }

    #[test]
    fn a_correct_program_passes_under_every_schedule_and_a_limit_is_said() {
        let run = |limit| {
            crate::for_each_schedule!(limit, |driver: &Driver| {
                assert_eq!(last_writer(driver, true)?, 2);
                Ok::<_, DriverError>(())
            })
        };
        let all = run(10_000);
        let some = run(2);
        assert!(all.is_complete && !some.is_complete && some.count == 2 || is_given());
    }

    /// Wrong under some schedules; run by the test below, in a process of its own.
    #[test]
    #[ignore = "fails on purpose"]
    fn wrong_when_the_second_writer_is_first() {
        let _ = crate::for_each_schedule!(10_000, |driver: &Driver| {
            assert_eq!(last_writer(driver, false)?, 2);
            let _ = gpumem_sim::Sim::of(driver).map(gpumem_sim::Sim::take_findings);
            Ok::<_, DriverError>(())
        });
    }

    #[test]
    fn the_printed_command_repeats_the_failure() {
        let name = "harness::schedules::tests::wrong_when_the_second_writer_is_first";
        let under = |schedule: Option<&str>| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([name, "--exact", "--ignored"]).env_remove("GPUMEM_SIM_SCHEDULE");
            schedule.map(|schedule| command.env("GPUMEM_SIM_SCHEDULE", schedule));
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let (passed, shown) = under(None);
        assert!(!passed && shown.contains(" cargo test -p gpumem-tests --lib "), "{shown}");
        let choices = shown.split("GPUMEM_SIM_SCHEDULE=").nth(1).and_then(|rest| rest.split(' ').next());
        assert!(!under(choices).0, "{shown}");
        assert!(under(Some("early")).0);
    }
}
